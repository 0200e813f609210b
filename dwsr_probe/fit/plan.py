"""The answer of a fit: a block, what it needs, how long it takes, and why it is no larger."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from dwsr_probe.fit.axes import DIFFERENT, FAILED, RANDOM, RESHAPED, UNCHECKED
from dwsr_probe.words import bytes_text, count_text, percent_text, seconds_text, shape_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from dwsr_probe.fit.axes import AxisCheck

_CHUNKS_SHOWN = 3  # along an axis
_STEPS_SHOWN = 8


class Tried(NamedTuple):
    """A block that was tried. need_bytes: peak of the task beside its input."""

    shape: tuple[int, ...]
    input_bytes: int
    need_bytes: int
    seconds: float


class PlanPoint(NamedTuple):
    """A block of another volume: bytes of its inputs, expected peak of the worker, bound."""

    input_bytes: float
    expected_bytes: float
    bound_bytes: float


class StepNeed(NamedTuple):
    """One kind of task: bounds of its inputs and own peak together, at the block of the plan and at
    that of the run."""

    task: str
    bound_bytes: float
    used_bound_bytes: float | None


class UsedBlock(NamedTuple):
    """The block of a run, and what a worker needs for it. task: that needs most."""

    block: tuple[int, ...]
    nbytes: float
    expected_bytes: float
    bound_bytes: float
    fits: bool
    task: str


class DeviceNeed(NamedTuple):
    """Of the device that a worker's threads share. memory_bytes, allowed_bytes: its memory, and the
    part of it that may be used."""

    expected_bytes: float
    bound_bytes: float
    memory_bytes: float
    allowed_bytes: float


@dataclass
class Plan:
    """chunks: for `rechunk`, as Dask writes them. block: the largest block's shape. Bytes are of
    one worker: expected_bytes and bound_bytes (exceeded with probability `delta`) of its peak;
    memory_bytes its limit, allowed_bytes the part of it that the plan may use. task: the task that
    needs most. task_bytes, task_bound_bytes: its own peak. tasks_at_once: per worker. seconds:
    expected time of the job; None: durations are not known."""

    chunks: tuple[tuple[int, ...], ...]
    block: tuple[int, ...]
    block_bytes: int
    task: str
    task_bytes: float
    task_bound_bytes: float
    expected_bytes: float
    bound_bytes: float
    base_bytes: float
    held_bytes: float
    memory_bytes: float
    allowed_bytes: float
    delta: float
    tasks_at_once: int
    workers: int
    trust: str
    seconds: float | None = None
    notes: list[str] = field(default_factory=list)
    why_not_larger: str = ""
    trials: list[Tried] = field(default_factory=list)
    trial_seconds: float = 0.0  # with the check of the axes, without the start of the process
    start_seconds: float = 0.0
    axes: list[AxisCheck] = field(default_factory=list)
    curve: list[PlanPoint] = field(default_factory=list)
    steps: list[StepNeed] = field(default_factory=list)
    used: UsedBlock | None = None
    is_table: bool = False  # a block is a partition: rows and columns
    device: DeviceNeed | None = None  # None: tasks use none, or its memory is not known

    @property
    def block_count(self) -> int:
        count = 1
        for lengths in self.chunks:
            count *= len(lengths)
        return count

    def worker_bytes(self, tried: Tried) -> float:
        """What a worker would need if all its threads worked on such blocks."""
        each = tried.input_bytes + tried.need_bytes
        return self.base_bytes + self.held_bytes + self.tasks_at_once * each

    def to_dict(self) -> dict[str, Any]:
        """As JSON has it."""
        return {
            "chunks": [list(lengths) for lengths in self.chunks],
            "block": list(self.block),
            "block_bytes": self.block_bytes,
            "blocks": self.block_count,
            "rows_per_partition": self.block[0] if self.is_table else None,
            "task": self.task,
            "task_bytes": round(self.task_bytes),
            "task_bound_bytes": round(self.task_bound_bytes),
            "expected_bytes": round(self.expected_bytes),
            "bound_bytes": round(self.bound_bytes),
            "base_bytes": round(self.base_bytes),
            "held_bytes": round(self.held_bytes),
            "memory_bytes": round(self.memory_bytes),
            "allowed_bytes": round(self.allowed_bytes),
            "delta": self.delta,
            "tasks_at_once": self.tasks_at_once,
            "workers": self.workers,
            "seconds": self.seconds,
            "trust": self.trust,
            "notes": self.notes,
            "why_not_larger": self.why_not_larger,
            "trials": [tried._asdict() for tried in self.trials],
            "trial_seconds": round(self.trial_seconds, 3),
            "start_seconds": round(self.start_seconds, 3),
            "steps": [step._asdict() for step in self.steps],
            "used": self.used._asdict() if self.used else None,
            "device": self.device._asdict() if self.device else None,
        }

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def lines(self) -> Iterator[str]:
        if self.used:
            yield self._used_line(self.used)
        if self.is_table:
            yield (
                f"block    {self.block[0]:,} rows per partition ({bytes_text(self.block_bytes)}),"
                f" {count_text(self.block_count, 'partition', 'partitions', '1')}"
            )
        else:
            yield (
                f"block    {shape_text(self.block)} ({bytes_text(self.block_bytes)}),"
                f" {count_text(self.block_count, 'block', 'blocks', '1')}"
            )
            yield f"chunks   {chunks_text(self.chunks)}"
        at_once = count_text(self.tasks_at_once, "task", "tasks", "1")
        yield (
            f"worker   {bytes_text(self.expected_bytes)} expected with {at_once} at once,"
            f" {bytes_text(self.bound_bytes)} at most with {100 * (1 - self.delta):g} %"
            " probability"
        )
        yield (
            f"         of this: {bytes_text(self.base_bytes)} for the process and its libraries,"
            f" {bytes_text(self.held_bytes)} for blocks that wait"
        )
        yield (
            f"memory   {bytes_text(self.memory_bytes)}, of which"
            f" {percent_text(self.allowed_bytes / self.memory_bytes)} may be used:"
            f" {bytes_text(self.allowed_bytes)}"
        )
        if self.device:
            yield (
                f"device   {bytes_text(self.device.expected_bytes)} expected,"
                f" {bytes_text(self.device.bound_bytes)} at most, of"
                f" {bytes_text(self.device.memory_bytes)}"
            )
        yield (
            f"task     {self.task}: own peak {bytes_text(self.task_bytes)} expected,"
            f" {bytes_text(self.task_bound_bytes)} at most"
        )
        if self.seconds is not None:
            workers = count_text(self.workers, "worker", "workers", "1")
            yield f"time     about {seconds_text(self.seconds)} on {workers}"
        yield f"trust    {self.trust}"
        if self.why_not_larger:
            yield f"larger   {self.why_not_larger}"
        if len(self.steps) > 1:
            largest = sorted(self.steps, key=lambda one: -one.bound_bytes)
            for step in largest[:_STEPS_SHOWN]:
                before = bytes_text(step.used_bound_bytes)
                bound = bytes_text(step.bound_bytes)
                yield f"each     {step.task}: up to {bound} instead of {before}"
            rest = len(largest) - _STEPS_SHOWN
            if rest > 0:
                yield f"         and {count_text(rest, 'kind', 'kinds', 'one')} that need less"
        for tried in self.trials:
            yield (
                f"tried    {shape_text(tried.shape)} ({bytes_text(tried.input_bytes)}):"
                f" {bytes_text(tried.need_bytes)}, {seconds_text(tried.seconds)}"
            )
        if self.trials:
            yield (
                f"         trials and checks took {seconds_text(self.trial_seconds)}, the start of"
                f" their process {seconds_text(self.start_seconds)}"
            )
        for note in self.notes:
            yield f"note: {note}"

    def _used_line(self, used: UsedBlock) -> str:
        fits = "fits" if used.fits else "does not fit"
        return (
            f"run      its {self._block_text(used.block)} {fits}: a worker needs up to"
            f" {bytes_text(used.bound_bytes)} of the {bytes_text(self.allowed_bytes)} that may be"
            f" used, most of it for {used.task}"
        )

    def _block_text(self, block: Sequence[int]) -> str:
        return f"partition of {block[0]:,} rows" if self.is_table else f"block {shape_text(block)}"

    def plot(self) -> Any:
        """A Bokeh figure: expected peak of a worker against the size of its blocks."""
        from dwsr_probe.fit.plot import figure_of

        return figure_of(self)


def chunks_text(chunks: Sequence[tuple[int, ...]]) -> str:
    """ "((500, 500), (1000,), (80 × 25))": many equal lengths are shortened."""
    return f"({', '.join(_lengths_text(lengths) for lengths in chunks)})"


def _lengths_text(lengths: tuple[int, ...]) -> str:
    if len(lengths) <= _CHUNKS_SHOWN + 1:
        return f"({', '.join(map(str, lengths))}{',' if len(lengths) == 1 else ''})"
    equal = lengths.count(lengths[0])
    rest = f", {lengths[-1]}" if equal < len(lengths) else ""
    return f"({equal:,} × {lengths[0]}{rest})"


def axis_notes(checks: Sequence[AxisCheck], name: str) -> list[str]:
    """What the check of the axes found, in words."""
    notes = []
    for check in checks:
        if check.verdict == RANDOM:
            return [
                f"{name} gives other values at each call with the same block: whether an axis must"
                " stay whole could not be checked; say so with whole axes"
            ]
        if check.verdict == DIFFERENT:
            where = (
                f"within {check.reach} of a cut: a halo of depth {check.reach} may allow to cut it"
                if check.reach is not None
                else "when it is cut"
            )
            notes.append(f"axis {check.axis} stays whole: values change {where}")
        if check.verdict == RESHAPED:
            notes.append(
                f"axis {check.axis} stays whole: results of its parts cannot be put together"
            )
        if check.verdict == FAILED:
            notes.append(f"axis {check.axis} stays whole: the function fails on parts of it")
    unchecked: dict[str, list[str]] = {}
    for check in checks:
        if check.verdict == UNCHECKED:
            unchecked.setdefault(check.reason, []).append(str(check.axis))
    for reason, axes in unchecked.items():
        notes.append(
            f"whether axis {', '.join(axes)} can be cut was not checked: {reason}; if it must stay"
            " whole, say so with whole axes"
        )
    return notes
