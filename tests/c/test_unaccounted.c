#include "check.h"
#include "unaccounted.h"

#define MIB (UINT64_C(1) << 20)

static struct rss rss;

static enum attribution_reason reason_of(const struct unaccounted *u, uint64_t peak_bytes,
                                         struct text *detail)
{
    const struct unaccounted_task ended = { .peak_bytes = peak_bytes };
    return unaccounted_reason(u, &ended, &rss, detail);
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

static void growth_beyond_what_is_known(void)
{
    const uint64_t huge = UINT64_C(1) << 40; /* more than the heap of this test can hold free */
    uint64_t unused;
    rss_open(&rss, "/proc", 1, &unused);
    CHECK(grown(MIB, MIB, 0) == REASON_NONE);
    CHECK(grown(MIB, MIB + huge, huge) == REASON_NONE);
    if (grown(MIB, MIB + huge, 0) == REASON_NONE) SKIP("malloc is not that of glibc 2.33 or later");
    CHECK(grown(MIB, MIB + huge, 0) == REASON_FOREIGN_ALLOCATOR);
    CHECK(grown(MIB + huge, MIB, 0) == REASON_NONE);    /* it shrinks */
    CHECK(grown(ABSENT, MIB + huge, 0) == REASON_NONE); /* not known */
    CHECK(grown(MIB, ABSENT, 0) == REASON_NONE);
    struct unaccounted u;
    struct text detail;
    struct unaccounted_window w = { .data_bytes = MIB };
    unaccounted_begin(&u, &w);
    unaccounted_explain(huge); /* a stack, a library */
    w.data_bytes = MIB + huge;
    unaccounted_raise(&u, &w);
    CHECK(reason_of(&u, 0, &detail) == REASON_NONE);
    rss_close(&rss);
}

/* The sampler sees growth that is gone at the task's end. */
static void growth_between_two_boundaries(void)
{
    const uint64_t huge = UINT64_C(1) << 40;
    uint64_t unused;
    rss_open(&rss, "/proc", 1, &unused);
    struct unaccounted u;
    struct text detail;
    unaccounted_note_sample(2, MIB, 1);
    struct unaccounted_window w = unaccounted_end_window(MIB, 2);
    CHECK(w.in_use_peak == 0);
    unaccounted_begin(&u, &w);
    unaccounted_note_sample(4, MIB + huge, 2);
    unaccounted_note_sample(4, MIB, 3);
    w = unaccounted_end_window(MIB, 4);
    if (!w.in_use_peak) SKIP("malloc is not that of glibc 2.33 or later");
    CHECK(w.in_use_peak > huge / 2);
    unaccounted_raise(&u, &w);
    CHECK(reason_of(&u, 0, &detail) == REASON_FOREIGN_ALLOCATOR);
    CHECK(reason_of(&u, huge, &detail) == REASON_NONE);
    CHECK(unaccounted_end_window(MIB, 6).in_use_peak == 0); /* the next window */
    rss_close(&rss);
}

int main(void)
{
    lineage_open(NULL);
    RUN(threads_of_no_task);
    RUN(growth_beyond_what_is_known);
    RUN(growth_between_two_boundaries);
    return failures;
}
