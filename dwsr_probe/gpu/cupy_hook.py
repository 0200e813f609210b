"""Put our allocators before CuPy's, keep them there, take them out again. The allocators
themselves are in hook.pyx.

Called when the job has imported cupy, never before: a job without it pays nothing. What fails
here is one line on stderr; CuPy works on without us.
"""

import functools
import warnings
from weakref import WeakValueDictionary

from dwsr_probe import _core, unseen
from dwsr_probe.gpu import monitor
from dwsr_probe.say import say_once

_replaced = []  # (module, name, original, ours)
_memory = _pinned_memory = None  # CuPy's modules, while hooked
_originals = {}  # CuPy's own functions by name
# the job's allocator → ours: asked for twice, it is the same one
_allocators = WeakValueDictionary()
_pinned_inner = None  # CuPy does not tell which allocator of page-locked memory is in use


def hook(cupy, at_import=True):
    """at_import: CuPy has just been imported, and nobody has changed its allocators yet."""
    if _memory is not None:
        return
    try:
        _install(cupy, at_import)
    except BaseException:
        unhook(_core.GPU_HOOK_OFF)
        raise
    monitor.start_again()  # devices may be in use from before a restart


def is_hooked():
    return _memory is not None


def _install(cupy, at_import):
    global _memory, _pinned_memory, _pinned_inner
    memory, pinned = cupy.cuda.memory, cupy.cuda.pinned_memory
    _originals.update(
        set_allocator=memory.set_allocator,
        get_allocator=memory.get_allocator,
        set_thread_local=memory._set_thread_local_allocator,
        get_thread_local=memory._get_thread_local_allocator,
        set_pinned=pinned.set_pinned_memory_allocator,
    )
    _memory, _pinned_memory = memory, pinned  # from here on there is something to undo
    monitor.use(cupy)
    _core.use_cupy(
        memory,
        stand_in=_standing_in(memory.UnownedMemory),
        device_of_thread=cupy.cuda.runtime.getDevice,
        install=_put_in_place,
        on_first_use=monitor.start,
        on_failure=_failed,
        out_of_memory=_is_out_of_memory,
    )
    for module in (memory, cupy.cuda):
        _replace(module, "set_allocator", _around_set_allocator)
        _replace(module, "get_allocator", _around_get_allocator)
    _replace(memory, "_set_thread_local_allocator", _around_set_thread_local)
    for module in (pinned, cupy.cuda):
        _replace(module, "set_pinned_memory_allocator", _around_set_pinned)
    _change_allocators(_wrapped)
    if at_import:
        _pinned_inner = cupy.get_default_pinned_memory_pool().malloc
        _originals["set_pinned"](_wrapped(_pinned_inner, pinned=True))
    unseen.watch_pools()
    _core.note_gpu_hook(_core.GPU_HOOK_ON, pinned=_pinned_inner is not None)


def unhook(state=_core.GPU_HOOK_NONE):
    """CuPy as it was. An allocator that another thread uses inside `using_allocator` stays until
    that ends, and only passes on."""
    global _memory, _pinned_memory, _pinned_inner
    _core.note_gpu_hook(state)
    if _memory is None:
        return
    _memory = _pinned_memory = None
    monitor.use(None)
    monitor.stop()
    for module, name, original, ours in reversed(_replaced):
        if getattr(module, name) is ours:
            setattr(module, name, original)
    _replaced.clear()
    with warnings.catch_warnings():  # CuPy's about experimental allocators: the job has had them
        warnings.simplefilter("ignore")
        _change_allocators(_bare)
    if _pinned_inner is not None:
        _originals["set_pinned"](_pinned_inner)
        _pinned_inner = None


def _failed(error):
    """Called once, from inside an allocation: that must succeed whatever happens here."""
    if _memory is None:  # stopped at the same moment
        return
    try:
        say_once(
            "cupy memory",
            f"the hook on CuPy's memory failed: {error!r}; device memory of tasks is not measured"
            " from here on",
        )
        unhook(_core.GPU_HOOK_OFF)
    except Exception:
        _core.note_gpu_hook(_core.GPU_HOOK_OFF)


def _is_out_of_memory(error):
    """CuPy's OutOfMemoryError, RMM's, or the CUDA runtime's own."""
    return isinstance(error, MemoryError) or getattr(error, "status", None) == 2


def _standing_in(unowned):
    """A class of memory that stands for the job's own and answers as that would: managed memory
    has methods, RMM's an owner."""
    token_of = unowned._owner.__get__

    class FollowedMemory(unowned):
        __slots__ = ()

        @property
        def _owner(self):
            return token_of(self).memory.mem._owner

        def __getattr__(self, name):
            return getattr(token_of(self).memory.mem, name)

    return FollowedMemory


def _wrapped(allocator, pinned=False):
    if _core.is_ours(allocator):
        return allocator
    try:
        ours = _allocators.get((allocator, pinned))
        # A pool's method is a new object each time; other allocators may be equal and not the same.
        if ours is None or (ours.inner is not allocator and not hasattr(allocator, "__self__")):
            ours = _allocators[allocator, pinned] = _core.Allocator(allocator, pinned)
    except TypeError:  # cannot be hashed
        ours = _core.Allocator(allocator, pinned)
    return ours.malloc


def _bare(allocator):
    return allocator.__self__.inner if _core.is_ours(allocator) else allocator


def _put_in_place(current):
    """Wrap the calling thread's current allocator: its own inside using_allocator, else the
    global one."""
    if _originals["get_thread_local"]() is not None:
        _originals["set_thread_local"](_wrapped(current))
    else:
        _originals["set_allocator"](_wrapped(current))


def _change_allocators(change):
    """The calling thread's and the global one, which CuPy does not let us change inside
    using_allocator."""
    local = _originals["get_thread_local"]()
    _originals["set_thread_local"](None)
    try:
        _originals["set_allocator"](change(_originals["get_allocator"]()))
    finally:
        _originals["set_thread_local"](None if local is None else change(local))


def _replace(module, name, around):
    original = getattr(module, name)
    ours = functools.wraps(original)(around(original))
    _replaced.append((module, name, original, ours))
    setattr(module, name, ours)


# The job may have imported these by name and call them after the stop: then they do what CuPy's own
# do.


def _around_set_allocator(original):
    def set_allocator(allocator=None):
        original(allocator)  # its own errors and warnings
        try:
            if _memory is not None:
                _core.forget_allocator()
                original(_wrapped(_originals["get_allocator"]()))
        except Exception as error:
            _failed(error)

    return set_allocator


def _around_get_allocator(original):
    def get_allocator():
        return _bare(original())

    return get_allocator


def _around_set_thread_local(original):
    def _set_thread_local_allocator(allocator):
        original(allocator)
        try:
            if _memory is not None:
                _core.forget_allocator()
                original(None if allocator is None else _wrapped(allocator))
        except Exception as error:
            _failed(error)

    return _set_thread_local_allocator


def _around_set_pinned(original):
    def set_pinned_memory_allocator(allocator=None):
        global _pinned_inner
        original(allocator)
        try:
            if _memory is not None:
                _pinned_inner = _pinned_memory._malloc if allocator is None else _bare(allocator)
                original(_wrapped(_pinned_inner, pinned=True))
                _core.note_gpu_hook(_core.GPU_HOOK_ON, pinned=True)
        except Exception as error:
            _failed(error)

    return set_pinned_memory_allocator
