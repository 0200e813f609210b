"""The search for functions of parameters (param_functions.py) that explain the peaks of a group,
where the inputs alone do not. posterior.py calls `find`."""

from __future__ import annotations

import math
from itertools import combinations
from typing import TYPE_CHECKING

import numpy as np

from dwsr_probe.predict.param_functions import (
    BASES,
    FACES,
    ONE,
    POWERS,
    Levels,
    ParamFunctions,
    base_sizes,
)
from dwsr_probe.predict.sizes import ALL_INPUTS, FUNCTION_COUNT, FUNCTION_NUMBER
from dwsr_probe.predict.two_slopes import two_slopes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from dwsr_probe.predict.case import CaseTable

    Floats = NDArray[np.float64]

_KEPT_MOST = 6  # functions
_PAIRED_MOST = 4  # parameters whose products are tried, those that explain most
# Two cases are enough if each was seen so often: a switch.
_CASES_LEAST, _REPEATED_LEAST = 3, 3
_LEVELS_MOST = 8
_PRESENT_SHARE = 0.75  # of the tasks that have a parameter, for it to be tried
# Relative deviation of the peaks from the best size function up to which parameters do not matter.
_EXPLAINED_DEVIATION = 0.02
# By how much the logarithm of the likelihood must rise. Three points lie near many a line by
# chance. While there are few cases, the rest must be small, relative; or it was large, and so is
# the gain.
_GAIN_LEAST, _FEW_CASES, _FEW_DEVIATION = 4.0, 6, 0.02
_LARGE_DEVIATION, _LARGE_GAIN = 0.3, 6.0
_BELOW_BEST = 8.0  # functions with so much less are not kept

# Logarithms of prior weights: of base * v, and what other functions have less: with a first part,
# with a power, for each level beyond the first.
_LOG_PRIOR_BASE = {ONE: -7.0, "inputs": -5.0, "output": -6.0, "axes 0": -6.0, FACES: -7.0}
_LOG_PRIOR_ALONE = -4.0  # of v where tasks have no inputs
_LOG_PRIOR_FIRST, _LOG_PRIOR_POWER, _LOG_PRIOR_LEVEL = -1.0, -1.5, -2.0
_LOG_PRIOR_COUNTER = -6.0  # of a parameter that numbers the cases, beside one that does not
_PRODUCT_BASES = (ONE, "inputs")
_LEVEL_BASES = (ONE, "inputs", "output")
_FIRSTS = ("inputs", "output")


def _candidates(values: Floats, slots: Sequence[int], has_inputs: bool) -> ParamFunctions:
    """Functions of numbers, with alpha and beta not yet known (1). values: of the parameters, by
    case."""
    bases = [base for base in BASES if has_inputs or base == ONE]
    found: list[tuple[str, tuple[int, int], float]] = []
    for slot in slots:
        is_positive = (values[:, slot] > 0).all()
        if not is_positive and (values[:, slot] < 0).any():
            continue
        found += [
            (base, (slot, -1), power)
            for base in bases
            for power in POWERS[base]
            if power > 0 or is_positive
        ]
    return _beside_firsts(found, has_inputs)


def _products(values: Floats, slots: Sequence[int], has_inputs: bool) -> ParamFunctions:
    """The same of two parameters."""
    bases = [base for base in _PRODUCT_BASES if has_inputs or base == ONE]
    return _beside_firsts(
        [
            (base, pair, 1.0)
            for pair in combinations(slots, 2)
            if (values[:, pair] >= 0).all()
            for base in bases
        ],
        has_inputs,
    )


def _beside_firsts(
    found: Sequence[tuple[str, tuple[int, int], float]], has_inputs: bool
) -> ParamFunctions:
    """Each alone, and with each first part."""
    firsts = [FUNCTION_NUMBER[name] for name in _FIRSTS] if has_inputs else []
    rows = [(first, *one) for first in (-1, *firsts) for one in found]
    return _functions(rows, (None,) * len(rows), has_inputs)


def _functions(
    rows: Sequence[tuple[int, str, tuple[int, int], float]],
    levels: tuple[Levels | None, ...],
    has_inputs: bool,
) -> ParamFunctions:
    ones = np.ones(len(rows))
    return ParamFunctions(
        np.array([_log_prior(has_inputs, *row) for row in rows], float),
        np.array([row[0] for row in rows], np.intp),
        np.array([BASES.index(row[1]) for row in rows], np.intp),
        np.array([row[2] for row in rows], np.intp).reshape(-1, 2),
        np.array([row[3] for row in rows], float),
        ones,
        ones,
        ones,
        levels,
    )


def _log_prior(
    has_inputs: bool, first: int, base: str, slots: tuple[int, int], power: float
) -> float:
    return (
        (_LOG_PRIOR_BASE[base] if has_inputs else _LOG_PRIOR_ALONE)
        + (_LOG_PRIOR_FIRST if first >= 0 or slots[1] >= 0 else 0.0)
        + (_LOG_PRIOR_POWER if power not in (0, 1) else 0.0)
    )


def _level_functions(
    table: CaseTable, weight: Floats, slots: Sequence[int], has_inputs: bool
) -> ParamFunctions:
    """A factor for each value of a parameter that has few of them, each seen more than once."""
    features = table.features
    bases = base_sizes(features)
    rows: list[tuple[int, str, tuple[int, int], float]] = []
    found: list[Levels] = []
    for slot in slots:
        values, which = np.unique(features[:, FUNCTION_COUNT + slot], return_inverse=True)
        counts = np.bincount(which, table.counts)
        if not 2 <= len(values) <= _LEVELS_MOST or counts.min() < 2:
            continue
        for base in _LEVEL_BASES if has_inputs else (ONE,):
            size = bases[:, BASES.index(base)]
            squares = np.bincount(which, weight * size * size)
            if (squares > 0).all():
                factors = np.bincount(which, weight * size * table.mean) / squares
                rows.append((-1, base, (slot, -1), 0.0))
                found.append(Levels(values, factors))
    functions = _functions(rows, tuple(found), has_inputs)
    return functions._replace(
        log_prior=functions.log_prior + _LOG_PRIOR_LEVEL * _freedom(functions)
    )


def _freedom(functions: ParamFunctions) -> Floats:
    """Factors that each function has beyond one."""
    return np.array([0.0 if one is None else len(one.values) - 1.0 for one in functions.levels])


def with_common(table: CaseTable) -> CaseTable:
    """The cases that have all parameters which most tasks have. Others may have left one at its
    default, which is not known."""
    is_given = ~np.isnan(table.features[:, FUNCTION_COUNT:])
    share = table.counts @ is_given / table.counts.sum()
    has_all = is_given[:, share >= _PRESENT_SHARE].all(axis=1)
    return table if has_all.all() else table.at(np.flatnonzero(has_all))


def find(
    table: CaseTable,
    weight: Floats,
    presence: Floats,
    residual: float,
    least_residual: float,
    with_levels: bool = True,
) -> ParamFunctions | None:
    """The functions of parameters that explain the cases much better than the best size function
    does, whose weighted sum of squared residuals is `residual`. None: there are none. table: see
    `with_common`."""
    features, y = table.features, table.mean
    given, n = features[:, FUNCTION_COUNT:], float(presence.sum())
    if len(y) < _CASES_LEAST:
        if len(y) < 2 or table.counts.min() < _REPEATED_LEAST:
            return None
        n = 2 * n
    least = max(least_residual, _EXPLAINED_DEVIATION**2 * n)
    if residual < least:
        return None
    # A parameter that some of these tasks do not have cannot explain all of them.
    slots = [
        slot
        for slot, column in enumerate(given.T)
        if not np.isnan(column).any() and column.min() < column.max()
    ]
    if not slots:
        return None
    has_inputs = bool((features[:, ALL_INPUTS] > 0).any())
    threshold = _GAIN_LEAST + math.log(len(slots))
    found: list[tuple[float, ParamFunctions]] = []

    def add(tried: ParamFunctions) -> Floats:
        """Returns the gain of each."""
        fitted, left = _fit(tried, table, weight)
        gain = 0.5 * n * np.log((residual + least_residual) / (left + least_residual))
        gain = gain - 0.5 * math.log(max(n, 3)) * _freedom(tried)
        good = gain > threshold
        if n < _FEW_CASES:
            is_large = residual > _LARGE_DEVIATION**2 * n
            good &= (left < _FEW_DEVIATION**2 * n) | (is_large & (gain > _LARGE_GAIN))
        score = gain + fitted.log_prior
        found.extend((float(score[i]), fitted.only(i)) for i in np.flatnonzero(good).tolist())
        return gain

    with np.errstate(all="ignore"):  # of values up to 1e15, and their cubes
        tried = _candidates(given, slots, has_inputs)
        gain = add(tried)
        best = {slot: gain[tried.slots[:, 0] == slot].max(initial=-np.inf) for slot in slots}
        paired = sorted(sorted(slots, key=lambda slot: -best[slot])[:_PAIRED_MOST])
        add(_products(given, paired, has_inputs))
        if with_levels:
            add(_level_functions(table, weight, slots, has_inputs))
    if not found:
        return None
    counters = {slot for slot in slots if _is_counter(given[:, slot])}
    if any(counters.isdisjoint(one.used) for _, one in found):
        found = [one if counters.isdisjoint(one[1].used) else _less(*one) for one in found]
    found.sort(key=lambda one: -one[0])
    kept = [one for gain, one in found[:_KEPT_MOST] if gain > found[0][0] - _BELOW_BEST]
    return _joined(kept)


def _is_counter(values: Floats) -> bool:
    """Whether a parameter numbers the cases, as a seed or an index does."""
    ordered = np.sort(values)
    return ordered[0] in (0, 1) and bool((np.diff(ordered) == 1).all())


def _less(score: float, function: ParamFunctions) -> tuple[float, ParamFunctions]:
    log_prior = function.log_prior + _LOG_PRIOR_COUNTER
    return score + _LOG_PRIOR_COUNTER, function._replace(log_prior=log_prior)


def _joined(functions: Sequence[ParamFunctions]) -> ParamFunctions:
    *arrays, levels = zip(*functions, strict=True)
    return ParamFunctions._make([*map(np.concatenate, arrays), tuple(one for (one,) in levels)])


def _fit(tried: ParamFunctions, table: CaseTable, weight: Floats) -> tuple[ParamFunctions, Floats]:
    """With alpha, beta and the largest values; and the weighted sum of squares that each leaves,
    infinite where memory would fall.

    A function with a first part is fitted through zero: with one size seen, the first part is what
    the constant is to others. Later it gets a constant of its own."""
    features, y = table.features, table.mean
    has_first = tried.first >= 0
    first = np.where(has_first, features[:, tried.first], 0.0)
    second = tried.second(features)
    good = np.isfinite(second).all(axis=0)
    second = np.where(good, second, 0.0)
    # Without a first part: a line with a constant
    total = weight.sum()
    centred, centred_y = second - weight @ second / total, y - weight @ y / total
    squares, products = weight @ (centred * centred), (weight * centred_y) @ centred
    slope = products / np.where(squares > 0, squares, 1.0)
    left = weight @ (centred_y**2) - slope * products
    # With one: two slopes, no constant
    slopes = two_slopes(first, second, y, weight)
    alpha, beta = slopes.alpha, slopes.beta
    of_pair = weight @ (y * y) - (alpha * slopes.r1 + beta * slopes.r2)
    left = np.where(has_first, of_pair, left)
    good &= np.where(has_first, slopes.solvable & (alpha >= 0) & (beta > 0), slope > 0)
    alpha, beta = np.where(has_first, alpha, 0.0), np.where(has_first, beta, 1.0)
    largest = (alpha * first + beta * second).max(axis=0)
    fitted = tried._replace(alpha=alpha, beta=beta, largest=largest)
    left = np.maximum(left, 0.0) + weight @ table.variance
    return fitted, np.where(good, left, np.inf)
