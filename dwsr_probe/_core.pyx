# cython: language_level=3, freethreading_compatible=True
"""The probe of this process: start, stop, fork, exec, and what a process says about itself.

Called by dwsr_probe.probe, the boot module and doctor. `_core` is also the name under which Python
finds everything compiled. csrc/ and all Cython units are linked into this one shared object: csrc/
keeps state of its own, which a process must have once. The units are modules of their own (UNITS).
Those that only some processes need are initialised when one of their names is first used.
"""
from libc.stdint cimport uint64_t
from libc.string cimport memset

from csrc cimport board_layout
from csrc.alloc cimport ALLOC_LARGE_DEFAULT, alloc_check_intact, alloc_start, alloc_stop
from csrc.arrow_pool cimport (
    arrow_pool_find, arrow_pool_trial_begin, arrow_pool_trial_end, arrow_pool_unwrap,
    arrow_pool_wrap, arrow_trial)
from csrc.arrow_threads cimport arrow_threads_follow, arrow_threads_leave
from csrc.board cimport board, board_create, board_grow, board_settings, board_unmap
from csrc.clock cimport now_ns
from csrc.handle cimport task_handle
from csrc.limit cimport limit_bytes
from csrc.patch cimport patch_provider
from csrc.probe cimport (
    PROBE_DESCRIPTORS_LEAST, probe_active, probe_adopt, probe_board_path, probe_check_limits,
    probe_current, probe_expect_tasks, probe_announce_fork, probe_restart_sampler, probe_note_exec,
    probe_note_dask_hooks, probe_note_unprobed_child, probe_take_room_failure, probe_claim_message,
    probe_set_facts, probe_settings, probe_start, probe_stop)

import os
import sys
from _thread import RLock

cdef extern from "Python.h":
    int Py_AddPendingCall(int (*call)(void *) noexcept, void *argument)

cdef extern from "Python.h" nogil:
    void *PyGILState_GetThisThreadState()


BOARD_BYTES = board_layout.BOARD_BYTES
DESCRIPTORS_LEAST = PROBE_DESCRIPTORS_LEAST


cdef int is_python_thread() noexcept nogil:
    return PyGILState_GetThisThreadState() != NULL


def start(*, bytes directory, bytes run, bytes host, bytes task_name, bytes worker, bytes python,
          uint64_t period_ns, bint keep_peak, bint alloc, uint64_t alloc_from=ALLOC_LARGE_DEFAULT,
          bytes proc_root=b"/proc", bytes cgroup_root=b"/sys/fs/cgroup"):
    """Start the probe. Raise OSError(errno, the step that failed) if the start fails."""
    cdef probe_settings s = probe_settings(
        directory=directory, run=run, host=host, task_name=task_name, worker=worker, python=python,
        proc_root=proc_root, cgroup_root=cgroup_root, period_ns=period_ns, keep_peak=keep_peak,
        alloc=alloc, alloc_from=alloc_from, is_python_thread=is_python_thread,
        interpreter=<void *>PyGILState_GetThisThreadState)
    cdef const char *failed_step = NULL
    cdef int e
    with nogil:
        e = probe_start(&s, &failed_step)
    if e < 0:
        raise OSError(-e, failed_step.decode())


def stop(bint error=False, bint at_exit=False, bint remove=False):
    """Close the board. error: the program ends with an exception; remove: delete the file."""
    cdef int state = board_layout.BOARD_CLOSED_ERROR if error else board_layout.BOARD_CLOSED
    with nogil:
        probe_stop(state, at_exit, remove)


def active():
    return probe_active() != 0


def board_path():
    """Path of this process's board, or None."""
    cdef char path[512]
    return os.fsdecode(path) if probe_board_path(path, sizeof(path)) == 0 else None


# -- room for tasks on the board

cdef object when_room_is_missing = None


def make_room_for_tasks():
    """Make room for tasks now instead of at the begin of the first task."""
    with nogil:
        probe_expect_tasks()
    report_missing_room()


def on_missing_room(call):
    """call(OSError) is called when the board has no room for tasks, at most once per start."""
    global when_room_is_missing
    when_room_is_missing = call


cdef void report_missing_room() noexcept:
    cdef int e = 0
    cdef const char *failed_step = NULL
    if probe_take_room_failure(&e, &failed_step) and when_room_is_missing is not None:
        try:
            when_room_is_missing(OSError(e, failed_step.decode()))
        except Exception:
            pass


# -- fork

cdef uint64_t restart_ns = 0  # the sampler restarts after this moment of the monotonic clock


def announce_fork():
    """Call before a fork. The sampler is then not restarted inside fork.

    resume_after_fork restarts it, or the next task begin.
    """
    probe_announce_fork()


cdef int restart_sampler(void *unused) noexcept:
    """Pending calls may run before fork has returned. Until restart_ns the call is put off."""
    if now_ns() < restart_ns and Py_AddPendingCall(restart_sampler, NULL) == 0:
        return 0
    with nogil:
        probe_restart_sampler()
    return 0


def resume_after_fork(bint later):
    """The parent's side of a fork: restart the sampler.

    later: restart it 5 ms later, when the main thread runs Python code, or at the next task begin.
    """
    global restart_ns
    restart_ns = now_ns() + 5_000_000 if later else 0
    restart_sampler(NULL)


# -- notes for readers of the board

def claim_message(unsigned kind):
    """True for the first call with this kind in this process and its forked relatives.

    The caller then prints the message.
    """
    return probe_claim_message(kind) != 0


def note_exec():
    """Note on the board that this process is about to exec another program."""
    probe_note_exec()


def set_facts(bytes text):
    """Publish JSON about this program; False without a board, or if the text is too long."""
    return probe_set_facts(<const char *>text, len(text)) == 0


def note_dask_hooks(uint64_t kind):
    """kind: one of DASK_HOOKS_*."""
    probe_note_dask_hooks(kind)


def note_unprobed_child():
    probe_note_unprobed_child()


# -- the task that a thread works for, as a number

def adopt_handle(uint64_t handle):
    """Let this thread work for that task, 0 for none; return the handle it worked for before.

    For pools of threads. Programs use `adopt`.
    """
    return probe_adopt(task_handle(word=handle)).word


def current_handle():
    """The handle of the task that this thread works for, or 0."""
    return probe_current().word


# -- Arrow's memory pools and threads. One thread at a time: the GIL is held.

def find_arrow_pools(bytes path):
    """path: the file of an extension of pyarrow. Raise OSError if its pools cannot be wrapped."""
    cdef int e = arrow_pool_find(path)
    if e < 0:
        raise OSError(-e, "find Arrow's memory pools")


def try_arrow_pool(use):
    """Wrap Arrow's system pool, call use(), and undo it.

    Return what the pool's functions were called with last: the bytes that were allocated,
    reallocated (before and after) and freed.
    """
    cdef arrow_trial seen
    arrow_pool_trial_begin()
    try:
        use()
    finally:
        arrow_pool_trial_end(&seen)
    return seen.allocated_bytes, seen.old_bytes, seen.new_bytes, seen.freed_bytes


def wrap_arrow_pools():
    """Account the blocks of Arrow's own allocators. Raise OSError if that cannot be done."""
    cdef int e = arrow_pool_wrap()
    if e < 0:
        raise OSError(-e, "wrap Arrow's memory pools")


def unwrap_arrow_pools():
    arrow_pool_unwrap()


def follow_arrow_threads(bytes path):
    """Follow tasks into Arrow's threads. Raise OSError if that cannot be done.

    path: the file of an extension of pyarrow.
    """
    cdef int e = arrow_threads_follow(path)
    if e < 0:
        raise OSError(-e, "follow tasks into Arrow's threads")


def leave_arrow_threads():
    arrow_threads_leave()


# -- checks for doctor and `run`, without a running probe

def try_board(bytes directory):
    """Create a board there and remove it. Raise OSError(errno, the step that failed)."""
    cdef board b
    cdef board_settings s
    cdef const char *failed_step = NULL
    memset(&s, 0, sizeof(s))
    s.directory = directory
    s.pid = os.getpid()
    cdef int e = probe_check_limits(&failed_step)
    if e == 0:
        e = board_create(&b, &s, &failed_step)
    if e == 0:
        e = board_grow(&b, &failed_step)
        board_unmap(&b, 1)
    if e < 0:
        raise OSError(-e, failed_step.decode())


def try_accounting():
    """(path of the object that provides malloc, whether calls to malloc can be intercepted)."""
    if probe_active():
        return os.fsdecode(patch_provider()), alloc_check_intact() != 0
    cdef bint works = alloc_start(ALLOC_LARGE_DEFAULT) == 0
    alloc_stop(0)
    return os.fsdecode(patch_provider()), works


def memory_limit(bytes proc_root=b"/proc", bytes cgroup_root=b"/sys/fs/cgroup"):
    cdef uint64_t limit = limit_bytes(proc_root, cgroup_root)
    return None if limit == board_layout.ABSENT else limit


# -- the other units of this shared object

# Cython unit → its names that Python finds in `_core`
UNITS = {
    "dwsr_probe.binding.features": ("describe_inputs", "describe_output"),
    "dwsr_probe.binding.contexts": ("Context", "Opcodes"),
    "dwsr_probe.binding.params": ("use_params",),
    "dwsr_probe.binding.tasks": (
        "OpenTask", "adopt", "call_block", "name_thread", "task", "unnamed_thread",
        "use_foreign_counter", "use_gc", "use_thread_names"),
    "dwsr_probe.binding.handover": (
        "FollowedCall", "FollowedCallback", "around_call_soon_threadsafe", "around_run",
        "around_write", "follow_call"),
    "dwsr_probe.binding.functions": ("Function",),
    "dwsr_probe.binding.selection": ("shape_of_selection",),
    "dwsr_probe.binding.graph": ("Observed", "Scope", "Walk", "walk_task"),
    "dwsr_probe.binding.graph_tasks": (
        "begin_graph_task", "end_graph_task", "end_with_message", "use_key_split", "use_workers"),
    "dwsr_probe.binding.board_layout": (
        "ABSENT", "BOARD_VERSION", "BOARD_VERSION_OLDEST", "OOM_ON_HOST", "PINNED",
        "BOARD_OPEN", "BOARD_CLOSED", "BOARD_CLOSED_ERROR",
        "ALLOC_OFF", "ALLOC_ON", "ALLOC_UNAVAILABLE",
        "DASK_HOOKS_NONE", "DASK_HOOKS_WRAPPED", "DASK_HOOKS_TRANSITIONS",
        "GPU_HOOK_NONE", "GPU_HOOK_ON", "GPU_HOOK_OFF",
        "NVML_NONE", "NVML_OK", "NVML_NO_MODULE", "NVML_NO_DRIVER", "NVML_DENIED", "NVML_LOST",
        "NVML_FAILED", "NVML_STATES",
        "RSS_KERNEL", "RSS_SAMPLED",
        "TASK_NONE", "TASK_RUNNING", "TASK_OK", "TASK_ERROR", "TASK_CANCELLED", "TASK_KILLED",
        "ATTRIBUTION_EXACT", "ATTRIBUTION_SHARED",
        "REASON_NONE", "REASON_COROUTINE", "REASON_EVENT_LOOP", "REASON_NATIVE_THREADS",
        "REASON_UNOWNED_THREAD", "REASON_FOREIGN_ALLOCATOR", "REASON_INNER_TASKS",
        "HEADER_FIELDS", "HEADER_TEXTS", "LIVE_FIELDS", "TASK_FIELDS", "TASK_DEVICE_FIELDS",
        "OOM_FIELDS", "DEVICE_FIELDS", "TOTAL_FIELDS", "TOTAL_DEVICE_FIELDS", "SAMPLE_FIELDS"),
    "dwsr_probe.binding.board_reader": ("BoardError", "BoardReader", "Layout", "REASONS"),
    "dwsr_probe.gpu.hook": (
        "Allocator", "forget_allocator", "gpu_devices_used", "is_ours", "note_device",
        "note_device_identity", "note_gpu_hook", "note_nvml", "use_cupy"),
}
cdef dict unit_of = {name: unit for unit, names in UNITS.items() for name in names}
cdef tuple cimported = (
    "dwsr_probe.binding.features", "dwsr_probe.binding.contexts", "dwsr_probe.binding.params",
    "dwsr_probe.binding.tasks")
# unit → those that it cimports beside these
cdef dict cimported_by = {
    "dwsr_probe.binding.graph": ("dwsr_probe.binding.functions", "dwsr_probe.binding.selection"),
    "dwsr_probe.binding.graph_tasks": ("dwsr_probe.binding.graph",)}
cdef object load_lock = RLock()


cdef object load_unit(str unit):
    """Import a unit, whose init function is in this file (PEP 489 allows several in one).

    The units in `cimported` are loaded first, because other units cimport them, and so are those
    in `cimported_by`.
    """
    with load_lock:
        for needed in cimported_by.get(unit, ()):
            load_unit(needed)
        module = sys.modules.get(unit)
        if module is not None:
            return module
        loader = type(__loader__)(unit, __file__)
        spec = type(__spec__)(unit, loader, origin=__file__)
        module = loader.create_module(spec)
        module.__spec__, module.__loader__ = spec, loader
        sys.modules[unit] = module
        try:
            loader.exec_module(module)
        except BaseException:
            del sys.modules[unit]
            raise
        for name in UNITS[unit]:
            globals()[name] = getattr(module, name)
        return module


def __getattr__(name):
    unit = unit_of.get(name)
    if unit is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    for needed in cimported:  # the program may have removed them from sys.modules
        load_unit(needed)
    return getattr(load_unit(unit), name)


def __dir__():
    return sorted({*globals(), *unit_of})


for needed in cimported:
    load_unit(needed)
del needed
