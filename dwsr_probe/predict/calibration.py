"""How far past forecasts were off, in their own deviations, so that a bound of 99 % is exceeded
one time in a hundred.

A conformal factor, online: each value is compared with the forecast made before it was learned,
the scores are counted in bins, and a quantile of all scores says how many deviations a bound
must lie above the mean. While a task has few scores, those of all tasks and the posterior itself
count as well (as so many scores), so that nothing jumps.
Counts are additive and fade: models merge, and what changed is followed.
"""

import numpy as np

# Bins are as fine as a tenth of their distance from the mean.
EDGES = np.sinh(np.linspace(-3.0, 7.0, 161))
_COARSE, _FRACTIONS = 16, np.arange(9) / 8
_MOST = 500.0  # scores that count; older ones fade
_POSTERIOR, _OTHERS = 60.0, 60.0  # as so many scores
_HIGH = 0.95
_FAR = np.append(True, np.abs(EDGES) > 6)  # bins of scores that no forecast should have


class Scores:
    def __init__(self, counts=None):
        self.counts = np.zeros(len(EDGES) + 1) if counts is None else counts

    @property
    def n(self):
        return float(self.counts.sum())

    def add(self, z, weight=1.0):
        self.counts[np.searchsorted(EDGES, z)] += weight
        self._fade()

    def merge(self, other):
        self.counts = self.counts + other.counts
        self._fade()

    def forget_surprises(self, others):
        """Here, and among those of all: what a change was off by says nothing of what comes
        after it."""
        surprises = np.where(_FAR, self.counts, 0)
        self.counts = self.counts - surprises
        others.counts = np.maximum(others.counts - surprises, 0)

    def _fade(self):
        if (n := self.counts.sum()) > _MOST:
            self.counts *= _MOST / n

    def below(self):
        """Counts at or below each edge."""
        return np.cumsum(self.counts)[:-1]


class Calibrated:
    """A Predictive whose tails are those of past forecasts."""

    def __init__(self, predictive, own, others):
        self.predictive, self.n = predictive, own.n
        below, total = own.below(), own.n
        # its own are among those of all: one surprise must not count twice
        rest = np.maximum(others.counts - own.counts, 0)
        if (n := float(rest.sum())) > 0:
            weight = min(n, _OTHERS)
            below, total = below + np.cumsum(rest)[:-1] * (weight / n), total + weight
        self._below, self._total = below, total

    def level(self, z):
        """P(y <= mean + z deviations), of a number or an array."""
        y = self.predictive.mean + np.asarray(z, float) * self.predictive.deviation
        scores = np.interp(z, EDGES, self._below, left=0.0) if self._total else 0.0
        return (_POSTERIOR * self.predictive.below(y) + scores) / (_POSTERIOR + self._total)

    def quantile(self, q):
        """Found in three steps, each among a few points: a level costs more than a step. A high
        one is not below the mean, even where few believed parts, far away, raise that."""
        points = EDGES[::_COARSE]
        at = self._reaches(q, points)
        points = EDGES[at * _COARSE : (at + 1) * _COARSE + 1]
        at = self._reaches(q, points)
        points = points[at] + (points[at + 1] - points[at]) * _FRACTIONS
        z = points[self._reaches(q, points) + 1]
        return self.predictive.mean + (max(0.0, z) if q >= _HIGH else z) * self.predictive.deviation

    def _reaches(self, q, points):
        """The last point before the one whose level is q."""
        return max(
            0,
            min(int(np.searchsorted(np.maximum.accumulate(self.level(points)), q)), len(points) - 1)
            - 1,
        )

    def above(self, y):
        """P(y' > y)."""
        z = (y - self.predictive.mean) / self.predictive.deviation
        scores = (
            max(0.0, self._total - float(np.interp(z, EDGES, self._below, left=0.0)))
            if self._total
            else 0.0
        )
        return (_POSTERIOR * float(self.predictive.above(y)) + scores) / (_POSTERIOR + self._total)
