"""Attach the probe to a worker and detach it again. The preload and the plugin call it.

Nothing here raises: a failure is a line in the worker's log, and the worker goes on.
"""

from __future__ import annotations

import logging
import os
import sys

from dwsr_probe import _core, probe
from dwsr_probe.dask import dead, held, hooks, roll, workers

logger = logging.getLogger("dwsr_probe")

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from distributed import Worker

_owners: dict[int, set[str]] = {}  # id of a worker → who attached it: "preload", "plugin"
_started_here = False  # the probe was started here, not by `dwsr-probe run`


def attach(worker: Worker, owner: str, **options: Any) -> bool:
    """Start the probe if there is none, hook Dask, follow the worker, and take over the board of a
    killed predecessor. True if the worker is measured."""
    global _started_here
    try:
        if not _core.active():
            if not probe.start(**options):
                logger.warning(
                    "dwsr-probe could not start in this worker: its tasks are not measured. Run"
                    " dwsr-probe doctor there"
                )
                return False
            _started_here = True
        hooks.hook_worker(sys.modules["distributed.worker"])
        if "dask.local" in sys.modules:
            hooks.hook_local(sys.modules["dask.local"])
        workers.follow(worker)
        _owners.setdefault(id(worker), set()).add(owner)
    except Exception as error:
        logger.warning(
            "dwsr-probe could not attach to this worker: %r. Its tasks are not measured", error
        )
        return False
    board = _core.board_path()
    if _started_here and board:  # under `run`, its parent collects boards of killed workers
        try:
            dead.adopt(os.path.dirname(board), workers.facts_of(worker))
        except Exception as error:
            logger.warning("dwsr-probe could not look for boards of killed workers: %r", error)
    workers.publish(worker)  # announces the worker, so it comes after its predecessor's board
    return True


def detach(worker: Worker, owner: str) -> None:
    """Undo `attach`. With the last owner of the last worker the probe stops, if it was started
    here. A worker that goes on keeps its records.

    One turn of the event loop later: Dask tears a plugin down before it registers it again.
    """
    try:
        owners = _owners.get(id(worker), set())
        owners.discard(owner)
        if owners or not _started_here:
            return
        _owners.pop(id(worker), None)
        if worker.status.name in ("closing", "closed", "failed"):
            _detach_now(worker)
        else:
            worker.loop.add_callback(_detach_now, worker)
    except Exception as error:
        logger.warning("dwsr-probe could not detach cleanly: %r", error)


def _detach_now(worker: Worker) -> None:
    global _started_here
    try:
        if id(worker) in _owners or not _started_here:
            return
        closing = worker.status.name not in ("running", "paused")
        roll.announce_leave(worker)
        workers.unfollow(worker)
        if not _owners:
            hooks.unhook()
            workers.unregister_all()
            board = _core.board_path()
            if closing:
                dead.remove_all()
            probe.stop(keep_board=not closing)
            if not closing:
                held.keep([*dead.hand_over(), *([board] if board else [])])
            _started_here = False
    except Exception as error:
        logger.warning("dwsr-probe could not detach cleanly: %r", error)
