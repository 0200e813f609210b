"""One quantity of one row in two runs: like is compared with like, and the difference gets a
verdict.

Peaks depend on the inputs. So tasks are compared, in this order of preference (`basis` says which):
- with tasks whose inputs have the same types, shapes and number;
- where the runs have few such inputs in common (other block sizes), by peak per byte of input, at
  the size of A's inputs. Inputs that all tasks of both runs have, such as the array that blocks are
  stored into, do not count. Tasks that return a part of a block are compared per byte of output;
- all with all. That is a comparison only if the tasks have no inputs.
Tasks that create data are compared by their output instead of their inputs.

Where inputs differ and their sizes are not known, or do not explain the peaks, figures are shown
and not judged: a `doubt` says why.

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
    Part,
)
from dwsr_probe.words import bytes_text

ALPHA = 0.05
# Peaks of more than so many times the inputs are not proportional to the inputs.
_EXPLAINED_MOST = 64
_MOST = 0.9  # of the tasks: so many decide how all are compared
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
    """A difference before its verdict, which depends on the tests of all names. doubt: why it is
    not judged; empty: it is."""

    difference: Difference
    typical: PValue  # of the typical task
    largest: PValue  # of the largest tasks
    too_few: bool  # with so few tasks no test could be significant
    doubt: str = ""


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
    b_size_bytes: float = 1.0  # per byte: the median size of B's inputs
    doubt: str = ""  # why values may not be alike


def make_strata(a: Sequence[TaskValue], b: Sequence[TaskValue]) -> Strata:
    by_output = all(one.task.is_source for one in a)
    by_key: dict[str | None, Stratum] = defaultdict(lambda: ([], []))
    for side, values in enumerate((a, b)):
        for one in values:
            by_key[one.task.key(by_output)][side].append(one.value)
    if set(by_key) == {""}:
        return Strata(ALL, list(by_key.values()), doubt=_doubt_without_inputs(a, b))
    # Tasks without inputs, or with inputs of unknown size (None), may all be different.
    shared = [group for key, group in by_key.items() if key and group[0] and group[1]]
    in_shared = max(
        sum(len(group[side]) for group in shared) / len(values)
        for side, values in enumerate((a, b))
    )
    if in_shared >= 0.5:
        return Strata(SAME_OUTPUT if by_output else SAME_INPUTS, shared)
    by_output = by_output or all(map(_are_parts, (a, b)))
    constant = _constant_inputs(a, b)
    sized_a, sized_b = (
        [(one.value, size) for one in values if (size := one.task.size_bytes(by_output, constant))]
        for values in (a, b)
    )
    if len(sized_a) >= _MOST * len(a) and len(sized_b) >= _MOST * len(b):
        a_size, b_size = (median(size for _, size in values) for values in (sized_a, sized_b))
        scaled_a, scaled_b = (
            [value / size * a_size for value, size in values] for values in (sized_a, sized_b)
        )
        return Strata(
            PER_OUTPUT_BYTE if by_output else PER_INPUT_BYTE,
            [(scaled_a, scaled_b)],
            a_size,
            b_size,
            "the sizes of some inputs are not known" if None in by_key else "",
        )
    return Strata(
        ALL,
        [([one.value for one in a], [one.value for one in b])],
        doubt="the sizes of the inputs are not known"
        if set(by_key) == {None}
        else "inputs differ, and their sizes are not known",
    )


def _are_parts(values: Sequence[TaskValue]) -> bool:
    """Such tasks cut a block: how much they copy depends on where they cut, not on the block."""
    return sum(one.task.is_part for one in values) >= _MOST * len(values)


def _doubt_without_inputs(a: Sequence[TaskValue], b: Sequence[TaskValue]) -> str:
    """Blocks that a graph's task makes or reads by itself are not known. If the runs have other
    numbers of such tasks, the blocks are probably of other sizes."""
    in_graph = any(one.task.in_graph for one in [*a, *b])
    return (
        "no inputs are known, and the number of tasks differs"
        if in_graph and len(a) != len(b)
        else ""
    )


def _constant_inputs(a: Sequence[TaskValue], b: Sequence[TaskValue]) -> set[Part]:
    """Inputs that every task of both runs has: a kernel, or the array that blocks are stored
    into. They do not change with the size of the blocks."""
    different = {id(one.task.inputs): one.task.inputs for one in [*a, *b]}
    return set.intersection(*(set(inputs.parts) for inputs in different.values()))


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


def find_difference(
    quantity: str, side_a: NameInRun, side_b: NameInRun, doubt: str = ""
) -> TestedDifference:
    """doubt: why the tasks of these two may not be judged; empty: nothing is known against it."""
    a, b = (
        [TaskValue(task, task.peaks[quantity]) for task in side.tasks if quantity in task.peaks]
        for side in (side_a, side_b)
    )
    strata, floor = make_strata(a, b), THRESHOLDS[quantity].floor_bytes
    doubt = doubt or strata.doubt
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
        difference.note = (
            f"blocks: {bytes_text(strata.size_bytes)} in A, {bytes_text(strata.b_size_bytes)} in B;"
            f" B's tasks needed {bytes_text(difference.b_median_bytes)} in the median"
        )
        if not doubt and difference.a_median_bytes > _EXPLAINED_MOST * strata.size_bytes:
            doubt = "inputs differ, and are too small to explain the memory"
    return TestedDifference(
        difference,
        typical=rank_test(strata.groups),
        largest=exceedance_test(scaled),
        too_few=are_too_few(strata.groups, ALPHA),
        doubt=doubt,
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
    of typical and of largest tasks, are adjusted together. Differences in doubt are not tested."""
    judged = [one for one in tested if not one.doubt]
    adjusted = iter(holm([p for one in judged for p in (one.typical, one.largest)], ALPHA))
    for one in tested:
        d = one.difference
        if not one.doubt:
            d.p, d.largest_p = next(adjusted), next(adjusted)
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
        elif one.doubt:
            d.verdict = "cannot tell"
            d.note = "; ".join(filter(None, [one.doubt, d.note]))
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
