"""The learner of one kind of memory of one group: cases of exact values, censored values, and what
is inferred from them. scoring.py compares its forecasts with what became of them. task.py has one
learner per kind."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from dwsr_probe.predict.calibration import Calibrated
from dwsr_probe.predict.case import CaseKey
from dwsr_probe.predict.cases import CaseSample
from dwsr_probe.predict.censored import CensoredValue, undominated
from dwsr_probe.predict.experts import (
    CAPPED_BELOW,
    LARGEST_SEEN,
    SINGLE_SIZES,
    bound_of_largest,
)
from dwsr_probe.predict.first_calls import COMPARED_FROM, Settled, settle
from dwsr_probe.predict.fitted import ParamNames, fit, names_in
from dwsr_probe.predict.mixed import Mixed, Possible, joined
from dwsr_probe.predict.moments import FirstMoments
from dwsr_probe.predict.params import Given, parse_params, values_of
from dwsr_probe.predict.scoring import (
    BOUND_LEVEL,
    SCORED_FROM,
    VALUES_AFTER_CHANGE,
    ScoredForecast,
    Scoring,
)
from dwsr_probe.predict.sizes import (
    ALL_INPUTS,
    BYTES_MOST,
    axis_count,
    non_negative_int,
    parse_inputs,
    parse_row,
    size_features,
    sizes_of,
)
from dwsr_probe.predict.unseen import UnseenCounts

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from dwsr_probe.predict.calibration import Scores
    from dwsr_probe.predict.fitted import Fitted
    from dwsr_probe.predict.mixture import LowerBound, Mixture, Predictive
    from dwsr_probe.predict.outputs import OutputEstimate
    from dwsr_probe.predict.params import Params
    from dwsr_probe.predict.scoring import Observation
    from dwsr_probe.predict.sizes import Arrays, Features
    from dwsr_probe.predict.unseen import Unseen

# Bytes below which a difference means nothing: an arena of Python's allocator, pages, the
# granularity of the GPU pool, the header of an object.
FLOORS = {"alloc": 512 << 10, "rss": 1 << 20, "gpu": 4096, "output": 512}
_AXIS_COUNTS_MOST = 8
_IMPLIED_PROBABILITY = 0.999  # P(y > bound) from which on a bound carries no information
_CONTRADICTED_PROBABILITY = 1e-4  # P(y > bound) below which the task must have changed
_KILLED_TIMES = 1.5  # a killed task is taken to need so many times what it had
_SEVERAL_DEVIATION = 0.5  # of tasks that may be several operations, relative


class Learner:
    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.floor = FLOORS[kind]
        self.cases = CaseSample()
        self.cases_with_params = CaseSample()  # of tasks that have some
        self.param_names = ParamNames()
        self.scoring = Scoring()
        self.censored: list[CensoredValue] = []
        self.n = 0  # exact values, ever
        self.shared_count = 0  # of them: values that include other tasks' memory
        self.unseen_counts = UnseenCounts()  # tasks that have no exact value
        self.largest_bytes = 0  # of the inputs of one task
        self.least_per_output = math.inf  # peak by output, of the task with the least
        self.axis_counts: set[int] = set()  # of the largest inputs
        self._settled: tuple[tuple[Any, ...], Settled] | None = None  # by states of the cases
        # Given the censored values; and given the running tasks as well. None: to be computed.
        self._posterior: Fitted | None = None
        self._running_posterior: tuple[Sequence[LowerBound], Fitted] | None = None

    def features(self, given: Given, output_bytes: int) -> Features:
        """The size functions, and the parameters that this learner knows."""
        found = size_features(given.arrays, output_bytes)
        if not self.param_names:
            return found
        return np.concatenate((found, values_of(given.params, self.param_names)))

    # -- learn

    def learn(
        self,
        observed: Observation,
        bounds: Callable[[], Sequence[LowerBound]],
        pooled: Scores,
    ) -> ScoredForecast | None:
        """Learn an exact value. bounds: gives the censored values as lower bounds. pooled: scores
        of all tasks. Returns None while there are too few values to score."""
        arrays, params = observed.given
        scored = None
        if self.n >= SCORED_FROM:
            scored = self.scoring.compare(self, observed, bounds, pooled)
        version = self.cases.version
        key = CaseKey(sizes_of(arrays), observed.output_bytes, (), observed.output_kind)
        first = (
            None
            if observed.first_kept is None
            else FirstMoments.of(observed.bytes, observed.first_kept)
        )
        self.cases.add(key, observed.bytes, first)
        if params:
            self.cases_with_params.add(key._replace(params=params), observed.bytes, first)
        self.n += 1
        if self.cases.first_n and 0 < self.cases.n - self.cases.first_n <= COMPARED_FROM:
            self.scoring.renew_soon()
        self.largest_bytes = max(self.largest_bytes, key.sizes.total)
        if observed.output_bytes:
            ratio = observed.bytes / observed.output_bytes
            self.least_per_output = min(self.least_per_output, ratio)
        axes = axis_count(arrays)
        if axes is not None and len(self.axis_counts) < _AXIS_COUNTS_MOST:
            self.axis_counts.add(axes)
        if self.cases.version != version:
            self.invalidate()
        return scored

    def learn_censored(
        self,
        value: CensoredValue,
        estimate: OutputEstimate,
        bounds: Sequence[LowerBound],
        pooled: Scores,
    ) -> ScoredForecast:
        """Learn a lower bound, which is kept. estimate: of the output. bounds: the censored values
        so far."""
        shares = self.shares(self.posterior(bounds), value.given, estimate)
        predictive = joined(shares)
        probability = float(predictive.survival(value.bytes))
        reward = math.log(max(probability, 1e-300))
        bound = float(self.calibrated(shares, pooled).quantile(BOUND_LEVEL))
        scored = ScoredForecast(predictive.mean, bound, value.bytes, reward, self.n)
        if self.n >= SCORED_FROM and probability < _CONTRADICTED_PROBABILITY:
            self.scoring.forget_past(self, pooled)
        self.censored = undominated([*self.censored, value])
        if value.is_tight or probability < _IMPLIED_PROBABILITY:
            self.scoring.invalidate()
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
        if self.n >= SCORED_FROM:
            return True
        self.censored = kept
        self.scoring.invalidate()
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

    def least_input_bytes(self) -> int:
        """Of the cases."""
        return min((size for size, *_ in self.seen()), default=0)

    def largest_peak(self) -> float:
        """The largest mean of a case."""
        return max((mean for _, mean, _ in self.seen()), default=0.0)

    def know_params(self, params: Params) -> bool:
        """Of an exact value, before it is learned. Returns whether vectors of features made before
        are out of date."""
        return self.param_names.add(names_in(params))

    def mixture(self, fitted: Fitted, features: Features) -> Mixture:
        """What answers a question with these size features: with derived functions, unless past
        forecasts were better without."""
        found, single = fitted.given(features), fitted.single_sizes
        if found is not fitted.plain or single is None:
            return found
        return single if self.scoring.costs.expert((True, True, False)) == SINGLE_SIZES else found

    def reserve_most(self, given: Given) -> float:
        """No more than this should be reserved: the bound of the largest peak, with few values
        always, later if it would have cost less than others."""
        bound = self.bound_of_largest(given)
        if bound is None:
            return math.inf
        if self.n < CAPPED_BELOW or self.scoring.costs.expert((True, False, True)) == LARGEST_SEEN:
            return bound
        return math.inf

    def bound_of_largest(self, given: Given) -> float | None:
        """By the largest peak seen; None where it says nothing: for inputs with shapes."""
        if not self.n or self.axis_counts or axis_count(given.arrays) is not None:
            return None
        killed = max((value.bytes for value in self.censored), default=0.0)
        return bound_of_largest(max(self.largest_peak(), _KILLED_TIMES * killed), self.n)

    def posterior(
        self, bounds: Sequence[LowerBound] = (), running: Sequence[LowerBound] = ()
    ) -> Fitted:
        """bounds: of tasks that ended early. running: of tasks that run now."""
        if self._posterior is None:
            self._posterior = self.infer(bounds)
        if not running:
            return self._posterior
        if self._running_posterior is None or not _same_objects(
            self._running_posterior[0], running
        ):
            informative, least = self._informative_bounds(self._posterior, running)
            tables = self.settled.tables
            if least < _CONTRADICTED_PROBABILITY and self.n >= SCORED_FROM:
                tables = tables.discounted_to(VALUES_AFTER_CHANGE)
            fitted = (
                fit(tables, self.floor, [*bounds, *informative]) if informative else self._posterior
            )
            self._running_posterior = running, fitted
        return self._running_posterior[1]

    def infer(self, bounds: Sequence[LowerBound]) -> Fitted:
        tables = self.settled.tables
        fitted = self.settled.fitted or fit(tables, self.floor)
        informative = self._informative_bounds(fitted, bounds)[0] if bounds else []
        return fit(tables, self.floor, informative) if informative else fitted

    @property
    def settled(self) -> Settled:
        """The cases that count: without first calls that are above the other tasks."""
        of = self.cases.state, self.cases_with_params.state, len(self.param_names)
        if self._settled is None or self._settled[0] != of:
            found = settle(self.cases, self.cases_with_params, self.param_names, self.floor)
            self._settled = of, found
        return self._settled[1]

    def seen(self) -> list[tuple[int, float, int]]:
        """(input bytes, mean, count) of each size of the inputs that counts, smallest first."""
        _ = self.settled
        return self.cases.seen()

    def _informative_bounds(
        self, fitted: Fitted, bounds: Sequence[LowerBound]
    ) -> tuple[list[LowerBound], float]:
        """The bounds that the posterior does not imply; and the least P(y > bound) of all."""
        probabilities = fitted.probabilities_above(
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

    def shares(
        self,
        fitted: Fitted,
        given: Given,
        estimate: OutputEstimate,
        output_kind: str = "",
    ) -> list[tuple[float, Predictive]]:
        """What is predicted for these inputs, not calibrated: one answer, or the shares of several
        variants (variants.py) and the answer of each. estimate: of the output."""
        found = []
        for part in fitted.parts(axis_count(given.arrays), output_kind):
            output = estimate
            if part.variant is not None and estimate.guess is not None:
                output = estimate.guess.of(given, part.variant.output_kind)
            features = self.features(given, output.bytes)
            mixture = self.mixture(part.fitted, features)
            predictive = self.predictive(mixture, given, features, output, part.largest_bytes)
            found.append((part.share, predictive))
        return found

    def calibrated(self, shares: Sequence[tuple[float, Predictive]], pooled: Scores) -> Calibrated:
        """pooled: scores of all tasks."""
        scores = self.scoring.scores
        found = [Possible(share, Calibrated(one, scores, pooled)) for share, one in shares]
        return found[0].calibrated if len(found) == 1 else Mixed(found)

    def predictive(
        self,
        mixture: Mixture,
        given: Given,
        features: Features,
        output: OutputEstimate,
        largest_bytes: float | None = None,
    ) -> Predictive:
        """Of one mixture. output: as it was estimated for the features. largest_bytes: of the
        inputs that it was made from; None: of all."""
        if self.has_unseen_axes(given.arrays):
            mixture = mixture.without_axes
        ratio = self.size_ratio(features, largest_bytes)
        return mixture.predict(features, ratio, output.deviation, output.guess)

    def size_ratio(self, features: Features, largest_bytes: float | None = None) -> float:
        """How many times larger than the largest inputs seen."""
        largest = self.largest_bytes if largest_bytes is None else largest_bytes
        return features[ALL_INPUTS] / largest if largest else 1.0

    def has_unseen_axes(self, arrays: Arrays) -> bool:
        """Has the largest input a number of axes that was never seen, or no shape although shapes
        were seen? Functions of single axes would mean something else."""
        return bool(arrays and self.axis_counts) and axis_count(arrays) not in self.axis_counts

    def may_be_several(self, fitted: Fitted) -> bool:
        """Whether tasks with the same inputs and parameters needed so different amounts that they
        may be several operations, which nothing tells apart."""
        noise = self.noise_deviation()
        return noise is not None and min(noise, fitted.sigma_mean) > _SEVERAL_DEVIATION

    def noise_deviation(self) -> float | None:
        """Among tasks with the same inputs and parameters; among those with the same inputs, if
        parameters were not repeated."""
        noise = self.cases_with_params.noise_deviation(self.floor)
        return self.cases.noise_deviation(self.floor) if noise is None else noise

    def params_of(self, fitted: Fitted) -> tuple[str, ...]:
        """Names of the parameters that peaks depend on."""
        if fitted.with_params is None:
            return ()
        return tuple(self.param_names[place] for place in fitted.with_params.params)

    # -- merge and save

    def merge(self, other: Learner) -> None:
        self.cases.merge(other.cases)
        self.cases_with_params.merge(other.cases_with_params)
        self.param_names.add(other.param_names)
        self.scoring.merge(other.scoring, self.n, other.n)
        self.censored = undominated(self.censored + other.censored)
        self.n += other.n
        self.shared_count += other.shared_count
        self.unseen_counts.merge(other.unseen_counts)
        self.largest_bytes = max(self.largest_bytes, other.largest_bytes)
        self.least_per_output = min(self.least_per_output, other.least_per_output)
        self.axis_counts = set(sorted(self.axis_counts | other.axis_counts)[:_AXIS_COUNTS_MOST])
        self.invalidate()

    def to_dict(self) -> dict[str, Any]:
        return {
            "cases": self.cases.to_dict(),
            "cases_with_params": (
                self.cases_with_params.to_dict() if len(self.cases_with_params) else None
            ),
            "param_names": list(self.param_names),
            **self.scoring.to_dict(),
            "killed": [
                [
                    value.given.arrays,
                    float(value.bytes),
                    value.is_tight,
                    dict(value.given.params),
                ]
                for value in self.censored
            ],
            "n": self.n,
            "shared": self.shared_count,
            "unseen": self.unseen_counts.to_dict(),
            "largest_bytes": self.largest_bytes,
            "per_output": None if math.isinf(self.least_per_output) else self.least_per_output,
            "axes": sorted(self.axis_counts),
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
        if saved.get("cases_with_params") is not None:
            self.cases_with_params = CaseSample.from_dict(saved["cases_with_params"])
            self.param_names.add(names_in(parse_params(dict.fromkeys(saved["param_names"], 0))))
        self.scoring = Scoring.from_dict(saved)
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
            self.least_per_output = parse_row([per_output], 1, "per_output")[0]
        self.axis_counts = {
            non_negative_int(axes, "axes") for axes in saved["axes"][:_AXIS_COUNTS_MOST]
        }
        if (self.n > 0) != (len(self.cases) > 0):
            raise ValueError("a damaged model: n")
        return self


def _same_objects(one: Sequence[object], other: Sequence[object]) -> bool:
    return [*map(id, one)] == [*map(id, other)]


def _parse_censored(saved: Any) -> CensoredValue:
    arrays, bound, is_tight, *params = saved
    inputs = [
        {"shape": shape, "nbytes": non_negative_int(nbytes, "bytes"), "dtype": dtype}
        for shape, nbytes, dtype in arrays
    ]
    return CensoredValue(
        Given(parse_inputs(inputs), parse_params(params[0]) if params else ()),
        float(non_negative_int(bound, "a bound")),
        bool(is_tight),
    )
