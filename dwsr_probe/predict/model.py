"""The model: two verbs, learn(record) and predict(inputs, task_name). One learner per group of
tasks (group.py) and kind of memory; numpy only. Groups are kept by their text.

A record of a finished task is an exact value. A record of a killed, failed or cancelled task is a
lower bound, which is kept; so is the growth of the process, if the own peak may miss memory. A
record of a running task is a lower bound, too: it is replaced as the peak rises and dropped when
the task ends. Memory is bounded: a sample of cases and a few lower bounds are kept.

Means do not depend on the order of arrival, with two exceptions: forgetting (after 1,000 values of
a task, or when it changed), and calibration, which compares each value with the forecast before it.
Predict changes nothing. Not safe for several threads at once.
"""

from __future__ import annotations

import json
import marshal
import os
import tempfile
from collections import OrderedDict
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from dwsr_probe.predict.calibration import Calibrated, Scores
from dwsr_probe.predict.censored import CensoredValue
from dwsr_probe.predict.forecast import TRUST, Forecast, Round
from dwsr_probe.predict.group import Group, is_asked, labels
from dwsr_probe.predict.learner import FLOORS, Learner, Observation
from dwsr_probe.predict.records import (
    ENDED_EARLY,
    NAME_CHARS_MOST,
    field_getter,
    parse_identity,
    parse_late,
    parse_record,
)
from dwsr_probe.predict.sizes import (
    SIZE_FUNCTIONS,
    non_negative_int,
    parse_inputs,
    parse_numbers,
    size_features,
)
from dwsr_probe.predict.task import NO_OUTPUT, OutputEstimate, RunningPeaks, TaskModel
from dwsr_probe.predict.together import Member, Together

if TYPE_CHECKING:
    from collections.abc import Iterable

    from dwsr_probe.predict.learner import ScoredForecast
    from dwsr_probe.predict.records import Identity, Peaks, TaskNames
    from dwsr_probe.predict.sizes import Arrays

KINDS = tuple(FLOORS)
FORMAT, VERSION = "dwsr-probe model", 2
_GROUPS_MOST = 1024
_ANSWERS_MOST = 4096
_RUNNING_MOST = 4096  # tasks that run, and identities of tasks that ended
_TEXT_CHARS_MOST = 3 * NAME_CHARS_MOST  # of a group: its name, its chain, arrows
_WIDE_BOUND = 2.0  # a bound of so many times the mean or more is not trusted
_BOUND_NOTES = ("value-dependent", "non-linear", "uncalibrated")  # on the width of an upper bound


class Model:
    def __init__(self) -> None:
        # By the group's text; the one learned last at the end
        self._tasks: OrderedDict[str, TaskModel] = OrderedDict()
        self._labels: dict[Group, str] = {}  # of all groups; computed when asked for
        self._pooled_scores = {kind: Scores() for kind in KINDS}  # of all tasks
        self._running: OrderedDict[Identity, str] = OrderedDict()  # a group's text by identity
        self._ended: OrderedDict[Identity, None] = OrderedDict()  # of tasks that ended last
        self.evicted = 0  # groups that made room for others
        self._answers: dict[Any, Forecast] = {}  # to questions since the last change

    # -- learn

    def learn(self, record: Any) -> list[Round]:
        """One record, finished or running, as TaskRecord or dict. Returns the rounds: each
        forecast beside the actual value. ValueError for impossible figures."""
        parsed = parse_record(record)
        if parsed is None:
            return []
        names, state, arrays, late = parsed.names, parsed.state, parsed.arrays, parsed.late
        peaks, output, identity, unseen = (
            parsed.peaks,
            parsed.output,
            parsed.identity,
            parsed.unseen,
        )
        # Nothing is refused beyond this line, so that a refused record changes nothing.
        if state != "ok":
            peaks.pop("output", None)
        if state == "running":
            # The end of a task without an identity would never be noticed.
            if identity is not None and identity not in self._ended:
                task = self._task(names.group)
                task.add_names(names)
                arrays = task.with_late(arrays, late)
                self._set_running(identity, task, RunningPeaks(arrays, peaks))
            return []
        self._answers.clear()
        if identity is not None:
            self._end(identity)
        task = self._task(names.group)
        task.add_names(names)
        if state in ENDED_EARLY:
            arrays = task.with_late(arrays, late)
            return self._learn_censored(task, names, arrays, peaks, parsed.oom_peaks)
        if late:
            task.add_late(late)
        rounds = []
        if unseen is not None:
            own = peaks.pop("alloc", None)
            least = own if "rss" in peaks else None  # the growth of a task that ran alone
            rounds += self._learn_unseen(task, names, arrays, unseen, least)
        rounds += self._learn_exact(task, names, arrays, peaks, parsed.logical_bytes)
        if parsed.is_shared and "alloc" in task.learners:
            task.learners["alloc"].shared_count += 1
        if output:
            task.output.learn(arrays, output)
        task.invalidate()
        return rounds

    def _learn_exact(
        self,
        task: TaskModel,
        names: TaskNames,
        arrays: Arrays,
        peaks: Peaks,
        logical_bytes: int,
    ) -> list[Round]:
        """logical_bytes: of an output that is a view; else 0. Such an output owns fewer bytes than
        its shape tells, and the estimate is of the shape."""
        rounds = []
        # The output as `predict` estimates it: a forecast is scored by what was known before.
        estimate = task.estimate_output(arrays)
        returned = OutputEstimate(max(peaks.get("output", 0), logical_bytes), 0.0)
        for kind, peak in peaks.items():
            learner = task.learners.setdefault(kind, Learner(kind))
            actual, expected = (NO_OUTPUT, NO_OUTPUT) if kind == "output" else (returned, estimate)
            observed = Observation(
                arrays,
                peak,
                actual.bytes,
                size_features(arrays, expected.bytes),
                expected.deviation,
            )
            scored = learner.learn(observed, partial(task.bounds, kind), self._pooled_scores[kind])
            if scored is not None:
                rounds.append(_round(names, kind, scored))
        return rounds

    def _learn_unseen(
        self, task: TaskModel, names: TaskNames, arrays: Arrays, reason: str, least: int | None
    ) -> list[Round]:
        """A task whose own peak may miss memory. least: what it took at least, a lower bound: pages
        that its process had before it began did not make the process grow. None: not known."""
        learner = task.learners.setdefault("alloc", Learner("alloc"))
        value = None if least is None else CensoredValue(arrays, least, False)
        if not learner.learn_unseen(reason, value):
            return []
        return self._learn_censored(task, names, arrays, {"alloc": least or 0}, {})

    def _learn_censored(
        self, task: TaskModel, names: TaskNames, arrays: Arrays, peaks: Peaks, oom_peaks: Peaks
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
            rounds.append(_round(names, kind, scored, censored=True))
        task.invalidate()
        return rounds

    def _task(self, group: Group) -> TaskModel:
        text = group.text
        task = self._tasks.get(text)
        if task is None:
            task = self._tasks[text] = TaskModel(group)
            self._labels = {}
            while len(self._tasks) > _GROUPS_MOST:
                _, evicted = self._tasks.popitem(last=False)
                for identity in evicted.running:
                    self._running.pop(identity, None)
                self.evicted += 1
        self._tasks.move_to_end(text)
        return task

    def _set_running(self, identity: Identity, task: TaskModel, peaks: RunningPeaks) -> None:
        self._answers.clear()
        self._clear_running(identity)  # of another group, perhaps
        task.set_running(identity, peaks)
        self._running[identity] = task.group.text
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
        text = self._running.pop(identity, None)
        self._answers.clear()
        if text is not None and text in self._tasks:
            self._tasks[text].clear_running(identity)

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
        task_name: str | Group,
        kind: str = "alloc",
        output: dict[str, Any] | None = None,
        running: Any = None,
    ) -> Forecast:
        """What a task would need for these inputs. task_name: a group or its text, or anything
        that means one group (`groups`); ValueError if several groups are meant. output: what the
        task returns, if the caller knows. running: the record of this very task, if it runs; its
        own lower bound is left out (Forecast.exceeds takes it as `above`)."""
        try:  # half a microsecond; inputs that are no plain lists and dicts are not remembered
            key = task_name, kind, marshal.dumps((inputs, output, running), 2)
            found = self._answers.get(key)
        except (ValueError, TypeError):
            return self._predict(inputs, task_name, kind, output, running)
        if found is None:
            found = self._predict(inputs, task_name, kind, output, running)
            if len(self._answers) >= _ANSWERS_MOST:
                self._answers.clear()
            self._answers[key] = found
        return found

    def _predict(
        self,
        inputs: Any,
        task_name: str | Group,
        kind: str,
        output: dict[str, Any] | None,
        running: Any,
    ) -> Forecast:
        if kind not in KINDS:
            raise ValueError(f"kind is {kind!r}, not one of {', '.join(KINDS)}")
        arrays = parse_inputs(inputs)
        task = self._find(task_name)
        if task is None:
            task = TaskModel(task_name if isinstance(task_name, Group) else Group(task_name))
        if running:
            arrays = task.with_late(arrays, parse_late(inputs))
        known_output = parse_inputs([output]) if output is not None else ()
        if known_output:
            (given,) = known_output
            estimate = NO_OUTPUT if kind == "output" else OutputEstimate(given.nbytes, 0.0)
        else:
            output = task.output.predict(arrays)
            estimate = NO_OUTPUT if kind == "output" else task.estimate_of(output, arrays)
        features = size_features(arrays, estimate.bytes)
        asked = task.learners.get(kind) or Learner(kind)
        unseen, least = asked.unseen, 0.0
        learner = asked
        if unseen.is_most:  # own peaks say too little: what the process grew by says more
            learner = task.learners.get("rss") or Learner("rss")
            least = asked.least_bytes(arrays)
        elif kind == "alloc" and learner.makes_its_output():
            least = float(estimate.bytes)
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
        name = task_name.text if isinstance(task_name, Group) else task_name
        # A guess that is open to one side: its mean would be one of few improbable large needs.
        guess = calibrated.quantile(0.5) if trust == "none" else None
        forecast = Forecast(
            name, kind, calibrated, output, learner.n, trust, notes, unseen, least, guess
        )
        if trust == "good" and forecast.upper(0.99) > _WIDE_BOUND * forecast.mean:
            forecast = replace(forecast, trust="fair")
        return forecast

    def together(
        self, questions: Iterable[tuple[Any, str | Group]], kind: str = "alloc"
    ) -> Together:
        """What several tasks need at the same time. questions: (inputs, task_name) of each, as for
        `predict`."""
        members = []
        for inputs, name in questions:
            task = self._find(name)
            text = name.text if isinstance(name, Group) else name
            text = text if task is None else task.group.text
            members.append(Member(text, self.predict(inputs, name, kind)))
        return Together(members)

    def _find(self, asked: str | Group) -> TaskModel | None:
        """A group, or the one group that is meant; None: nothing was learned of it."""
        if isinstance(asked, Group):
            return self._tasks.get(asked.text)
        if not isinstance(asked, str):
            raise ValueError(f"task name is {str(asked)[:60]!r}, not a text")
        if (task := self._tasks.get(asked)) is not None or not self._tasks:
            return task
        found = self.groups(asked)
        if len(found) > 1:
            raise ValueError(
                f"{asked!r} means {len(found)} groups of tasks: "
                + ", ".join(repr(group.text) for group in found)
            )
        return self._tasks[found[0].text] if found else None

    def groups(self, asked: str | None = None) -> list[Group]:
        """All groups, or those that are meant by a task name, an operation, a label, a group's
        text or a function of a chain; in the order of their labels."""
        shown = self.labels()
        return [
            group
            for group, label in shown.items()
            if asked is None or is_asked(asked, group, label, self._tasks[group.text].task_names)
        ]

    def labels(self) -> dict[Group, str]:
        """What each group is called beside the others: "smooth", "smooth (1 of 2)"."""
        if not self._labels:
            self._labels = labels(task.group for task in self._tasks.values())
        return self._labels

    def reads_late(self, task_name: str | Group) -> bool:
        """Whether only the end of the group's tasks tells what they read."""
        task = self._find(task_name)
        return task is not None and bool(task.late)

    def names(self) -> list[str]:
        """The texts of all groups: for groups without operation and chain, their task names."""
        return sorted(self._tasks)

    def operation(self, task_name: str | Group) -> str | None:
        """As records of the group have it; None if they have none."""
        task = self._find(task_name)
        return task.operation if task else None

    def task_names(self, task_name: str | Group) -> list[str]:
        """Names of the group's tasks: Dask's prefixes of their keys. Some hundred are kept."""
        task = self._find(task_name)
        return sorted(task.task_names) if task else []

    def kinds(self, task_name: str | Group) -> list[str]:
        """Of all groups that are meant."""
        tasks = self._meant(task_name)
        return [kind for kind in KINDS if any(kind in task.learners for task in tasks)]

    def seen(self, task_name: str | Group, kind: str = "alloc") -> list[tuple[int, float, int]]:
        """(input bytes, mean peak, count) of some shapes, smallest first; of all groups that are
        meant."""
        learners = [task.learners[kind] for task in self._meant(task_name) if kind in task.learners]
        return sorted(found for learner in learners for found in learner.cases.seen())

    def _meant(self, asked: str | Group) -> list[TaskModel]:
        text = asked.text if isinstance(asked, Group) else asked
        if text in self._tasks or isinstance(asked, Group):
            return [self._tasks[text]] if text in self._tasks else []
        return [self._tasks[group.text] for group in self.groups(text)]

    # -- merge and save

    def merge(self, other: Model) -> None:
        """Add what another model learned from other records, and its running tasks."""
        if other is self:
            raise ValueError("a model merged with itself would count everything twice")
        self._answers.clear()
        for identity in other._ended:
            self._end(identity)
        for theirs in other._tasks.values():
            task = self._task(theirs.group)
            task.merge(theirs)
            for identity, running in theirs.running.items():
                if identity not in self._ended:
                    self._set_running(identity, task, running)
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
            "tasks": {text: task.to_dict() for text, task in self._tasks.items()},
        }

    @classmethod
    def from_dict(cls, saved: Any) -> Model:
        """ValueError if to_dict cannot have given this."""
        if not isinstance(saved, dict) or saved.get("format") != FORMAT:
            raise ValueError("not a model of dwsr-probe")
        if saved.get("version") not in (1, VERSION) or saved.get("functions") != [
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
            if len(saved["tasks"]) > _GROUPS_MOST or not all(
                0 < len(text) <= _TEXT_CHARS_MOST for text in saved["tasks"]
            ):
                raise ValueError("a damaged model: task names")
            for text, values in saved["tasks"].items():
                self._tasks[text] = TaskModel.from_dict(text, values)
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


def _round(names: TaskNames, kind: str, scored: ScoredForecast, censored: bool = False) -> Round:
    return Round(
        names.task_name,
        kind,
        *scored,
        censored=censored,
        operation=names.operation,
        chain=names.chain or None,
    )
