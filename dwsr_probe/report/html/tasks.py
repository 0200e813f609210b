"""One pass over a run's tasks: columns for the plots, sums by name, the largest ones, examples
for the model. Bounded in what is kept, not in what is read."""

from dataclasses import dataclass, field
from heapq import heappush, heappushpop
from operator import attrgetter

import numpy as np

from dwsr_probe.report.outlook import Examples
from dwsr_probe.report.summary import limiting_memory, rank_by_need, summarise
from dwsr_probe.report.words import inputs_text, line_of

KEPT_MOST = 100_000  # in the plots; the sums have all
LARGEST = 20
LANES_MOST = 64
STATES = ("ok", "error", "cancelled", "killed", "running")
_KEY_MOST, _INPUTS_MOST, _NAMES_MOST = 160, 10_000, 5_000


@dataclass
class Tasks:
    count: int = 0
    names: list = field(default_factory=list)  # as shown, by number
    summaries: list = field(default_factory=list)
    columns: dict = field(default_factory=dict)  # of those kept, in order of start
    keys: list = field(default_factory=list)
    inputs: list = field(default_factory=list)  # texts, by number
    lanes: list = field(default_factory=list)  # labels
    largest: list = field(default_factory=list)  # records
    examples: dict = field(default_factory=dict)
    number_of: dict = field(default_factory=dict)  # name as recorded → number


class _Numbers(dict):
    """text → number, in order of appearance; past the limit the last number stands for all
    others."""

    def __init__(self, most, otherwise):
        self.texts, self._most, self._otherwise = [], most, otherwise

    def __missing__(self, text):
        if len(self) >= self._most:
            if len(self.texts) == self._most:
                self.texts.append(self._otherwise)
            return self._most
        self[text] = len(self.texts)
        self.texts.append(text)
        return self[text]


def collect(store, processes, progress):
    """Tasks of the whole run."""
    numbers, names, inputs = (
        {},
        _Numbers(_NAMES_MOST, "other names"),
        _Numbers(_INPUTS_MOST, "inputs of many shapes: see --format json"),
    )
    process_of = {record.process: i for i, (record, _) in enumerate(processes)}
    kinds = {
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
    columns, rows = {name: [np.array([], kind)] for name, kind in kinds.items()}, []
    keys, examples, total = [], {}, store.task_count()
    # heaps; a killed one's size is a bound
    largest = {(memory, killed): [] for memory in ("host", "device") for killed in (True, False)}

    def flush():
        """Rows become columns; what is None becomes not-a-number."""
        for (name, kind), values in zip(kinds.items(), zip(*rows, strict=True), strict=bool(rows)):
            columns[name].append(np.array(values, kind))
        rows.clear()

    def noted():
        for count, record in enumerate(store.tasks()):
            if count % 4096 == 0:
                flush()
                progress("reading tasks", count, total)
            name = record.task_name
            if name not in numbers:
                numbers[name] = names[line_of(name, 120)]
            need, on_device = record.own_peak_bytes, record.gpu_peak_bytes
            rows.append(
                (
                    record.start,
                    record.duration,
                    numbers[name],
                    STATES.index(record.state) if record.state in STATES else 1,
                    need,
                    record.rss_peak_bytes,
                    on_device,
                    record.known_input_bytes,
                    inputs[inputs_text(record.inputs, record.inputs_omitted)],
                    process_of.get(record.process, -1),
                    record.thread or 0,
                )
            )
            keys.append(line_of(record.key, _KEY_MOST) if record.key else "")
            for memory, size in (("host", need), ("device", on_device)):
                if size is not None:
                    heap = largest[memory, record.state == "killed"]
                    (heappush if len(heap) < LARGEST else heappushpop)(heap, (size, -count, record))
            if name not in examples:
                examples[name] = Examples()
            examples[name].add(record)
            yield record

    summaries = summarise(noted(), processes, store.totals())
    flush()
    found = {name: np.concatenate(parts) for name, parts in columns.items()}
    tasks = Tasks(
        len(keys),
        names.texts,
        summaries,
        {},
        keys,
        inputs.texts,
        [],
        _largest(largest, limiting_memory(summaries)),
        examples,
        number_of=numbers,
    )
    _keep(tasks, found)
    return tasks


def _largest(heaps, memory):
    """Records, in the order of the names."""
    need = attrgetter("gpu_peak_bytes" if memory == "device" else "own_peak_bytes")
    records = [
        record
        for killed in (True, False)
        for *_, record in sorted(heaps[memory, killed], reverse=True)
    ]
    by_need = rank_by_need(
        records, need, lambda record: need(record) if record.state == "killed" else None
    )
    return by_need[:LARGEST]


def _keep(tasks, found):
    """The columns in order of start; of too many, the largest and the longest. Then lanes and
    nests, which need all of a thread's."""
    known = np.flatnonzero(~np.isnan(found["start"]))
    if known.size > KEPT_MOST:
        half = KEPT_MOST // 2
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


def _lanes(columns):
    """A lane per thread, in order of process and first task. Of very many threads, those that
    never overlapped share one."""
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
    lane_of, free, users = np.zeros(threads.shape[1], "u4"), [], []
    for thread in order:
        begin = columns["start"][first[thread]]
        lane = (
            next((i for i, end in enumerate(free) if end <= begin), None)
            if threads.shape[1] > LANES_MOST
            else None
        )
        if lane is None:
            lane = len(free)
            free.append(0.0)
            users.append([])
        free[lane] = last[thread]
        users[lane].append(threads[:, thread])
        lane_of[thread] = lane
    return lane_of[number].astype("u2"), [
        tuple(int(v) for v in some[0]) if len(some) == 1 else None for some in users
    ]


def _depths(columns):
    """How many tasks of the same thread a task ran in: the outer ones include its bytes."""
    depths, open_ends = np.zeros(columns["start"].size, "u1"), {}
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
        # One that outlasts it is not a nest: clocks are read a moment apart.
        depths[i] = min(255, sum(outer >= end for outer in ends))
        ends.append(end)
    return depths
