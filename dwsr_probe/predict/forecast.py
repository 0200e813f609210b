"""What a model says about a task that has not run yet, or still runs; and what became of it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dwsr_probe.predict.group import group_of
from dwsr_probe.predict.unseen import NOTHING_UNSEEN, Unseen

if TYPE_CHECKING:
    from dwsr_probe.predict.calibration import Calibrated
    from dwsr_probe.predict.group import Group

TRUST = ("none", "low", "fair", "good")
# Probability that a task is like nothing seen. Then its need has a tail of 1/x: half of the needs
# above x are above 2x.
_NOVELTY_PROBABILITY = 1e-6


@dataclass(frozen=True)
class Round:
    """One forecast and the value that it was compared with. censored: the value was a lower bound.
    reward: the log score, of the logarithm of the peak, so that no size counts more."""

    task_name: str
    kind: str
    predicted: float
    bound: float  # 99 %
    actual: float
    reward: float
    n: int  # exact values known before
    censored: bool = False
    operation: str | None = None
    chain: tuple[str, ...] | None = None

    @property
    def group(self) -> Group:
        return group_of(self.task_name, self.operation, self.chain)


@dataclass(frozen=True)
class Forecast:
    """Bytes. notes: words for what makes the forecast less sure than it could be. unseen: the tasks
    whose own peak may miss memory, or is not known. least_bytes: what a task with smaller inputs
    has taken; or what the task returns, if tasks of its group took that much. guess_bytes: the
    median, if nothing was learned of such tasks. params: names of the parameters that the group's
    peaks depend on. is_beyond: the inputs are of another order of magnitude or kind than any seen,
    so nothing is extrapolated. first_call_bytes: what the first task in a thread has taken in
    addition. It is not in the mean or the bounds, unless it may_be_first: a task that runs in a
    thread that is new to its group. Then the bounds and `exceeds` include it. reserve_most_bytes:
    see `reserve`. is_mixed: the task may be of several kinds (mixed.py); or tasks with the same
    inputs needed amounts so different that they may be several operations."""

    task_name: str
    kind: str
    calibrated: Calibrated
    output: dict[str, Any] | None  # of the task, as in the record; None: unknown
    n: int  # exact values that were learned
    trust: str  # one of TRUST
    notes: tuple[str, ...] = ()
    unseen: Unseen = NOTHING_UNSEEN
    least_bytes: float = 0.0
    guess_bytes: float | None = None
    params: tuple[str, ...] = ()
    is_beyond: bool = False
    reserve_most_bytes: float = math.inf
    first_call_bytes: int = 0
    may_be_first: bool = False
    is_mixed: bool = False

    @property
    def is_lower_bound(self) -> bool:
        """The mean, and the probability to exceed a limit, are at least what is said. There is no
        upper bound: that the task fits cannot be concluded. So it is if the own peaks of most tasks
        may miss memory, or are not known (null): the forecast is then made from the growth of the
        process in tasks that ran alone. And so it is for inputs that are like none seen."""
        return self.unseen.is_most or self.is_beyond

    @property
    def is_unknown(self) -> bool:
        """The same, and nothing was learned: none of these tasks ran alone. `mean` and `exceeds`
        are then those of tasks in general, and say nothing about this one."""
        return self.is_lower_bound and not self.n and not self.least_bytes

    @property
    def mean(self) -> float:
        guess = self.calibrated.predictive.mean if self.guess_bytes is None else self.guess_bytes
        return max(self.least_bytes, guess)

    def upper(self, q: float = 0.99) -> float:
        """The quantile: exceeded with probability 1 - q. Infinite for a lower bound."""
        checked_level(q)
        if self.is_lower_bound:
            return math.inf
        return max(self.least_bytes, 0.0, float(self.calibrated.quantile(q))) + self._added_bytes

    @property
    def _added_bytes(self) -> int:
        return self.first_call_bytes if self.may_be_first else 0

    def reserve(self, q: float = 0.99) -> float:
        """What to reserve if a task that needs more fails and is repeated with twice as much: the
        bound, or less where that has cost less so far (experts.py). Not a quantile."""
        return max(self.least_bytes, min(self.upper(q), self.reserve_most_bytes))

    @property
    def is_trusted(self) -> bool:
        """Good enough to give advice from."""
        return self.trust in ("fair", "good")

    def promised(self, q: float = 0.99) -> bool:
        """Were enough forecasts of this task scored to calibrate this quantile, and was all memory
        seen of enough tasks? Never of a mixture: past tasks do not tell what the next one is."""
        return (
            not self.is_beyond
            and not self.is_mixed
            and self.calibrated.n >= 1 / (1 - checked_level(q)) - 1
            and self.unseen.share <= 1 - q
        )

    def exceeds(self, limit: float, above: float = 0.0) -> float:
        """Probability that the task needs more than `limit`, given that it has needed `above`
        already. Only the least probability, if `is_lower_bound`: 0 does not say that the task
        fits."""
        if math.isnan(limit) or math.isnan(above):
            raise ValueError(f"limit and peak are bytes, not {limit!r} and {above!r}")
        if max(above, self.least_bytes) >= limit:
            return 1.0
        added = self._added_bytes
        return min(1.0, self._survival(limit - added) / self._survival(above - added))

    def _survival(self, y: float) -> float:
        if y <= 0:
            return 1.0
        if math.isinf(y):
            return 0.0
        scale = self.mean + self.calibrated.predictive.deviation
        return float(self.calibrated.survival(y)) + _NOVELTY_PROBABILITY * min(1.0, scale / y)


def checked_level(q: float) -> float:
    if not 0 < q < 1:
        raise ValueError(f"a quantile is between 0 and 1, not {q!r}")
    return q
