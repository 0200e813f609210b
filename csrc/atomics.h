/* Atomic operations with the memory order in the name: the only file with the compiler's atomics
 * (tests/unit/test_c_rules.py checks). Called from every file and from any thread.
 *
 * Everything that two threads, or a thread and a reader in another process, can access at once is
 * a `word` of 64 bits. Exceptions are pointers, slots of the GOT and one futex; they have functions
 * of their own below.
 *
 * No fence orders one thread against another, because ThreadSanitizer does not see fences. A
 * seqlock is written with release stores and read with acquire loads of every word of its payload
 * instead, which costs nothing on x86 and little on Arm.
 */
#ifndef DWSR_ATOMICS_H
#define DWSR_ATOMICS_H

#include <stddef.h>
#include <stdint.h>

typedef uint64_t word;

static inline word load_relaxed(const word *p) { return __atomic_load_n(p, __ATOMIC_RELAXED); }
static inline word load_acquire(const word *p) { return __atomic_load_n(p, __ATOMIC_ACQUIRE); }
static inline word load_seq_cst(const word *p) { return __atomic_load_n(p, __ATOMIC_SEQ_CST); }
static inline void store_relaxed(word *p, word v) { __atomic_store_n(p, v, __ATOMIC_RELAXED); }
static inline void store_release(word *p, word v) { __atomic_store_n(p, v, __ATOMIC_RELEASE); }
static inline void store_seq_cst(word *p, word v) { __atomic_store_n(p, v, __ATOMIC_SEQ_CST); }

/* These return the value before the change. To subtract, add the negative value. */
static inline word add_relaxed(word *p, word v)
{
    return __atomic_fetch_add(p, v, __ATOMIC_RELAXED);
}

static inline word add_seq_cst(word *p, word v)
{
    return __atomic_fetch_add(p, v, __ATOMIC_SEQ_CST);
}

static inline word exchange_relaxed(word *p, word v)
{
    return __atomic_exchange_n(p, v, __ATOMIC_RELAXED);
}

/* Store v if *p equals *expected. Return 1, or 0 with the value found in *expected. The weak one
 * may fail although the values are equal, and is for loops. */
static inline int compare_exchange_relaxed(word *p, word *expected, word v)
{
    return __atomic_compare_exchange_n(p, expected, v, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
}

static inline int compare_exchange_weak_relaxed(word *p, word *expected, word v)
{
    return __atomic_compare_exchange_n(p, expected, v, 1, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
}

/* Acquire if it stores, relaxed if not. */
static inline int compare_exchange_acquire(word *p, word *expected, word v)
{
    return __atomic_compare_exchange_n(p, expected, v, 0, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED);
}

static inline void max_relaxed(word *p, word v)
{
    word old = load_relaxed(p);
    while (old < v && !compare_exchange_weak_relaxed(p, &old, v)) {}
}

static inline void copy_release(word *to, const word *from, size_t words)
{
    for (size_t i = 0; i < words; i++) store_release(to + i, from[i]);
}

/* For pointers of any type and for slots of the GOT. These are macros because C has no type for "a
 * pointer to any pointer", and because a function with no_sanitize_address inlines no function
 * without it. */
#define pointer_load_acquire(p)     __atomic_load_n(p, __ATOMIC_ACQUIRE)
#define pointer_store_release(p, v) __atomic_store_n(p, v, __ATOMIC_RELEASE)

/* For the kernel's futex, which is a word of 32 bits. */
static inline uint32_t futex_load_acquire(const uint32_t *p)
{
    return __atomic_load_n(p, __ATOMIC_ACQUIRE);
}

static inline void futex_add_release(uint32_t *p, uint32_t v)
{
    __atomic_fetch_add(p, v, __ATOMIC_RELEASE);
}

/* Orders memory accesses of a thread against its own signal handlers: for the compiler only. */
static inline void signal_fence_seq_cst(void) { __atomic_signal_fence(__ATOMIC_SEQ_CST); }

/* Orders two system calls that copy from a file into private memory (pread), so that the first
 * copy is the older one. ThreadSanitizer need not see this fence: the copies are private. */
static inline void file_read_fence_acquire(void)
{
#ifdef __aarch64__
    __asm__ volatile("dmb ishld" ::: "memory");
#else
    __asm__ volatile("" ::: "memory");
#endif
}

#endif
