"""Exact sums of one task name and operation in one process, from the totals on its board
(csrc/totals.h).

Totals count every task that has ended, also where its record has been overwritten. A histogram is
a dict: number of a cell → count. A total is read by board.py, stored by store/, and added up by
export/totals.py and report/summary.py.
"""

from __future__ import annotations

import json

from dwsr_probe import _core
from dwsr_probe.dataclass import NamedTuple, dataclass

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from dwsr_probe.record import Row, TaskRecord

    Histogram = dict[int, int]
    Words = Sequence[int | None]

OUTCOMES = ("ok", "error", "cancelled")
# alloc: own peaks. growth: growth of the resident size. bare: growth of those tasks alone that have
# no own peak, because allocations were not accounted.
HISTOGRAMS = ("alloc", "growth", "duration", "bare")
_FIRST_BITS, _CELLS_OF_OCTAVE, _OCTAVES = 10, 10, 30  # as in csrc/totals.c
_FIELDS = tuple(name for name in _core.TOTAL_FIELDS if name not in ("turn", "name", "operation"))
_DEVICE_FIELDS = _core.TOTAL_DEVICE_FIELDS


class DevicePeaks(NamedTuple):
    """Peaks of all tasks of one name on one GPU."""

    sum_bytes: int
    max_bytes: int


class Total:
    """One attribute per field of the board.

    name: None in the entry that counts all tasks whose names found no entry of their own.
    operation: None where no function of the job is known.
    devices: by the number of the GPU.
    """

    __slots__ = (
        "devices",
        "name",
        "operation",
        *_FIELDS,
        *(f"{name}_cells" for name in HISTOGRAMS),
    )
    if TYPE_CHECKING:
        name: str | None
        operation: str | None
        devices: dict[int, DevicePeaks]
        alloc_cells: Histogram
        growth_cells: Histogram
        duration_cells: Histogram
        bare_cells: Histogram

        # the integers of _FIELDS that are assigned by name; __getattr__: the others
        last_seq: int
        shared: int
        sampled: int
        oom: int
        overlap_max: int
        rss_peak_max_bytes: int

        def __getattr__(self, name: str) -> int: ...

    @property
    def pair(self) -> tuple[str | None, str | None]:
        return self.name, self.operation

    @property
    def count(self) -> int:
        return self.ok + self.error + self.cancelled

    @property
    def own_max_bytes(self) -> int | None:
        """The largest own peak, or growth of the resident size where allocations were not
        accounted. None: no task has either."""
        known = [
            most
            for count, most in (
                (self.alloc_count, self.alloc_max_bytes),
                (self.bare_count, self.bare_max_bytes),
            )
            if count
        ]
        return max(known, default=None)

    def add(self, record: TaskRecord) -> None:
        """Count one more finished task."""
        growth, alloc = record.rss_growth_bytes, record.alloc_peak_bytes
        outcome = record.state if record.state in OUTCOMES else "error"
        setattr(self, outcome, getattr(self, outcome) + 1)
        self.last_seq = record.seq or 0
        self.shared += record.attribution == "shared"
        self.sampled += record.rss_peak_source == "sampled"
        self.oom += record.oom is not None
        self.overlap_max = max(self.overlap_max, record.overlap or 0)
        if growth is not None:
            self.rss_peak_max_bytes = max(self.rss_peak_max_bytes, record.rss_peak_bytes or 0)
        for name, value in (
            ("growth", growth),
            ("alloc", alloc),
            ("bare", growth if alloc is None else None),
        ):
            if value is not None:
                setattr(self, f"{name}_count", getattr(self, f"{name}_count") + 1)
                self._add_value(f"{name}_bytes", f"{name}_max_bytes", value)
                self._add_to_cell(name, bare_cell_of(value) if name == "bare" else cell_of(value))
        self._add_value("input_bytes", "input_max_bytes", record.input_bytes or 0)
        self._add_value("output_bytes", "output_max_bytes", record.output_bytes or 0)
        duration_ns = round((record.duration or 0) * 1e9)
        self._add_value("duration_ns", "duration_max_ns", duration_ns)
        self._add_to_cell("duration", cell_of(duration_ns))
        for device in record.gpu or ():
            number, peak_bytes = device["device"], device["peak_bytes"]
            before = self.devices.get(number, DevicePeaks(0, 0))
            self.devices[number] = DevicePeaks(
                before.sum_bytes + peak_bytes, max(before.max_bytes, peak_bytes)
            )

    def _add_value(self, sum_name: str, max_name: str, value: int) -> None:
        setattr(self, sum_name, getattr(self, sum_name) + value)
        setattr(self, max_name, max(getattr(self, max_name), value))

    def _add_to_cell(self, histogram: str, cell: int) -> None:
        cells: Histogram = getattr(self, f"{histogram}_cells")
        cells[cell] = cells.get(cell, 0) + 1

    def to_json(self) -> str:
        return json.dumps({name: getattr(self, name) for name in self.__slots__})


@dataclass
class News:
    """What the collector found out about one process in one round.

    totals: of all tasks that have ended so far; None for a board without totals. rows: tasks that
    the totals do not count. These are tasks that a dead process left running, or all tasks of a
    board without totals.
    """

    process: str
    totals: list[Total] | None
    rows: list[Row]
    records_lost: int
    limit_bytes: int | None
    alive: bool


def from_words(
    words: Words, devices: Sequence[Words], cells: Sequence[Histogram], texts: Sequence[str]
) -> Total:
    """A total from the tuples of _core.BoardReader.totals. texts: of the board, by their number."""
    total, fields = Total(), dict(zip(_core.TOTAL_FIELDS, words, strict=True))
    for kind in ("name", "operation"):
        number: int | None = fields[kind]
        setattr(total, kind, texts[number] if number is not None and number < len(texts) else None)
    for name in _FIELDS:
        setattr(total, name, fields[name] or 0)
    found: list[dict[str, Any]] = [
        dict(zip(_DEVICE_FIELDS, device, strict=True)) for device in devices
    ]
    total.devices = {
        d["device"] - 1: DevicePeaks(d["peak_bytes"], d["peak_max_bytes"]) for d in found
    }
    for name, counts in zip(HISTOGRAMS, cells, strict=True):
        setattr(total, f"{name}_cells", counts)
    return total


def from_json(text: str) -> Total:
    """ValueError or TypeError if somebody has changed the text."""
    kept: Any = json.loads(text)
    total = Total()
    needed = {"name", "devices", *(f"{name}_cells" for name in HISTOGRAMS)}
    if (
        not isinstance(kept, dict)
        or not kept.keys() >= needed
        or not all(isinstance(kept[name], dict) for name in needed - {"name"})
    ):
        raise ValueError("a total is not complete")
    total.name, total.operation = kept["name"], kept.get("operation")
    for name in _FIELDS:
        setattr(total, name, int(kept.get(name) or 0))
    total.devices = {
        int(number): DevicePeaks(int(sum_bytes), int(max_bytes))
        for number, (sum_bytes, max_bytes) in kept["devices"].items()
    }
    for name in HISTOGRAMS:
        setattr(
            total,
            f"{name}_cells",
            {int(cell): int(count) for cell, count in kept[f"{name}_cells"].items()},
        )
    return total


def cell_bounds(cell: int) -> tuple[float, float | None]:
    """(low, high): values of a cell are above low and not above high. The last cell has no upper
    bound: None."""
    if cell == 0:
        return 0, 1 << _FIRST_BITS
    octave, part = divmod(cell - 1, _CELLS_OF_OCTAVE)
    if octave >= _OCTAVES:
        return 1 << _FIRST_BITS + _OCTAVES, None
    base = 1 << _FIRST_BITS + octave
    return base + base * part / _CELLS_OF_OCTAVE, base + base * (part + 1) / _CELLS_OF_OCTAVE


def cell_value(cell: int) -> float:
    """The value that represents a cell. It differs by at most 5 % from every value of the cell,
    except in the first and the last cell."""
    low, high = cell_bounds(cell)
    if high is None or not low:
        return high or low
    return 2 * low * high / (low + high)


def cell_of(value: int) -> int:
    """The same as totals_cell in csrc/totals.c."""
    if value <= 1 << _FIRST_BITS:
        return 0
    octave = (value - 1).bit_length() - 1
    if octave >= _FIRST_BITS + _OCTAVES:
        return 1 + _OCTAVES * _CELLS_OF_OCTAVE
    return (
        1
        + (octave - _FIRST_BITS) * _CELLS_OF_OCTAVE
        + ((value - 1 - (1 << octave)) * _CELLS_OF_OCTAVE >> octave)
    )


def bare_cell_of(value: int) -> int:
    """The cell of the histogram "bare", whose bounds are those of the metrics: powers of four from
    1 MiB."""
    return 0 if value <= 1 << 20 else min(11, 1 + ((value - 1).bit_length() - 21) // 2)


def add_last_record(totals: list[Total], record: TaskRecord) -> None:
    """Add the last record of a dead process to its totals, unless they count it already.

    A process publishes a record first and counts it second. It may be killed in between.
    """
    if not record.seq or any(total.last_seq >= record.seq for total in totals):
        return
    pair = record.task_name, record.operation
    total = next((one for one in totals if one.pair == pair), None)
    if total is None:
        total = from_words((None,) * len(_core.TOTAL_FIELDS), (), ({}, {}, {}, {}), ())
        total.name, total.operation = pair
        totals.append(total)
    total.add(record)
