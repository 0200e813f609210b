/* The allocation calls themselves: wrappers around malloc, free, mmap and their like feed the
 * accounts (accounts.h).
 *
 * Blocks from ALLOC_LARGE on and anonymous mappings enter an owner table, so that a free from any
 * thread, also after the task's end, is credited to the task that allocated them and to nobody
 * else. Smaller blocks are netted per thread; so are those below 64 KiB that find the table full.
 * Paths of malloc and free take no lock and allocate nothing; mmap and munmap take one short mutex.
 *
 * The wrappers have no argument that could carry a handle, so this file keeps state of its own,
 * beside the probe's one global. It is never unmapped: a wrapper may still be called through a
 * pointer after the stop.
 */
#ifndef DWSR_ALLOC_H
#define DWSR_ALLOC_H

#include <stdint.h>

#define ALLOC_LARGE       (UINT64_C(4) << 10)
#define ALLOC_LARGE_LEAST (UINT64_C(4) << 10)
#define ALLOC_LARGE_MOST  (UINT64_C(64) << 20)

/* The wrappers are in place, but only pass on. 0 or -errno. large_from: of ALLOC_LARGE_LEAST to
 * ALLOC_LARGE_MOST bytes. */
int alloc_start(uint64_t large_from);
/* After alloc_start: from here on they account. Apart, because the owner table is 7 MiB of address
 * space. 0 or -errno. */
int alloc_account(void);
/* at_exit: the slots may stay as they are, the process is about to end. */
void alloc_stop(int at_exit);
/* Around fork: alloc_fork_lock, then alloc_fork_unlock in the parent and alloc_forked in the child.
 */
void alloc_fork_lock(void);
void alloc_fork_unlock(void);
void alloc_forked(void);

/* Blocks that found the table full, in all. Never blocks. */
uint64_t alloc_untracked_bytes(void);
/* Our wrappers are in place and have been since the start; if not, no figure can be trusted. Cheap.
 */
int alloc_holds(void);

#endif
