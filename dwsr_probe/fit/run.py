"""What a fit knows from a run: its tasks, its workers, and the block that it used.

`RunFacts` takes the records one by one and keeps little: a sample for the model, and counts and
durations by group. `known_of` makes from it what `fit_known` starts from: one step for each group
of tasks that matters, and how its inputs follow from the block of the dataset (follow.py).
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING, Any

from dwsr_probe.board import process_limit
from dwsr_probe.fit.durations import Durations
from dwsr_probe.fit.error import FitError
from dwsr_probe.fit.follow import Dataset, halo_of, inputs_at
from dwsr_probe.fit.known import Known
from dwsr_probe.fit.steps import CONSTANT_MOST_BYTES, Step
from dwsr_probe.predict.blocks import held_bytes
from dwsr_probe.predict.group import group_of
from dwsr_probe.predict.history import RunSample
from dwsr_probe.words import bytes_text, shape_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from dwsr_probe.predict import Model
    from dwsr_probe.predict.history import LearnedRun
    from dwsr_probe.record import TaskRecord

_MATTERS_SHARE = 0.02  # of the largest need: smaller tasks decide nothing
_HANDLE_SHARE = 0.01  # of the array that it stands for: what a task takes that opens an array
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
    _least_rss: dict[str | None, int] = field(default_factory=dict)  # before a task, by process

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
            facts.peak_bytes = own
            facts.with_inputs_bytes = own + held_bytes(_sized(record.inputs))
            facts.output = record.output
        self.overlap_most = max(self.overlap_most, record.overlap or 0)
        if record.start is not None:
            self.began = min(self.began, record.start)
            self.ended = max(self.ended, record.start + (record.duration or 0.0))
        before = record.rss_before_bytes
        if before is not None:
            known = self._least_rss.get(record.process)
            if known is None or before < known:
                self._least_rss[record.process] = before

    @property
    def base_bytes(self) -> float | None:
        """Resident size of a process before its first task."""
        return float(median(self._least_rss.values())) if self._least_rss else None


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


def workers_of(
    processes: Iterable[tuple[TaskRecord, Mapping[str, Any]]], facts: RunFacts
) -> RunWorkers:
    rows = [row for row in processes if row[0].process in facts._least_rss]
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
    )


class RunTasks:
    """The tasks of a run, learned. task: what the user asks for; None: all tasks."""

    def __init__(
        self,
        facts: RunFacts,
        task: str | None = None,
        progress: Callable[[int, int], object] = lambda done, total: None,
    ) -> None:
        self.facts = facts
        self.learned: LearnedRun = facts.sample.learn(progress)
        self.model: Model = self.learned.model
        if task is not None and not self.model.groups(task):
            known = ", ".join(self.model.labels().values()) or "none"
            raise FitError(f"no task {task!r} in this run; there are {known}")
        asked = self.model.groups(task)
        self.texts = [group.text for group in asked if group.text in self.learned.largest]
        self.asks_for_one = task is not None
        self.dataset = self._find_dataset()

    def _find_dataset(self) -> Dataset:
        """The block is what tasks read of the array, or else the largest input. The array's own
        shape is known if a task received the array itself."""
        handles, reads, others = [], [], []
        for text in self.texts:
            own = self.facts.groups[text].peak_bytes
            for given in _sized(self.learned.largest[text].inputs):
                shape, nbytes = given.get("shape"), given.get("nbytes") or 0
                if not shape or None in shape or not nbytes:
                    continue
                if given.get("lazy") and own < _HANDLE_SHARE * nbytes:
                    handles.append((nbytes, given))
                elif given.get("lazy") or given.get("late"):
                    reads.append((nbytes, given))
                else:
                    others.append((nbytes, given))
        for text, facts in self.facts.groups.items():  # blocks that `rechunk` makes
            output = facts.output
            if text in self.texts and "rechunk" in text and output and output.get("shape"):
                others.append((output.get("nbytes") or 0, output))
        if self.asks_for_one and others:
            reads = []
        found = max(reads or others, key=lambda one: one[0], default=None)
        if found is None:
            raise FitError(
                "no task of this run has an input whose size is known: there is no block to scale"
            )
        block = found[1]
        if reads and others:
            made = max(others, key=lambda one: one[0])
            if any("rechunk" in text for text in self.texts) and made[0] > found[0]:
                block = made[1]
        shape = tuple(block["shape"])
        whole = next(
            (
                tuple(one["shape"])
                for _, one in sorted(handles, key=lambda h: -h[0])
                if len(one["shape"]) == len(shape)
            ),
            None,
        )
        return Dataset(shape, _itemsize(block), block.get("dtype"), whole)

    def depth(self) -> list[int]:
        """The halo of tasks that receive parts of neighbouring blocks."""
        depth = [0] * len(self.dataset.block)
        for text in self.texts:
            if "overlap" in text:
                found = halo_of(self.learned.largest[text].inputs, self.dataset)
                depth = [max(pair) for pair in zip(depth, found, strict=True)]
        return depth

    def known(self, params: dict[str, float] | None = None) -> Known:
        needs = {text: self.facts.groups[text].with_inputs_bytes for text in self.texts}
        most = max(needs.values(), default=0)
        steps, notes, one_sized = [], [], []
        labels = {group.text: label for group, label in self.model.labels().items()}
        for text in self.texts:
            if needs[text] < _MATTERS_SHARE * most and not self.asks_for_one:
                continue
            largest = self.learned.largest[text]
            forecast = self.model.predict(largest.inputs, text, params=largest.params)
            if forecast.is_lower_bound:
                notes.append(
                    f"{labels[text]}: own peaks may miss memory, so {bytes_text(forecast.mean)} is"
                    " a lower bound"
                )
            given = {**(largest.params or {}), **(params or {})} or None
            follow = _follower(largest.inputs, self.dataset, text)
            seen = largest.inputs if "one-size" in forecast.notes else None
            if seen:
                one_sized.append(labels[text])
            steps.append(Step(labels[text], text, follow, "alloc", given, seen))
        if one_sized:
            notes.append(
                f"seen at one size only: {', '.join(one_sized)}; at most"
                f" {bytes_text(CONSTANT_MOST_BYTES)} of what such a task needs are taken for"
                " independent of the block"
            )
        if not steps:
            raise FitError("no task of this run has a peak that could be scaled")
        return Known(self.model, steps, self._durations(), self.facts.base_bytes, notes=notes)

    def blocks_in_run(self) -> int:
        """How many blocks the run worked on: the tasks of its commonest group that matters."""
        return max(self.facts.groups[text].count for text in self.texts)

    def _durations(self) -> Durations | None:
        """Seconds per byte of the dataset, of all tasks together."""
        ended = [self.facts.groups[text] for text in self.texts]
        count = max((facts.count - facts.ended_early for facts in ended), default=0)
        seconds = sum(facts.seconds for facts in ended)
        if not count or not seconds:
            return None
        block = math.prod(self.dataset.block) * self.dataset.itemsize
        return Durations([(float(block), seconds / count)])

    def held_blocks(self, workers: RunWorkers) -> float:
        """How many blocks' worth of memory a worker held beside its running tasks, from its peak.
        0 for a run whose workers were killed: their peaks were cut off."""
        base = self.facts.base_bytes
        if workers.peak_bytes is None or base is None:
            return 0.0
        need = max(self.facts.groups[text].with_inputs_bytes for text in self.texts)
        at_once = min(workers.threads, self.facts.overlap_most + 1)
        block = math.prod(self.dataset.block) * self.dataset.itemsize
        return max(0.0, (workers.peak_bytes - base - at_once * need) / max(1, block))


def _follower(inputs: Any, dataset: Dataset, text: str) -> Callable[[Any], list[dict[str, Any]]]:
    is_rechunked = "rechunk" in text

    def inputs_of(block: Any) -> list[dict[str, Any]]:
        return inputs_at(inputs, dataset, block, is_rechunked)

    return inputs_of


def _sized(inputs: Any) -> list[dict[str, Any]]:
    return [given for given in inputs if isinstance(given, dict)]


def _itemsize(given: dict[str, Any]) -> float:
    return (given.get("nbytes") or 0) / max(1, math.prod(given["shape"]))


def block_text(dataset: Dataset) -> str:
    return shape_text(dataset.block)
