"""The origin of packed records: what all frames of one process have in common.

A frame (csrc/frame.h) has a task's numbers and texts. The origin has run, host, process, the date
of the clock and the addresses of workers. Frame and origin together make a row. Board is an
Origin that reads these values from its file; store/ keeps them as JSON.
"""

from __future__ import annotations

import json

from dwsr_probe import _core
from dwsr_probe.record import compiled_row_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from dwsr_probe.record import Raw, Row

_JSON_FIELDS = ("run", "host", "pid", "worker", "rss_error_bytes", "clock_epoch_ns", "addresses")


class Origin:
    """clock_epoch_ns: the date, in epoch nanoseconds, when the board's clock was 0.
    worker: the worker of tasks that name none.
    addresses: the workers of tasks that name one by its index.
    texts: frames refer to these by number.
    """

    def __init__(
        self,
        process: str,
        layout: _core.Layout,
        *,
        run: str | None,
        host: str,
        pid: int,
        worker: str | None,
        rss_error_bytes: int,
        clock_epoch_ns: int,
        addresses: Iterable[str | None] = (),
    ) -> None:
        self.process, self.layout = process, layout
        self.texts: list[str] = []
        self.run, self.host, self.pid, self.worker = run, host, pid, worker
        self.rss_error_bytes, self.clock_epoch_ns = rss_error_bytes, clock_epoch_ns
        self.addresses = list(addresses)

    def epoch_of(self, monotonic_ns: int) -> float:
        """Epoch seconds of a moment of the board's clock."""
        return (self.clock_epoch_ns + monotonic_ns) / 1e9

    def worker_of(self, index: int | None) -> str | None:
        """Address of the worker that ran a task, by the worker's index in the facts."""
        return (
            self.worker if index is None or index >= len(self.addresses) else self.addresses[index]
        )

    def unpack(self, packed: bytes) -> list[Raw]:
        """Frames as tuples of words and texts; ValueError if they are damaged."""
        return self.layout.unpack(packed, self.texts)

    def rows(self, packed: bytes) -> list[Row]:
        """Frames as rows in the order of record.FIELDS."""
        row_of = compiled_row_of()
        return [row_of(self, raw) for raw in self.unpack(packed)]

    def to_json(self) -> str:
        """Everything except the layout and the texts."""
        return json.dumps({name: getattr(self, name) for name in _JSON_FIELDS})


def from_json(process: str, text: str, layout: bytes) -> Origin:
    """ValueError or TypeError if somebody has changed the text."""
    kept = json.loads(text)
    if not isinstance(kept, dict) or not kept.keys() >= set(_JSON_FIELDS):
        raise ValueError("the origin of packed records is not complete")
    origin = Origin(process, _core.Layout(layout), **{name: kept[name] for name in _JSON_FIELDS})
    integers = (origin.rss_error_bytes, origin.clock_epoch_ns, origin.pid)
    if not all(type(value) is int for value in integers) or not all(
        address is None or type(address) is str for address in origin.addresses
    ):
        raise ValueError("the origin of packed records makes no sense")
    return origin
