"""Work and memory that the accounting cannot see by itself: work that a task hands to other
threads, and allocators inside libraries. Each is followed, or the task is marked.

Runs in the probed process, called by probe.py and gpu/cupy_hook.py. One module here for each kind,
loaded once the job has imported what it hooks; nothing is imported for the job.
"""

from __future__ import annotations

import os
import sys

from dwsr_probe import _core
from dwsr_probe.follow import threads  # an import inside a task would be counted for it
from dwsr_probe.imports import forget, when_imported

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType

# Module of the job → the module here that hooks it, and what is not followed if that fails. It has
# hook(module), called right after the import, and unhook().
_THREAD_HOOKS = {
    "concurrent.futures.thread": (
        "executors",
        "in ThreadPoolExecutors that are older than the task",
    ),
    "asyncio.base_events": ("loops", "in event loops of other threads"),
    "multiprocessing.pool": ("thread_pools", "in ThreadPools that are older than the task"),
}
_ALLOCATOR_HOOKS = {"pyarrow": ("arrow", "by Arrow's own allocators")}
_watched: set[str] = set()


def watch() -> None:
    """Follow threads and allocators. Called when the probe starts."""
    watch_threads()
    _core.use_thread_names(threads.name_all)
    if "t" in sys.abiflags or os.environ.get("PYTHONMALLOC", "").startswith("mimalloc"):
        # Python's own mimalloc maps memory in ways that look like reservations. Every task is
        # marked: each call of `object` gives a new object, so the count always differs.
        _core.use_foreign_counter(object)
    else:
        _watch(_ALLOCATOR_HOOKS)


def watch_threads() -> None:
    """Follow work that tasks hand to threads. Also called where only device memory is accounted,
    not malloc."""
    _watch(_THREAD_HOOKS)


def _watch(hooks: dict[str, tuple[str, str]]) -> None:
    for name, (_, where) in hooks.items():
        if name not in _watched:
            _watched.add(name)
            lost = f"memory that is allocated {where} is not counted for tasks; tasks that it may"
            lost += " belong to are marked `shared`"
            when_imported(name, _hook, lost)


def _hook(module: ModuleType) -> None:
    name, _ = (_THREAD_HOOKS | _ALLOCATOR_HOOKS)[module.__name__]
    # not importlib, which a plain interpreter has not loaded
    __import__(f"dwsr_probe.follow.{name}", fromlist=["hook"]).hook(module)


def unwatch() -> None:
    """Undo watch() and watch_threads(). Called when the probe stops."""
    _watched.clear()
    forget(_hook)
    _core.use_foreign_counter(None)
    _core.use_thread_names(None)
    for name, _ in (*_THREAD_HOOKS.values(), *_ALLOCATOR_HOOKS.values()):
        module = sys.modules.get(f"dwsr_probe.follow.{name}")
        if module is not None:
            module.unhook()
