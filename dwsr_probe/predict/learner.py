"""The learner of one kind of memory of one task name: cases of exact values, censored values, and
scores of past forecasts. task.py has one learner per kind."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from dwsr_probe.predict.calibration import Calibrated, Scores
from dwsr_probe.predict.cases import CaseSample
from dwsr_probe.predict.censored import CensoredValue, undominated
from dwsr_probe.predict.posterior import posterior
from dwsr_probe.predict.sizes import (
    ALL_INPUTS,
    BYTES_MOST,
    axis_count,
    non_negative_int,
    parse_inputs,
    parse_numbers,
    sizes_of,
)
from dwsr_probe.predict.unseen import UnseenCounts

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from dwsr_probe.predict.cases import CaseTable
    from dwsr_probe.predict.mixture import LowerBound, Mixture, Predictive
    from dwsr_probe.predict.sizes import Arrays, Features
    from dwsr_probe.predict.unseen import Unseen

# Bytes below which a difference means nothing: an arena of Python's allocator, pages, the
# granularity of the GPU pool, the header of an object.
FLOORS = {"alloc": 512 << 10, "rss": 1 << 20, "gpu": 4096, "output": 512}
_VALUES_MOST = 1000.0  # exact values that count; older ones fade
_VALUES_AFTER_CHANGE = 0.5  # the weight of the past once a task has changed, in values
_AXIS_COUNTS_MOST = 8
# A forecast from fewer exact values is not scored.
_SCORED_FROM = 3
# A score counts in full from so many exact values on. Before, the deviation of a forecast is a
# guess, and one surprise would widen bounds twentyfold for long.
_FULL_WEIGHT_FROM = 20
_RENEW_FACTOR = 1.5  # the posterior for scoring is renewed when n has grown by this factor
_NOISE_GROWTH = 1.5  # of sigma at such a renewal, from which on past scores are out of date
_IMPLIED_PROBABILITY = 0.999  # P(y > bound) from which on a bound carries no information
_CONTRADICTED_PROBABILITY = 1e-4  # P(y > bound) below which the task must have changed
# The drift is the exponentially smoothed score: weight of the newest score, the value at which
# scores are clipped, and the drift above which the task has changed.
_DRIFT_WEIGHT, _DRIFT_CLIP, _DRIFT_MOST = 0.3, 6.0, 4.0
_BOUND_LEVEL = 0.99  # of ScoredForecast.bound
# Beyond so many times the largest inputs seen, trust is fair at most; beyond its square, low.
_FAR_RATIO = 10.0
_UNSEEN_SHARE = 0.01  # of tasks whose own peak may miss memory; up to it the 99 % bound holds


class Observation(NamedTuple):
    """An exact value of a task that finished. output_bytes: what the task returned.
    expected_features: with the output as it was estimated before, whose standard deviation is
    output_deviation. A forecast is scored by what was known when it was made."""

    arrays: Arrays
    bytes: int
    output_bytes: int
    expected_features: Features
    output_deviation: float


class ScoredForecast(NamedTuple):
    """A forecast, and the value that it was compared with. bound: 99 %. reward: the log score. n:
    exact values known before."""

    predicted: float
    bound: float
    actual: float
    reward: float
    n: int


class Learner:
    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.floor = FLOORS[kind]
        self.cases = CaseSample()
        self.scores = Scores()
        self.censored: list[CensoredValue] = []
        self.n = 0  # exact values, ever
        self.shared_count = 0  # of them: values that include other tasks' memory
        self.unseen_counts = UnseenCounts()  # tasks that have no exact value
        self.largest_bytes = 0  # of the inputs of one task
        self.least_per_output = math.inf  # peak by output, of the task with the least
        self.axis_counts: set[int] = set()  # of the largest inputs
        self.drift = 0.0  # smoothed score: far from zero when forecasts err on one side
        self.changed_at: int | None = None  # n when the task was last seen to have changed
        # Scoring has a posterior of its own: `predict` must not change the scores.
        self._scoring_posterior: Mixture | None = None
        self._renew_at_n = 0.0  # n at which the posterior for scoring is computed again
        # Given the censored values; and given the running tasks as well. None: to be computed.
        self._posterior: Mixture | None = None
        self._running_posterior: tuple[Sequence[LowerBound], Mixture] | None = None

    # -- learn

    def learn(
        self,
        observed: Observation,
        bounds: Callable[[], Sequence[LowerBound]],
        pooled: Scores,
    ) -> ScoredForecast | None:
        """Learn an exact value. bounds: gives the censored values as lower bounds. pooled: scores
        of all tasks. Returns None while there are too few values to score."""
        scored = None
        if self.n >= _SCORED_FROM:
            mixture = self._scoring_posterior
            if mixture is None or self.n >= self._renew_at_n:
                mixture = self._renew_scoring(self._infer(bounds()), pooled)
            predictive = self.predictive(
                mixture,
                observed.arrays,
                observed.expected_features,
                observed.output_deviation,
            )
            reward = predictive.log_density(observed.bytes) + math.log(max(observed.bytes, 1))
            scored = self._scored(predictive, observed.bytes, reward, pooled)
            self._calibrate(predictive, observed.bytes, pooled)
        sizes, version = sizes_of(observed.arrays), self.cases.version
        self.cases.add(sizes, observed.output_bytes, observed.bytes)
        self.n += 1
        self._fade()
        self.largest_bytes = max(self.largest_bytes, sizes.total)
        if observed.output_bytes:
            ratio = observed.bytes / observed.output_bytes
            self.least_per_output = min(self.least_per_output, ratio)
        axes = axis_count(observed.arrays)
        if axes is not None and len(self.axis_counts) < _AXIS_COUNTS_MOST:
            self.axis_counts.add(axes)
        if self.cases.version != version:
            self.invalidate()
        return scored

    def _renew_scoring(self, mixture: Mixture, pooled: Scores) -> Mixture:
        """Forecasts that did not know how large the noise is have scores that say nothing about
        those that follow."""
        before = self._scoring_posterior
        if before is not None and mixture.sigma_mean > _NOISE_GROWTH * before.sigma_mean:
            self.scores.forget_outliers(pooled)
        self._scoring_posterior, self._renew_at_n = mixture, self.n * _RENEW_FACTOR
        return mixture

    def _fade(self) -> None:
        """Now and then, because it takes long."""
        if self.cases.n > 1.1 * _VALUES_MOST:
            self.cases.discount(_VALUES_MOST / self.cases.n)

    def _scored(
        self, predictive: Predictive, actual: float, reward: float, pooled: Scores
    ) -> ScoredForecast:
        bound = float(Calibrated(predictive, self.scores, pooled).quantile(_BOUND_LEVEL))
        return ScoredForecast(predictive.mean, bound, actual, reward, self.n)

    def _calibrate(self, predictive: Predictive, y: float, pooled: Scores) -> None:
        z = (y - predictive.mean) / predictive.deviation
        weight = min(1.0, self.n / _FULL_WEIGHT_FROM)
        self.scores.add(z, weight)
        pooled.add(z, weight)
        clipped = max(-_DRIFT_CLIP, min(_DRIFT_CLIP, z))
        self.drift = (1 - _DRIFT_WEIGHT) * self.drift + _DRIFT_WEIGHT * clipped
        if abs(self.drift) > _DRIFT_MOST:
            self._forget_past(pooled)

    def _forget_past(self, pooled: Scores) -> None:
        """The task has changed: what was learned before counts little."""
        self.scores.forget_outliers(pooled)
        self.cases.discount(min(1.0, _VALUES_AFTER_CHANGE / max(self.cases.n, 1e-9)))
        self.drift, self.changed_at, self._renew_at_n = 0.0, self.n, 0

    def learn_censored(
        self,
        value: CensoredValue,
        features: Features,
        bounds: Sequence[LowerBound],
        pooled: Scores,
    ) -> ScoredForecast:
        """Learn a lower bound, which is kept. bounds: the censored values so far."""
        predictive = self.predictive(self.posterior(bounds), value.arrays, features)
        probability = float(predictive.survival(value.bytes))
        scored = self._scored(predictive, value.bytes, math.log(max(probability, 1e-300)), pooled)
        if self.n >= _SCORED_FROM and probability < _CONTRADICTED_PROBABILITY:
            self._forget_past(pooled)
        self.censored = undominated([*self.censored, value])
        if value.is_tight or probability < _IMPLIED_PROBABILITY:
            self._scoring_posterior = None
        self.invalidate()
        return scored

    def learn_unseen(self, reason: str, value: CensoredValue | None) -> bool:
        """Count a task whose own peak may miss memory. value: what it took at least; None: not
        known. Returns whether the value should be learned as a censored one: it is news, and there
        are exact values that it may contradict. With none it is only kept."""
        self.unseen_counts.add(reason, value is not None)
        if value is None or value.bytes <= 0:
            return False
        kept = undominated([*self.censored, value])
        if kept == self.censored:
            return False
        if self.n >= _SCORED_FROM:
            return True
        self.censored, self._scoring_posterior = kept, None
        self.invalidate()
        return False

    # -- predict

    @property
    def unseen(self) -> Unseen:
        return self.unseen_counts.among(self.n)

    def makes_its_output(self) -> bool:
        """Whether every task took as much as it returned, so that the next one will, too."""
        return 1 <= self.least_per_output < math.inf

    def least_bytes(self, arrays: Arrays) -> float:
        """The largest lower bound of a task whose inputs were no larger than these; 0: none."""
        input_bytes = sum(array.nbytes for array in arrays)
        return max(
            (value.bytes for value in self.censored if value.input_bytes <= input_bytes),
            default=0.0,
        )

    def posterior(
        self, bounds: Sequence[LowerBound] = (), running: Sequence[LowerBound] = ()
    ) -> Mixture:
        """bounds: of tasks that ended early. running: of tasks that run now."""
        if self._posterior is None:
            self._posterior = self._infer(bounds)
        if not running:
            return self._posterior
        if self._running_posterior is None or not _same_objects(
            self._running_posterior[0], running
        ):
            informative, least = self._informative_bounds(self._posterior, running)
            table = self._table()
            if table is not None and least < _CONTRADICTED_PROBABILITY and self.n >= _SCORED_FROM:
                table = table.discounted_to(_VALUES_AFTER_CHANGE)
            mixture = (
                posterior(table, self.floor, [*bounds, *informative])
                if informative
                else self._posterior
            )
            self._running_posterior = running, mixture
        return self._running_posterior[1]

    def _infer(self, bounds: Sequence[LowerBound]) -> Mixture:
        table = self._table()
        mixture = posterior(table, self.floor)
        informative = self._informative_bounds(mixture, bounds)[0] if bounds else []
        return posterior(table, self.floor, informative) if informative else mixture

    def _table(self) -> CaseTable | None:
        return self.cases.table() if len(self.cases) else None

    def _informative_bounds(
        self, mixture: Mixture, bounds: Sequence[LowerBound]
    ) -> tuple[list[LowerBound], float]:
        """The bounds that the mixture does not imply; and the least P(y > bound) of all."""
        probabilities = mixture.probabilities_above(
            bounds, [self.size_ratio(bound.features) for bound in bounds]
        )
        informative = [
            bound
            for bound, probability in zip(bounds, probabilities, strict=True)
            if bound.is_tight or probability < _IMPLIED_PROBABILITY
        ]
        return informative, probabilities.min()

    def invalidate(self) -> None:
        """Drop the posteriors. They are computed again when they are needed."""
        self._posterior = self._running_posterior = None

    def predictive(
        self, mixture: Mixture, arrays: Arrays, features: Features, output_deviation: float = 0.0
    ) -> Predictive:
        """For these inputs and their size features, not calibrated."""
        if self.has_unseen_axes(arrays):
            mixture = mixture.without_axes()
        return mixture.predict(features, self.size_ratio(features), output_deviation)

    def size_ratio(self, features: Features) -> float:
        """How many times larger than the largest inputs seen."""
        return features[ALL_INPUTS] / self.largest_bytes if self.largest_bytes else 1.0

    def has_unseen_axes(self, arrays: Arrays) -> bool:
        """Has the largest input a number of axes that was never seen, or no shape although shapes
        were seen? Functions of single axes would mean something else."""
        return bool(arrays and self.axis_counts) and axis_count(arrays) not in self.axis_counts

    def trust(self, arrays: Arrays, mixture: Mixture) -> tuple[str, tuple[str, ...]]:
        """A word of forecast.TRUST, and notes on why it is no better."""
        noise, sigma = self.cases.noise_deviation(self.floor), mixture.sigma_mean
        input_bytes = sum(array.nbytes for array in arrays)
        notes = []
        if self.n == 0 and self.censored:
            notes.append("bounds-only")
        if noise is not None and noise > 0.05:
            notes.append("value-dependent")
        elif self.n >= 5 and sigma > 0.05:
            notes.append("non-linear")
        if self.changed_at is not None and self.n - self.changed_at < 20:
            notes.append("drifting")
        if self.n and input_bytes > 1.5 * self.largest_bytes:
            notes.append("extrapolating")
        if self.n > 1 and arrays and self.cases.has_one_size():
            notes.append("one-size")
        if 2 * self.shared_count > self.n > 0:
            notes.append("shared")
        if self.unseen.share > _UNSEEN_SHARE:
            notes.append("unseen")
        if not arrays:
            notes.append("no-inputs")
        if self.has_unseen_axes(arrays):
            notes.append("no-shape")
        if self.scores.n < 99:
            notes.append("uncalibrated")
        if self.n == 0:
            return ("low" if self.censored else "none"), tuple(notes)
        doubts = {
            "value-dependent",
            "non-linear",
            "drifting",
            "shared",
            "unseen",
            "no-shape",
            "one-size",
        }
        far = input_bytes > _FAR_RATIO * self.largest_bytes
        if far:
            doubts.add("extrapolating")
        if (
            self.n < _SCORED_FROM
            or sigma > 0.2
            or (far and "one-size" in notes)
            or input_bytes > _FAR_RATIO**2 * self.largest_bytes
            or ("no-shape" in notes and mixture.probability_of_axes() > 0.5)
        ):
            return "low", tuple(notes)
        return ("fair" if doubts & {*notes} or self.n < 10 else "good"), tuple(notes)

    # -- merge and save

    def merge(self, other: Learner) -> None:
        self.cases.merge(other.cases)
        self._fade()
        self.scores.merge(other.scores)
        self.censored = undominated(self.censored + other.censored)
        since_change = min(
            (
                learner.n - learner.changed_at
                for learner in (self, other)
                if learner.changed_at is not None
            ),
            default=None,
        )
        self.n += other.n
        self.changed_at = None if since_change is None else self.n - since_change
        self.shared_count += other.shared_count
        self.unseen_counts.merge(other.unseen_counts)
        self.largest_bytes = max(self.largest_bytes, other.largest_bytes)
        self.least_per_output = min(self.least_per_output, other.least_per_output)
        self.axis_counts = set(sorted(self.axis_counts | other.axis_counts)[:_AXIS_COUNTS_MOST])
        self._scoring_posterior = None
        self.invalidate()

    def to_dict(self) -> dict[str, Any]:
        return {
            "cases": self.cases.to_dict(),
            "scores": self.scores.counts.tolist(),
            "killed": [
                [value.arrays, float(value.bytes), value.is_tight] for value in self.censored
            ],
            "n": self.n,
            "shared": self.shared_count,
            "unseen": self.unseen_counts.to_dict(),
            "largest_bytes": self.largest_bytes,
            "per_output": None if math.isinf(self.least_per_output) else self.least_per_output,
            "axes": sorted(self.axis_counts),
            "drift": self.drift,
            "changed_at": self.changed_at,
        }

    @classmethod
    def from_dict(cls, kind: str, saved: dict[str, Any]) -> Learner:
        """ValueError if to_dict cannot have given this: a forecast from it would not be a
        number."""
        self = cls(kind)
        self.cases = (
            CaseSample.from_dict(saved["cases"])
            if "cases" in saved
            else CaseSample.from_sums(saved["scalars"], saved["vectors"])
        )
        self.scores.counts[...] = parse_numbers(saved["scores"], self.scores.counts.shape, "scores")
        self.censored = undominated(map(_parse_censored, saved["killed"]))
        self.n = non_negative_int(saved["n"], "n")
        self.shared_count = non_negative_int(saved["shared"], "shared")
        self.unseen_counts = UnseenCounts.from_dict(saved.get("unseen"))
        self.largest_bytes = non_negative_int(
            saved["largest_bytes"], "largest_bytes", 64 * BYTES_MOST
        )
        # Of a model that an earlier version saved it is not known.
        per_output = saved.get("per_output", 0)
        if per_output is not None:
            self.least_per_output = float(parse_numbers([per_output], (1,), "per_output")[0])
        self.axis_counts = {
            non_negative_int(axes, "axes") for axes in saved["axes"][:_AXIS_COUNTS_MOST]
        }
        self.drift = float(np.clip(saved["drift"], -_DRIFT_CLIP, _DRIFT_CLIP))
        if saved["changed_at"] is not None:
            self.changed_at = non_negative_int(saved["changed_at"], "changed_at")
        if math.isnan(self.drift) or (self.n > 0) != (len(self.cases) > 0):
            raise ValueError("a damaged model: n")
        return self


def _same_objects(one: Sequence[object], other: Sequence[object]) -> bool:
    return [*map(id, one)] == [*map(id, other)]


def _parse_censored(saved: Any) -> CensoredValue:
    arrays, bound, is_tight = saved
    inputs = [
        {"shape": shape, "nbytes": non_negative_int(nbytes, "bytes"), "dtype": dtype}
        for shape, nbytes, dtype in arrays
    ]
    return CensoredValue(
        parse_inputs(inputs), float(non_negative_int(bound, "a bound")), bool(is_tight)
    )
