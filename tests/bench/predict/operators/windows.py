"""Operators with a parameter that their memory may depend on: the size of a window, a number of
components. And simulations, which have a parameter and no input."""

import numpy as np
import pandas as pd
from numpy.lib.stride_tricks import sliding_window_view
from scipy import ndimage, signal
from sklearn.decomposition import PCA
from sklearn.preprocessing import PolynomialFeatures, SplineTransformer

from tests.bench.predict.operators.labelled import series
from tests.bench.predict.operators.learning import samples
from tests.bench.predict.operators.operator import M, Operator, one, row_ladder, table

WINDOW = (3, 5, 7, 9)
FEW = row_ladder(16_000, 160_000, lambda i: 8)
LONG = row_ladder(130_000, 1_500_000, lambda i: 1)


def window_std(x, size):
    return sliding_window_view(x, size, axis=-1).std(axis=-1)


def window_patches(x, size):
    return np.ascontiguousarray(sliding_window_view(x, size, axis=0))


def window_median(x, size):
    return np.median(sliding_window_view(x, size, axis=-1), axis=-1)


def window_blocks(x, size):
    """Patches of size × size, without overlap."""
    rows, columns = (length // size * size for length in x.shape)
    blocks = x[:rows, :columns].reshape(rows // size, size, columns // size, size)
    return blocks.transpose(0, 2, 1, 3).reshape(-1, size, size) - blocks.mean()


def lags(x, size):
    column = x["c0"]
    return pd.concat([column.shift(i) for i in range(size)], axis=1)


def window_variance(x, size):
    mean = ndimage.uniform_filter(x, size)
    return ndimage.uniform_filter(x * x, size) - mean * mean


def savitzky_golay(x, size):
    return signal.savgol_filter(x, size, 2, axis=-1)


def xr_window(x, size):
    return x.rolling(time=size).construct("lag").max("lag")


def embedding(x, size):
    """Delay coordinates, and their Gram matrix."""
    points = np.stack([x[i : len(x) - size + i] for i in range(size)], axis=1)
    return points - points.mean(axis=0)


def row(shape, chance):
    return [chance.random(shape[0])]


NEW = [
    one(name, function, params={word: values[1]}, values=values, low=M // 4, **others)
    for name, function, word, values, others in [
        ("window_std", window_std, "size", WINDOW, {"high": 2 * M}),
        ("window_patches", window_patches, "size", WINDOW, {"high": 4 * M}),
        ("window_median", window_median, "size", WINDOW, {"high": M * 3 // 2}),
        ("window_blocks", window_blocks, "size", WINDOW, {"axes": 2}),
        ("window_mean", lambda x, size: ndimage.uniform_filter(x, size), "size", WINDOW, {}),
        ("window_variance", window_variance, "size", WINDOW, {}),
        ("savitzky_golay", savitzky_golay, "size", WINDOW, {"high": 4 * M}),
        ("padding", lambda x, size: np.pad(x, 4 * size), "size", WINDOW, {}),
        (
            "upsample",
            lambda x, factor: ndimage.zoom(x, factor, order=1),
            "factor",
            (1.5, 2, 2.5, 3),
            {"axes": 2, "high": 2 * M},
        ),
        (
            "repeat",
            lambda x, times: np.concatenate([x] * times, axis=1).sum(axis=0),
            "times",
            WINDOW,
            {"high": 4 * M},
        ),
        ("xr_window", xr_window, "size", WINDOW, {"high": 2 * M, "make": series}),
        ("lags", lags, "size", WINDOW, {"shapes": LONG, "make": table, "grows": (0,)}),
        ("embedding", embedding, "size", WINDOW, {"shapes": LONG, "make": row, "grows": (0,)}),
        *(
            (name, function, word, values, {"shapes": FEW, "make": samples, "grows": (0,)})
            for name, function, word, values in [
                (
                    "components",
                    lambda x, n_components: PCA(n_components).fit_transform(x),
                    "n_components",
                    (2, 4, 6, 8),
                ),
                (
                    "spline_knots",
                    lambda x, n_knots: SplineTransformer(n_knots).fit_transform(x),
                    "n_knots",
                    WINDOW,
                ),
                (
                    "degree",
                    lambda x, degree: PolynomialFeatures(degree).fit_transform(x),
                    "degree",
                    (1, 2, 3, 4),
                ),
            ]
        ),
    ]
]


def random_walks(n):
    return np.random.default_rng(0).standard_normal((n, 200)).cumsum(axis=0)


def monte_carlo_pi(n):
    x, y = np.random.default_rng(0).random((2, n))
    return 4 * np.mean(x * x + y * y < 1)


def kernel_matrix(n):
    places = np.linspace(0, 1, n)
    return np.exp(-((places[:, None] - places) ** 2))


def cube(n):
    z, y, x = np.mgrid[:n, :n, :n]
    return (x - n / 2) ** 2 + (y - n / 2) ** 2 + (z - n / 2) ** 2 < n * n / 9


def game_of_life(n):
    cells = np.random.default_rng(0).random((n, n)) < 0.3
    for _ in range(5):
        near = sum(np.roll(cells, move, (0, 1)) for move in [(0, 1), (1, 0), (0, -1), (-1, 0)])
        cells = (near == 2) | (cells & (near == 3))
    return cells


def spectrum(n):
    return np.abs(np.fft.rfft(np.random.default_rng(0).standard_normal(n))) ** 2


def diffusion(n):
    heat = np.zeros((64, n))
    heat[32] = 1
    for _ in range(10):
        heat = heat + 0.1 * (np.roll(heat, 1, 0) + np.roll(heat, -1, 0) - 2 * heat)
    return heat


def bootstrap(n):
    random = np.random.default_rng(0)
    data = random.standard_normal(500)
    return data[random.integers(0, 500, (n, 500))].mean(axis=1)


SIMULATIONS = [
    Operator(name, function, [()], lambda shape, chance: [], {"n": values[0]}, values)
    for name, function, values in [
        ("random_walks", random_walks, (2_000, 5_000, 9_000, 20_000)),
        ("monte_carlo_pi", monte_carlo_pi, (200_000, 500_000, 900_000, 3_000_000)),
        ("kernel_matrix", kernel_matrix, (400, 700, 1_100, 2_500)),
        ("cube", cube, (40, 60, 85, 150)),
        ("game_of_life", game_of_life, (600, 900, 1_400, 3_000)),
        ("spectrum", spectrum, (150_000, 400_000, 700_000, 2_500_000)),
        ("diffusion", diffusion, (4_000, 9_000, 16_000, 50_000)),
        ("bootstrap", bootstrap, (400, 900, 1_500, 4_000)),
    ]
]
