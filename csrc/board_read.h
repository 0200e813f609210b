/* The reader's side of a board, in any process, of a board that is written to, dead, cut short or
 * not a board at all.
 *
 * Everything is read with pread into private memory and checked there: a file that shrinks under a
 * reader must not become SIGBUS, and bytes from a file are never trusted. Calls return 0 or a
 * count, or one of the errors below.
 */
#ifndef DWSR_BOARD_READ_H
#define DWSR_BOARD_READ_H

#include "frame.h"

enum board_read_error {
    BOARD_NOT_READY = -1, /* being created, or its creator died doing so */
    BOARD_FOREIGN = -2,   /* not a board */
    BOARD_VERSION_UNKNOWN = -3,
    BOARD_DAMAGED = -4, /* header or positions make no sense */
    BOARD_CUT_SHORT = -5,
    BOARD_UNREADABLE = -6, /* errno says why */
};

/* Names in order, each list ended by NULL; those of the layout's lists are in layout.h. */
extern const char *const board_header_names[], *const board_text_names[],
                                                   *const board_sample_names[];

struct board_reader {
    int fd;
    uint64_t inode;
    int has_room;               /* for tasks, as far as was seen: a board grows once */
    struct board_header header; /* verified; after BOARD_VERSION_UNKNOWN only `version` is set */
    struct layout layout;
    char layout_text[LAYOUT_BYTES]; /* ends with a zero */
};

/* A running task, by its slot. */
struct running_task {
    struct slot_fields slot;
    struct task_device gpu[TASK_DEVICES];
    struct task_fields task;
    struct text name, key, inputs; /* in `page` */
    char page[SLOT_BYTES];
};

/* All of `bytes` from the file, or an error. */
int board_read_at(const struct board_reader *r, void *to, uint64_t bytes, uint64_t offset);

/* Text `index` of the header and its length. */
const char *board_reader_text(const struct board_reader *r, int index, uint64_t *len);

int board_reader_open(struct board_reader *r, const char *path);
void board_reader_close(struct board_reader *r);

int board_read_live(const struct board_reader *r, struct board_live *live);
/* The facts; len 0: none yet, or being written over and over. */
int board_read_facts(const struct board_reader *r, struct facts *facts);
/* A device's fields and texts, each zero-terminated; 1, or 0 if the process has not used it. */
int board_read_device(const struct board_reader *r, uint64_t index, struct device *d);
/* 1: a running task, 0: free, or being written or erased (its task has not begun, or has its
 * record). */
int board_read_slot(struct board_reader *r, uint64_t index, struct running_task *task);
/* Up to `most` (at least 1) whole frames from *position on, oldest first, into `frames`; *position
 * moves behind them. Skips to the oldest frame still held if *position was overwritten. `size` must
 * hold at least one frame. Returns bytes; 0: nothing more. A caller that starts at 0 and goes on
 * until 0 or an error comes to an end on any file. */
int64_t board_read_records(struct board_reader *r, uint64_t *position, char *frames, uint64_t size,
                           uint64_t most);
/* Texts from byte *position of their heap on, each as a word, whose lower half is its length, and
 * itself in whole words; *position moves behind them. Returns bytes; 0: no more. `size` must hold
 * the longest text. */
int64_t board_read_texts(struct board_reader *r, uint64_t *position, char *texts, uint64_t size);
/* Sums of one entry; 1, or 0 if there is no such entry, or it changes all the time. */
int board_read_total(struct board_reader *r, uint64_t index, struct total *total);
/* Samples from number *index on; *index moves behind them. Returns their count. */
int64_t board_read_samples(const struct board_reader *r, uint64_t *index, struct sample *samples,
                           uint64_t most);

#endif
