"""Attach the probe to a worker and detach it again, for the preload and the plugin. A worker must never notice: nothing here raises."""
import logging
import os
import sys

from dwsr_probe import _core, probe
from dwsr_probe.dask import dead, hooks, workers

logger = logging.getLogger("dwsr_probe")
_attached = set()  # ids of workers
_ours = False  # the probe was started here, not by `dwsr-probe run`


def attach(worker, **options):
    """Start the probe if there is none, hook Dask, follow the worker, and take over what a killed predecessor left. True if it is measured."""
    global _ours
    try:
        if not _core.active():
            if not probe.start(**options):
                logger.warning("dwsr-probe could not start in this worker: its tasks are not measured. Run dwsr-probe doctor there")
                return False
            _ours = True
        hooks.hook_worker(sys.modules["distributed.worker"])
        if "dask.local" in sys.modules:
            hooks.hook_local(sys.modules["dask.local"])
        workers.follow(worker)
        workers.publish(worker)
        _attached.add(id(worker))
        if _ours:  # under `run` its parent collects
            dead.adopt(os.path.dirname(_core.board_path()), workers.facts_of(worker))
        return True
    except Exception as error:
        logger.warning("dwsr-probe could not attach to this worker: %r. Its tasks are not measured", error)
        return False


def detach(worker):
    """Undo attach; with the last worker the probe itself, if it was started here."""
    global _ours
    try:
        workers.forget(worker)
        _attached.discard(id(worker))
        if _ours and not _attached:
            hooks.unhook()
            probe.stop()
            dead.forget()
            _ours = False
    except Exception as error:
        logger.warning("dwsr-probe could not detach cleanly: %r", error)
