/* Wrappers around malloc, free, mmap and the other functions of hooks.h, which add to the accounts
 * (accounts.h). Started and stopped by probe.c; the wrappers are called by the job, in any thread.
 *
 * Large blocks (alloc_start) and anonymous mappings are entered into the owner table (owners.h). So
 * a free from any thread, also after the task's end, is subtracted from the task that allocated the
 * block. Shared mappings of files in memory belong to the task that created the file
 * (shared_files.h). Smaller blocks are summed per thread, and so are blocks below 64 KiB for which
 * the table is full. The wrappers of malloc and free take no lock and allocate nothing; those of
 * mmap, munmap and of functions that create files take short mutexes.
 *
 * Callers of malloc pass no handle, so this file keeps state of its own, beside the probe's one
 * global. It is never unmapped: the program may call a wrapper through a pointer after the stop.
 */
#ifndef DWSR_ALLOC_H
#define DWSR_ALLOC_H

#include <stdint.h>

#include "owners.h"

#define ALLOC_LARGE_DEFAULT (UINT64_C(4) << 10)
#define ALLOC_LARGE_LEAST   (UINT64_C(4) << 10)
#define ALLOC_LARGE_MOST    (UINT64_C(64) << 20)

/* Puts the wrappers in place; they only call the real functions yet. large_from: blocks of so many
 * bytes or more are large, from ALLOC_LARGE_LEAST to ALLOC_LARGE_MOST. 0 or -errno. */
int alloc_start(uint64_t large_from);
/* code: a function of the Python interpreter. Threads whose function is in other objects are then
 * native for ever (lineage.h). Before alloc_start; without it, a thread is native while it has no
 * Python thread state. */
void alloc_find_interpreter(void *code);
/* After alloc_start: from here on the wrappers account. This is a separate call, because the owner
 * table takes 7 MiB of address space, which a process without tasks does not need. 0 or -errno. */
int alloc_start_accounting(void);
/* at_exit: the process is about to end, so the wrappers stay in place. */
void alloc_stop(int at_exit);
/* Around fork: lock before, unlock in the parent, reset in the child. */
void alloc_fork_lock(void);
void alloc_fork_unlock(void);
void alloc_reset_in_child(void);

/* Blocks of other allocators than malloc: they count like blocks of malloc with so many bytes. Add
 * a block after it was allocated, remove it before it is freed. After a reallocation that failed,
 * the block still exists, and alloc_restore_block takes what alloc_remove_block has returned. */
void alloc_add_block(void *block, uint64_t bytes);
struct owned alloc_remove_block(void *block, uint64_t bytes);
void alloc_restore_block(void *block, struct owned removed);

/* Total bytes of blocks for which the owner table was full. Takes no lock. */
uint64_t alloc_untracked_bytes(void);
/* 1 if accounting is on and the wrappers have been in place ever since the start. If 0, no figure
 * is right. A few loads. */
int alloc_check_intact(void);

#endif
