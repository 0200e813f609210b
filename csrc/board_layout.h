/* The layout of a board file. This is the one list of its fields: the C structs, the reader and the Python names all come from it.
 *
 *   offset 0         header   written once at creation, covered by a checksum
 *   live_offset      live     counters and gauges, each an atomic word; on the next page facts, JSON
 *   devices_offset   devices  one per GPU that the process has allocated on: atomic words, two texts
 *   samples_offset   samples  ring of fixed-size samples
 *   slots_offset     slots    one per running task: sequence word, task fields, texts; 4 KiB each
 *   records_offset   records  byte ring of finished tasks: frames of variable length, each with its own checksum
 *
 * Slots and records are there once `room_for_tasks` says so: a process that runs no task has a file of half a MiB.
 * All numbers are 64-bit words in native byte order. ABSENT stands for "could not be measured", which is not zero.
 * A change of any list below is a new BOARD_VERSION. Earlier ones, back to BOARD_VERSION_OLDEST, stay readable (board_read.c): fields are
 * added at the end of the live fields only.
 */
#ifndef DWSR_BOARD_LAYOUT_H
#define DWSR_BOARD_LAYOUT_H

#include <stdint.h>
#include "atomics.h"

#define BOARD_MAGIC   UINT64_C(0x6472616f42525344) /* "DSRBoard" */
#define BOARD_VERSION UINT64_C(5)
#define BOARD_VERSION_OLDEST UINT64_C(4) /* had no headroom, and room for tasks from the start */
#define ABSENT        UINT64_MAX

#define SLOT_COUNT    512
#define SLOT_BYTES    4096
#define RECORDS_BYTES (UINT64_C(5) << 20) /* 8,192 records of 640 bytes */
#define SAMPLE_COUNT  UINT64_C(16384)
#define DEVICE_COUNT  16
#define DEVICE_BYTES  512
#define TASK_DEVICES  8 /* that one task can allocate on and have told apart */

/* Texts of the header, zero-terminated, clipped to their size. */
#define HEADER_TEXTS(X) \
    X(run, 128)         \
    X(host, 128)        \
    X(task_name, 256)   \
    X(worker, 256)      \
    X(python, 64)

#define HEADER_FIELDS(X)                                                                                       \
    X(magic) X(version) X(file_bytes)                                                                          \
    X(live_offset) X(devices_offset) X(device_bytes) X(device_count) X(slots_offset) X(slot_bytes) X(slot_count)                                                 \
    X(records_offset) X(records_bytes) X(samples_offset) X(sample_count)                                       \
    X(pid) X(pid_namespace) /* a pid means something only inside its namespace */                              \
    X(start_ticks) /* field 22 of /proc/PID/stat: with the pid it tells whether the process still exists */     \
    X(start_ns) X(epoch_ns) /* monotonic and real time of the same moment, the board's creation */             \
    X(period_ns)                                                                                               \
    X(rss_before_bytes) X(rss_error_bytes) X(limit_bytes)                                                      \
    X(check) /* over everything before it, and the texts */

#define LIVE_FIELDS(X)                                                                                    \
    X(state)        /* enum board_state */                                                                \
    X(end_ns)       /* when the board was closed */                                                       \
    X(exec_ns)      /* last attempt to exec; it succeeded if no heartbeat follows */                      \
    X(boundary)     /* counts up twice at each task begin and end; odd while one is under way */          \
    X(window_boundary) X(window_peak_bytes) /* peak since that boundary, as the sampler last saw it */    \
    X(rss_bytes) X(rss_max_bytes)                                                                         \
    X(rss_source)   /* enum rss_source */                                                                 \
    X(running) X(tasks_begun)                                                                             \
    X(records_head) X(records_tail) /* byte positions, never wrapped */                                   \
    X(records_written)                                                                                    \
    X(samples_written)                                                                                    \
    X(heartbeat_ns) X(sampler_period_ns) X(samples_late) X(sampler_cpu_ns)                                \
    X(own_bytes)            /* what the probe itself holds: this file and the table of owners */          \
    X(resets) X(reset_gaps) /* read-to-reset gaps over 50 us */                                           \
    X(tasks_dropped)        /* begun while every slot was taken: not measured */                          \
    X(ends_unmatched) X(ends_elsewhere) X(ends_missing)                                                   \
    X(alloc_state)          /* enum alloc_state */                                                        \
    X(unowned_bytes)        /* live bytes that no task allocated, since the start */                      \
    X(untracked_bytes)      /* blocks that found the owner table full, in all */                          \
    X(dask_hooks)           /* 0: none, 1: begin and end in the executing thread, 2: told by transitions */ \
    X(gpu_hook)             /* enum gpu_hook */                                                           \
    X(gpu_unfollowed)       /* allocations on more devices than there is room for, or of a class of the job's own */ \
    X(gpu_ooms)             /* allocations that failed for lack of device memory */                       \
    X(pinned_bytes) X(pinned_peak_bytes) /* page-locked host memory that CuPy has given out; ABSENT: not seen */ \
    X(nvml_state)           /* enum nvml_state */                                                         \
    X(files_reopened)       /* the job closed a descriptor of ours */                                     \
    X(children_unprobed)    /* Python children started so that they cannot load the probe */               \
    X(headroom_bytes)       /* what cgroup and machine have left for the process; ABSENT: not known */    \
    X(room_for_tasks)       /* 1: slots and records are in the file */

#define TASK_FIELDS(X)                                                                        \
    X(serial)  /* order of begin, from 1 */                                                   \
    X(seq)     /* order of end, from 1, without gaps; 0 while it runs */                      \
    X(parent)  /* serial of the task around this one in the same thread, or 0 */              \
    X(thread) X(state) X(attribution)                                                         \
    X(worker)  /* index of its worker in the facts, or ABSENT */                              \
    X(start_ns) X(duration_ns)                                                                \
    X(rss_before_bytes) X(rss_peak_bytes) X(rss_source)                                       \
    X(overlap)                                                                                \
    X(alloc_peak_bytes) X(alloc_end_bytes) X(alloc_count) X(gc_freed_bytes)                   \
    X(pinned_peak_bytes) X(pinned_end_bytes)                                                  \
    X(input_bytes) X(inputs_omitted) X(output_bytes)                                          \
    X(name_len) X(key_len) X(inputs_len) X(output_len) X(gpu_len) X(oom_len) /* texts that follow, in this order */

/* Of one GPU, by its number in this process. Bytes are CuPy's of this process, up to `unseen`; then the driver's, of everybody. */
#define DEVICE_FIELDS(X)                                                                      \
    X(present)                                                                                \
    X(live_bytes) X(peak_bytes) X(alloc_count)                                                \
    X(pool_used_bytes) X(pool_total_bytes) X(pool_limit_bytes)                                \
    X(unseen_bytes) /* used of the pool, but not allocated through the hook */                \
    X(total_bytes)                                                                            \
    X(used_bytes) X(used_max_bytes) X(process_bytes) X(process_max_bytes) X(utilisation_percent) \
    X(read_ns)      /* when the driver was asked last */                                      \
    X(rmm_bytes) X(rmm_peak_bytes) /* of RMM's own statistics, where the job has enabled them */

#define DEVICE_TEXTS(X) X(name, 96) X(uuid, 96)

/* A task's memory on one device, or page-locked (device DEVICE_COUNT). */
#define TASK_DEVICE_FIELDS(X) X(device) /* its number + 1, 0: none */ X(live_bytes) X(peak_bytes) X(pool_used_bytes) X(pool_total_bytes)

#define SAMPLE_FIELDS(X) X(time_ns) X(rss_bytes) X(window_peak_bytes) X(period_ns)

enum board_state { BOARD_OPEN = 1, BOARD_CLOSED = 2, BOARD_CLOSED_ERROR = 3 };
enum alloc_state { ALLOC_OFF = 0, ALLOC_ON = 1, ALLOC_UNAVAILABLE = 2 };
enum gpu_hook { GPU_HOOK_NONE = 0, GPU_HOOK_ON = 1, GPU_HOOK_OFF = 2 }; /* OFF: it failed and has taken itself out */
enum nvml_state { NVML_NONE = 0, NVML_OK = 1, NVML_NO_MODULE = 2, NVML_NO_DRIVER = 3, NVML_DENIED = 4, NVML_LOST = 5, NVML_FAILED = 6 };
enum rss_source { RSS_KERNEL = 1, RSS_SAMPLED = 2 };
enum task_state { TASK_NONE = 0, TASK_RUNNING = 1, TASK_OK = 2, TASK_ERROR = 3, TASK_CANCELLED = 4, TASK_KILLED = 5 };
enum task_attribution { ATTRIBUTION_EXACT = 1, ATTRIBUTION_SHARED = 2 };

#define WORD_FIELD(name) word name;
#define TEXT_FIELD(name, size) char name[size];
struct board_header { HEADER_FIELDS(WORD_FIELD) HEADER_TEXTS(TEXT_FIELD) };
struct board_live { LIVE_FIELDS(WORD_FIELD) };
struct task_fields { TASK_FIELDS(WORD_FIELD) };
struct sample { SAMPLE_FIELDS(WORD_FIELD) };
struct device_fields { DEVICE_FIELDS(WORD_FIELD) };
struct device { struct device_fields fields; DEVICE_TEXTS(TEXT_FIELD) };
struct task_device { TASK_DEVICE_FIELDS(WORD_FIELD) };
#undef WORD_FIELD
#undef TEXT_FIELD

#define SLOT_TEXT_BYTES (SLOT_BYTES - 6 * sizeof(word) - TASK_DEVICES * sizeof(struct task_device) - sizeof(struct task_fields))
#define GPU_TEXT_BYTES  2048 /* JSON of TASK_DEVICES devices and of one failed allocation */

struct slot {
    word turn; /* seqlock: odd while the task is being written or erased */
    word alloc_serial, alloc_live_bytes, alloc_peak_bytes, alloc_count; /* by the sampler, of the task with that serial */
    word gpu_serial;
    struct task_device gpu[TASK_DEVICES]; /* in the same way */
    struct task_fields task;
    char text[SLOT_TEXT_BYTES];
};

/* A frame of the record ring; frame_bytes is a multiple of 8. FRAME_PAD fills the end of the ring where a frame does not fit. */
#define FRAME_PAD UINT64_MAX
struct frame {
    word frame_bytes, check;
    struct task_fields task;
    char text[SLOT_TEXT_BYTES + GPU_TEXT_BYTES];
};

/* What the program has to say about itself: JSON, written by a framework's hooks (dwsr_probe/dask), read as it is. */
#define FACTS_BYTES 4096
struct facts {
    word turn, len; /* turn: seqlock */
    char text[FACTS_BYTES - 2 * sizeof(word)];
};

#define LIVE_OFFSET    4096
#define FACTS_OFFSET   8192
#define DEVICES_OFFSET (FACTS_OFFSET + FACTS_BYTES)
#define SAMPLES_OFFSET (DEVICES_OFFSET + DEVICE_COUNT * DEVICE_BYTES)
#define SLOTS_OFFSET   ((SAMPLES_OFFSET + SAMPLE_COUNT * sizeof(struct sample) + 65535) / 65536 * 65536) /* mapped apart: the largest page */
#define RECORDS_OFFSET (SLOTS_OFFSET + (uint64_t)SLOT_COUNT * SLOT_BYTES)
#define BOARD_BYTES    (RECORDS_OFFSET + RECORDS_BYTES)
#define HEAD_BYTES     SLOTS_OFFSET /* of a board without room for tasks */

_Static_assert(sizeof(struct slot) == SLOT_BYTES, "a slot is one page");
_Static_assert(sizeof(struct board_header) <= LIVE_OFFSET, "the header fits its page");
_Static_assert(sizeof(struct device) <= DEVICE_BYTES, "a device fits its place");
_Static_assert(sizeof(struct facts) == FACTS_BYTES, "facts are one page");
_Static_assert(sizeof(struct board_live) <= FACTS_OFFSET - LIVE_OFFSET, "the live fields fit their page");

/* Mixing checksum over words: torn or foreign bytes must not pass, an attacker may. */
static inline word board_check(const word *w, uint64_t words, word seed)
{
    word h = seed ^ UINT64_C(0x9e3779b97f4a7c15);
    for (uint64_t i = 0; i < words; i++) {
        h = (h ^ w[i]) * UINT64_C(0xff51afd7ed558ccd);
        h ^= h >> 29;
    }
    return h;
}

/* Of the header: its words up to `check`, then the texts (all sizes are multiples of 8). */
static inline word board_header_check(const struct board_header *h)
{
    word c = board_check((const word *)h, offsetof(struct board_header, check) / sizeof(word), 0);
    const size_t texts = offsetof(struct board_header, check) + sizeof(word);
    return board_check((const word *)((const char *)h + texts), (sizeof *h - texts) / sizeof(word), c);
}

/* Of a frame: its size, its task, its text in whole words. */
static inline word board_frame_check(uint64_t frame_bytes, const struct task_fields *task, const char *text)
{
    word c = board_check((const word *)task, sizeof *task / sizeof(word), frame_bytes);
    return board_check((const word *)text, (frame_bytes - offsetof(struct frame, text)) / sizeof(word), c);
}

#endif
