"""Attach the probe to a worker and detach it again, for the preload and the plugin. A worker
must never notice: nothing here raises."""

import logging
import os
import sys

from dwsr_probe import _core, probe
from dwsr_probe.dask import dead, held, hooks, roll, workers

logger = logging.getLogger("dwsr_probe")
_owners = {}  # id of a worker → who wants it measured: "preload", "plugin"
_ours = False  # the probe was started here, not by `dwsr-probe run`


def attach(worker, owner, **options):
    """Start the probe if there is none, hook Dask, follow the worker, and take over what a
    killed predecessor left. True if it is measured."""
    global _ours
    try:
        if not _core.active():
            if not probe.start(**options):
                logger.warning(
                    "dwsr-probe could not start in this worker: its tasks are not measured. Run"
                    " dwsr-probe doctor there"
                )
                return False
            _ours = True
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
    if _ours:  # under `run` its parent collects
        try:
            dead.adopt(os.path.dirname(_core.board_path()), workers.facts_of(worker))
        except Exception as error:
            logger.warning("dwsr-probe could not look for boards of killed workers: %r", error)
    workers.publish(worker)  # it announces the worker: by then it has what its predecessor left
    return True


def detach(worker, owner):
    """Undo attach; with the last owner of the last worker the probe itself, if it was started
    here. A worker that works on keeps its records.

    A turn of the event loop later: who registers the plugin again has it torn down first.
    """
    try:
        owners = _owners.get(id(worker), set())
        owners.discard(owner)
        if owners or not _ours:
            return
        _owners.pop(id(worker), None)
        if worker.status.name in ("closing", "closed", "failed"):
            _leave(worker)
        else:
            worker.loop.add_callback(_leave, worker)
    except Exception as error:
        logger.warning("dwsr-probe could not detach cleanly: %r", error)


def _leave(worker):
    global _ours
    try:
        if id(worker) in _owners or not _ours:
            return
        closing = worker.status.name not in ("running", "paused")
        roll.leave(worker)
        workers.forget(worker)
        if not _owners:
            hooks.unhook()
            workers.forget_all()
            board = _core.board_path()
            if closing:
                dead.forget()
            probe.stop(keep_board=not closing)
            if not closing:
                held.keep([*dead.release(), board])
            _ours = False
    except Exception as error:
        logger.warning("dwsr-probe could not detach cleanly: %r", error)
