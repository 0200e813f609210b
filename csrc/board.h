/* The writer's side of a board: creates the file, lets it grow, publishes finished tasks, samples
 * and facts. Called by probe.c, tasks.c and sampler.c. Readers use board_read.h; nothing here waits
 * for a reader.
 *
 * Records are published by one thread at a time, under the tasks' mutex; samples by the sampler
 * alone. A new board has no room for tasks; board_grow adds it. Only board_create and board_grow
 * can fail for want of disk space.
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
    /* A mapping of its own since board_grow, NULL before. Threads without the tasks' mutex read it
     * only after they have seen `room_for_tasks`. */
    struct slot *slots;
    char *records, *texts, *totals; /* behind the slots */
    uint64_t head, tail;            /* of the record ring; the copies in the file are for readers */
    char path[512];
};

struct board_settings {
    /* Created with mode 0700 if missing. Refused if it is a link, or belongs to another user, or is
     * accessible to others. */
    const char *directory;
    const char *run, *host, *task_name, *worker, *python;
    uint64_t pid, pid_namespace, start_ticks, period_ns;
    uint64_t rss_before_bytes, rss_error_bytes, limit_bytes;
};

/* 0 or -errno. *failed_step: the step that failed ("create the board directory", ...). */
int board_create(struct board *b, const struct board_settings *s, const char **failed_step);
/* Adds room for tasks, once: slots, records, texts and totals. 0; or -errno, with no change. */
int board_grow(struct board *b, const char **failed_step);
/* Unmaps the board. The file stays for readers, unless `remove`. */
void board_unmap(struct board *b, int remove);

/* Appends a frame (frame_pack) of the task with this seq to the record ring. */
void board_publish_frame(struct board *b, const char *frame, uint64_t bytes, uint64_t seq);
void board_publish_sample(struct board *b, const struct sample *s);
/* One thread at a time. 0, or -EMSGSIZE if the text is too long; nothing is written then. */
int board_publish_facts(struct board *b, const char *text, uint64_t len);

/* The longest prefix of a UTF-8 text with at most `most` bytes and whole characters: its length. */
uint64_t text_clip(const char *text, uint64_t len, uint64_t most);

#endif
