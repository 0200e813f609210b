#define _GNU_SOURCE
#include "sampler.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "accounts.h"
#include "alloc.h"
#include "clock.h"
#include "gpu.h"
#include "limit.h"
#include "owners.h"
#include "unaccounted.h"

#ifndef SYS_close_range /* older headers */
#define SYS_close_range 436
#endif
#ifndef CLOSE_RANGE_UNSHARE
#define CLOSE_RANGE_UNSHARE 2u
#endif

#define RSS_CHANGED_BYTES (256 << 10) /* a change of the resident set that counts */
#define BUSY_SAMPLES      4   /* after so many, the period is at least BUSY_FACTOR base periods */
#define BUSY_FACTOR       8   /* (struct sampler_pace says what a busy sample is) */
#define FLAT_SAMPLES      8   /* after so many, the period doubles */
#define FLAT_FACTOR       16  /* longest period while tasks run, in base periods */
#define IDLE_FACTOR       10  /* shortest period while no task runs */
#define IDLE_FACTOR_MOST  100 /* longest period while no task runs */
#define CPU_SHARE         200 /* the sampler takes 1/200 of a core, */
#define CPU_AHEAD_NS      (10 * UINT64_C(1000000)) /* and so much at once after a quiet time */
#define PRECISE_EVERY_NS  (10 * UINT64_C(1000000)) /* between readings of VmHWM at the floor */
#define OWN_EVERY_NS      (10 * NS_PER_S)          /* between readings of our own memory */
#define HEADROOM_EVERY_NS (NS_PER_S / 4)           /* between readings, while tasks run */
#define HEADROOM_IDLE_NS  (2 * NS_PER_S)           /* the same, while no task runs */
#define HEADROOM_SHARE    1000                     /* reading it takes at most 1/1000 of a core */
#define STACK_BYTES       (256 << 10)
#define GONE_WITHIN_NS    (NS_PER_S / 10) /* for the kernel to remove an ended thread */

uint64_t sampler_next_period(const struct sampler_pace *p)
{
    /* Tasks that begin or end between any two samples read their peaks themselves. A task that
     * lasts is sampled at the base period again. */
    uint64_t least = p->base_ns
                     * (!p->running                       ? IDLE_FACTOR
                        : p->over_share                   ? FLAT_FACTOR
                        : p->busy_samples >= BUSY_SAMPLES ? BUSY_FACTOR
                                                          : 1);
    uint64_t most = p->base_ns * (p->running ? FLAT_FACTOR : IDLE_FACTOR_MOST);
    if (p->rss_changed || p->period_ns < least) return least;
    if (p->flat_samples < FLAT_SAMPLES) return p->period_ns > most ? least : p->period_ns;
    return p->period_ns * 2 < most ? p->period_ns * 2 : most;
}

static void sleep_until(struct sampler *s, uint64_t deadline_ns, uint32_t wakeups)
{
    struct timespec t = { (time_t)(deadline_ns / NS_PER_S), (long)(deadline_ns % NS_PER_S) };
    syscall(SYS_futex, &s->wakeups, FUTEX_WAIT_BITSET_PRIVATE, wakeups, &t, NULL,
            FUTEX_BITSET_MATCH_ANY);
}

static void wake(struct sampler *s)
{
    futex_add_release(&s->wakeups, 1);
    syscall(SYS_futex, &s->wakeups, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

/* Live and peak bytes of the running tasks. A reader uses them if `alloc_serial` is the serial of
 * the slot's task. */
static void publish_allocations(struct board *b)
{
    const int intact = alloc_check_intact();
    if (!intact) store_relaxed(&b->live->alloc_state, ALLOC_UNAVAILABLE);
    store_relaxed(&b->live->unowned_bytes, accounts_unowned_bytes());
    store_relaxed(&b->live->untracked_bytes, alloc_untracked_bytes());
    if (!load_acquire(&b->live->room_for_tasks)) return;
    for (uint32_t i = 0; i < lineage_slots_used(); i++) {
        struct slot *slot = &b->slots[i];
        struct account_figures f;
        task_handle task = lineage_task_in(i);
        if (accounts_task_now(task, &f) < 0) continue;
        store_release(&slot->fields.alloc_serial, 0);
        if (!intact) continue;
        store_release(&slot->fields.alloc_live_bytes, f.live_bytes);
        store_release(&slot->fields.alloc_peak_bytes, f.peak_bytes);
        store_release(&slot->fields.alloc_count, f.count);
        store_release(&slot->fields.alloc_serial, handle_serial(task));
    }
}

uint64_t sampler_headroom_period(int running, uint64_t cost_ns)
{
    uint64_t age = running ? HEADROOM_EVERY_NS : HEADROOM_IDLE_NS;
    return cost_ns * HEADROOM_SHARE > age ? cost_ns * HEADROOM_SHARE : age;
}

/* memory.stat of a group with thousands of CPUs or children takes milliseconds: it is then read
 * less often. */
static void publish_headroom(struct sampler *s, uint64_t now)
{
    if (s->headroom_read_ns
        && now - s->headroom_read_ns
               < sampler_headroom_period(load_relaxed(s->running) != 0, s->headroom_cost_ns))
        return;
    uint64_t begin = clock_ns(CLOCK_THREAD_CPUTIME_ID);
    store_relaxed(&s->board->live->headroom_bytes,
                  standard_streams_are_open() ? headroom_bytes(s->rss.proc_root, s->cgroup_root)
                                              : ABSENT);
    s->headroom_cost_ns = clock_ns(CLOCK_THREAD_CPUTIME_ID) - begin;
    s->headroom_read_ns = now;
}

/* What the sampler remembers from sample to sample. */
struct progress {
    uint64_t window, window_peak;        /* the boundary that began the window, the peak since */
    uint64_t vmhwm_read_ns, own_read_ns; /* when VmHWM and our own memory were read last */
    uint64_t last_rss;                   /* the resident set that changes are counted from */
    int is_highest;                      /* the resident set was never larger than now */
};

/* Takes one sample. Returns whether the resident set has changed. The mark belongs to the window
 * only if no boundary came between the reading of the mark and its publication. */
static int take_sample(struct sampler *s, struct progress *p, uint64_t now, uint64_t period_ns,
                       int precise)
{
    struct board_live *live = s->board->live;
    word before = load_acquire(&live->boundary);
    if (now - p->vmhwm_read_ns >= PRECISE_EVERY_NS) precise = 1;
    uint64_t mark = rss_high_water_mark(&s->rss, precise), rss = rss_now(&s->rss);
    if (precise) p->vmhwm_read_ns = now;
    word after = load_acquire(&live->boundary);
    if (!load_relaxed(s->running))
        unaccounted_note_idle(&s->rss);
    else if (before == after && before % 2 == 0)
        unaccounted_note_sample(before, &s->rss, now);

    if (mark != ABSENT) max_relaxed(&live->rss_max_bytes, mark);
    if (rss != ABSENT) max_relaxed(&live->rss_max_bytes, rss), store_relaxed(&live->rss_bytes, rss);
    uint64_t peak = load_relaxed(&live->rss_source) == RSS_KERNEL && mark != ABSENT
                            && (rss == ABSENT || mark > rss)
                        ? mark
                        : rss;
    if (before == after && before % 2 == 0) {
        if (p->window != before) {
            store_release(&live->window_boundary, ABSENT);
            p->window = before;
            p->window_peak = peak;
        } else if (peak != ABSENT && (p->window_peak == ABSENT || peak > p->window_peak)) {
            p->window_peak = peak;
        }
        store_release(&live->window_peak_bytes, p->window_peak);
        store_release(&live->window_boundary, before);
    }
    if (accounts_active()) publish_allocations(s->board);
    gpu_publish(s->board);
    const struct sample sample = {
        .time_ns = now, .rss_bytes = rss, .window_peak_bytes = peak, .period_ns = period_ns
    };
    board_publish_sample(s->board, &sample);
    store_relaxed(&live->sampler_cpu_ns, clock_ns(CLOCK_THREAD_CPUTIME_ID));
    if (!p->own_read_ns || now - p->own_read_ns >= OWN_EVERY_NS) {
        p->own_read_ns = now;
        uint64_t board = load_relaxed(&live->room_for_tasks) ? BOARD_BYTES : HEAD_BYTES;
        store_relaxed(&live->own_bytes, board + (accounts_active() ? owners_resident_bytes() : 0));
    }
    publish_headroom(s, now);
    store_relaxed(&live->sampler_period_ns, period_ns);
    if (s->rss.reopened) add_relaxed(&live->files_reopened, s->rss.reopened), s->rss.reopened = 0;
    store_release(&live->heartbeat_ns, now);

    p->is_highest = rss != ABSENT && load_relaxed(&live->rss_max_bytes) - rss < RSS_CHANGED_BYTES;
    uint64_t low = rss < p->last_rss ? rss : p->last_rss,
             high = rss < p->last_rss ? p->last_rss : rss;
    int rss_changed = rss != ABSENT && high - low >= RSS_CHANGED_BYTES;
    /* kept while changes are small, so that a slow drift adds up */
    if (rss_changed || p->last_rss == ABSENT) p->last_rss = rss;
    return rss_changed;
}

/* Gives the thread a descriptor table of its own: files that the sampler opens have no number in
 * the job, and the job cannot close them. The same call closes the copies of the job's descriptors,
 * as in any forked child. Before Linux 5.9 the call fails; files are then opened on high numbers of
 * the job. */
static void unshare_descriptors(const char *any_file)
{
#if defined __SANITIZE_THREAD__ || defined __SANITIZE_ADDRESS__
    return; /* sanitizers know one table per process, and report on descriptor 2 */
#endif
    if (syscall(SYS_close_range, 0, ~0U, CLOSE_RANGE_UNSHARE) < 0) return;
    /* Numbers 0, 1 and 2 are filled: standard_streams_are_open would take closed ones for those of
     * a program that is about to open its own files there. */
    int place = open(any_file, O_RDONLY | O_CLOEXEC);
    while (place >= 0 && place < 2) place = fcntl(place, F_DUPFD_CLOEXEC, 0);
}

int sampler_is_over_share(struct sampler_allowance *a, uint64_t now_ns, uint64_t cpu_ns)
{
    const int64_t left =
        a->left_ns + (int64_t)((now_ns - a->now_ns) / CPU_SHARE) - (int64_t)(cpu_ns - a->cpu_ns);
    a->left_ns = left < (int64_t)CPU_AHEAD_NS ? left : (int64_t)CPU_AHEAD_NS;
    a->now_ns = now_ns;
    a->cpu_ns = cpu_ns;
    return a->left_ns < 0;
}

static void *run_sampler(void *argument)
{
    struct sampler *s = argument;
    const struct board_live *live = s->board->live;
    /* After a fork the window goes on, and an earlier sampler has published its peak so far. */
    struct progress p = { .window = load_acquire(&live->window_boundary),
                          .window_peak = load_acquire(&live->window_peak_bytes),
                          .last_rss = ABSENT };
    uint64_t period = s->period_ns, deadline = now_ns();
    struct sampler_allowance allowance = { .now_ns = deadline, .left_ns = CPU_AHEAD_NS };
    word begun = 0, boundary = 0;
    unsigned flat = 0, busy = 0;
    /* Not through prctl(): memray wraps it and records the name, which damages its capture file
     * while another thread forks. */
    syscall(SYS_prctl, PR_SET_NAME, "dwsr-sampler", 0, 0, 0);
    store_relaxed(&s->thread_id, (word)syscall(SYS_gettid));
    unshare_descriptors(s->rss.statm.path);
    while (!load_acquire(&s->stop)) {
        uint64_t now = now_ns();
        if (now > deadline + period) add_relaxed(&s->board->live->samples_late, 1);
        int rss_changed = take_sample(s, &p, now, period, 0);
        word begun_now = load_relaxed(&s->board->live->tasks_begun);
        /* the moment between two short tasks is not idle */
        int running = load_relaxed(s->running) != 0 || begun_now != begun;
        begun = begun_now;
        flat = rss_changed ? 0 : flat + 1;
        word boundary_now = load_relaxed(&live->boundary);
        busy = boundary_now != boundary ? busy + 1 : 0;
        boundary = boundary_now;
        /* Where the kernel keeps no peaks, the rate decides how true they are. A process that is
         * larger than ever may be killed next, and the last sample is what remains of its tasks. */
        const int over_share =
            sampler_is_over_share(&allowance, now, load_relaxed(&live->sampler_cpu_ns))
            && load_relaxed(&live->rss_source) == RSS_KERNEL && !p.is_highest;
        const struct sampler_pace pace = { .base_ns = s->period_ns,
                                           .period_ns = period,
                                           .running = running,
                                           .rss_changed = rss_changed,
                                           .flat_samples = flat,
                                           .busy_samples = busy,
                                           .over_share = over_share };
        period = sampler_next_period(&pace);
        if (flat >= FLAT_SAMPLES) flat = 0;
        deadline += period;
        if (deadline < now) deadline = now + period; /* after a stall: no burst of late samples */

        uint32_t wakeups = futex_load_acquire(&s->wakeups);
        store_seq_cst(&s->idle, !running);
        /* A task that began before the flag was set is seen here. A later one wakes us. */
        if (!running && load_seq_cst(s->running)) deadline = now + s->period_ns;
        if (load_acquire(&s->stop)) break;
        sleep_until(s, deadline, wakeups);
        if (futex_load_acquire(&s->wakeups) != wakeups) {
            deadline = now_ns();
            period = s->period_ns;
            flat = 0;
        }
    }
    take_sample(s, &p, now_ns(), period, 1);
    rss_close(&s->rss); /* in this thread: the numbers are of its descriptor table */
    return NULL;
}

int sampler_start(struct sampler *s, const struct sampler_settings *settings)
{
    /* kept: with many forks in a row, the headroom is not read at each start */
    const uint64_t headroom_read_ns = s->headroom_read_ns, headroom_cost_ns = s->headroom_cost_ns;
    pthread_attr_t attr;
    sigset_t all, old;
    memset(s, 0, sizeof *s);
    s->board = settings->board;
    s->running = settings->running;
    s->cgroup_root = settings->cgroup_root;
    s->period_ns = settings->period_ns;
    s->headroom_read_ns = headroom_read_ns;
    s->headroom_cost_ns = headroom_cost_ns;
    rss_open_reader(&s->rss, settings->rss);
    pthread_attr_init(&attr);
    pthread_attr_setstacksize(&attr, STACK_BYTES);
    sigfillset(&all); /* the job's signals belong to the job's threads */
    pthread_sigmask(SIG_SETMASK, &all, &old);
    int e = pthread_create(&s->thread, &attr, run_sampler, s);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    pthread_attr_destroy(&attr);
    s->started = e == 0;
    return -e;
}

/* pthread_join returns before the kernel has removed the thread. Python 3.12+ counts the kernel's
 * threads at a fork and warns if there are several. */
static void wait_until_gone(word thread_id)
{
    const uint64_t deadline = now_ns() + GONE_WITHIN_NS;
    while (syscall(SYS_tgkill, getpid(), (pid_t)thread_id, 0) == 0 && now_ns() < deadline)
        sched_yield();
}

void sampler_stop(struct sampler *s)
{
    if (!s->started) return;
    store_release(&s->stop, 1);
    wake(s);
    pthread_join(s->thread, NULL);
    wait_until_gone(load_relaxed(&s->thread_id));
    s->started = 0;
}

void sampler_wake_if_idle(struct sampler *s)
{
    if (!load_seq_cst(&s->idle)) return;
    store_relaxed(&s->idle, 0);
    wake(s);
}
