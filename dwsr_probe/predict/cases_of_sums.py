"""Models that were saved before there were cases: they have sums over all values, for each size
function. Three made-up cases have the same moments, so that a regression on them gives the same
line. Used by cases.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from dwsr_probe.predict.sizes import BYTES_MOST, FUNCTION_COUNT, parse_numbers

if TYPE_CHECKING:
    from dwsr_probe.predict.sizes import Features

# Two contrasts of three points, orthogonal to each other and to their mean, with a variance of 1.
_LINE = np.array([-1.0, 0.0, 1.0]) * np.sqrt(3 / 2)
_BEND = np.array([1.0, -2.0, 1.0]) / np.sqrt(2)


class SumsCase:
    """As cases.py's, but the size functions are given: no inputs have all of them."""

    __slots__ = ("count", "features", "squares", "total")

    params = ()

    def __init__(self, features: Features, count: float, total: float, squares: float) -> None:
        self.features = features
        self.count, self.total, self.squares = count, total, squares

    @property
    def moments(self) -> tuple[float, float, float]:
        return self.count, self.total, self.squares


def parse_features(values: Any) -> Features:
    found = np.array(values, dtype=float)
    if found.shape != (FUNCTION_COUNT,) or not (np.abs(found) < 1e75).all():
        raise ValueError("a damaged model: sums")
    return found


def cases_of_sums(scalars: Any, vectors: Any) -> list[SumsCase]:
    """scalars: n, sum w, sum wy, sum wyy, where w is the weight of a value. vectors, for each size
    function s: sum ws, wss, wsy. ValueError if these cannot be sums of values."""
    n, w, wy, wyy = parse_numbers(scalars, (4,), "scalars").tolist()
    ws, wss, wsy = parse_numbers(vectors, (3, FUNCTION_COUNT), "vectors")
    if n == 0:
        return []
    rounding = 1 + 1e-6
    if (
        not 0 < w <= n
        or n > w * 2 * BYTES_MOST**2
        or wy**2 > w * wyy * rounding
        or not (wss < 1e150).all()
        or (ws**2 > w * wss * rounding).any()
        or (wsy**2 > wss * wyy * rounding).any()
    ):
        raise ValueError("a damaged model: sums of no values")
    mean_y, mean_s = wy / w, ws / w
    deviation = np.sqrt(max(wyy / w - mean_y**2, 0.0))
    variance = np.maximum(wss / w - mean_s**2, 0)
    along = (wsy / w - mean_s * mean_y) / deviation if deviation > 0 else 0 * mean_s
    across = np.sqrt(np.maximum(variance - along**2, 0))
    cases = []
    for line, bend in zip(_LINE, _BEND, strict=True):
        y = max(0.0, mean_y + deviation * line)
        features = mean_s + along * line + across * bend
        cases.append(SumsCase(features, n / 3, n / 3 * y, n / 3 * y * y))
    return cases
