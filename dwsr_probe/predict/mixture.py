"""Weighted bivariate normals of the constant c and the slope k of y = (c + k * s_j)(1 + e), and the
predictive distribution of y that follows from them. posterior.py makes them.

A lower bound multiplies the mixture by P(y > bound). Each normal is then replaced by the normal
with the same moments. The condition k > 0 is applied in the same way.
"""

from __future__ import annotations

import math
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from dwsr_probe.predict import normal
from dwsr_probe.predict.nearby import NOTHING_NEARBY, Nearby, Neighbours
from dwsr_probe.predict.param_functions import ParamFunctions
from dwsr_probe.predict.sizes import FUNCTION_COUNT, OUTPUT_COEFFICIENT, USES_AXES

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from numpy.typing import ArrayLike, NDArray

    from dwsr_probe.predict.case import CaseTable
    from dwsr_probe.predict.derived import DerivedFunctions
    from dwsr_probe.predict.outputs import OutputGuess

    Floats = NDArray[np.float64]


class LowerBound(NamedTuple):
    """A censored value: the task with these size features needs more than `bytes`. is_tight: not
    much more, because an allocation that failed named its size. axes: of the largest input."""

    features: Floats
    bytes: float
    is_tight: bool = False
    axes: int | None = None


class _ComponentMoments(NamedTuple):
    """Moments of y in each component of a mixture: mean, variance, the part of it that is noise,
    covariances with c and k."""

    mean: Floats
    variance: Floats
    noise_variance: Floats
    cov_c: Floats
    cov_k: Floats


class Mixture:
    """Weighted bivariate normals of (c, k), each with its size function and sigma.

    mean: of c and of k, (2, components). cov: the variance of c, the covariance, the variance of k,
    (3, components). function: the index j of each component. extrapolation_deviation: relative
    standard deviation per factor of e beyond the largest input seen."""

    def __init__(
        self,
        log_weight: Floats,
        mean: Floats,
        cov: Floats,
        function: NDArray[np.intp],
        sigma: Floats,
        floor: int,
        extrapolation_deviation: float = 0.0,
        derived: DerivedFunctions | ParamFunctions | None = None,
        cases: CaseTable | None = None,
    ) -> None:
        self.log_weight, self.mean, self.cov = log_weight, mean, cov
        self.function, self.sigma = function, sigma
        self.floor, self.extrapolation_deviation = floor, extrapolation_deviation
        self.derived, self.cases = derived, cases
        self._last: tuple[Floats, tuple[Any, ...], Predictive] | None = None
        self._last_neighbours: tuple[OutputGuess | None, Neighbours] | None = None

    def sizes(self, features: Floats) -> Floats:
        """The size function of each component. features: one vector, or an array of vectors."""
        if self.derived is not None:
            sizes = features[..., :FUNCTION_COUNT]
            features = np.concatenate((sizes, self.derived.values(features)), axis=-1)
        return features[self.function] if features.ndim == 1 else features[..., self.function]

    @property
    def has_levels(self) -> bool:
        return isinstance(self.derived, ParamFunctions) and self.derived.has_levels

    @property
    def params(self) -> list[int]:
        """Places of the parameters that it needs, among those of the learner."""
        return self.derived.used.tolist() if isinstance(self.derived, ParamFunctions) else []

    def knows(self, features: Floats) -> Any:
        """Whether the features have the parameters that it needs. features: one vector, or an array
        of vectors."""
        if not isinstance(self.derived, ParamFunctions):
            return np.ones(features.shape[:-1], bool)[()]
        given = features[..., FUNCTION_COUNT:]
        if self.derived.used[-1] >= given.shape[-1]:
            return np.zeros(features.shape[:-1], bool)[()]
        return self.derived.knows(given)

    def moments(self, features: Floats) -> _ComponentMoments:
        """features: one vector, or an array of vectors."""
        s = self.sizes(features)
        (c, k), (variance_c, covariance, variance_k) = self.mean, self.cov
        mean = c + k * s
        cov_c = variance_c + covariance * s
        cov_k = covariance + variance_k * s
        line_variance = np.maximum(cov_c + cov_k * s, 0)
        noise_variance = self._sigma_squared * (mean**2 + self.floor**2)
        return _ComponentMoments(mean, line_variance + noise_variance, noise_variance, cov_c, cov_k)

    @cached_property
    def _sigma_squared(self) -> Floats:
        return self.sigma**2

    def means_of(self, features: Floats) -> Floats:
        """The mean of y without noise. features: one vector, or an array of vectors."""
        return (self.mean[0] + self.mean[1] * self.sizes(features)) @ self.weight

    def condition_on_lower_bound(self, features: Floats, bound: float) -> None:
        """Multiply by P(y > bound)."""
        y = self.moments(features)
        self._truncate(y.mean - bound, y.variance, y.cov_c, y.cov_k)

    def truncate_slope_at_zero(self) -> None:
        """Multiply by P(k > 0)."""
        self._truncate(self.mean[1], self.cov[2], self.cov[1], self.cov[2])

    def _truncate(self, distance: Floats, variance: Floats, cov_c: Floats, cov_k: Floats) -> None:
        """Keep the side above a bound, for a variable whose mean lies `distance` above the bound;
        then match the moments."""
        deviation = np.sqrt(variance)
        z = np.maximum(distance / deviation, -1e3)  # further below, all is equally impossible
        log_probability = normal.log_cdf(z)
        ratio = np.exp(-0.5 * z * z - normal.LOG_SQRT_2PI - log_probability)  # inverse Mills ratio
        # The product is between 0 and 1 in exact arithmetic.
        shrinkage = np.clip(ratio * (ratio + z), 0, 1) / variance
        self.log_weight = self.log_weight + log_probability
        self.mean = self.mean + (ratio / deviation) * np.stack((cov_c, cov_k))
        self._reduce_covariance(shrinkage, cov_c, cov_k)

    def _reduce_covariance(self, by: Floats, cov_c: Floats, cov_k: Floats) -> None:
        least = 1e-12 * self.cov  # rounding must not make a variance negative
        self.cov = self.cov - by * np.stack((cov_c * cov_c, cov_c * cov_k, cov_k * cov_k))
        self.cov[0::2] = np.maximum(self.cov[0::2], least[0::2])

    def condition_on_uncertain_value(self, features: Floats, y: float, deviation: float) -> None:
        """Multiply by a normal density of y."""
        mean, variance, _, cov_c, cov_k = self.moments(features)
        variance = variance + deviation**2
        residual = y - mean
        self.log_weight = (
            self.log_weight - 0.5 * residual * residual / variance - 0.5 * np.log(variance)
        )
        self.mean = self.mean + (residual / variance) * np.stack((cov_c, cov_k))
        self._reduce_covariance(1 / variance, cov_c, cov_k)

    def pruned(self, log_ratio: float, most: int | None = None) -> Mixture:
        """Without the components whose log weight is more than `log_ratio` below the best, and at
        most `most` of them. Weights are normalised."""
        log_weight = self.log_weight - self.log_weight.max()
        keep = np.flatnonzero(log_weight > -log_ratio)
        if most is not None and len(keep) > most:
            keep = keep[np.argsort(-log_weight[keep], kind="stable")[:most]]
        return self._subset(keep)

    @property
    def _uses_axes(self) -> NDArray[np.bool_]:
        if self.derived is None:
            return USES_AXES[self.function]
        return np.append(USES_AXES, self.derived.uses_axes)[self.function]

    @cached_property
    def without_axes(self) -> Mixture:
        """Without the components whose size functions use axes, if there are others."""
        keep = np.flatnonzero(~self._uses_axes)
        return self._subset(keep) if len(keep) else self

    def probability_of_axes(self) -> float:
        """Probability that the size function uses axes."""
        return float(self.weight[self._uses_axes].sum())

    @property
    def _output_coefficient(self) -> Floats:
        if self.derived is None:
            return OUTPUT_COEFFICIENT[self.function]
        return np.append(OUTPUT_COEFFICIENT, self.derived.output_coefficient)[self.function]

    def _subset(self, keep: NDArray[np.intp]) -> Mixture:
        weight = np.exp(self.log_weight[keep] - self.log_weight[keep].max())
        return Mixture(
            np.log(weight / weight.sum()),
            self.mean[:, keep],
            self.cov[:, keep],
            self.function[keep],
            self.sigma[keep],
            self.floor,
            self.extrapolation_deviation,
            self.derived,
            self.cases,
        )

    @cached_property
    def weight(self) -> Floats:
        return np.exp(self.log_weight)

    @cached_property
    def sigma_mean(self) -> float:
        return float(self.weight @ self.sigma)

    def predict(
        self,
        features: Floats,
        size_ratio: float = 1.0,
        output_deviation: float = 0.0,
        output_guess: OutputGuess | None = None,
    ) -> Predictive:
        """The predictive distribution of y. size_ratio: how many times larger the inputs are than
        any seen; above 1 the variance grows. output_deviation: standard deviation of the bytes that
        the task will return, where they are an estimate, and output_guess how it was made."""
        # Many tasks have the inputs of the task before them, and thus the same vector.
        asked = size_ratio, output_deviation, output_guess
        if self._last is None or self._last[0] is not features or self._last[1] != asked:
            y = self.expected(features, size_ratio, output_deviation)
            neighbours = self.neighbours(output_guess)
            nearby = NOTHING_NEARBY if neighbours is None else neighbours.of(features)
            deviations = np.sqrt(y.variance)
            found = Predictive(self.weight, y.mean, deviations, y.noise_variance, nearby)
            self._last = features, asked, found
        return self._last[2]

    def expected(
        self, features: Floats, size_ratio: Any, output_deviation: Any
    ) -> _ComponentMoments:
        """The same in each component. features: one vector; or an array of vectors, with a column
        of size ratios and one of deviations."""
        y = self.moments(features)
        mean, variance = y.mean, y.variance
        ratios = self._size_ratios(features, size_ratio)
        is_within = ratios is size_ratio and isinstance(size_ratio, float) and size_ratio <= 1
        if not is_within:
            log_ratios = np.log(np.maximum(ratios, 1))
            variance = variance + self._extrapolation_variance(log_ratios) * mean**2
        if not isinstance(output_deviation, float) or output_deviation:
            output_contribution = self._output_coefficient * output_deviation * self.mean[1]
            variance = variance + output_contribution**2
        return y._replace(variance=variance)

    def neighbours(self, output_guess: OutputGuess | None = None) -> Neighbours | None:
        """What the cases took beside what would have been said of them. output_guess: where outputs
        are estimated; of the cases, too, or their ratios would not show what that may miss."""
        if self.cases is None:
            return None
        if self._last_neighbours is None or self._last_neighbours[0] != output_guess:
            tables = [one for one in (self.cases, self.cases.extremes) if one is not None]
            fitted = [
                self.means_of(one.features if output_guess is None else output_guess.of_cases(one))
                for one in tables
            ]
            found = Neighbours(self.cases, np.concatenate(fitted), self.floor)
            self._last_neighbours = output_guess, found
        return self._last_neighbours[1]

    def _size_ratios(self, features: Floats, size_ratio: Any) -> Any:
        """How many times larger than any seen the size of each component is; that of the inputs if
        it is the same for all."""
        if not isinstance(self.derived, ParamFunctions):
            return size_ratio
        ratios = np.empty((*features.shape[:-1], FUNCTION_COUNT + len(self.derived.first)))
        ratios[..., :FUNCTION_COUNT] = size_ratio
        largest = np.maximum(self.derived.largest, 1e-9)
        ratios[..., FUNCTION_COUNT:] = np.maximum(
            size_ratio, self.derived.values(features) / largest
        )
        return ratios[..., self.function]

    def size_ratio(self, features: Floats, size_ratio: Any) -> Any:
        """The same for the whole mixture."""
        ratios = self._size_ratios(features, size_ratio)
        return size_ratio if ratios is size_ratio else ratios @ self.weight

    def _extrapolation_variance(self, log_ratio: Any) -> Any:
        """Relative variance at `log_ratio` factors of e beyond the largest input seen: the noise of
        each component, and the possibility of another line."""
        return (self.sigma**2 + self.extrapolation_deviation**2) * log_ratio**2

    def probabilities_above(
        self, bounds: Sequence[LowerBound], size_ratios: Sequence[float]
    ) -> Floats:
        """P(y > bound) of each bound, as `predict` would give it."""
        mean, variance, *_ = self.moments(np.array([bound.features for bound in bounds]))
        log_ratios = np.log(np.maximum(size_ratios, 1))[:, None]
        variance = variance + self._extrapolation_variance(log_ratios) * mean**2
        limits = np.array([[bound.bytes] for bound in bounds])
        return normal.cdf((mean - limits) / np.sqrt(variance)) @ self.weight


class Predictive:
    """Weighted normals of y: means and deviations of the components, mean and deviation of
    the mixture. noise_variance: the part of the variances that is the noise of one task. nearby:
    what tasks of this size took."""

    def __init__(
        self,
        weight: Floats,
        means: Floats,
        deviations: Floats,
        noise_variance: Floats | float = 0.0,
        nearby: Nearby = NOTHING_NEARBY,
    ) -> None:
        self.weight, self.means, self.deviations = weight, means, deviations
        self.noise_variance, self.nearby = noise_variance, nearby
        self.mean = float(weight.dot(means))
        variance = float(weight.dot(deviations**2 + means**2)) - self.mean**2
        self.deviation = math.sqrt(max(variance, 1e-12 * self.mean**2 + 1))

    @property
    def shared_deviations(self) -> Floats:
        """The part of the deviations that is the same for all tasks of the group."""
        return np.sqrt(np.maximum(self.deviations**2 - self.noise_variance, 0))

    def cdf(self, y: ArrayLike) -> Any:
        """P(y' <= y), of a number or an array of numbers."""
        return (
            normal.cdf((np.asarray(y, float)[..., None] - self.means) / self.deviations)
            @ self.weight
        )

    def survival(self, y: ArrayLike) -> Any:
        """P(y' > y)."""
        return (
            normal.cdf((self.means - np.asarray(y, float)[..., None]) / self.deviations)
            @ self.weight
        )

    def log_density(self, y: float) -> float:
        z = (y - self.means) / self.deviations
        logs = -0.5 * z * z - np.log(self.deviations) - normal.LOG_SQRT_2PI + np.log(self.weight)
        largest = logs.max()
        return float(largest + np.log(np.exp(logs - largest).sum()))


def certain(y: float) -> Predictive:
    """All probability at one value."""
    return Predictive(np.ones(1), np.array([y]), np.ones(1))
