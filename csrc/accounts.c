#define _GNU_SOURCE
#include "accounts.h"

#include <errno.h>

#include "unowned.h"

struct account accounts_of_tasks[SLOT_COUNT];
word accounts_are_open;

static struct account unowned;

static struct account *account_of(task_handle task)
{
    return &accounts_of_tasks[handle_slot(task)];
}

/* -- adding -- */

/* For threads that did not begin the task. No effect if the account has another generation now. */
static void add_foreign(struct account *a, uint64_t generation, int64_t bytes)
{
    if (sum_add(&a->others, generation, bytes) && bytes > 0)
        peak_raise(&a->peak, generation, account_live(a));
}

static void add_live(task_handle task, int64_t bytes)
{
    if (lineage_began_here(task))
        account_add_own(account_of(task), handle_generation(task), bytes);
    else
        add_foreign(account_of(task), handle_generation(task), bytes);
}

static void charge_unowned(task_handle nobody, int64_t bytes)
{
    add_foreign(&unowned, 0, bytes);
    unowned_add(handle_unowned_entry(nobody), bytes);
}

__attribute__((noinline)) void accounts_charge_slow(task_handle task, int64_t bytes)
{
    task_handle parent;
    if (!is_somebody(task)) charge_unowned(task, bytes);
    for (; is_somebody(task); task = parent) {
        /* before the change: a task that ends with no bytes left has no known parent */
        parent = lineage_parent(task);
        if (lineage_runs(task)) add_live(task, bytes);
    }
}

/* Clamped at zero, so that frees of older memory do not hide what the task has allocated. Returns
 * the change. */
static int64_t add_small_clamped(struct account *a, int64_t bytes)
{
    word old = load_relaxed(&a->small), sum;
    do sum = (int64_t)old + bytes < 0 ? 0 : old + (word)bytes;
    while (!compare_exchange_weak_relaxed(&a->small, &old, sum));
    return (int64_t)(sum - old);
}

static void flush_to(task_handle task)
{
    int64_t changed;
    if (!is_somebody(task) && (changed = add_small_clamped(&unowned, this_thread.pending)))
        charge_unowned(task, changed);
    for (; is_somebody(task); task = lineage_parent(task)) {
        if (!lineage_runs(task)) continue;
        add_relaxed(&account_of(task)->count, this_thread.pending_count);
        if ((changed = add_small_clamped(account_of(task), this_thread.pending)))
            add_live(task, changed);
    }
    this_thread.pending = 0;
    this_thread.pending_count = 0;
}

static void flush(void)
{
    if (this_thread.pending || this_thread.pending_count) flush_to(lineage_allocating_task());
}

__attribute__((noinline)) void accounts_flush_slow(void)
{
    if (this_thread.in_accounts) return; /* in a signal handler: the next call flushes */
    accounts_enter();
    if (accounts_active())
        flush();
    else
        this_thread.pending = 0;
    accounts_leave();
}

void accounts_flush(void)
{
    accounts_enter();
    flush();
    accounts_leave();
}

/* Not lineage_allocating_task: without its Python thread state, the thread looks native. */
void accounts_flush_at_thread_end(void)
{
    if (!accounts_active()) return;
    accounts_enter();
    flush_to(lineage_task_to_inherit());
    accounts_leave();
}

/* -- tasks -- */

void accounts_task_begin(task_handle task, task_handle parent)
{
    struct account *a = account_of(task);
    const uint64_t generation = handle_generation(task);
    accounts_enter();
    flush();
    store_relaxed(&a->peak, sum_tag(generation));
    store_relaxed(&a->small, 0);
    store_relaxed(&a->count, 0);
    store_relaxed(&a->own, sum_zero(generation));
    store_relaxed(&a->others, sum_zero(generation));
    lineage_begin(task, parent); /* last: from here on other threads may add bytes */
    accounts_leave();
}

static void read_figures(task_handle task, struct account_figures *f)
{
    const struct account *a = account_of(task);
    f->live_bytes = account_live(a);
    f->peak_bytes = load_relaxed(&a->peak) & SUM_MASK;
    f->count = load_relaxed(&a->count);
    f->inexact = lineage_is_inexact(task);
    if (f->peak_bytes < f->live_bytes) f->peak_bytes = f->live_bytes;
    /* Another thread ended the slot's last task, and the task's own thread then overwrote `own`:
     * the figures are unknown. */
    if (!sum_is_of(load_relaxed(&a->own), handle_generation(task)))
        *f = (struct account_figures){ ABSENT, ABSENT, ABSENT, 0 };
}

void accounts_task_end(task_handle task, int has_device_bytes, struct account_figures *figures)
{
    accounts_enter();
    if (same_task(this_thread.task, task)) flush();
    read_figures(task, figures);
    lineage_end(task, has_device_bytes || figures->live_bytes);
    /* a generation that no task has */
    store_relaxed(&account_of(task)->others, ~sum_zero(handle_generation(task)));
    accounts_leave();
}

int accounts_task_now(task_handle task, struct account_figures *figures)
{
    if (!lineage_runs(task)) return -ENOENT;
    read_figures(task, figures);
    return 0;
}

uint64_t accounts_live_now(task_handle task)
{
    struct account_figures f;
    accounts_flush();
    return accounts_task_now(task, &f) == 0 ? f.live_bytes : ABSENT;
}

/* -- what no task allocated -- */

uint64_t accounts_unowned_bytes(void) { return account_live(&unowned); }

void accounts_open(void)
{
    store_relaxed(&unowned.own, sum_zero(0));
    store_relaxed(&unowned.others, sum_zero(0));
    store_relaxed(&unowned.peak, 0);
    store_relaxed(&unowned.small, 0);
    unowned_open();
    this_thread.pending = 0;
    this_thread.pending_count = 0;
    store_release(&accounts_are_open, 1);
}

void accounts_close(void) { store_release(&accounts_are_open, 0); }
