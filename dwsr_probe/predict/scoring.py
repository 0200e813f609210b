"""Comparison of each exact value with the forecast before it: what the forecasts of one learner are
calibrated by, what several bounds would have cost, and whether the task has changed. learner.py has
one Scoring."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

from dwsr_probe.predict.calibration import Calibrated, Scores
from dwsr_probe.predict.experts import Bounds, Costs
from dwsr_probe.predict.first_calls import COMPARED_FROM, tolerance
from dwsr_probe.predict.mixed import joined
from dwsr_probe.predict.sizes import axis_count, non_negative_int
from dwsr_probe.predict.variant import UNKNOWN_VARIANT, Variant

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from dwsr_probe.predict.fitted import Fitted
    from dwsr_probe.predict.learner import Learner
    from dwsr_probe.predict.mixture import LowerBound, Predictive
    from dwsr_probe.predict.outputs import OutputEstimate
    from dwsr_probe.predict.params import Given

SCORED_FROM = 3  # a forecast from fewer exact values is not scored
# A score counts in full from so many exact values on. Before, the deviation of a forecast is a
# guess, and one surprise would widen bounds twentyfold for long.
_FULL_WEIGHT_FROM = 20
_RENEW_FACTOR = 1.5  # the posterior for scoring is renewed when n has grown by this factor
_NOISE_GROWTH = 1.5  # of sigma at such a renewal, from which on past scores are out of date
VALUES_AFTER_CHANGE = 0.5  # the weight of the past once a task has changed, in values
# The drift is the exponentially smoothed score: weight of the newest score, the value at which
# scores are clipped, and the drift above which the task has changed.
_DRIFT_WEIGHT, _DRIFT_CLIP, _DRIFT_MOST = 0.3, 6.0, 4.0
_DRIFTS_MOST = 64
BOUND_LEVEL = 0.99  # of ScoredForecast.bound


class Observation(NamedTuple):
    """An exact value of a task that finished. output_bytes: what the task returned. estimate: of
    the output, before; a forecast is scored by what was known when it was made. first_kept: what a
    first call (first_calls.py) kept; None: it is none. output_kind: see variant.py."""

    given: Given
    bytes: int
    output_bytes: int
    estimate: OutputEstimate
    first_kept: int | None = None
    output_kind: str = ""


class ScoredForecast(NamedTuple):
    """A forecast, and the value that it was compared with. bound: 99 %. reward: the log score. n:
    exact values known before."""

    predicted: float
    bound: float
    actual: float
    reward: float
    n: int


class Scoring:
    """changed_at: number of values when the task was last seen to have changed. _drifts: by
    variant, the smoothed score, far from zero when forecasts err on one side."""

    def __init__(self) -> None:
        self.scores = Scores()
        self.costs = Costs()
        self._drifts: dict[Variant, float] = {}
        self.changed_at: int | None = None
        # A posterior of its own: `predict` must not change the scores.
        self._posterior: Fitted | None = None
        self._renew_at_n = 0.0  # number of values at which it is computed again
        self._without_first = False  # it leaves out first calls

    def compare(
        self,
        learner: Learner,
        observed: Observation,
        bounds: Callable[[], Sequence[LowerBound]],
        pooled: Scores,
    ) -> ScoredForecast:
        """A value that is about to be learned. bounds, pooled: as in Learner.learn."""
        fitted = self._posterior
        if fitted is None or learner.n >= self._renew_at_n:
            fitted = self._renew(learner, learner.infer(bounds()), pooled)
        variant = Variant(axis_count(observed.given.arrays), observed.output_kind)
        asked = observed.given, observed.estimate
        shares = learner.shares(fitted, *asked)
        predictive = joined(shares)
        reward = predictive.log_density(observed.bytes) + math.log(max(observed.bytes, 1))
        bound = float(learner.calibrated(shares, pooled).quantile(BOUND_LEVEL))
        if fitted.variants is not None:  # the bounds of each are calibrated
            predictive = joined(learner.shares(fitted, *asked, observed.output_kind))
        if self._is_of_first_calls(learner, predictive, observed):
            pass
        elif self._is_new(learner, observed, variant):
            # That the forecast is then far off says nothing about others.
            self._drifts[variant], self._renew_at_n = 0.0, 0
        else:
            self._score_experts(learner, bound, fitted, observed, pooled)
            self._calibrate(learner, predictive, observed.bytes, variant, pooled)
        return ScoredForecast(joined(shares).mean, bound, observed.bytes, reward, learner.n)

    def renew_soon(self) -> None:
        """The next value is compared with all that is known then."""
        self._renew_at_n = 0

    def invalidate(self) -> None:
        self._posterior = None

    def _is_of_first_calls(
        self, learner: Learner, predictive: Predictive, observed: Observation
    ) -> bool:
        """Whether the difference from the forecast is that between first calls and other tasks. It
        says nothing about the forecasts that follow."""
        first_n = learner.cases.first_n
        if not first_n and observed.first_kept is None:
            return False
        others_n, more = learner.cases.n - first_n, observed.bytes - predictive.mean
        agrees = tolerance(predictive.mean, predictive.deviation, learner.floor)
        if observed.first_kept is not None:
            return others_n >= COMPARED_FROM and more > agrees
        if abs(more) > agrees and others_n <= first_n + COMPARED_FROM:
            self._renew_at_n = 0  # which first calls count may have changed
            return more < 0
        return False

    def _renew(self, learner: Learner, fitted: Fitted, pooled: Scores) -> Fitted:
        """Forecasts that did not know how large the noise is have scores that say nothing about
        those that follow."""
        before = self._posterior
        if before is not None and fitted.with_params is not None and before.with_params is None:
            self.scores.forget(pooled)
        elif before is not None and fitted.sigma_mean > _NOISE_GROWTH * before.sigma_mean:
            self.scores.forget_outliers(pooled)
        without_first = learner.settled.first_calls.tasks > 0
        if before is not None and without_first and not self._without_first:
            self.scores.forget(pooled)
            self._drifts = {}
        self._without_first = without_first
        self._posterior, self._renew_at_n = fitted, learner.n * _RENEW_FACTOR
        return fitted

    def _score_experts(
        self,
        learner: Learner,
        bound: float,
        fitted: Fitted,
        observed: Observation,
        pooled: Scores,
    ) -> None:
        """Add what each bound would have cost. bound: that of the forecast."""
        features = learner.features(observed.given, observed.estimate.bytes)
        single = fitted.single_sizes
        both: list[float | None] = [bound, None]
        if fitted.variants is not None:  # they have derived functions of their own
            single = None
        if single is not None and fitted.given(features) is fitted.plain:
            is_single = learner.mixture(fitted, features) is single
            predictive = learner.predictive(
                fitted.plain if is_single else single,
                observed.given,
                features,
                observed.estimate,
            )
            other = float(Calibrated(predictive, self.scores, pooled).quantile(BOUND_LEVEL))
            both = [other, bound] if is_single else [bound, other]
        largest = learner.bound_of_largest(observed.given)
        posterior, single_sizes = both
        assert posterior is not None
        bounds = Bounds(posterior, single_sizes, largest and min(bound, largest))
        self.costs.add(bounds, observed.bytes)

    @staticmethod
    def _is_new(learner: Learner, observed: Observation, variant: Variant) -> bool:
        """Whether parameters or the variant were hardly seen, and others were."""
        params = observed.given.params
        if params and learner.cases_with_params.is_new_value(params):
            return True
        return learner.cases.is_new_variant(variant)

    def _calibrate(
        self,
        learner: Learner,
        predictive: Predictive,
        y: float,
        variant: Variant,
        pooled: Scores,
    ) -> None:
        z = (y - predictive.mean) / predictive.deviation
        weight = min(1.0, learner.n / _FULL_WEIGHT_FROM)
        self.scores.add(z, weight)
        pooled.add(z, weight)
        clipped = max(-_DRIFT_CLIP, min(_DRIFT_CLIP, z))
        before = self._drifts.get(variant, self._drifts.get(UNKNOWN_VARIANT, 0.0))
        drift = (1 - _DRIFT_WEIGHT) * before + _DRIFT_WEIGHT * clipped
        self._drifts[variant] = drift
        if len(self._drifts) > _DRIFTS_MOST:
            del self._drifts[next(iter(self._drifts))]
        if abs(drift) > _DRIFT_MOST:
            self.forget_past(learner, pooled)

    def forget_past(self, learner: Learner, pooled: Scores) -> None:
        """The task has changed: what was learned before counts little."""
        self.scores.forget_outliers(pooled)
        for cases in (learner.cases, learner.cases_with_params):
            cases.discount(min(1.0, VALUES_AFTER_CHANGE / max(cases.n, 1e-9)))
        self._drifts, self.changed_at, self._renew_at_n = {}, learner.n, 0

    def merge(self, other: Scoring, n: int, other_n: int) -> None:
        """n, other_n: values that were learned by each."""
        self.scores.merge(other.scores)
        self.costs.merge(other.costs)
        since_change = min(
            (
                values - one.changed_at
                for one, values in ((self, n), (other, other_n))
                if one.changed_at is not None
            ),
            default=None,
        )
        self.changed_at = None if since_change is None else n + other_n - since_change
        self.invalidate()

    def to_dict(self) -> dict[str, Any]:
        """A part of the learner's."""
        return {
            "scores": self.scores.to_lists(),
            "costs": self.costs.to_list(),
            "drift": max(self._drifts.values(), key=abs, default=0.0),
            "changed_at": self.changed_at,
        }

    @classmethod
    def from_dict(cls, saved: dict[str, Any]) -> Scoring:
        self = cls()
        self.scores = Scores.parse(saved["scores"])
        self.costs = Costs.parse(saved.get("costs"))
        drift = float(saved["drift"])
        if not abs(drift) <= _DRIFT_CLIP:
            raise ValueError("a damaged model: drift")
        self._drifts[UNKNOWN_VARIANT] = drift
        if saved["changed_at"] is not None:
            self.changed_at = non_negative_int(saved["changed_at"], "changed_at")
        return self
