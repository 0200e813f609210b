"""What tasks with inputs of about the same size took, beside what the fit says of them. A bound
must not be below what such tasks have needed: a fit may be too low in a range of sizes, and tasks
of one size may need one of several amounts. calibration.py uses it.

Of m tasks, about one in m + 1 of the following ones needs more than all of them. So the largest
ratio of peak and fit is a bound of m / (m + 1), the second largest of (m - 1) / (m + 1), and so on;
from a hundred tasks on this would be the 99 % bound without any model.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from dwsr_probe.predict.sizes import ALL_INPUTS

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from dwsr_probe.predict.case import CaseTable
    from dwsr_probe.predict.sizes import Features

    Floats = NDArray[np.float64]

# Inputs are near if they are so many times larger or smaller at most. If there are none, they are
# near if they are so many times further away than the nearest ones.
_NEAR = math.log(3.0)
# Spreads of the ratios, by their number, beyond the largest of them. A spread is the distance from
# the ratio that this share of the tasks reached.
_INFLATE, _LOW = 6.0, 0.9
_LEAST = 1e-9  # of a count that is not zero
_AT_ONCE = 200  # questions, so that arrays of cases and questions stay in the cache
_OFFSET_SHARE = 0.1  # of the mean peak
_FORGOTTEN = 0.5  # tasks: a case that counts no more is of the time before a change
_SPREAD = 1.5  # standard deviations above its mean at which a case that was seen often counts


class Nearby(NamedTuple):
    """ratios: of peaks to the fit, the largest first. above: how many tasks had at least such a
    ratio. n: tasks. offset: bytes that are added to peaks and to fits before they are compared: of
    a fit near zero a ratio says nothing."""

    ratios: Floats
    above: Floats
    n: float
    offset: float = 0.0

    def quantile(self, q: float, mean: float) -> float:
        """A bound that is exceeded with probability 1 - q; 0 if so much cannot be known. mean: what
        the fit says of the task in question."""
        place = int(self.above.searchsorted((1 - q) * (self.n + 1), side="right")) - 1
        if not self.n:
            return 0.0
        return (mean + self.offset) * float(self.ratios[max(place, 0)]) - self.offset

    def survival(self, y: float, mean: float) -> float:
        """The least probability of needing more than y."""
        if not self.n or mean + self.offset <= 0:
            return 0.0
        # Of a bound that is one of the ratios, rounding must not make a task more.
        ratio = (y + self.offset) / (mean + self.offset) * (1 + 1e-9)
        above = int(np.searchsorted(-self.ratios, -ratio))
        return float(self.above[above - 1]) / (self.n + 1) if above else 0.0


NOTHING_NEARBY = Nearby(np.zeros(0), np.zeros(0), 0.0)


class Neighbours:
    """The cases of one fit."""

    def __init__(self, table: CaseTable, fitted: Floats, floor: int) -> None:
        """fitted: what the fit says of each case, then of each of the extremes. floor: bytes below
        which a difference means nothing."""
        typical = float(table.counts @ table.mean / table.counts.sum())
        self._offset = max(floor, _OFFSET_SHARE * typical)
        deviation = np.sqrt(np.where(table.counts > 1, table.variance, 0.0))
        peaks = np.minimum(table.mean + _SPREAD * deviation, table.largest)
        counts, sizes = table.counts, table.features[:, ALL_INPUTS]
        counts = np.where(counts > min(_FORGOTTEN, counts.max() / 2), counts, 0.0)
        if (extremes := table.extremes) is not None:
            peaks = np.concatenate((peaks, extremes.mean))
            counts = np.concatenate((counts, extremes.counts))
            sizes = np.concatenate((sizes, extremes.features[:, ALL_INPUTS]))
        ratio = (peaks + self._offset) / (np.maximum(fitted, 0.0) + self._offset)
        order = np.argsort(-ratio, kind="stable")
        order = order[counts[order] > 0]
        self._ratio, self._counts = ratio[order], counts[order]
        self._size = np.log(1 + sizes[order])

    def of(self, features: Features) -> Nearby:
        distance = np.abs(self._size - math.log(1 + features[ALL_INPUTS]))
        least = float(distance.min())
        near = distance <= (_NEAR if least <= _NEAR else least + _NEAR)
        ratios, above = self._ratio[near], self._counts[near].cumsum()
        n = float(above[-1])
        if n > 1 and len(ratios) > 1:
            # The largest of few is not the largest of many. The least tenth is left out: one tiny
            # value says nothing about large ones.
            ratios[0] += _INFLATE * (ratios[0] - ratios[np.searchsorted(above, _LOW * n)]) / n
        return Nearby(ratios, above, n, self._offset)

    def quantiles(self, sizes: Floats, q: float, means: Floats) -> Floats:
        """As Nearby.quantile, for many questions. sizes: bytes of their inputs."""
        pieces = [slice(n, n + _AT_ONCE) for n in range(0, len(sizes), _AT_ONCE)]
        return np.concatenate([self._quantiles(sizes[one], q, means[one]) for one in pieces])

    def _quantiles(self, sizes: Floats, q: float, means: Floats) -> Floats:
        distance = np.abs(self._size[:, None] - np.log(1 + sizes))
        least = distance.min(axis=0)
        near = distance <= np.where(least <= _NEAR, _NEAR, least + _NEAR)
        above = (near * self._counts[:, None]).cumsum(axis=0)
        n, columns = above[-1], np.arange(len(sizes))
        few = (above <= (1 - q) * (n + 1)).sum(axis=0)
        reached = np.where(few > 0, above[few - 1, columns], 0.0)
        # The case at which sums reach a number for the first time is near.
        chosen = (above < np.maximum(reached, _LEAST)).sum(axis=0)
        first, low = (above < _LEAST).sum(axis=0), (above < _LOW * n).sum(axis=0)
        is_inflated = (chosen == first) & (n > 1)
        spread = np.where(is_inflated, self._ratio[first] - self._ratio[low], 0.0)
        ratios = self._ratio[chosen] + _INFLATE * spread / np.maximum(n, 1)
        return (means + self._offset) * ratios - self._offset
