/* Texts that recur, each once on the board: names, prefixes of keys, descriptions of inputs and
 * outputs.
 *
 * Records carry the number of such a text. A text is kept when it is met for the second time, so
 * that texts that never recur take no room; a name at once. What finds no room stays inline in its
 * record. One thread at a time, under the tasks' mutex. Readers walk over them from the first
 * (board_read.h).
 */
#ifndef DWSR_TEXTS_H
#define DWSR_TEXTS_H

#include "frame.h"

#define TEXTS_MOST      4096
#define TEXT_BYTES_MOST 2048

#define TEXT_SHORT 52

struct texts_index {
    struct {
        uint32_t hash, offset, len, number;
    } table[2 * TEXTS_MOST];        /* number + 1; 0: free */
    uint32_t seen_once[TEXTS_MOST]; /* hashes of texts that were met once, by their low bits */
};

struct texts {
    /* TEXTS_BYTES of the board: each text its length and checksum in a word, then itself in whole
     * words */
    char *heap;
    word *end; /* for readers: bytes of the heap that are whole */
    struct texts_index *index;
    uint32_t count, used;
    /* What each kind of text was last: mostly, it is that again. A short one stands here, too. */
    /* number + 1; 0: none */
    struct {
        uint32_t offset, len, number;
        char text[TEXT_SHORT];
    } last[TEXT_COUNT];
};

void texts_open(struct texts *t, struct texts_index *index, char *heap, word *end);
/* Never 0. */
uint32_t texts_hash(struct text text);
/* The word before a text of the heap. */
word texts_head(const word *words, uint64_t len);
/* The text's number, or ABSENT: it is to stand inline. */
uint64_t texts_number(struct texts *t, enum task_text kind, struct text text);

#endif
