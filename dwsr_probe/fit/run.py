"""What a fit knows from a run: its tasks, its workers, and the block that it used.

`RunFacts` takes the records one by one and keeps little: a sample for the model, and counts and
durations by group. `RunTasks` makes from it what a plan starts from: one step for each group of
tasks that matters, and how its inputs follow from the block of the dataset (follow.py).
"""

from __future__ import annotations

import math
from collections import defaultdict
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from dwsr_probe.board import process_limit
from dwsr_probe.fit.bases import Bases
from dwsr_probe.fit.durations import SCHEDULING_S, Durations
from dwsr_probe.fit.error import FitError
from dwsr_probe.fit.follow import Dataset, TaskOfRun, find_dataset, halo_of, inputs_at
from dwsr_probe.fit.known import Known
from dwsr_probe.fit.steps import CONSTANT_MOST_BYTES, Step
from dwsr_probe.predict.blocks import held_bytes
from dwsr_probe.predict.group import group_of
from dwsr_probe.predict.history import RunSample
from dwsr_probe.words import bytes_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from dwsr_probe.predict import Model
    from dwsr_probe.predict.history import LearnedRun
    from dwsr_probe.record import TaskRecord
    from dwsr_probe.store import Store

_MATTERS_SHARE = 0.02  # of the largest need: smaller tasks decide nothing
_SCHEDULING_MOST_S = 5e-3  # per task: longer waits have other reasons
_NAMES_MOST = 4  # in a note
_NEAR_LIMIT = 0.9  # of the limit: a process that ended with such a peak was killed for it


@dataclass
class GroupFacts:
    """Of all tasks of a group. peak_bytes: the largest own peak, and the inputs held with it."""

    count: int = 0
    seconds: float = 0.0
    ended_early: int = 0
    peak_bytes: int = 0
    with_inputs_bytes: int = 0
    output: dict[str, Any] | None = None


@dataclass
class RunFacts:
    sample: RunSample = field(default_factory=RunSample)
    groups: dict[str, GroupFacts] = field(default_factory=lambda: defaultdict(GroupFacts))
    overlap_most: int = 0
    began: float = math.inf
    ended: float = 0.0
    _texts: dict[tuple[Any, ...], str] = field(default_factory=dict)
    bases: Bases = field(default_factory=Bases)

    def add(self, record: TaskRecord) -> None:
        self.sample.add(record)
        names = record.task_name, record.operation, tuple(record.chain or ())
        text = self._texts.get(names)
        if text is None:
            text = group_of(record.task_name, record.operation, record.chain).text
            self._texts[names] = text
        facts = self.groups[text]
        facts.count += 1
        facts.seconds += record.duration or 0.0
        facts.ended_early += record.state != "ok"
        own = record.own_peak_bytes or 0
        if own > facts.peak_bytes:
            inputs = [given for given in record.inputs if isinstance(given, dict)]
            with suppress(ValueError):  # impossible figures, which the model refuses, too
                facts.with_inputs_bytes = own + held_bytes(inputs)
                facts.peak_bytes, facts.output = own, record.output
        self.overlap_most = max(self.overlap_most, record.overlap or 0)
        if record.start is not None:
            self.began = min(self.began, record.start)
            self.ended = max(self.ended, record.start + (record.duration or 0.0))
        self.bases.add(record)


def read_facts(
    store: Store, progress: Callable[[str, int, int], object] = lambda what, done, total: None
) -> RunFacts:
    """Of all records of a run; FitError if there are none."""
    facts, total = RunFacts(), store.task_count()
    for done, record in enumerate(store.tasks()):
        facts.add(record)
        if done % 4096 == 0:
            progress("reading tasks", done, total)
    if not total:
        raise FitError("there is no task in this run; mark blocks, or run it under dwsr-probe run")
    return facts


@dataclass
class RunWorkers:
    """Of the processes that ran tasks. memory_bytes: the least limit. peak_bytes: of processes that
    were not killed, the highest; None: all were killed. killed: how many ended near their limit, or
    by a signal."""

    memory_bytes: int | None
    threads: int
    workers: int
    peak_bytes: int | None
    killed: int
    device_bytes: int | None = None


def workers_of(
    processes: Iterable[tuple[TaskRecord, Mapping[str, Any]]], facts: RunFacts
) -> RunWorkers:
    rows = [row for row in processes if row[0].process in facts.bases]
    limits = [limit for _, health in rows if (limit := process_limit(health))]
    peaks, killed = [], 0
    for record, health in rows:
        limit, peak = process_limit(health), record.rss_peak_bytes or 0
        if record.state == "killed" or (limit and peak >= _NEAR_LIMIT * limit):
            killed += 1
        else:
            peaks.append(peak)
    threads, nannies = [], set()
    for _, health in rows:
        for worker in health.get("workers") or ():
            if worker.get("address"):
                threads.append(int(worker.get("nthreads") or 1))
                nannies.add(worker.get("nanny") or worker["address"])
    return RunWorkers(
        min(limits, default=None),
        max(threads, default=facts.overlap_most + 1),
        max(1, len(nannies)),
        max(peaks, default=None),
        killed,
        min(_device_limits(health for _, health in rows), default=None),
    )


def _device_limits(healths: Iterable[Mapping[str, Any]]) -> Iterator[int]:
    """The limits of the pools on all devices, or their total memory."""
    for health in healths:
        for device in health.get("devices") or ():
            limit = device.get("pool_limit_bytes") or device.get("total_bytes")
            if limit:
                yield int(limit)


class RunTasks:
    """The tasks of a run, learned. task: what the user asks for; None: all tasks. learned: by who
    has learned the same run already."""

    def __init__(
        self,
        facts: RunFacts,
        task: str | None = None,
        progress: Callable[[int, int], object] = lambda done, total: None,
        learned: LearnedRun | None = None,
    ) -> None:
        self.facts = facts
        self.learned = learned or facts.sample.learn(progress)
        self.model: Model = self.learned.model
        if task is not None and not self.model.groups(task):
            known = ", ".join(self.model.labels().values()) or "none"
            raise FitError(f"no task {task!r} in this run; there are {known}")
        asked = self.model.groups(task)
        self.texts = [group.text for group in asked if group.text in self.learned.largest]
        self.asks_for_one = task is not None
        self.dataset = find_dataset(
            {
                text: TaskOfRun(
                    self.learned.largest[text].inputs,
                    facts.groups[text].peak_bytes,
                    facts.groups[text].output,
                )
                for text in self.texts
            },
            asks_for_one=task is not None,
        )

    def depth(self) -> list[int]:
        """The halo of tasks that receive parts of neighbouring blocks."""
        depth = [0] * len(self.dataset.block)
        for text in self.texts:
            if "overlap" in text:
                found = halo_of(self.learned.largest[text].inputs, self.dataset)
                depth = [max(pair) for pair in zip(depth, found, strict=True)]
        return depth

    def known(self, workers: RunWorkers, params: dict[str, float] | None = None) -> Known:
        needs = {text: self.facts.groups[text].with_inputs_bytes for text in self.texts}
        most = max(needs.values(), default=0)
        steps, notes, one_sized, unseen = [], [], [], []
        labels = {group.text: label for group, label in self.model.labels().items()}
        for text in self.texts:
            if needs[text] < _MATTERS_SHARE * most and not self.asks_for_one:
                continue
            largest = self.learned.largest[text]
            forecast = self.model.predict(largest.inputs, text, params=largest.params)
            if forecast.is_lower_bound:
                unseen.append(labels[text])
            given = {**(largest.params or {}), **(params or {})} or None
            follow = _follower(largest.inputs, self.dataset, text)
            seen = largest.inputs if "one-size" in forecast.notes else None
            if seen:
                one_sized.append(labels[text])
            steps.append(Step(labels[text], text, follow, "alloc", given, seen))
        if one_sized:
            notes.append(
                f"seen at one size only: {_some(one_sized)}; at most"
                f" {bytes_text(CONSTANT_MOST_BYTES)} of what such a task needs are taken for"
                " independent of the block"
            )
        if unseen:
            notes.append(
                f"own peaks may miss memory: {_some(unseen)}; twice what was seen is assumed, which"
                " is not promised"
            )
        if not steps:
            raise FitError("no task of this run has a peak that could be scaled")
        return Known(
            self.model,
            steps,
            self.durations(workers),
            self.facts.bases.typical_bytes,
            notes=notes,
            device_bytes=workers.device_bytes,
        )

    def blocks_in_run(self) -> int:
        """How many blocks the run worked on."""
        if self.dataset.shape is not None:
            pairs = zip(self.dataset.shape, self.dataset.block, strict=True)
            return math.prod(-(-n // length) for n, length in pairs)
        return self.facts.groups[self.dataset.task].count

    def durations(self, workers: RunWorkers) -> Durations | None:
        """Seconds per byte of the dataset, of all tasks together. What the workers' threads waited
        counts as scheduling, as far as it is not too long for that."""
        groups = [self.facts.groups[text] for text in self.texts]
        blocks = self.blocks_in_run()
        busy = sum(facts.seconds for facts in groups)
        if not blocks or not busy:
            return None
        tasks = sum(facts.count for facts in groups)
        idle = self.facts.ended - self.facts.began - busy / (workers.threads * workers.workers)
        size = math.prod(self.dataset.block) * self.dataset.itemsize
        return Durations(
            [(float(size), busy / blocks)],
            scheduling_s=min(max(idle / tasks, SCHEDULING_S), _SCHEDULING_MOST_S),
            start_s=0.0,  # part of the measured durations
            tasks_per_block=tasks / blocks,
        )

    def held_blocks(self, workers: RunWorkers) -> float:
        """How many blocks' worth of memory a worker held beside its running tasks, from its peak.
        0 for a run whose workers were killed: their peaks were cut off. What a process takes in the
        course of a job whatever its blocks are is not counted."""
        base = self.facts.bases.typical_bytes
        if workers.peak_bytes is None or base is None:
            return 0.0
        base += CONSTANT_MOST_BYTES
        need = max(self.facts.groups[text].with_inputs_bytes for text in self.texts)
        at_once = min(workers.threads, self.facts.overlap_most + 1)
        block = math.prod(self.dataset.block) * self.dataset.itemsize
        return max(0.0, (workers.peak_bytes - base - at_once * need) / max(1, block))


def _some(names: list[str]) -> str:
    more = f" and {len(names) - _NAMES_MOST} more" if len(names) > _NAMES_MOST else ""
    return ", ".join(names[:_NAMES_MOST]) + more


def _follower(inputs: Any, dataset: Dataset, text: str) -> Callable[[Any], list[dict[str, Any]]]:
    is_rechunked = "rechunk" in text

    def inputs_of(block: Any) -> list[dict[str, Any]]:
        return inputs_at(inputs, dataset, block, is_rechunked)

    return inputs_of
