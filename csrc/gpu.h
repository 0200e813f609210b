/* Device memory of each task, and of the process on each device, as CuPy gives it out
 * (dwsr_probe/gpu/hook.pxi tells us).
 *
 * The same two figures as in accounts.h: live and peak bytes that a task itself allocated, whoever
 * frees them; an inner task's live bytes pass to the outer one at its end. Page-locked host memory
 * is counted in the same way, as a device of its own, GPU_PINNED. An allocation and a free take no
 * lock, except a task's first on a device. Who works for whom is in lineage.h.
 *
 * A caller has no board at hand, and memory outlives boards: this file keeps state of its own,
 * which the sampler copies to the board.
 */
#ifndef DWSR_GPU_H
#define DWSR_GPU_H

#include "board.h"
#include "handle.h"

#define GPU_PINNED DEVICE_COUNT
#define OOM_HOST   (DEVICE_COUNT + 1)

/* ABSENT: no pool, or not known */
struct gpu_pool {
    uint64_t used_bytes, total_bytes, limit_bytes, unseen_bytes;
};

/* At every start of the probe: peaks begin anew, live bytes stay. */
void gpu_open(void);
void gpu_fork_lock(void);
void gpu_fork_unlock(void);
void gpu_forked(void);

/* The hook is in place (enum gpu_hook); whether page-locked memory is seen, too. */
void gpu_note_hook(enum gpu_hook state, int pinned);
void gpu_note_nvml(enum nvml_state state);

/* Of the task and those around it. Returns whether that raised a peak: then gpu_note_pool is due.
 */
int gpu_added(task_handle task, uint32_t device, uint64_t bytes);
void gpu_removed(task_handle task, uint32_t device, uint64_t bytes);
/* The pool right after an allocation; raised: as gpu_added said, it belongs to the peak of these
 * tasks, too. */
void gpu_note_pool(task_handle task, uint32_t device, const struct gpu_pool *pool, int raised);
/* An allocation that failed for lack of memory. */
void gpu_note_oom(task_handle task, uint32_t device, uint64_t requested_bytes,
                  const struct gpu_pool *pool);
/* An allocation that is the job's as it is: it cannot be followed. */
void gpu_note_unfollowed(void);

/* Guards against allocators that call allocators: 0 for the outermost call of the calling thread.
 */
int gpu_enter(void);
void gpu_leave(void);

/* What others say of a device that is in use; texts may be NULL, numbers ABSENT. */
struct gpu_driver {
    uint64_t used_bytes, total_bytes, process_bytes, utilisation_percent, rmm_bytes, rmm_peak_bytes;
};
int gpu_is_used(uint32_t device);
void gpu_identify(uint32_t device, const char *name, const char *uuid, uint64_t total_bytes);
void gpu_note_driver(uint32_t device, const struct gpu_driver *reading);

struct gpu_figures {
    int known, pinned_known;                  /* the hook was in place: no device means no memory */
    int leaves;                               /* it has memory left */
    struct task_device devices[TASK_DEVICES]; /* where known */
    struct task_oom oom;                      /* count 0: none, and the rest is not set */
};

void gpu_task_now(task_handle task, struct gpu_figures *figures);
void gpu_task_end(task_handle task, struct gpu_figures *figures);

/* Everything about devices onto the board. One thread at a time. */
void gpu_publish(struct board *b);

#endif
