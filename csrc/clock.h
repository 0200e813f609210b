/* Time in nanoseconds: monotonic for intervals, real time once per board for dates, thread CPU time
 * for the probe's own cost. Any thread. */
#ifndef DWSR_CLOCK_H
#define DWSR_CLOCK_H

#include <stdint.h>
#include <time.h>

#define NS_PER_S UINT64_C(1000000000)

static inline uint64_t clock_ns(clockid_t id)
{
    struct timespec t;
    clock_gettime(id, &t);
    return (uint64_t)t.tv_sec * NS_PER_S + (uint64_t)t.tv_nsec;
}

static inline uint64_t now_ns(void) { return clock_ns(CLOCK_MONOTONIC); }

#endif
