"""Which workers were measured, in the scheduler's event log: so `records` knows of killed ones.

A worker that is killed is gone from the scheduler at once, and nothing there says that it had a
board. So each measured worker logs one event when it begins and one when it leaves. `announce` and
`leave` run in the workers, `gone` in the client.
"""

import logging
import os
from dataclasses import dataclass

from dwsr_probe import _core, probe

TOPIC = "dwsr-probe"
AGAIN_S = 0.05
logger = logging.getLogger("dwsr_probe")


@dataclass
class Gone:
    """A measured worker that ended without leaving, and in whose place no other one has begun."""

    address: str
    host: str
    board: str
    nanny: str | None  # restarts it; without one nobody may
    run: str | None  # `dwsr-probe run` collects its board

    @property
    def restarts(self):
        return bool(self.nanny) and not self.run


def announce(worker):
    """Once per worker and board. Dask drops what is logged before the stream to the scheduler is
    open, so a worker that is starting tries again until then."""
    path = _core.board_path()
    if path is None or getattr(worker, "_dwsr_probe_announced", None) == path:
        return
    if worker.batched_stream.comm is None:
        worker.loop.call_later(AGAIN_S, _announce_later, worker)
        return
    nanny = worker.nanny if isinstance(worker.nanny, str) else None
    worker.log_event(
        TOPIC,
        {
            "action": "begin",
            "name": str(worker.name)[:64],
            "nanny": nanny,
            "host": os.uname().nodename,
            "board": path,
            "run": probe.run_name(),
        },
    )
    worker._dwsr_probe_announced = path


def _announce_later(worker):
    try:
        if worker.status.name not in ("closing", "closed", "failed"):
            announce(worker)
    except Exception as error:  # on the worker's event loop
        logger.debug("dwsr-probe could not announce this worker: %r", error)


def leave(worker):
    """Cleanly: what it measured leaves with it, or is kept. Nobody waits for a successor."""
    if worker.__dict__.pop("_dwsr_probe_announced", None) is None:
        return
    try:
        worker.log_event(TOPIC, {"action": "leave"})
    except Exception as error:  # the stream to the scheduler is closed
        logger.debug("dwsr-probe could not say that this worker leaves: %r", error)


def gone(events, present):
    """By the events of our topic; present: addresses of the workers that answer."""
    begun = {}
    for _, event in events:
        address = event["worker"]
        if event["action"] == "begin":
            for other, its in list(begun.items()):
                if _same_place(its, event):
                    del begun[other]  # this one has taken over its board
            begun[address] = event
        else:
            begun.pop(address, None)
    return [
        Gone(address, event["host"], event["board"], event["nanny"], event["run"])
        for address, event in begun.items()
        if address not in present
    ]


def _same_place(one, other):
    """As in dead._same_place: boards are taken over by nanny or name."""
    if one["run"] or one["host"] != other["host"]:
        return False
    nanny = one["nanny"]
    return (nanny is not None and nanny == other["nanny"]) or one["name"] == other["name"]
