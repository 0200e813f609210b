"""The operators that are measured for the evaluation of forecasts: what people run on arrays and
tables. measure.py runs them.

Each has a ladder of shapes, from small to large, mostly not cubes. A method may learn the first
three before it forecasts the rest. The size functions of the model and its prior are tuned on the
operators of TUNING only. HELD_OUT was not used while tuning. UNTOUCHED was added when the model was
finished. An operator for which the model is changed moves to TUNING.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.lib.stride_tricks import sliding_window_view
from scipy import fft, ndimage, signal
from scipy.spatial.distance import cdist

SMALL = 3  # shapes of a ladder: 1, 2 and 4 times the smallest
COUNT = 20
M = 1 << 20


def ladder(axes, low, high, seed, least=4):
    """COUNT shapes of `axes` axes with `low` to `high` elements: the small ones, then a
    geometric row from five times the smallest on. Sides are up to four times each other."""
    chance, shapes = np.random.default_rng(seed), []
    for elements in [low, 2 * low, 4 * low, *np.geomspace(5 * low, high, COUNT - SMALL)]:
        sides = np.exp(chance.uniform(0, np.log(4), axes))
        shapes.append(
            tuple(
                max(least, round(side)) for side in sides * (elements / sides.prod()) ** (1 / axes)
            )
        )
    return shapes


def arrays(shape, chance):
    return [chance.random(shape, dtype=np.float32)]


def table(shape, chance):
    """Rows × columns of float64, and a key of whole numbers: about a hundred rows each."""
    frame = pd.DataFrame(chance.random(shape), columns=[f"c{i}" for i in range(shape[1])])
    frame["key"] = chance.integers(0, max(2, shape[0] // 100), shape[0])
    return [frame]


@dataclass(frozen=True)
class Operator:
    name: str
    function: Callable
    shapes: list
    make: Callable = arrays  # (shape, chance) → inputs


def gradient_magnitude(x):
    return np.sqrt(sum(g * g for g in np.gradient(x)))


def sobel_magnitude(x):
    total = np.zeros_like(x)
    for axis in range(x.ndim):
        total += ndimage.sobel(x, axis) ** 2
    return np.sqrt(total)


def laplacian(x):
    """The 7-point stencil."""
    y = -6 * x
    for axis in range(3):
        moved, whole = np.moveaxis(y, axis, 0), np.moveaxis(x, axis, 0)
        moved[1:] += whole[:-1]
        moved[:-1] += whole[1:]
    return y


def structure_tensor(x):
    g = np.gradient(x)
    return [ndimage.gaussian_filter(g[i] * g[j], 1.5) for i in range(3) for j in range(i, 3)]


def analytic(x):
    return signal.hilbert(x, axis=-1)


def fields(count_low, count_high):
    """Several inputs of one cross-section and differing length."""

    def make(shape, chance):
        count = int(chance.integers(count_low, count_high + 1))
        return [
            chance.random((max(1, round(shape[0] * share)), *shape[1:]), dtype=np.float32)
            for share in chance.dirichlet(np.full(count, 5.0))
        ]

    return make


def pair_of_factors(shape, chance):
    m, k, n = shape
    return [chance.random((m, k), dtype=np.float32), chance.random((k, n), dtype=np.float32)]


def volume_and_kernel(shape, chance):
    return [
        chance.random(shape, dtype=np.float32),
        chance.random((shape[-1], 24), dtype=np.float32),
    ]


def volume_and_window(shape, chance):
    return [chance.random(shape, dtype=np.float32), chance.random((9, 9, 9), dtype=np.float32)]


def two_axes_and_weights(shape, chance):
    return [
        chance.random(shape, dtype=np.float32),
        chance.random((*shape[1:], 5), dtype=np.float32),
    ]


def two_volumes(shape, chance):
    return [chance.random(shape, dtype=np.float32), chance.random(shape, dtype=np.float32)]


def skewed(shape, chance):
    """Values whose share above one half differs from array to array."""
    return [chance.random(shape, dtype=np.float32) ** chance.uniform(0.4, 2.5)]


def labels(shape, chance):
    return [
        chance.integers(
            0, int(np.exp(chance.uniform(np.log(100), np.log(1e7)))), shape, dtype=np.int32
        )
    ]


def two_tables(shape, chance):
    left = table(shape, chance)[0]
    return [
        left,
        pd.DataFrame(
            {
                "key": np.arange(left["key"].max() + 1),
                "weight": chance.random(left["key"].max() + 1),
            }
        ),
    ]


def three_volumes(shape, chance):
    return [chance.random(shape, dtype=np.float32) for _ in range(3)]


def two_vectors(shape, chance):
    return [chance.random(length, dtype=np.float32) for length in shape]


def section_and_weights(shape, chance):
    return [
        chance.random((shape[0], shape[2]), dtype=np.float32),
        chance.random(shape[1], dtype=np.float32),
    ]


def points(shape, chance):
    return [chance.random((shape[0], 8), dtype=np.float32)]


def _operators():
    def one(name, function, axes=3, low=M // 8, high=8 * M, make=arrays, shapes=None):
        seed = sum(map(ord, name))
        return Operator(name, function, shapes or ladder(axes, low, high, seed), make)

    factors = [
        tuple(int(s) for s in np.random.default_rng(i).integers(0.5 * side, 2 * side, 3))
        for i, side in enumerate([180, 260, 360, *np.geomspace(400, 1900, COUNT - SMALL)])
    ]
    counts = [(int(n),) for n in [300, 420, 600, *np.geomspace(700, 4000, COUNT - SMALL)]]
    rows = [
        (int(n), 2 + i * 7 % 6)
        for i, n in enumerate(
            [20_000, 40_000, 80_000, *np.geomspace(100_000, 1_000_000, COUNT - SMALL)]
        )
    ]
    return [
        one("gaussian_filter", lambda x: ndimage.gaussian_filter(x, 2.0)),
        one("median_filter", lambda x: ndimage.median_filter(x, 3), low=M // 16, high=M // 2),
        one("gradient_magnitude", gradient_magnitude),
        one("sobel_magnitude", sobel_magnitude, high=4 * M),
        one("uniform_filter", lambda x: ndimage.uniform_filter(x, 5)),
        one("envelope", lambda x: np.abs(analytic(x))),
        one("instantaneous_phase", lambda x: np.unwrap(np.angle(analytic(x)), axis=-1), high=4 * M),
        one(
            "rfft_round_trip",
            lambda x: np.fft.irfft(np.fft.rfft(x, axis=-1), n=x.shape[-1], axis=-1),
        ),
        one("fftn", fft.fftn),
        one("svd", lambda x: np.linalg.svd(x, full_matrices=False), axes=2, low=M // 32, high=M),
        one("argsort", lambda x: np.argsort(x, axis=-1), high=4 * M),
        one("sort", lambda x: np.sort(x, axis=-1)),
        one("cumulative_sum", lambda x: np.cumsum(x, axis=0, dtype=np.float64)),
        one("laplacian", laplacian),
        one("structure_tensor", structure_tensor, high=2 * M),
        one("quantile", lambda x: np.percentile(x, [1, 50, 99]), high=4 * M),
        one("histogram", lambda x: np.histogram(x, 256)),
        one(
            "einsum",
            lambda x, w: np.einsum("ijk,kl->ijl", x, w, optimize=True),
            make=volume_and_kernel,
        ),
        one("matmul", np.matmul, make=pair_of_factors, shapes=factors),
        one(
            "tensordot",
            lambda x, w: np.tensordot(x, w, ([1, 2], [0, 1])),
            make=two_axes_and_weights,
        ),
        one("pad", lambda x: np.pad(x, 8, mode="reflect")),
        one("moving_mean", lambda x: sliding_window_view(x, 9, axis=-1).mean(axis=-1), high=2 * M),
        one("transpose", lambda x: np.ascontiguousarray(x.T)),
        one("concatenate", lambda *parts: np.concatenate(parts), make=fields(3, 5)),
        one("where", lambda x, y: np.where(x > y, x, 0.5 * y), make=two_volumes),
        one("astype", lambda x: x.astype(np.float64)),
        one("mean", lambda x: x.mean(axis=1)),
        one("zoom", lambda x: ndimage.zoom(x, 0.5, order=1), high=4 * M),
        one("groupby_mean", lambda t: t.groupby("key").mean(), shapes=rows, make=table),
        one("merge", lambda t, weights: t.merge(weights, on="key"), shapes=rows, make=two_tables),
        one("sort_values", lambda t: t.sort_values("c0"), shapes=rows, make=table),
        one("pairwise_distances", lambda x: cdist(x, x), shapes=counts, make=points),
        one("covariance", lambda x: np.cov(x), axes=2, low=M // 16, high=2 * M),
        one("unique", np.unique, low=M // 16, high=2 * M, make=labels),
        one("boolean_selection", lambda x: x[x > 0.5], make=skewed),
        one(
            "fftconvolve",
            lambda x, w: signal.fftconvolve(x, w, mode="same"),
            low=M // 16,
            high=2 * M,
            make=volume_and_window,
        ),
        one("roll", lambda x: np.roll(x, 3, axis=1)),
        one("difference", lambda x: np.diff(x, axis=0)),
        one(
            "standardise",
            lambda x: (x - x.mean(axis=-1, keepdims=True)) / x.std(axis=-1, keepdims=True),
        ),
        one("resample", lambda x: signal.resample_poly(x, 2, 3, axis=-1), high=4 * M),
        one("opening", lambda x: ndimage.grey_opening(x, 3), high=4 * M),
        one("shift", lambda x: ndimage.shift(x, 0.5), low=M // 16, high=M // 2),
        one("label", lambda x: ndimage.label(x > 0.7), high=4 * M),
        one("spectrogram", lambda x: signal.spectrogram(x, nperseg=32)[2], high=2 * M),
        one("qr", np.linalg.qr, axes=2, low=M // 32, high=M),
        one("outer", np.multiply.outer, axes=2, high=8 * M, make=two_vectors),
        one(
            "broadcast_product",
            lambda x, w: x[:, None, :] * w[None, :, None],
            high=8 * M,
            make=section_and_weights,
        ),
        one("stack", lambda *parts: np.stack(parts), high=4 * M, make=three_volumes),
        one("rolling_mean", lambda t: t.rolling(50).mean(), shapes=rows, make=table),
        one("describe", lambda t: t.describe(), shapes=rows, make=table),
    ]


OPERATORS = {operator.name: operator for operator in _operators()}
TUNING = frozenset(
    """gaussian_filter gradient_magnitude uniform_filter instantaneous_phase fftn argsort
cumulative_sum structure_tensor histogram matmul pad transpose where mean
groupby_mean sort_values covariance boolean_selection""".split()
)
UNTOUCHED = frozenset(
    "roll difference standardise resample opening shift label spectrogram qr outer"
    " broadcast_product stack rolling_mean describe".split()
)
HELD_OUT = frozenset(OPERATORS) - TUNING - UNTOUCHED
GROUPS = {"tuning": TUNING, "held out": HELD_OUT, "untouched": UNTOUCHED}
