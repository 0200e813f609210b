/* Live and peak bytes of each running task, and of everything outside tasks: what alloc.c's
 * wrappers feed.
 *
 * Blocks whose owner is known are charged and released one by one, to the task and to all around
 * it. Small blocks are netted per thread and flushed into the thread's task 32 KiB at a time,
 * clamped at zero. Nothing here takes a lock or allocates. Tasks begin and end under the tasks'
 * mutex, all else is called from any thread. Who works for whom is in lineage.h, which is kept here
 * as tasks begin and end.
 */
#ifndef DWSR_ACCOUNTS_H
#define DWSR_ACCOUNTS_H

#include "lineage.h"
#include "sums.h"

struct account_figures {
    uint64_t peak_bytes, live_bytes, count;
    int inexact; /* memory of tasks inside it could not be followed to the end */
};

/* What is allocated is accounted from here on; what is nobody's begins at zero. */
void accounts_open(void);
void accounts_close(void);

/* The calling thread's allocations belong to this task until its end, then to the one around it. */
void accounts_task_begin(task_handle task, task_handle parent);
/* From any thread. leaves_more: memory that is accounted elsewhere (gpu.h) passes to the task
 * around it. */
void accounts_task_end(task_handle task, int leaves_more, struct account_figures *figures);
/* A running task now; 0, or -ENOENT. */
int accounts_task_now(task_handle task, struct account_figures *figures);
/* Its live bytes with everything that the calling thread has allocated so far; ABSENT: it does not
 * run. */
uint64_t accounts_live_now(task_handle task);
/* What the calling thread has netted goes to whom it allocates for: before that changes. */
void accounts_flush(void);
/* At the end of a thread that a task started: what is left of it is the task's. */
void accounts_flush_at_thread_end(void);
/* Live bytes allocated outside every task since accounts_open. */
uint64_t accounts_unowned_bytes(void);

/* -- inline: what every allocation pays -- */

#define ACCOUNTS_FLUSH_BYTES (32 << 10)

/* A task's live bytes are two sums: `own`, which only the thread that began it writes, with plain
 * stores, and `others`, by all other threads, with atomic ones. */
struct account {
    word own, others, peak, small, count;
} __attribute__((aligned(64)));
SHARED_DATA struct account accounts_of_tasks[SLOT_COUNT];
SHARED_DATA word accounts_are_open;

static inline int accounts_active(void) { return load_relaxed(&accounts_are_open) != 0; }

/* Around all that changes them: the calls of a signal handler in between are not followed. */
static inline int accounts_may_change(void) { return !this_thread.busy && accounts_active(); }

static inline void accounts_enter(void)
{
    this_thread.busy = 1;
    signal_fence_seq_cst();
}

static inline void accounts_leave(void)
{
    signal_fence_seq_cst();
    this_thread.busy = 0;
}

static inline uint64_t account_live(const struct account *a)
{
    int64_t live = sum_value(load_relaxed(&a->own)) + sum_value(load_relaxed(&a->others));
    return live < 0 ? 0 : (uint64_t)live;
}

static inline void account_add_own(struct account *a, uint64_t generation, int64_t bytes)
{
    store_relaxed(&a->own, load_relaxed(&a->own) + (word)bytes);
    if (bytes > 0) peak_raise(&a->peak, generation, account_live(a));
}

void accounts_charge_slow(task_handle task, int64_t bytes);

/* A task and all around it that run; of an ended one, those around it. NOBODY: what no task
 * allocated. Below zero: a release, from any thread. */
static inline void accounts_charge(task_handle task, int64_t bytes)
{
    if (__builtin_expect(lineage_is_own_outermost(task), 1))
        account_add_own(&accounts_of_tasks[handle_slot(task)], handle_generation(task), bytes);
    else
        accounts_charge_slow(task, bytes);
}

/* One allocation more of the calling thread. */
static inline void accounts_count_allocation(void) { this_thread.pending_count++; }

void accounts_flush_slow(void);

/* Small bytes of the calling thread: they are netted. */
static inline void accounts_add_small(int32_t bytes)
{
    const uint32_t both = 2 * ACCOUNTS_FLUSH_BYTES;
    this_thread.pending += bytes;
    if (__builtin_expect((uint32_t)(this_thread.pending + ACCOUNTS_FLUSH_BYTES) > both, 0))
        accounts_flush_slow();
}

#endif
