"""What a model says about a task that has not run yet, or still runs; and what became of it."""

import math
from dataclasses import dataclass

from dwsr_probe.predict.calibration import Calibrated

TRUST = ("none", "low", "fair", "good")
# that it is like nothing seen: then any size is as likely as any other, so that one half of those
# beyond x are beyond 2x
_SURPRISE = 1e-6


@dataclass(frozen=True)
class Round:
    """One forecast and what it was compared with. censored: it was a lower bound. reward: the
    log score, of the logarithm of the peak, so that no size counts more."""

    task_name: str
    kind: str
    predicted: float
    bound: float  # 99 %
    actual: float
    reward: float
    n: int  # exact values known before
    censored: bool = False


@dataclass(frozen=True)
class Forecast:
    """Bytes. notes: words for what makes it less sure than it could be."""

    task_name: str
    kind: str
    calibrated: Calibrated
    output: dict | None  # of the task, as in the record; None: unknown
    n: int  # exact values it was learned from
    trust: str  # one of TRUST
    notes: tuple = ()

    @property
    def mean(self):
        return max(0.0, self.calibrated.predictive.mean)

    def upper(self, q=0.99):
        """What is exceeded with probability 1 - q."""
        return max(0.0, float(self.calibrated.quantile(_level(q))))

    @property
    def is_trusted(self):
        """Good enough to give advice from."""
        return self.trust in ("fair", "good")

    def promised(self, q=0.99):
        """Were enough forecasts of this task compared with what came to hold it to this level?"""
        return self.calibrated.n >= 1 / (1 - _level(q)) - 1

    def exceeds(self, limit, above=0.0):
        """Probability that it needs more than limit, given that it has needed `above` already."""
        if math.isnan(limit) or math.isnan(above):
            raise ValueError(f"limit and peak are bytes, not {limit!r} and {above!r}")
        if above >= limit:
            return 1.0
        return min(1.0, self._beyond(limit) / self._beyond(above))

    def _beyond(self, y):
        if y <= 0:
            return 1.0
        if math.isinf(y):
            return 0.0
        return float(self.calibrated.above(y)) + _SURPRISE * min(
            1.0, (self.mean + self.calibrated.predictive.deviation) / y
        )


def _level(q):
    if not 0 < q < 1:
        raise ValueError(f"a quantile is between 0 and 1, not {q!r}")
    return q
