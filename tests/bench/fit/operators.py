"""The functions whose blocks are chosen, each with its array. None of them was used to tune the
fit. Workers import this module: it needs NumPy and SciPy only."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from scipy import fft, ndimage, signal

_STORED = (64, 64, 64)
_FLAT = (32, 64, 64)


def gaussian(x):
    return ndimage.gaussian_filter(x, 1.5)


def envelope(x):
    """Magnitude of the analytic signal, by Fourier transforms along the last axis."""
    return np.abs(signal.hilbert(x, axis=-1))


def sorted_traces(x):
    return np.sort(x, axis=1)


def semblance(x, size=9):
    """Of windows along the last axis, which are copied."""
    around = size // 2
    padded = np.pad(x, ((0, 0), (0, 0), (around, around)), mode="edge")
    windows = sliding_window_view(padded, size, axis=-1).copy()
    power = (windows * windows).sum(axis=-1) * np.float32(size)
    return windows.sum(axis=-1) ** 2 / (power + np.float32(1e-6))


def coherence(x):
    """Share of the first direction in the structure tensor."""
    gradients = np.gradient(x)
    tensor = [
        ndimage.uniform_filter(gradients[i] * gradients[j], 5)
        for i in range(3)
        for j in range(i, 3)
    ]
    xx, xy, xz, yy, yz, zz = tensor
    trace = xx + yy + zz
    square = xx * xx + yy * yy + zz * zz + 2 * (xy * xy + xz * xz + yz * yz)
    return square / (trace * trace + np.float32(1e-6))


def moving_median(x, size=5):
    around = size // 2
    padded = np.pad(x, ((around, around), (0, 0), (0, 0)), mode="edge")
    return np.median(sliding_window_view(padded, size, axis=0), axis=-1)


def chain(x):
    """Elementwise NumPy, with a temporary array for each step."""
    return np.tanh(x) * np.exp(-x * x) + np.sqrt(np.abs(x)) / (1 + np.cos(x) ** 2)


def low_pass(x):
    """Low frequencies of the second axis, computed in double precision."""
    spectrum = fft.rfft(x.astype(np.float64), axis=1)
    spectrum[:, spectrum.shape[1] // 4 :] = 0
    return fft.irfft(spectrum, n=x.shape[1], axis=1).astype(np.float32)


@dataclass(frozen=True)
class Operator:
    """limits: of the worker's memory, in bytes. whole: axes that must not be cut. is_told: these
    axes are given to the fit; else the fit finds them. depth: halo; such a job is a `map_overlap`.
    written_as_blocks: the result is stored in chunks that are blocks, as `to_zarr` stores it; else
    in chunks of the size that the input has, where blocks consist of whole ones."""

    function: Callable
    shape: tuple[int, ...]
    stored: tuple[int, ...]
    limits: tuple[int, int]
    whole: tuple[int, ...] = ()
    is_told: bool = False
    depth: tuple[int, ...] | None = None
    written_as_blocks: bool = False

    @property
    def name(self):
        return self.function.__name__


M = 10**6
OPERATORS = (
    Operator(gaussian, (384, 256, 320), _STORED, (450 * M, 600 * M), is_told=True),
    Operator(envelope, (360, 300, 288), _FLAT, (500 * M, 800 * M), (2,)),
    Operator(sorted_traces, (320, 384, 256), _STORED, (450 * M, 600 * M), (1,)),
    Operator(semblance, (240, 288, 216), _FLAT, (500 * M, 1000 * M), (2,)),
    Operator(coherence, (256, 192, 200), _STORED, (500 * M, 800 * M), depth=(3, 3, 3)),
    Operator(moving_median, (240, 160, 200), _FLAT, (500 * M, 900 * M), depth=(2, 0, 0)),
    Operator(chain, (384, 320, 256), _FLAT, (450 * M, 700 * M), written_as_blocks=True),
    Operator(low_pass, (300, 256, 360), _STORED, (500 * M, 900 * M), (1,), written_as_blocks=True),
)


def values(shape):
    """A smooth field with some noise: it can be compressed a little, like measured data."""
    generator = np.random.default_rng(0)
    waves = [
        np.sin(np.linspace(0, 20 + 7 * axis, n, dtype=np.float32)) for axis, n in enumerate(shape)
    ]
    field = waves[0][:, None, None] * waves[1][None, :, None] + waves[2][None, None, :]
    return field + np.float32(0.1) * generator.standard_normal(shape, dtype=np.float32)
