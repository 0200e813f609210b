"""The normal distribution for arrays: its distribution function and the logarithm of it.

Written here because the model runs inside Dask workers, where importing scipy.special would cost 24
MiB and a quarter of a second. Interpolated in a table: within 4e-6 of the truth, and within a
thousandth of it, relatively, down to probabilities of 1e-22.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

LOG_SQRT_2PI = 0.5 * math.log(2 * math.pi)
_FURTHEST = 35.0  # standard deviations; beyond, only the logarithm is not zero
_PER_UNIT = 100  # entries of the table
_X = np.linspace(-_FURTHEST, _FURTHEST, round(2 * _FURTHEST * _PER_UNIT) + 1)
_CDF = np.array([0.5 * math.erfc(-x * math.sqrt(0.5)) for x in _X])
_LOG_CDF = np.log(_CDF)
_STEPS = np.append(np.diff(_CDF), 0.0)


def cdf(x: Floats) -> Floats:
    """P(X <= x)."""
    return np.interp(x, _X, _CDF)


def cdf_of_many(x: Floats) -> Floats:
    """The same for thousands of numbers: their places in the table are computed, not searched. x is
    overwritten."""
    x += _FURTHEST
    x *= _PER_UNIT
    np.clip(x, 0, len(_X) - 1, out=x)
    place = x.astype(np.intp)
    x -= place
    x *= _STEPS.take(place)
    x += _CDF.take(place)
    return x


def log_cdf(x: Floats) -> Floats:
    """log P(X <= x). Far below the mean by the first term of its asymptotic series."""
    found = np.interp(x, _X, _LOG_CDF)
    if x.size and x.min() < -_FURTHEST:
        far = np.minimum(x, -_FURTHEST)
        asymptotic = -0.5 * far * far - np.log(-far) - LOG_SQRT_2PI
        found = np.where(x < -_FURTHEST, asymptotic, found)
    return found
