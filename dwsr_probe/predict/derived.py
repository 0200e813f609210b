"""Size functions that are found in the cases of one task, because no single size function explains
them: sums of two sizes (resample, merge, svd), saturation, and tasks that behave in another way
from a size on. Used by posterior.py.

A derived function is alpha * first + beta * second. The first part is a size function. The second
part is another size function (pair); or what of the first one lies above a threshold (bend: memory
that saturates, or two slopes); or the first one where it lies above the threshold (step: temporary
arrays that NumPy reuses from a size on).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from dwsr_probe.predict.sizes import ALL_INPUTS, FUNCTION_NUMBER, OUTPUT_COEFFICIENT, USES_AXES
from dwsr_probe.predict.two_slopes import two_slopes

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

LOG_PRIOR_DERIVED = -6.0
_KEPT_MOST = 4
_PAIR, _BEND, _STEP = 0, 1, 2
_QUANTILES = np.linspace(0.05, 0.95, 19)  # of the cases, where a threshold may lie
_CASES_BESIDE_THRESHOLD = 3  # at least, on each side
_CASES_LEAST = 6
# By how much the logarithm of the likelihood must rise for a derived function to be tried.
_GAIN_LEAST = 4.0
_PAIRS = [
    (FUNCTION_NUMBER[one], FUNCTION_NUMBER[other])
    for one, other in (
        ("inputs", "output"),
        ("inputs", "largest input"),
        ("largest input", "output"),
        ("inputs", "axes 0"),
        ("inputs", "first axis squared"),
        ("inputs", "last axis squared"),
        ("inputs", "smallest axis squared"),
        ("output", "smallest axis squared"),
        ("inputs", "hash table of the rows"),
    )
]


class DerivedFunctions(NamedTuple):
    """Arrays, one entry for each function. threshold: 0 for pairs."""

    first: NDArray[np.intp]
    second: NDArray[np.intp]
    kind: NDArray[np.intp]
    threshold: Floats
    alpha: Floats
    beta: Floats

    def values(self, features: Floats) -> Floats:
        """features: one vector of size functions, or an array of vectors."""
        first = features[..., self.first]
        return self.alpha * first + self.beta * self._second(first, features)

    def _second(self, first: Floats, features: Floats) -> Floats:
        above = np.where(self.kind == _BEND, first - self.threshold, first)
        return np.where(
            self.kind == _PAIR,
            features[..., self.second],
            np.where(first > self.threshold, above, 0.0),
        )

    @property
    def uses_axes(self) -> NDArray[np.bool_]:
        return USES_AXES[self.first] | ((self.kind == _PAIR) & USES_AXES[self.second])

    @property
    def output_coefficient(self) -> Floats:
        """How many times each function contains the bytes of the output."""
        of_second = np.where(self.kind == _PAIR, OUTPUT_COEFFICIENT[self.second], 0.0)
        return self.alpha * OUTPUT_COEFFICIENT[self.first] + self.beta * of_second


def _candidates(features: Floats, presence: Floats) -> DerivedFunctions:
    """With alpha and beta not yet known (1)."""
    order = np.argsort(features[:, ALL_INPUTS], kind="stable")
    sizes, below = features[order, ALL_INPUTS], np.cumsum(presence[order])
    last = below[-1] - _CASES_BESIDE_THRESHOLD
    thresholds = {
        (sizes[at] + sizes[at + 1]) / 2
        for at in np.searchsorted(below, _QUANTILES * below[-1]).tolist()
        if _CASES_BESIDE_THRESHOLD <= below[at] <= last and sizes[at + 1] > sizes[at]
    }
    found = [(*pair, _PAIR, 0.0) for pair in _PAIRS]
    found += [
        (ALL_INPUTS, ALL_INPUTS, kind, threshold)
        for kind in (_BEND, _STEP)
        for threshold in sorted(thresholds)
    ]
    first, second, kinds, threshold = zip(*found, strict=True)
    ones = np.ones(len(found))
    return DerivedFunctions(
        np.array(first), np.array(second), np.array(kinds), np.array(threshold), ones, ones
    )


def derive(
    features: Floats,
    y: Floats,
    weight: Floats,
    presence: Floats,
    residual: float,
    least_residual: float,
) -> DerivedFunctions | None:
    """The derived functions that explain the cases (features, mean peaks y, weights) much better
    than the best single one does, whose weighted sum of squared residuals is `residual`. None:
    there are none. presence: 1 for each case, less for one that is almost forgotten.
    least_residual: below which a difference means nothing."""
    n = presence.sum()
    if n < _CASES_LEAST:
        return None
    tried = _candidates(features, presence)
    first = features[:, tried.first]
    second = tried._second(first, features)
    total = weight.sum()
    centred_y = y - weight @ y / total
    first, second = first - weight @ first / total, second - weight @ second / total
    slopes = two_slopes(first, second, centred_y, weight)
    g11, g12, g22, r1, r2, alpha, beta, solvable = slopes
    # Memory does not fall with the size: a falling second slope is a saturation.
    bends = tried.kind == _BEND
    flat = bends & (alpha + beta < 0)
    saturated, s_y = g11 - 2 * g12 + g22, r1 - r2
    alpha = np.where(flat, s_y / np.where(saturated > 0, saturated, 1.0), alpha)
    beta = np.where(flat, -alpha, beta)
    explained = alpha * (2 * r1 - alpha * g11 - 2 * beta * g12) + beta * (2 * r2 - beta * g22)
    left = np.maximum(weight @ centred_y**2 - explained, 0) + least_residual
    gain = 0.5 * n * np.log((residual + least_residual) / left)
    grows = (alpha >= 0) & np.where(tried.kind == _PAIR, beta > 0, alpha + beta >= -1e-9 * alpha)
    good = np.flatnonzero(solvable & grows & (alpha + beta >= 0) & (gain > _GAIN_LEAST))
    if not len(good):
        return None
    best = good[np.argsort(-gain[good], kind="stable")[:_KEPT_MOST]]
    return DerivedFunctions(
        tried.first[best],
        tried.second[best],
        tried.kind[best],
        tried.threshold[best],
        alpha[best],
        beta[best],
    )
