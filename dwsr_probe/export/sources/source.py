"""The protocol between what stands behind a port and the HTTP side: exposition.py reads a
MetricsSource, handlers.py a Source.

A cursor is a text: the id of the stream, positions in the stream, and how many records had been
lost by then. A cursor with another id, from before a restart, begins at the start of the stream.
"""

from __future__ import annotations

from dataclasses import dataclass

from dwsr_probe.export.metrics import METRICS, Metric
from dwsr_probe.live.process import LivingProcesses

TYPE_CHECKING = False
if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from typing import Any

_DIGITS_MOST = 18  # below 2**63: SQLite and the board's reader take no more


@dataclass
class Batch:
    """A piece of the stream."""

    lines: list[str]  # records as JSON
    cursor: str  # behind them
    lost: int  # records overwritten since the cursor that was given
    more: bool  # there is more to read at once


class MetricsSource:
    """What /metrics needs. dedicated_port: the port serves only dwsr-probe. False on a Dask
    worker's port, where the number of series is limited. metrics: the table that reads view()."""

    dedicated_port = True
    metrics: tuple[Metric, ...] = METRICS

    def view(self) -> Any:
        """What `metrics` read, at this moment. Called at each scrape, inside locked()."""
        raise NotImplementedError

    def locked(self) -> AbstractContextManager[Any]:
        """Held while the metrics of a view are read: its totals stay as they are."""
        raise NotImplementedError

    def close(self) -> None:
        """Called once, by the thread that serves."""


class Source(MetricsSource):
    """What the other paths of a port need. All methods are called by the thread that serves."""

    def read(self, since: str, most: int) -> Batch:
        """At most `most` finished records behind the cursor `since`."""
        raise NotImplementedError

    def living(self) -> LivingProcesses:
        """The processes that live now, with their running tasks."""
        raise NotImplementedError

    def worker_ports(self) -> list[dict[str, Any]]:
        """Facts of the Dask workers with ports of their own, for service discovery."""
        return []


def parse_cursor(text: str, stream_id: str, count: int = 2) -> tuple[int, ...]:
    """The numbers of a cursor of this stream. Zeros for a cursor of any other stream, and for a
    text that is no cursor."""
    found, *numbers = text.rsplit("~", count)
    if (
        found == stream_id
        and len(numbers) == count
        and all(n.isascii() and n.isdecimal() and len(n) <= _DIGITS_MOST for n in numbers)
    ):
        return tuple(map(int, numbers))
    return (0,) * count
