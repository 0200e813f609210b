"""From what is known of the tasks to a Plan: all candidate blocks with what a worker needs for
each and how long the job takes, the choice among them, and its reasons. Nothing runs here."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from dwsr_probe.fit.candidates import are_aligned, candidate_blocks, chunks_of
from dwsr_probe.fit.chooser import NEARLY_AS_FAST, TIME, choose
from dwsr_probe.fit.durations import Durations
from dwsr_probe.fit.error import FitError
from dwsr_probe.fit.findings import doubts
from dwsr_probe.fit.plan import DeviceNeed, Plan, PlanPoint, StepNeed, UsedBlock, axis_notes
from dwsr_probe.fit.steps import needs_of
from dwsr_probe.fit.worker import Shares, Worker, memory_of_device, worker_memory
from dwsr_probe.words import bytes_text, count_text, seconds_text, shape_text

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from numpy.typing import NDArray

    from dwsr_probe.fit.known import Known, Wanted
    from dwsr_probe.fit.limits import WorkerLimits
    from dwsr_probe.fit.steps import Needs
    from dwsr_probe.fit.worker import Layout

# Without a cluster to ask and without trials: a Dask worker with NumPy, before its first block
_BASE_BYTES = 180 << 20
_CURVE_POINTS = 40
_DEVICE_SHARE = 0.9  # of a device's memory: pools keep some for themselves
_NEAR_USED = 4  # times shorter than the block of a run


def fastest_plan(
    known: Known,
    layout: Layout,
    splits: Sequence[WorkerLimits],
    wanted: Wanted,
    whole_axes: Collection[int] = (),
) -> Plan:
    """Of all ways to give CPUs and memory to workers. FitError if no block fits in any."""
    plans, error = [], None
    for limits in splits:
        try:
            plans.append(_Candidates(known, layout, limits, wanted, whole_axes).plan())
        except FitError as caught:
            error = error or caught
    if not plans:
        assert error is not None
        raise error
    most = NEARLY_AS_FAST * min(plan.seconds or 0.0 for plan in plans)
    # Fewer workers hold the libraries fewer times, and send less to each other.
    return min(
        (plan for plan in plans if (plan.seconds or 0.0) <= most), key=lambda plan: plan.workers
    )


class _Candidates:
    """All blocks that are possible, as arrays with a place for each. The block that a run has used
    is the last one."""

    def __init__(
        self,
        known: Known,
        layout: Layout,
        limits: WorkerLimits,
        wanted: Wanted,
        whole_axes: Collection[int],
    ) -> None:
        self.known, self.layout, self.limits, self.wanted = known, layout, limits, wanted
        self.whole_axes, self.q = whole_axes, 1 - wanted.delta
        # Workers that have run nothing yet have not imported what the function needs.
        base = max(limits.base_bytes or 0.0, known.base_bytes or 0.0) or _BASE_BYTES
        allowed = wanted.fill * limits.memory_bytes
        self.worker = Worker(allowed, base, limits.threads, limits.workers)
        self.blocks = self._blocks()
        self.sizes = layout.block_bytes(self.blocks)
        self.needs = [needs_of(known.model, step, self.blocks, self.q) for step in known.steps]
        copies = 0.0 if layout.keeps_results else known.store_copies
        self.memory = worker_memory(
            self.blocks, layout, self.worker, self.needs, known.first_call_bytes, copies
        )
        input_bytes = np.max([one.input_bytes for one in self.needs], axis=0)
        durations = known.durations or Durations([(1.0, 1e-9)])
        self.seconds = durations.job(self.blocks, layout, self.worker, input_bytes)
        self.memories = [(self.memory, allowed)]
        device_bytes, on_device = limits.device_bytes or known.device_bytes, self._device_needs()
        if on_device and device_bytes:
            memory = memory_of_device(on_device, self.worker, len(self.blocks))
            self.memories.append((memory, _DEVICE_SHARE * device_bytes))

    def _blocks(self) -> NDArray[np.int64]:
        layout = self.layout
        least = [max(1, around) for around in layout.depth]
        blocks = candidate_blocks(layout.shape, layout.stored, self.whole_axes, least, layout.used)
        if layout.used is None:
            return blocks
        used = np.minimum(layout.used, layout.shape).astype(np.int64)
        return np.concatenate([blocks, used[None, :]])

    def _device_needs(self) -> list[Needs]:
        """Of the steps that use a device."""
        found = []
        for step in self.known.steps:
            if "gpu" in self.known.model.kinds(step.task):
                on_device = replace(step, kind="gpu", seen=None, bend=None)
                needs = needs_of(self.known.model, on_device, self.blocks, self.q)
                if needs.mean.max() > 0:
                    found.append(needs)
        return found

    def plan(self) -> Plan:
        choice = choose(
            self.blocks,
            self.sizes,
            Shares(self.memories),
            self.seconds,
            self._tiers(),
            self.wanted.objective,
            self.q,
        )
        if choice.place is None:
            raise FitError(self._nothing_fits())
        place, known, worker = choice.place, self.known, self.worker
        deciding = self.memory.deciding(place)
        block = tuple(int(n) for n in self.blocks[place])
        return Plan(
            chunks=chunks_of(self.layout.shape, block),
            block=block,
            block_bytes=int(self.sizes[place]),
            task=deciding.step.label,
            task_bytes=float(deciding.mean[place]),
            task_bound_bytes=float(deciding.upper[place]),
            expected_bytes=float(self.memory.mean()[place]),
            bound_bytes=self.memory.bound(place, self.q),
            base_bytes=worker.base_bytes,
            held_bytes=float(self.memory.held[place]),
            memory_bytes=self.limits.memory_bytes,
            allowed_bytes=worker.allowed_bytes,
            delta=self.wanted.delta,
            tasks_at_once=worker.threads,
            workers=worker.workers,
            trust=deciding.forecast(place).trust,
            seconds=float(self.seconds[place]) if known.durations else None,
            notes=self._notes(place),
            why_not_larger=self._why_not_larger(place, choice.larger),
            trials=known.trials,
            trial_seconds=known.trial_seconds,
            start_seconds=known.start_seconds,
            axes=known.axes,
            curve=self._curve(place),
            steps=[self._step_need(one, place) for one in self.needs],
            device=self._device_need(place),
            used=self._used(),
        )

    def _tiers(self) -> list[NDArray[np.bool_]]:
        """First: blocks for all threads, of whole stored chunks. Or, where the stored chunks of a
        run are not known: blocks that are not much shorter than those of the run along any axis,
        because they may read each chunk several times. Last: all blocks, because an array may be
        too short to have enough."""
        layout, worker = self.layout, self.worker
        enough = layout.count(self.blocks) >= worker.threads * worker.workers
        tiers = [enough, np.ones(len(self.blocks), bool)]
        if layout.stored is not None:
            if self.wanted.objective == TIME:
                tiers.insert(0, enough & are_aligned(self.blocks, layout.stored, layout.shape))
        elif layout.used is not None:
            near = (self.blocks * _NEAR_USED >= np.asarray(layout.used)).all(axis=1)
            tiers.insert(0, enough & near)
        return tiers

    def _notes(self, place: int) -> list[str]:
        known, stored = self.known, self.layout.stored
        deciding = self.memory.deciding(place)
        notes = list(known.notes)
        if not known.trials and not known.notes:  # these have words of their own
            notes += doubts(deciding.forecast(place))
        notes += axis_notes(known.axes, deciding.step.label)
        if stored and not are_aligned(self.blocks[[place]], stored, self.layout.shape)[0]:
            notes.append(
                f"blocks cut through stored chunks ({shape_text(stored)}): a result that is stored"
                " in such chunks would be written by two tasks at once; give it the chunks of this"
                " plan"
            )
        return notes

    def _step_need(self, needs: Needs, place: int) -> StepNeed:
        upper = needs.input_bytes + needs.upper
        used = None if self.layout.used is None else float(upper[-1])
        return StepNeed(needs.step.label, float(upper[place]), used)

    def _device_need(self, place: int) -> DeviceNeed | None:
        """The second memory, if there is one, is that of the device."""
        if len(self.memories) < 2:
            return None
        memory, allowed = self.memories[1]
        return DeviceNeed(
            float(memory.mean()[place]),
            memory.bound(place, self.q),
            allowed / _DEVICE_SHARE,
            allowed,
        )

    def _used(self) -> UsedBlock | None:
        if self.layout.used is None:
            return None
        last = len(self.blocks) - 1
        bound = self.memory.bound(last, self.q)
        return UsedBlock(
            tuple(int(n) for n in self.blocks[last]),
            float(self.sizes[last]),
            float(self.memory.mean()[last]),
            bound,
            bound <= self.worker.allowed_bytes,
            self.memory.deciding(last).step.label,
        )

    def _why_not_larger(self, place: int, larger: int | None) -> str:
        blocks, seconds = self.blocks, self.seconds
        bigger = (blocks >= blocks[place]).all(axis=1) & (blocks > blocks[place]).any(axis=1)
        if not bigger.any():
            return "this is the whole array"
        fitting, reasons = bigger & (Shares(self.memories).most() <= 1), []
        if fitting.any():
            best, ours = float(seconds[fitting].min()), float(seconds[place])
            reasons.append(
                f"larger blocks would take longer: at least {seconds_text(best)}"
                if best > ours
                else f"larger blocks would hardly be faster: {seconds_text(best)} at best"
            )
        if larger is not None:
            memory, allowed = max(
                self.memories, key=lambda pair: pair[0].bound(larger, self.q) / pair[1]
            )
            need = bytes_text(memory.bound(larger, self.q))
            where = "" if memory is self.memory else " on the device"
            reasons.append(
                f"{shape_text(blocks[larger])} would need up to {need} of"
                f" {bytes_text(allowed)}{where}"
            )
        return "; ".join(reasons)

    def _nothing_fits(self) -> str:
        """How much memory the smallest block needs, and what to do."""
        shares, worker = Shares(self.memories), self.worker
        smallest = int(np.argmin(shares.most()))
        block = f"{shape_text(self.blocks[smallest])}, {bytes_text(self.sizes[smallest])}"
        whole = sorted(self.whole_axes)
        if whole:
            axes = count_text(len(whole), "axis stays", "axes stay", "one")
            block += f" ({axes} whole: {', '.join(map(str, whole))})"
        need = self.memory.bound(smallest, self.q)
        if need <= worker.allowed_bytes and len(self.memories) > 1:
            memory, allowed = self.memories[1]
            return (
                f"no block fits into the device: even {block}, needs up to"
                f" {bytes_text(memory.bound(smallest, self.q))} of {bytes_text(allowed)}; use fewer"
                " threads, or a device with more memory"
            )
        limit = need / worker.allowed_bytes * self.limits.memory_bytes
        advice = [f"give each worker {bytes_text(limit)}"]
        if worker.threads > 1:
            advice.append("use fewer threads")
        if whole:
            advice.append("cut a whole axis, if its values allow it (depth=, whole_axes=)")
        notes = axis_notes(self.known.axes, self.known.steps[0].label)[:1]
        return "; ".join(
            [
                f"no block fits: even {block}, needs up to {bytes_text(need)} of the"
                f" {bytes_text(worker.allowed_bytes)} that may be used,"
                f" {bytes_text(worker.base_bytes)} of it for the process itself",
                ", or ".join(advice),
                *notes,
            ]
        )

    def _curve(self, place: int) -> list[PlanPoint]:
        """Candidates of about the chosen block's proportions, from small to large."""
        sizes, means, most = self.sizes, self.memory.mean(), self.memory.most()
        order = np.argsort(sizes, kind="stable")
        wanted = np.geomspace(sizes[order[0]], sizes[order[-1]], _CURVE_POINTS)
        logs = np.log(self.blocks / self.blocks[place])
        found: dict[float, PlanPoint] = {}
        for size in (*wanted, sizes[place]):
            near = np.flatnonzero(np.abs(np.log(sizes / size)) < 0.2)
            if not len(near):
                continue
            # The most alike: all axes scaled by the same factor
            spread = (logs[near] - logs[near].mean(axis=1, keepdims=True)).std(axis=1)
            best = int(near[np.argmin(spread)]) if size != sizes[place] else place
            point = PlanPoint(float(sizes[best]), float(means[best]), float(most[best]))
            found[point.input_bytes] = point
        return [found[size] for size in sorted(found)]
