"""Several upper bounds for the tasks of a group, and which one to take: the one that would have
cost least so far (an online choice among experts). The first two are forecasts, and decide on the
mean as well. The third is only a reservation: how much to give a task that can be repeated.

- `posterior`: the bound of the posterior with derived functions (sums of two sizes, saturation).
- `single sizes`: the same from single size functions, where there are derived ones. With few values
  a sum of two sizes may fit by chance.
- `largest seen`: a little more than the largest peak, if that is less. Only where inputs have no
  shape: their bytes may say little about the task, as for a compressor with a fixed window.

A bound costs what it reserves, in units of what the task needs. If the task needs more, it fails;
the attempt is paid for, and the next ones, each with twice as much, until it fits, and a price for
the failure itself. learner.py scores all experts with each value.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from dwsr_probe.predict.sizes import parse_row

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

POSTERIOR, SINGLE_SIZES, LARGEST_SEEN = "posterior", "single sizes", "largest seen"
EXPERTS = (POSTERIOR, SINGLE_SIZES, LARGEST_SEEN)

_FAILURE_PRICE = 1.0  # in units of what the task needs
_COST_MOST = 100.0  # of one value: one surprise must not decide for ever
_VALUES_MOST = 200.0  # older costs fade
# What the bound of the largest peak is, in units of it: from one value, from two, from more. A line
# through one or two values may reserve twenty times too much, and cost more than a few failures.
_TIMES_LARGEST = (3.0, 4.0, 1.2)
CAPPED_BELOW = len(_TIMES_LARGEST)  # values: before, nothing was scored


class Bounds(NamedTuple):
    """The bound of each expert; None: the expert does not apply."""

    posterior: float
    single_sizes: float | None = None
    largest_seen: float | None = None


class Costs:
    """What each expert would have cost, and what the choice among them has cost."""

    def __init__(self) -> None:
        self._costs = [0.0] * len(EXPERTS)
        self.paid, self.n = 0.0, 0.0

    @property
    def by_expert(self) -> dict[str, float]:
        """By expert, in units of what the tasks needed."""
        return dict(zip(EXPERTS, self._costs, strict=True))

    @property
    def regret(self) -> float:
        """How much more the choice has cost than the best expert, for each value."""
        return max(0.0, self.paid - min(self._costs)) / self.n if self.n else 0.0

    def expert(self, applies: Sequence[bool]) -> str:
        """The one that has cost least, of those that apply. The first of equal ones."""
        places = [place for place, does in enumerate(applies) if does]
        return EXPERTS[min(places, key=self._costs.__getitem__)]

    def add(self, bounds: Bounds, actual: float) -> None:
        """Score all experts. One that does not apply costs what the posterior costs."""
        expert = self.expert([bound is not None for bound in bounds])
        costs = [_cost(bounds.posterior if bound is None else bound, actual) for bound in bounds]
        self._costs = [one + more for one, more in zip(self._costs, costs, strict=True)]
        self.paid += costs[EXPERTS.index(expert)]
        self.n += 1
        if self.n > _VALUES_MOST:
            self._discount(_VALUES_MOST / self.n)

    def merge(self, other: Costs) -> None:
        self._costs = [one + more for one, more in zip(self._costs, other._costs, strict=True)]
        self.paid += other.paid
        self.n += other.n

    def _discount(self, factor: float) -> None:
        self._costs = [cost * factor for cost in self._costs]
        self.paid *= factor
        self.n *= factor

    def to_list(self) -> list[float]:
        return [*self._costs, self.paid, self.n]

    @classmethod
    def parse(cls, saved: Any) -> Costs:
        """From a file; None: of an earlier version."""
        self = cls()
        if saved is not None:
            *self._costs, self.paid, self.n = parse_row(saved, len(EXPERTS) + 2, "costs")
        return self


def bound_of_largest(largest_peak: float, n: int) -> float:
    """n: values seen."""
    return _TIMES_LARGEST[min(n, len(_TIMES_LARGEST)) - 1] * largest_peak


def _cost(bound: float, actual: float) -> float:
    bound, actual = max(bound, 1.0), max(actual, 1.0)
    if actual <= bound:
        return min(bound / actual, _COST_MOST)
    attempts = math.ceil(math.log2(actual / bound))
    reserved = bound * (2.0 ** (attempts + 1) - 1)
    return min(reserved / actual + _FAILURE_PRICE, _COST_MOST)
