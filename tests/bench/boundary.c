/* A begin/end pair from C, without Python around it. Linked with csrc. */
#define _GNU_SOURCE
#include "accounts.h"
#include "alloc.h"
#include "clock.h"
#include "probe.h"

static uint64_t cpu_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* Nanoseconds of CPU, or below zero if the probe did not start. The sampler sleeps. */
double pair_ns(const char *directory, int alloc, unsigned count)
{
    const struct probe_settings s = {
        .directory = directory,
        .run = "",
        .host = "",
        .task_name = "",
        .worker = "",
        .python = "",
        .proc_root = "/proc",
        .cgroup_root = "/sys/fs/cgroup",
        .period_ns = 1000000000,
        .alloc = alloc,
        .alloc_from = ALLOC_LARGE_DEFAULT,
    };
    const char *step;
    if (probe_start(&s, &step) < 0) return -1;
    const struct task_begin begin = { .name = { "pair", 4 },
                                      .input_bytes = ABSENT,
                                      .attribution = ATTRIBUTION_EXACT };
    const struct task_end end = { .state = TASK_OK,
                                  .output_bytes = ABSENT,
                                  .gc_freed_bytes = ABSENT };
    uint64_t from = cpu_ns();
    for (unsigned i = 0; i < count; i++) probe_task_end(probe_task_begin(&begin, NULL), &end, NULL);
    double ns = (double)(cpu_ns() - from) / count;
    probe_stop(BOARD_CLOSED, 0, 1);
    return ns;
}

/* What the accounting alone adds to a pair. */
double accounting_ns(unsigned count)
{
    struct account_figures f;
    lineage_open(NULL);
    if (alloc_start(ALLOC_LARGE_DEFAULT) < 0 || alloc_start_accounting() < 0) return -1;
    uint64_t from = cpu_ns();
    for (unsigned i = 0; i < count; i++) {
        task_handle task = lineage_handle(0, i + 1);
        accounts_task_begin(task, NOBODY);
        lineage_set_running(1, task);
        accounts_task_end(task, 0, &f);
        lineage_set_running(0, NOBODY);
    }
    double ns = (double)(cpu_ns() - from) / count;
    alloc_stop(0);
    return ns;
}
