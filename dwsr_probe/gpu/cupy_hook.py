"""Install our allocators (hook.pyx) before those that CuPy uses, follow the job's changes, and
remove ours again.

Called by dwsr_probe.probe after the job has imported cupy, so a job without CuPy pays nothing. A
failure prints one line on stderr; CuPy goes on without our allocators.
"""

from __future__ import annotations

import functools
import warnings
from weakref import WeakValueDictionary

from dwsr_probe import _core, follow
from dwsr_probe.gpu import monitor
from dwsr_probe.say import say_once

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    Allocate = Callable[[int], Any]

_replaced: list[tuple[Any, str, Any, Any]] = []  # (module, name, original, ours)
_memory: Any = None  # CuPy's modules, while hooked
_pinned_memory: Any = None
_originals: dict[str, Any] = {}  # CuPy's own functions by name
# (the job's allocator, pinned) → ours, so that one allocator has one wrapper
_allocators: WeakValueDictionary[tuple[Allocate, bool], _core.Allocator] = WeakValueDictionary()
# The job's allocator of page-locked memory: CuPy has no function that returns it.
_pinned_inner: Allocate | None = None


def hook(cupy: Any, at_import: bool = True) -> None:
    """at_import: CuPy has just been imported, and nobody has changed its allocators yet."""
    if _memory is not None:
        return
    try:
        _install(cupy, at_import)
    except BaseException:
        unhook(_core.GPU_HOOK_OFF)
        raise
    monitor.start_again()  # devices may be in use from before a restart


def is_hooked() -> bool:
    return _memory is not None


def _install(cupy: Any, at_import: bool) -> None:
    global _memory, _pinned_memory, _pinned_inner
    memory, pinned = cupy.cuda.memory, cupy.cuda.pinned_memory
    _originals.update(
        set_allocator=memory.set_allocator,
        get_allocator=memory.get_allocator,
        set_thread_local=memory._set_thread_local_allocator,
        get_thread_local=memory._get_thread_local_allocator,
        set_pinned=pinned.set_pinned_memory_allocator,
    )
    _memory, _pinned_memory = memory, pinned  # from now on there is something to undo
    monitor.use(cupy)
    _core.use_cupy(
        memory,
        stand_in=_stand_in_class(memory.UnownedMemory),
        device_of_thread=cupy.cuda.runtime.getDevice,
        install=_install_before,
        on_first_use=monitor.start,
        on_failure=_on_failure,
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
    follow.watch_threads()
    _core.note_gpu_hook(_core.GPU_HOOK_ON, pinned=_pinned_inner is not None)


def unhook(state: int = _core.GPU_HOOK_NONE) -> None:
    """Restore CuPy. Where another thread is inside `using_allocator`, our allocator stays until
    that block ends, and only passes calls on."""
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
    with warnings.catch_warnings():  # the job has seen CuPy's on experimental allocators already
        warnings.simplefilter("ignore")
        _change_allocators(_unwrapped)
    if _pinned_inner is not None:
        _originals["set_pinned"](_pinned_inner)
        _pinned_inner = None


def _on_failure(error: Exception) -> None:
    """Called once, inside an allocation, which must succeed whatever happens here."""
    if _memory is None:  # another thread has stopped the probe meanwhile
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


def _is_out_of_memory(error: BaseException) -> bool:
    """CuPy's OutOfMemoryError, RMM's, or a CUDARuntimeError with cudaErrorMemoryAllocation."""
    return isinstance(error, MemoryError) or getattr(error, "status", None) == 2


def _stand_in_class(unowned: Any) -> type:
    """A class of memory that is handed out in place of the job's memory and passes on its
    attributes. Managed memory has methods of its own, RMM's memory has an owner."""
    token_of = unowned._owner.__get__

    class FollowedMemory(unowned):
        __slots__ = ()

        @property
        def _owner(self) -> Any:
            return token_of(self).memory.mem._owner

        def __getattr__(self, name: str) -> Any:
            return getattr(token_of(self).memory.mem, name)

    return FollowedMemory


def _wrapped(allocator: Any, pinned: bool = False) -> Allocate:
    """Our allocator around one of the job's."""
    if _core.is_ours(allocator):
        return allocator
    try:
        ours = _allocators.get((allocator, pinned))
        # Bound methods of one pool are equal, but not identical. Other allocators may be equal
        # and yet different.
        if ours is None or (ours.inner is not allocator and not hasattr(allocator, "__self__")):
            ours = _allocators[allocator, pinned] = _core.Allocator(allocator, pinned)
    except TypeError:  # not hashable
        ours = _core.Allocator(allocator, pinned)
    return ours.malloc


def _unwrapped(allocator: Any) -> Allocate:
    """The job's allocator behind one of ours."""
    return allocator.__self__.inner if _core.is_ours(allocator) else allocator


def _install_before(current: Allocate) -> None:
    """Wrap the calling thread's current allocator: the thread's own inside using_allocator, else
    the global one."""
    if _originals["get_thread_local"]() is not None:
        _originals["set_thread_local"](_wrapped(current))
    else:
        _originals["set_allocator"](_wrapped(current))


def _change_allocators(change: Callable[[Any], Allocate]) -> None:
    """Change the calling thread's allocator and the global one. CuPy refuses to change the global
    one inside using_allocator, so the thread's own is removed meanwhile."""
    local = _originals["get_thread_local"]()
    _originals["set_thread_local"](None)
    try:
        _originals["set_allocator"](change(_originals["get_allocator"]()))
    finally:
        _originals["set_thread_local"](None if local is None else change(local))


def _replace(module: Any, name: str, around: Callable[[Any], Any]) -> None:
    original = getattr(module, name)
    ours = functools.wraps(original)(around(original))
    _replaced.append((module, name, original, ours))
    setattr(module, name, ours)


# The job may have imported the functions below by name and call them after the stop. Then they do
# what CuPy's own do.


def _around_set_allocator(original: Any) -> Any:
    def set_allocator(allocator: Any = None) -> None:
        original(allocator)  # its own errors and warnings
        try:
            if _memory is not None:
                _core.forget_allocator()
                original(_wrapped(_originals["get_allocator"]()))
        except Exception as error:
            _on_failure(error)

    return set_allocator


def _around_get_allocator(original: Any) -> Any:
    def get_allocator() -> Allocate:
        return _unwrapped(original())

    return get_allocator


def _around_set_thread_local(original: Any) -> Any:
    def _set_thread_local_allocator(allocator: Any) -> None:
        original(allocator)
        try:
            if _memory is not None:
                _core.forget_allocator()
                original(None if allocator is None else _wrapped(allocator))
        except Exception as error:
            _on_failure(error)

    return _set_thread_local_allocator


def _around_set_pinned(original: Any) -> Any:
    def set_pinned_memory_allocator(allocator: Any = None) -> None:
        global _pinned_inner
        original(allocator)
        try:
            if _memory is not None:
                _pinned_inner = (
                    _pinned_memory._malloc if allocator is None else _unwrapped(allocator)
                )
                original(_wrapped(_pinned_inner, pinned=True))
                _core.note_gpu_hook(_core.GPU_HOOK_ON, pinned=True)
        except Exception as error:
            _on_failure(error)

    return set_pinned_memory_allocator
