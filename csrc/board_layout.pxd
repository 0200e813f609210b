from libc.stdint cimport uint32_t, uint64_t

cdef extern from "board_layout.h" nogil:
    const uint64_t ABSENT
    const uint64_t BOARD_VERSION
    const uint64_t BOARD_VERSION_OLDEST
    const uint64_t BOARD_BYTES
    enum:
        BOARD_OPEN, BOARD_CLOSED, BOARD_CLOSED_ERROR
        ALLOC_OFF, ALLOC_ON, ALLOC_UNAVAILABLE
        DASK_HOOKS_NONE, DASK_HOOKS_WRAPPED, DASK_HOOKS_TRANSITIONS
        GPU_HOOK_NONE, GPU_HOOK_ON, GPU_HOOK_OFF
        NVML_NONE, NVML_OK, NVML_NO_MODULE, NVML_NO_DRIVER, NVML_DENIED, NVML_LOST, NVML_FAILED
        RSS_KERNEL, RSS_SAMPLED
        TASK_NONE, TASK_RUNNING, TASK_OK, TASK_ERROR, TASK_CANCELLED, TASK_KILLED
        ATTRIBUTION_EXACT, ATTRIBUTION_SHARED
        REASON_NONE, REASON_COROUTINE, REASON_EVENT_LOOP, REASON_NATIVE_THREADS
        REASON_UNOWNED_THREAD, REASON_FOREIGN_ALLOCATOR, REASON_INNER_TASKS
        TASK_DEVICES
        TOTAL_CELLS, BARE_CELLS
    struct board_header:
        uint64_t version, slot_count, device_count, total_count
    struct board_live:
        uint64_t state, totals_used
    struct slot_fields:
        uint64_t alloc_serial, alloc_live_bytes, alloc_peak_bytes, alloc_count, gpu_serial
    struct task_fields:
        uint64_t serial, seq, alloc_peak_bytes, alloc_end_bytes, alloc_count
        uint64_t pinned_peak_bytes, pinned_end_bytes
    struct task_device:
        uint64_t device, live_bytes, peak_bytes
    struct task_oom:
        uint64_t count
    struct device_fields:
        uint64_t present
    struct device:
        device_fields fields
        const char *name
        const char *uuid
    struct sample:
        uint64_t time_ns
    struct facts:
        uint64_t len
        char text[1]
    struct total_fields:
        uint64_t name
    struct total_device:
        uint64_t device
    struct total:
        total_fields fields
        total_device *devices
        uint32_t *alloc
        uint32_t *growth
        uint32_t *duration
        uint32_t *bare
