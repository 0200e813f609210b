"""The posterior of the model y = (c + k * s_j)(1 + e), given exact values and lower bounds.

y is a peak in bytes and s_j one of the size functions (sizes.py). The noise e has the standard
deviation sigma, so it is relative to y. Unknown are the function j, the slope k, the constant c and
sigma. For each j and each of twelve values of sigma this is a linear regression with the weights
1/y^2. It has a closed form: a bivariate normal of (c, k) and its evidence, both computed from sums
(`SufficientStatistics`). Sums are additive: order does not matter, models merge, and forgetting is
scaling. The posterior is the mixture of all these normals, weighted by evidence (`Mixture`).

Lower bounds come from tasks that still run, were killed or failed. Each multiplies the posterior
with P(y > bound). Each normal is then replaced by the normal with the same moments, bounds in a
fixed order. The condition k > 0 is applied in the same way.

numpy and scipy only. learner.py keeps the statistics; calibration.py uses the predictive
distribution.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from scipy.special import log_ndtr, ndtr

from dwsr_probe.predict.sizes import (
    ALL_INPUTS,
    BYTES_MOST,
    FUNCTION_COUNT,
    LOG_PRIOR,
    OUTPUT_COEFFICIENT,
)

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from numpy.typing import ArrayLike, NDArray

    Floats = NDArray[np.float64]

SIGMAS = np.geomspace(5e-4, 0.9, 12)  # relative residuals of a fit with weights 1/y^2 are below 1
_SIGMA_LOG_PRIOR = -0.5 * (np.log(SIGMAS / 0.01) / 1.3) ** 2
# The prior of k while nothing was seen: bytes needed per byte of input, from operators at large
# (copies 1 to 3, filters 2 to 7, structure tensors 20 and more).
_PRIOR_K = np.array([0.5, 1, 2, 4, 8, 16, 32, 64])
_PRIOR_K_LOG_WEIGHT = -0.5 * (np.log(_PRIOR_K / 3) / 1.1) ** 2
_PRIOR_K_DEVIATION = 0.35  # relative
_PRIOR_SIGMAS = SIGMAS[5:10:2]
_PRIOR_C = 1 << 20
_PRIOR_C_DEVIATION = 8 << 20  # what a task may need at any size: buffers, caches
# Relative standard deviation per factor of e beyond the largest input seen, divided by the number
# of exact values: few values cannot exclude another line.
_EXTRAPOLATION_DEVIATION = 0.06
_COMPONENTS_MOST = 64
# Components whose log weight is this far below the best are dropped: before k > 0 is applied, and
# at the end.
_PRUNED_FIRST, _PRUNED_LAST = 20.0, 9.0
# A tight bound: the value is expected at 1.1 times the bound, with this relative deviation.
_TIGHT_MEAN, _TIGHT_DEVIATION = 1.1, 0.2
_LOG_SQRT_2PI = 0.5 * np.log(2 * np.pi)


class SufficientStatistics:
    """Sums over the exact values. w = 1 / (y^2 + floor^2) is a value's weight; floor: bytes below
    which a difference means nothing (an arena, a page)."""

    def __init__(self, floor: int) -> None:
        self.floor = floor
        self.scalars: Floats = np.zeros(4)  # n, sum w, sum wy, sum wyy
        self.vectors: Floats = np.zeros((3, FUNCTION_COUNT))  # sum ws, wss, wsy

    @property
    def n(self) -> float:
        return self.scalars[0]

    def add(self, features: Floats, y: float) -> None:
        w = 1 / (y * y + self.floor * self.floor)
        self.scalars += (1, w, w * y, w * y * y)
        ws = w * features
        self.vectors[0] += ws
        self.vectors[1] += ws * features
        self.vectors[2] += ws * y

    def is_consistent(self) -> bool:
        """Can these be sums of values? Checked by what one value adds at most, and by the
        Cauchy-Schwarz inequality: without it a variance would be negative."""
        n, w, wy, wyy = self.scalars
        ws, wss, wsy = self.vectors
        rounding = 1 + 1e-6
        return bool(
            w * self.floor**2 <= n * rounding
            and n <= w * 2 * BYTES_MOST**2
            and wyy <= n * rounding
            and wy**2 <= w * wyy * rounding
            and (wss < 1e150).all()
            and (ws**2 <= w * wss * rounding).all()
            and (wsy**2 <= wss * wyy * rounding).all()
        )

    def discount(self, factor: float) -> None:
        """Forget: all values count `factor` times as much."""
        self.scalars *= factor
        self.vectors *= factor

    def discounted_to(self, n: float) -> SufficientStatistics:
        """A copy that counts as at most n values."""
        copy = SufficientStatistics(self.floor)
        copy.merge(self)
        copy.discount(min(1.0, n / self.n) if self.n else 1.0)
        return copy

    def merge(self, other: SufficientStatistics) -> None:
        self.scalars += other.scalars
        self.vectors += other.vectors


class LowerBound(NamedTuple):
    """A censored value: the task with these size features needs more than `bytes`. is_tight: not
    much more, because an allocation that failed named its size."""

    features: Floats
    bytes: float
    is_tight: bool = False


class _ComponentMoments(NamedTuple):
    """Moments of y in each component of a mixture: mean, variance, covariances with c and k."""

    mean: Floats
    variance: Floats
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
    ) -> None:
        self.log_weight, self.mean, self.cov = log_weight, mean, cov
        self.function, self.sigma = function, sigma
        self.floor, self.extrapolation_deviation = floor, extrapolation_deviation
        # Weights of 1/y^2 favour small values, so the fit lies low. For log-normal noise with
        # residuals of sigma, y scatters by 1/(1 - sigma^2) - 1 (relative variance) and the mean is
        # multiplied by 1/(1 - sigma^2)^2.
        self._noise_variance = 1 / (1 - sigma**2) - 1
        self._bias_correction = (1 + self._noise_variance) ** 2

    def moments(self, features: Floats) -> _ComponentMoments:
        """features: one vector, or an array of vectors."""
        s = features[..., self.function]
        mean = self._bias_correction * (self.mean[0] + self.mean[1] * s)
        cov_c = self._bias_correction * (self.cov[0] + self.cov[1] * s)
        cov_k = self._bias_correction * (self.cov[1] + self.cov[2] * s)
        line_variance = np.maximum(self._bias_correction * (cov_c + cov_k * s), 0)
        return _ComponentMoments(
            mean, line_variance + self._noise_variance * (mean**2 + self.floor**2), cov_c, cov_k
        )

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
        log_probability = log_ndtr(z)
        ratio = np.exp(-0.5 * z * z - _LOG_SQRT_2PI - log_probability)  # inverse Mills ratio
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
        mean, variance, cov_c, cov_k = self.moments(features)
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

    def without_functions(self, functions: NDArray[np.bool_]) -> Mixture:
        """Without the components of these size functions, if there are others."""
        keep = np.flatnonzero(~functions[self.function])
        return self._subset(keep) if len(keep) else self

    def probability_of(self, functions: NDArray[np.bool_]) -> float:
        """Probability that one of these size functions holds."""
        return float(self.weight[functions[self.function]].sum())

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
        )

    @property
    def weight(self) -> Floats:
        return np.exp(self.log_weight)

    @property
    def sigma_mean(self) -> float:
        return float(self.weight @ self.sigma)

    def predict(
        self, features: Floats, size_ratio: float = 1.0, output_deviation: float = 0.0
    ) -> Predictive:
        """The predictive distribution of y. size_ratio: how many times larger the inputs are than
        any seen; above 1 the variance grows. output_deviation: standard deviation of the bytes that
        the task will return, where they are an estimate."""
        mean, variance, _, _ = self.moments(features)
        if size_ratio > 1:
            variance = variance + self._extrapolation_variance(np.log(size_ratio)) * mean**2
        if output_deviation:
            output_contribution = (
                OUTPUT_COEFFICIENT[self.function] * output_deviation * self.mean[1]
            )
            variance = variance + output_contribution**2
        return Predictive(self.weight, mean, np.sqrt(variance))

    def _extrapolation_variance(self, log_ratio: Any) -> Any:
        """Relative variance at `log_ratio` factors of e beyond the largest input seen: the noise of
        each component, and the possibility of another line."""
        return (self._noise_variance + self.extrapolation_deviation**2) * log_ratio**2

    def probabilities_above(
        self, bounds: Sequence[LowerBound], size_ratios: Sequence[float]
    ) -> Floats:
        """P(y > bound) of each bound, as `predict` would give it."""
        mean, variance, _, _ = self.moments(np.array([bound.features for bound in bounds]))
        log_ratios = np.log(np.maximum(size_ratios, 1))[:, None]
        variance = variance + self._extrapolation_variance(log_ratios) * mean**2
        limits = np.array([[bound.bytes] for bound in bounds])
        return ndtr((mean - limits) / np.sqrt(variance)) @ self.weight


class Predictive:
    """Weighted normals of y: means and deviations of the components, mean and deviation of
    the mixture."""

    def __init__(self, weight: Floats, means: Floats, deviations: Floats) -> None:
        self.weight, self.means, self.deviations = weight, means, deviations
        self.mean = float(weight @ means)
        variance = float(weight @ (deviations**2 + means**2)) - self.mean**2
        self.deviation = float(np.sqrt(max(variance, 1e-12 * self.mean**2 + 1)))

    def cdf(self, y: ArrayLike) -> Any:
        """P(y' <= y), of a number or an array of numbers."""
        return ndtr((np.asarray(y)[..., None] - self.means) / self.deviations) @ self.weight

    def survival(self, y: ArrayLike) -> Any:
        """P(y' > y)."""
        return ndtr((self.means - np.asarray(y)[..., None]) / self.deviations) @ self.weight

    def log_density(self, y: float) -> float:
        z = (y - self.means) / self.deviations
        logs = -0.5 * z * z - np.log(self.deviations) - _LOG_SQRT_2PI + np.log(self.weight)
        largest = logs.max()
        return float(largest + np.log(np.exp(logs - largest).sum()))


def _prior(floor: int) -> Mixture:
    """While no exact value is known: peaks proportional to the inputs, k from operators at
    large."""
    k, sigma = (grid.ravel() for grid in np.meshgrid(_PRIOR_K, _PRIOR_SIGMAS, indexing="ij"))
    log_weight = np.repeat(_PRIOR_K_LOG_WEIGHT, len(_PRIOR_SIGMAS))
    mean = np.stack((np.full_like(k, _PRIOR_C), k))
    cov = np.stack(
        (
            np.full_like(k, float(_PRIOR_C_DEVIATION) ** 2),
            np.zeros_like(k),
            (_PRIOR_K_DEVIATION * k) ** 2,
        )
    )
    return Mixture(log_weight, mean, cov, np.full(len(k), ALL_INPUTS), sigma, floor)


def _regressions(sums: SufficientStatistics) -> Mixture:
    """The regressions of all (j, sigma) on the exact values, with their evidence.

    Units: c in typical peaks, k in typical peaks per size, so that the scale of a function does not
    favour it."""
    n, w, wy, wyy = sums.scalars
    ws, wss, wsy = sums.vectors
    y_unit = np.sqrt(n / w)
    k_unit = np.where(wss > 0, wsy / np.where(wss > 0, wss, 1), 0.0)
    k_unit = np.where(k_unit > 0, k_unit, 1e-12)
    # Sums about the means, with c eliminated first: with the determinant p00 * p11 - p01^2 the
    # evidence of a shape seen a thousand times would be rounding alone.
    mean_y, mean_s = wy / (w * y_unit), ws * k_unit / (w * y_unit)
    yy = max(wyy - n * mean_y**2, 0.0)
    ss = np.maximum(wss * k_unit**2 - n * mean_s**2, 0)[:, None]
    sy = (wsy * k_unit - n * mean_s * mean_y)[:, None]
    mean_s = mean_s[:, None]
    precision_c = 1 / ((_PRIOR_C_DEVIATION / y_unit) ** 2 + 0.25)
    prior_k, precision_k = 0.7, 1.0
    inverse = 1 / SIGMAS**2
    from_values = n * inverse / (n * inverse + precision_c)  # weight of the values in c, not prior
    pull = from_values * precision_c
    p = ss * inverse + pull * mean_s**2 + precision_k
    r = sy * inverse + pull * mean_s * mean_y + precision_k * prior_k
    mean_k = r / p
    mean_c = from_values * (mean_y - mean_k * mean_s)
    log_evidence = (
        -n * np.log(SIGMAS)
        - 0.5 * (yy * inverse + pull * mean_y**2 - r * mean_k)
        - 0.5 * np.log((n * inverse + precision_c) * p)
        + _SIGMA_LOG_PRIOR
        + LOG_PRIOR[:, None]
    )
    y, k = y_unit, k_unit[:, None]
    mean = np.stack((mean_c * y, mean_k * k)).reshape(2, -1)
    slope = from_values * mean_s
    cov = np.stack(
        ((1 / (n * inverse + precision_c) + slope**2 / p) * y * y, -slope / p * y * k, k * k / p)
    ).reshape(3, -1)
    return Mixture(
        log_evidence.ravel(),
        mean,
        cov,
        np.repeat(np.arange(FUNCTION_COUNT), len(SIGMAS)),
        np.tile(SIGMAS, FUNCTION_COUNT),
        sums.floor,
        _EXTRAPOLATION_DEVIATION / n,
    )


def posterior(sums: SufficientStatistics, bounds: Sequence[LowerBound] = ()) -> Mixture:
    """Given exact values and lower bounds."""
    if sums.n > 0:
        mixture = _regressions(sums)
        if not bounds:  # a bound could make any component the best
            mixture = mixture.pruned(_PRUNED_FIRST)
        mixture.truncate_slope_at_zero()
    else:
        mixture = _prior(sums.floor)
    for bound in sorted(
        bounds, key=lambda one: (one.bytes, one.features[ALL_INPUTS], one.is_tight)
    ):
        mixture.condition_on_lower_bound(bound.features, bound.bytes)
        if bound.is_tight:
            mixture.condition_on_uncertain_value(
                bound.features, _TIGHT_MEAN * bound.bytes, _TIGHT_DEVIATION * bound.bytes
            )
    return mixture.pruned(_PRUNED_LAST, _COMPONENTS_MOST)
