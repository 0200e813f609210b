/* Which task a thread works for, each task's parent (the task that was running in the same thread
 * when it began), and which task owns the memory of an ended one: its nearest running ancestor.
 *
 * Called by accounts.c, alloc.c, gpu.c, sampler.c, tasks.c and probe.c; gpu.c needs it also where
 * host allocations are not accounted. Tasks begin and end under the tasks' mutex (or one at a time,
 * in a test). All other functions are called from any thread, take no lock and allocate nothing.
 * Callers of malloc pass no handle, so this file keeps state of its own, beside the probe's one
 * global.
 */
#ifndef DWSR_LINEAGE_H
#define DWSR_LINEAGE_H

#include "thread.h"

/* At each start of the probe: forgets all tasks. New handles differ from all older ones. is_python:
 * whether the calling thread has a Python thread state; NULL: every thread has one. */
void lineage_open(int (*is_python)(void));
/* In a forked child: forgets the tasks of the parent process. */
void lineage_reset_in_child(void);

/* The handle of the task with this serial on the present board and in this slot; NOBODY if the
 * serial is 0. */
static inline task_handle lineage_handle(uint32_t slot, uint64_t serial);
/* The calling thread runs this task until its end, then the parent (NOBODY: none). */
void lineage_begin(task_handle task, task_handle parent);
/* From any thread. has_live_bytes: the task has live bytes, which pass to its parent. */
void lineage_end(task_handle task, int has_live_bytes);
/* Whether memory of tasks inside this one was lost sight of: more of them ended with live bytes
 * than the table of ended tasks holds. */
static inline int lineage_is_inexact(task_handle task);

/* Libraries with allocators of their own that the task has used (foreign.h). */
static inline uint64_t lineage_foreign_mask(task_handle task);
/* No effect if the task does not run, or for NOBODY. */
void lineage_note_foreign(task_handle task, uint64_t mask);
/* All masks together: of the running tasks, and of the last ended task of each slot. */
uint64_t lineage_foreign_masks(void);

/* The parent, or NOBODY. Also for an ended task that left live bytes. A parent is older than its
 * child, so that a walk over ancestors ends. */
static inline task_handle lineage_parent(task_handle task);
/* The task itself, or its nearest ancestor that runs, or NOBODY. */
task_handle lineage_nearest_running(task_handle task);
/* For the sampler: the number of slots used so far, and the task in one of them. */
uint32_t lineage_slots_used(void);
task_handle lineage_task_in(uint32_t slot);

/* How many threads run tasks, and the innermost task of the last of them. Allocations of native
 * threads belong to that task if one thread runs tasks, and to no task (unowned.h) if several do.
 */
void lineage_set_running(uint32_t busy_threads, task_handle innermost);

/* The calling thread works for this task while it runs none of its own, until the next call or the
 * task's end. Returns the task that the thread worked for before. */
task_handle lineage_adopt(task_handle task);
/* The same for a native thread that other tasks may have started. This does not count for a native
 * thread, and must not count after lineage_resume either. */
struct lineage_work {
    task_handle task;
    unsigned adopted;
};
struct lineage_work lineage_take_up(task_handle task);
void lineage_resume(struct lineage_work before);
/* The calling thread's own task or the nearest running ancestor of that task. If there is none: the
 * same for the task that started or adopted the thread. Otherwise NOBODY. The rule for native
 * threads (lineage_set_running) does not apply. */
task_handle lineage_current_task(void);
/* The task that a thread started by the calling thread works for. Small bytes of an ending thread
 * also go to this task. Differs from lineage_current_task in one case: if the calling thread has a
 * task of its own, and this task and all its ancestors have ended, the result is NOBODY. */
task_handle lineage_task_to_inherit(void);
/* The calling thread, which has just begun, works for the task that started it. */
void lineage_inherit(task_handle task);
/* The calling thread was not started by Python. The rule for native threads applies to it also
 * while it calls back into Python. */
void lineage_note_native(void);

/* -- inline: called at every allocation -- */

struct lineage_slot {
    word generation; /* of the task that runs in this slot; 0: none */
    word thread;     /* that began the task: the address of its `this_thread` */
    word parent;     /* the handle's word */
    word inexact;
    word foreign; /* mask of foreign.h: libraries with allocators of their own that it has used */
} __attribute__((aligned(64)));
SHARED_DATA struct lineage_slot lineage_slots[SLOT_COUNT];
SHARED_DATA word lineage_starts;

static inline task_handle lineage_handle(uint32_t slot, uint64_t serial)
{
    return handle_from_serial(slot, serial, load_relaxed(&lineage_starts));
}

static inline int lineage_is_inexact(task_handle task)
{
    return load_relaxed(&lineage_slots[handle_slot(task)].inexact) != 0;
}

static inline uint64_t lineage_foreign_mask(task_handle task)
{
    return load_relaxed(&lineage_slots[handle_slot(task)].foreign);
}

static inline int lineage_runs(task_handle task)
{
    return is_somebody(task)
           && load_acquire(&lineage_slots[handle_slot(task)].generation) == handle_generation(task);
}

/* Whether the calling thread began the latest task of this slot. */
static inline int lineage_began_here(task_handle task)
{
    return load_relaxed(&lineage_slots[handle_slot(task)].thread) == (uintptr_t)&this_thread;
}

/* The common case: a running task of the calling thread, without a parent. */
static inline int lineage_is_own_outermost(task_handle task)
{
    const struct lineage_slot *p = &lineage_slots[handle_slot(task)];
    return is_somebody(task) && lineage_began_here(task)
           && load_relaxed(&p->generation) == handle_generation(task) && !load_relaxed(&p->parent);
}

task_handle lineage_parent_of_ended(task_handle task);

static inline task_handle lineage_parent(task_handle task)
{
    const struct lineage_slot *p = &lineage_slots[handle_slot(task)];
    task_handle parent = handle_from_word(load_relaxed(&p->parent));
    if (load_acquire(&p->generation) != handle_generation(task))
        parent = lineage_parent_of_ended(task);
    return is_older(parent, task) ? parent : NOBODY;
}

/* The task that work belongs to which the calling thread hands to other threads: its own task, else
 * the one that it works for, else NOBODY. The rule for native threads does not apply. */
task_handle lineage_task_to_hand_on(void);
task_handle lineage_allocating_task_slow(void);

/* The task that allocations of the calling thread belong to: its own task, else the one that it
 * works for, else, in a native thread, the only one that runs. If there is none: not somebody, but
 * while tasks run, an entry of unowned.h. */
static inline task_handle lineage_allocating_task(void)
{
    task_handle task = this_thread.task;
    return __builtin_expect(lineage_runs(task), 1) ? task : lineage_allocating_task_slow();
}

#endif
