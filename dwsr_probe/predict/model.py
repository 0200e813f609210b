"""The model: two verbs, learn(record) and predict(inputs, task_name). One learner per group of
tasks (group.py) and kind of memory; numpy only. Groups are kept by their text.

A record of a finished task is an exact value. A record of a killed, failed or cancelled task is a
lower bound, which is kept; so is the growth of the process, if the own peak may miss memory. A
record of a running task is a lower bound, too: it is replaced as the peak rises and dropped when
the task ends. Memory is bounded: a sample of cases and a few lower bounds are kept.

Means do not depend on the order of arrival, with three exceptions: forgetting (when a task has
changed); calibration, which compares each value with the forecast before it;
and which task of a thread is its first (first_calls.py). Predict changes nothing. Not safe for
several threads at once.
"""

from __future__ import annotations

import marshal
import os
from collections import OrderedDict
from functools import partial
from typing import TYPE_CHECKING, Any

from dwsr_probe.predict.answer import Asked, answer
from dwsr_probe.predict.calibration import Scores
from dwsr_probe.predict.censored import CensoredValue
from dwsr_probe.predict.forecast import Round
from dwsr_probe.predict.group import Group, is_asked, labels
from dwsr_probe.predict.learner import FLOORS
from dwsr_probe.predict.many import Questions, answer_many
from dwsr_probe.predict.mixed import mixed_forecast
from dwsr_probe.predict.model_file import no_collection, read_json, write_json
from dwsr_probe.predict.params import Given, parse_params
from dwsr_probe.predict.records import (
    ENDED_EARLY,
    NAME_CHARS_MOST,
    field_getter,
    parse_identity,
    parse_late,
    parse_record,
)
from dwsr_probe.predict.room import Room, parse_ago
from dwsr_probe.predict.scoring import Observation
from dwsr_probe.predict.sizes import (
    SIZE_FUNCTIONS,
    non_negative_int,
    parse_inputs,
)
from dwsr_probe.predict.task import NO_OUTPUT, OutputEstimate, RunningPeaks, TaskModel
from dwsr_probe.predict.together import Member, Together

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from dwsr_probe.predict.forecast import Forecast
    from dwsr_probe.predict.many import Forecasts
    from dwsr_probe.predict.records import Identity, ParsedRecord, Peaks, TaskNames
    from dwsr_probe.predict.scoring import ScoredForecast

KINDS = tuple(FLOORS)
FORMAT, VERSION = "dwsr-probe model", 2
_GROUPS_MOST = 1024
_ANSWERS_MOST = 4096
_RUNNING_MOST = 4096  # tasks that run, and identities of tasks that ended
_TEXT_CHARS_MOST = 3 * NAME_CHARS_MOST  # of a group: its name, its chain, arrows


class Model:
    """groups_most, answers_most: how many groups, and answers to questions, are kept."""

    def __init__(self, groups_most: int = _GROUPS_MOST, answers_most: int = _ANSWERS_MOST) -> None:
        self._answers_most = answers_most
        self._tasks: dict[str, TaskModel] = {}  # by the group's text
        self._room = Room(groups_most)
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
        names, state, given, peaks = parsed.names, parsed.state, parsed.given, parsed.peaks
        late, identity, unseen = parsed.late, parsed.identity, parsed.unseen
        # Nothing is refused beyond this line, so that a refused record changes nothing.
        if state != "ok":
            peaks.pop("output", None)
        if state == "running":
            # The end of a task without an identity would never be noticed.
            if identity is not None and identity not in self._ended:
                task = self._task(names.group)
                task.add_names(names)
                self._set_running(identity, task, RunningPeaks(task.with_late(given, late), peaks))
            return []
        self._answers.clear()
        if identity is not None:
            self._end(identity)
        task = self._task(names.group)
        task.add_names(names)
        first_kept = task.first_call(identity, peaks, parsed.kept)
        if state in ENDED_EARLY:
            given = task.with_late(given, late)
            return self._learn_censored(task, names, given, peaks, parsed.oom_peaks, first_kept)
        if late:
            task.add_late(late)
        rounds = []
        if unseen is not None:
            own = peaks.pop("alloc", None)
            least = own if "rss" in peaks else None  # the growth of a task that ran alone
            rounds += self._learn_unseen(task, names, given, unseen, least)
        rounds += self._learn_exact(task, parsed, given, peaks, first_kept)
        if parsed.is_shared and "alloc" in task.learners:
            task.learners["alloc"].shared_count += 1
        if parsed.output:
            task.output.learn(given.arrays, parsed.output)
        task.invalidate()
        return rounds

    def _learn_exact(
        self,
        task: TaskModel,
        parsed: ParsedRecord,
        given: Given,
        peaks: Peaks,
        first_kept: dict[str, int],
    ) -> list[Round]:
        """peaks: those that are exact. first_kept: what the task kept, by kind, if it is a first
        call."""
        rounds = []
        # The output as `predict` estimates it: a forecast is scored by what was known before.
        estimate = task.estimate_output(given)
        # A view keeps fewer or more bytes than its shape tells, and the estimate is of the shape.
        returned = OutputEstimate(parsed.logical_bytes or peaks.get("output", 0))
        if "output" in peaks:
            task.add_returned(returned.bytes, peaks["output"])
        for kind, peak in peaks.items():
            learner = task.learner(kind)
            if given.params and learner.know_params(given.params):
                task.invalidate()
            actual, expected = (NO_OUTPUT, NO_OUTPUT) if kind == "output" else (returned, estimate)
            observed = Observation(
                given,
                peak,
                actual.bytes,
                expected,
                first_kept.get(kind),
                parsed.output_kind,
            )
            scored = learner.learn(observed, partial(task.bounds, kind), self._pooled_scores[kind])
            if scored is not None:
                rounds.append(_round(parsed.names, kind, scored))
        return rounds

    def _learn_unseen(
        self,
        task: TaskModel,
        names: TaskNames,
        given: Given,
        reason: str,
        least: int | None,
    ) -> list[Round]:
        """A task whose own peak may miss memory. least: what it took at least, a lower bound: pages
        that its process had before it began did not make the process grow. None: not known."""
        learner = task.learner("alloc")
        value = None if least is None else CensoredValue(given, least, False)
        if not learner.learn_unseen(reason, value):
            return []
        return self._learn_censored(task, names, given, {"alloc": least or 0}, {})

    def _learn_censored(
        self,
        task: TaskModel,
        names: TaskNames,
        given: Given,
        peaks: Peaks,
        oom_peaks: Peaks,
        first_kept: Collection[str] = (),
    ) -> list[Round]:
        """first_kept: kinds of which the task may have taken what only first calls take."""
        rounds = []
        for kind in sorted(peaks.keys() | oom_peaks.keys()):
            bound, is_tight = max((peaks.get(kind, 0), False), (oom_peaks.get(kind, 0), True))
            if bound <= 0:
                continue
            learner = task.learner(kind)
            if kind in first_kept:
                bound = max(1, bound - learner.settled.first_calls.bytes)
            scored = learner.learn_censored(
                CensoredValue(given, bound, is_tight),
                task.estimate_for(kind, given),
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
        self._make_room(text)
        return task

    def _make_room(self, text: str, ago: int | None = None) -> None:
        """For a group that is used; ago: see Room."""
        leaving = self._room.use(text, ago)
        if leaving is None:
            return
        self._labels = {}
        for identity in self._tasks.pop(leaving).running:
            self._running.pop(identity, None)
        self.evicted += 1

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
        params: dict[str, float] | None = None,
    ) -> Forecast:
        """What a task would need for these inputs and parameters. task_name: a group or its text,
        or anything that means a group (`groups`). If it means several, they answer together, with
        the note "mixture". output: what the task returns, if the caller knows. running: the record
        of this very task, if it runs; its own lower bound is left out (Forecast.exceeds takes it as
        `above`)."""
        try:  # half a microsecond; inputs that are no plain lists and dicts are not remembered
            key = task_name, kind, marshal.dumps((inputs, output, running, params), 2)
            found = self._answers.get(key)
        except (ValueError, TypeError):
            return self._predict(inputs, task_name, kind, output, running, params)
        if found is None:
            found = self._predict(inputs, task_name, kind, output, running, params)
            if len(self._answers) >= self._answers_most:
                self._answers.clear()
            if self._answers_most:
                self._answers[key] = found
        return found

    def _predict(
        self,
        inputs: Any,
        task_name: str | Group,
        kind: str,
        output: dict[str, Any] | None,
        running: Any,
        params: dict[str, float] | None,
    ) -> Forecast:
        given = Given(parse_inputs(inputs), parse_params(params))
        identity = parse_identity(field_getter(running)) if running else None
        text = task_name.text if isinstance(task_name, Group) else task_name
        forecasts = []
        for task in self._asked(task_name, kind):
            completed = task.with_late(given, parse_late(inputs)) if running else given
            asked = Asked(text, kind, completed, output, identity)
            forecasts.append(answer(task, asked, self._pooled_scores))
        return forecasts[0] if len(forecasts) == 1 else mixed_forecast(text, forecasts)

    def _asked(self, task_name: str | Group, kind: str) -> list[TaskModel]:
        """All groups that are meant; a new one if nothing was learned of it."""
        if kind not in KINDS:
            raise ValueError(f"kind is {kind!r}, not one of {', '.join(KINDS)}")
        if not isinstance(task_name, (str, Group)):
            raise ValueError(f"task name is {str(task_name)[:60]!r}, not a text")
        group = task_name if isinstance(task_name, Group) else Group(task_name)
        return self._meant(task_name) or [TaskModel(group)]

    def predict_many(
        self,
        questions: Iterable[Any],
        task_name: str | Group,
        kind: str = "alloc",
        params: dict[str, float] | Sequence[dict[str, float] | None] | None = None,
    ) -> Forecasts:
        """Expected bytes and bounds of many tasks of one group, as NumPy arrays: the figures that
        `predict` gives for each, in a few microseconds each for arrays that differ in their
        lengths. questions: the inputs of each task. params: of all tasks, or a list of those of
        each."""
        asked = Questions.parse(questions, params)

        def ask(place: int) -> Forecast:
            given = dict(asked.params[place])
            return self.predict(asked.inputs[place], task_name, kind, params=given)

        tasks = self._asked(task_name, kind)
        return answer_many(tasks, kind, asked, self._pooled_scores, ask)

    def together(
        self,
        questions: Iterable[tuple[Any, str | Group] | tuple[Any, str | Group, Any]],
        kind: str = "alloc",
    ) -> Together:
        """What several tasks need at the same time. questions: (inputs, task_name) of each, or
        (inputs, task_name, params), as for `predict`."""
        members = []
        for inputs, name, *params in questions:
            found = self._meant(name)
            text = name.text if isinstance(name, Group) else name
            text = found[0].group.text if len(found) == 1 else text
            members.append(
                Member(text, self.predict(inputs, name, kind, params=params[0] if params else None))
            )
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

    def knows(self, group: str | Group) -> bool:
        """Whether something was learned of exactly this group."""
        return (group.text if isinstance(group, Group) else group) in self._tasks

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

    def params(self, task_name: str | Group) -> list[str]:
        """Names of the parameters that records of these tasks have, whether they matter or not."""
        learners = [one for task in self._meant(task_name) for one in task.learners.values()]
        return sorted({name for learner in learners for name in learner.param_names})

    def kinds(self, task_name: str | Group) -> list[str]:
        """Of all groups that are meant."""
        tasks = self._meant(task_name)
        return [kind for kind in KINDS if any(kind in task.learners for task in tasks)]

    def seen(self, task_name: str | Group, kind: str = "alloc") -> list[tuple[int, float, int]]:
        """(input bytes, mean peak, count) of some shapes, smallest first; of all groups that are
        meant."""
        learners = [task.learners[kind] for task in self._meant(task_name) if kind in task.learners]
        return sorted(found for learner in learners for found in learner.seen())

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
        for text, _ in other._room:
            theirs = other._tasks[text]
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
            "scores": {kind: scores.to_lists() for kind, scores in self._pooled_scores.items()},
            "tasks": {
                text: {"unused": ago, **self._tasks[text].to_dict()} for text, ago in self._room
            },
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
                self._pooled_scores[kind] = Scores.parse(saved["scores"][kind])
            if not all(0 < len(text) <= _TEXT_CHARS_MOST for text in saved["tasks"]):
                raise ValueError("a damaged model: task names")
            for text, values in saved["tasks"].items():
                self._tasks[text] = TaskModel.from_dict(text, values)
                self._make_room(text, parse_ago(values.get("unused")))
        except (KeyError, TypeError, AttributeError, IndexError, OverflowError) as error:
            raise ValueError(f"a damaged model: {error!r}") from error
        return self

    def save(self, path: str | os.PathLike[str]) -> None:
        """Atomically: a reader, or a start after a crash, finds the old file or the new one. A
        symbolic link stays a link."""
        write_json(path, self.to_dict())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Model:
        """ValueError, with the path, if it is no model."""
        with no_collection():
            try:
                return cls.from_dict(read_json(path))
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
