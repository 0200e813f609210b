/* A handle: a task in one word. A handle is never reused in a process, also not after the task's
 * end or after a restart of the probe.
 *
 * The low bits are the task's slot, the others are its *generation*: the serial on the board (40
 * bits) and the number of the probe's start. Serials begin again with each board, generations do
 * not. A later task has a larger word.
 *
 * A word below SLOT_COUNT is no task: NOBODY, or memory of no task whose thread is known, by its
 * entry in unowned.h.
 *
 * Only this file makes and decodes handles (tests/unit/test_c_rules.py checks).
 */
#ifndef DWSR_HANDLE_H
#define DWSR_HANDLE_H

#include "board_layout.h"

typedef struct {
    uint64_t word;
} task_handle;

#define NOBODY             ((task_handle){ 0 })
#define HANDLE_SERIAL_BITS 40

/* NOBODY if the generation is 0. */
static inline task_handle handle_from_generation(uint32_t slot, uint64_t generation)
{
    return (task_handle){ generation ? generation * SLOT_COUNT + slot : 0 };
}

/* NOBODY if the serial is 0. start: the number of the probe's start. */
static inline task_handle handle_from_serial(uint32_t slot, uint64_t serial, uint64_t start)
{
    return handle_from_generation(slot, serial ? serial | start << HANDLE_SERIAL_BITS : 0);
}

/* For a handle in an atomic word. The word of NOBODY is 0. */
static inline uint64_t handle_word(task_handle h) { return h.word; }
static inline task_handle handle_from_word(uint64_t w) { return (task_handle){ w }; }

static inline uint32_t handle_slot(task_handle h) { return (uint32_t)(h.word % SLOT_COUNT); }
static inline uint64_t handle_generation(task_handle h) { return h.word / SLOT_COUNT; }
static inline uint64_t handle_serial(task_handle h)
{
    return handle_generation(h) & ((UINT64_C(1) << HANDLE_SERIAL_BITS) - 1);
}

static inline int is_somebody(task_handle h) { return h.word >= SLOT_COUNT; }

/* entry: below SLOT_COUNT; 0: NOBODY. */
static inline task_handle handle_unowned(uint32_t entry) { return (task_handle){ entry }; }
/* The entry of a handle that is no task. */
static inline uint32_t handle_unowned_entry(task_handle h) { return (uint32_t)h.word; }

static inline int same_task(task_handle a, task_handle b) { return a.word == b.word; }
static inline int is_older(task_handle a, task_handle b) { return a.word < b.word; }

#endif
