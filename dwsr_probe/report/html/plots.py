"""What page.js draws: the figures, and the data for them. Called by html/page.py."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from dwsr_probe.board import process_limit
from dwsr_probe.report.html.figures import (
    NAME_COLOURS,
    FigureSet,
    TimelineFigures,
    scatter,
    unit_of,
)
from dwsr_probe.report.html.packed import round_for_packing
from dwsr_probe.report.html.tasks import STATES
from dwsr_probe.words import count_text, line_of

if TYPE_CHECKING:
    from dwsr_probe.predict.group import Group
    from dwsr_probe.report.html.memory import MemoryLine
    from dwsr_probe.report.html.tasks import CollectedTasks, Columns, TaskThread
    from dwsr_probe.report.outlook import Outlook
    from dwsr_probe.report.summary import NameSummary, ProcessRow

_SCATTER_PEAK_LEAST = 1 << 16  # bytes: names with smaller peaks get no scatter plot
# A limit of more than so many times the peak is left out: it would flatten all lines.
_LIMIT_TO_PEAK_MOST = 1.8


@dataclass(frozen=True)
class TimeSpan:
    begin: float  # epoch seconds; 0.0: not known
    seconds: float


@dataclass
class PlotData:
    """head and arrays are packed for page.js (html/packed.py)."""

    head: dict[str, Any]
    arrays: dict[str, np.ndarray]

    @property
    def is_empty(self) -> bool:
        return not any(values.size for values in self.arrays.values())


def time_span(
    tasks: CollectedTasks, lines: Sequence[MemoryLine], processes: Sequence[ProcessRow]
) -> TimeSpan:
    """The time from the first begin to the last end of everything that is shown."""
    started = [(record.start, record.duration or 0) for record, _ in processes if record.start]
    begins = [start for start, _ in started] + tasks.columns["start"][:1].tolist()
    begin = min(begins or [line.time[0] for line in lines], default=0.0)
    end = max(
        [
            *(start + duration for start, duration in started),
            *(line.time[-1] for line in lines),
            tasks.columns["end"].max(initial=0),
        ]
    )
    return TimeSpan(begin, max(1e-3, end - begin))


def timeline_data(
    tasks: CollectedTasks,
    lines: Sequence[MemoryLine],
    processes: Sequence[ProcessRow],
    span: TimeSpan,
    groups: Mapping[Group, int],
    on_device: bool,
) -> PlotData:
    """The figures of the three plots over time, and their data. groups: row → number of its
    colour."""
    columns, peaks = tasks.columns, tasks.columns["gpu" if on_device else "own"]
    limit, memory_bytes = _memory_axis(columns, lines, processes)
    stack_bytes = _largest_stack(columns, peaks)
    figures = TimelineFigures(
        seconds=span.seconds,
        lanes=max(1, len(tasks.lanes)),
        labels=_lane_labels(tasks.lanes, processes),
        lines=len(lines),
        memory_bytes=memory_bytes,
        stack_bytes=stack_bytes,
        limit_bytes=limit,
        stack_label="device" if on_device else "own",
    )
    shown = FigureSet("timeline")
    for name in ("memory", "stack", "spans"):
        shown.add(getattr(figures, name), name)
    head = {
        "names": tasks.names,
        "chains": tasks.chains,
        "inputs": tasks.inputs,
        "states": STATES,
        "processes": process_names(processes),
        "seconds": span.seconds,
        "lanes": len(tasks.lanes),
        "on_device": on_device,
        "limit": limit is not None,
        "lines": [line.process for line in lines],
        "memory_unit": unit_of(memory_bytes).size_bytes,
        "stack_unit": unit_of(stack_bytes).size_bytes,
        "figures": shown.json(),
    }
    return PlotData(head, _task_arrays(tasks, span, groups) | _line_arrays(lines, span))


def _task_arrays(
    tasks: CollectedTasks, span: TimeSpan, groups: Mapping[Group, int]
) -> dict[str, np.ndarray]:
    columns = tasks.columns
    group_of = np.full(len(tasks.names) + 1, NAME_COLOURS, "u1")
    for row, colour in groups.items():
        if row in tasks.number_of:  # else none of its tasks has a record
            group_of[tasks.number_of[row]] = colour
    return {
        "start": np.round((columns["start"] - span.begin) * 1e6),
        "duration": round_for_packing(np.nan_to_num(columns["duration"])),
        "name": columns["name"].astype("u2"),
        "state": columns["state"],
        "lane": columns["lane"],
        "depth": columns["depth"],
        "inputs": columns["inputs"].astype("u4"),
        "process": columns["process"].astype("u2"),
        "group": group_of[: len(tasks.names)],
        **{name: round_for_packing(columns[name]) for name in ("own", "rss", "gpu", "input")},
    }


def _line_arrays(lines: Sequence[MemoryLine], span: TimeSpan) -> dict[str, np.ndarray]:
    arrays: dict[str, np.ndarray] = {}
    kind = "f8" if span.seconds > 3600 else "f4"
    for i, line in enumerate(lines):
        arrays |= {
            f"time{i}": ((line.time - span.begin) * 1e3).astype(kind),
            f"low{i}": round_for_packing(line.low),
            f"high{i}": round_for_packing(line.high),
        }
    return arrays


def _memory_axis(
    columns: Columns, lines: Sequence[MemoryLine], processes: Sequence[ProcessRow]
) -> tuple[int | None, float]:
    """The limit that is drawn, if any, and the upper end of the axis in bytes."""
    top = max(
        [
            *(line.high.max() for line in lines),
            np.nanmax(columns["rss"], initial=0),
            *(record.rss_peak_bytes or 0 for record, _ in processes),
            1,
        ]
    )
    limits = [process_limit(health) for _, health in processes]
    near = [limit for limit in limits if limit and limit <= _LIMIT_TO_PEAK_MOST * top]
    limit = min(near, default=None)
    return limit, float(max(top, limit or 0))


def _largest_stack(columns: Columns, peaks: np.ndarray) -> float:
    """The largest sum of the peaks of tasks under way at once, tasks inside tasks left out."""
    outer = (columns["depth"] == 0) & ~np.isnan(peaks)
    if not outer.any():
        return 1.0
    own = peaks[outer]
    moments = np.concatenate([columns["start"][outer], columns["end"][outer]])
    changes = np.concatenate([own, -own])
    sums = np.cumsum(changes[np.lexsort((changes, moments))])
    return max(1.0, float(sums.max()), float(own.max()))


def _lane_labels(
    lanes: Sequence[TaskThread | None], processes: Sequence[ProcessRow]
) -> dict[int, str]:
    """By number of the lane: "thread 2", or "job.py · 2" if there are several processes."""
    labels: dict[int, str] = {}
    counts: dict[int, int] = {}
    for lane, thread in enumerate(lanes):
        if thread is None:
            continue
        counts[thread.process] = number = counts.get(thread.process, 0) + 1
        if len(processes) > 1:
            known = 0 <= thread.process < len(processes)
            name = line_of(processes[thread.process][0].task_name, 10) if known else "?"
            labels[lane] = f"{name} · {number}"
        else:
            labels[lane] = f"thread {number}"
    return labels


def process_names(processes: Sequence[ProcessRow]) -> list[str]:
    """A title per process; it has the host's name if there are several hosts."""
    several = len({record.host for record, _ in processes if record.host}) > 1
    return [
        line_of(
            f"{record.worker or record.task_name} (pid {record.pid})"
            + (f" on {record.host}" if several and record.host else ""),
            120,
        )
        for record, _ in processes
    ]


def has_scatter(tasks: CollectedTasks, summary: NameSummary) -> bool:
    """Whether a name has inputs of known size, and a peak worth a plot."""
    peak = max(summary.alloc_peak_max_bytes or 0, summary.gpu_peak_max_bytes or 0)
    return (
        summary.group in tasks.number_of
        and tasks.sample.largest_input_bytes(summary.model_name) > 0
        and peak >= _SCATTER_PEAK_LEAST
    )


def add_scatter(
    number: int,
    summary: NameSummary,
    tasks: CollectedTasks,
    outlook: Outlook | None,
    figures: FigureSet,
) -> dict[str, Any]:
    """Add the figure of one name to `figures`; return what page.js needs to fill it, and the trust
    in the model for the caption."""
    kind = "gpu" if summary.limiting_memory == "device" and summary.gpu_peaks else "alloc"
    curve = outlook.curve(summary.model_name, kind) if outlook else None
    name = tasks.number_of[summary.group]
    here = tasks.columns["name"] == name
    peaks = tasks.columns["gpu" if kind == "gpu" else "own"][here]
    sizes = tasks.columns["input"][here]
    top, right = float(np.nanmax(peaks, initial=1)), float(np.nanmax(sizes, initial=1))
    if curve:
        # Twice the largest volume is what people ask for, if it does not squeeze the points.
        top, right = max(top, min(curve.high[-1], 3 * top)), 2 * right
    unit, input_unit = unit_of(top), unit_of(right)
    figures.add(scatter(number, unit.name, input_unit.name), f"scatter{number}")
    panel: dict[str, Any] = {
        "name": name,
        "kind": kind,
        "unit": unit.size_bytes,
        "input_unit": input_unit.size_bytes,
        "top": top / unit.size_bytes * 1.08,
        "right": right / input_unit.size_bytes * 1.03,
    }
    if curve:
        panel["curve"] = {
            "x": [n / input_unit.size_bytes for n in curve.input_bytes],
            "low": [n / unit.size_bytes for n in curve.low],
            "mean": [n / unit.size_bytes for n in curve.mean],
            "high": [n / unit.size_bytes for n in curve.high],
        }
        panel["trust"] = (
            f"{'device memory, ' if kind == 'gpu' else ''}model from"
            f" {count_text(curve.learned, 'task', 'tasks', '1')}, trust {curve.trust}"
        )
    return panel
