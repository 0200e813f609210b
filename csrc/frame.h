/* A frame: the packed record of a finished task, in the record ring of a board and in stored runs.
 *
 * The first word of a frame is its size in bytes (lower half) and its checksum (upper half). The
 * rest is padded to whole words. Every number is a variable-length integer (varint), seven bits per
 * byte, lowest first. Fields are stored plus one, so that ABSENT is 0. The order is: the task's
 * fields; each text, inline or as the number of an interned text; devices; the failed allocation.
 * The layout (layout.h) says which fields there are.
 *
 * Packed by tasks.c under the tasks' mutex, unpacked by readers in any process. Nothing here
 * allocates.
 */
#ifndef DWSR_FRAME_H
#define DWSR_FRAME_H

#include "layout.h"

#define FRAME_BYTES_MOST 4096
#define FRAME_PAD        UINT64_MAX /* in place of a frame: unused up to the ring's end */

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
    /* of interned texts (texts.h); ABSENT: the text is inline, in `texts` */
    uint64_t numbers[TEXT_COUNT];
    int devices_known; /* the hook on CuPy was in place: no device means no device memory */
    uint32_t device_count;
    struct task_device devices[TASK_DEVICES];
    struct task_oom oom; /* count 0: none */
    /* from frames of versions 4 and 5: devices and the failed allocation as JSON */
    struct text gpu_json, oom_json;
};

/* The most bytes of a frame without its inline texts. */
#define FRAME_FIXED_MOST                                                 \
    (2 * sizeof(word)                                                    \
     + 10                                                                \
           * (sizeof(struct task_fields) / sizeof(word) + TEXT_COUNT + 2 \
              + TASK_DEVICES * sizeof(struct task_device) / sizeof(word) \
              + sizeof(struct task_oom) / sizeof(word)))
#define FRAME_TEXTS_MOST (FRAME_BYTES_MOST - FRAME_FIXED_MOST)

/* Returns the frame's size in bytes. `to` is word-aligned and has FRAME_BYTES_MOST bytes. Inline
 * texts have at most FRAME_TEXTS_MOST bytes together. */
uint64_t frame_pack(const struct record *r, char *to);

/* The size of the frame in bytes, or 0 if the frame is longer than `available` or its checksum is
 * wrong. */
uint64_t frame_valid_bytes(const struct layout *l, const char *frame, uint64_t available);
/* Unpacks a whole frame: 0 or -EINVAL. The record's texts point into the frame. */
int frame_unpack(const struct layout *l, const char *frame, struct record *r);

#endif
