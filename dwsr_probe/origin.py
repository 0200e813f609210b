"""Where packed records come from: the process, and what their frames do not say themselves.

A frame (csrc/frame.h) has a task's numbers and texts; run, host, process, date and worker are
the same for all frames of one board. board.py makes rows with what is on the board, store.py
with what it kept of it.
"""

import json

from dwsr_probe import _core
from dwsr_probe.record import row_of

_KEPT = ("run", "host", "pid", "worker", "rss_error_bytes", "clock_epoch_ns", "addresses")


class Origin:
    """clock_epoch_ns: epoch of the board's clock at 0. worker: of tasks that name none;
    addresses: of those that name one by its index. texts: those that frames name by number."""

    def __init__(
        self, process, layout, run, host, pid, worker, rss_error_bytes, clock_epoch_ns, addresses=()
    ):
        self.process, self.layout, self.texts = process, layout, []
        self.run, self.host, self.pid, self.worker = run, host, pid, worker
        self.rss_error_bytes, self.clock_epoch_ns = rss_error_bytes, clock_epoch_ns
        self.addresses = list(addresses)

    def epoch_of(self, monotonic_ns):
        """Epoch seconds of a moment of the board's clock."""
        return (self.clock_epoch_ns + monotonic_ns) / 1e9

    def worker_of(self, index):
        """Address of the worker that ran a task, by its index in the facts."""
        return (
            self.worker if index is None or index >= len(self.addresses) else self.addresses[index]
        )

    def unpack(self, packed):
        """Frames as the reader's tuples; ValueError if they are damaged."""
        return self.layout.records(packed, self.texts)

    def rows(self, packed):
        """Frames as rows in the order of record.FIELDS."""
        return [row_of(self, raw) for raw in self.unpack(packed)]

    def to_json(self):
        """All but the layout and the texts."""
        return json.dumps({name: getattr(self, name) for name in _KEPT})


def from_json(process, text, layout):
    """ValueError or TypeError if somebody has changed it."""
    kept = json.loads(text)
    if not isinstance(kept, dict) or not kept.keys() >= set(_KEPT):
        raise ValueError("the origin of packed records is not complete")
    origin = Origin(process, _core.Layout(layout), **{name: kept[name] for name in _KEPT})
    whole = (origin.rss_error_bytes, origin.clock_epoch_ns, origin.pid)
    if not all(type(value) is int for value in whole) or not all(
        address is None or type(address) is str for address in origin.addresses
    ):
        raise ValueError("the origin of packed records makes no sense")
    return origin
