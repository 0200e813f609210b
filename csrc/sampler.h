/* The sampler: one C thread with absolute deadlines that never takes the GIL, the tasks' mutex or
 * memory.
 *
 * It publishes samples and the peak of the current window. It reads the kernel's mark and never
 * resets it. The base period holds while tasks run and memory moves; it backs off to 8 periods
 * while tasks are shorter than that, to 16 while rss is flat, and further while no task runs.
 */
#ifndef DWSR_SAMPLER_H
#define DWSR_SAMPLER_H

#include <pthread.h>
#include "board.h"
#include "rss.h"

struct sampler {
    pthread_t thread;
    word thread_id; /* the kernel's */
    int started;
    struct board *board;
    struct rss rss;
    const word *running; /* of the tasks */
    uint64_t period_ns;
    word stop;
    uint32_t wakeups; /* futex: rung to end a sleep early */
    word idle;        /* sleeping long because no task runs: the next begin rings */
    const char *cgroup_root;
    /* when the headroom was read, and what that took. Kept over stop and start */
    uint64_t headroom_ns, headroom_cost_ns;
};

/* 0 or -errno. `first` is the tasks' rss handle, whose findings are shared. The root of cgroups
 * must outlive the sampler. */
int sampler_start(struct sampler *s, struct board *b, const struct rss *first, const word *running,
                  const char *cgroup_root, uint64_t period_ns);
/* Takes a last sample and joins. */
void sampler_stop(struct sampler *s);
/* After a begin: wakes an idle sampler; otherwise one load. */
void sampler_wake_if_idle(struct sampler *s);

/* How long the headroom stands before it is read again: exposed for tests. */
uint64_t sampler_headroom_age(int running, uint64_t cost_ns);

/* The next period, from the present one: exposed for tests. */
uint64_t sampler_next_period(uint64_t base_ns, uint64_t period_ns, int running, int moved,
                             unsigned flat_samples, unsigned busy_samples);

#endif
