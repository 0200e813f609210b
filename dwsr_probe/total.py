"""Exact sums of one task name in one process, from the totals on its board (csrc/totals.h).

They count every task that has ended, whether its single record is still there or not. Histograms
are dicts, number of a cell → count. A total is read by board.py, kept by store.py, added up by
export/totals.py and report/summary.py.
"""

import json

from dwsr_probe import _core

OUTCOMES = ("ok", "error", "cancelled")
HISTOGRAMS = ("alloc", "growth", "duration", "bare")
_FIRST_BITS, _CELLS_OF_OCTAVE, _OCTAVES = 10, 10, 30  # as in csrc/totals.c
_FIELDS = tuple(name for name in _core.TOTAL_FIELDS if name not in ("turn", "name"))
_DEVICE_FIELDS = _core.TOTAL_DEVICE_FIELDS


class Total:
    """One attribute per field of the board. name: None for all names that found no entry of
    their own.
    devices: {number: (sum of peaks, largest peak)}."""

    __slots__ = ("devices", "name", *_FIELDS, *(f"{name}_cells" for name in HISTOGRAMS))

    @property
    def count(self):
        return self.ok + self.error + self.cancelled

    @property
    def own_max_bytes(self):
        """Largest own peak, or growth where allocations were not accounted; None: neither is
        known of any."""
        known = [
            most
            for count, most in (
                (self.alloc_count, self.alloc_max_bytes),
                (self.bare_count, self.bare_max_bytes),
            )
            if count
        ]
        return max(known, default=None)

    def add(self, record):
        """One finished task more."""
        growth, alloc = record.rss_growth_bytes, record.alloc_peak_bytes
        outcome = record.state if record.state in OUTCOMES else "error"
        setattr(self, outcome, getattr(self, outcome) + 1)
        self.last_seq = record.seq
        self.shared += record.attribution == "shared"
        self.sampled += record.rss_peak_source == "sampled"
        self.oom += record.oom is not None
        self.overlap_max = max(self.overlap_max, record.overlap or 0)
        if growth is not None:
            self.rss_peak_max_bytes = max(self.rss_peak_max_bytes, record.rss_peak_bytes)
        for name, value in (
            ("growth", growth),
            ("alloc", alloc),
            ("bare", growth if alloc is None else None),
        ):
            if value is not None:
                setattr(self, f"{name}_count", getattr(self, f"{name}_count") + 1)
                self._sum(f"{name}_bytes", f"{name}_max_bytes", value)
                self._count(name, bare_cell_of(value) if name == "bare" else cell_of(value))
        self._sum("input_bytes", "input_max_bytes", record.input_bytes or 0)
        self._sum("output_bytes", "output_max_bytes", record.output_bytes or 0)
        duration_ns = round((record.duration or 0) * 1e9)
        self._sum("duration_ns", "duration_max_ns", duration_ns)
        self._count("duration", cell_of(duration_ns))
        for device in record.gpu or ():
            sum_, most = self.devices.get(device["device"], (0, 0))
            self.devices[device["device"]] = (
                sum_ + device["peak_bytes"],
                max(most, device["peak_bytes"]),
            )

    def _sum(self, sum_, most, value):
        setattr(self, sum_, getattr(self, sum_) + value)
        setattr(self, most, max(getattr(self, most), value))

    def _count(self, name, cell):
        cells = getattr(self, f"{name}_cells")
        cells[cell] = cells.get(cell, 0) + 1

    def to_json(self):
        return json.dumps({name: getattr(self, name) for name in self.__slots__})


def from_words(words, devices, cells, texts):
    """From the reader's tuples."""
    total, fields = Total(), dict(zip(_core.TOTAL_FIELDS, words, strict=True))
    number = fields["name"]
    total.name = texts[number] if number is not None and number < len(texts) else None
    for name in _FIELDS:
        setattr(total, name, fields[name] or 0)
    found = (dict(zip(_DEVICE_FIELDS, device, strict=True)) for device in devices)
    total.devices = {d["device"] - 1: (d["peak_bytes"], d["peak_max_bytes"]) for d in found}
    for name, counts in zip(HISTOGRAMS, cells, strict=True):
        setattr(total, f"{name}_cells", counts)
    return total


def from_json(text):
    """ValueError or TypeError if somebody has changed it."""
    kept, total = json.loads(text), Total()
    needed = {"name", "devices", *(f"{name}_cells" for name in HISTOGRAMS)}
    if (
        not isinstance(kept, dict)
        or not kept.keys() >= needed
        or not all(isinstance(kept[name], dict) for name in needed - {"name"})
    ):
        raise ValueError("a total is not complete")
    total.name = kept["name"]
    for name in _FIELDS:
        setattr(total, name, int(kept.get(name) or 0))
    total.devices = {
        int(number): (int(sum_), int(most)) for number, (sum_, most) in kept["devices"].items()
    }
    for name in HISTOGRAMS:
        setattr(
            total,
            f"{name}_cells",
            {int(cell): int(count) for cell, count in kept[f"{name}_cells"].items()},
        )
    return total


def cell_bounds(cell):
    """Values of a cell are above the first and up to the second; of the last cell the second is
    None."""
    if cell == 0:
        return 0, 1 << _FIRST_BITS
    octave, part = divmod(cell - 1, _CELLS_OF_OCTAVE)
    if octave >= _OCTAVES:
        return 1 << _FIRST_BITS + _OCTAVES, None
    base = 1 << _FIRST_BITS + octave
    return base + base * part / _CELLS_OF_OCTAVE, base + base * (part + 1) / _CELLS_OF_OCTAVE


def cell_value(cell):
    """What stands for the values of a cell: no more than 5 % from any of them, in the cells
    between the first and the last."""
    low, high = cell_bounds(cell)
    if high is None or not low:
        return high or low
    return 2 * low * high / (low + high)


def cell_of(value):
    """As totals_cell in csrc/totals.c."""
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


def bare_cell_of(value):
    """The cell of the metrics: powers of four from 1 MiB."""
    return 0 if value <= 1 << 20 else min(11, 1 + ((value - 1).bit_length() - 21) // 2)


def count_last(totals, record):
    """A process was killed between publishing its last record and counting it: what its totals
    lack, if so, is added."""
    if not record.seq or any(total.last_seq >= record.seq for total in totals):
        return
    total = next((one for one in totals if one.name == record.task_name), None)
    if total is None:
        total = from_words((None,) * len(_core.TOTAL_FIELDS), (), ({}, {}, {}, {}), ())
        total.name = record.task_name
        totals.append(total)
    total.add(record)
