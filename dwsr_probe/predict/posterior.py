"""The posterior of y = c + k * s_j * (1 + e): which size function j, k, c, and the relative
noise, from sums alone.

    y is a peak in bytes, s_j one of the size functions (sizes.py), the noise has a deviation of
    sigma * y: scale-free. Given j and sigma it is a linear regression with weights 1/y^2, whose
    sums are kept (`Sums`): additive, so order does not matter, models merge, and forgetting is
    scaling. `posterior(sums, terms)` gives all (j, sigma) as one table of bivariate normals in
    closed form with their evidence (`Mixture`). Lower bounds (tasks that run, were killed or
    failed) multiply it by a probability of lying above; each normal is then replaced by the one
    with the same moments, in a fixed order of the terms. That k is positive is such a bound,
    too.

numpy and scipy only. model.py keeps the sums and terms; forecast.py asks the mixture.
"""

from dataclasses import dataclass

import numpy as np
from scipy.special import log_ndtr, ndtr

from dwsr_probe.predict.sizes import COUNT, INPUTS, LOG_PRIOR, MOST_BYTES, OUTPUT_SHARE

SIGMAS = np.geomspace(5e-4, 0.9, 12)  # relative residuals of a fit by 1/y^2 are below 1
_SIGMA_PRIOR = -0.5 * (np.log(SIGMAS / 0.01) / 1.3) ** 2
# Before anything was seen: bytes needed per byte of input, of operators at large (copies 1 to 3,
# filters 2 to 7, structure tensors 20 and more).
_UNSEEN_K = np.array([0.5, 1, 2, 4, 8, 16, 32, 64])
_UNSEEN_WEIGHT = -0.5 * (np.log(_UNSEEN_K / 3) / 1.1) ** 2
_UNSEEN_C = 1 << 20
_CONSTANT_BYTES = 8 << 20  # what a task may need whatever its size: buffers, caches
# that the line goes on beyond what was seen: a relative deviation per e-fold, divided by the number
# of values
_DOUBT = 0.06
_MOST_PARTS = 64
_LOG_SQRT_2PI = 0.5 * np.log(2 * np.pi)


class Sums:
    """Sufficient statistics of exact values. floor: bytes below which a difference means nothing
    (an arena, a page)."""

    def __init__(self, floor):
        self.floor = floor
        self.scalars = np.zeros(4)  # n, sum w, sum wy, sum wyy
        self.vectors = np.zeros((3, COUNT))  # sum ws, wss, wsy

    @property
    def n(self):
        return self.scalars[0]

    def add(self, sizes, y):
        w = 1 / (y * y + self.floor * self.floor)
        self.scalars += (1, w, w * y, w * y * y)
        ws = w * sizes
        self.vectors[0] += ws
        self.vectors[1] += ws * sizes
        self.vectors[2] += ws * y

    def could_be(self):
        """Are these sums of values? By what each adds at most, and by Cauchy and Schwarz,
        without whom a variance is negative."""
        n, w, wy, wyy = self.scalars
        ws, wss, wsy = self.vectors
        more = 1 + 1e-6  # rounding
        return bool(
            w * self.floor**2 <= n * more
            and n <= w * 2 * MOST_BYTES**2
            and wyy <= n * more
            and wy**2 <= w * wyy * more
            and (wss < 1e150).all()
            and (ws**2 <= w * wss * more).all()
            and (wsy**2 <= wss * wyy * more).all()
        )

    def scale(self, factor):
        self.scalars *= factor
        self.vectors *= factor

    def scaled(self, most):
        """A copy that counts as at most so many values."""
        copy = Sums(self.floor)
        copy.merge(self)
        copy.scale(min(1.0, most / self.n) if self.n else 1.0)
        return copy

    def merge(self, other):
        self.scalars += other.scalars
        self.vectors += other.vectors


@dataclass(frozen=True)
class Term:
    """A lower bound: this task needs more than `bytes`. near: it is nearly that much (an
    allocation that failed named its size)."""

    sizes: np.ndarray
    bytes: float
    near: bool = False


class Mixture:
    """Weighted normals of (c, k), each with its j and sigma."""

    def __init__(self, log_weight, mean, cov, j, sigma, floor, doubt=0.0):
        self.log_weight, self.mean, self.cov, self.j, self.sigma, self.floor, self.doubt = (
            log_weight,
            mean,
            cov,
            j,
            sigma,
            floor,
            doubt,
        )
        # Weights of 1/y^2 trust small values most: of noise whose logarithm is normal, residuals of
        # sigma mean that the truth lies so much higher, and scatters so much.
        self._noise = 1 / (1 - sigma**2) - 1
        self._lift = (1 + self._noise) ** 2

    def at(self, sizes):
        """Mean and variance of y in each part, and the covariances of c and k with it, for these
        sizes."""
        s = sizes[..., self.j]
        mean = self._lift * (self.mean[0] + self.mean[1] * s)
        gain_c = self._lift * (self.cov[0] + self.cov[1] * s)
        gain_k = self._lift * (self.cov[1] + self.cov[2] * s)
        spread = np.maximum(self._lift * (gain_c + gain_k * s), 0)
        return mean, spread + self._noise * (mean**2 + self.floor**2), gain_c, gain_k

    def lies_above(self, sizes, bound):
        """Multiply by P(y > bound)."""
        mean, variance, gain_c, gain_k = self.at(sizes)
        self._tilt(mean - bound, variance, gain_c, gain_k)

    def k_is_positive(self):
        self._tilt(self.mean[1], self.cov[2], self.cov[1], self.cov[2])

    def _tilt(self, above, variance, gain_c, gain_k):
        deviation = np.sqrt(variance)
        z = np.maximum(above / deviation, -1e3)  # beyond it is all the same impossible
        log_share = log_ndtr(z)
        ratio = np.exp(-0.5 * z * z - _LOG_SQRT_2PI - log_share)
        # between them for numbers without rounding
        shrink = np.clip(ratio * (ratio + z), 0, 1) / variance
        self.log_weight = self.log_weight + log_share
        self.mean = self.mean + (ratio / deviation) * np.stack((gain_c, gain_k))
        self._shrink(shrink, gain_c, gain_k)

    def _shrink(self, by, gain_c, gain_k):
        least = 1e-12 * self.cov  # of a variance, against rounding
        self.cov = self.cov - by * np.stack((gain_c * gain_c, gain_c * gain_k, gain_k * gain_k))
        self.cov[0::2] = np.maximum(self.cov[0::2], least[0::2])

    def lies_near(self, sizes, y, deviation):
        """Multiply by a normal density of y: an uncertain value."""
        mean, variance, gain_c, gain_k = self.at(sizes)
        variance = variance + deviation**2
        off = y - mean
        self.log_weight = self.log_weight - 0.5 * off * off / variance - 0.5 * np.log(variance)
        self.mean = self.mean + (off / variance) * np.stack((gain_c, gain_k))
        self._shrink(1 / variance, gain_c, gain_k)

    def pruned(self, folds=9.0, most=None):
        """Without the parts that are so much less likely than the best, weights normalised."""
        log_weight = self.log_weight - self.log_weight.max()
        keep = np.flatnonzero(log_weight > -folds)
        if most is not None and len(keep) > most:
            keep = keep[np.argsort(-log_weight[keep], kind="stable")[:most]]
        return self._only(keep)

    def without(self, functions):
        """Without the parts of these size functions, if there are others."""
        keep = np.flatnonzero(~functions[self.j])
        return self._only(keep) if len(keep) else self

    def share_of(self, functions):
        """How far these are believed to hold."""
        return float(self.weight[functions[self.j]].sum())

    def _only(self, keep):
        weight = np.exp(self.log_weight[keep] - self.log_weight[keep].max())
        return Mixture(
            np.log(weight / weight.sum()),
            self.mean[:, keep],
            self.cov[:, keep],
            self.j[keep],
            self.sigma[keep],
            self.floor,
            self.doubt,
        )

    @property
    def weight(self):
        return np.exp(self.log_weight)

    @property
    def sigma_mean(self):
        return float(self.weight @ self.sigma)

    def predict(self, sizes, beyond=1.0, output_deviation=0.0):
        """Of y for these sizes: a Predictive. beyond: how many times larger than anything seen;
        what the line does not explain grows with it. output_deviation: of the bytes that the
        task will return, where those are themselves a guess."""
        mean, variance, _, _ = self.at(sizes)
        if beyond > 1:
            variance = variance + self._unexplained(np.log(beyond)) * mean**2
        if output_deviation:
            variance = variance + (OUTPUT_SHARE[self.j] * output_deviation * self.mean[1]) ** 2
        return Predictive(self.weight, mean, np.sqrt(variance))

    def _unexplained(self, folds):
        """Relative variance so many e-folds beyond what was seen: of what the line does not
        explain there, and of its being another line, which few values cannot exclude."""
        return (self._noise + self.doubt**2) * folds**2

    def shares_above(self, terms, beyond):
        """P(y > its bound) of each term, as predict would say."""
        mean, variance, _, _ = self.at(np.array([term.sizes for term in terms]))
        variance = variance + self._unexplained(np.log(np.maximum(beyond, 1))[:, None]) * mean**2
        return (
            ndtr((mean - np.array([[term.bytes] for term in terms])) / np.sqrt(variance))
            @ self.weight
        )


class Predictive:
    """Weighted normals of y."""

    def __init__(self, weight, means, deviations):
        self.weight, self.means, self.deviations = weight, means, deviations
        self.mean = float(weight @ means)
        self.deviation = float(
            np.sqrt(
                max(weight @ (deviations**2 + means**2) - self.mean**2, 1e-12 * self.mean**2 + 1)
            )
        )

    def below(self, y):
        """P(y' <= y), of a number or an array of them."""
        return ndtr((np.asarray(y)[..., None] - self.means) / self.deviations) @ self.weight

    def above(self, y):
        return ndtr((self.means - np.asarray(y)[..., None]) / self.deviations) @ self.weight

    def log_density(self, y):
        z = (y - self.means) / self.deviations
        logs = -0.5 * z * z - np.log(self.deviations) - _LOG_SQRT_2PI + np.log(self.weight)
        most = logs.max()
        return float(most + np.log(np.exp(logs - most).sum()))


def _unseen(floor):
    """Nothing is known but that it is a program: k from operators at large."""
    k, sigma = (grid.ravel() for grid in np.meshgrid(_UNSEEN_K, SIGMAS[5:10:2], indexing="ij"))
    log_weight = np.repeat(_UNSEEN_WEIGHT, len(SIGMAS[5:10:2]))
    mean = np.stack((np.full_like(k, _UNSEEN_C), k))
    cov = np.stack(
        (np.full_like(k, float(_CONSTANT_BYTES) ** 2), np.zeros_like(k), (0.35 * k) ** 2)
    )
    return Mixture(log_weight, mean, cov, np.full(len(k), INPUTS), sigma, floor)


def _seen(sums):
    """All (j, sigma), given exact values. Units: c in typical peaks, k in typical peaks per
    size, so that no function is favoured by its scale."""
    n, w, wy, wyy = sums.scalars
    ws, wss, wsy = sums.vectors
    y_unit = np.sqrt(n / w)
    k_unit = np.where(wss > 0, wsy / np.where(wss > 0, wss, 1), 0.0)
    k_unit = np.where(k_unit > 0, k_unit, 1e-12)
    # About the means, c taken out first: with p00 * p11 - p01^2 the evidence of a shape seen a
    # thousand times would be rounding alone.
    mean_y, mean_s = wy / (w * y_unit), ws * k_unit / (w * y_unit)
    yy = max(wyy - n * mean_y**2, 0.0)
    ss = np.maximum(wss * k_unit**2 - n * mean_s**2, 0)[:, None]
    sy = (wsy * k_unit - n * mean_s * mean_y)[:, None]
    mean_s = mean_s[:, None]
    precision_c = 1 / ((_CONSTANT_BYTES / y_unit) ** 2 + 0.25)
    prior_k, precision_k = 0.7, 1.0
    inverse = 1 / SIGMAS**2
    known = n * inverse / (n * inverse + precision_c)  # of c: how much is from the values
    held = known * precision_c
    p = ss * inverse + held * mean_s**2 + precision_k
    r = sy * inverse + held * mean_s * mean_y + precision_k * prior_k
    mean_k = r / p
    mean_c = known * (mean_y - mean_k * mean_s)
    evidence = (
        -n * np.log(SIGMAS)
        - 0.5 * (yy * inverse + held * mean_y**2 - r * mean_k)
        - 0.5 * np.log((n * inverse + precision_c) * p)
        + _SIGMA_PRIOR
        + LOG_PRIOR[:, None]
    )
    y, k = y_unit, k_unit[:, None]
    mean = np.stack((mean_c * y, mean_k * k)).reshape(2, -1)
    slope = known * mean_s
    cov = np.stack(
        ((1 / (n * inverse + precision_c) + slope**2 / p) * y * y, -slope / p * y * k, k * k / p)
    ).reshape(3, -1)
    return Mixture(
        evidence.ravel(),
        mean,
        cov,
        np.repeat(np.arange(COUNT), len(SIGMAS)),
        np.tile(SIGMAS, COUNT),
        sums.floor,
        _DOUBT / n,
    )


def posterior(sums, terms=()):
    """The mixture, given exact values and lower bounds."""
    if sums.n > 0:
        mixture = _seen(sums)
        if not terms:  # which could make any part the best
            mixture = mixture.pruned(20.0)
        mixture.k_is_positive()
    else:
        mixture = _unseen(sums.floor)
    for term in sorted(terms, key=lambda term: (term.bytes, term.sizes[INPUTS], term.near)):
        mixture.lies_above(term.sizes, term.bytes)
        if term.near:
            mixture.lies_near(term.sizes, 1.1 * term.bytes, 0.2 * term.bytes)
    return mixture.pruned(most=_MOST_PARTS)
