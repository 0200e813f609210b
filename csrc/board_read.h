/* The reader's side of a board: in any process, for a board that is in use, left by a dead process,
 * cut short, or not a board at all. Called by the Python binding. A reader belongs to one thread at
 * a time.
 *
 * Everything is read with pread into private memory and checked there. So a file that shrinks does
 * not become SIGBUS, and no byte of the file is trusted. Calls return 0 or a count, or one of the
 * errors below.
 */
#ifndef DWSR_BOARD_READ_H
#define DWSR_BOARD_READ_H

#include "frame.h"

enum board_read_error {
    BOARD_NOT_READY = -1, /* being created, or its creator died before it was complete */
    BOARD_FOREIGN = -2,   /* not a board */
    BOARD_VERSION_UNKNOWN = -3,
    BOARD_DAMAGED = -4, /* values that no writer can have written */
    BOARD_CUT_SHORT = -5,
    BOARD_UNREADABLE = -6, /* errno says why */
};

/* Names of fields in order, each list ended by NULL. layout_names has those of the other lists. */
extern const char *const board_header_names[], *const board_header_text_names[],
                                                   *const board_sample_names[];

struct board_reader {
    int fd;
    uint64_t inode;
    int has_room;               /* for tasks, when last checked; a board grows once */
    struct board_header header; /* verified; after BOARD_VERSION_UNKNOWN only `version` is set */
    struct layout layout;
    char layout_text[LAYOUT_BYTES]; /* zero-terminated */
};

/* A copy of the slot of a running task. */
struct running_task {
    struct slot_fields slot;
    struct task_device gpu[TASK_DEVICES];
    struct task_fields task;
    struct text name, key, inputs, operation, chain, params, params_values; /* in `page` */
    char page[SLOT_BYTES];
};

/* Reads all of `bytes`: 0 or an error. */
int board_read_at(const struct board_reader *r, void *to, uint64_t bytes, uint64_t offset);

/* Text `index` of the header, in the order of board_header_text_names, and its length. */
const char *board_reader_header_text(const struct board_reader *r, int index, uint64_t *len);

/* 0 or an error; the reader is closed then. */
int board_reader_open(struct board_reader *r, const char *path);
void board_reader_close(struct board_reader *r);

/* 0 or an error. */
int board_read_live(const struct board_reader *r, struct board_live *live);
/* 0 or an error. len 0: there are no facts yet, or they change all the time. */
int board_read_facts(const struct board_reader *r, struct facts *facts);
/* A device's fields and texts (zero-terminated). 1; 0: the process has not used it; or an error. */
int board_read_device(const struct board_reader *r, uint64_t index, struct device *d);
/* 1: a running task. 0: the slot is free, or its task is just beginning or ending; a task that ends
 * has its record. Or an error. */
int board_read_slot(struct board_reader *r, uint64_t index, struct running_task *task);
/* Reads up to `most` (at least 1) complete frames from byte *position on, oldest first, and moves
 * *position behind them. If *position was overwritten, reading starts at the oldest frame. `size`
 * must be enough for one frame. Returns bytes, 0 if there are no more, or an error. A caller that
 * starts at 0 and stops at 0 or an error comes to an end on any file. */
int64_t board_read_records(struct board_reader *r, uint64_t *position, char *frames, uint64_t size,
                           uint64_t most);
/* Reads interned texts from byte *position of their heap on, and moves *position behind them. Each
 * is a word with the length in its lower half, then the text in whole words. `size` must be enough
 * for the longest text. Returns bytes, 0 if there are no more, or an error. */
int64_t board_read_texts(struct board_reader *r, uint64_t *position, char *texts, uint64_t size);
/* The sums of one entry. 1, 0 if there is no such entry or it changes all the time, or an error. */
int board_read_total(struct board_reader *r, uint64_t index, struct total *total);
/* Reads samples from number *index on and moves *index behind them. Their count, or an error. */
int64_t board_read_samples(const struct board_reader *r, uint64_t *index, struct sample *samples,
                           uint64_t most);

#endif
