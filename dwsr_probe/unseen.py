"""What the accounting cannot see by itself: work that is handed to a thread pool, and allocators
that are linked into a library.

Runs in the probed process, called by probe.py and gpu/cupy_hook.py. Nothing is imported before the
job imports it.
"""

from __future__ import annotations

import os
import sys

from dwsr_probe import _core
from dwsr_probe.imports import Replacement, forget, when_imported

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_watching = _watching_pools = False
_replacements: list[Replacement] = []


def watch() -> None:
    """Hook thread pools and allocators inside libraries. Called when the probe starts."""
    global _watching
    if not _watching:
        _watching = True
        watch_pools()
        if "t" in sys.abiflags or os.environ.get("PYTHONMALLOC", "").startswith("mimalloc"):
            # Python's own mimalloc maps memory in ways that look like reservations. Every task is
            # marked: each call of `object` gives a new object, so the count always differs.
            _core.use_foreign_counter(object)
        else:
            when_imported("pyarrow", _hook_pyarrow)


def watch_pools() -> None:
    """Hook thread pools. Also called where only device memory is accounted, not malloc."""
    global _watching_pools
    if not _watching_pools:
        _watching_pools = True
        when_imported("concurrent.futures.thread", _hook_pools)


def unwatch() -> None:
    """Undo watch() and watch_pools(). Called when the probe stops."""
    global _watching, _watching_pools
    _watching = _watching_pools = False
    forget(_hook_pools, _hook_pyarrow)
    _core.use_foreign_counter(None)
    while _replacements:
        _replacements.pop().undo()


def _hook_pools(thread: Any) -> None:
    """Work that a task submits to a ThreadPoolExecutor is accounted to that task, also in a pool
    that is older than the task."""
    item = thread._WorkItem
    original_init, original_run = item.__init__, item.run

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        original_init(self, *args, **kwargs)
        handle = _core.current_handle()
        if handle:
            self._dwsr_probe_task = handle

    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        handle = self.__dict__.get("_dwsr_probe_task")
        if handle is None:
            return original_run(self, *args, **kwargs)
        before = _core.adopt_handle(handle)
        try:
            return original_run(self, *args, **kwargs)
        finally:
            _core.adopt_handle(before)

    _replacements.append(Replacement(item, "__init__", __init__))
    _replacements.append(Replacement(item, "run", run))


def _hook_pyarrow(pyarrow: Any) -> None:
    """Arrow's own mimalloc or jemalloc is inside its library. Tasks during which its number of
    allocations changes are marked."""
    pool = pyarrow.default_memory_pool()
    if pool.backend_name != "system":
        # Arrow before 19 has no count: all tasks are marked
        _core.use_foreign_counter(getattr(pool, "num_allocations", object))
