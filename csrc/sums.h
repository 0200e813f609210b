/* A sum of bytes with its owner's generation in the same word, so that nothing meant for one task
 * can reach the slot's next one.
 *
 * A sum may be below zero for a while, so it is kept above SUM_ZERO; a peak is not. The upper 16
 * bits are the generation.
 */
#ifndef DWSR_SUMS_H
#define DWSR_SUMS_H

#include "atomics.h"

#define SUM_BITS 48
#define SUM_ZERO (UINT64_C(1) << (SUM_BITS - 1))
#define SUM_MASK ((UINT64_C(1) << SUM_BITS) - 1)

static inline word sum_tag(uint64_t serial) { return (serial & 0xffff) << SUM_BITS; }
static inline word sum_zero(uint64_t serial) { return sum_tag(serial) | SUM_ZERO; }
static inline int sum_is_of(word sum, uint64_t serial)
{
    return !((sum ^ sum_tag(serial)) >> SUM_BITS);
}
static inline int64_t sum_value(word sum) { return (int64_t)(sum & SUM_MASK) - (int64_t)SUM_ZERO; }

/* 0 if it is another generation's by now. */
static inline int sum_add(word *sum, uint64_t serial, int64_t bytes)
{
    word old = load_relaxed(sum);
    do
        if (!sum_is_of(old, serial)) return 0;
    while (!compare_exchange_weak_relaxed(sum, &old, old + (word)bytes));
    return 1;
}

/* 1 if the peak was below. */
static inline int peak_raise(word *peak, uint64_t serial, uint64_t bytes)
{
    word old = load_relaxed(peak), raised = bytes | sum_tag(serial);
    while (__builtin_expect(old < raised, 0) && sum_is_of(old, serial))
        if (compare_exchange_weak_relaxed(peak, &old, raised)) return 1;
    return 0;
}

#endif
