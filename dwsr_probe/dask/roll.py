"""Which workers were measured: a list in the scheduler's event log, for `records`.

A killed worker disappears from the scheduler at once, and nothing there says that it had a board.
So each measured worker logs one event when it begins and one when it leaves. `announce` and
`announce_leave` run in the workers, `gone` in the client.
"""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass

from dwsr_probe import _core, probe

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterable
    from typing import Any

    from distributed import Worker

TOPIC = "dwsr-probe"
RETRY_S = 0.05
logger = logging.getLogger("dwsr_probe")


@dataclass
class Gone:
    """A measured worker that ended without leaving, and that no other worker has replaced."""

    address: str
    host: str
    board: str
    nanny: str | None  # its address; without a nanny, the worker is not restarted
    run: str | None  # the `dwsr-probe run` that collects its board

    @property
    def will_restart(self) -> bool:
        """Whether a nanny will start a worker that takes the board over."""
        return bool(self.nanny) and not self.run


def announce(worker: Worker) -> None:
    """Log that this worker is measured, once per worker and board. Dask drops events that are
    logged before the stream to the scheduler is open, so a starting worker tries again until
    then."""
    path = _core.board_path()
    if path is None or getattr(worker, "_dwsr_probe_announced", None) == path:
        return
    if worker.batched_stream.comm is None:
        worker.loop.call_later(RETRY_S, _retry_announce, worker)
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


def _retry_announce(worker: Worker) -> None:
    try:
        if worker.status.name not in ("closing", "closed", "failed"):
            announce(worker)
    except Exception as error:  # on the worker's event loop
        logger.debug("dwsr-probe could not announce this worker: %r", error)


def announce_leave(worker: Worker) -> None:
    """Log that this worker ends cleanly, or that its probe is switched off: `records` does not wait
    for a successor."""
    if worker.__dict__.pop("_dwsr_probe_announced", None) is None:
        return
    try:
        worker.log_event(TOPIC, {"action": "leave"})
    except Exception as error:  # the stream to the scheduler is closed
        logger.debug("dwsr-probe could not say that this worker leaves: %r", error)


def gone(events: Iterable[tuple[float, dict[str, Any]]], present: Collection[str]) -> list[Gone]:
    """The measured workers that are gone, from the events of our topic. present: addresses of the
    workers that answer."""
    begun: dict[str, dict[str, Any]] = {}
    for _, event in events:
        address = event["worker"]
        if event["action"] == "begin":
            for other, its in list(begun.items()):
                if _was_replaced_by(its, event):
                    del begun[other]  # this worker has taken over its board
            begun[address] = event
        else:
            begun.pop(address, None)
    return [
        Gone(address, event["host"], event["board"], event["nanny"], event["run"])
        for address, event in begun.items()
        if address not in present
    ]


def _was_replaced_by(earlier: dict[str, Any], later: dict[str, Any]) -> bool:
    """Whether the worker of the later event took over the board of the earlier one: by the same
    nanny or name, as in dead._is_predecessor."""
    if earlier["run"] or earlier["host"] != later["host"]:
        return False
    nanny = earlier["nanny"]
    return (nanny is not None and nanny == later["nanny"]) or earlier["name"] == later["name"]
