"""One pass over a run's tasks for the page: columns for the plots, summaries by row, the largest
tasks, a sample for the model. What is kept is bounded, what is read is not."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from heapq import heappush, heappushpop
from operator import attrgetter
from typing import TYPE_CHECKING

import numpy as np

from dwsr_probe.predict.history import RunSample, known_input_bytes
from dwsr_probe.report.groups import Grouping, asked_groups, row_chain_text
from dwsr_probe.report.summary import limiting_memory, rank_by_need, summarise
from dwsr_probe.words import inputs_text, line_of

if TYPE_CHECKING:
    from dwsr_probe.predict.group import Group
    from dwsr_probe.record import TaskRecord
    from dwsr_probe.report.html import Progress
    from dwsr_probe.report.summary import Memory, NameSummary, ProcessRow
    from dwsr_probe.store import Store

    Columns = dict[str, np.ndarray]

PLOTTED_MOST = 100_000  # tasks in the plots; the summaries have all
LARGEST_MOST = 20  # rows in the table of the largest tasks
LANES_MOST = 64
STATES = ("ok", "error", "cancelled", "killed", "running")
_KEY_LENGTH_MOST, _INPUTS_MOST, _NAMES_MOST = 160, 10_000, 5_000
_COLUMN_TYPES = {
    "start": "f8",
    "duration": "f8",
    "name": "u4",
    "state": "u1",
    "own": "f8",
    "rss": "f8",
    "gpu": "f8",
    "input": "f8",
    "inputs": "u4",
    "process": "i4",
    "thread": "i8",
}


@dataclass(frozen=True)
class TaskThread:
    process: int  # index in store.processes(); -1: unknown
    number: int


@dataclass
class CollectedTasks:
    count: int = 0
    names: list[str] = field(default_factory=list)  # labels as shown, by number
    chains: list[str] = field(default_factory=list)  # by number; "": one function only
    summaries: list[NameSummary] = field(default_factory=list)  # of the rows that are shown
    all_summaries: list[NameSummary] = field(default_factory=list)  # of the whole run
    columns: Columns = field(default_factory=dict)  # of the tasks kept, in order of start
    keys: list[str] = field(default_factory=list)
    inputs: list[str] = field(default_factory=list)  # texts, by number
    lanes: list[TaskThread | None] = field(default_factory=list)  # None: several threads share it
    largest: list[TaskRecord] = field(default_factory=list)
    sample: RunSample = field(default_factory=RunSample)
    number_of: dict[Group, int] = field(default_factory=dict)  # row → number of its name
    labels: dict[Group, str] = field(default_factory=dict)  # of all rows
    grouping: Grouping = field(default_factory=Grouping)

    def label_of(self, record: TaskRecord) -> str:
        return self.labels[self.grouping.of(record)]


class _Numbers(dict[str, int]):
    """Text → number, in order of appearance. Beyond the limit all texts share one number."""

    def __init__(self, most: int, otherwise: str) -> None:
        self.texts: list[str] = []
        self._most, self._otherwise = most, otherwise

    def __missing__(self, text: str) -> int:
        if len(self) >= self._most:
            if len(self.texts) == self._most:
                self.texts.append(self._otherwise)
            return self._most
        self[text] = len(self.texts)
        self.texts.append(text)
        return self[text]


def collect_tasks(
    store: Store,
    processes: Sequence[ProcessRow],
    progress: Progress,
    task: str | None = None,
) -> CollectedTasks:
    """Read all tasks of the run once. task: only tasks that a user means by this name are plotted
    and ranked. NoSuchTask if there are none."""
    totals = store.totals()
    grouping = Grouping(processes, totals)
    asked = None if task is None else asked_groups(grouping, store, task)
    numbers: dict[Group, int] = {}
    inputs = _Numbers(_INPUTS_MOST, "inputs of many shapes: see --format json")
    process_of = {record.process: i for i, (record, _) in enumerate(processes)}
    columns = {name: [np.array([], kind)] for name, kind in _COLUMN_TYPES.items()}
    rows: list[tuple[float | None, ...]] = []
    keys: list[str] = []
    sample = RunSample()
    largest = _LargestTasks()
    total = store.task_count()

    def flush() -> None:
        """Append the rows to the columns. None becomes not-a-number."""
        for (name, kind), values in zip(
            _COLUMN_TYPES.items(), zip(*rows, strict=True), strict=bool(rows)
        ):
            columns[name].append(np.array(values, kind))
        rows.clear()

    def read() -> Iterator[TaskRecord]:
        for count, record in enumerate(store.tasks()):
            if count % 4096 == 0:
                flush()
                progress("reading tasks", count, total)
            group = grouping.of(record)
            sample.add(record)
            if asked is not None and group not in asked:
                yield record
                continue
            if group not in numbers:
                numbers[group] = min(len(numbers), _NAMES_MOST)
            host_bytes, device_bytes = record.own_peak_bytes, record.gpu_peak_bytes
            rows.append(
                (
                    record.start,
                    record.duration,
                    numbers[group],
                    STATES.index(record.state) if record.state in STATES else 1,
                    host_bytes,
                    record.rss_peak_bytes,
                    device_bytes,
                    known_input_bytes(record),  # as the model counts, for its curves
                    inputs[inputs_text(record.inputs, record.inputs_omitted)],
                    process_of.get(record.process, -1),
                    record.thread or 0,
                )
            )
            keys.append(line_of(record.key, _KEY_LENGTH_MOST) if record.key else "")
            largest.add(record, count, host_bytes, device_bytes)
            yield record

    summaries = summarise(read(), processes, totals, grouping)
    flush()
    labels = grouping.labels()
    shown = list(numbers)[:_NAMES_MOST]
    others = ["other names"] if len(numbers) > _NAMES_MOST else []
    tasks = CollectedTasks(
        count=len(keys),
        names=[line_of(labels[group], 120) for group in shown] + others,
        chains=[row_chain_text(group) if group.chain else "" for group in shown]
        + [""] * len(others),
        summaries=[s for s in summaries if asked is None or s.group in asked],
        all_summaries=summaries,
        keys=keys,
        inputs=inputs.texts,
        largest=largest.ranked(limiting_memory(summaries)),
        sample=sample,
        number_of=numbers,
        labels=labels,
        grouping=grouping,
    )
    _set_columns(tasks, {name: np.concatenate(parts) for name, parts in columns.items()})
    return tasks


class _LargestTasks:
    """The largest tasks of the run, in heaps by memory and by whether the task was killed. A killed
    task's peak is a lower bound, so it is not compared with the peaks of other tasks."""

    def __init__(self) -> None:
        self._heaps: dict[tuple[Memory, bool], list[tuple[int, int, TaskRecord]]] = {}

    def add(
        self, record: TaskRecord, index: int, host_bytes: int | None, device_bytes: int | None
    ) -> None:
        """index: decides between tasks of the same size."""
        killed = record.state == "killed"
        if host_bytes is not None:
            self._push("host", killed, (host_bytes, -index, record))
        if device_bytes is not None:
            self._push("device", killed, (device_bytes, -index, record))

    def _push(self, memory: Memory, killed: bool, entry: tuple[int, int, TaskRecord]) -> None:
        heap = self._heaps.setdefault((memory, killed), [])
        if len(heap) < LARGEST_MOST:
            heappush(heap, entry)
        else:
            heappushpop(heap, entry)

    def ranked(self, memory: Memory) -> list[TaskRecord]:
        """The largest first, in the order of rank_by_need, as the names are."""
        need = attrgetter("gpu_peak_bytes" if memory == "device" else "own_peak_bytes")
        records = [
            record
            for killed in (True, False)
            for *_, record in sorted(self._heaps.get((memory, killed), ()), reverse=True)
        ]
        by_need = rank_by_need(
            records, need, lambda record: need(record) if record.state == "killed" else None
        )
        return by_need[:LARGEST_MOST]


def _set_columns(tasks: CollectedTasks, found: Columns) -> None:
    """Set tasks.columns, sorted by start, and tasks.keys and tasks.lanes. Of more than PLOTTED_MOST
    tasks only the largest and the longest are kept."""
    known = np.flatnonzero(~np.isnan(found["start"]))
    if known.size > PLOTTED_MOST:
        half = PLOTTED_MOST // 2
        by_need = known[np.argsort(-np.nan_to_num(found["own"][known]), kind="stable")]
        rest = by_need[half:]
        known = np.concatenate(
            [
                by_need[:half],
                rest[np.argsort(-np.nan_to_num(found["duration"][rest]), kind="stable")][:half],
            ]
        )
    end = found["start"] + np.nan_to_num(found["duration"])
    order = known[np.lexsort((-end[known], found["start"][known]))]
    tasks.columns = {name: values[order] for name, values in found.items()}
    tasks.keys = [tasks.keys[i] for i in order]
    tasks.columns["end"] = end[order]
    tasks.columns["lane"], tasks.lanes = _lanes(tasks.columns)
    tasks.columns["depth"] = _depths(tasks.columns)


def _lanes(columns: Columns) -> tuple[np.ndarray, list[TaskThread | None]]:
    """The lane of each task, and the thread of each lane, in order of process and first task. If
    there are very many threads, those that never overlapped share a lane."""
    pairs = (
        np.stack([columns["process"], columns["thread"]])
        if columns["start"].size
        else np.zeros((2, 0))
    )
    threads, first, number = np.unique(pairs, axis=1, return_index=True, return_inverse=True)
    number = number.reshape(-1)
    order = (
        np.argsort(first, kind="stable")
        if threads.shape[1] > LANES_MOST
        else np.lexsort((first, threads[0]))
    )
    last = np.full(threads.shape[1], -np.inf)
    np.maximum.at(last, number, columns["end"])
    lane_of = np.zeros(threads.shape[1], "u4")
    ends: list[float] = []  # of the last task in each lane
    users: list[list[np.ndarray]] = []
    for thread in order:
        begin = columns["start"][first[thread]]
        lane = (
            next((i for i, end in enumerate(ends) if end <= begin), None)
            if threads.shape[1] > LANES_MOST
            else None
        )
        if lane is None:
            lane = len(ends)
            ends.append(0.0)
            users.append([])
        ends[lane] = last[thread]
        users[lane].append(threads[:, thread])
        lane_of[thread] = lane
    return lane_of[number].astype("u2"), [
        TaskThread(*map(int, some[0])) if len(some) == 1 else None for some in users
    ]


def _depths(columns: Columns) -> np.ndarray:
    """For each task, the number of tasks that it ran inside, in the same thread. The outer tasks'
    figures include its bytes."""
    depths = np.zeros(columns["start"].size, "u1")
    open_ends: dict[tuple[int, int], list[float]] = {}
    for i, (thread, start, end) in enumerate(
        zip(
            zip(columns["process"].tolist(), columns["thread"].tolist(), strict=True),
            columns["start"].tolist(),
            columns["end"].tolist(),
            strict=True,
        )
    ):
        ends = open_ends.setdefault(thread, [])
        while ends and ends[-1] <= start:
            ends.pop()
        # A task that outlasts the outer one is not inside it: clocks are read one after the other.
        depths[i] = min(255, sum(outer >= end for outer in ends))
        ends.append(end)
    return depths
