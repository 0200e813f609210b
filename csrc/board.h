/* The writer's side of a board: create the file, publish finished tasks and samples, close.
 *
 * Readers are in board_read.h; nothing here waits for one. Records are published by one thread at a
 * time (under the tasks' mutex), samples by the sampler alone. A board begins without room for
 * tasks; board_grow gives it that. Nothing else fails after creation.
 */
#ifndef DWSR_BOARD_H
#define DWSR_BOARD_H

#include "frame.h"

struct board {
    struct board_header *header; /* start of the mapping */
    struct board_live *live;
    struct totals_journal *journal;
    struct facts *facts;
    char *devices; /* struct device every DEVICE_BYTES */
    struct sample *samples;
    /* a mapping of its own, from board_grow on; NULL before. Read without the tasks' mutex after
     * `room_for_tasks` */
    struct slot *slots;
    char *records, *texts, *totals; /* behind the slots */
    uint64_t head, tail;            /* of the record ring: what the file says is for readers */
    char path[512];
};

struct board_settings {
    /* created with mode 0700 if missing; refused if it is a link, another user's, or open to others
     */
    const char *directory;
    const char *run, *host, *task_name, *worker, *python;
    uint64_t pid, pid_namespace, start_ticks, period_ns;
    uint64_t rss_before_bytes, rss_error_bytes, limit_bytes;
};

/* 0 or -errno; *failed_step says what was being done ("create the board directory", ...). */
int board_create(struct board *b, const struct board_settings *s, const char **failed_step);
/* Room for tasks: slots, records, texts and totals. 0 or -errno, and the board is as it was. Not
 * twice. */
int board_grow(struct board *b, const char **failed_step);
/* Unmap. The file stays for its readers, unless `remove`. */
void board_unmap(struct board *b, int remove);

/* Put a finished task into the ring: a frame as frame_pack made it, of the task with that seq. */
void board_publish_frame(struct board *b, const char *frame, uint64_t bytes, uint64_t seq);
void board_publish_sample(struct board *b, const struct sample *s);
/* One writer at a time. A text that is too long is not written: -EMSGSIZE. */
int board_publish_facts(struct board *b, const char *text, uint64_t len);

/* Longest prefix of a UTF-8 text that fits `most` bytes without cutting a character. */
uint64_t text_clip(const char *text, uint64_t len, uint64_t most);

#endif
