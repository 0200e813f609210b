"""What is known of one group of tasks: a learner per kind of memory, the shape of the output, and
the tasks that run now. model.py has one TaskModel per group."""

from __future__ import annotations

from heapq import nsmallest
from typing import TYPE_CHECKING, NamedTuple

from dwsr_probe.predict.first_calls import KINDS_WITH_FIRST_CALLS, Threads, keeps_much
from dwsr_probe.predict.group import Group, chain_text
from dwsr_probe.predict.learner import FLOORS, Learner
from dwsr_probe.predict.mixture import LowerBound
from dwsr_probe.predict.outputs import NO_OUTPUT, OutputEstimate, OutputGuess
from dwsr_probe.predict.records import NAME_CHARS_MOST, parse_chain
from dwsr_probe.predict.shapes import OutputShape
from dwsr_probe.predict.sizes import axis_count, input_bytes, parse_inputs, parse_row

if TYPE_CHECKING:
    from typing import Any

    from dwsr_probe.predict.fitted import Fitted
    from dwsr_probe.predict.params import Given
    from dwsr_probe.predict.records import Identity, Kept, Peaks, TaskNames
    from dwsr_probe.predict.sizes import Arrays, Features

_RUNNING_BOUNDS_MOST = 16  # that a forecast uses
_TASK_NAMES_MOST = 256  # and NAME_CHARS_MOST characters of all of them


class RunningPeaks(NamedTuple):
    """A running task and its peaks so far."""

    given: Given
    peaks: Peaks


class TaskModel:
    """operation: as records have it, or None. task_names: the names of the group's tasks, Dask's
    prefixes of keys; a set whose order is that of arrival."""

    def __init__(self, group: Group, operation: str | None = None) -> None:
        self.group, self.operation = group, operation
        self.task_names: dict[str, None] = {}
        self._task_names_chars = 0
        # The largest of the late inputs that were seen. While a task runs, it does not have them.
        self.late: Arrays = ()
        self.learners: dict[str, Learner] = {}  # by kind
        self.output = OutputShape()
        self._exact_outputs: tuple[Fitted, bool] | None = None
        # Of all outputs: bytes by their shapes, and bytes that they keep. Views differ in both.
        self._returned_bytes = self._kept_bytes = 0.0
        self.threads = Threads()  # in which tasks have ended
        self.running: dict[Identity, RunningPeaks] = {}
        # Lower bounds by kind, computed when they are asked for.
        self._bounds: dict[str, list[LowerBound]] = {}
        self._running_bounds: dict[str, list[tuple[Identity, LowerBound]]] = {}

    def add_names(self, names: TaskNames) -> None:
        if names.task_name not in self.task_names:
            self._add_task_name(names.task_name)
        if self.operation is None:
            self.operation = names.operation

    def _add_task_name(self, name: str) -> None:
        chars = self._task_names_chars + len(name)
        if len(self.task_names) < _TASK_NAMES_MOST and chars <= NAME_CHARS_MOST:
            self.task_names[name] = None
            self._task_names_chars = chars

    def first_call(self, identity: Identity | None, peaks: Peaks, kept: Kept) -> dict[str, int]:
        """Of a task that has ended: what it kept at least, by kind, if it is a first call; else
        {}."""
        if not self.threads.add(identity, keeps_much(kept.most_bytes, peaks.get("alloc", 0))):
            return {}
        least = {"alloc": kept.least_bytes}
        return {kind: least.get(kind, 0) for kind in KINDS_WITH_FIRST_CALLS}

    def add_late(self, arrays: Arrays) -> None:
        if input_bytes(arrays) > input_bytes(self.late):
            self.late = arrays

    def with_late(self, given: Given, late: Arrays) -> Given:
        """Of a task that runs or ended early: the largest late inputs seen of its group stand for
        its own. late: those that it has."""
        if late or not self.late:
            return given
        return given._replace(arrays=(*given.arrays, *self.late))

    def add_returned(self, returned_bytes: float, kept_bytes: float) -> None:
        """Of an output: bytes by its shape, and bytes that it keeps."""
        self._returned_bytes += returned_bytes
        self._kept_bytes += kept_bytes

    def learner(self, kind: str) -> Learner:
        """To learn from: a new one if there is none."""
        found = self.learners.get(kind)
        if found is None:
            found = self.learners[kind] = Learner(kind)
        return found

    def merge(self, other: TaskModel) -> None:
        """Everything except the running tasks."""
        self.add_returned(other._returned_bytes, other._kept_bytes)
        for name in other.task_names:
            if name not in self.task_names:
                self._add_task_name(name)
        self.operation = self.operation or other.operation
        self.add_late(other.late)
        for kind, learner in other.learners.items():
            self.learner(kind).merge(learner)
        self.output.merge(other.output)
        self.threads.merge(other.threads)
        self.invalidate()

    def to_dict(self) -> dict[str, Any]:
        """Everything except the running tasks. The group's name is the operation or, without one,
        a part of the key under which the model is saved."""
        return {
            "learners": {kind: learner.to_dict() for kind, learner in self.learners.items()},
            "output": self.output.to_dict(),
            "returned": [self._returned_bytes, self._kept_bytes],
            "threads": self.threads.to_list(),
            "operation": self.operation,
            "chain": list(self.group.chain),
            "task_names": list(self.task_names),
            "late": [
                {"shape": array.shape, "nbytes": array.nbytes, "dtype": array.dtype}
                for array in self.late
            ],
        }

    @classmethod
    def from_dict(cls, text: str, saved: dict[str, Any]) -> TaskModel:
        """text: of the group. Models of earlier versions have task names alone. ValueError, or
        what damaged data cause, if to_dict cannot have given this."""
        chain, operation = parse_chain(saved.get("chain")), saved.get("operation")
        suffix = f" [{chain_text(chain)}]" if chain else ""
        name = text.removesuffix(suffix)
        self = cls(Group(name, chain), operation)
        task_names = saved.get("task_names", [name])
        if self.group.text != text or operation not in (None, name):
            raise ValueError("a damaged model: a chain or an operation")
        if len(task_names) > _TASK_NAMES_MOST:
            raise ValueError("a damaged model: task names")
        for task_name in task_names:
            if not isinstance(task_name, str) or not task_name:
                raise ValueError("a damaged model: task names")
            self._add_task_name(task_name)
        self.late = parse_inputs(saved.get("late", []))
        self.learners = {
            kind: Learner.from_dict(kind, values) for kind, values in saved["learners"].items()
        }
        self.output = OutputShape.from_dict(saved["output"])
        self.add_returned(*parse_row(saved.get("returned", (0, 0)), 2, "returned"))
        self.threads = Threads.from_list(saved.get("threads", []))
        return self

    def invalidate(self) -> None:
        """Drop what was inferred from lower bounds: their size functions contain the output, whose
        estimate changes with every value."""
        self._bounds.clear()
        self._running_bounds.clear()
        for learner in self.learners.values():
            if learner.censored:
                learner.invalidate()

    def set_running(self, identity: Identity, task: RunningPeaks) -> None:
        self.running[identity] = task
        self._running_bounds.clear()

    def clear_running(self, identity: Identity) -> None:
        self.running.pop(identity, None)
        self._running_bounds.clear()

    def estimate_output(self, given: Given) -> OutputEstimate:
        """What the task will return: by the rules of its shape, else by the learner of its
        bytes."""
        return self.estimate_of(self.output.predict(given.arrays), given)

    def estimate_of(self, output: dict[str, Any] | None, given: Given) -> OutputEstimate:
        """The same, if the answer of the rules is at hand."""
        if output is not None:
            return OutputEstimate(output["nbytes"])
        guess = self.output_guess()
        return NO_OUTPUT if guess is None else guess.of(given)

    def output_guess(self) -> OutputGuess | None:
        """None: nothing is known of outputs."""
        learner = self.learners.get("output")
        if learner is None or not learner.n:
            return None
        fitted = learner.posterior()
        if self._exact_outputs is None or self._exact_outputs[0] is not fitted:
            self._exact_outputs = fitted, fitted.explains_all()
        return OutputGuess(learner, fitted, self.returned_ratio, self._exact_outputs[1])

    @property
    def returned_ratio(self) -> float:
        """The learner of outputs knows the bytes that they keep; size functions are of their
        shapes."""
        return self._returned_bytes / self._kept_bytes if self._kept_bytes else 1.0

    def estimate_for(self, kind: str, given: Given) -> OutputEstimate:
        """The same for a learner: the output's own has no output."""
        return NO_OUTPUT if kind == "output" else self.estimate_output(given)

    def features(self, kind: str, given: Given) -> Features:
        """Size features with the estimated output, and parameters."""
        learner = self.learners.get(kind) or Learner(kind)
        return learner.features(given, self.estimate_for(kind, given).bytes)

    def bounds(self, kind: str) -> list[LowerBound]:
        """The censored values of a learner as lower bounds."""
        if kind not in self._bounds:
            learner = self.learners.get(kind)
            self._bounds[kind] = [
                self._lower_bound(kind, value.given, value.bytes, value.is_tight)
                for value in (learner.censored if learner else ())
            ]
        return self._bounds[kind]

    def _lower_bound(
        self, kind: str, given: Given, bound: float, is_tight: bool = False
    ) -> LowerBound:
        return LowerBound(self.features(kind, given), bound, is_tight, axis_count(given.arrays))

    def _first_call_bytes(self, kind: str, identity: Identity) -> int:
        """What a running task may have taken that later tasks of its thread will not."""
        learner = self.learners.get(kind)
        if learner is None or not self.threads.is_new(identity):
            return 0
        return learner.settled.first_calls.bytes

    def running_bounds(self, kind: str, without: Identity | None = None) -> list[LowerBound]:
        """The most informative lower bounds of running tasks: those with the most bytes per byte of
        input. without: leave out this task."""
        if kind not in self._running_bounds:
            floor = FLOORS[kind]
            ranked = nsmallest(
                _RUNNING_BOUNDS_MOST + 1,  # one of them may be left out
                (
                    (-peak / (input_bytes(task.given.arrays) + floor), peak, identity)
                    for identity, task in self.running.items()
                    if (peak := task.peaks.get(kind)) is not None
                ),
                key=lambda one: one[:2],
            )
            self._running_bounds[kind] = [
                (identity, self._lower_bound(kind, task.given, bound))
                for _, peak, identity in ranked
                for task in (self.running[identity],)
                if (bound := peak - self._first_call_bytes(kind, identity)) > 0
            ]
        bounds = [bound for identity, bound in self._running_bounds[kind] if identity != without]
        return bounds[:_RUNNING_BOUNDS_MOST]
