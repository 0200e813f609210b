"""Operators on blocks of a volume with CuPy, two threads on one device. Run it: dwsr-probe run
python examples/cupy_filters.py"""

from concurrent.futures import ThreadPoolExecutor

import cupy as cp
import numpy as np

import dwsr_probe


@dwsr_probe.task("gradient")
def gradient(volume):
    parts = [
        cp.abs(volume[1:, :-1, :-1] - volume[:-1, :-1, :-1]),
        cp.abs(volume[:-1, 1:, :-1] - volume[:-1, :-1, :-1]),
    ]
    return sum(parts) / len(parts)


@dwsr_probe.task("semblance")
def semblance(volume):
    shifted = cp.stack([cp.roll(volume, n, axis=-1) for n in range(-2, 3)])  # five times the input
    return shifted.sum(axis=0) ** 2 / (5 * (shifted**2).sum(axis=0) + 1e-6)


@dwsr_probe.task("clip")
def clip(volume):
    return cp.clip(volume, -1, 1, out=volume)


def main():
    generator = np.random.default_rng(0)
    blocks = [generator.standard_normal((64, 64, 128 * n), dtype=np.float32) for n in (1, 2, 3) * 4]
    with ThreadPoolExecutor(2) as pool:
        results = list(
            pool.map(lambda block: clip(semblance(gradient(cp.asarray(block)))).shape, blocks)
        )
    print(f"{len(results)} blocks")


if __name__ == "__main__":
    main()
