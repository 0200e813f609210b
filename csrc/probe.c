#define _GNU_SOURCE
#include "probe.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "accounts.h"
#include "alloc.h"
#include "clock.h"
#include "gpu.h"
#include "limit.h"
#include "patch.h"
#include "sampler.h"

static struct {
    pthread_mutex_t control; /* start, stop and fork, one at a time */
    word active, instance;
    struct board board;
    struct tasks tasks;
    struct sampler sampler;
    word sampler_due;      /* stopped for a fork, and to be started again */
    word asked_for_room;   /* for tasks, with or without success */
    word room_error;       /* errno of the failure, until it has been reported */
    const char *room_step; /* the step that failed */
    uint64_t period_ns;
    char cgroup_root[200];
    pthread_key_t thread_key;
    int has_key; /* without the key, tasks of a thread that exits stay open */
    /* `said` is shared with all processes that are forked later; NULL: no page for it */
    word *said, said_here[PROBE_MESSAGE_KINDS];
} probe = { .control = PTHREAD_MUTEX_INITIALIZER, .tasks = { .mutex = PTHREAD_MUTEX_INITIALIZER } };

static uint64_t own_start_ticks(const char *proc_root)
{
    char text[1024];
    if (proc_read_once(proc_root, "stat", text, sizeof text) <= 0) return 0;
    char *at = strrchr(text, ')'); /* the name may contain anything */
    for (int field = 2; at && field < 22; field++) at = strchr(at + 1, ' ');
    return at ? strtoull(at + 1, NULL, 10) : 0;
}

static uint64_t own_pid_namespace(const char *proc_root)
{
    char path[256];
    struct stat st;
    snprintf(path, sizeof path, "%s/self/ns/pid", proc_root);
    return stat(path, &st) == 0 ? (uint64_t)st.st_ino : 0;
}

static void start_sampler(void)
{
    const struct sampler_settings settings = { .board = &probe.board,
                                               .rss = &probe.tasks.rss,
                                               .running = &probe.tasks.running,
                                               .cgroup_root = probe.cgroup_root,
                                               .period_ns = probe.period_ns };
    pthread_mutex_lock(&probe.tasks.mutex); /* sampler_start reads the tasks' rss handle */
    int e = sampler_start(&probe.sampler, &settings);
    pthread_mutex_unlock(&probe.tasks.mutex);
    /* Without the sampler, peaks are still read at every begin and end. Readers see that the
     * board's heartbeat is missing. */
    if (e < 0 && probe_claim_message(PROBE_MESSAGE_SAMPLER))
        fprintf(stderr,
                "dwsr-probe: cannot start the sampler thread: %s; peaks are taken at task "
                "boundaries only\n",
                strerror(-e));
}

static void before_fork(void)
{
    pthread_mutex_lock(&probe.control);
    sampler_stop(&probe.sampler);
    pthread_mutex_lock(&probe.tasks.mutex);
    alloc_fork_lock();
    gpu_fork_lock();
}

static void after_fork_in_parent(void)
{
    gpu_fork_unlock();
    alloc_fork_unlock();
    pthread_mutex_unlock(&probe.tasks.mutex);
    if (load_relaxed(&probe.active) && this_thread.fork_announced)
        store_relaxed(&probe.sampler_due, 1);
    else if (load_relaxed(&probe.active))
        start_sampler();
    this_thread.fork_announced = 0;
    pthread_mutex_unlock(&probe.control);
}

static void after_fork_in_child(void)
{
    pthread_mutex_init(&probe.control, NULL);
    gpu_reset_in_child();
    alloc_reset_in_child();
    lineage_reset_in_child();
    unowned_reset_in_child();
    tasks_reset_in_child(&probe.tasks);
    board_unmap(&probe.board, 0);
    store_relaxed(&probe.active, 0);
    store_relaxed(&probe.asked_for_room, 0);
    store_relaxed(&probe.sampler_due, 0);
    store_relaxed(&probe.instance, probe.instance + 1);
    this_thread.fork_announced = 0;
}

static void on_thread_exit(void *unused)
{
    (void)unused;
    tasks_thread_exit(&probe.tasks);
}

static void prepare_process(void)
{
    probe.has_key = pthread_key_create(&probe.thread_key, on_thread_exit) == 0;
    void *page = mmap(NULL, sizeof probe.said_here, PROT_READ | PROT_WRITE,
                      MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (page != MAP_FAILED) probe.said = page;
    pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
}

int probe_check_limits(const char **failed_step)
{
    struct rlimit limit;
    *failed_step = "use descriptors";
    return getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < PROBE_DESCRIPTORS_LEAST
               ? -EMFILE
               : 0;
}

static int start(const struct probe_settings *s, const char **failed_step)
{
    struct rss *rss = &probe.tasks.rss;
    uint64_t max_bytes;
    rss_open(rss, s->proc_root, s->keep_peak, &max_bytes);
    const struct board_settings b = {
        .directory = s->directory,
        .run = s->run,
        .host = s->host,
        .task_name = s->task_name,
        .worker = s->worker,
        .python = s->python,
        .pid = (uint64_t)getpid(),
        .pid_namespace = own_pid_namespace(s->proc_root),
        .start_ticks = own_start_ticks(s->proc_root),
        .period_ns = s->period_ns,
        .rss_before_bytes = rss_now(rss),
        .rss_error_bytes = rss->error_bytes,
        .limit_bytes = limit_bytes(s->proc_root, s->cgroup_root),
    };
    int e = board_create(&probe.board, &b, failed_step);
    if (e < 0) {
        rss_close(rss);
        return e;
    }
    /* opened again by the first task: a program without tasks sees no descriptor of ours */
    rss_close(rss);
    store_relaxed(&probe.board.live->rss_max_bytes, max_bytes == ABSENT ? 0 : max_bytes);
    probe.period_ns = s->period_ns;
    snprintf(probe.cgroup_root, sizeof probe.cgroup_root, "%s", s->cgroup_root);
    lineage_open(s->is_python_thread);
    if (s->alloc) alloc_find_interpreter(s->interpreter);
    int accounting = s->alloc && alloc_start(s->alloc_from) == 0;
    gpu_open();
    store_relaxed(&probe.board.live->alloc_state, accounting ? ALLOC_ON
                                                  : s->alloc ? ALLOC_UNAVAILABLE
                                                             : ALLOC_OFF);
    tasks_open(&probe.tasks, &probe.board, accounting);
    start_sampler();
    store_relaxed(&probe.instance, probe.instance + 1);
    store_release(&probe.active, 1);
    return 0;
}

int probe_start(const struct probe_settings *s, const char **failed_step)
{
    static pthread_once_t prepared = PTHREAD_ONCE_INIT;
    pthread_once(&prepared, prepare_process);
    pthread_mutex_lock(&probe.control);
    *failed_step = "start";
    int e = load_relaxed(&probe.active) ? -EALREADY : probe_check_limits(failed_step);
    if (e == 0) e = start(s, failed_step);
    pthread_mutex_unlock(&probe.control);
    return e;
}

void probe_stop(enum board_state state, int at_exit, int remove)
{
    pthread_mutex_lock(&probe.control);
    if (load_relaxed(&probe.active)) {
        store_release(&probe.active, 0);
        sampler_stop(&probe.sampler);
        tasks_close(&probe.tasks, at_exit);
        alloc_stop(at_exit);
        gpu_publish(&probe.board);
        store_relaxed(&probe.board.live->end_ns, now_ns());
        store_release(&probe.board.live->state, state);
        board_unmap(&probe.board, remove);
        store_relaxed(&probe.asked_for_room, 0);
    }
    pthread_mutex_unlock(&probe.control);
}

int probe_active(void) { return load_relaxed(&probe.active) != 0; }
uint64_t probe_instance(void) { return load_relaxed(&probe.instance); }

int probe_board_path(char *path, size_t size)
{
    pthread_mutex_lock(&probe.control);
    int e = load_relaxed(&probe.active) ? 0 : -ENOENT;
    if (e == 0) snprintf(path, size, "%s", probe.board.path);
    pthread_mutex_unlock(&probe.control);
    return e;
}

static void grow_board(void)
{
    /* a begin or end that is under way uses the slots */
    pthread_mutex_lock(&probe.tasks.mutex);
    int e = board_grow(&probe.board, &probe.room_step);
    if (e < 0)
        store_release(&probe.room_error, (word)-e);
    else
        tasks_use_room(&probe.tasks);
    if (e == 0 && probe.tasks.accounting && alloc_start_accounting() < 0) {
        probe.tasks.accounting = 0;
        store_relaxed(&probe.board.live->alloc_state, ALLOC_UNAVAILABLE);
    }
    pthread_mutex_unlock(&probe.tasks.mutex);
    store_release(&probe.asked_for_room, 1);
}

void probe_expect_tasks(void)
{
    pthread_mutex_lock(&probe.control);
    /* A program that has closed a standard stream is about to reuse its number: no file is opened
     * now, and the next task asks again. */
    if (load_relaxed(&probe.active) && !load_relaxed(&probe.asked_for_room)
        && standard_streams_are_open())
        grow_board();
    pthread_mutex_unlock(&probe.control);
}

int probe_take_room_failure(int *error, const char **failed_step)
{
    *error = (int)exchange_relaxed(&probe.room_error, 0);
    *failed_step = probe.room_step;
    return *error != 0;
}

task_handle probe_task_begin(const struct task_begin *begin, struct hold *h)
{
    const int needs_room = load_relaxed(&probe.active) && !load_acquire(&probe.asked_for_room);
    if (needs_room || load_relaxed(&probe.sampler_due)) hold_release(h);
    if (needs_room) probe_expect_tasks();
    if (load_relaxed(&probe.sampler_due)) probe_restart_sampler();
    if (patch_is_due()) {
        hold_release(h);
        patch_refresh();
    }
    task_handle task = tasks_begin(&probe.tasks, begin, h);
    if (!is_somebody(task)) return task;
    if (probe.has_key) pthread_setspecific(probe.thread_key, &probe);
    sampler_wake_if_idle(&probe.sampler);
    return task;
}

void probe_task_end(task_handle task, const struct task_end *end, struct hold *h)
{
    tasks_end(&probe.tasks, task, end, h);
}

void probe_task_detach(task_handle task, struct hold *h) { tasks_detach(&probe.tasks, task, h); }

task_handle probe_adopt(task_handle task)
{
    accounts_flush(); /* small bytes so far belong to the task before */
    return lineage_adopt(task);
}

task_handle probe_current(void) { return probe_active() ? lineage_current_task() : NOBODY; }
uint64_t probe_live_bytes(task_handle task)
{
    return accounts_active() ? accounts_live_now(task) : ABSENT;
}

void probe_announce_fork(void) { this_thread.fork_announced = 1; }

void probe_restart_sampler(void)
{
    pthread_mutex_lock(&probe.control);
    if (load_relaxed(&probe.active) && exchange_relaxed(&probe.sampler_due, 0)
        && !probe.sampler.started)
        start_sampler();
    pthread_mutex_unlock(&probe.control);
}

int probe_set_facts(const char *text, uint64_t len)
{
    pthread_mutex_lock(&probe.control);
    int e = load_relaxed(&probe.active) ? board_publish_facts(&probe.board, text, len) : -ENOENT;
    pthread_mutex_unlock(&probe.control);
    return e;
}

void probe_note_dask_hooks(uint64_t kind)
{
    pthread_mutex_lock(&probe.control);
    if (load_relaxed(&probe.active)) store_relaxed(&probe.board.live->dask_hooks, kind);
    pthread_mutex_unlock(&probe.control);
}

int probe_claim_message(unsigned kind)
{
    return kind >= PROBE_MESSAGE_KINDS
           || !exchange_relaxed((probe.said ? probe.said : probe.said_here) + kind, 1);
}

void probe_note_exec(void)
{
    pthread_mutex_lock(&probe.control);
    if (load_relaxed(&probe.active)) store_release(&probe.board.live->exec_ns, now_ns());
    pthread_mutex_unlock(&probe.control);
}

void probe_note_unprobed_child(void)
{
    pthread_mutex_lock(&probe.control);
    if (load_relaxed(&probe.active)) add_relaxed(&probe.board.live->children_unprobed, 1);
    pthread_mutex_unlock(&probe.control);
}
