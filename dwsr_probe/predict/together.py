"""What several tasks need together: `Model.together`.

Tasks of one group are not independent: if the slope is larger than expected, all of them need more.
In each component of the group's posterior, the uncertainty of the line is therefore the same for
all tasks and adds up, and only their noise is independent. Different groups are independent of each
other; their sum is computed from evenly spread quantiles in a fixed random order.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from dwsr_probe.predict.forecast import checked_level
from dwsr_probe.predict.mixed import Mixed
from dwsr_probe.predict.mixture import Predictive

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from numpy.typing import NDArray

    from dwsr_probe.predict.calibration import Calibrated
    from dwsr_probe.predict.forecast import Forecast

_POINTS = 4096  # of a sum over groups


class Member(NamedTuple):
    """A task and the text of its group."""

    group: str
    forecast: Forecast


class Together:
    """Bytes of all tasks together. forecasts: of each task alone, in the order of the questions."""

    def __init__(self, members: Sequence[Member]) -> None:
        self.forecasts = [member.forecast for member in members]
        # By what the components of the predictions belong to. A group may have several posteriors.
        # Of what kind a task of a mixture is does not depend on the others.
        groups: dict[tuple[Any, ...], list[Forecast]] = {}
        for place, (group, forecast) in enumerate(members):
            weight = forecast.calibrated.predictive.weight
            is_mixture = isinstance(forecast.calibrated, Mixed)
            key = group, weight.tobytes(), place if is_mixture else None
            groups.setdefault(key, []).append(forecast)
        self._parts = [_sum_of_group(found) for found in groups.values()]
        self._least = sum(forecast.least_bytes for forecast in self.forecasts)
        self._sums: NDArray[np.float64] | None = None

    @property
    def mean(self) -> float:
        return sum(forecast.mean for forecast in self.forecasts)

    @property
    def is_lower_bound(self) -> bool:
        """Whether one of the forecasts is: then there is no upper bound."""
        return any(forecast.is_lower_bound for forecast in self.forecasts)

    def upper(self, q: float = 0.99) -> float:
        """The quantile of the sum: exceeded with probability 1 - q."""
        checked_level(q)
        if self.is_lower_bound:
            return math.inf
        if len(self._parts) <= 1:
            found = self._parts[0].quantile(q) if self._parts else 0.0
        else:
            found = float(np.quantile(self._spread(), q))
        # At least: one task at its bound, the others at their means.
        one = max((f.upper(q) - f.mean for f in self.forecasts), default=0.0)
        return max(self._least, found, self.mean + one)

    def exceeds(self, limit: float) -> float:
        """Probability that the tasks need more than `limit` together; the least one, if
        `is_lower_bound`."""
        if math.isnan(limit):
            raise ValueError("limit is not a number of bytes")
        if self._least >= limit:
            return 1.0
        if len(self._parts) == 1:
            return self._parts[0].survival(limit)
        return float((self._spread() > limit).mean())

    def _spread(self) -> NDArray[np.float64]:
        if self._sums is None:
            order = np.random.default_rng(0)
            levels = (np.arange(_POINTS) + 0.5) / _POINTS
            self._sums = np.zeros(_POINTS)
            for part in self._parts:
                self._sums += np.maximum(part.quantiles(order.permutation(levels)), 0)
        return self._sums


def _sum_of_group(forecasts: list[Forecast]) -> Calibrated:
    first, *others = (forecast.calibrated for forecast in forecasts)
    if not others:
        return first
    every = [first.predictive, *(other.predictive for other in others)]
    means = np.sum([one.means for one in every], axis=0)
    shared = np.sum([one.shared_deviations for one in every], axis=0)
    noise = sum(one.noise_variance for one in every)
    deviations = np.sqrt(shared**2 + noise)
    return first.of(Predictive(first.predictive.weight, means, deviations, noise))
