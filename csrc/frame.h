/* A finished task, packed: one frame of the record ring, and of a stored run.
 *
 * A frame is one word, its size in bytes below and its checksum above, and what follows it in whole
 * words. Every number is a variable-length integer: seven bits a byte, the lowest first, of the
 * value plus one, so that ABSENT is 0. In this order: the task's fields; each text, inline or as
 * the number of a text of the board; devices; the failed allocation. Which fields there are, the
 * layout says.
 *
 * Packed by the tasks under their mutex, unpacked by readers in any process. Nothing here
 * allocates.
 */
#ifndef DWSR_FRAME_H
#define DWSR_FRAME_H

#include "layout.h"

#define FRAME_BYTES_MOST 4096
#define FRAME_PAD        UINT64_MAX /* in place of a frame: the rest of the ring is empty */

struct text {
    const char *at;
    uint64_t len;
};

#define TEXT_INDEX(name) TEXT_##name,
enum task_text { TASK_TEXTS(TEXT_INDEX) TEXT_COUNT };
#undef TEXT_INDEX

struct record {
    struct task_fields task;
    struct text texts[TEXT_COUNT];
    /* of a text of the board, in place of the text; ABSENT: it is inline */
    uint64_t numbers[TEXT_COUNT];
    int devices_known; /* the hook on CuPy was in place: no device means no memory */
    uint32_t device_count;
    struct task_device devices[TASK_DEVICES];
    struct task_oom oom; /* count 0: none */
    /* of frames that are not packed: devices and failure as they say */
    struct text gpu_json, oom_json;
};

/* What all but inline texts take at most. */
#define FRAME_FIXED_MOST                                                 \
    (2 * sizeof(word)                                                    \
     + 10                                                                \
           * (sizeof(struct task_fields) / sizeof(word) + TEXT_COUNT + 2 \
              + TASK_DEVICES * sizeof(struct task_device) / sizeof(word) \
              + sizeof(struct task_oom) / sizeof(word)))
#define FRAME_TEXTS_MOST (FRAME_BYTES_MOST - FRAME_FIXED_MOST)

/* The frame's bytes. `to` is word-aligned and has FRAME_BYTES_MOST; inline texts are
 * FRAME_TEXTS_MOST together at most. */
uint64_t frame_pack(const struct record *r, char *to);

/* Bytes of the frame at `frame` if it is whole and no longer than `available`, else 0. */
uint64_t frame_whole(const struct layout *l, const char *frame, uint64_t available);
/* 0 or -EINVAL. Of a frame that is whole; the record's texts point into it. */
int frame_unpack(const struct layout *l, const char *frame, struct record *r);

#endif
