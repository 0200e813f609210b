"""Calibration: how far past forecasts were off, so that a bound of 99 % is exceeded once in a
hundred times.

An online conformal method. Each exact value is compared with the forecast made before it was
learned; the score is its distance from the mean in the forecast's standard deviations. Scores are
counted in bins, and a quantile of them says how many deviations a bound must lie above the mean.
Two substitutes are added, each with the weight of at most sixty scores: the pooled scores of all
tasks, and the posterior itself. They dominate while a task has few scores, and lose influence
gradually. Counts are additive, so models merge. Old counts fade, so changes are followed.
"""

from __future__ import annotations

from copy import copy
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from typing import Any

    from numpy.typing import NDArray

    from dwsr_probe.predict.mixture import Predictive

    Floats = NDArray[np.float64]

# A bin is as wide as a tenth of its distance from the mean.
EDGES = np.sinh(np.linspace(-3.0, 7.0, 161))
_COARSE_STEP = 16  # edges between two points of the first search
_BIN_FRACTIONS = np.arange(9) / 8  # points of the last search, within a bin
_SCORES_MOST = 500.0  # older scores fade
_POSTERIOR_WEIGHT, _POOLED_WEIGHT = 60.0, 60.0  # as so many scores
_ABOVE_MEAN_LEVEL = 0.95  # quantiles of this level or more are not below the mean
_OUTLIER_BINS = np.append(True, np.abs(EDGES) > 6)  # scores that no sound forecast has


class Scores:
    """A histogram of scores: of one task name and kind, or of all tasks (pooled)."""

    def __init__(self, counts: Floats | None = None) -> None:
        self.counts: Floats = np.zeros(len(EDGES) + 1) if counts is None else counts

    @property
    def n(self) -> float:
        return float(self.counts.sum())

    def add(self, score: float, weight: float = 1.0) -> None:
        self.counts[np.searchsorted(EDGES, score)] += weight
        self._fade()

    def merge(self, other: Scores) -> None:
        self.counts = self.counts + other.counts
        self._fade()

    def forget_outliers(self, pooled: Scores) -> None:
        """Here and in the pooled scores. After a task has changed, the scores of the change say
        nothing about the forecasts that follow."""
        outliers = np.where(_OUTLIER_BINS, self.counts, 0)
        self.counts = self.counts - outliers
        pooled.counts = np.maximum(pooled.counts - outliers, 0)

    def _fade(self) -> None:
        if (n := self.counts.sum()) > _SCORES_MOST:
            self.counts *= _SCORES_MOST / n

    def cumulative(self) -> Floats:
        """Counts at or below each edge."""
        return np.cumsum(self.counts)[:-1]


class Calibrated:
    """A Predictive whose tails are those of past forecasts. n: scores of this task."""

    def __init__(self, predictive: Predictive, own: Scores, pooled: Scores) -> None:
        self.predictive, self.n = predictive, own.n
        cumulative, total = own.cumulative(), own.n
        # A task's own scores are among the pooled ones: no score must count twice.
        others = np.maximum(pooled.counts - own.counts, 0)
        if (n := float(others.sum())) > 0:
            weight = min(n, _POOLED_WEIGHT)
            cumulative = cumulative + np.cumsum(others)[:-1] * (weight / n)
            total = total + weight
        self._cumulative, self._total = cumulative, total
        self._quantiles: dict[float, float] = {}

    def of(self, predictive: Predictive) -> Calibrated:
        """Another forecast with the same scores."""
        other = copy(self)
        other.predictive, other._quantiles = predictive, {}
        return other

    def quantiles(self, q: Floats) -> Floats:
        """Many quantiles at once, interpolated between the edges of the histogram."""
        levels = np.maximum.accumulate(self.level(EDGES))
        return self.predictive.mean + np.interp(q, levels, EDGES) * self.predictive.deviation

    def level(self, z: Any) -> Any:
        """P(y <= mean + z deviations), of a number or an array."""
        y = self.predictive.mean + np.asarray(z, float) * self.predictive.deviation
        scores = np.interp(z, EDGES, self._cumulative, left=0.0) if self._total else 0.0
        total = _POSTERIOR_WEIGHT + self._total
        return (_POSTERIOR_WEIGHT * self.predictive.cdf(y) + scores) / total

    def quantile(self, q: float) -> float:
        if q not in self._quantiles:
            self._quantiles[q] = self._search(q)
        return self._quantiles[q]

    def _search(self, q: float) -> float:
        """Searched in three steps, each among a few points, because computing a level is expensive.
        A quantile of 95 % or more is not below the mean: a few improbable components with very
        large means could otherwise raise the mean above the quantile."""
        points = EDGES[::_COARSE_STEP]
        place = self._last_below(q, points)
        points = EDGES[place * _COARSE_STEP : (place + 1) * _COARSE_STEP + 1]
        place = self._last_below(q, points)
        points = points[place] + (points[place + 1] - points[place]) * _BIN_FRACTIONS
        z = points[self._last_below(q, points) + 1]
        if q >= _ABOVE_MEAN_LEVEL:
            z = max(0.0, z)
        return self.predictive.mean + z * self.predictive.deviation

    def _last_below(self, q: float, points: Floats) -> int:
        """The index of the last point whose level is below q, but not the last point of all."""
        levels = np.maximum.accumulate(self.level(points))
        return max(0, min(int(np.searchsorted(levels, q)), len(points) - 1) - 1)

    def survival(self, y: float) -> float:
        """P(y' > y)."""
        z = (y - self.predictive.mean) / self.predictive.deviation
        scores = 0.0
        if self._total:
            below = float(np.interp(z, EDGES, self._cumulative, left=0.0))
            scores = max(0.0, self._total - below)
        total = _POSTERIOR_WEIGHT + self._total
        return (_POSTERIOR_WEIGHT * float(self.predictive.survival(y)) + scores) / total
