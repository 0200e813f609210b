# cython: language_level=3, freethreading_compatible=True
"""The lists and enums of csrc/board_layout.h for Python: names of fields, states, versions.

Used by readers of boards and stored runs, and by the hooks of frameworks. The enums keep their
names of C, as plain integers: `live["state"] == _core.BOARD_OPEN`.
"""
from csrc cimport board_layout as c
from csrc.board_read cimport board_header_names, board_sample_names, board_header_text_names
from csrc.gpu cimport GPU_PINNED, OOM_HOST
from csrc.layout cimport (
    LAYOUT_DEVICE, LAYOUT_LIVE, LAYOUT_OOM, LAYOUT_TASK, LAYOUT_TASK_DEVICE, LAYOUT_TOTAL,
    LAYOUT_TOTAL_DEVICE, layout_names)


cdef tuple names(const char **list):
    cdef int i = 0
    found = []
    while list[i] != NULL:
        found.append(list[i].decode())
        i += 1
    return tuple(found)


ABSENT = c.ABSENT
BOARD_VERSION = c.BOARD_VERSION
BOARD_VERSION_OLDEST = c.BOARD_VERSION_OLDEST
PINNED, OOM_ON_HOST = GPU_PINNED, OOM_HOST  # in place of a device's number

BOARD_OPEN, BOARD_CLOSED, BOARD_CLOSED_ERROR = c.BOARD_OPEN, c.BOARD_CLOSED, c.BOARD_CLOSED_ERROR
ALLOC_OFF, ALLOC_ON, ALLOC_UNAVAILABLE = c.ALLOC_OFF, c.ALLOC_ON, c.ALLOC_UNAVAILABLE
DASK_HOOKS_NONE = c.DASK_HOOKS_NONE
DASK_HOOKS_WRAPPED = c.DASK_HOOKS_WRAPPED
DASK_HOOKS_TRANSITIONS = c.DASK_HOOKS_TRANSITIONS
GPU_HOOK_NONE, GPU_HOOK_ON, GPU_HOOK_OFF = c.GPU_HOOK_NONE, c.GPU_HOOK_ON, c.GPU_HOOK_OFF
NVML_NONE, NVML_OK, NVML_NO_MODULE = c.NVML_NONE, c.NVML_OK, c.NVML_NO_MODULE
NVML_NO_DRIVER, NVML_DENIED = c.NVML_NO_DRIVER, c.NVML_DENIED
NVML_LOST, NVML_FAILED = c.NVML_LOST, c.NVML_FAILED
RSS_KERNEL, RSS_SAMPLED = c.RSS_KERNEL, c.RSS_SAMPLED
TASK_NONE, TASK_RUNNING, TASK_OK = c.TASK_NONE, c.TASK_RUNNING, c.TASK_OK
TASK_ERROR, TASK_CANCELLED, TASK_KILLED = c.TASK_ERROR, c.TASK_CANCELLED, c.TASK_KILLED
ATTRIBUTION_EXACT, ATTRIBUTION_SHARED = c.ATTRIBUTION_EXACT, c.ATTRIBUTION_SHARED
REASON_NONE, REASON_COROUTINE = c.REASON_NONE, c.REASON_COROUTINE
REASON_EVENT_LOOP, REASON_NATIVE_THREADS = c.REASON_EVENT_LOOP, c.REASON_NATIVE_THREADS
REASON_UNOWNED_THREAD = c.REASON_UNOWNED_THREAD
REASON_FOREIGN_ALLOCATOR = c.REASON_FOREIGN_ALLOCATOR
REASON_INNER_TASKS = c.REASON_INNER_TASKS

# What gpu/nvml.py and the metrics call the states of NVML.
NVML_STATES = {
    "none": NVML_NONE, "ok": NVML_OK, "no module": NVML_NO_MODULE, "no driver": NVML_NO_DRIVER,
    "permission denied": NVML_DENIED, "lost": NVML_LOST, "failed": NVML_FAILED}

HEADER_FIELDS = names(<const char **>board_header_names)[:-1]  # without the checksum
HEADER_TEXTS = names(<const char **>board_header_text_names)
SAMPLE_FIELDS = names(<const char **>board_sample_names)
LIVE_FIELDS = names(<const char **>layout_names(LAYOUT_LIVE))
TASK_FIELDS = names(<const char **>layout_names(LAYOUT_TASK))
TASK_DEVICE_FIELDS = names(<const char **>layout_names(LAYOUT_TASK_DEVICE))
OOM_FIELDS = names(<const char **>layout_names(LAYOUT_OOM))
DEVICE_FIELDS = names(<const char **>layout_names(LAYOUT_DEVICE))
TOTAL_FIELDS = names(<const char **>layout_names(LAYOUT_TOTAL))
TOTAL_DEVICE_FIELDS = names(<const char **>layout_names(LAYOUT_TOTAL_DEVICE))
