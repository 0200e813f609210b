/* The layout of a board file. This is the one list of its fields: the C structs, the reader and the
 * Python names come from it.
 *
 *   offset 0         header   written once at creation, covered by a checksum
 *   layout_offset    layout   the lists below as text (BOARD_LAYOUT), covered by the checksum
 *   live_offset      live     counters and gauges, each an atomic word; behind them the
 *                             journal of the totals; on the next page facts, JSON
 *   devices_offset   devices  one per GPU that the process has allocated on: words, two texts
 *   samples_offset   samples  ring of fixed-size samples
 *   slots_offset     slots    one per running task: sequence word, task fields, texts; 4 KiB each
 *   records_offset   records  byte ring of finished tasks: packed frames (frame.h)
 *   texts_offset     texts    interned texts; frames carry their numbers (texts.h)
 *   totals_offset    totals   exact sums over all ended tasks, by task name (totals.h)
 *
 * The parts from slots_offset on exist once `room_for_tasks` is 1. The file of a process without
 * tasks has half a MiB. All numbers are 64-bit words in native byte order. ABSENT means "unknown",
 * which is not zero.
 *
 * A file carries the names of its fields, and readers go by these names (layout.h). A field may be
 * added to any list with NAMED below, without a new BOARD_VERSION. A reader of another release
 * gives ABSENT for a field that the file lacks, and ignores a field that it does not know. Any
 * other change is a new BOARD_VERSION. Versions from BOARD_VERSION_OLDEST on stay readable
 * (board_legacy.h).
 */
#ifndef DWSR_BOARD_LAYOUT_H
#define DWSR_BOARD_LAYOUT_H

#include <stdint.h>
#include "atomics.h"

#define BOARD_MAGIC          UINT64_C(0x6472616f42525344) /* "DSRBoard" */
#define BOARD_VERSION        UINT64_C(6)
#define BOARD_VERSION_OLDEST UINT64_C(4)
#define ABSENT               UINT64_MAX

#define SLOT_COUNT    512
#define SLOT_BYTES    4096
#define RECORDS_BYTES (UINT64_C(5) << 20) /* 8,192 records of 640 bytes; most have about 100 */
#define TEXTS_BYTES   (UINT64_C(1) << 19)
#define TOTAL_BYTES   4096
#define TOTAL_COUNT   256
#define SAMPLE_COUNT  UINT64_C(16384)
#define DEVICE_COUNT  16
#define DEVICE_BYTES  512
#define TASK_DEVICES  8 /* that are counted for one task */

/* Texts of the header, zero-terminated, clipped to their size. */
/* clang-format off */
#define HEADER_TEXTS(X) \
    X(run, 128)         \
    X(host, 128)        \
    X(task_name, 256)   \
    X(worker, 256)      \
    X(python, 64)

#define HEADER_FIELDS(X)                                                                          \
    X(magic) X(version) X(file_bytes)                                                             \
    X(live_offset) X(layout_offset) X(layout_bytes)                                               \
    X(devices_offset) X(device_bytes) X(device_count) X(slots_offset) X(slot_bytes) X(slot_count) \
    X(records_offset) X(records_bytes) X(samples_offset) X(sample_count)                          \
    X(texts_offset) X(texts_bytes) X(totals_offset) X(total_bytes) X(total_count)                 \
    X(pid) X(pid_namespace) /* a pid means something only inside its namespace */                 \
    X(start_ticks) /* field 22 of /proc/PID/stat: with the pid it identifies the process */       \
    X(start_ns) X(epoch_ns) /* monotonic and real time of the same moment, the board's creation */\
    X(period_ns)                                                                                  \
    X(rss_before_bytes) X(rss_error_bytes) X(limit_bytes)                                         \
    X(check) /* over everything before it, the texts and the layout */

#define LIVE_FIELDS(X)                                                                            \
    X(state)        /* enum board_state */                                                        \
    X(end_ns)       /* when the board was closed */                                               \
    X(exec_ns)      /* last attempt to exec; it succeeded if no heartbeat follows */              \
    X(boundary)     /* counts up twice at each task begin and end; odd while one is under way */  \
    X(window_boundary) X(window_peak_bytes) /* the sampler's peak since that boundary */          \
    X(rss_bytes) X(rss_max_bytes)                                                                 \
    X(rss_source)   /* enum rss_source */                                                         \
    X(running) X(tasks_begun)                                                                     \
    X(records_head) X(records_tail) /* byte positions, never wrapped */                           \
    X(records_written)                                                                            \
    X(samples_written)                                                                            \
    X(heartbeat_ns) X(sampler_period_ns) X(samples_late) X(sampler_cpu_ns)                        \
    X(own_bytes)            /* memory of the probe itself: this file and the owner table */       \
    X(resets) X(reset_gaps) /* read-to-reset gaps over 50 us */                                   \
    X(tasks_dropped)        /* begun while every slot was taken: not measured */                  \
    X(ends_unmatched) X(ends_elsewhere) X(ends_missing)                                           \
    X(alloc_state)          /* enum alloc_state */                                                \
    X(unowned_bytes)        /* live bytes that no task allocated, since the start */              \
    X(untracked_bytes)      /* total of blocks for which the owner table was full */              \
    X(dask_hooks)           /* enum dask_hooks */                                                 \
    X(gpu_hook)             /* enum gpu_hook */                                                   \
    X(gpu_unfollowed)       /* on too many devices, or of a memory class of the job's own */      \
    X(gpu_ooms)             /* allocations that failed for lack of device memory */               \
    X(pinned_bytes) X(pinned_peak_bytes) /* page-locked memory of CuPy; ABSENT: not seen */       \
    X(nvml_state)           /* enum nvml_state */                                                 \
    X(files_reopened)       /* the job closed a descriptor of ours */                             \
    X(children_unprobed)    /* Python children started so that they cannot load the probe */      \
    X(headroom_bytes)       /* left in cgroup and machine; ABSENT: unknown */                     \
    X(room_for_tasks)       /* 1: slots, records, texts and totals are in the file */             \
    X(texts_end)            /* bytes of the texts that are complete */                            \
    X(totals_used)          /* entries of the totals, `other` among them */
/* clang-format on */

/* The fields of a slot beside those of its task. */
/* clang-format off */
#define SLOT_FIELDS(X)                                                                 \
    X(turn) /* seqlock: odd while the task is being written or erased */               \
    X(alloc_serial) /* serial of the task that the sampler's figures belong to */      \
    X(alloc_live_bytes) X(alloc_peak_bytes) X(alloc_count)                             \
    X(gpu_serial) /* the same for the devices that follow these words */               \
    X(name_len) X(key_len) X(inputs_len) X(operation_len) X(chain_len)                 \
    X(params_len) X(params_values_len)
/* clang-format on */

/* `serial` and `seq` stay the first two: a reader finds them without knowing the others. */
/* clang-format off */
#define TASK_FIELDS(X)                                                           \
    X(serial)  /* order of begin, from 1 */                                      \
    X(seq)     /* order of end, from 1, without gaps; 0 while it runs */         \
    X(parent)  /* serial of the enclosing task in the same thread, or 0 */      \
    X(thread) X(state) X(attribution)                                            \
    X(worker)  /* index of its worker in the facts, or ABSENT */                 \
    X(start_ns) X(duration_ns)                                                   \
    X(rss_before_bytes) X(rss_peak_bytes) X(rss_source)                          \
    X(overlap)                                                                   \
    X(alloc_peak_bytes) X(alloc_end_bytes) X(alloc_count) X(gc_freed_bytes)      \
    X(pinned_peak_bytes) X(pinned_end_bytes)                                     \
    X(input_bytes) X(inputs_omitted) X(output_bytes)                             \
    X(page_faults) X(major_page_faults) /* of its own thread; ABSENT while it runs */ \
    X(attribution_reason) /* enum attribution_reason: why it is shared */
/* clang-format on */

/* Texts of a frame. A key has two: a prefix that recurs, and the rest. reason_detail: the thread or
 * library that attribution_reason is about. operation: the job's own function in a task of a graph;
 * chain: the functions inside the task, JSON. params: names of parameters, JSON; params_values:
 * their values, not interned (params.h). */
/* clang-format off */
#define TASK_TEXTS(X)                                                            \
    X(name) X(key_prefix) X(key_rest) X(inputs) X(output) X(reason_detail)       \
    X(operation) X(chain) X(params) X(params_values)
/* clang-format on */

/* One GPU, by its number in this process. Up to unseen_bytes: what CuPy has allocated in this
 * process. After it: what the driver reports. */
/* clang-format off */
#define DEVICE_FIELDS(X)                                                                         \
    X(present)                                                                                   \
    X(live_bytes) X(peak_bytes) X(alloc_count)                                                   \
    X(pool_used_bytes) X(pool_total_bytes) X(pool_limit_bytes)                                   \
    X(unseen_bytes) /* in use in the pool, but not allocated through the hook */                 \
    X(total_bytes)                                                                               \
    X(used_bytes) X(used_max_bytes) X(process_bytes) X(process_max_bytes) X(utilisation_percent) \
    X(read_ns)      /* when the driver was asked last */                                         \
    X(rmm_bytes) X(rmm_peak_bytes) /* of RMM's own statistics, where the job has enabled them */

#define DEVICE_TEXTS(X) X(name, 96) X(uuid, 96)
/* clang-format on */

/* A task's memory on one device. Device number DEVICE_COUNT: page-locked host memory. */
/* clang-format off */
#define TASK_DEVICE_FIELDS(X)              \
    X(device) /* its number + 1, 0: none */ \
    X(live_bytes) X(peak_bytes)             \
    X(pool_used_bytes) X(pool_total_bytes)
/* clang-format on */

/* The last one of a task's `count` failed allocations. device: a number, GPU_PINNED or OOM_HOST. */
/* clang-format off */
#define OOM_FIELDS(X)                                    \
    X(count) X(device) X(requested_bytes) X(live_bytes)  \
    X(pool_used_bytes) X(pool_total_bytes) X(pool_limit_bytes)
/* clang-format on */

/* Sums over the ended tasks of one name and operation, or of all without an entry of their own.
 * _count: the number of tasks with a known figure; _bytes, _ns: the sum of the figures. `bare`:
 * growth of tasks without figures of their own memory. */
/* clang-format off */
#define TOTAL_FIELDS(X)                                                       \
    X(turn)     /* seqlock */                                                 \
    X(name)     /* number of the interned name; ABSENT: the entry `other` */  \
    X(operation) /* number of the interned operation; ABSENT: none */         \
    X(names)    /* of `other`: how many names, as far as they are counted */  \
    X(last_seq) /* of the newest task in the sums */                          \
    X(ok) X(error) X(cancelled) X(shared) X(sampled) X(oom)                   \
    X(overlap_max) X(rss_peak_max_bytes)                                      \
    X(growth_count) X(growth_bytes) X(growth_max_bytes)                       \
    X(alloc_count) X(alloc_bytes) X(alloc_max_bytes)                          \
    X(bare_count) X(bare_bytes) X(bare_max_bytes)                             \
    X(input_bytes) X(input_max_bytes) X(output_bytes) X(output_max_bytes)     \
    X(duration_ns) X(duration_max_ns)
/* clang-format on */

/* The same for one device. */
/* clang-format off */
#define TOTAL_DEVICE_FIELDS(X)             \
    X(device) /* its number + 1, 0: none */ \
    X(peak_bytes) X(peak_max_bytes)

#define SAMPLE_FIELDS(X) X(time_ns) X(rss_bytes) X(window_peak_bytes) X(period_ns)
/* clang-format on */

enum board_state { BOARD_OPEN = 1, BOARD_CLOSED = 2, BOARD_CLOSED_ERROR = 3 };
enum alloc_state { ALLOC_OFF = 0, ALLOC_ON = 1, ALLOC_UNAVAILABLE = 2 };
/* WRAPPED: around the functions that execute a task. TRANSITIONS: some functions are not known, and
 * their tasks are followed by the worker's state changes. */
enum dask_hooks { DASK_HOOKS_NONE = 0, DASK_HOOKS_WRAPPED = 1, DASK_HOOKS_TRANSITIONS = 2 };
/* OFF: the hook has failed and removed itself */
enum gpu_hook { GPU_HOOK_NONE = 0, GPU_HOOK_ON = 1, GPU_HOOK_OFF = 2 };
enum nvml_state {
    NVML_NONE = 0,
    NVML_OK = 1,
    NVML_NO_MODULE = 2,
    NVML_NO_DRIVER = 3,
    NVML_DENIED = 4,
    NVML_LOST = 5,
    NVML_FAILED = 6
};
enum rss_source { RSS_KERNEL = 1, RSS_SAMPLED = 2 };
enum task_state {
    TASK_NONE = 0,
    TASK_RUNNING = 1,
    TASK_OK = 2,
    TASK_ERROR = 3,
    TASK_CANCELLED = 4,
    TASK_KILLED = 5
};
enum task_attribution { ATTRIBUTION_EXACT = 1, ATTRIBUTION_SHARED = 2 };
/* Why a task's figures may include memory of other work, or miss some of its own: the first reason
 * that was found. record.py has the words. */
enum attribution_reason {
    REASON_NONE = 0,
    REASON_COROUTINE = 1,         /* other work ran in the same thread meanwhile */
    REASON_EVENT_LOOP = 2,        /* followed by its transitions on Dask's event loop */
    REASON_NATIVE_THREADS = 3,    /* native threads allocated while several tasks ran */
    REASON_UNOWNED_THREAD = 4,    /* a Python thread of no task allocated meanwhile */
    REASON_FOREIGN_ALLOCATOR = 5, /* memory that the accounting does not see */
    REASON_INNER_TASKS = 6        /* memory of inner tasks was lost sight of */
};

#define WORD_FIELD(name)       word name;
#define TEXT_FIELD(name, size) char name[size];
struct board_header {
    HEADER_FIELDS(WORD_FIELD) HEADER_TEXTS(TEXT_FIELD)
};
struct board_live {
    LIVE_FIELDS(WORD_FIELD)
};
struct slot_fields {
    SLOT_FIELDS(WORD_FIELD)
};
struct task_fields {
    TASK_FIELDS(WORD_FIELD)
};
struct sample {
    SAMPLE_FIELDS(WORD_FIELD)
};
struct device_fields {
    DEVICE_FIELDS(WORD_FIELD)
};
struct device {
    struct device_fields fields;
    DEVICE_TEXTS(TEXT_FIELD)
};
struct task_device {
    TASK_DEVICE_FIELDS(WORD_FIELD)
};
struct task_oom {
    OOM_FIELDS(WORD_FIELD)
};
struct total_fields {
    TOTAL_FIELDS(WORD_FIELD)
};
struct total_device {
    TOTAL_DEVICE_FIELDS(WORD_FIELD)
};
#undef WORD_FIELD
#undef TEXT_FIELD

/* The lists that a file describes, in the order of layout.h's enum. */
#define NAMED(name) " " #name
/* clang-format off */
#define BOARD_LAYOUT                                                                             \
    "frames packed\n"                                                                            \
    "live" LIVE_FIELDS(NAMED) "\n" "slot" SLOT_FIELDS(NAMED) "\n" "task" TASK_FIELDS(NAMED) "\n" \
    "text" TASK_TEXTS(NAMED) "\n" "task_device" TASK_DEVICE_FIELDS(NAMED) "\n"                   \
    "oom" OOM_FIELDS(NAMED) "\n" "device" DEVICE_FIELDS(NAMED) "\n"                              \
    "total" TOTAL_FIELDS(NAMED) "\n" "total_device" TOTAL_DEVICE_FIELDS(NAMED) "\n"
/* clang-format on */
#define LAYOUT_BYTES 4096

#define SLOT_TEXT_BYTES                                                                  \
    (SLOT_BYTES - sizeof(struct slot_fields) - TASK_DEVICES * sizeof(struct task_device) \
     - sizeof(struct task_fields))

struct slot {
    struct slot_fields fields;
    struct task_device gpu[TASK_DEVICES];
    struct task_fields task;
    char text[SLOT_TEXT_BYTES]; /* name, key, inputs, operation, chain, parameters */
};

/* An entry with its histograms. Peaks of own memory (`alloc`), `growth` and `duration` have cells
 * of a tenth of an octave (totals.h). `bare` has those of the metrics, powers of 4 from 1 MiB. */
#define TOTAL_CELLS 302
#define BARE_CELLS  12
struct total {
    struct total_fields fields;
    struct total_device devices[TASK_DEVICES];
    uint32_t alloc[TOTAL_CELLS], growth[TOTAL_CELLS], duration[TOTAL_CELLS], bare[BARE_CELLS];
};

/* The journal: the entry that is being changed, as it was before. Readers use it while the entry's
 * `turn` is odd, which lasts for ever if the process was killed then. */
#define JOURNAL_CELLS 3
struct totals_journal {
    word devices_saved; /* 1: `devices` holds the old values */
    /* number + 1 of each cell that changes, counted from alloc[0]; 0: none */
    word cell[JOURNAL_CELLS];
    word cell_words[JOURNAL_CELLS]; /* old values of the words that contain these cells */
    struct total_fields fields;
    struct total_device devices[TASK_DEVICES];
};

/* Facts about the program: JSON that a framework's hooks write (dwsr_probe/dask). */
#define FACTS_BYTES 4096
struct facts {
    word turn, len; /* turn: seqlock */
    char text[FACTS_BYTES - 2 * sizeof(word)];
};

#define LAYOUT_OFFSET 4096
#define LIVE_OFFSET   (LAYOUT_OFFSET + LAYOUT_BYTES)
/* The journal of the totals: on a page that every boundary touches anyway. */
#define JOURNAL_OFFSET (LIVE_OFFSET + 2048)
#define FACTS_OFFSET   (LIVE_OFFSET + 4096)
#define DEVICES_OFFSET (FACTS_OFFSET + FACTS_BYTES)
#define SAMPLES_OFFSET (DEVICES_OFFSET + DEVICE_COUNT * DEVICE_BYTES)
/* A mapping of its own, so aligned to the largest page size. */
#define SLOTS_OFFSET \
    ((SAMPLES_OFFSET + SAMPLE_COUNT * sizeof(struct sample) + 65535) / 65536 * 65536)
#define RECORDS_OFFSET (SLOTS_OFFSET + (uint64_t)SLOT_COUNT * SLOT_BYTES)
#define TEXTS_OFFSET   (RECORDS_OFFSET + RECORDS_BYTES)
#define TOTALS_OFFSET  (TEXTS_OFFSET + TEXTS_BYTES)
#define BOARD_BYTES    (TOTALS_OFFSET + (uint64_t)TOTAL_COUNT * TOTAL_BYTES)
#define HEAD_BYTES     SLOTS_OFFSET /* size of a board without room for tasks */

_Static_assert(sizeof(struct slot) == SLOT_BYTES, "a slot is one page");
_Static_assert(sizeof(struct board_header) <= LAYOUT_OFFSET, "the header fits its page");
_Static_assert(sizeof BOARD_LAYOUT <= LAYOUT_BYTES, "the layout fits its page");
_Static_assert(sizeof(struct device) <= DEVICE_BYTES, "a device fits its place");
_Static_assert(sizeof(struct facts) == FACTS_BYTES, "facts are one page");
_Static_assert(sizeof(struct board_live) <= JOURNAL_OFFSET - LIVE_OFFSET,
               "the live fields fit their half page");
_Static_assert(sizeof(struct total) <= TOTAL_BYTES, "a total fits its page");
_Static_assert(JOURNAL_OFFSET + sizeof(struct totals_journal) <= FACTS_OFFSET,
               "the journal fits the other half");

/* A checksum that detects torn or foreign bytes. It does not protect against an attacker. */
static inline word board_checksum(const word *w, uint64_t words, word seed)
{
    word h = seed ^ UINT64_C(0x9e3779b97f4a7c15);
    for (uint64_t i = 0; i < words; i++) {
        h = (h ^ w[i]) * UINT64_C(0xff51afd7ed558ccd);
        h ^= h >> 29;
    }
    return h;
}

/* The header's checksum: over its words up to `check`, its texts (whose sizes are multiples of 8),
 * and the layout. */
static inline word board_header_checksum(const struct board_header *h, const word *layout)
{
    word c =
        board_checksum((const word *)h, offsetof(struct board_header, check) / sizeof(word), 0);
    const size_t texts = offsetof(struct board_header, check) + sizeof(word);
    c = board_checksum((const word *)((const char *)h + texts), (sizeof *h - texts) / sizeof(word),
                       c);
    return board_checksum(layout, LAYOUT_BYTES / sizeof(word), c);
}

#endif
