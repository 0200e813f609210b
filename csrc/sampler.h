/* The sampler: one C thread with absolute deadlines. It never takes the GIL or the tasks' mutex,
 * and it never allocates.
 *
 * The sampler publishes samples and the resident peak of the current window, from one task boundary
 * to the next. It reads the kernel's high-water mark and never resets it. The period is the base
 * period while tasks run and the resident set changes. It grows to 8 base periods while tasks are
 * shorter than that; to 16 while the resident set is constant, or the sampler has taken more than
 * half a percent of a core and the process was larger before; and further while no task runs.
 *
 * Started and stopped by probe.c, one call at a time.
 */
#ifndef DWSR_SAMPLER_H
#define DWSR_SAMPLER_H

#include <pthread.h>
#include "board.h"
#include "rss.h"

/* All of it must outlive the sampler. */
struct sampler_settings {
    struct board *board;
    const struct rss *rss; /* the tasks' handle: the sampler opens one of its own from it */
    const word *running;   /* the number of running tasks */
    const char *cgroup_root;
    uint64_t period_ns; /* the base period */
};

struct sampler {
    pthread_t thread;
    word thread_id; /* the kernel's */
    int started;
    struct board *board;
    struct rss rss;
    const word *running;
    uint64_t period_ns;
    word stop;
    uint32_t wakeups; /* futex: a change ends the sleep early */
    word idle;        /* sleeping long because no task runs: the next begin wakes the sampler */
    const char *cgroup_root;
    /* When the headroom was last read, and the CPU time that the reading took. Both are kept over
     * stop and start. */
    uint64_t headroom_read_ns, headroom_cost_ns;
};

/* 0 or -errno. */
int sampler_start(struct sampler *s, const struct sampler_settings *settings);
/* Takes a last sample and waits for the thread to end. No effect if the sampler does not run. */
void sampler_stop(struct sampler *s);
/* After a task's begin, from any thread: wakes an idle sampler. Otherwise one load. */
void sampler_wake_if_idle(struct sampler *s);

/* -- exposed for tests -- */

/* The time between two readings of the headroom, in ns. cost_ns: CPU time of the last reading. */
uint64_t sampler_headroom_period(int running, uint64_t cost_ns);

struct sampler_pace {
    uint64_t base_ns, period_ns; /* the base period, the present one */
    int running;                 /* tasks run */
    int rss_changed;             /* the resident set has changed since the last sample */
    unsigned flat_samples;       /* in a row without such a change */
    unsigned busy_samples;       /* in a row with a task boundary between each two */
    int over_share;              /* the sampler has taken more than its share of a core */
};
/* The next period. */
uint64_t sampler_next_period(const struct sampler_pace *pace);

/* What the sampler may still take of a core, as CPU time; and the clocks at the last look. */
struct sampler_allowance {
    uint64_t now_ns, cpu_ns;
    int64_t left_ns;
};
/* Whether it has taken more than that. */
int sampler_is_over_share(struct sampler_allowance *allowance, uint64_t now_ns, uint64_t cpu_ns);

#endif
