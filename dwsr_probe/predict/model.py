"""The model: two verbs, learn(record) and predict(inputs, task_name). One learner per task name
and kind of memory; numpy and scipy only.

A record of a finished task is an exact value. A record of a killed, failed or cancelled task is a
lower bound, which is kept; so is the growth of the process, if the own peak may miss memory. A
record of a running task is a lower bound, too: it is replaced as the peak rises and dropped when
the task ends. Memory is bounded: sums, a few lower bounds and a sample of shapes are kept.

Means do not depend on the order of arrival, with two exceptions: forgetting (after 1,000 values of
a task, or when it changed), and calibration, which compares each value with the forecast before it.
Predict changes nothing. Not safe for several threads at once.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections import OrderedDict
from functools import partial
from typing import TYPE_CHECKING, Any

from dwsr_probe.predict.calibration import Calibrated, Scores
from dwsr_probe.predict.censored import CensoredValue
from dwsr_probe.predict.forecast import TRUST, Forecast, Round
from dwsr_probe.predict.learner import FLOORS, Learner, Observation
from dwsr_probe.predict.records import (
    field_getter,
    parse_identity,
    parse_oom_peaks,
    parse_output,
    parse_peaks,
    parse_unseen,
    with_growth,
    with_omitted,
)
from dwsr_probe.predict.shapes import OutputShape
from dwsr_probe.predict.sizes import (
    SIZE_FUNCTIONS,
    Array,
    non_negative_int,
    parse_inputs,
    parse_numbers,
    size_features,
)
from dwsr_probe.predict.task import NO_OUTPUT, OutputEstimate, RunningPeaks, TaskModel

if TYPE_CHECKING:
    from dwsr_probe.predict.records import Identity, Peaks
    from dwsr_probe.predict.sizes import Arrays

KINDS = tuple(FLOORS)
FORMAT, VERSION = "dwsr-probe model", 1
_NAMES_MOST = 1024
_RUNNING_MOST = 4096  # tasks that run, and identities of tasks that ended
_NAME_CHARS_MOST = 10_000
_ENDED_EARLY = ("error", "cancelled", "killed")
_STATES = ("ok", "running", *_ENDED_EARLY)
_BOUND_NOTES = ("value-dependent", "non-linear", "uncalibrated")  # on the width of an upper bound


class Model:
    def __init__(self) -> None:
        self._tasks: OrderedDict[str, TaskModel] = OrderedDict()  # the one learned last at the end
        self._pooled_scores = {kind: Scores() for kind in KINDS}  # of all tasks
        self._running: OrderedDict[Identity, str] = OrderedDict()  # task name by identity
        self._ended: OrderedDict[Identity, None] = OrderedDict()  # of tasks that ended last
        self.evicted = 0  # names that made room for others

    # -- learn

    def learn(self, record: Any) -> list[Round]:
        """One record, finished or running, as TaskRecord or dict. Returns the rounds: each
        forecast beside the actual value. ValueError for impossible figures."""
        get = field_getter(record)
        name, state = get("task_name"), get("state", "ok")
        if not isinstance(name, str) or not 0 < len(name) <= _NAME_CHARS_MOST:
            raise ValueError(
                f"task name is {str(name)[:60]!r}, not a text of 1 to {_NAME_CHARS_MOST:,}"
                " characters"
            )
        if state not in _STATES:
            raise ValueError(f"state is {str(state)[:60]!r}, not one of {', '.join(_STATES)}")
        if get("kind", "task") != "task":
            return []
        arrays = with_omitted(
            parse_inputs(get("inputs") or []), get("input_bytes"), get("inputs_omitted") or 0
        )
        peaks = parse_peaks(get)
        output = parse_output(get("output"))
        oom_peaks = parse_oom_peaks(get("oom")) if state == "error" else {}
        identity = parse_identity(get)
        unseen = parse_unseen(get)
        if unseen is not None:
            peaks = with_growth(peaks)
        # Nothing is refused beyond this line, so that a refused record changes nothing.
        if state != "ok":
            peaks.pop("output", None)
        if state == "running":
            # The end of a task without an identity would never be noticed.
            if identity is not None and identity not in self._ended:
                self._set_running(identity, name, RunningPeaks(arrays, peaks))
            return []
        if identity is not None:
            self._end(identity)
        task = self._task(name)
        if state in _ENDED_EARLY:
            return self._learn_censored(task, name, arrays, peaks, oom_peaks)
        rounds = []
        if unseen is not None:
            own = peaks.pop("alloc", None)
            least = own if "rss" in peaks else None  # the growth of a task that ran alone
            rounds += self._learn_unseen(task, name, arrays, unseen, least)
        rounds += self._learn_exact(task, name, arrays, peaks)
        if unseen is None and get("attribution") == "shared" and "alloc" in task.learners:
            task.learners["alloc"].shared_count += 1
        if output:
            task.output.learn(arrays, output)
        task.invalidate()
        return rounds

    def _learn_exact(self, task: TaskModel, name: str, arrays: Arrays, peaks: Peaks) -> list[Round]:
        rounds = []
        # The output as `predict` estimates it: a forecast is scored by what was known before.
        estimate = task.estimate_output(arrays)
        returned = OutputEstimate(peaks.get("output", 0), 0.0)
        for kind, peak in peaks.items():
            learner = task.learners.setdefault(kind, Learner(kind))
            actual, expected = (NO_OUTPUT, NO_OUTPUT) if kind == "output" else (returned, estimate)
            observed = Observation(
                arrays,
                peak,
                size_features(arrays, actual.bytes),
                size_features(arrays, expected.bytes),
                expected.deviation,
            )
            scored = learner.learn(observed, partial(task.bounds, kind), self._pooled_scores[kind])
            if scored is not None:
                rounds.append(Round(name, kind, *scored))
        return rounds

    def _learn_unseen(
        self, task: TaskModel, name: str, arrays: Arrays, reason: str, least: int | None
    ) -> list[Round]:
        """A task whose own peak may miss memory. least: what it took at least, a lower bound: pages
        that its process had before it began did not make the process grow. None: not known."""
        learner = task.learners.setdefault("alloc", Learner("alloc"))
        value = None if least is None else CensoredValue(arrays, least, False)
        if not learner.learn_unseen(reason, value):
            return []
        return self._learn_censored(task, name, arrays, {"alloc": least or 0}, {})

    def _learn_censored(
        self, task: TaskModel, name: str, arrays: Arrays, peaks: Peaks, oom_peaks: Peaks
    ) -> list[Round]:
        rounds = []
        for kind in sorted(peaks.keys() | oom_peaks.keys()):
            bound, is_tight = max((peaks.get(kind, 0), False), (oom_peaks.get(kind, 0), True))
            if bound <= 0:
                continue
            learner = task.learners.setdefault(kind, Learner(kind))
            scored = learner.learn_censored(
                CensoredValue(arrays, bound, is_tight),
                task.features(kind, arrays),
                task.bounds(kind),
                self._pooled_scores[kind],
            )
            rounds.append(Round(name, kind, *scored, censored=True))
        task.invalidate()
        return rounds

    def _task(self, name: str) -> TaskModel:
        task = self._tasks.get(name)
        if task is None:
            task = self._tasks[name] = TaskModel()
            while len(self._tasks) > _NAMES_MOST:
                _, evicted = self._tasks.popitem(last=False)
                for identity in evicted.running:
                    self._running.pop(identity, None)
                self.evicted += 1
        self._tasks.move_to_end(name)
        return task

    def _set_running(self, identity: Identity, name: str, task: RunningPeaks) -> None:
        self._clear_running(identity)  # under another name, perhaps
        self._task(name).set_running(identity, task)
        self._running[identity] = name
        while len(self._running) > _RUNNING_MOST:
            self._clear_running(next(iter(self._running)))

    def _end(self, identity: Identity) -> None:
        """The identity is remembered for a while: of two sources that report a process, the slower
        one may report a task as running after its end."""
        self._clear_running(identity)
        self._ended[identity] = None
        while len(self._ended) > _RUNNING_MOST:
            self._ended.popitem(last=False)

    def _clear_running(self, identity: Identity) -> None:
        name = self._running.pop(identity, None)
        if name is not None and name in self._tasks:
            self._tasks[name].clear_running(identity)

    def forget_running(self, process: str | None = None) -> None:
        """Drop the running tasks of a process that has gone, or of all processes."""
        for identity in [
            identity for identity in self._running if process is None or identity[0] == process
        ]:
            self._clear_running(identity)

    # -- predict

    def predict(
        self,
        inputs: Any,
        task_name: str,
        kind: str = "alloc",
        output: dict[str, Any] | None = None,
        running: Any = None,
    ) -> Forecast:
        """What a task of this name would need for these inputs. output: what the task returns, if
        the caller knows. running: the record of this very task, if it runs; its own lower bound is
        left out (Forecast.exceeds takes it as `above`)."""
        if kind not in KINDS:
            raise ValueError(f"kind is {kind!r}, not one of {', '.join(KINDS)}")
        if not isinstance(task_name, str):
            raise ValueError(f"task name is {str(task_name)[:60]!r}, not a text")
        arrays = parse_inputs(inputs)
        task = self._tasks.get(task_name) or TaskModel()
        if output is not None:
            (given,) = parse_inputs([output]) or (Array(None, 0),)
            estimate = NO_OUTPUT if kind == "output" else OutputEstimate(given.nbytes, 0.0)
        else:
            output = task.output.predict(arrays)
            estimate = NO_OUTPUT if kind == "output" else task.estimate_output(arrays)
        features = size_features(arrays, estimate.bytes)
        asked = task.learners.get(kind) or Learner(kind)
        unseen, least = asked.unseen, 0.0
        learner = asked
        if unseen.is_most:  # own peaks say too little: what the process grew by says more
            learner = task.learners.get("rss") or Learner("rss")
            least = asked.least_bytes(arrays)
        without = parse_identity(field_getter(running)) if running else None
        mixture = learner.posterior(
            task.bounds(learner.kind), task.running_bounds(learner.kind, without)
        )
        predictive = learner.predictive(mixture, arrays, features, estimate.deviation)
        calibrated = Calibrated(predictive, learner.scores, self._pooled_scores[learner.kind])
        trust, notes = learner.trust(arrays, mixture)
        if unseen.is_most:
            trust = min(trust, "low", key=TRUST.index)
            notes = (*(note for note in notes if note not in _BOUND_NOTES), "unseen")
        return Forecast(task_name, kind, calibrated, output, learner.n, trust, notes, unseen, least)

    def names(self) -> list[str]:
        return sorted(self._tasks)

    def kinds(self, task_name: str) -> list[str]:
        return [
            kind
            for kind in KINDS
            if task_name in self._tasks and kind in self._tasks[task_name].learners
        ]

    def seen(self, task_name: str, kind: str = "alloc") -> list[tuple[int, float, int]]:
        """(input bytes, mean peak, count) of some shapes, smallest first."""
        learner = self._tasks[task_name].learners.get(kind) if task_name in self._tasks else None
        return learner.shapes.seen() if learner else []

    # -- merge and save

    def merge(self, other: Model) -> None:
        """Add what another model learned from other records, and its running tasks."""
        if other is self:
            raise ValueError("a model merged with itself would count everything twice")
        for identity in other._ended:
            self._end(identity)
        for name, theirs in other._tasks.items():
            task = self._task(name)
            for kind, learner in theirs.learners.items():
                task.learners.setdefault(kind, Learner(kind)).merge(learner)
            task.output.merge(theirs.output)
            task.invalidate()
            for identity, running in theirs.running.items():
                if identity not in self._ended:
                    self._set_running(identity, name, running)
        self.evicted += other.evicted
        for kind in KINDS:
            self._pooled_scores[kind].merge(other._pooled_scores[kind])

    def to_dict(self) -> dict[str, Any]:
        """Everything except the running tasks, which are reported again."""
        return {
            "format": FORMAT,
            "version": VERSION,
            "functions": [name for name, _ in SIZE_FUNCTIONS],
            "evicted": self.evicted,
            "scores": {
                kind: scores.counts.tolist() for kind, scores in self._pooled_scores.items()
            },
            "tasks": {
                name: {
                    "learners": {
                        kind: learner.to_dict() for kind, learner in task.learners.items()
                    },
                    "output": task.output.to_dict(),
                }
                for name, task in self._tasks.items()
            },
        }

    @classmethod
    def from_dict(cls, saved: Any) -> Model:
        """ValueError if to_dict cannot have given this."""
        if not isinstance(saved, dict) or saved.get("format") != FORMAT:
            raise ValueError("not a model of dwsr-probe")
        if saved.get("version") != VERSION or saved.get("functions") != [
            name for name, _ in SIZE_FUNCTIONS
        ]:
            raise ValueError("a model of another version of dwsr-probe; learn again from the runs")
        self = cls()
        try:
            self.evicted = non_negative_int(saved["evicted"], "evicted")
            for kind in KINDS:
                self._pooled_scores[kind] = Scores(
                    parse_numbers(saved["scores"][kind], Scores().counts.shape, "scores")
                )
            if len(saved["tasks"]) > _NAMES_MOST or not all(
                0 < len(name) <= _NAME_CHARS_MOST for name in saved["tasks"]
            ):
                raise ValueError("a damaged model: task names")
            for name, values in saved["tasks"].items():
                task = self._tasks[name] = TaskModel()
                task.learners = {
                    kind: Learner.from_dict(kind, values["learners"][kind])
                    for kind in values["learners"]
                }
                task.output = OutputShape.from_dict(values["output"])
        except (KeyError, TypeError, AttributeError, IndexError, OverflowError) as error:
            raise ValueError(f"a damaged model: {error!r}") from error
        return self

    def save(self, path: str | os.PathLike[str]) -> None:
        """Atomically: a reader, or a start after a crash, finds the old file or the new one. A
        symbolic link stays a link."""
        path = os.path.realpath(path)
        handle, temporary = tempfile.mkstemp(
            dir=os.path.dirname(path), prefix=os.path.basename(path) + "."
        )
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                json.dump(self.to_dict(), file, separators=(",", ":"), allow_nan=False)
            os.replace(temporary, path)
        except BaseException:
            os.unlink(temporary)
            raise

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Model:
        with open(path, encoding="utf-8") as file:
            try:
                saved = json.load(file)
            except (ValueError, RecursionError) as error:
                raise ValueError(f"{path}: not a model of dwsr-probe ({error})") from error
        try:
            return cls.from_dict(saved)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error
