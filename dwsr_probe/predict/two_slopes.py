"""Weighted least squares of y = alpha * first + beta * second, for many pairs of columns at once.
Used by derived.py and param_search.py."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]


class TwoSlopes(NamedTuple):
    """One entry for each pair. g: weighted products of the columns; r: of a column and y. solvable:
    the columns are not proportional."""

    g11: Floats
    g12: Floats
    g22: Floats
    r1: Floats
    r2: Floats
    alpha: Floats
    beta: Floats
    solvable: NDArray[np.bool_]


def two_slopes(first: Floats, second: Floats, y: Floats, weight: Floats) -> TwoSlopes:
    """first, second: (values, pairs)."""
    g11, g12, g22 = weight @ (first * first), weight @ (first * second), weight @ (second * second)
    r1, r2 = (weight * y) @ first, (weight * y) @ second
    determinant = g11 * g22 - g12 * g12
    solvable = determinant > 1e-9 * g11 * g22
    determinant = np.where(solvable, determinant, 1.0)
    alpha, beta = (g22 * r1 - g12 * r2) / determinant, (g11 * r2 - g12 * r1) / determinant
    return TwoSlopes(g11, g12, g22, r1, r2, alpha, beta, solvable)
