/* Which task a thread works for: handles, nesting, ended tasks, adoption, native threads, restarts,
 * and many threads that ask while tasks begin and end. */
#include "check.h"
#include "lineage.h"
#include "unowned.h"

#include <pthread.h>
#include <sys/wait.h>

static uint64_t serial;

static task_handle begin(uint32_t slot, task_handle around)
{
    task_handle task = lineage_handle(slot, ++serial);
    lineage_begin(task, around);
    return task;
}

static int is(task_handle found, task_handle expected) { return same_task(found, expected); }
static int is_nobody(task_handle found) { return !is_somebody(found); }

static void handles(void)
{
    const uint64_t most = (UINT64_C(1) << HANDLE_SERIAL_BITS) - 1;
    const struct {
        uint32_t slot;
        uint64_t serial, start;
    } cases[] = { { 0, 1, 0 },       { SLOT_COUNT - 1, 1, 0 },
                  { 3, 12345, 7 },   { SLOT_COUNT - 1, most, 1 },
                  { 5, most, 1000 }, { 0, 1, 1001 } };
    for (unsigned i = 0; i < sizeof cases / sizeof *cases; i++) {
        task_handle h = handle_from_serial(cases[i].slot, cases[i].serial, cases[i].start);
        CHECK(is_somebody(h) && handle_slot(h) == cases[i].slot
              && handle_serial(h) == cases[i].serial);
        CHECK(is(handle_from_generation(handle_slot(h), handle_generation(h)), h));
        for (unsigned k = 0; k < i; k++)
            CHECK(!is(h, handle_from_serial(cases[k].slot, cases[k].serial, cases[k].start)));
    }
    CHECK(is_nobody(handle_from_serial(9, 0, 5)) && is_nobody(NOBODY)
          && handle_serial(NOBODY) == 0);
    CHECK(is_older(handle_from_serial(511, 8, 2), handle_from_serial(0, 9, 2))
          && is_older(handle_from_serial(1, most, 2), handle_from_serial(0, 1, 3)));
    CHECK(sizeof(struct thread_state) == 32);
}

static void a_nest(void)
{
    task_handle outer = begin(0, NOBODY), inner = begin(1, outer);
    CHECK(lineage_runs(outer) && lineage_runs(inner) && !lineage_runs(NOBODY));
    CHECK(is(lineage_current_task(), inner) && is(lineage_parent(inner), outer)
          && is_nobody(lineage_parent(outer)));
    CHECK(lineage_is_own_outermost(outer) && !lineage_is_own_outermost(inner)
          && lineage_began_here(inner));
    CHECK(lineage_slots_used() == 2 && is(lineage_task_in(1), inner));
    lineage_end(inner, 1);
    CHECK(!lineage_runs(inner) && is_nobody(lineage_task_in(1))
          && is(lineage_current_task(), outer));
    CHECK(is(lineage_nearest_running(inner), outer)); /* what it left belongs to the outer one */
    task_handle next = begin(1, outer);
    /* also while another task uses its slot */
    CHECK(is(lineage_nearest_running(inner), outer) && is(lineage_nearest_running(next), next));
    lineage_end(next, 0);
    CHECK(
        is_nobody(lineage_nearest_running(next))); /* it left nothing, so its parent is not kept */
    lineage_end(outer, 1);
    CHECK(is_nobody(lineage_nearest_running(inner)) && is_nobody(lineage_nearest_running(outer))
          && is_nobody(lineage_current_task()));
}

static void ends_out_of_order(void)
{
    task_handle a = begin(0, NOBODY), b = begin(1, a), c = begin(2, b);
    lineage_end(a, 1);
    CHECK(is(lineage_current_task(), c) && is(lineage_parent(c), b));
    lineage_end(b, 1);
    CHECK(is(lineage_current_task(), c) && is(lineage_parent(c), b) && is(lineage_parent(b), a)
          && is_nobody(lineage_nearest_running(b)));
    task_handle other = begin(0, NOBODY); /* in a's slot, and not the parent of c */
    CHECK(is_nobody(lineage_nearest_running(b)) && is(lineage_current_task(), other));
    lineage_end(other, 0);
    lineage_end(c, 0);
    CHECK(is_nobody(lineage_current_task()));
}

/* More inner tasks left memory than the table holds: the outer one is inexact. */
static void too_many_ended_tasks(void)
{
    task_handle outer = begin(0, NOBODY), first = begin(1, outer);
    lineage_end(first, 1);
    for (int i = 0; i < 65535; i++) lineage_end(begin(1, outer), 1);
    CHECK(is(lineage_nearest_running(first), outer) && !lineage_is_inexact(outer));
    lineage_end(begin(1, outer), 1);
    CHECK(is_nobody(lineage_nearest_running(first)) && lineage_is_inexact(outer));
    lineage_end(outer, 0);
    outer = begin(0, NOBODY);
    CHECK(!lineage_is_inexact(outer)); /* of the slot's last task */
    lineage_end(outer, 0);
}

static task_handle given, seen, sole_seen;
static int native_now;

static void *in_a_thread(void *unused)
{
    CHECK(is_nobody(lineage_current_task()));
    lineage_inherit(given);
    seen = lineage_current_task();
    sole_seen = lineage_allocating_task();
    return unused;
}

static void run_thread(task_handle inherited)
{
    pthread_t thread;
    given = inherited;
    pthread_create(&thread, NULL, in_a_thread, NULL);
    pthread_join(thread, NULL);
}

static void threads_that_a_task_starts(void)
{
    CHECK(is_nobody(lineage_task_to_inherit()));
    task_handle outer = begin(0, NOBODY), inner = begin(1, outer);
    CHECK(is(lineage_task_to_inherit(), inner));
    run_thread(lineage_task_to_inherit());
    CHECK(is(seen, inner) && is(sole_seen, inner));
    lineage_end(inner, 1);
    run_thread(inner);
    CHECK(
        is(seen,
           outer)); /* it outlives the task that started it: it then works for that task's parent */
    lineage_end(outer, 0);
    run_thread(inner);
    CHECK(is_nobody(seen) && is_nobody(sole_seen));
}

static void adoption(void)
{
    task_handle own, task = begin(0, NOBODY);
    this_thread.task = NOBODY; /* as if another thread had begun it */
    CHECK(is_nobody(lineage_current_task()) && is_nobody(lineage_adopt(task)));
    CHECK(is(lineage_current_task(), task) && is(lineage_allocating_task(), task)
          && is(lineage_task_to_inherit(), task));
    own = begin(1, NOBODY);
    CHECK(is(lineage_current_task(), own)); /* before the one that it has adopted */
    lineage_end(own, 0);
    CHECK(is(lineage_current_task(), task));
    CHECK(is(lineage_adopt(NOBODY), task) && is_nobody(lineage_current_task()));
    CHECK(is_nobody(lineage_adopt(task)));
    lineage_end(task, 0);
    /* until the task's end */
    CHECK(is_nobody(lineage_current_task()) && is(lineage_adopt(NOBODY), task));
}

static int is_python(void) { return !native_now; }

static void native_threads(void)
{
    lineage_open(is_python);
    task_handle task = begin(0, NOBODY);
    lineage_set_running(1, task);
    run_thread(NOBODY);
    CHECK(is_nobody(sole_seen)); /* a Python thread that no task started */
    native_now = 1;
    run_thread(NOBODY);
    CHECK(is(sole_seen, task) && is_nobody(seen)); /* by the rule for native threads only */
    lineage_set_running(2, task);
    run_thread(NOBODY);
    CHECK(is_nobody(sole_seen) && handle_unowned_entry(sole_seen) == UNOWNED_NATIVE);
    run_thread(task);
    CHECK(is_nobody(sole_seen)); /* started by a task, but native: the rule for those */
    lineage_set_running(0, NOBODY);
    run_thread(NOBODY);
    CHECK(is_nobody(sole_seen));
    CHECK(is(lineage_allocating_task(), task)); /* a thread's own task, whatever thread it is */
    lineage_end(task, 0);
    native_now = 0;
    lineage_open(NULL);
}

static void a_restart(void)
{
    serial = 0;
    lineage_open(NULL);
    task_handle before = begin(0, NOBODY);
    lineage_adopt(before);
    serial = 0;
    lineage_open(NULL);
    CHECK(!lineage_runs(before) && is_nobody(lineage_current_task())
          && is_nobody(lineage_task_in(0)) && lineage_slots_used() == 0);
    task_handle after = begin(0, NOBODY);
    CHECK(handle_serial(before) == handle_serial(after) && !is(before, after)
          && !lineage_runs(before));
    lineage_adopt(before);
    lineage_end(after, 0);
    CHECK(is_nobody(lineage_current_task()));
    lineage_adopt(NOBODY);
    serial = 1000000;
}

static void a_fork(void)
{
    task_handle task = begin(0, NOBODY);
    pid_t pid = fork();
    if (pid == 0) {
        lineage_reset_in_child();
        _exit(lineage_runs(task) || is_somebody(lineage_current_task())
              || is_somebody(lineage_allocating_task()));
    }
    int status;
    CHECK(waitpid(pid, &status, 0) == pid && status == 0 && is(lineage_current_task(), task));
    lineage_end(task, 0);
}

/* Eight threads run nested short tasks. Each thread asks about tasks of the others while these end
 * and their slots are reused. */
enum { THREADS = 8, ROUNDS = SANITIZED ? 2000 : 20000 };
static pthread_mutex_t boundary = PTHREAD_MUTEX_INITIALIZER;
static word published[THREADS], next_serial;

static task_handle begin_shared(uint32_t slot, task_handle around)
{
    pthread_mutex_lock(&boundary);
    task_handle task = lineage_handle(slot, ++next_serial);
    lineage_begin(task, around);
    pthread_mutex_unlock(&boundary);
    return task;
}

static void end_shared(task_handle task, int has_live_bytes)
{
    pthread_mutex_lock(&boundary);
    lineage_end(task, has_live_bytes);
    pthread_mutex_unlock(&boundary);
}

static void *nests(void *argument)
{
    uint32_t me = (uint32_t)(uintptr_t)argument;
    task_handle base = begin_shared(2 * me, NOBODY);
    for (int i = 0; i < ROUNDS; i++) {
        task_handle inner = begin_shared(2 * me + 1, base);
        store_release(&published[me], handle_word(inner));
        CHECK(is(lineage_allocating_task(), inner) && is(lineage_nearest_running(inner), inner));
        const uint32_t other = (me + 1 + (uint32_t)i % (THREADS - 1)) % THREADS;
        task_handle foreign = handle_from_word(load_acquire(&published[other]));
        /* the task, its parent, or nobody */
        task_handle owner = lineage_nearest_running(foreign);
        if (is_somebody(owner))
            CHECK(is(owner, foreign)
                  || (handle_slot(owner) == handle_slot(foreign) - 1 && is_older(owner, foreign)));
        end_shared(inner, 1);
        task_handle after = lineage_nearest_running(inner);
        /* forgotten: the parent is inexact */
        CHECK(is(lineage_allocating_task(), base) && (is(after, base) || lineage_is_inexact(base)));
    }
    end_shared(base, 0);
    return NULL;
}

static void many_threads(void)
{
    pthread_t threads[THREADS];
    next_serial = serial;
    for (uintptr_t i = 0; i < THREADS; i++) pthread_create(&threads[i], NULL, nests, (void *)i);
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    for (uint32_t i = 0; i < lineage_slots_used(); i++) CHECK(is_nobody(lineage_task_in(i)));
    serial = next_serial;
}

int main(void)
{
    lineage_open(NULL);
    RUN(handles);
    RUN(a_nest);
    RUN(ends_out_of_order);
    RUN(too_many_ended_tasks);
    RUN(threads_that_a_task_starts);
    RUN(adoption);
    RUN(native_threads);
    RUN(a_restart);
    RUN(a_fork);
    RUN(many_threads);
    return failures;
}
