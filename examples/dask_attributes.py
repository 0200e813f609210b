"""Seismic attributes on a Dask cluster of this machine, blocks of several sizes. Run it:
dwsr-probe run python examples/dask_attributes.py"""

import dask
import numpy as np
from distributed import Client, LocalCluster


def load(seed, shape):
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


def envelope(block):
    spectrum = np.fft.fft(block, axis=-1)
    spectrum[..., spectrum.shape[-1] // 2 :] = 0
    return np.abs(np.fft.ifft(2 * spectrum, axis=-1)).astype(block.dtype)


def semblance(block):
    """Coherence of neighbouring traces: squared mean by mean of squares, in a window of 3 x 3."""
    padded = np.pad(block, ((1, 1), (1, 1), (0, 0)), mode="edge")
    windows = np.stack(
        [padded[i : i + block.shape[0], j : j + block.shape[1]] for i in range(3) for j in range(3)]
    )
    return (windows.mean(axis=0) ** 2 / (np.mean(windows**2, axis=0) + 1e-6)).astype(block.dtype)


def strongest(block):
    return float(block.max())


def main():
    with (
        LocalCluster(
            n_workers=2, threads_per_worker=2, memory_limit="2GB", dashboard_address=None
        ) as cluster,
        Client(cluster),
    ):
        for side in (48, 64, 80, 96, 112):
            blocks = [dask.delayed(load)(seed, (side, side, 256)) for seed in range(8)]
            found = [
                dask.delayed(strongest)(dask.delayed(semblance)(dask.delayed(envelope)(block)))
                for block in blocks
            ]
            print(f"blocks of {side} x {side} x 256: {max(dask.compute(*found)):.4f}")


if __name__ == "__main__":
    main()
