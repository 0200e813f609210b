"""The model inside a Dask worker: it learns the worker's own records in a thread that takes at most
1 % of a core, and answers from memory. Off unless the setting `worker_model` is on.

    answer = worker_model.forecast(inputs, group)
    if answer is not None: answer.bound

`forecast` may be called in any thread. It takes one or two microseconds, never waits for the
learning thread, and never raises. dask/workers.py starts and stops the thread; one process has one,
however many workers are in it. A forked child has none.

To be read in this order: `waiting` (which record is learned next), `budget` (CPU time), `answers`
(what is answered from memory), `learning` (the thread). Nothing here imports numpy before the first
record.
"""

from __future__ import annotations

import atexit
import os

from dwsr_probe.worker_model.learning import LearningThread

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from dwsr_probe.predict.group import Group
    from dwsr_probe.worker_model.answers import Answer
    from dwsr_probe.worker_model.learning import KilledPredecessorRows

_current: LearningThread | None = None
_is_registered = False


def start(predecessors: KilledPredecessorRows | None = None) -> None:
    """Start the thread unless it runs. predecessors: rows of killed workers that this one succeeds;
    they are learned, too."""
    global _current, _is_registered
    if _current is not None:
        return
    if not _is_registered:
        _is_registered = True
        os.register_at_fork(
            before=_before_fork,
            after_in_parent=_after_fork_in_parent,
            after_in_child=_after_fork_in_child,
        )
        atexit.register(stop)
    thread = LearningThread(predecessors)
    thread.start()
    _current = thread


def stop() -> None:
    """End the thread and forget what it learned. Waits half a second at most."""
    global _current
    thread, _current = _current, None
    if thread is not None:
        thread.stop()


def forecast(
    inputs: list[dict[str, Any]], group: Group | str, params: dict[str, Any] | None = None
) -> Answer | None:
    """What a task of this group would need, as Model.predict says. None: the answer is not in
    memory (yet). The question is then answered by the thread, so a later call finds it."""
    thread = _current
    return None if thread is None else thread.answers.get(inputs, group, params)


def figures() -> dict[str, float] | None:
    """The thread's counters by the names of live.process.MODEL_FIGURES; None without a thread."""
    thread = _current
    return None if thread is None else thread.figures()


# A child that is forked while the thread imports numpy would find it half imported, for ever. So a
# fork waits until the thread is between two steps, for a second at most.


def _before_fork() -> None:
    if _current is not None:
        _current.pause()


def _after_fork_in_parent() -> None:
    if _current is not None:
        _current.resume()


def _after_fork_in_child() -> None:
    global _current
    _current = None
