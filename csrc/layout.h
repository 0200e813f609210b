/* Maps from the fields that a file says it has to the fields that are compiled in.
 *
 * A board and a stored run carry their lists of fields as text (BOARD_LAYOUT): one line per list,
 * its name and its fields in order. A reader parses the text once and copies words by the maps. So
 * files of releases with fewer or more fields can be read. Called by readers only (board_read.c,
 * frame.c, the Python binding), in any thread; a parsed layout is not changed.
 */
#ifndef DWSR_LAYOUT_H
#define DWSR_LAYOUT_H

#include "board_layout.h"

enum layout_list {
    LAYOUT_LIVE,
    LAYOUT_SLOT,
    LAYOUT_TASK,
    LAYOUT_TEXT,
    LAYOUT_TASK_DEVICE,
    LAYOUT_OOM,
    LAYOUT_DEVICE,
    LAYOUT_TOTAL,
    LAYOUT_TOTAL_DEVICE,
    LAYOUT_LISTS
};

#define LAYOUT_FIELDS_MOST 128

struct layout_map {
    uint32_t count;                 /* fields of the file */
    int16_t to[LAYOUT_FIELDS_MOST]; /* for each, its index in the compiled list; -1: unknown */
};

struct layout {
    int packed; /* 1: packed frames (frame.h), 0: those of versions 4 and 5 (board_legacy.h) */
    struct layout_map lists[LAYOUT_LISTS];
};

/* 0, or -EINVAL if no writer can have written the text. It need not end with a zero. */
int layout_parse(struct layout *l, const char *text, uint64_t len);

/* Copies a list's words from the file's order to the compiled one, of `words` words. ABSENT stands
 * for fields that the file lacks. */
void layout_copy(const struct layout *l, enum layout_list list, const word *from, word *to,
                 uint32_t words);

/* The names of the compiled fields of a list, in order, ended by NULL. */
const char *const *layout_names(enum layout_list list);

#endif
