"""What a comparison reads of one run: each task name's tasks, with their peaks and their inputs.

Called by compare/comparison.py. Only tasks that ended well are kept: of all others only a part of
the peak is known.
"""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass, field
from operator import itemgetter
from typing import TYPE_CHECKING, NamedTuple

from dwsr_probe.record import FIELDS, misses_memory

if TYPE_CHECKING:
    from dwsr_probe.store import Store

OWN_PEAK, RSS_GROWTH, GPU_PEAK = QUANTITIES = ("own peak", "rss growth", "gpu peak")
# Tasks that create data (output more than so many times the input) are compared by their output.
_SOURCE_RATIO = 64


@dataclass(slots=True)
class ComparedTask:
    """inputs_key and input_bytes describe the output where is_source is true."""

    inputs_key: str  # types and shapes; "": not known
    input_bytes: int | None
    is_source: bool
    peaks: dict[str, int]  # of QUANTITIES those that are known
    duration: float | None


@dataclass
class NameInRun:
    """One task name in one run."""

    count: int = 0
    errors: int = 0
    killed: int = 0
    cancelled: int = 0
    tasks: list[ComparedTask] = field(default_factory=list)  # those that ended well

    def failed(self) -> dict[str, int]:
        counts = {"error": self.errors, "killed": self.killed, "cancelled": self.cancelled}
        return {state: n for state, n in counts.items() if n}


class _StoredTask(NamedTuple):
    """The fields of a stored task that are used here; nested ones are JSON text."""

    task_name: str
    state: str
    inputs: str | None
    inputs_omitted: int | None
    input_bytes: int | None
    output: str | None
    output_bytes: int | None
    alloc_peak_bytes: int | None
    rss_before_bytes: int | None
    rss_peak_bytes: int | None
    overlap: int | None
    gpu: str | None
    duration: float | None
    attribution_reason: str | None


_used_values = itemgetter(*map(FIELDS.index, _StoredTask._fields))


class _Inputs(NamedTuple):
    key: str  # types and shapes in any order; "": none is known
    known_bytes: int | None


def read_names(store: Store) -> dict[str, NameInRun]:
    """Task name → its tasks in this run."""
    names: dict[str, NameInRun] = defaultdict(NameInRun)
    cache: dict[str | None, _Inputs] = {}  # by JSON text: most tasks share their inputs' text
    for values in store.rows():
        row = _StoredTask._make(_used_values(values))
        name = names[row.task_name]
        name.count += 1
        name.errors += row.state == "error"
        name.killed += row.state == "killed"
        name.cancelled += row.state == "cancelled"
        if row.state == "ok":
            name.tasks.append(_compared_task(row, cache))
    return names


def _compared_task(row: _StoredTask, cache: dict[str | None, _Inputs]) -> ComparedTask:
    is_source = bool(row.output_bytes and row.output_bytes > _SOURCE_RATIO * (row.input_bytes or 0))
    text = f"[{row.output}]" if is_source and row.output else row.inputs
    inputs = cache.get(text)
    if inputs is None:
        inputs = cache[text] = _inputs_of(text)
    key, size = inputs.key, row.output_bytes if is_source else row.input_bytes
    if size is None:
        size = inputs.known_bytes
    if size and ((row.inputs_omitted and not is_source) or not key):
        key = f"{key}+{size}"  # shapes are incomplete, so the size must be the same as well
    return ComparedTask(key, size, is_source, _peaks(row), row.duration)


def _peaks(row: _StoredTask) -> dict[str, int]:
    peaks = {}
    # An own peak that may miss memory is not compared: growth is, if the task ran alone.
    if row.alloc_peak_bytes is not None and not misses_memory(row.attribution_reason):
        peaks[OWN_PEAK] = row.alloc_peak_bytes
    # Where tasks overlap, growth may be another task's.
    if row.rss_peak_bytes is not None and row.rss_before_bytes is not None and not row.overlap:
        peaks[RSS_GROWTH] = max(0, row.rss_peak_bytes - row.rss_before_bytes)
    if (device := _device_peak(row.gpu)) is not None:
        peaks[GPU_PEAK] = device
    return peaks


def _inputs_of(text: str | None) -> _Inputs:
    """An input without a shape is described by its size. A damaged text is its own key."""
    try:
        inputs = json.loads(text or "[]")
        described = [
            (
                str(one.get("dtype") or one.get("type")),
                str(one["shape"] if one.get("shape") is not None else one.get("nbytes")),
            )
            for one in inputs
        ]
        sizes = [int(one["nbytes"]) for one in inputs if one.get("nbytes") is not None]
    except (ValueError, TypeError, AttributeError):
        return _Inputs(text or "", None)
    key = json.dumps(sorted(described)) if described else ""
    return _Inputs(key, sum(sizes) if sizes else None)


def _device_peak(text: str | None) -> int | None:
    """Peak on the device where it is largest; None if devices were not followed."""
    if not text:
        return None
    try:
        return max((int(device["peak_bytes"]) for device in json.loads(text)), default=0)
    except (ValueError, TypeError, KeyError):
        return None
