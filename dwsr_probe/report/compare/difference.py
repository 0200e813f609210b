"""One quantity of one task name in two runs: like is compared with like, and the difference gets
a verdict.

Peaks depend on the inputs. So tasks are compared, in this order of preference (`basis` says which):
- with tasks whose inputs have the same types and shapes;
- where the runs have few such inputs in common (other block sizes), by peak per byte of input, at
  the size of A's inputs;
- where no inputs are known, all with all.
Tasks that create data are compared by their output instead of their inputs.

Called by compare/comparison.py; compare/noise.py has the tests.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import NamedTuple

from dwsr_probe.report.compare.noise import (
    PValue,
    Stratum,
    are_too_few,
    exceedance_test,
    holm,
    rank_test,
)
from dwsr_probe.report.compare.tasks import (
    GPU_PEAK,
    OWN_PEAK,
    RSS_GROWTH,
    ComparedTask,
    NameInRun,
)
from dwsr_probe.report.words import bytes_text

ALPHA = 0.05
SAME_INPUTS, SAME_OUTPUT, PER_INPUT_BYTE, PER_OUTPUT_BYTE, ALL = (
    "same inputs",
    "same output",
    "per input byte",
    "per output byte",
    "all tasks",
)


class Threshold(NamedTuple):
    """The least difference that counts, as a share and in bytes. For shares, a reference below
    `floor_bytes` counts as `floor_bytes`."""

    share: float
    floor_bytes: int


# Resident size varies without a cause in the task.
THRESHOLDS = {
    OWN_PEAK: Threshold(0.01, 64 << 10),
    GPU_PEAK: Threshold(0.01, 64 << 10),
    RSS_GROWTH: Threshold(0.05, 1 << 20),
}


@dataclass
class Difference:
    """change and largest_change are shares: 0.2 is 20 % more. They are computed from the tasks that
    may be compared. All fields are part of the JSON format."""

    quantity: str
    basis: str
    a_tasks: int  # that were compared
    b_tasks: int
    a_median_bytes: float  # of all tasks that ended well
    b_median_bytes: float
    a_max_bytes: float
    b_max_bytes: float
    change: float
    change_bytes: float
    largest_change: float
    largest_change_bytes: float
    # The medians that `change` is computed from, of the typical stratum. If figures are per byte,
    # they are scaled to the size of A's inputs.
    a_like_bytes: float
    b_like_bytes: float
    # Adjusted for all names; None: the test could not have found a difference at ALPHA
    p: float | None = None
    largest_p: float | None = None
    verdict: str = ""
    note: str = ""

    @property
    def sizes_differ(self) -> bool:
        """The runs had other block sizes, so figures are per byte."""
        return self.basis in (PER_INPUT_BYTE, PER_OUTPUT_BYTE)

    def growth_above(self, limit: float) -> float | None:
        """The significant growth, as a share, if it is more than `limit`; else None. With other
        block sizes a task that needs no more than before did not grow."""
        if self.sizes_differ and self.b_median_bytes <= self.a_median_bytes:
            return None
        grew = 0.0
        if self.verdict == "largest grew":
            grew = self.largest_change
        elif self.verdict == "grew":
            grew = self.change
            if self.largest_p is not None and self.largest_p <= ALPHA:
                grew = max(grew, self.largest_change)
        return grew if grew > limit else None


@dataclass
class TestedDifference:
    """A difference before its verdict, which depends on the tests of all names."""

    difference: Difference
    typical: PValue  # of the typical task
    largest: PValue  # of the largest tasks
    too_few: bool  # with so few tasks no test could be significant


@dataclass
class TaskValue:
    task: ComparedTask
    value: float


@dataclass
class Strata:
    """Values of both runs in groups whose members may be compared with each other."""

    basis: str
    groups: list[Stratum]
    size_bytes: float = 1.0  # per byte: the size of input that values were scaled to


def make_strata(a: Sequence[TaskValue], b: Sequence[TaskValue]) -> Strata:
    by_inputs: dict[str, Stratum] = defaultdict(lambda: ([], []))
    for side, values in enumerate((a, b)):
        for one in values:
            by_inputs[one.task.inputs_key][side].append(one.value)
    shared = [group for group in by_inputs.values() if group[0] and group[1]]
    sources = all(one.task.is_source for one in a)
    in_shared = max(
        sum(len(group[side]) for group in shared) / len(values)
        for side, values in enumerate((a, b))
    )
    if in_shared >= 0.5:
        nothing_known = len(by_inputs) == 1 and "" in by_inputs
        return Strata(ALL if nothing_known else SAME_OUTPUT if sources else SAME_INPUTS, shared)
    sized_a, sized_b = ([one for one in values if one.task.input_bytes] for values in (a, b))
    if len(sized_a) >= 0.9 * len(a) and len(sized_b) >= 0.9 * len(b):
        size = median(one.task.input_bytes or 0 for one in sized_a)
        scaled = [
            [one.value / (one.task.input_bytes or 1) * size for one in values]
            for values in (sized_a, sized_b)
        ]
        return Strata(
            PER_OUTPUT_BYTE if sources else PER_INPUT_BYTE, [(scaled[0], scaled[1])], size
        )
    return Strata(ALL, [([one.value for one in a], [one.value for one in b])])


class _Change(NamedTuple):
    """Of the medians of one stratum. weight: as in van Elteren's test."""

    share: float
    weight: float
    a_median: float
    b_median: float


def _changes(groups: Sequence[Stratum], floor: float) -> list[_Change]:
    changes = []
    for a, b in groups:
        low, high = median(a), median(b)
        weight = len(a) * len(b) / (len(a) + len(b))
        changes.append(_Change((high - low) / max(low, floor), weight, low, high))
    return changes


def typical_change(groups: Sequence[Stratum], floor: float) -> float:
    """Median over the strata of the relative change of their medians."""
    return _weighted_median([(c.share, c.weight) for c in _changes(groups, floor)])


def find_difference(quantity: str, side_a: NameInRun, side_b: NameInRun) -> TestedDifference:
    a, b = (
        [TaskValue(task, task.peaks[quantity]) for task in side.tasks if quantity in task.peaks]
        for side in (side_a, side_b)
    )
    strata, floor = make_strata(a, b), THRESHOLDS[quantity].floor_bytes
    changes = _changes(strata.groups, floor)
    change = _weighted_median([(c.share, c.weight) for c in changes])
    # The medians shown beside the change are those of the stratum whose change is nearest to it, so
    # that they differ in the same direction.
    typical = min(changes, key=lambda c: abs(c.share - change))
    # The test of the largest needs all strata on one scale: values are divided by the median of
    # both runs in their stratum.
    scales = [max(median([*x, *y]), floor) for x, y in strata.groups]
    scaled = [
        ([value / scale for value in x], [value / scale for value in y])
        for (x, y), scale in zip(strata.groups, scales, strict=True)
    ]
    largest_a = max(max(x) for x, _ in scaled)
    largest_b, scale = max((max(y), scale) for (_, y), scale in zip(scaled, scales, strict=True))
    difference = Difference(
        quantity=quantity,
        basis=strata.basis,
        a_tasks=sum(len(x) for x, _ in strata.groups),
        b_tasks=sum(len(y) for _, y in strata.groups),
        a_median_bytes=median(one.value for one in a),
        b_median_bytes=median(one.value for one in b),
        a_max_bytes=max(one.value for one in a),
        b_max_bytes=max(one.value for one in b),
        change=change,
        change_bytes=_weighted_median([(c.b_median - c.a_median, c.weight) for c in changes]),
        largest_change=(largest_b - largest_a) / max(largest_a, floor / scale),
        largest_change_bytes=(largest_b - largest_a) * scale,
        a_like_bytes=typical.a_median,
        b_like_bytes=typical.b_median,
    )
    if difference.sizes_differ:
        b_size = median(one.task.input_bytes for one in b if one.task.input_bytes)
        difference.note = (
            f"blocks: {bytes_text(strata.size_bytes)} in A, {bytes_text(b_size)} in B;"
            f" B's tasks needed {bytes_text(difference.b_median_bytes)} in the median"
        )
    elif strata.basis == ALL and {x.task.inputs_key for x in a} != {x.task.inputs_key for x in b}:
        difference.note = "inputs differ, and their sizes are not known"
    return TestedDifference(
        difference,
        typical=rank_test(strata.groups),
        largest=exceedance_test(scaled),
        too_few=are_too_few(strata.groups, ALPHA),
    )


def _weighted_median(pairs: Sequence[tuple[float, float]]) -> float:
    """Of (value, weight): the value at half of the weight; the mean of two values if half of the
    weight lies exactly between them."""
    pairs = sorted(pairs)
    half, seen = sum(weight for _, weight in pairs) / 2, 0.0
    for i, (value, weight) in enumerate(pairs):
        seen += weight
        if abs(seen - half) < 1e-9 * half and i + 1 < len(pairs):
            return (value + pairs[i + 1][0]) / 2
        if seen > half:
            return value
    return pairs[-1][0]


def set_verdicts(tested: Sequence[TestedDifference]) -> None:
    """Set p, largest_p and verdict of all differences of one family. The p-values of the family,
    of typical and of largest tasks, are adjusted together."""
    adjusted = holm([p for one in tested for p in (one.typical, one.largest)], ALPHA)
    for i, one in enumerate(tested):
        d = one.difference
        d.p, d.largest_p = adjusted[2 * i : 2 * i + 2]
        share, floor = THRESHOLDS[d.quantity]
        differs = abs(d.change) >= share and abs(d.change_bytes) >= floor
        largest_grew = d.largest_change >= share and d.largest_change_bytes >= floor
        significant = differs and d.p is not None and d.p <= ALPHA
        if significant and d.change > 0:
            d.verdict = "grew"
        elif largest_grew and d.largest_p is not None and d.largest_p <= ALPHA:
            d.verdict = "largest grew"
        elif significant:
            d.verdict = "shrank"
        elif not differs and not largest_grew:
            d.verdict = "no difference"
        elif one.too_few:
            d.verdict = "cannot tell"
            few = (
                "one each"
                if d.a_tasks == d.b_tasks == 1
                else f"{d.a_tasks:,} and {d.b_tasks:,} tasks are too few"
            )
            d.note = "; ".join(filter(None, [few, d.note]))
        else:
            d.verdict = "within noise"
