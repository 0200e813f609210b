"""Three operators on a seismic-like volume, in two threads. Run it: dwsr-probe run python
examples/filters.py"""

from concurrent.futures import ThreadPoolExecutor

import numpy as np

import dwsr_probe


@dwsr_probe.task("envelope")
def envelope(volume):
    spectrum = np.fft.fft(volume, axis=-1)  # complex128: four times the input
    spectrum[..., spectrum.shape[-1] // 2 :] = 0
    return np.abs(np.fft.ifft(2 * spectrum, axis=-1)).astype(volume.dtype)


@dwsr_probe.task("smooth")
def smooth(volume):
    padded = np.pad(volume, 1, mode="edge")
    return (padded[:-2, 1:-1, 1:-1] + padded[1:-1, 1:-1, 1:-1] + padded[2:, 1:-1, 1:-1]) / 3


@dwsr_probe.task("clip")
def clip(volume):
    return np.clip(volume, -1, 1, out=volume)


def main():
    generator = np.random.default_rng(0)
    volumes = [
        generator.standard_normal((48, 48, 64 * n), dtype=np.float32) for n in (1, 2, 3, 4) * 3
    ]
    with ThreadPoolExecutor(2) as pool:
        results = list(pool.map(lambda v: float(clip(smooth(envelope(v))).sum()), volumes))
    print(f"{len(results)} volumes, checksum {sum(results):.3f}")


if __name__ == "__main__":
    main()
