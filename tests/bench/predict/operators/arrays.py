"""Operators of NumPy and scipy.spatial: what people run on arrays."""

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from scipy.spatial.distance import cdist

from tests.bench.predict.groups import SMALL
from tests.bench.predict.operators.operator import COUNT, M, one


def gradient_magnitude(x):
    return np.sqrt(sum(g * g for g in np.gradient(x)))


def laplacian(x):
    """The 7-point stencil."""
    y = -6 * x
    for axis in range(3):
        moved, whole = np.moveaxis(y, axis, 0), np.moveaxis(x, axis, 0)
        moved[1:] += whole[:-1]
        moved[:-1] += whole[1:]
    return y


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


FACTORS = [
    tuple(int(s) for s in np.random.default_rng(i).integers(0.5 * side, 2 * side, 3))
    for i, side in enumerate([180, 260, 360, *np.geomspace(400, 1900, COUNT - SMALL)])
]
COUNTS = [(int(n),) for n in [300, 420, 600, *np.geomspace(700, 4000, COUNT - SMALL)]]
OPERATORS = [
    one("gradient_magnitude", gradient_magnitude),
    one(
        "rfft_round_trip",
        lambda x: np.fft.irfft(np.fft.rfft(x, axis=-1), n=x.shape[-1], axis=-1),
    ),
    one("svd", lambda x: np.linalg.svd(x, full_matrices=False), axes=2, low=M // 32, high=M),
    one("argsort", lambda x: np.argsort(x, axis=-1), high=4 * M),
    one("sort", lambda x: np.sort(x, axis=-1)),
    one("cumulative_sum", lambda x: np.cumsum(x, axis=0, dtype=np.float64)),
    one("laplacian", laplacian),
    one("quantile", lambda x: np.percentile(x, [1, 50, 99]), high=4 * M),
    one("histogram", lambda x: np.histogram(x, 256)),
    one(
        "einsum",
        lambda x, w: np.einsum("ijk,kl->ijl", x, w, optimize=True),
        make=volume_and_kernel,
    ),
    one("matmul", np.matmul, make=pair_of_factors, shapes=FACTORS, degree=2),
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
    one("pairwise_distances", lambda x: cdist(x, x), shapes=COUNTS, make=points, grows=()),
    one("covariance", lambda x: np.cov(x), axes=2, low=M // 16, high=2 * M),
    one("unique", np.unique, low=M // 16, high=2 * M, make=labels),
    one("boolean_selection", lambda x: x[x > 0.5], make=skewed),
    one("roll", lambda x: np.roll(x, 3, axis=1)),
    one("difference", lambda x: np.diff(x, axis=0)),
    one(
        "standardise",
        lambda x: (x - x.mean(axis=-1, keepdims=True)) / x.std(axis=-1, keepdims=True),
    ),
    one("qr", np.linalg.qr, axes=2, low=M // 32, high=M),
    one("outer", np.multiply.outer, axes=2, high=8 * M, make=two_vectors, grows=()),
    one(
        "broadcast_product",
        lambda x, w: x[:, None, :] * w[None, :, None],
        high=8 * M,
        make=section_and_weights,
    ),
    one("stack", lambda *parts: np.stack(parts), high=4 * M, make=three_volumes),
]
