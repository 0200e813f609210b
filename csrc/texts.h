/* Interned texts: names, prefixes of keys, descriptions of inputs and outputs that recur stand on
 * the board once, and records carry their numbers.
 *
 * Names, operations and chains are interned at once, any other text when it is met for the second
 * time, so that texts that never recur take no space. A text for which there is no space stays
 * inline in its record.
 *
 * Called by tasks.c, one thread at a time, under the tasks' mutex. Readers read all texts from the
 * first one on (board_read.h).
 */
#ifndef DWSR_TEXTS_H
#define DWSR_TEXTS_H

#include "frame.h"

#define TEXTS_MOST      4096
#define TEXT_BYTES_MOST 2048

#define TEXT_SHORT 52

/* In the process only: how to find a text on the board. */
struct texts_index {
    struct {
        uint32_t hash, offset, len, number; /* number + 1; 0: a free bucket */
    } table[2 * TEXTS_MOST];
    uint32_t seen_once[TEXTS_MOST]; /* hashes of texts that were met once */
};

struct texts {
    /* TEXTS_BYTES of the board. Each text is one word, its length and checksum (texts_header_word),
     * and then the text in whole words. */
    char *heap;
    word *end; /* on the board: bytes of the heap that are complete */
    struct texts_index *index;
    uint32_t count, used;
    /* The last text of each kind: the next one is mostly the same. Short ones are copied. */
    struct {
        uint32_t offset, len, number; /* number + 1; 0: none */
        char text[TEXT_SHORT];
    } last[TEXT_COUNT];
};

/* Empties the texts of a new board. */
void texts_open(struct texts *t, struct texts_index *index, char *heap, word *end);
/* Never 0. */
uint32_t texts_hash(struct text text);
/* The word before a text of the heap: length (lower half) and checksum (upper half). */
word texts_header_word(const word *words, uint64_t len);
/* The number of an interned text; ABSENT: the text is to stand inline. */
uint64_t texts_intern(struct texts *t, enum task_text kind, struct text text);

#endif
