"""Work that a task submits to a ThreadPoolExecutor is accounted to that task, also in a pool that
is older than the task."""

from __future__ import annotations

from dwsr_probe import _core
from dwsr_probe.imports import Replacement

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_replacements: list[Replacement] = []


def hook(thread: Any) -> None:
    """thread: the module concurrent.futures.thread."""
    item = thread._WorkItem
    original_init, original_run = item.__init__, item.run

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        original_init(self, *args, **kwargs)
        handle = _core.current_handle()
        if handle:
            self._dwsr_probe_task = handle

    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        handle = self.__dict__.get("_dwsr_probe_task")
        before = None if handle is None else _core.adopt_handle(handle)
        try:
            return original_run(self, *args, **kwargs)
        finally:
            # the traceback of a call that failed has this frame: it must not keep the arguments
            del self
            if before is not None:
                _core.adopt_handle(before)

    _replacements.append(Replacement(item, "__init__", __init__))
    _replacements.append(Replacement(item, "run", run))


def unhook() -> None:
    while _replacements:
        _replacements.pop().undo()
