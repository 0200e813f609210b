/* Live and peak bytes, added without any malloc, so that this test runs under the sanitizers.
 * Figures are exact, except for small bytes that are not flushed yet. */
#include "check.h"
#include "accounts.h"

#include <errno.h>
#include <pthread.h>

#define KIB INT64_C(1024)
#define MIB (KIB * KIB)

static uint64_t serial;

static task_handle begin(uint32_t slot, task_handle around)
{
    task_handle task = lineage_handle(slot, ++serial);
    accounts_task_begin(task, around);
    return task;
}

static struct account_figures now(task_handle task)
{
    struct account_figures f = { 0 };
    CHECK(accounts_task_now(task, &f) == 0);
    return f;
}

static struct account_figures end(task_handle task)
{
    struct account_figures f;
    accounts_task_end(task, 0, &f);
    return f;
}

static int figures_are(struct account_figures f, int64_t live, int64_t peak)
{
    return f.live_bytes == (uint64_t)live && f.peak_bytes == (uint64_t)peak;
}

static void on_another_thread(void *(*function)(void *), void *argument)
{
    pthread_t thread;
    pthread_create(&thread, NULL, function, argument);
    pthread_join(thread, NULL);
}

static void live_and_peak(void)
{
    task_handle task = begin(0, NOBODY);
    accounts_charge(task, 10 * MIB);
    accounts_charge(task, 5 * MIB);
    accounts_charge(task, -10 * MIB);
    accounts_charge(task, 3 * MIB);
    CHECK(figures_are(now(task), 8 * MIB, 15 * MIB));
    for (int i = 0; i < 7; i++) accounts_count_allocation();
    CHECK(accounts_live_now(task) == 8 * MIB && now(task).count == 7);
    CHECK(figures_are(end(task), 8 * MIB, 15 * MIB));
    struct account_figures f;
    CHECK(accounts_task_now(task, &f) == -ENOENT && accounts_live_now(task) == ABSENT
          && accounts_task_now(NOBODY, &f) == -ENOENT);
}

static void small_blocks_are_summed(void)
{
    task_handle task = begin(0, NOBODY);
    for (int i = 0; i < 1000; i++) accounts_count_allocation(), accounts_add_small(1000);
    struct account_figures f = now(task);
    /* the rest is still pending in the thread */
    CHECK(f.live_bytes <= 1000000 && f.live_bytes + ACCOUNTS_FLUSH_BYTES >= 1000000);
    CHECK(accounts_live_now(task) == 1000000 && now(task).count == 1000);
    for (int i = 0; i < 1000; i++) accounts_add_small(-1000);
    f = end(task);
    CHECK(figures_are(f, 0, 1000000) && f.count == 1000);
}

static void frees_of_older_memory_hide_nothing(void)
{
    task_handle task = begin(0, NOBODY);
    for (int i = 0; i < 1000; i++) accounts_add_small(-1000);
    accounts_flush();
    CHECK(now(task).live_bytes == 0);
    for (int i = 0; i < 500; i++) accounts_add_small(1000);
    accounts_charge(task, MIB);
    CHECK(figures_are(end(task), 500000 + MIB, 500000 + MIB));
}

static void a_nest(void)
{
    task_handle outer = begin(0, NOBODY);
    accounts_charge(outer, 4 * MIB);
    task_handle inner = begin(1, outer);
    accounts_charge(inner, 6 * MIB);
    accounts_add_small(1000);
    CHECK(figures_are(now(outer), 10 * MIB, 10 * MIB));
    CHECK(figures_are(end(inner), 6 * MIB + 1000, 6 * MIB + 1000));
    /* another task in the inner task's slot, not inside the outer one */
    task_handle next = begin(1, NOBODY);
    accounts_charge(inner, -6 * MIB); /* passed to the outer one */
    CHECK(figures_are(now(next), 0, 0) && figures_are(now(outer), 4 * MIB + 1000, 10 * MIB + 1000));
    end(next);
    CHECK(figures_are(end(outer), 4 * MIB + 1000, 10 * MIB + 1000));
    /* no task is left: no figures change */
    accounts_charge(inner, -MIB), accounts_charge(outer, -MIB);
}

static void memory_that_is_accounted_elsewhere(void)
{
    task_handle outer = begin(0, NOBODY), inner = begin(1, outer);
    struct account_figures f;
    accounts_task_end(inner, 1, &f);
    CHECK(f.live_bytes == 0 && same_task(lineage_nearest_running(inner), outer));
    end(outer);
}

static void *release_a_mebibyte(void *task)
{
    accounts_charge(*(task_handle *)task, -MIB);
    return NULL;
}

static void *charge_a_mebibyte(void *task)
{
    accounts_charge(*(task_handle *)task, MIB);
    return NULL;
}

static void other_threads(void)
{
    task_handle task = begin(0, NOBODY);
    accounts_charge(task, 3 * MIB);
    on_another_thread(release_a_mebibyte, &task);
    CHECK(figures_are(now(task), 2 * MIB, 3 * MIB));
    on_another_thread(charge_a_mebibyte, &task);
    on_another_thread(charge_a_mebibyte, &task);
    CHECK(figures_are(now(task), 4 * MIB, 4 * MIB)); /* their bytes raise the peak, too */
    CHECK(figures_are(end(task), 4 * MIB, 4 * MIB));
    task_handle next = begin(0, NOBODY);
    accounts_charge(next, 5);
    on_another_thread(release_a_mebibyte, &task);
    on_another_thread(charge_a_mebibyte, &task);
    accounts_charge(task, -MIB);
    CHECK(figures_are(end(next), 5, 5)); /* the release is for the slot's last task */
}

static void *end_it(void *task)
{
    CHECK(figures_are(end(*(task_handle *)task), 2 * MIB, 2 * MIB));
    return NULL;
}

static void *next_task_of_slot(void *task)
{
    task_handle next = begin(0, NOBODY);
    accounts_charge(next, 7);
    accounts_charge(*(task_handle *)task, -MIB);
    CHECK(figures_are(now(next), 7, 7));
    *(task_handle *)task = next;
    return NULL;
}

/* Another thread ends the task while its own thread still allocates: from then on for nobody. */
static void ends_elsewhere(void)
{
    uint64_t unowned = accounts_unowned_bytes();
    task_handle task = begin(0, NOBODY), next;
    accounts_charge(task, 2 * MIB);
    on_another_thread(end_it, &task);
    CHECK(!is_somebody(lineage_allocating_task()));
    accounts_charge(lineage_allocating_task(), 3);
    CHECK(accounts_unowned_bytes() == unowned + 3);
    accounts_charge(NOBODY, -3);
    next = task;
    on_another_thread(next_task_of_slot, &next);
    accounts_charge(task, MIB);
    CHECK(figures_are(now(next), 7, 7));
    /* a plain store that was under way when the next task began in the slot */
    accounts_of_tasks[0].own = sum_zero(handle_generation(task)) + MIB;
    /* unknown instead of wrong */
    CHECK(now(next).live_bytes == ABSENT && now(next).peak_bytes == ABSENT
          && now(next).count == ABSENT);
    end(next);
    this_thread.task = NOBODY;
}

static void what_is_nobodys(void)
{
    accounts_open();
    CHECK(accounts_unowned_bytes() == 0);
    accounts_charge(NOBODY, 100);
    on_another_thread(charge_a_mebibyte, &NOBODY);
    accounts_add_small(50);
    accounts_flush();
    CHECK(accounts_unowned_bytes() == MIB + 150);
    task_handle task = begin(0, NOBODY);
    accounts_charge(NOBODY, -100);
    CHECK(accounts_unowned_bytes() == MIB + 50 && now(task).live_bytes == 0);
    end(task);
}

static void not_open(void)
{
    accounts_close();
    CHECK(!accounts_active() && !accounts_may_change());
    uint64_t unowned = accounts_unowned_bytes();
    /* the wrappers add small bytes even if accounts are closed: cheaper than a check */
    for (int i = 0; i < 100; i++) accounts_add_small(1000);
    accounts_flush_at_thread_end();
    CHECK(accounts_unowned_bytes() == unowned && this_thread.pending <= ACCOUNTS_FLUSH_BYTES);
    accounts_open();
    CHECK(accounts_may_change() && this_thread.pending == 0);
}

static void a_signal_handler_in_between(void)
{
    task_handle task = begin(0, NOBODY);
    accounts_enter();
    CHECK(!accounts_may_change());
    for (int i = 0; i < 100; i++) accounts_add_small(1000);
    CHECK(now(task).live_bytes == 0);
    accounts_leave();
    accounts_add_small(1000);
    CHECK(figures_are(end(task), 101000, 101000));
}

static void *work_a_little(void *task)
{
    lineage_inherit(*(task_handle *)task);
    for (int i = 0; i < 20; i++) accounts_count_allocation(), accounts_add_small(1000);
    accounts_flush_at_thread_end();
    return NULL;
}

static void threads_that_end(void)
{
    task_handle task = begin(0, NOBODY);
    for (int i = 0; i < 50; i++) on_another_thread(work_a_little, &task);
    struct account_figures f = end(task);
    CHECK(figures_are(f, 1000000, 1000000) && f.count == 1000);
}

/* Eight tasks in eight threads. Each passes half of its blocks to the others, which free them while
 * the task runs or later. */
enum {
    THREADS = 8,
    PLACES = 64,
    BLOCKS = SANITIZED ? 5000 : 100000,
    TASKS = SANITIZED ? 2000 : 20000
};
static pthread_mutex_t boundary = PTHREAD_MUTEX_INITIALIZER;
static pthread_barrier_t gate;
/* owner 0: free, 1: being filled or emptied */
static struct {
    word owner, bytes;
} mailbox[PLACES];

static task_handle begin_shared(uint32_t slot, task_handle around)
{
    pthread_mutex_lock(&boundary);
    task_handle task = begin(slot, around);
    pthread_mutex_unlock(&boundary);
    return task;
}

static struct account_figures end_shared(task_handle task)
{
    pthread_mutex_lock(&boundary);
    struct account_figures f = end(task);
    pthread_mutex_unlock(&boundary);
    return f;
}

/* Frees the block in the mailbox and leaves one of the task. 0: another thread is doing so. */
static int exchange(uint32_t place, task_handle task, int64_t bytes)
{
    word held = load_acquire(&mailbox[place].owner);
    if (held == 1 || !compare_exchange_acquire(&mailbox[place].owner, &held, 1)) return 0;
    if (held) accounts_charge(handle_from_word(held), -(int64_t)mailbox[place].bytes);
    mailbox[place].bytes = (word)bytes;
    store_release(&mailbox[place].owner, handle_word(task));
    return 1;
}

static void *swap_blocks(void *argument)
{
    unsigned me = (unsigned)(uintptr_t)argument, seed = me + 1;
    task_handle task = begin_shared(me, NOBODY);
    int64_t given = 0;
    pthread_barrier_wait(&gate);
    for (int i = 0; i < BLOCKS; i++) {
        int64_t bytes = 4096 + rand_r(&seed) % 100000;
        accounts_charge(task, bytes);
        if (rand_r(&seed) % 2 && exchange((uint32_t)rand_r(&seed) % PLACES, task, bytes))
            given++;
        else
            accounts_charge(task, -bytes);
    }
    pthread_barrier_wait(&gate); /* no thread passes blocks any more */
    for (uint32_t i = me; i < PLACES; i += THREADS) CHECK(exchange(i, NOBODY, 0));
    pthread_barrier_wait(&gate);
    struct account_figures f = end_shared(task);
    CHECK(f.live_bytes == 0 && given > 0);
    /* what the mailbox can hold, and its own */
    CHECK(f.peak_bytes >= 4096 && f.peak_bytes <= (PLACES + 1 + THREADS) * UINT64_C(104096));
    return NULL;
}

static void in_threads(void *(*function)(void *))
{
    pthread_t threads[THREADS];
    pthread_barrier_init(&gate, NULL, THREADS);
    for (uintptr_t i = 0; i < THREADS; i++) pthread_create(&threads[i], NULL, function, (void *)i);
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    pthread_barrier_destroy(&gate);
}

static void own_and_foreign_frees(void) { in_threads(swap_blocks); }

/* Thousands of short tasks, some nested. Other threads free their blocks after many other tasks
 * have used the same slots. */
static void *short_tasks(void *argument)
{
    unsigned me = (unsigned)(uintptr_t)argument, seed = me + 1;
    uint32_t slot = 2 * me;
    pthread_barrier_wait(&gate);
    for (int i = 0; i < TASKS; i++) {
        int64_t bytes = 1 + rand_r(&seed) % 1000000;
        task_handle outer = begin_shared(slot, NOBODY),
                    task = i % 3 ? outer : begin_shared(slot + 1, outer);
        accounts_charge(task, bytes);
        struct account_figures f = now(task);
        CHECK(figures_are(f, bytes, bytes)); /* nothing of former tasks of the slot */
        int left = exchange((uint32_t)rand_r(&seed) % PLACES, task, bytes);
        if (!left) accounts_charge(task, -bytes);
        if (!same_task(task, outer)) {
            f = end_shared(task);
            CHECK(f.peak_bytes == (uint64_t)bytes
                  && (f.live_bytes == 0 || (left && f.live_bytes == (uint64_t)bytes)));
        }
        f = end_shared(outer);
        CHECK(f.peak_bytes == (uint64_t)bytes
              && (f.live_bytes == 0 || (left && f.live_bytes == (uint64_t)bytes)));
    }
    pthread_barrier_wait(&gate);
    for (uint32_t i = me; i < PLACES; i += THREADS) CHECK(exchange(i, NOBODY, 0));
    return NULL;
}

static void thousands_of_short_tasks(void) { in_threads(short_tasks); }

/* One task, many threads that work for it with small blocks, and tasks that others end. */
static task_handle common;

static void *small_work(void *argument)
{
    lineage_inherit(common);
    pthread_barrier_wait(&gate);
    for (int i = 0; i < BLOCKS; i++) accounts_count_allocation(), accounts_add_small(1000);
    accounts_flush_at_thread_end();
    return argument;
}

static void many_work_for_one(void)
{
    common = begin(0, NOBODY);
    in_threads(small_work);
    struct account_figures f = end(common);
    CHECK(figures_are(f, THREADS * INT64_C(1000) * BLOCKS, THREADS * INT64_C(1000) * BLOCKS)
          && f.count == THREADS * (uint64_t)BLOCKS);
}

static word to_be_ended[THREADS];

/* Each thread ends its neighbour's task at any moment: figures are right or unknown. */
static void *end_the_neighbours(void *argument)
{
    unsigned me = (unsigned)(uintptr_t)argument;
    for (int i = 0; i < TASKS / 10; i++) {
        task_handle task = begin_shared(me, NOBODY);
        store_release(&to_be_ended[me], handle_word(task));
        pthread_barrier_wait(&gate);
        for (int k = 0; k < 10; k++)
            accounts_charge(lineage_allocating_task(), 100), accounts_charge(task, 0);
        struct account_figures f =
            end_shared(handle_from_word(load_acquire(&to_be_ended[(me + 1) % THREADS])));
        CHECK(f.live_bytes <= 1000 && f.peak_bytes <= 1000);
        pthread_barrier_wait(&gate);
        CHECK(!lineage_runs(task) && !is_somebody(lineage_allocating_task()));
    }
    return NULL;
}

static void ended_by_neighbours(void)
{
    uint64_t before = accounts_unowned_bytes();
    in_threads(end_the_neighbours);
    /* bytes added after the end belong to nobody */
    CHECK(accounts_unowned_bytes() <= before + (uint64_t)THREADS * (TASKS / 10) * 1000);
}

int main(void)
{
    lineage_open(NULL);
    accounts_open();
    RUN(live_and_peak);
    RUN(small_blocks_are_summed);
    RUN(frees_of_older_memory_hide_nothing);
    RUN(a_nest);
    RUN(memory_that_is_accounted_elsewhere);
    RUN(other_threads);
    RUN(ends_elsewhere);
    RUN(what_is_nobodys);
    RUN(not_open);
    RUN(a_signal_handler_in_between);
    RUN(threads_that_end);
    RUN(own_and_foreign_frees);
    RUN(thousands_of_short_tasks);
    RUN(many_work_for_one);
    RUN(ended_by_neighbours);
    return failures;
}
