"""What the accounting cannot see by itself: work that is handed to a pool, and allocators that
are linked into a library.

Runs in the probed process, with nothing imported until the job imports it.
"""

import os
import sys

from dwsr_probe import _core
from dwsr_probe.imports import forget, when_imported

_watching = _watching_pools = False
_replaced = []  # (owner, name, original, ours)


def watch():
    """From start to stop."""
    global _watching
    if not _watching:
        _watching = True
        watch_pools()
        if "t" in sys.abiflags or os.environ.get("PYTHONMALLOC", "").startswith("mimalloc"):
            # Python's own mimalloc maps its memory in ways that look like reservations: never the
            # same twice
            _core.use_foreign_count(object)
        else:
            when_imported("pyarrow", _hook_pyarrow)


def watch_pools():
    """Also for device memory alone, where nobody accounts malloc's."""
    global _watching_pools
    if not _watching_pools:
        _watching_pools = True
        when_imported("concurrent.futures.thread", _hook_pools)


def unwatch():
    """Undo it: the next start begins anew."""
    global _watching, _watching_pools
    _watching = _watching_pools = False
    forget(_hook_pools, _hook_pyarrow)
    _core.use_foreign_count(None)
    while _replaced:
        owner, name, original, ours = _replaced.pop()
        if getattr(owner, name) is ours:
            setattr(owner, name, original)


def _hook_pools(thread):
    """What a task submits to a ThreadPoolExecutor works for that task, also in a pool that is
    older than the task."""
    item = thread._WorkItem
    original_init, original_run = item.__init__, item.run

    def __init__(self, *args, **kwargs):
        original_init(self, *args, **kwargs)
        handle = _core.current_handle()
        if handle:
            self._dwsr_probe_task = handle

    def run(self, *args, **kwargs):
        handle = self.__dict__.get("_dwsr_probe_task")
        if handle is None:
            return original_run(self, *args, **kwargs)
        before = _core.adopt_handle(handle)
        try:
            return original_run(self, *args, **kwargs)
        finally:
            _core.adopt_handle(before)

    for name, original, ours in (("__init__", original_init, __init__), ("run", original_run, run)):
        _replaced.append((item, name, original, ours))
        setattr(item, name, ours)


def _hook_pyarrow(pyarrow):
    """Arrow's own mimalloc or jemalloc is inside its library: what it allocates is counted here,
    to mark the tasks that use it."""
    pool = pyarrow.default_memory_pool()
    if pool.backend_name != "system":
        # before Arrow 19 it cannot be told: then all tasks
        _core.use_foreign_count(getattr(pool, "num_allocations", object))
