"""Put our allocators before CuPy's, keep them there, take them out again. The allocators themselves are in hook.pxi.

Called when the job has imported cupy, never before: a job without it pays nothing. What fails here is one line on stderr; CuPy works on without us.
"""
import functools
from weakref import WeakValueDictionary

from dwsr_probe import _core, unseen
from dwsr_probe.gpu import monitor
from dwsr_probe.say import say

_replaced = []  # (module, name, original, ours)
_memory = _pinned_memory = None  # CuPy's modules, while hooked
_originals = {}  # CuPy's own functions by name
_allocators = WeakValueDictionary()  # the job's allocator → ours: asked for twice, it is the same one
_pinned_inner = None  # CuPy does not tell which allocator of page-locked memory is in use


def hook(cupy, at_import=True):
    """at_import: CuPy has just been imported, and nobody has changed its allocators yet."""
    global _memory, _pinned_memory, _pinned_inner
    if _memory is not None:
        return
    memory, pinned = cupy.cuda.memory, cupy.cuda.pinned_memory
    _memory, _pinned_memory = memory, pinned
    _originals.update(set_allocator=memory.set_allocator, set_thread_local=memory._set_thread_local_allocator,
                      get_thread_local=memory._get_thread_local_allocator, set_pinned=pinned.set_pinned_memory_allocator)
    monitor.use(cupy)
    _core.use_cupy(memory, cupy.cuda.runtime.getDevice, _put_in_place, monitor.start, _failed)
    for module in (memory, cupy.cuda):
        _replace(module, "set_allocator", _around_set_allocator)
    _replace(memory, "_set_thread_local_allocator", _around_set_thread_local)
    for module in (pinned, cupy.cuda):
        _replace(module, "set_pinned_memory_allocator", _around_set_pinned)
    _put_in_place(memory.get_allocator())
    if at_import:
        _pinned_inner = cupy.get_default_pinned_memory_pool().malloc
        _originals["set_pinned"](_wrapped(_pinned_inner, pinned=True))
    unseen.watch_pools()
    _core.note_gpu_hook("on", pinned=_pinned_inner is not None)
    monitor.start_again()  # devices may be in use from before a restart


def unhook(state="none"):
    """CuPy as it was. An allocator that another thread uses inside `using_allocator` stays until that ends, and only passes on."""
    global _memory, _pinned_memory, _pinned_inner
    if _memory is None:
        return
    monitor.use(None)
    monitor.stop()
    for module, name, original, ours in reversed(_replaced):
        if getattr(module, name) is ours:
            setattr(module, name, original)
    _replaced.clear()
    local = _originals["get_thread_local"]()
    _originals["set_thread_local"](None)  # the global one cannot be changed inside using_allocator
    current = _memory.get_allocator()
    if _core.is_ours(current):
        _originals["set_allocator"](current.__self__.inner)
    _originals["set_thread_local"](local.__self__.inner if _core.is_ours(local) else local)
    if _pinned_inner is not None:
        _originals["set_pinned"](_pinned_inner)
    _memory = _pinned_memory = _pinned_inner = None
    _core.note_gpu_hook(state)


def _failed(error):
    """Called once, from inside an allocation: that must succeed whatever happens here."""
    try:
        say(f"the hook on CuPy's memory failed: {error!r}; device memory of tasks is not measured from here on")
        unhook("off")
    except Exception:
        _core.note_gpu_hook("off")


def _wrapped(allocator, pinned=False):
    if _core.is_ours(allocator):
        return allocator
    try:
        ours = _allocators.get((allocator, pinned))
        if ours is None:
            ours = _allocators[allocator, pinned] = _core.Allocator(allocator, pinned)
    except TypeError:  # cannot be hashed
        ours = _core.Allocator(allocator, pinned)
    return ours.malloc


def _put_in_place(current):
    """Wrap the calling thread's current allocator: its own inside using_allocator, else the global one."""
    if _originals["get_thread_local"]() is not None:
        _originals["set_thread_local"](_wrapped(current))
    else:
        _originals["set_allocator"](_wrapped(current))


def _replace(module, name, around):
    original = getattr(module, name)
    ours = functools.wraps(original)(around(original))
    _replaced.append((module, name, original, ours))
    setattr(module, name, ours)


def _around_set_allocator(original):
    def set_allocator(allocator=None):
        original(allocator)  # its own errors and warnings
        try:
            original(_wrapped(_memory.get_allocator()))
        except Exception as error:
            _failed(error)

    return set_allocator


def _around_set_thread_local(original):
    def _set_thread_local_allocator(allocator):
        original(allocator)
        try:
            if allocator is not None:
                original(_wrapped(allocator))
        except Exception as error:
            _failed(error)

    return _set_thread_local_allocator


def _around_set_pinned(original):
    def set_pinned_memory_allocator(allocator=None):
        global _pinned_inner
        original(allocator)
        try:
            inner = _pinned_memory._malloc if allocator is None else allocator
            _pinned_inner = inner.__self__.inner if _core.is_ours(inner) else inner
            original(_wrapped(_pinned_inner, pinned=True))
            _core.note_gpu_hook("on", pinned=True)
        except Exception as error:
            _failed(error)

    return set_pinned_memory_allocator
