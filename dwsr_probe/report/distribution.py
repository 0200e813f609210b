"""One quantity over all tasks of a name: its median and its maximum.

Three kinds of value are combined:
- exact values, one per task;
- lower bounds, from tasks that were killed (right-censored values);
- histograms from a process's totals, where the records of single tasks are incomplete.

Used by report/summary.py, and by report/readable.py for notebooks. Every run loads this module,
so it does without `statistics` and `typing`.
"""

from __future__ import annotations

from math import inf

from dwsr_probe.total import cell_value
from dwsr_probe.words import About, AtLeast

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def median(values: Sequence[float]) -> float:
    """As in `statistics`, whose import costs a run several milliseconds."""
    ordered, half = sorted(values), len(values) // 2
    return ordered[half] if len(values) % 2 else (ordered[half - 1] + ordered[half]) / 2


class Distribution(list[float]):
    """The list holds exact values and lower bounds. Histograms are kept beside the list."""

    def __init__(self) -> None:
        super().__init__()
        self._lower_bound_indices: set[int] = set()  # of the list's values that are lower bounds
        self._histogram: dict[float, int] = {}  # value that represents a cell → number of tasks
        self._histogram_max: float | None = None

    def add(self, value: float, is_lower_bound: bool = False) -> None:
        if is_lower_bound:
            self._lower_bound_indices.add(len(self))
        self.append(value)

    def add_histogram(self, cells: Mapping[int, int], largest: float, scale: float = 1.0) -> None:
        """Add all tasks of a process whose single records are incomplete. cells: number of a
        histogram's cell → number of tasks (total.py); largest: the exact maximum."""
        for cell, count in cells.items():
            value = min(cell_value(cell), largest) * scale
            self._histogram[value] = self._histogram.get(value, 0) + count
        if cells:
            self.add_maximum(largest * scale)

    def add_maximum(self, largest: float) -> None:
        """Add the exact maximum of a process whose single records are incomplete and which has no
        histogram of this quantity."""
        self._histogram_max = max(largest, self._histogram_max or 0)

    def __bool__(self) -> bool:
        return bool(len(self) or self._histogram)

    @property
    def lower_bound_count(self) -> int:
        """Number of lower bounds among the values."""
        return len(self._lower_bound_indices)

    @property
    def median(self) -> float | None:
        if not self:
            return None
        if self._histogram:
            found = self._median_with_histogram()
            return AtLeast(found) if self.lower_bound_count else About(found)
        # The median is exact if no true value of a killed task could change it.
        low = median(self)
        high = median(
            [inf if i in self._lower_bound_indices else value for i, value in enumerate(self)]
        )
        return low if low == high else AtLeast(low)

    def _median_with_histogram(self) -> float:
        counts = sorted([*self._histogram.items(), *((value, 1) for value in self)])
        remaining = sum(count for _, count in counts) / 2
        for value, count in counts:
            remaining -= count
            if remaining <= 0:
                return value
        return counts[-1][0]

    @property
    def max(self) -> float | None:
        largest = max(self, default=None)
        if self._histogram_max is not None:
            largest = max(self._histogram_max, largest or 0)
        return AtLeast(largest) if largest is not None and self.lower_bound_count else largest
