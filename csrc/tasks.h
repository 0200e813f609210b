/* Tasks: begin, end, and the resident peaks of their windows.
 *
 * Each begin and end is a boundary. At a boundary, under one short mutex: read the kernel's mark,
 * fold it into all running tasks, reset it. So overlapping tasks each get the true peak of their
 * own window, whatever the sampling rate. Between boundaries the sampler publishes the peak of the
 * current window in `live`; every running task contains that window, so a reader takes the larger
 * of the two.
 *
 * A task is in one thread; tasks of one thread nest. `overlap` counts the other threads' nests, not
 * the task's own. Any thread may call begin and end; nobody needs the GIL.
 */
#ifndef DWSR_TASKS_H
#define DWSR_TASKS_H

#include <pthread.h>
#include "board.h"
#include "handle.h"
#include "rss.h"
#include "texts.h"
#include "totals.h"

#define TASK_NAME_MOST   256
#define TASK_KEY_MOST    1024
#define TASK_INPUTS_MOST (FRAME_TEXTS_MOST - TASK_NAME_MOST - TASK_KEY_MOST)

struct task_begin {
    struct text name, key, inputs; /* inputs: JSON, dropped and counted if it does not fit */
    uint64_t input_bytes, input_count, inputs_omitted;
    enum task_attribution attribution;
    /* a coroutine: other work runs in its thread meanwhile. It owns no allocations and nothing
     * nests in it */
    int detached;
    uint64_t worker; /* index in the facts, or ABSENT */
};

struct task_end {
    enum task_state state;
    struct text output; /* JSON */
    uint64_t output_bytes, gc_freed_bytes;
    int out_of_memory;        /* it failed for lack of host memory ... */
    uint64_t requested_bytes; /* ... for this many, or ABSENT */
    int shared;               /* its figures are not its own alone, after all */
};

struct tasks {
    pthread_mutex_t mutex;
    struct board *board; /* NULL: closed */
    struct rss rss;
    int accounting;        /* allocations are seen, too */
    word running;          /* read by the sampler without the mutex */
    uint64_t seq;          /* of the last record */
    uint32_t busy_threads; /* threads with at least one running task */
    /* the last begin, the last end needed a reset of the mark: so will the next, probably */
    int reset_likely[2];
    uint16_t active[SLOT_COUNT], vacant[SLOT_COUNT];
    uint32_t vacant_count;
    /* By slot: its thread, whether it stands for it, and the thread's page faults when the task
     * began. */
    struct {
        uint32_t thread;
        uint8_t counts_thread, detached;
        uint64_t faults, major_faults;
    } slot_info[SLOT_COUNT];
    /* Where records are put together, under the mutex. What every end uses stands together: each
     * page that a boundary touches costs, because system calls may have emptied the TLB. */
    struct texts texts __attribute__((aligned(2048)));
    struct totals totals;
    struct record record;
    char scratch[FRAME_BYTES_MOST] __attribute__((aligned(8)));
    struct texts_index texts_index;
    struct totals_index totals_index;
};

/* `t->rss` has been opened. lineage.h is open. accounting: alloc.h is started, and accounts before
 * the first task. */
void tasks_open(struct tasks *t, struct board *b, int accounting);
/* The board has got room for tasks. With the mutex held. */
void tasks_use_room(struct tasks *t);
/* Ends the running tasks as `cancelled` unless they are to be left as they are, for a reader to
 * find them killed. */
void tasks_close(struct tasks *t, int leave_running);

/* NOBODY when the probe is closed, the board has no room for tasks, or every slot is taken
 * (counted). h: what the caller holds, or NULL. */
task_handle tasks_begin(struct tasks *t, const struct task_begin *begin, struct hold *h);
/* A task that is not known, or has ended, is counted and ignored. */
void tasks_end(struct tasks *t, task_handle task, const struct task_end *end, struct hold *h);
/* In a forked child: forget the parent's tasks without touching its board. */
void tasks_abandon(struct tasks *t);
/* The calling thread exits: end what it left open, counted. */
void tasks_thread_exit(struct tasks *t);

#endif
