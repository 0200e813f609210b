/* The memory pools of Apache Arrow's C++ library. Its jemalloc and its mimalloc are inside the
 * library, where no hook on malloc sees them. Called by follow/arrow.py through the binding.
 *
 * A pool is a C++ object whose first word leads to a table of functions. For each pool a copy of
 * this table is made, in which Allocate, Reallocate and Free are replaced by functions that call
 * the original ones and add to the accounts (alloc.h). Wrapping a pool stores the copy's address in
 * the object, and unwrapping stores the original address. The copies and the functions stay for
 * ever, because the program may be inside one of them. The functions take no lock and allocate
 * nothing. All others here are called by one thread at a time.
 *
 * For x86-64, where a function that returns an arrow::Status receives the address for it as first
 * argument and the object as second. Elsewhere nothing is found.
 */
#ifndef DWSR_ARROW_POOL_H
#define DWSR_ARROW_POOL_H

#include <stdint.h>

/* malloc's hooks count the blocks of the system pool. It is wrapped for a trial only. */
enum arrow_pool { ARROW_SYSTEM, ARROW_JEMALLOC, ARROW_MIMALLOC, ARROW_POOL_COUNT };

/* What the functions of the system pool were called with last. */
struct arrow_trial {
    uint64_t allocated_bytes, old_bytes, new_bytes, freed_bytes;
};

/* Finds the pools of the libarrow that an extension of pyarrow is linked to. `path`: the
 * extension's file. 0, or -errno: nothing can be wrapped. -ENOTSUP: not on this machine. */
int arrow_pool_find(const char *path);
/* After arrow_pool_find: the system pool calls the same functions as a wrapped pool would, and what
 * they are called with is noted. The program calls the pool, then arrow_pool_trial_end. */
void arrow_pool_trial_begin(void);
void arrow_pool_trial_end(struct arrow_trial *seen);
/* After arrow_pool_find: blocks of all pools but the system pool are accounted from here on, and
 * mappings of libarrow no longer are. 0 or -errno. */
int arrow_pool_wrap(void);
void arrow_pool_unwrap(void);

#endif
