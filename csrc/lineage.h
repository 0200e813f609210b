/* Who works for whom: which task runs in which thread, the task around it, and who inherits what an
 * ended task leaves behind. Also where no allocations are accounted: gpu.h needs it, too.
 *
 * Tasks begin and end under the tasks' mutex (or one at a time, in a test); everything else is
 * called from any thread, takes no lock and allocates nothing. Callers of malloc have no argument
 * that could carry a handle, so this unit keeps state of its own, beside the probe's one global.
 */
#ifndef DWSR_LINEAGE_H
#define DWSR_LINEAGE_H

#include "thread.h"

/* Tasks and threads are followed from here on. is_python: whether the calling thread has a Python
 * thread state; NULL: all have. Again: all tasks are forgotten, and new handles differ from all
 * older ones. */
void lineage_open(int (*is_python)(void));
/* In a forked child: the parent's tasks are forgotten. */
void lineage_forked(void);

/* The task with this serial on the board, in this slot, since the last lineage_open; serial 0:
 * nobody. */
static inline task_handle lineage_handle(uint32_t slot, uint64_t serial);
/* The calling thread runs this task until its end, then the one around it (NOBODY: none). */
void lineage_begin(task_handle task, task_handle parent);
/* From any thread. leaves: it has memory left, which passes to the task around it. */
void lineage_end(task_handle task, int leaves);
/* Memory of tasks inside this one could not be followed to the end: more of them left some than are
 * kept. */
static inline int lineage_is_inexact(task_handle task);

/* The task around this one, of an ended one, too. It is the older of the two: a walk comes to an
 * end. */
static inline task_handle lineage_parent(task_handle task);
/* The task itself, or the nearest one around it that still runs: an ended task's memory belongs to
 * that. */
task_handle lineage_nearest_running(task_handle task);
/* For the sampler: how many slots have been used so far, and the task in one of them. */
uint32_t lineage_slots_used(void);
task_handle lineage_task_in(uint32_t slot);

/* How many threads run tasks, and the innermost task of the last: what native threads allocate
 * belongs to the task if one thread does, and to nobody if several do. */
void lineage_set_running(uint32_t busy_threads, task_handle innermost);
/* Whether native threads allocated while several tasks ran, since the last call. */
int lineage_clear_ambiguous(void);

/* The calling thread works for that task, too, while it has no task of its own, until released
 * (NOBODY) or the task's end. Returns the task it worked for before. Python threads that a task
 * starts begin so. */
task_handle lineage_adopt(task_handle task);
/* Whom the calling thread works for; NOBODY also where only the rule for native threads gives a
 * task. */
task_handle lineage_works_for(void);
/* Whom a thread that the calling one starts works for, and its first call. */
task_handle lineage_thread_task(void);
void lineage_begin_thread(task_handle task);

/* -- inline: what every allocation asks -- */

struct lineage_slot {
    word generation; /* of the task that runs in this slot; 0: none */
    word thread;     /* the thread that began it: the address of its `this_thread` */
    word parent;     /* the handle's word */
    word inexact;
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

static inline int lineage_runs(task_handle task)
{
    return is_somebody(task)
           && load_acquire(&lineage_slots[handle_slot(task)].generation) == handle_generation(task);
}

/* Whether the calling thread began the task in this slot: nobody else begins another there
 * meanwhile. */
static inline int lineage_began_here(task_handle task)
{
    return load_relaxed(&lineage_slots[handle_slot(task)].thread) == (uintptr_t)&this_thread;
}

/* The common case: a running task of the calling thread, with none around it. */
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

task_handle lineage_allocates_for_slow(void);

/* Whom the calling thread allocates for: its own task, the one it works for, or, of native threads,
 * the only one that runs. */
static inline task_handle lineage_allocates_for(void)
{
    task_handle task = this_thread.task;
    return __builtin_expect(lineage_runs(task), 1) ? task : lineage_allocates_for_slow();
}

#endif
