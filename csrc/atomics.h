/* Atomic operations on 64-bit words, with the memory order in the name.
 *
 * Everything that two threads, or a thread and a reader in another process, can touch at once is a
 * `word` and goes through here. There are no fences: ThreadSanitizer does not see them. A seqlock
 * is written with release stores and read with acquire loads of every payload word instead, which
 * costs nothing on x86 and little on Arm.
 */
#ifndef DWSR_ATOMICS_H
#define DWSR_ATOMICS_H

#include <stddef.h>
#include <stdint.h>

typedef uint64_t word;

static inline word load_relaxed(const word *p) { return __atomic_load_n(p, __ATOMIC_RELAXED); }
static inline word load_acquire(const word *p) { return __atomic_load_n(p, __ATOMIC_ACQUIRE); }
static inline void store_relaxed(word *p, word v) { __atomic_store_n(p, v, __ATOMIC_RELAXED); }
static inline void store_release(word *p, word v) { __atomic_store_n(p, v, __ATOMIC_RELEASE); }
static inline word load_seq_cst(const word *p) { return __atomic_load_n(p, __ATOMIC_SEQ_CST); }
static inline void store_seq_cst(word *p, word v) { __atomic_store_n(p, v, __ATOMIC_SEQ_CST); }
static inline word add_relaxed(word *p, word v)
{
    return __atomic_fetch_add(p, v, __ATOMIC_RELAXED);
}

static inline word exchange_relaxed(word *p, word v)
{
    return __atomic_exchange_n(p, v, __ATOMIC_RELAXED);
}

static inline void max_relaxed(word *p, word v)
{
    word old = load_relaxed(p);
    while (old < v
           && !__atomic_compare_exchange_n(p, &old, v, 1, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {}
}

static inline void copy_release(word *to, const word *from, size_t words)
{
    for (size_t i = 0; i < words; i++) store_release(to + i, from[i]);
}

#endif
