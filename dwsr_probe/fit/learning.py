"""What a function needs, learned from at most three small blocks of the user's own array.

Blocks of about 1, 4 and 16 MiB: smaller ones mislead, because fixed buffers and temporaries that
NumPy reuses only above 256 KiB take other shares of them. Their proportions differ, so that the
model can tell what memory is proportional to. A block is tried only if it is worth it: not if the
bound is tight already, and not if it would take longer than max(2 s, 2 % of the job).
"""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Any

import numpy as np

from dwsr_probe.fit.durations import Durations
from dwsr_probe.fit.error import FitError
from dwsr_probe.fit.known import Known
from dwsr_probe.fit.limits import machine_available_bytes
from dwsr_probe.fit.plan import Tried
from dwsr_probe.fit.steps import Step, block_inputs
from dwsr_probe.fit.trials import TrialFailed, trials
from dwsr_probe.predict import Model
from dwsr_probe.words import bytes_text, shape_text

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from dwsr_probe.fit.arrays import ArraySource, Slices
    from dwsr_probe.fit.axes import AxisCheck
    from dwsr_probe.fit.known import Wanted
    from dwsr_probe.fit.limits import WorkerLimits
    from dwsr_probe.fit.trials import Trials, TriedCall

_TRIAL_BYTES = (1 << 20, 4 << 20, 16 << 20)
_CHECK_BYTES = 256 << 10  # of the block whose axes are checked
_CHECK_LENGTH_LEAST = 16
_TIME_LEAST_S, _TIME_SHARE = 2.0, 0.02  # of the job
_TIGHT = 1.05  # bound over mean at the largest block that may fit
_STRETCH = 1.5  # of one axis of a trial, in turn
_LEAK_SHARE, _LEAK_LEAST_BYTES = 0.02, 1 << 20
_GROWTH_SHARE = 0.5  # of the machine's free memory that a trial may take
# Event loop, connections and the probe's board: what a worker has beside the process of the trials
_WORKER_MORE_BYTES = 16 << 20


class _Learner:
    def __init__(
        self,
        running: Trials,
        sources: Sequence[ArraySource],
        depth: Sequence[int],
        progress: Callable[[str], object],
    ) -> None:
        self.running, self.sources, self.depth = running, sources, depth
        self.first = sources[0]
        self.progress = progress
        self.model = Model()
        self.done: list[TriedCall] = []
        self.failure: TrialFailed | None = None
        self.axes: list[AxisCheck] = []
        self.seconds = 0.0

    def check_axes(self, axes: Sequence[int], whole: Collection[int]) -> None:
        shape = self._shape_of_size(_CHECK_BYTES, whole, _CHECK_LENGTH_LEAST)
        # Lengths that differ show which axis of the result is which axis of the block
        shape = [min(n, shape[axis] + axis) for axis, n in enumerate(self.first.shape)]
        self.progress(f"checking which axes can be cut, on a block of {shape_text(shape)}")
        began = time.perf_counter()
        try:
            self.axes = self.running.check_axes(self._indexes(shape, 0), axes, self.depth)
        except TrialFailed as error:  # the block may be too small for the function
            self.failure = error
        self.seconds += time.perf_counter() - began

    def try_block(self, target_bytes: int, whole: Collection[int]) -> bool:
        """False if the array is too small for a block that differs from those tried."""
        number = len(self.done)
        shape = self._shape_of_size(target_bytes, whole, 1, stretched=number)
        indexes = self._indexes(shape, number)
        tried = tuple(len(range(*one.indices(1 << 62))) for one in indexes[0])
        if any(trial.shape == tried for trial in self.done):
            return False
        self.progress(f"trying a block of {shape_text(tried)}")
        began = time.perf_counter()
        try:
            trial = self.running.run(indexes, warm_up=not self.done)
        except TrialFailed as error:
            if self.done:  # it failed on a larger block than before
                raise TrialFailed(f"{error} (block {shape_text(tried)})") from error
            self.failure = TrialFailed(f"{error} (block {shape_text(tried)})")
            return True
        finally:
            self.seconds += time.perf_counter() - began
        self.done.append(trial)
        self.model.learn(
            {
                "task_name": self.running.name,
                "state": "ok",
                "inputs": trial.record["inputs"],
                "output": trial.record["output"],
                "output_bytes": trial.record["output_bytes"],
                "alloc_peak_bytes": trial.need_bytes,
                "gpu": trial.record["gpu"],
                "duration": trial.seconds,
            }
        )
        return True

    def _shape_of_size(
        self, target_bytes: int, whole: Collection[int], least: int, stretched: int | None = None
    ) -> list[int]:
        """About so many bytes, with equal lengths along the axes that may be cut; `stretched` times
        another of them is longer than the others."""
        shape = list(self.first.shape)
        volume = target_bytes / self.first.dtype.itemsize
        fixed = math.prod(shape[axis] for axis in whole)
        if fixed > max(volume, _TRIAL_BYTES[-1] / self.first.dtype.itemsize):
            whole, fixed = (), 1  # memory can be learned from parts of such axes, too
        free = [axis for axis, n in enumerate(shape) if axis not in whole and n > 1]
        rest = sorted(free, key=lambda axis: shape[axis])
        left = max(1.0, volume / fixed)
        for position, axis in enumerate(rest):  # short axes first: what they lack, others get
            count = len(rest) - position
            length = left ** (1 / count)
            if stretched is not None and count > 1:
                length *= _STRETCH if axis == free[stretched % len(free)] else _STRETCH**-0.5
            around = 2 * self.depth[axis]
            n = shape[axis]
            shape[axis] = min(n, max(1, least, least and around + 2, round(length)))
            left = max(1.0, left / shape[axis])
        return shape

    def _indexes(self, shape: Sequence[int], number: int) -> list[Slices]:
        """A slice of each source, at another place for each trial."""
        first = []
        share = (0.5, 0.25, 0.75)[number % 3]
        for n, length in zip(self.first.shape, shape, strict=True):
            start = int((n - length) * share)
            first.append(slice(start, start + length))
        found = []
        for source in self.sources:
            offset = len(self.first.shape) - len(source.shape)
            found.append(
                tuple(
                    first[offset + axis] if n == self.first.shape[offset + axis] else slice(0, n)
                    for axis, n in enumerate(source.shape)
                )
            )
        return found

    def rate(self) -> float:
        """Seconds per byte of the largest block tried."""
        last = self.done[-1]
        return last.seconds / _input_bytes(last)


def learn_by_trials(
    function: Any,
    sources: Sequence[ArraySource],
    depth: Sequence[int],
    whole_axes: Collection[int] | None,
    limits: WorkerLimits,
    wanted: Wanted,
    progress: Callable[[str], object],
) -> Known:
    """whole_axes: None: found by a check. FitError if the function fails or cannot be fitted."""
    first = sources[0]
    for source in sources:
        if len(source.shape) > len(first.shape):
            raise FitError("the array with most axes comes first: its blocks are fitted")
    room = min(wanted.fill * limits.memory_bytes, _GROWTH_SHARE * machine_available_bytes())
    began = time.perf_counter()
    with trials() as running:
        progress("starting a process for trials")
        running.load(function, sources, room)
        learner = _Learner(running, sources, depth, progress)
        free = [axis for axis, n in enumerate(first.shape) if n > 1]
        whole = set(whole_axes or ())
        if whole_axes is None:
            learner.check_axes(free, whole)
            whole = {check.axis for check in learner.axes if check.must_stay_whole}
        for target in _TRIAL_BYTES:
            if learner.done and not _is_worth(learner, target, sources, room, limits):
                break
            if not learner.try_block(target, whole):
                break
    if not learner.done:
        assert learner.failure is not None
        raise learner.failure
    _check_leaks(learner, first)
    return _known(learner, time.perf_counter() - began)


def _is_worth(
    learner: _Learner,
    target: int,
    sources: Sequence[ArraySource],
    room: float,
    limits: WorkerLimits,
) -> bool:
    last = learner.done[-1]
    size = _input_bytes(last)
    job = learner.rate() * learner.first.nbytes / (limits.threads * limits.workers)
    seconds = learner.rate() * target
    if seconds + learner.seconds > max(_TIME_LEAST_S, _TIME_SHARE * job):
        return False
    if (last.need_bytes + size) * target / size > room:
        return False
    if len(learner.done) < 2:
        return True
    most = [max(1, round(n * min(1.0, (room / learner.first.nbytes)))) for n in learner.first.shape]
    inputs = block_inputs([s.shape for s in sources], [s.dtype for s in sources], learner.depth)
    forecast = learner.model.predict(inputs(most), learner.running.name)
    return forecast.upper(0.99) > _TIGHT * forecast.mean


def _check_leaks(learner: _Learner, first: ArraySource) -> None:
    """A function that keeps memory after each call fills the worker, whatever the block is."""
    kept = [
        trial.kept_bytes
        for trial in learner.done
        if trial.kept_bytes > max(_LEAK_LEAST_BYTES, _LEAK_SHARE * _input_bytes(trial))
    ]
    if len(learner.done) > 1 and len(kept) == len(learner.done):
        sizes = sum(map(_input_bytes, learner.done))
        total = sum(kept) / sizes * first.nbytes
        raise FitError(
            f"{learner.running.name} keeps memory after each call ({bytes_text(sum(kept))} after"
            f" blocks of {bytes_text(sizes)}): about {bytes_text(total)} by the end of the job,"
            " whatever the block is; find what it stores (a cache, a global list) first"
        )


def _known(learner: _Learner, elapsed: float) -> Known:
    sources, done = learner.sources, learner.done
    inputs_of = block_inputs([s.shape for s in sources], [s.dtype for s in sources], learner.depth)
    reads = [
        trial.read_seconds / _input_bytes(trial)
        for trial in done[-1:]
        if learner.first.form not in ("memory", "made up")
    ]
    notes = []
    if learner.first.form == "made up":
        notes.append("blocks of random values were tried; real data may need more or less memory")
    reasons = {trial.reason for trial in done if trial.reason}
    if reasons:
        notes.append(
            f"own peaks may miss memory ({', '.join(sorted(reasons))}): the growth of the process"
            " was used"
        )
    first_call = max(trial.first_call_bytes for trial in done)
    if first_call <= max(1 << 20, 0.02 * done[0].need_bytes):
        first_call = 0
    if first_call:
        notes.append(f"the first task in each thread takes {bytes_text(first_call)} more")
    return Known(
        learner.model,
        [Step(learner.running.name, learner.running.name, inputs_of)],
        Durations(
            [(float(_input_bytes(trial)), trial.seconds) for trial in done],
            float(np.median(reads)) if reads else 0.0,
        ),
        float(learner.running.baseline_bytes + _WORKER_MORE_BYTES),
        float(first_call),
        notes,
        [
            Tried(trial.shape, _input_bytes(trial), trial.need_bytes, trial.seconds)
            for trial in done
        ],
        elapsed,
        learner.axes,
    )


def _input_bytes(trial: TriedCall) -> int:
    found: int = trial.record["input_bytes"]
    return found
