#define _GNU_SOURCE
#include "lineage.h"

#include "unowned.h"

#define ENDED_COUNT (1 << 16)
#define SEVERAL     UINT64_MAX

__thread struct thread_state this_thread;
struct lineage_slot lineage_slots[SLOT_COUNT];
word lineage_starts;

static struct {
    int (*is_python)(void);
    word sole; /* the handle's word if one thread runs tasks, 0: none does, or SEVERAL */
    word slots_used;
    /* parents of tasks that ended with live bytes, by generation */
    struct {
        word generation, parent;
    } ended[ENDED_COUNT];
} lineage __attribute__((aligned(64)));

static struct lineage_slot *slot_of(task_handle task) { return &lineage_slots[handle_slot(task)]; }

/* -- begin and end -- */

void lineage_begin(task_handle task, task_handle parent)
{
    struct lineage_slot *p = slot_of(task);
    store_relaxed(&p->parent, handle_word(parent));
    store_relaxed(&p->inexact, 0);
    store_relaxed(&p->foreign, 0);
    store_relaxed(&p->thread, (uintptr_t)&this_thread);
    store_release(&p->generation, handle_generation(task));
    max_relaxed(&lineage.slots_used, handle_slot(task) + 1);
    this_thread.task = task;
}

/* If the place is still needed by an older task, that task is forgotten, and its nearest running
 * ancestor becomes inexact. */
static void keep_parent_of_ended(task_handle parent, uint64_t generation)
{
    word *from = &lineage.ended[generation % ENDED_COUNT].generation;
    word *to = &lineage.ended[generation % ENDED_COUNT].parent;
    task_handle older =
        load_acquire(from) ? lineage_nearest_running(handle_from_word(load_relaxed(to))) : NOBODY;
    if (is_somebody(older)) store_relaxed(&slot_of(older)->inexact, 1);
    store_release(from, 0);
    store_release(to, handle_word(parent));
    store_release(from, generation);
}

void lineage_end(task_handle task, int has_live_bytes)
{
    struct lineage_slot *p = slot_of(task);
    task_handle parent = handle_from_word(load_relaxed(&p->parent));
    if (same_task(this_thread.task, task)) this_thread.task = parent;
    if (is_somebody(parent) && has_live_bytes)
        keep_parent_of_ended(parent, handle_generation(task));
    store_release(&p->generation, 0);
}

void lineage_note_foreign(task_handle task, uint64_t mask)
{
    word *foreign = &slot_of(task)->foreign, old = load_relaxed(foreign);
    while (lineage_runs(task) && (old | mask) != old
           && !compare_exchange_weak_relaxed(foreign, &old, old | mask)) {}
}

uint64_t lineage_foreign_masks(void)
{
    uint64_t masks = 0;
    for (uint32_t i = 0; i < lineage_slots_used(); i++)
        masks |= load_relaxed(&lineage_slots[i].foreign);
    return masks;
}

/* -- parents -- */

task_handle lineage_parent_of_ended(task_handle task)
{
    const uint64_t generation = handle_generation(task), at = generation % ENDED_COUNT;
    if (load_acquire(&lineage.ended[at].generation) != generation) return NOBODY;
    task_handle parent = handle_from_word(load_acquire(&lineage.ended[at].parent));
    /* the place may have been reused meanwhile */
    return load_relaxed(&lineage.ended[at].generation) == generation ? parent : NOBODY;
}

task_handle lineage_nearest_running(task_handle task)
{
    while (is_somebody(task) && !lineage_runs(task)) task = lineage_parent(task);
    return task;
}

uint32_t lineage_slots_used(void) { return (uint32_t)load_relaxed(&lineage.slots_used); }

task_handle lineage_task_in(uint32_t slot)
{
    return handle_from_generation(slot, load_acquire(&lineage_slots[slot].generation));
}

/* -- the calling thread -- */

/* A native thread that calls back into Python has a Python thread state meanwhile. */
static int is_python_thread(void)
{
    return !this_thread.native && (!lineage.is_python || lineage.is_python());
}

task_handle lineage_task_to_hand_on(void)
{
    task_handle task = lineage_nearest_running(this_thread.task);
    if (is_somebody(task)) return task;
    task = lineage_nearest_running(this_thread.works_for);
    return is_somebody(task) && (this_thread.adopted || is_python_thread()) ? task : NOBODY;
}

task_handle lineage_allocating_task_slow(void)
{
    task_handle task = lineage_task_to_hand_on();
    if (is_somebody(task)) return task;
    word sole = load_relaxed(&lineage.sole);
    if (sole == 0) return NOBODY;
    if (is_python_thread()) return handle_unowned(unowned_entry_of_thread());
    return sole == SEVERAL ? handle_unowned(UNOWNED_NATIVE) : handle_from_word(sole);
}

void lineage_set_running(uint32_t busy_threads, task_handle innermost)
{
    store_relaxed(&lineage.sole, busy_threads == 0   ? 0
                                 : busy_threads == 1 ? handle_word(innermost)
                                                     : SEVERAL);
}

task_handle lineage_adopt(task_handle task)
{
    task_handle before = this_thread.works_for;
    this_thread.works_for = task;
    this_thread.adopted = is_somebody(task);
    return before;
}

struct lineage_work lineage_take_up(task_handle task)
{
    const struct lineage_work before = { this_thread.works_for, this_thread.adopted };
    lineage_adopt(task);
    return before;
}

void lineage_resume(struct lineage_work before)
{
    this_thread.works_for = before.task;
    this_thread.adopted = before.adopted & 1;
}

task_handle lineage_current_task(void)
{
    task_handle task = lineage_nearest_running(this_thread.task);
    return is_somebody(task) ? task : lineage_nearest_running(this_thread.works_for);
}

task_handle lineage_task_to_inherit(void)
{
    return lineage_nearest_running(is_somebody(this_thread.task) ? this_thread.task
                                                                 : this_thread.works_for);
}

void lineage_inherit(task_handle task) { this_thread.works_for = task; }

void lineage_note_native(void) { this_thread.native = 1; }

/* -- start, fork -- */

static void forget(void)
{
    for (uint32_t i = 0; i < SLOT_COUNT; i++) store_relaxed(&lineage_slots[i].generation, 0);
    store_relaxed(&lineage.sole, 0);
    this_thread.task = this_thread.works_for = NOBODY;
}

void lineage_open(int (*is_python)(void))
{
    lineage.is_python = is_python;
    store_relaxed(&lineage_starts, load_relaxed(&lineage_starts) + 1);
    forget();
    store_relaxed(&lineage.slots_used, 0);
}

void lineage_reset_in_child(void) { forget(); }
