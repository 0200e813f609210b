"""The posterior of the model y = (c + k * s_j)(1 + e), given exact values and lower bounds.

y is a peak in bytes and s_j one of the size functions (sizes.py, derived.py). The noise e has the
standard deviation sigma, so it is relative. Unknown are the function j, the slope k, the constant c
and sigma. For each j and each of twelve values of sigma this is a weighted linear regression on the
cases (cases.py). It has a closed form: a bivariate normal of (c, k) and its evidence. The posterior
is the mixture of all these normals, weighted by evidence (mixture.py).

The deviation of a value is sigma times a reference: the mean of y by a first fit. With the value
itself as reference, a low value would have a small deviation and pull the fit down; and a tiny one
among large ones would outweigh them all. Cases far outside the others count little.

Lower bounds come from tasks that still run, were killed or failed. They are applied in a fixed
order. learner.py keeps the cases; calibration.py uses the predictive distribution.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from dwsr_probe.predict.derived import LOG_PRIOR_DERIVED, derive
from dwsr_probe.predict.mixture import LowerBound, Mixture
from dwsr_probe.predict.param_functions import ParamFunctions
from dwsr_probe.predict.param_search import find, with_common
from dwsr_probe.predict.sizes import ALL_INPUTS, FUNCTION_COUNT, LOG_PRIOR, OUTPUT

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from dwsr_probe.predict.case import CaseTable
    from dwsr_probe.predict.derived import DerivedFunctions

    Floats = NDArray[np.float64]

SIGMAS = np.geomspace(5e-4, 0.9, 12)
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
# Functions that are compared at all noise levels, and how far below the best one they may be at
# their own.
_FUNCTIONS_MOST, _FUNCTIONS_LOG_RATIO = 16, 15.0
# A tight bound: the value is expected at 1.1 times the bound, with this relative deviation.
_TIGHT_MEAN, _TIGHT_DEVIATION = 1.1, 0.2
# From so many cases on, a first fit gives the reference.
_REFERENCE_CASES_LEAST = 4
# From so many cases on, cases more than so many robust deviations away from the first fit count
# less, and no reference is below this quantile of the means.
_MANY_CASES, _OUTLIER_DEVIATIONS, _OUTLIER_DEVIATION_LEAST = 8, 6.0, 2e-3
_LEAST_REFERENCE_QUANTILE = 0.1
# Tiny values: below this share of what others say, less some floors; if this share of all tasks
# says so, whose inputs are not larger than by the inverse of the size; among so many tasks; and if
# no more than one of them, or this share, are tiny.
_TINY, _TINY_FLOORS, _TINY_SAY, _TINY_SIZE, _TINY_OF, _TINY_MOST = 0.3, 2, 0.9, 0.25, 20, 0.02
_FEW_CASES, _FEW_SHARE = 2, 0.05  # outliers that are no reason to look for another function
_WELL_FITTED = 20.0  # of the least residual: up to it, no other function is looked for


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


class _Weighted(NamedTuple):
    """Cases with the weights of a regression. features: with those of the derived functions, and
    without parameters."""

    features: Floats
    y: Floats
    variance: Floats
    counts: Floats  # effective: values of one case are not independent of each other
    weight: Floats


class _Lines(NamedTuple):
    """Weighted least squares of y on each function: sums about the means."""

    total: float  # of the weights
    mean_y: float
    mean_s: Floats
    yy: float
    ss: Floats
    sy: Floats

    @property
    def slope(self) -> Floats:
        return np.maximum(self.sy / np.where(self.ss > 0, self.ss, 1.0), 0.0)

    @property
    def residual(self) -> Floats:
        """Weighted sum of squares that each line leaves."""
        return np.maximum(self.yy - self.slope * self.sy, 0.0)


def _lines(cases: _Weighted) -> _Lines:
    weight, total = cases.weight, cases.weight.sum()
    mean_y, mean_s = weight @ cases.y / total, weight @ cases.features / total
    y, s = cases.y - mean_y, cases.features - mean_s
    yy = weight @ (y * y + cases.variance)
    return _Lines(total, mean_y, mean_s, yy, weight @ (s * s), (weight * y) @ s)


def _weigh(
    table: CaseTable, floor: int, with_derived: bool = True
) -> tuple[_Weighted, DerivedFunctions | None]:
    """Weights by a first fit, and the derived functions that explain the cases much better."""
    y, presence, counts = table.mean, np.minimum(table.counts, 1.0), _effective(table.counts)
    n = float(presence.sum())
    reference = np.hypot(y, floor)
    if n < _REFERENCE_CASES_LEAST:
        return _Weighted(table.features, y, table.variance, counts, counts / reference**2), None
    least_reference = _quantile(y, counts, _LEAST_REFERENCE_QUANTILE) if n >= _MANY_CASES else 0.0
    reference = np.maximum(reference, least_reference)
    cases = _Weighted(table.features, y, table.variance, counts, counts / reference**2)
    least_residual = counts.sum() * SIGMAS[0] ** 2
    fitted, residual = _first_fit(cases, LOG_PRIOR, n, least_residual)
    share = _share_of_outliers(y - fitted, reference, counts, n)
    if share.min() < 1 and presence @ (share < 0.25) <= max(_FEW_CASES, _FEW_SHARE * n):
        # These few are no reason to look for another function.
        cases = cases._replace(counts=counts * share, weight=cases.weight * share)
        fitted, residual = _first_fit(cases, LOG_PRIOR, n, least_residual)
    derived = None
    if with_derived and residual > _WELL_FITTED * least_residual:
        derived = derive(cases.features, y, cases.weight, presence, residual, least_residual)
    if derived is not None:
        features = np.concatenate((table.features, derived.values(table.features)), axis=1)
        cases = cases._replace(features=features)
        fitted, _ = _first_fit(cases, _log_prior(derived), n, least_residual)
    reference = np.maximum(np.hypot(np.maximum(fitted, y.min()), floor), least_reference)
    counts = counts * _share_of_outliers(y - fitted, reference, counts, n)
    return cases._replace(counts=counts, weight=counts / reference**2), derived


def _weigh_with_params(
    table: CaseTable, floor: int, with_levels: bool
) -> tuple[_Weighted, ParamFunctions] | None:
    """Weights, and the functions of parameters that explain the cases much better than the inputs
    alone do; None: no function does. A value of a parameter that was seen once is no outlier."""
    y, presence, counts = table.mean, np.minimum(table.counts, 1.0), _effective(table.counts)
    n = float(presence.sum())
    reference = np.hypot(y, floor)
    sizes = table.features[:, :FUNCTION_COUNT]
    cases = _Weighted(sizes, y, table.variance, counts, counts / reference**2)
    least_residual = counts.sum() * SIGMAS[0] ** 2
    _, residual = _first_fit(cases, LOG_PRIOR, n, least_residual)
    found = find(table, cases.weight, presence, residual, least_residual, with_levels)
    if found is None:
        return None
    cases = cases._replace(features=np.concatenate((sizes, found.values(table.features)), axis=1))
    fitted, _ = _first_fit(cases, _log_prior(found), n, least_residual)
    reference = np.hypot(np.maximum(fitted, y.min()), floor)
    counts = counts * _share_of_outliers(y - fitted, reference, counts, n)
    return cases._replace(counts=counts, weight=counts / reference**2), found


class RoughLine(NamedTuple):
    """The best line through the cases. deviation: relative, of the cases from it."""

    function: int
    intercept: float
    slope: float
    deviation: float

    def at(self, features: Floats) -> float:
        return self.intercept + self.slope * float(features[self.function])


def rough_line(table: CaseTable, floor: int) -> RoughLine:
    """In a tenth of the time of a posterior."""
    features, counts = table.features[:, :FUNCTION_COUNT], np.minimum(table.counts, 1.0)
    weight = counts / np.hypot(table.mean, floor) ** 2
    lines = _lines(_Weighted(features, table.mean, table.variance, counts, weight))
    n = float(counts.sum())
    fit = LOG_PRIOR - 0.5 * n * np.log(lines.residual + n * SIGMAS[0] ** 2)
    best = int(np.argmax(fit))
    slope = float(lines.slope[best])
    return RoughLine(
        best,
        float(lines.mean_y - slope * lines.mean_s[best]),
        slope,
        float(np.sqrt(lines.residual[best] / n)),
    )


def _first_fit(
    cases: _Weighted, log_prior: Floats, n: float, least_residual: float
) -> tuple[Floats, float]:
    """What the best line says of each case, and the weighted sum of squares that it leaves."""
    lines = _lines(cases)
    best = int(np.argmax(log_prior - 0.5 * n * np.log(lines.residual + least_residual)))
    s = cases.features[:, best] - lines.mean_s[best]
    return lines.mean_y + lines.slope[best] * s, float(lines.residual[best])


def _effective(counts: Floats) -> Floats:
    """Tasks of one case are not independent of each other: they count as two at most."""
    return np.where(counts > 1, 2 * counts / (1 + counts), counts)


def _without_tiny(table: CaseTable, floor: int) -> CaseTable:
    """Without the few tasks that took less than a third of what nearly all others of about their
    size say, if memory grows with the square of inputs and output at most. They did something else,
    or ended early."""
    y, tasks = table.mean, float(table.counts.sum())
    if tasks < _TINY_OF or y.min() > _TINY * y.max():
        return table
    sizes = 1 + table.features[:, (ALL_INPUTS, OUTPUT)]
    smaller = np.minimum((sizes[:, None] / sizes).min(axis=2), 1.0)  # than each other case
    is_less = y[:, None] + _TINY_FLOORS * floor < _TINY * y * smaller**2
    is_less &= smaller > _TINY_SIZE
    is_tiny = is_less @ table.counts > _TINY_SAY * tasks
    if not 0 < table.counts[is_tiny].sum() <= max(1.0, _TINY_MOST * tasks):
        return table
    return table.at(np.flatnonzero(~is_tiny))


def _share_of_outliers(residual: Floats, reference: Floats, counts: Floats, n: float) -> Floats:
    """The share of its weight that a case keeps: 1, and less for those far outside the others."""
    if n < _MANY_CASES:
        return np.ones(len(residual))
    distance = np.abs(residual) / reference
    scale = max(1.5 * _quantile(distance, counts, 0.5), _OUTLIER_DEVIATION_LEAST)
    return np.maximum(distance / (_OUTLIER_DEVIATIONS * scale), 1.0) ** -4


def _quantile(values: Floats, weight: Floats, q: float) -> float:
    order = np.argsort(values)
    below = np.cumsum(weight[order])
    return float(values[order[np.searchsorted(below, q * below[-1])]])


def _log_prior(derived: DerivedFunctions | ParamFunctions | None) -> Floats:
    if derived is None:
        return LOG_PRIOR
    if isinstance(derived, ParamFunctions):
        return np.append(LOG_PRIOR, derived.log_prior)
    return np.append(LOG_PRIOR, np.full(len(derived.first), LOG_PRIOR_DERIVED))


def _regressions(
    cases: _Weighted,
    derived: DerivedFunctions | ParamFunctions | None,
    floor: int,
    all_functions: bool,
) -> Mixture:
    """The regressions of all (j, sigma) on the cases, with their evidence. all_functions: also of
    functions that explain the cases much worse than others.

    Units: c in typical peaks, k in typical peaks per size, so that the scale of a function does not
    favour it."""
    lines, n, log_prior = _lines(cases), cases.counts.sum(), _log_prior(derived)
    functions = np.arange(len(log_prior))
    if not all_functions:
        log_fit = log_prior - 0.5 * n * np.log(lines.residual + n * SIGMAS[0] ** 2)
        functions = np.argsort(-log_fit, kind="stable")[:_FUNCTIONS_MOST]
        functions = functions[log_fit[functions] > log_fit[functions[0]] - _FUNCTIONS_LOG_RATIO]
    y_unit = np.sqrt(n / lines.total)
    k_unit = _slopes_through_zero(cases, functions)
    mean_y, yy = lines.mean_y / y_unit, lines.yy
    mean_s = (lines.mean_s[functions] * k_unit / y_unit)[:, None]
    ss = (lines.ss[functions] * k_unit**2)[:, None]
    sy = (lines.sy[functions] * k_unit)[:, None]
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
        + log_prior[functions, None]
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
        np.repeat(functions, len(SIGMAS)),
        np.tile(SIGMAS, len(functions)),
        floor,
        _EXTRAPOLATION_DEVIATION / n,
        derived,
    )


def _slopes_through_zero(cases: _Weighted, functions: NDArray[np.intp]) -> Floats:
    s = cases.features[:, functions]
    squares, products = cases.weight @ (s * s), (cases.weight * cases.y) @ s
    slopes = np.where(squares > 0, products / np.where(squares > 0, squares, 1.0), 0.0)
    return np.where(slopes > 0, slopes, 1e-12)


def posterior(
    table: CaseTable | None,
    floor: int,
    bounds: Sequence[LowerBound] = (),
    with_derived: bool = True,
) -> Mixture:
    """Given exact values (None: there are none) and lower bounds. floor: bytes below which a
    difference means nothing (an arena, a page). with_derived: also with derived functions."""
    if table is None:
        return _given_bounds(_prior(floor), bounds)
    # A bound could make any function the best.
    weighed = _weigh(_without_tiny(table, floor), floor, with_derived)
    mixture = _regressions(*weighed, floor, all_functions=bool(bounds))
    mixture.cases = table
    return _given_bounds(_truncated(mixture, bool(bounds)), bounds)


def posterior_with_params(
    table: CaseTable, floor: int, bounds: Sequence[LowerBound] = (), with_levels: bool = True
) -> Mixture | None:
    """The same from cases with parameters; None if parameters explain nothing. with_levels: also
    with a factor for each value of a parameter. Bounds of tasks that
    do not have the parameters in question are left out."""
    table = with_common(table)
    weighed = _weigh_with_params(table, floor, with_levels)
    if weighed is None:
        return None
    mixture = _regressions(*weighed, floor, all_functions=False)
    mixture.cases = table
    mixture = _truncated(mixture, False)
    return _given_bounds(mixture, [bound for bound in bounds if mixture.knows(bound.features)])


def _truncated(mixture: Mixture, all_components: bool) -> Mixture:
    if not all_components:
        mixture = mixture.pruned(_PRUNED_FIRST)
    mixture.truncate_slope_at_zero()
    return mixture


def _given_bounds(mixture: Mixture, bounds: Sequence[LowerBound]) -> Mixture:
    for bound in sorted(
        bounds, key=lambda one: (one.bytes, one.features[ALL_INPUTS], one.is_tight)
    ):
        mixture.condition_on_lower_bound(bound.features, bound.bytes)
        if bound.is_tight:
            mixture.condition_on_uncertain_value(
                bound.features, _TIGHT_MEAN * bound.bytes, _TIGHT_DEVIATION * bound.bytes
            )
    return mixture.pruned(_PRUNED_LAST, _COMPONENTS_MOST)
