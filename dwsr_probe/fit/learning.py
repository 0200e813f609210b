"""What a function needs, learned from at most three small blocks of the user's own array.

Blocks of about 1, 4 and 16 MiB: smaller ones mislead, because fixed buffers and temporaries that
NumPy reuses only above 256 KiB take other shares of them. Their proportions differ, so that the
model can tell what memory is proportional to. A block is tried only if it is worth it: not if the
bound is tight already, and not if it would take longer than max(2 s, 2 % of the job).
"""

from __future__ import annotations

import contextlib
import math
import time
from typing import TYPE_CHECKING, Any

import numpy as np

from dwsr_probe.fit.arrays import MADE_UP, MEMORY, shared_axes
from dwsr_probe.fit.axes import FAILED, UNCHECKED, AxisCheck
from dwsr_probe.fit.durations import Durations
from dwsr_probe.fit.error import FitError
from dwsr_probe.fit.findings import bend_of, differs, first_call_bytes, refuse_leaks, trial_notes
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
    from dwsr_probe.fit.known import Wanted
    from dwsr_probe.fit.limits import WorkerLimits
    from dwsr_probe.fit.trials import Trials, TriedCall

_TRIAL_BYTES = (1 << 20, 4 << 20, 16 << 20)
# Of the block whose axes are checked: the larger one if the function fails on the smaller one
_CHECK_BYTES = (256 << 10, 4 << 20)
_CHECK_BYTES_MOST = 64 << 20  # with its halo
_CHECK_LENGTH_LEAST = 16
_FAILS = "the function fails on small blocks"
_TIME_LEAST_S, _TIME_SHARE = 2.0, 0.02  # of the job
_TIGHT = 1.05  # bound over mean at the largest block that may fit
_STRETCH = 1.5  # of one axis of a trial, in turn
# Of trials, as shares of each axis; and of the blocks that are compared with them
_PLACES, _OTHER_PLACES = (0.5, 0.25, 0.75), (0.0, 1.0, 0.0)
_GROWTH_SHARE = 0.5  # of the machine's free memory that a trial may take
# Event loop, connections and the probe's board: what a worker has beside the process of the trials
_WORKER_MORE_BYTES = 16 << 20
_STORED_COPIES = 2.0  # of a result: itself and its encoded bytes, which may be as many


class _Learner:
    def __init__(
        self,
        running: Trials,
        sources: Sequence[ArraySource],
        depth: Sequence[int],
        room: float,
        progress: Callable[[str], object],
    ) -> None:
        self.running, self.sources, self.depth, self.room = running, sources, depth, room
        self.first = sources[0]
        self.progress = progress
        self.model = Model()
        self.done: list[TriedCall] = []
        self.failure: FitError | None = None
        self.axes: list[AxisCheck] = []
        self.seconds = 0.0
        self.serial_share = 0.0

    def check_axes(self, axes: Sequence[int], job_share: float) -> None:
        """job_share: of one byte in all that a thread works through."""
        began = time.perf_counter()
        found = {axis: AxisCheck(axis, UNCHECKED, reason=_FAILS) for axis in axes}
        for target_bytes in _CHECK_BYTES:
            left = [axis for axis in axes if found[axis].verdict in (UNCHECKED, FAILED)]
            try:
                checks = self._check_axes(target_bytes, left, job_share)
            except TrialFailed:  # the block may be too small for the function
                continue
            for check in checks:
                # Where smaller blocks failed, halves of the larger one may be too small as well
                is_new = check.verdict not in (UNCHECKED, FAILED)
                if is_new or target_bytes == _CHECK_BYTES[0]:
                    found[check.axis] = check
            if all(check.verdict != FAILED for check in checks):
                break
        self.axes = list(found.values())
        self.seconds += time.perf_counter() - began

    def _check_axes(
        self, target_bytes: int, axes: Sequence[int], job_share: float
    ) -> list[AxisCheck]:
        shape = self._shape_of_size(target_bytes, (), _CHECK_LENGTH_LEAST)
        # Lengths that differ show which axis of the result is which axis of the block
        shape = [min(n, shape[axis] + axis) for axis, n in enumerate(self.first.shape)]
        if math.prod(shape) * self.first.dtype.itemsize > _CHECK_BYTES_MOST:
            # Halos are long: some axes cannot be checked
            shape = self._shape_of_size(target_bytes, (), 1)
        nbytes = math.prod(shape) * self.first.dtype.itemsize
        self.progress(f"checking which axes can be cut, on a block of {shape_text(shape)}")
        shared = [shared_axes(self.first.shape, source.shape) for source in self.sources]
        allowed = _TIME_LEAST_S - self.seconds, _TIME_SHARE / job_share / nbytes
        indexes = self._indexes(shape, _PLACES[0])
        self._checked_bytes(indexes)
        return self.running.check_axes(indexes, axes, self.depth, shared, allowed)

    def try_block(self, target_bytes: int, whole: Collection[int]) -> bool:
        """False if the array is too small for a block that differs from those tried."""
        number = len(self.done)
        shape = self._shape_of_size(target_bytes, whole, 0, stretched=number)
        if any(list(trial.shape) == shape for trial in self.done):
            return False
        indexes = self._indexes(shape, _PLACES[number])
        others = self._indexes(shape, _OTHER_PLACES[number])
        nbytes = self._checked_bytes(indexes)
        self.progress(f"trying a block of {shape_text(shape)}")
        began = time.perf_counter()
        is_elsewhere = others != indexes and self.first.form != MADE_UP
        try:
            trial = self.running.run(
                indexes, others if is_elsewhere else None, warm_up=not self.done
            )
        except FitError as error:
            told = type(error)(f"{error}, on a block of {shape_text(shape)} ({bytes_text(nbytes)})")
            if self.done or not isinstance(error, TrialFailed):
                raise told from error
            self.failure = told
            return True
        finally:
            self.seconds += time.perf_counter() - began
        self.done.append(trial)
        self._learn(trial, trial.need_bytes)
        if differs(trial):
            assert trial.other_need_bytes is not None
            self._learn(trial, trial.other_need_bytes)
        return True

    def _learn(self, trial: TriedCall, need_bytes: int) -> None:
        self.model.learn(
            {
                "task_name": self.running.name,
                "state": "ok",
                "inputs": trial.record["inputs"],
                "output": trial.record["output"],
                "output_bytes": trial.record["output_bytes"],
                "alloc_peak_bytes": need_bytes,
                "gpu": trial.record["gpu"],
                "duration": trial.seconds,
            }
        )

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
            n = shape[axis]
            shape[axis] = min(n, max(1, least and least + 2 * self.depth[axis], round(length)))
            left = max(1.0, left / shape[axis])
        return shape

    def _checked_bytes(self, indexes: Sequence[Slices]) -> int:
        nbytes = sum(map(_bytes_of, self.sources, indexes))
        if nbytes > max(self.room, 2 * _TRIAL_BYTES[-1]):
            raise FitError(
                f"the inputs of one small block have {bytes_text(nbytes)}, more than the"
                f" {bytes_text(self.room)} that a trial may take: arrays whose axes are not as long"
                " as those of the first array are whole inputs of each task"
            )
        return nbytes

    def _indexes(self, shape: Sequence[int], share: float) -> list[Slices]:
        """A slice of each source."""
        starts = [int((n - k) * share) for n, k in zip(self.first.shape, shape, strict=True)]
        found = []
        for source in self.sources:
            index = [slice(0, n) for n in source.shape]
            for axis, its_axis in shared_axes(self.first.shape, source.shape).items():
                index[its_axis] = slice(starts[axis], starts[axis] + shape[axis])
            found.append(tuple(index))
        return found

    def measure_threads(self, whole: Collection[int]) -> None:
        self.progress("trying two threads")
        began = time.perf_counter()
        shape = self._shape_of_size(_TRIAL_BYTES[1], whole, 1)
        with contextlib.suppress(TrialFailed):
            self.serial_share = self.running.serial_share(self._indexes(shape, 0))
        self.seconds += time.perf_counter() - began

    def rate(self) -> float:
        """Seconds per byte of the largest block tried."""
        last = self.done[-1]
        return last.seconds / last.input_bytes


def learn_by_trials(
    function: Any,
    sources: Sequence[ArraySource],
    depth: Sequence[int],
    whole_axes: Collection[int] | None,
    limits: WorkerLimits,
    wanted: Wanted,
    progress: Callable[[str], object],
    measures_threads: bool = False,
) -> Known:
    """whole_axes: None: found by a check. measures_threads: also how threads of one process slow
    each other down. FitError if the function fails or cannot be fitted."""
    first = sources[0]
    room = min(wanted.fill * limits.memory_bytes, _GROWTH_SHARE * machine_available_bytes())
    began = time.perf_counter()
    with trials() as running:
        progress("starting a process for trials")
        running.load(function, sources, room)
        learner = _Learner(running, sources, depth, room, progress)
        free = [axis for axis, n in enumerate(first.shape) if n > 1]
        whole = set(whole_axes or ())
        if whole_axes is None and free:
            job_share = limits.threads * limits.workers / first.nbytes
            learner.check_axes(free, job_share)
            whole = {check.axis for check in learner.axes if check.must_stay_whole}
        for target in _TRIAL_BYTES:
            if learner.done and not _is_worth(learner, target, sources, room, limits):
                break
            if not learner.try_block(target, whole):
                break
        if measures_threads and learner.done:
            learner.measure_threads(whole)
    if not learner.done:
        assert learner.failure is not None
        raise learner.failure
    refuse_leaks(learner.running.name, learner.done, first.nbytes)
    return _known(learner, time.perf_counter() - began)


def _is_worth(
    learner: _Learner,
    target: int,
    sources: Sequence[ArraySource],
    room: float,
    limits: WorkerLimits,
) -> bool:
    last = learner.done[-1]
    size = last.input_bytes
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


def _known(learner: _Learner, elapsed: float) -> Known:
    sources, done, name = learner.sources, learner.done, learner.running.name
    inputs_of = block_inputs([s.shape for s in sources], [s.dtype for s in sources], learner.depth)
    reads = [
        trial.read_seconds / trial.input_bytes
        for trial in done[-1:]
        if learner.first.form not in (MEMORY, MADE_UP)
    ]
    first_call = first_call_bytes(done)
    return Known(
        learner.model,
        [Step(name, name, inputs_of, bend=bend_of(done, learner.model, name))],
        Durations(
            [(float(trial.input_bytes), trial.seconds) for trial in done],
            float(np.median(reads)) if reads else 0.0,
            serial_share=learner.serial_share,
        ),
        float(learner.running.baseline_bytes + _WORKER_MORE_BYTES),
        first_call,
        trial_notes(done, learner.model, name, learner.first.form, first_call),
        _STORED_COPIES + (not done[-1].is_contiguous),
        done[-1].device_bytes,
        [
            Tried(
                trial.shape,
                trial.input_bytes,
                max(trial.need_bytes, trial.other_need_bytes or 0),
                trial.seconds,
            )
            for trial in done
        ],
        learner.seconds,
        elapsed - learner.seconds,
        learner.axes,
    )


def _bytes_of(source: ArraySource, index: Slices) -> int:
    return math.prod(part.stop - part.start for part in index) * source.dtype.itemsize
