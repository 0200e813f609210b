/* A sum of bytes together with the generation of its owner in one word, so that bytes of one task
 * are never added to the next task of the same slot. Used by accounts.c and gpu.c, from any thread.
 *
 * The upper 16 bits are the generation's low bits. The lower 48 bits are the sum plus SUM_ZERO,
 * because a sum may be below zero for a short time. Peaks are stored without SUM_ZERO.
 */
#ifndef DWSR_SUMS_H
#define DWSR_SUMS_H

#include "atomics.h"

#define SUM_BITS 48
#define SUM_ZERO (UINT64_C(1) << (SUM_BITS - 1))
#define SUM_MASK ((UINT64_C(1) << SUM_BITS) - 1)

static inline word sum_tag(uint64_t generation) { return (generation & 0xffff) << SUM_BITS; }
static inline word sum_zero(uint64_t generation) { return sum_tag(generation) | SUM_ZERO; }
static inline int sum_is_of(word sum, uint64_t generation)
{
    return !((sum ^ sum_tag(generation)) >> SUM_BITS);
}
static inline int64_t sum_value(word sum) { return (int64_t)(sum & SUM_MASK) - (int64_t)SUM_ZERO; }

/* 1, or 0 if the sum belongs to another generation now. */
static inline int sum_add(word *sum, uint64_t generation, int64_t bytes)
{
    word old = load_relaxed(sum);
    do
        if (!sum_is_of(old, generation)) return 0;
    while (!compare_exchange_weak_relaxed(sum, &old, old + (word)bytes));
    return 1;
}

/* 1 if the peak was lower and belongs to this generation: then it is raised. */
static inline int peak_raise(word *peak, uint64_t generation, uint64_t bytes)
{
    word old = load_relaxed(peak), raised = bytes | sum_tag(generation);
    while (__builtin_expect(old < raised, 0) && sum_is_of(old, generation))
        if (compare_exchange_weak_relaxed(peak, &old, raised)) return 1;
    return 0;
}

#endif
