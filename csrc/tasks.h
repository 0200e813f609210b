/* Task boundaries: begin and end of tasks, and the peaks of the resident set between them. Called
 * by probe.c.
 *
 * Each begin and each end is a boundary; the time between two boundaries is a *window*. At a
 * boundary, under one short mutex, the kernel's high-water mark is read, the peak of every running
 * task is raised to it, and the mark is reset. So each of several overlapping tasks gets its true
 * peak, whatever the sampling rate. Between boundaries the sampler publishes the peak of the
 * current window in `live`. Every running task contains that window, so a reader takes the larger
 * of the two peaks.
 *
 * A task belongs to one thread, and tasks of one thread nest. `overlap` counts other threads that
 * run tasks. Any thread may call begin and end; none needs the GIL.
 */
#ifndef DWSR_TASKS_H
#define DWSR_TASKS_H

#include <pthread.h>
#include "board.h"
#include "handle.h"
#include "params.h"
#include "rss.h"
#include "texts.h"
#include "totals.h"
#include "unaccounted.h"

#define TASK_NAME_MOST      256
#define TASK_KEY_MOST       1024
#define TASK_INPUTS_MOST    (FRAME_TEXTS_MOST - TASK_NAME_MOST - TASK_KEY_MOST)
#define TASK_OPERATION_MOST 128
#define TASK_CHAIN_MOST     512

struct task_begin {
    struct text name, key, inputs;     /* inputs: JSON; if too long, it is omitted and counted */
    struct text operation, chain;      /* of a graph's task; chain: JSON, left out if too long */
    struct text params, params_values; /* params.h; both empty: not recorded */
    uint64_t input_bytes, input_count, inputs_omitted;
    enum attribution_reason reason; /* why its figures are shared; REASON_NONE: they are exact */
    /* A coroutine: its thread runs other work in between. It owns no allocations, and no task nests
     * in it. */
    int detached;
    uint64_t worker; /* index in the facts, or ABSENT */
};

struct task_end {
    enum task_state state;
    struct text output; /* JSON */
    uint64_t output_bytes, gc_freed_bytes;
    /* What the task has turned out to read, if `inputs` is not empty: in place of the inputs that
     * it began with. */
    struct text inputs;
    uint64_t input_bytes, inputs_omitted;
    int out_of_memory;              /* the task failed for lack of host memory */
    uint64_t requested_bytes;       /* by the allocation that failed, or ABSENT */
    enum attribution_reason reason; /* not REASON_NONE: the figures are shared */
};

struct tasks {
    pthread_mutex_t mutex;
    struct board *board; /* NULL: closed */
    struct rss rss;
    int accounting;        /* allocations are accounted (alloc.h) */
    word running;          /* number of running tasks; the sampler reads it without the mutex */
    uint64_t seq;          /* of the last record */
    uint32_t busy_threads; /* that run at least one task; each coroutine counts as one */
    /* Whether the last begin [0] and the last end [1] reset the mark. The next one probably does
     * the same. */
    int reset_likely[2];
    uint16_t active[SLOT_COUNT], vacant[SLOT_COUNT]; /* slots; active ones in order of begin */
    uint32_t vacant_count;
    struct unaccounted_window unaccounted; /* at the last boundary */
    struct {
        uint32_t thread;       /* that began the task; 0: a coroutine */
        uint8_t counts_thread; /* this task is the one that counts its thread in busy_threads */
        uint8_t detached;
        uint64_t faults, major_faults; /* of the thread when the task began */
        struct text reason_detail;     /* never freed */
        struct unaccounted unaccounted;
    } slot_info[SLOT_COUNT];
    /* For building records, under the mutex. Data that every end uses is adjacent: each page that a
     * boundary touches costs time, because system calls may have emptied the TLB. */
    struct texts texts __attribute__((aligned(2048)));
    struct totals totals;
    struct record record;
    char scratch[FRAME_BYTES_MOST] __attribute__((aligned(8)));
    struct texts_index texts_index;
    struct totals_index totals_index;
};

/* `t->rss` and lineage.h are open. accounting: alloc_start has succeeded; alloc_start_accounting
 * follows before the first task. */
void tasks_open(struct tasks *t, struct board *b, int accounting);
/* The board has grown (board_grow). Called with the mutex held. */
void tasks_use_room(struct tasks *t);
/* Ends the running tasks as `cancelled`. leave_running: leaves them as they are, so that a reader
 * finds them killed. */
void tasks_close(struct tasks *t, int leave_running);

/* NOBODY if the probe is closed, the board has not grown, or all slots are taken (counted). h: what
 * the caller holds, or NULL. */
task_handle tasks_begin(struct tasks *t, const struct task_begin *begin, struct hold *h);
/* An unknown or ended task is counted and ignored. */
void tasks_end(struct tasks *t, task_handle task, const struct task_end *end, struct hold *h);
/* The thread of a running task does other work before the task ends: the task is a coroutine from
 * here on, shared and without figures of its own. Its memory, and tasks that run inside it, pass to
 * the task around it. No effect on a coroutine, or on an unknown or ended task. */
void tasks_detach(struct tasks *t, task_handle task, struct hold *h);
/* In a forked child: forgets the tasks of the parent process. Its board is not touched. */
void tasks_reset_in_child(struct tasks *t);
/* The calling thread exits: ends the tasks that it left open, as `cancelled`, and counts them. */
void tasks_thread_exit(struct tasks *t);

#endif
