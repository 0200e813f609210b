"""Operators of SciPy: filters, transforms, interpolation."""

import numpy as np
from scipy import fft, ndimage, signal

from tests.bench.predict.operators.operator import M, one


def sobel_magnitude(x):
    total = np.zeros_like(x)
    for axis in range(x.ndim):
        total += ndimage.sobel(x, axis) ** 2
    return np.sqrt(total)


def structure_tensor(x):
    g = np.gradient(x)
    return [ndimage.gaussian_filter(g[i] * g[j], 1.5) for i in range(3) for j in range(i, 3)]


def analytic(x):
    return signal.hilbert(x, axis=-1)


def volume_and_window(shape, chance):
    return [chance.random(shape, dtype=np.float32), chance.random((9, 9, 9), dtype=np.float32)]


OPERATORS = [
    one("gaussian_filter", lambda x: ndimage.gaussian_filter(x, 2.0)),
    one("median_filter", lambda x: ndimage.median_filter(x, 3), low=M // 16, high=M // 2),
    one("sobel_magnitude", sobel_magnitude, high=4 * M),
    one("uniform_filter", lambda x: ndimage.uniform_filter(x, 5)),
    one("envelope", lambda x: np.abs(analytic(x))),
    one("instantaneous_phase", lambda x: np.unwrap(np.angle(analytic(x)), axis=-1), high=4 * M),
    one("fftn", fft.fftn),
    one("structure_tensor", structure_tensor, high=2 * M),
    one("zoom", lambda x: ndimage.zoom(x, 0.5, order=1), high=4 * M),
    one(
        "fftconvolve",
        lambda x, w: signal.fftconvolve(x, w, mode="same"),
        low=M // 16,
        high=2 * M,
        make=volume_and_window,
    ),
    one("resample", lambda x: signal.resample_poly(x, 2, 3, axis=-1), high=4 * M),
    one("opening", lambda x: ndimage.grey_opening(x, 3), high=4 * M),
    one("shift", lambda x: ndimage.shift(x, 0.5), low=M // 16, high=M // 2),
    one("label", lambda x: ndimage.label(x > 0.7), high=4 * M),
    one("spectrogram", lambda x: signal.spectrogram(x, nperseg=32)[2], high=2 * M),
]
