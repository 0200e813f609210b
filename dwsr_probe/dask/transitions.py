"""Follow the tasks of Dask's unknown functions by their transitions, on the worker's event loop.

A worker plugin: Dask reports each change of a task's state to it. The event loop cannot tell whose
memory grew, so these tasks have shared attribution and no allocations of their own. Tasks of known
functions are measured by the wrappers in hooks.py, and left alone here. The wrappers ask
`is_followed`, so that no task is measured twice. Methods of actors have no transitions: hooks.py
follows them.
"""

from __future__ import annotations

from dwsr_probe import _core
from dwsr_probe.dask import functions

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Hashable
    from typing import Any

    from distributed import Worker

PLUGIN_NAME = "dwsr-probe-transitions"
RUNNING_STATES = ("executing", "long-running")
_followed: set[Hashable] = set()  # keys, of all workers in this process


def is_followed(key: Hashable) -> bool:
    """Whether the task with this key was begun here, and has not ended yet."""
    return key in _followed


def follow(worker: Worker) -> None:
    """Idempotent. Does nothing while all functions are known."""
    if functions.hooks_kind() == functions.TRANSITIONS and PLUGIN_NAME not in worker.plugins:
        worker.plugins[PLUGIN_NAME] = TransitionsPlugin(worker)


def unfollow(worker: Worker) -> None:
    """Undo `follow`; tasks that are followed now end as cancelled."""
    plugin = worker.plugins.pop(PLUGIN_NAME, None)
    if plugin is not None:
        plugin.teardown(worker)


def function_for(worker: Worker, key: Hashable) -> str | None:
    """The function that Worker.execute chooses for a task; None if that cannot be told."""
    try:
        task = worker.state.tasks[key]
        if task.run_spec.is_coro:
            return "_run_task_async"
        executor = worker.executors[task.annotations.get("executor", "default")]
    except Exception:
        return None
    return "_run_task" if "ThreadPoolExecutor" in str(type(executor)) else "_run_task_simple"


class TransitionsPlugin:
    """The plugin of one worker. Dask calls its methods on the worker's event loop."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self.entries: dict[Hashable, Any] = {}

    def setup(self, worker: Worker) -> None:
        pass

    def teardown(self, worker: Worker) -> None:
        for key in list(self.entries):
            self._end(key, None, cancelled=True)

    def transition(self, key: Hashable, start: str, finish: str, **_: Any) -> None:
        if finish in RUNNING_STATES and start not in RUNNING_STATES:
            if functions.is_unknown(function_for(self.worker, key)):
                _followed.add(key)
                self.entries[key] = _core.begin_graph_task(
                    key, None, None, self.worker, _core.REASON_EVENT_LOOP
                )
        elif start in RUNNING_STATES and finish not in RUNNING_STATES and key in self.entries:
            error = RuntimeError if finish == "error" else None
            self._end(key, error, finish in ("cancelled", "released", "forgotten"))

    def _end(self, key: Hashable, error: type[Exception] | None, cancelled: bool) -> None:
        _followed.discard(key)
        _core.end_graph_task(self.entries.pop(key), None, None, error, cancelled)
