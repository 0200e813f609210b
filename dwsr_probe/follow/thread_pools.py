"""Work that a task hands to a `multiprocessing.pool.ThreadPool` is accounted to that task, also in
a pool that is older than the task. Pools of processes stay as they are: nothing more is pickled.

joblib's threading backend is such a pool. Its callbacks submit the next calls, so callbacks are
followed, too.
"""

from __future__ import annotations

from dwsr_probe import _core
from dwsr_probe.imports import Replacement

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

_replacements: list[Replacement] = []


def hook(module: Any) -> None:
    """module: multiprocessing.pool."""
    pool, result, thread_pool = module.Pool, module.ApplyResult, module.ThreadPool
    original_apply = pool.apply_async
    original_generation = pool._guarded_task_generation
    original_init = result.__init__

    def apply_async(self: Any, func: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(self, thread_pool):
            func = _core.follow_call(func)
        return original_apply(self, func, *args, **kwargs)

    def _guarded_task_generation(self: Any, result_job: Any, func: Any, iterable: Any) -> Any:
        """All kinds of map call it in the user's thread. What it returns is iterated over in a
        thread of the pool."""
        if not isinstance(self, thread_pool) or not (handle := _core.current_handle()):
            return original_generation(self, result_job, func, iterable)
        followed = original_generation(self, result_job, _core.follow_call(func), iterable)
        return _for_task(handle, followed)

    def __init__(self: Any, pool: Any, callback: Any, error_callback: Any) -> None:
        if isinstance(pool, thread_pool):
            callback = callback and _core.follow_call(callback)
            error_callback = error_callback and _core.follow_call(error_callback)
        original_init(self, pool, callback, error_callback)

    _replacements.append(Replacement(pool, "apply_async", apply_async))
    _replacements.append(Replacement(pool, "_guarded_task_generation", _guarded_task_generation))
    _replacements.append(Replacement(result, "__init__", __init__))


def _for_task(handle: int, items: Iterator[Any]) -> Iterator[Any]:
    """The items, each of them made while the thread works for the task."""
    while True:
        before = _core.adopt_handle(handle)
        try:
            item = next(items)
        except StopIteration:
            return
        finally:
            _core.adopt_handle(before)
        yield item
        del item  # the pool does not keep it either


def unhook() -> None:
    while _replacements:
        _replacements.pop().undo()
