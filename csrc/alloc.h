/* Whose memory is it: live and peak bytes of each running task, from the allocation calls themselves.
 *
 * Blocks from ALLOC_LARGE on and anonymous mappings enter an owner table, so that a free from any thread, also after the task's end, is
 * credited to the task that allocated them and to nobody else. Smaller blocks are netted per thread and flushed into the thread's task;
 * so are those below 64 KiB that find the table full.
 * Paths of malloc and free take no lock and allocate nothing; mmap and munmap take one short mutex.
 *
 * The wrappers have no argument that could carry a handle, so this file keeps state of its own, beside the probe's one global. It is
 * never unmapped: a wrapper may still be called through a pointer after the stop.
 */
#ifndef DWSR_ALLOC_H
#define DWSR_ALLOC_H

#include <stdint.h>

#define ALLOC_LARGE (UINT64_C(4) << 10)
#define ALLOC_LARGE_LEAST (UINT64_C(4) << 10)
#define ALLOC_LARGE_MOST (UINT64_C(64) << 20)
#define ALLOC_NO_SLOT UINT32_MAX

struct alloc_figures {
    uint64_t peak_bytes, live_bytes, count;
    int inexact; /* memory of tasks inside it could not be followed to the end */
};

/* Tasks and threads are followed from here on: who works for whom. Part of alloc_start; for a probe that accounts no allocations. */
void alloc_open(int (*is_python)(void));
/* The wrappers are in place, but only pass on. 0 or -errno. large_from: of ALLOC_LARGE_LEAST to ALLOC_LARGE_MOST bytes.
 * is_python: whether the calling thread has a Python thread state; NULL: all have. */
int alloc_start(uint64_t large_from, int (*is_python)(void));
/* After alloc_start: from here on they account. Apart, because the owner table is 7 MiB of address space. 0 or -errno. */
int alloc_account(void);
/* at_exit: the slots may stay as they are, the process is about to end. */
void alloc_stop(int at_exit);
int alloc_active(void);
/* In a forked child: forget the parent's tasks. Around fork: alloc_fork_lock, then alloc_fork_unlock in the parent and alloc_forked in
 * the child. */
void alloc_fork_lock(void);
void alloc_fork_unlock(void);
void alloc_forked(void);

/* The calling thread's allocations belong to this task until its end, then to the one around it. `serial` as on the board, never 0. */
void alloc_task_begin(uint32_t slot, uint64_t serial, uint32_t parent_slot, uint64_t parent_serial);
/* From any thread. leaves_more: memory that is accounted elsewhere (gpu.h) passes to the task around it. */
void alloc_task_end(uint32_t slot, uint64_t serial, int leaves_more, struct alloc_figures *figures);
/* A running task now; 0, or -ENOENT. */
int alloc_task_now(uint32_t slot, uint64_t serial, struct alloc_figures *figures);
/* A task in one word, as other accounts (gpu.h) keep it: good for ever, also after a restart. Whether it runs; the one around it, of an ended one, too. */
uint64_t alloc_handle(uint32_t slot, uint64_t serial);
int alloc_runs(uint64_t handle);
uint64_t alloc_parent(uint64_t handle);
/* For the sampler: how many slots have been used so far, and the serial of the task in one of them (0: none). */
uint32_t alloc_slots_used(void);
uint64_t alloc_serial_in(uint32_t slot);
/* With several tasks running, native threads' memory is nobody's; the count of tasks decides. */
void alloc_running(uint32_t lanes, uint32_t slot, uint64_t serial);
/* Whether native threads allocated while several tasks ran, since the last call. */
int alloc_was_ambiguous(void);

/* The calling thread works for that task too, while it has no task of its own, until released (serial 0) or the task's end. Returns the
 * task it worked for before, as slot and serial. Python threads that a task starts begin like this. */
void alloc_adopt(uint32_t slot, uint64_t serial, uint32_t *old_slot, uint64_t *old_serial);

/* Whom the calling thread allocates for at this moment: slot and serial; 0 if nobody, or only by the rule for native threads. */
uint64_t alloc_current(uint32_t *slot);
/* The running task's live bytes with everything that the calling thread has allocated so far, ABSENT if it does not run. */
uint64_t alloc_live_now(uint32_t slot, uint64_t serial);

/* Live bytes allocated outside every task since alloc_account; blocks that found the table full, in all. Never block. */
uint64_t alloc_unowned_bytes(void);
uint64_t alloc_untracked_bytes(void);
/* Our wrappers are in place and have been since the start; if not, no figure can be trusted. Cheap. */
int alloc_holds(void);

#endif
