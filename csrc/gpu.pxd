from libc.stdint cimport uint64_t

from csrc.handle cimport task_handle

cdef extern from "gpu.h" nogil:
    enum:
        GPU_PINNED, OOM_HOST
    struct gpu_pool:
        uint64_t used_bytes, total_bytes, limit_bytes, unseen_bytes
    struct gpu_driver:
        uint64_t used_bytes, total_bytes, process_bytes, utilisation_percent
        uint64_t rmm_bytes, rmm_peak_bytes
    void gpu_note_hook(int state, int pinned)
    void gpu_note_nvml(int state)
    int gpu_add_block(task_handle task, unsigned int device, uint64_t size)
    void gpu_remove_block(task_handle task, unsigned int device, uint64_t size)
    void gpu_note_pool(
        task_handle task, unsigned int device, const gpu_pool *pool, int raised)
    void gpu_note_oom(
        task_handle task, unsigned int device, uint64_t requested_bytes, const gpu_pool *pool)
    void gpu_note_unfollowed()
    int gpu_enter()
    void gpu_leave()
    int gpu_is_used(unsigned int device)
    void gpu_identify(
        unsigned int device, const char *name, const char *uuid, uint64_t total_bytes)
    void gpu_note_driver(unsigned int device, const gpu_driver *says)
