"""Variants: tasks of one group that differ in the number of axes of their largest input, or in the
kind of what they return, and need different memory. `getitem` may return a view or a copy; sums of
two axes and of three may be steps of different computations. A model for all of them would fit
none. fitted.py looks for variants where one fit does not explain the cases.

What a task returns is not known before it runs. A question is then answered by all variants that
are possible, each with the share of tasks that it had (mixed.py).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from dwsr_probe.predict.posterior import rough_line
from dwsr_probe.predict.sizes import ALL_INPUTS
from dwsr_probe.predict.variant import OTHERS, Variant

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from dwsr_probe.predict.case import CaseTable
    from dwsr_probe.predict.fitted import Fitted, Tables
    from dwsr_probe.predict.mixture import LowerBound

    Floats = NDArray[np.float64]
    FitTables = Callable[[Tables, Sequence[LowerBound]], Fitted]

_UNEXPLAINED_DEVIATION = 0.05  # of the cases from one fit, relative: from here on it is not enough
_DEVIATION_LEAST = 0.005  # of a variant: a smaller one proves nothing more
_FREEDOM_LEAST = 0.5  # values of a variant beyond those that a line takes up
_LINE_FREEDOM = 3  # that a line takes up: function, constant and slope
# By how much the logarithm of the likelihood must rise: in all, and for each further variant.
_GAIN_LEAST, _GAIN_EACH = 4.0, 3.0
# A variant with fewer tasks borrows from the others how peaks grow. They count as so many tasks,
# and are scaled to its own peaks, by this factor at most.
_ALONE_FROM, _OTHERS_COUNT, _SCALED_MOST = 4, 0.5, 100.0


class Part(NamedTuple):
    """What answers for a share of the tasks in question. n: tasks. largest_bytes: of their inputs.
    variant: that it is of. None: all tasks of the group."""

    share: float
    fitted: Fitted
    n: float | None = None
    largest_bytes: float | None = None
    variant: Variant | None = None


class Variants:
    """The variants of one group and kind of memory. bounds: lower bounds of its tasks. fit: fits
    some of the cases. pooled: what one fit of all cases says of each case."""

    def __init__(
        self, tables: Tables, bounds: Sequence[LowerBound], fit: FitTables, pooled: Floats
    ) -> None:
        self._tables, self._bounds, self._fit, self._pooled = tables, bounds, fit, pooled
        assert tables.plain is not None and tables.plain.tasks is not None
        # They go on counting while the fits stay.
        self._tasks, self._common = tables.plain.tasks, {*tables.plain.variants}
        self._fits: dict[Variant, Fitted] = {}

    def parts(self, axes: int | None, output_kind: str) -> list[Part]:
        """The variants that a task with such an input may be of; []: none has such an input.
        output_kind: "" if it is not known."""
        possible = [one for one in self._common if one.axes == axes]
        if (known := Variant(axes, output_kind)) in possible and output_kind:
            possible = [known]
        elif OTHERS in self._common:
            possible = [OTHERS] if output_kind else [*possible, OTHERS]
        tasks = {one: self._tasks.tasks(one, self._common) for one in sorted(possible, key=str)}
        total = sum(tasks.values())
        return [self._part(one, n, n / total) for one, n in tasks.items() if n > 0]

    def _part(self, variant: Variant, n: float, share: float) -> Part:
        table = self._tables.plain
        assert table is not None
        places = _places(table, variant)
        if variant not in self._fits:
            tables = self._tables.changed(lambda one: one.at(_places(one, variant)))
            if n < _ALONE_FROM:
                borrowed = self._with_others(table, places)
                tables = tables._replace(plain=borrowed)
            bounds = [bound for bound in self._bounds if self._likely(bound) == variant]
            self._fits[variant] = self._fit(tables, bounds)
        largest = float(table.features[places, ALL_INPUTS].max())
        return Part(share, self._fits[variant], n, largest, variant)

    def _with_others(self, table: CaseTable, places: list[int]) -> CaseTable:
        """The cases at these places, and the other cases, scaled to the level of these."""
        own, counts = table.at(places), table.counts.copy()
        expected = np.maximum(self._pooled[places], 1.0)
        factor = float(np.median(own.mean / expected))
        counts[places] = 0.0
        if not 1 / _SCALED_MOST < factor < _SCALED_MOST or not counts.any():
            return own
        counts *= _OTHERS_COUNT / counts.sum()
        others = table._replace(
            mean=factor * table.mean, variance=factor**2 * table.variance, counts=counts
        )
        return own.with_rows(others.at(np.flatnonzero(counts).tolist()))

    def _likely(self, bound: LowerBound) -> Variant:
        """What a task that was killed, or runs, is taken for: the variant that takes most."""
        table = self._tables.plain
        assert table is not None
        possible = [one for one in self._common if one.axes == bound.axes] or [*self._common]
        return max(
            sorted(possible, key=str), key=lambda one: float(table.mean[_places(table, one)].max())
        )


def differ(table: CaseTable, fitted: Floats, floor: int) -> bool:
    """Whether variants explain the cases much better than one fit does. fitted: what it says of
    each case."""
    weight = 2 * table.counts / (1 + table.counts)  # tasks of a case depend on each other
    distance = (table.mean - fitted) / np.hypot(table.mean, floor)
    variance = distance**2 + table.variance / (table.mean**2 + floor**2)
    deviation = math.sqrt(float(weight @ variance / weight.sum()))
    if deviation < _UNEXPLAINED_DEVIATION:
        return False
    # Values that are low by chance count much in a rough line: like is compared with like.
    deviation = min(deviation, rough_line(table, floor).deviation)
    if deviation < _UNEXPLAINED_DEVIATION:
        return False
    gain, variants = 0.0, {*table.variants}
    for variant in variants:
        places = _places(table, variant)
        n = float(weight[places].sum())
        freedom = n - min(len(places), _LINE_FREEDOM)
        if freedom >= _FREEDOM_LEAST:
            left = rough_line(table.at(places), floor).deviation * math.sqrt(n / freedom)
            gain += n * math.log(deviation / max(left, _DEVIATION_LEAST))
    return gain > _GAIN_LEAST + _GAIN_EACH * (len(variants) - 1)


def _places(table: CaseTable, variant: Variant) -> list[int]:
    return [place for place, one in enumerate(table.variants) if one == variant]
