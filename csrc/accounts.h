/* Live and peak bytes of each running task, and of everything that no task allocated. alloc.c adds
 * and subtracts, tasks.c and sampler.c read.
 *
 * A block whose owner is known is added to the owner and to the owner's ancestors, and subtracted
 * again when it is freed. Small blocks have no owner: each thread sums what it allocates minus what
 * it frees, and adds the sum to its task 32 KiB at a time. The small bytes of a task never go below
 * zero.
 *
 * Nothing here takes a lock or allocates. Tasks begin and end under the tasks' mutex; all other
 * functions are called from any thread. Begin and end also update lineage.h, which says which task
 * a thread works for.
 */
#ifndef DWSR_ACCOUNTS_H
#define DWSR_ACCOUNTS_H

#include "lineage.h"
#include "sums.h"

struct account_figures {
    uint64_t peak_bytes, live_bytes, count;
    int inexact; /* lineage_is_inexact */
};

/* Accounting begins; the bytes that no task allocated begin at zero. */
void accounts_open(void);
void accounts_close(void);

/* The calling thread's allocations belong to this task until its end, then to the parent. */
void accounts_task_begin(task_handle task, task_handle parent);
/* From any thread. Live bytes pass to the parent. has_device_bytes: the task also has live bytes on
 * devices, which gpu.h accounts. */
void accounts_task_end(task_handle task, int has_device_bytes, struct account_figures *figures);
/* The figures of a running task: 0, or -ENOENT. */
int accounts_task_now(task_handle task, struct account_figures *figures);
/* Flushes the calling thread. Returns the live bytes of a running task, or ABSENT. */
uint64_t accounts_live_now(task_handle task);
/* Adds the calling thread's small bytes to the task that it allocates for, before that changes. */
void accounts_flush(void);
/* The same at the end of a thread that a task started. */
void accounts_flush_at_thread_end(void);
/* Live bytes allocated outside every task since accounts_open. */
uint64_t accounts_unowned_bytes(void);

/* -- inline: called at every allocation -- */

#define ACCOUNTS_FLUSH_BYTES (32 << 10)

/* The live bytes are the sum of `own` and `others`. Only the thread that began the task writes
 * `own`, with plain loads and stores. All other threads add to `others` atomically. */
struct account {
    word own, others, peak, small, count;
} __attribute__((aligned(64)));
SHARED_DATA struct account accounts_of_tasks[SLOT_COUNT];
SHARED_DATA word accounts_are_open;

static inline int accounts_active(void) { return load_relaxed(&accounts_are_open) != 0; }

/* Between accounts_enter and accounts_leave, allocations of a signal handler are not accounted. */
static inline int accounts_may_change(void)
{
    return !this_thread.in_accounts && accounts_active();
}

static inline void accounts_enter(void)
{
    this_thread.in_accounts = 1;
    signal_fence_seq_cst();
}

static inline void accounts_leave(void)
{
    signal_fence_seq_cst();
    this_thread.in_accounts = 0;
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

/* Adds bytes to a task and its ancestors, as far as they run; NOBODY: to what no task allocated.
 * Any thread may subtract with negative bytes. */
static inline void accounts_charge(task_handle task, int64_t bytes)
{
    if (__builtin_expect(lineage_is_own_outermost(task), 1))
        account_add_own(&accounts_of_tasks[handle_slot(task)], handle_generation(task), bytes);
    else
        accounts_charge_slow(task, bytes);
}

/* Counts one allocation of the calling thread. */
static inline void accounts_count_allocation(void) { this_thread.pending_count++; }

void accounts_flush_slow(void);

/* Bytes of a small block that the calling thread has allocated, or freed (negative). */
static inline void accounts_add_small(int32_t bytes)
{
    const uint32_t both = 2 * ACCOUNTS_FLUSH_BYTES;
    this_thread.pending += bytes;
    if (__builtin_expect((uint32_t)(this_thread.pending + ACCOUNTS_FLUSH_BYTES) > both, 0))
        accounts_flush_slow();
}

#endif
