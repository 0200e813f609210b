#include "check.h"
#include "alloc.h"
#include "patch.h"
#include "unaccounted.h"
#include <sys/mman.h>
#include <sys/syscall.h>

#define MIB    (UINT64_C(1) << 20)
#define MAPPED (256 * MIB)

static struct rss rss;

static enum attribution_reason reason_of(const struct unaccounted *u, uint64_t peak_bytes,
                                         struct text *detail)
{
    const struct unaccounted_task ended = { .peak_bytes = peak_bytes, .alone = 1 };
    return unaccounted_reason(u, &ended, &rss, NULL, detail);
}

static void threads_of_no_task(void)
{
    struct unaccounted u;
    struct text detail;
    struct unaccounted_window w = { .unowned = { { 5, 5 }, { 7, 7 } }, .data_bytes = ABSENT };
    unaccounted_begin(&u, &w);
    CHECK(reason_of(&u, 0, &detail) == REASON_NONE);
    w.unowned.native.peak = 6 + MIB;
    unaccounted_raise(&u, &w);
    CHECK(reason_of(&u, 0, &detail) == REASON_NATIVE_THREADS && !detail.len);
    CHECK(reason_of(&u, 20 * MIB, &detail) == REASON_NATIVE_THREADS);
    CHECK(reason_of(&u, 21 * MIB, &detail) == REASON_NONE); /* below 5 % */
    w.unowned.native.peak = 5;
    w.unowned.python.peak = 7 + 3 * MIB;
    unaccounted_raise(&u, &w); /* a peak stays */
    CHECK(reason_of(&u, 0, &detail) == REASON_UNOWNED_THREAD);
    unaccounted_begin(&u, &w); /* what was there before is no reason */
    CHECK(reason_of(&u, 0, &detail) == REASON_NONE);
}

static int heap_is_known(void) { return patch_mallinfo2() != 0; }

/* Data of the process when the task begins and ends. */
static enum attribution_reason grown(uint64_t before, uint64_t now, uint64_t peak_bytes)
{
    struct unaccounted u;
    struct text detail;
    struct unaccounted_window w = { .data_bytes = before };
    unaccounted_begin(&u, &w);
    w.data_bytes = now;
    unaccounted_raise(&u, &w);
    return reason_of(&u, peak_bytes, &detail);
}

static uint64_t data_now(void)
{
    rss_now(&rss);
    return rss.data_bytes;
}

/* By a system call, which no hook sees. */
static void *map(void)
{
    return (void *)syscall(SYS_mmap, NULL, MAPPED, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
}

static void growth_beyond_what_is_known(void)
{
    if (!heap_is_known()) SKIP("malloc is not that of glibc 2.33 or later");
    struct unaccounted u;
    struct text detail;
    const uint64_t before = data_now();
    void *mapped = map();
    const uint64_t now = data_now();
    CHECK(now - before >= MAPPED);
    CHECK(grown(before, now, 0) == REASON_FOREIGN_ALLOCATOR);
    CHECK(grown(before, now, MAPPED) == REASON_NONE);
    CHECK(grown(now, now, 0) == REASON_NONE);
    CHECK(grown(now, before, 0) == REASON_NONE); /* it shrinks */
    CHECK(grown(ABSENT, now, 0) == REASON_NONE); /* not known */
    CHECK(grown(before, ABSENT, 0) == REASON_NONE);
    struct unaccounted_window w = { .data_bytes = before };
    unaccounted_begin(&u, &w);
    unaccounted_announce(MAPPED), unaccounted_explain(MAPPED); /* a stack, a file */
    w.data_bytes = now;
    unaccounted_raise(&u, &w);
    CHECK(reason_of(&u, 0, &detail) == REASON_NONE);
    unaccounted_announce(MAPPED); /* by another thread, which a forked child does not have */
    CHECK(grown(before, now, 0) == REASON_NONE);
    unaccounted_reset_in_child();
    CHECK(grown(before, now, 0) == REASON_FOREIGN_ALLOCATOR);
    munmap(mapped, MAPPED);
    CHECK(grown(before, now, 0) == REASON_NONE); /* gone since it was read */
}

/* The sampler sees growth that is gone at the task's end. */
static void growth_between_two_boundaries(void)
{
    if (!heap_is_known()) SKIP("malloc is not that of glibc 2.33 or later");
    struct unaccounted u;
    struct text detail;
    const uint64_t before = data_now();
    unaccounted_note_sample(2, &rss, 1);
    struct unaccounted_window w = unaccounted_end_window(before, 2);
    CHECK(w.in_use_peak == 0);
    unaccounted_begin(&u, &w);
    void *mapped = map();
    data_now();
    unaccounted_note_sample(4, &rss, 2);
    munmap(mapped, MAPPED);
    data_now();
    unaccounted_note_sample(4, &rss, 3);
    w = unaccounted_end_window(data_now(), 4);
    CHECK(w.in_use_peak > before + MAPPED / 2);
    unaccounted_raise(&u, &w);
    CHECK(reason_of(&u, 0, &detail) == REASON_FOREIGN_ALLOCATOR);
    CHECK(reason_of(&u, MAPPED, &detail) == REASON_NONE);
    CHECK(unaccounted_end_window(data_now(), 6).in_use_peak == 0); /* the next window */
}

int main(void)
{
    uint64_t unused;
    rss_open(&rss, "/proc", 1, &unused);
    lineage_open(NULL);
    alloc_start(0); /* so that it is known which objects are loaded */
    RUN(threads_of_no_task);
    RUN(growth_beyond_what_is_known);
    RUN(growth_between_two_boundaries);
    return failures;
}
