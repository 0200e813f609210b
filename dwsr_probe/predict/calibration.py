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
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from dwsr_probe.predict import normal
from dwsr_probe.predict.sizes import parse_numbers, parse_row

if TYPE_CHECKING:
    from typing import Any

    from numpy.typing import NDArray

    from dwsr_probe.predict.mixture import Predictive

    Floats = NDArray[np.float64]

# A bin is as wide as a tenth of its distance from the mean.
EDGES = np.sinh(np.linspace(-3.0, 7.0, 161))
# Where a bound may lie: eight points in each bin.
_PER_BIN = 8
_IN_BINS = EDGES[:-1, None] + np.diff(EDGES)[:, None] * (np.arange(_PER_BIN) / _PER_BIN)
POINTS = np.append(_IN_BINS, EDGES[-1])
_AROUND_GUESS = 4  # points on either side of a guess, among which a bound is searched first
_STEPS = (128, 16, 1)  # points between two that are compared, if the guess was wrong
_SCORES_MOST = 500.0  # older scores fade
_POSTERIOR_WEIGHT, _POOLED_WEIGHT = 60.0, 60.0  # as so many scores
NEARBY_LEVEL = 0.9  # quantiles of this level or more are not below what was seen nearby
ABOVE_MEAN_LEVEL = 0.95  # quantiles of this level or more are not below the mean
_OUTLIER_BINS = np.append(True, np.abs(EDGES) > 6)  # scores that no sound forecast has
_NORMAL_LEVELS = normal.cdf(EDGES)


class Tails(NamedTuple):
    """Scores of a task and of others beside them. n: of the task. total: of both, as they count.
    cumulative: counts at or below each edge. levels: P(score <= edge) for a normal posterior, from
    which a search of the level of another one starts."""

    n: float
    total: float
    cumulative: Floats
    levels: Floats

    def guess(self, q: float) -> int:
        """The place of a quantile among POINTS, if the posterior were normal."""
        edge = max(1, min(int(self.levels.searchsorted(q)), len(EDGES) - 1))
        low, high = self.levels[edge - 1 : edge + 1].tolist()
        share = (q - low) / (high - low) if low < q < high else 0.0
        return (edge - 1) * _PER_BIN + int(share * _PER_BIN) + 1


class Scores:
    """A histogram of scores: of one task name and kind, or of all tasks (pooled)."""

    def __init__(self, counts: Floats | None = None) -> None:
        self.counts: Floats = np.zeros(len(EDGES) + 1) if counts is None else counts
        self._n: float | None = None  # to be computed
        self._changes = 0
        self._tails: tuple[int, Scores, int, Tails] | None = None

    def to_lists(self) -> list[list[Any]]:
        """The numbers of the bins that have scores, and their counts."""
        bins = np.flatnonzero(self.counts)
        return [bins.tolist(), self.counts[bins].tolist()]

    @classmethod
    def parse(cls, saved: Any) -> Scores:
        """From a file; earlier versions saved the counts of all bins. ValueError if to_lists cannot
        have given this."""
        self = cls()
        if len(saved) == len(self.counts):
            self.counts = parse_numbers(saved, self.counts.shape, "scores")
            return self
        bins, counts = saved
        if any(type(bin_) is not int for bin_ in bins) or sorted({*bins}) != bins:
            raise ValueError("a damaged model: scores")
        if bins and not 0 <= bins[0] <= bins[-1] < len(self.counts):
            raise ValueError("a damaged model: scores")
        self.counts[bins] = parse_row(counts, len(bins), "scores")
        return self

    @property
    def n(self) -> float:
        if self._n is None:
            self._n = float(self.counts.sum())
        return self._n

    def add(self, score: float, weight: float = 1.0) -> None:
        self.counts[EDGES.searchsorted(score)] += weight
        self._fade()

    def merge(self, other: Scores) -> None:
        self.counts = self.counts + other.counts
        self._fade()

    def forget(self, pooled: Scores) -> None:
        """Here and in the pooled scores."""
        pooled.counts = np.maximum(pooled.counts - self.counts, 0)
        self.counts = np.zeros_like(self.counts)
        self._changed()
        pooled._changed()

    def forget_outliers(self, pooled: Scores) -> None:
        """Here and in the pooled scores. After a task has changed, the scores of the change say
        nothing about the forecasts that follow."""
        outliers = np.where(_OUTLIER_BINS, self.counts, 0)
        self.counts = self.counts - outliers
        pooled.counts = np.maximum(pooled.counts - outliers, 0)
        self._changed()
        pooled._changed()

    def _changed(self) -> None:
        self._n = None
        self._changes += 1

    def _fade(self) -> None:
        self._changed()
        if (n := self.n) > _SCORES_MOST:
            self.counts *= _SCORES_MOST / n
            self._n = None

    def beside(self, pooled: Scores) -> Tails:
        """The same object until one of both has changed."""
        found = self._tails
        if (
            found is None
            or found[0] != self._changes
            or found[1] is not pooled
            or found[2] != pooled._changes
        ):
            found = self._tails = self._changes, pooled, pooled._changes, self._beside(pooled)
        return found[3]

    def _beside(self, pooled: Scores) -> Tails:
        n = total = self.n
        cumulative = self.counts.cumsum()[:-1]
        # A task's own scores are among the pooled ones: no score must count twice.
        others = np.maximum(pooled.counts - self.counts, 0)
        if (others_n := float(others.sum())) > 0:
            weight = min(others_n, _POOLED_WEIGHT)
            cumulative = cumulative + others.cumsum()[:-1] * (weight / others_n)
            total += weight
        levels = (_POSTERIOR_WEIGHT * _NORMAL_LEVELS + cumulative) / (_POSTERIOR_WEIGHT + total)
        return Tails(n, total, cumulative, levels)


class Calibrated:
    """A Predictive whose tails are those of past forecasts. n: scores of this task."""

    def __init__(self, predictive: Predictive, own: Scores, pooled: Scores) -> None:
        self.predictive, self.tails = predictive, own.beside(pooled)
        self._quantiles: dict[float, float] = {}

    @property
    def n(self) -> float:
        return self.tails.n

    def of(self, predictive: Predictive) -> Calibrated:
        """Another forecast with the same scores."""
        other = copy(self)
        other.predictive, other._quantiles = predictive, {}
        return other

    def quantiles(self, q: Floats) -> Floats:
        """Many quantiles at once, interpolated between the edges of the histogram."""
        levels = np.maximum.accumulate(self.level(EDGES))
        return self.predictive.mean + np.interp(q, levels, EDGES) * self.predictive.deviation

    def level(self, z: Floats) -> Floats:
        """P(y <= mean + z deviations). z: points between the first and the last edge."""
        y = self.predictive.mean + z * self.predictive.deviation
        return with_scores(self.predictive.cdf(y), z, self.tails)

    def quantile(self, q: float) -> float:
        if q not in self._quantiles:
            self._quantiles[q] = self._search(q)
        return self._quantiles[q]

    def _search(self, q: float) -> float:
        """A quantile of 95 % or more is not below the mean: a few improbable components with very
        large means could otherwise raise the mean above the quantile."""
        z = float(POINTS[self._place(q)])
        if q >= ABOVE_MEAN_LEVEL:
            z = max(0.0, z)
        found = self.predictive.mean + z * self.predictive.deviation
        if q >= NEARBY_LEVEL:
            found = max(found, self.predictive.nearby.quantile(q, self.predictive.mean))
        return found

    def _place(self, q: float) -> int:
        """The first of POINTS whose level is at least q, but not the first of all. Few levels are
        compared, because computing one is expensive."""
        guess, last = self.tails.guess(q), len(POINTS) - 1
        low, high = max(0, guess - _AROUND_GUESS), min(last, guess + _AROUND_GUESS)
        levels = self.level(POINTS[low : high + 1])
        if levels[0] < q <= levels[-1]:
            return low + int(levels.searchsorted(q))
        low, high = 0, last
        for step in _STEPS:
            levels = np.maximum.accumulate(self.level(POINTS[low : high + 1 : step]))
            above = max(1, min(int(levels.searchsorted(q)), len(levels) - 1))
            low, high = low + (above - 1) * step, low + above * step
        return high

    def survival(self, y: float) -> float:
        """P(y' > y)."""
        z = (y - self.predictive.mean) / self.predictive.deviation
        scores = 0.0
        if self.tails.total:
            # Scores beyond the last edge are taken to lie at it, as a quantile does.
            of = self.tails
            below = float(np.interp(z, EDGES, of.cumulative, left=0.0, right=of.total))
            scores = max(0.0, of.total - below)
        total = _POSTERIOR_WEIGHT + self.tails.total
        found = (_POSTERIOR_WEIGHT * float(self.predictive.survival(y)) + scores) / total
        seen = self.predictive.nearby.survival(y, self.predictive.mean)
        return max(found, min(seen, 1 - NEARBY_LEVEL))


def with_scores(levels: Floats, z: Floats, tails: Tails) -> Floats:
    """levels: P(y <= mean + z deviations) by the posterior alone."""
    scores = np.interp(z, EDGES, tails.cumulative)
    return (_POSTERIOR_WEIGHT * levels + scores) / (_POSTERIOR_WEIGHT + tails.total)
