"""A seismic pipeline as people write it: a volume in zarr, three attributes, one result in zarr.
It knows nothing of dwsr-probe.

    python examples/seismic.py FOLDER --block 256,128,128 --memory 500MB

FOLDER holds the volume (made there if it is missing) and receives the result.
"""

import argparse
import os
import sys

import dask
import dask.array as da
import numpy as np
import zarr
from distributed import Client, LocalCluster
from numpy.lib.stride_tricks import sliding_window_view

SHAPE, STORED = (384, 192, 192), (32, 64, 192)  # float32: 54 MiB; traces are whole


def make_volume(path):
    volume = zarr.create_array(path, shape=SHAPE, chunks=STORED, dtype="float32")
    noise = np.random.default_rng(1)
    trace = np.sin(np.arange(SHAPE[2], dtype=np.float32) / 5)
    for start in range(0, SHAPE[0], STORED[0]):
        shape = (STORED[0], *SHAPE[1:])
        volume[start : start + STORED[0]] = trace + 0.1 * noise.standard_normal(shape, np.float32)


def envelope(block):
    """Amplitude of the analytic signal along the traces."""
    spectrum = np.fft.fft(block, axis=-1)  # complex: larger than the block
    spectrum[..., 1 : spectrum.shape[-1] // 2] *= 2
    spectrum[..., spectrum.shape[-1] // 2 :] = 0
    return np.abs(np.fft.ifft(spectrum, axis=-1)).astype(block.dtype)


def semblance(block):
    """Coherence of nine neighbouring traces, whose windows are copied."""
    padded = np.pad(block, ((1, 1), (1, 1), (0, 0)), mode="edge")
    windows = sliding_window_view(padded, (3, 3), (0, 1)).reshape(*block.shape, 9)
    total = windows.sum(axis=-1) ** 2
    return total / (9 * (windows * windows).sum(axis=-1) + np.float32(1e-9))


def normalise(block):
    """Each trace between 0 and 1."""
    low = block.min(axis=-1, keepdims=True)
    return (block - low) / (np.ptp(block, axis=-1, keepdims=True) + np.float32(1e-9))


def run(folder, block, threads, memory, result="result.zarr"):
    source = zarr.open_array(f"{folder}/volume.zarr", mode="r")
    # Each block is a chunk of its own: no two tasks write to the same one.
    target = zarr.create_array(
        f"{folder}/{result}", shape=SHAPE, chunks=block, dtype="float32", overwrite=True
    )
    options = {"n_workers": 1, "threads_per_worker": threads, "dashboard_address": None}
    with LocalCluster(memory_limit=memory, **options) as cluster, Client(cluster):
        volume = da.from_zarr(source, chunks=block)
        attribute = volume.map_blocks(envelope, dtype="float32")
        attribute = attribute.map_overlap(
            semblance, depth=(1, 1, 0), boundary="nearest", dtype="float32"
        )
        attribute.map_blocks(normalise, dtype="float32").store(target, lock=False)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder")
    parser.add_argument("--block", default="384,192,192", help="lengths of a block")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--memory", default="0", help="limit of the worker; 0: none")
    parser.add_argument("--result", default="result.zarr")
    given = parser.parse_args()
    if not os.path.exists(f"{given.folder}/volume.zarr"):
        make_volume(f"{given.folder}/volume.zarr")
    lengths = tuple(map(int, given.block.split(",")))
    memory = given.memory if given.memory != "0" else 0
    # A task whose worker dies is not tried on other workers first: they would die, too.
    with dask.config.set({"distributed.scheduler.allowed-failures": 0}):
        try:
            run(given.folder, lengths, given.threads, memory, given.result)
        except Exception as error:
            sys.exit(f"{type(error).__name__}: {error}")
