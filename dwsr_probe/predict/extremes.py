"""The tasks that took most for their inputs, of those that are not in the sample of cases
(cases.py). A sample may have no task that is rare: one in twenty that takes three times as much,
each with inputs of another size. nearby.py sees them beside the cases; the fit does not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from dwsr_probe.predict.case import CaseKey
from dwsr_probe.predict.sizes import non_negative_int

if TYPE_CHECKING:
    from collections.abc import Iterator
_MOST = 8
_SIZE_LEAST = 4 << 20  # bytes that are added to inputs: of small ones the ratio says little


class Extreme(NamedTuple):
    """ratio: of the peak to the inputs. hash: of the key."""

    ratio: float
    peak: float
    hash: int
    key: CaseKey


class Extremes:
    """Of one sample, the largest of each case. The order of arrival does not matter, and merged
    ones are those of all, because a case that leaves the sample never returns."""

    def __init__(self) -> None:
        self._found: list[Extreme] = []  # the largest ratio first
        self._least = -1.0  # the smallest ratio, once there is no room

    def __iter__(self) -> Iterator[Extreme]:
        return iter(self._found)

    def add(self, key: CaseKey, hash_: int, peak: float) -> bool:
        """Returns whether it is one of them."""
        ratio = peak / (key.sizes.total + _SIZE_LEAST)
        if ratio <= self._least:
            return False
        self._keep([*self._found, Extreme(ratio, peak, hash_, key)])
        return True

    def _keep(self, found: list[Extreme]) -> None:
        by_case = {one.hash: one for one in sorted(found, key=lambda one: one.ratio)}
        self._found = sorted(by_case.values(), key=lambda one: (-one.ratio, one.hash))[:_MOST]
        if len(self._found) == _MOST:
            self._least = self._found[-1].ratio

    def merge(self, other: Extremes) -> None:
        self._keep([*self._found, *other._found])

    def clear(self) -> None:
        self._found, self._least = [], -1.0

    def to_list(self) -> list[list[Any]]:
        return [[one.peak, *one.key.to_list()] for one in self._found]

    @classmethod
    def parse(cls, saved: Any) -> Extremes:
        """From a file."""
        self = cls()
        if len(saved) > _MOST:
            raise ValueError("a damaged model: cases")
        for peak, *row in saved:
            key = CaseKey.parse(*row)
            self.add(key, key.hash, float(non_negative_int(peak, "a peak")))
        return self
