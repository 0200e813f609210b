"""What is known of one task name: a learner per kind of memory, the shape of the output, and the
tasks that run now. model.py has one TaskModel per name."""

from __future__ import annotations

from heapq import nsmallest
from typing import TYPE_CHECKING, NamedTuple

from dwsr_probe.predict.learner import FLOORS
from dwsr_probe.predict.posterior import LowerBound
from dwsr_probe.predict.shapes import OutputShape
from dwsr_probe.predict.sizes import size_features

if TYPE_CHECKING:
    from dwsr_probe.predict.learner import Learner
    from dwsr_probe.predict.records import Identity, Peaks
    from dwsr_probe.predict.sizes import Arrays, Features

_RUNNING_BOUNDS_MOST = 16  # that a forecast uses


class RunningPeaks(NamedTuple):
    """The inputs of a running task and its peaks so far."""

    arrays: Arrays
    peaks: Peaks


class OutputEstimate(NamedTuple):
    bytes: int
    deviation: float  # standard deviation; 0 where the shape is known


# For the features of the output itself, and where nothing is known of it.
NO_OUTPUT = OutputEstimate(0, 0.0)


class TaskModel:
    def __init__(self) -> None:
        self.learners: dict[str, Learner] = {}  # by kind
        self.output = OutputShape()
        self.running: dict[Identity, RunningPeaks] = {}
        # Lower bounds by kind, computed when they are asked for.
        self._bounds: dict[str, list[LowerBound]] = {}
        self._running_bounds: dict[str, list[tuple[Identity, LowerBound]]] = {}

    def invalidate(self) -> None:
        """Drop everything inferred, after another exact value, bound or output. Size features
        contain the output, so the posteriors of all kinds are dropped."""
        self._bounds.clear()
        self._running_bounds.clear()
        for learner in self.learners.values():
            learner.invalidate()

    def set_running(self, identity: Identity, task: RunningPeaks) -> None:
        self.running[identity] = task
        self._running_bounds.clear()

    def clear_running(self, identity: Identity) -> None:
        self.running.pop(identity, None)
        self._running_bounds.clear()

    def estimate_output(self, arrays: Arrays) -> OutputEstimate:
        """What the task will return: by the rules of its shape, else by the learner of its
        bytes."""
        if found := self.output.predict(arrays):
            return OutputEstimate(found["nbytes"], 0.0)
        learner = self.learners.get("output")
        if learner is None or not learner.n:
            return NO_OUTPUT
        predictive = learner.predictive(learner.posterior(), arrays, size_features(arrays, 0))
        return OutputEstimate(max(0, round(predictive.mean)), predictive.deviation)

    def features(self, kind: str, arrays: Arrays) -> Features:
        """Size features with the estimated output. The output's own learner has none."""
        return size_features(arrays, 0 if kind == "output" else self.estimate_output(arrays).bytes)

    def bounds(self, kind: str) -> list[LowerBound]:
        """The censored values of a learner as lower bounds."""
        if kind not in self._bounds:
            learner = self.learners.get(kind)
            self._bounds[kind] = [
                LowerBound(self.features(kind, value.arrays), value.bytes, value.is_tight)
                for value in (learner.censored if learner else ())
            ]
        return self._bounds[kind]

    def running_bounds(self, kind: str, without: Identity | None = None) -> list[LowerBound]:
        """The most informative lower bounds of running tasks: those with the most bytes per byte of
        input. without: leave out this task."""
        if kind not in self._running_bounds:
            floor = FLOORS[kind]
            ranked = nsmallest(
                _RUNNING_BOUNDS_MOST + 1,  # one of them may be left out
                (
                    (-peak / (sum(array.nbytes for array in task.arrays) + floor), peak, identity)
                    for identity, task in self.running.items()
                    if (peak := task.peaks.get(kind)) is not None
                ),
                key=lambda one: one[:2],
            )
            self._running_bounds[kind] = [
                (identity, LowerBound(self.features(kind, self.running[identity].arrays), peak))
                for _, peak, identity in ranked
            ]
        bounds = [bound for identity, bound in self._running_bounds[kind] if identity != without]
        return bounds[:_RUNNING_BOUNDS_MOST]
