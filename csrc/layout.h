/* The lists of fields that a file says it has, against those that are compiled in.
 *
 * A board, and a stored run, carry their lists as text: a line each, the list's name and its fields
 * in order (BOARD_LAYOUT). A reader parses the text once and copies words by the maps below, so
 * that files of releases with fewer or more fields are read. Called by the reader (board_read.c,
 * frame.c) alone.
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
    int16_t to[LAYOUT_FIELDS_MOST]; /* the index here of each, or -1: not known here */
};

struct layout {
    int packed; /* frames are packed (frame.h), or those of versions before 6 (board_legacy.h) */
    struct layout_map lists[LAYOUT_LISTS];
};

/* 0, or -EINVAL: not a layout that a writer can have written. The text need not end with a zero. */
int layout_parse(struct layout *l, const char *text, uint64_t len);

/* The `words` words of a list that are known here, from the file's; ABSENT for what the file lacks.
 */
void layout_copy(const struct layout *l, enum layout_list list, const word *from, word *to,
                 uint32_t words);

/* The fields of a list that are known here, in order, ended by NULL. */
const char *const *layout_names(enum layout_list list);

#endif
