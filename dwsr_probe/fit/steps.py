"""What one kind of task receives for a block, and the memory that it needs for it.

A step knows how a task's inputs follow from the block: with a halo, beside other arrays, or as the
tasks of a run were seen to (run.py). `needs_of` asks the model for all candidates at once.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from dwsr_probe.predict.blocks import held_bytes, input_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from dwsr_probe.fit.candidates import Blocks
    from dwsr_probe.predict import Forecast, Model
    from dwsr_probe.predict.group import Group

Inputs = list[dict[str, Any]]
# What a task needs whatever its block is: buffers and tables. OpenBLAS takes this much per thread.
CONSTANT_MOST_BYTES = 32 << 20
# Of tasks whose own peaks may miss memory: times the growth of the process that was seen. Nothing
# can be promised for them, but a job that has such tasks needs a block, too.
UNSEEN_FACTOR = 2.0


class Bend(NamedTuple):
    """Memory that grows faster than the block: in the trials, as a power of the bytes of the
    inputs. The model knows sums of products of lengths only, and would be too low beyond the
    largest block tried, which had so many bytes and needed so much."""

    input_bytes: float
    need_bytes: float
    exponent: float

    def need(self, input_bytes: NDArray[np.float64]) -> NDArray[np.float64]:
        """The least own peak to expect; 0 for blocks that are smaller than the largest tried."""
        ratio = input_bytes / self.input_bytes
        return np.where(ratio > 1, self.need_bytes * ratio**self.exponent, 0.0)


BENT_BOUND = 1.25  # bound over mean of a power that two trials show


@dataclass
class Step:
    """label: as people see it. task: as the model knows it. inputs_of: of a block's lengths. seen:
    the inputs of a task that was seen, if all tasks were of this size; None: of several sizes.
    bend: None: memory is in proportion, as far as is known."""

    label: str
    task: str | Group
    inputs_of: Callable[[Sequence[int]], Inputs]
    kind: str = "alloc"
    params: dict[str, float] | None = None
    seen: Inputs | None = None
    bend: Bend | None = None


@dataclass
class Needs:
    """What each candidate block needs in one step: bytes of the inputs that are in memory before
    the task begins, of the output, and the task's own peak: mean and 1 − δ bound."""

    step: Step
    model: Model
    inputs: list[Inputs]
    input_bytes: NDArray[np.float64]
    output_bytes: NDArray[np.float64]
    mean: NDArray[np.float64]
    upper: NDArray[np.float64]
    _joint: dict[tuple[int, int, float], float] = field(default_factory=dict)

    def forecast(self, place: int) -> Forecast:
        return self.model.predict(
            self.inputs[place], self.step.task, self.step.kind, params=self.step.params
        )

    def joint_upper(self, place: int, threads: int, q: float) -> float:
        """The bound of the own peaks of so many tasks at once. They are not independent: if one
        needs more than expected because the slope is steeper, the others do, too."""
        known = self._joint.get((place, threads, q))
        if known is None:
            one = (self.inputs[place], self.step.task, self.step.params)
            together = self.model.together([one] * threads, self.step.kind)
            # Infinite for lower bounds
            known = min(together.upper(q), threads * float(self.upper[place]))
            if self.step.bend:
                least = self.step.bend.need(self.input_bytes[place : place + 1])[0]
                known = max(known, threads * BENT_BOUND * float(least))
            self._joint[place, threads, q] = known
        return known


def needs_of(model: Model, step: Step, blocks: Blocks, q: float) -> Needs:
    inputs = [step.inputs_of(block) for block in blocks.tolist()]
    found = model.predict_many(inputs, step.task, step.kind, params=step.params)
    holds = _bytes_on_device if step.kind == "gpu" else held_bytes
    held = np.array([holds(one) for one in inputs], float)
    mean, upper = np.asarray(found.mean, float), np.asarray(found.upper(q), float)
    unknown = ~np.isfinite(upper)
    upper[unknown] = UNSEEN_FACTOR * mean[unknown]
    if step.seen:
        most = np.minimum(upper, _shrinking(model, step, step.seen, inputs, q))
        mean, upper = np.minimum(mean, most), most
    if step.bend:
        least = step.bend.need(held)
        mean, upper = np.maximum(mean, least), np.maximum(upper, BENT_BOUND * least)
    outputs = _output_bytes(model, step, inputs)
    return Needs(step, model, inputs, held, outputs, mean, upper)


def _bytes_on_device(inputs: Inputs) -> int:
    """Of inputs that are on the device before the task begins."""
    return sum(
        (one.get("nbytes") or 0) * (one.get("count") or 1)
        for one in inputs
        if str(one.get("type")).startswith("cupy")
    )


def _shrinking(
    model: Model, step: Step, seen: Inputs, inputs: Sequence[Inputs], q: float
) -> NDArray[np.float64]:
    """The bound for smaller blocks, if tasks of one size were seen. For the model it is possible
    that they need as much at any size. Here at most CONSTANT_MOST_BYTES of it are taken for
    constant: then smaller blocks help, as they nearly always do."""
    size = input_bytes(seen) or 1
    upper = model.predict(seen, step.task, step.kind, params=step.params).upper(q)
    ratios = np.array([(input_bytes(one) or 0) / size for one in inputs])
    found: NDArray[np.float64] = np.where(
        ratios < 1, upper * ratios + min(upper, CONSTANT_MOST_BYTES), np.inf
    )
    return found


def _output_bytes(model: Model, step: Step, inputs: Sequence[Inputs]) -> NDArray[np.float64]:
    if "output" not in model.kinds(step.task):
        return np.zeros(len(inputs))
    found = model.predict_many(inputs, step.task, "output", params=step.params)
    return np.asarray(found.mean, float)


def block_inputs(
    shapes: Sequence[Sequence[int]],
    dtypes: Sequence[Any],
    depth: Sequence[int],
) -> Callable[[Sequence[int]], Inputs]:
    """Inputs of a function that is mapped over blocks. shapes, dtypes: of the arrays, the blocked
    one first. depth: halo along each of its axes. Other arrays are aligned at their last axes, as
    NumPy broadcasts: an axis as long as that of the first array is cut with it, any other is
    whole."""
    first = shapes[0]

    def inputs_of(block: Sequence[int]) -> Inputs:
        lengths = [
            min(n, length + 2 * around)
            for n, length, around in zip(first, block, depth, strict=True)
        ]
        found = []
        for shape, dtype in zip(shapes, dtypes, strict=True):
            part = [
                lengths[axis] if n == first[axis] else n
                for axis, n in zip(range(len(first) - len(shape), len(first)), shape, strict=True)
            ]
            nbytes = math.prod(part) * np.dtype(dtype).itemsize
            found.append({"dtype": str(dtype), "shape": part, "nbytes": nbytes})
        return found

    return inputs_of
