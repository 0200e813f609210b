/* Device memory of each task and of the process, as allocated through CuPy. Called by the hook on
 * CuPy's allocators (dwsr_probe/gpu), by tasks.c, and by the sampler.
 *
 * As in accounts.h, a task has live and peak bytes of what it allocated itself, whoever frees them.
 * At the end of a task its live bytes pass to its parent. Page-locked host memory is counted in the
 * same way, as a device with the number GPU_PINNED. An allocation takes a lock only if it is the
 * task's first on a device; a free takes none. lineage.h says which task a thread works for.
 *
 * Allocations may come before and after a board exists, so this file keeps state of its own. The
 * sampler copies it to the board. Any thread may call, unless a function says otherwise.
 */
#ifndef DWSR_GPU_H
#define DWSR_GPU_H

#include "board.h"
#include "handle.h"

#define GPU_PINNED DEVICE_COUNT
#define OOM_HOST   (DEVICE_COUNT + 1)

/* A memory pool of CuPy on one device. ABSENT: there is no pool, or the value is unknown. */
struct gpu_pool {
    uint64_t used_bytes, total_bytes, limit_bytes, unseen_bytes;
};

/* At each start of the probe: resets peaks and counts, keeps live bytes. */
void gpu_open(void);
/* Around fork: lock before, unlock in the parent, forked in the child. */
void gpu_fork_lock(void);
void gpu_fork_unlock(void);
void gpu_reset_in_child(void);

/* The state of the hook on CuPy. pinned: page-locked memory is seen, too. */
void gpu_note_hook(enum gpu_hook state, int pinned);
void gpu_note_nvml(enum nvml_state state);

/* Adds an allocation to the device, the task and its ancestors. Returns 1 if that raised a peak:
 * then gpu_note_pool is to be called. */
int gpu_add_block(task_handle task, uint32_t device, uint64_t bytes);
/* The same for a free. */
void gpu_remove_block(task_handle task, uint32_t device, uint64_t bytes);
/* The pool right after an allocation. raised: the result of gpu_add_block. If 1, the pool also
 * belongs to the peaks of the task and its ancestors. */
void gpu_note_pool(task_handle task, uint32_t device, const struct gpu_pool *pool, int raised);
/* An allocation that failed for lack of device memory. */
void gpu_note_oom(task_handle task, uint32_t device, uint64_t requested_bytes,
                  const struct gpu_pool *pool);
/* An allocation whose free cannot be followed: it is counted, its bytes are not. */
void gpu_note_unfollowed(void);

/* Around an allocator's call. gpu_enter returns 0 in the outermost one of the calling thread: only
 * that one is counted. */
int gpu_enter(void);
void gpu_leave(void);

/* What the driver and RMM report about a device. Numbers may be ABSENT. */
struct gpu_driver {
    uint64_t used_bytes, total_bytes, process_bytes, utilisation_percent, rmm_bytes, rmm_peak_bytes;
};
/* Whether the process has allocated on the device. */
int gpu_is_used(uint32_t device);
/* name and uuid may be NULL. */
void gpu_identify(uint32_t device, const char *name, const char *uuid, uint64_t total_bytes);
void gpu_note_driver(uint32_t device, const struct gpu_driver *reading);

struct gpu_figures {
    int known;          /* the hook was in place, so a device not listed has no bytes */
    int pinned_known;   /* the same for page-locked memory */
    int has_live_bytes; /* the task has live bytes */
    struct task_device devices[TASK_DEVICES]; /* set where known; device 0: unused */
    struct task_oom oom;                      /* count 0: none, and nothing else is set */
};

/* The figures of a running task; gpu_task_end also closes its account. */
void gpu_task_now(task_handle task, struct gpu_figures *figures);
void gpu_task_end(task_handle task, struct gpu_figures *figures);

/* Copies everything about devices to the board. One thread at a time. */
void gpu_publish(struct board *b);

#endif
