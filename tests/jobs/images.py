"""Blocks of a volume with dask.array: from_zarr, map_overlap, reductions, rechunk, store; the same
volume also as an HDF5 dataset and as a file that is mapped into memory.

`python images.py FOLDER --block EDGE`: EDGE is the length of a block along the first axis.
"""

import os

import dask
import dask.array as da
import h5py
import numpy as np
import zarr
from scipy.ndimage import gaussian_filter, maximum_filter, sobel
from session import arguments, session

SHAPE = 128, 256, 256  # of float32: 32 MiB
STORED = 16, 256, 256


def make(folder):
    random = np.random.default_rng(1)
    volume = zarr.create_array(f"{folder}/volume.zarr", shape=SHAPE, chunks=STORED, dtype="float32")
    with h5py.File(f"{folder}/volume.h5", "w") as file:
        copy = file.create_dataset("volume", SHAPE, "float32", chunks=STORED)
        mapped = np.memmap(f"{folder}/volume.raw", np.float32, "w+", shape=SHAPE)
        for first in range(0, SHAPE[0], STORED[0]):
            part = slice(first, first + STORED[0])
            block = np.round(random.standard_normal(STORED, dtype=np.float32), 2)
            volume[part] = copy[part] = mapped[part] = block
        mapped.flush()


def denoise(block):
    return gaussian_filter(block, 1.0)


def edges(block):
    """The length of the gradient: three arrays beside the result."""
    slopes = [sobel(block, axis) for axis in range(block.ndim)]
    return np.sqrt(sum(slope * slope for slope in slopes))


def spots(block, size):
    """1 where a voxel is the largest of its neighbourhood."""
    return (maximum_filter(block, size) == block).astype(np.float32)


def work(folder, edge):
    blocks = edge, SHAPE[1], SHAPE[2]
    volume = da.from_zarr(f"{folder}/volume.zarr", chunks=blocks)
    clean = volume.map_overlap(denoise, depth=4, boundary="reflect")
    found = [clean.map_overlap(edges, depth=1, boundary="reflect"), clean.map_blocks(spots, size=5)]
    targets = [
        zarr.create_array(
            f"{folder}/{name}-{edge}.zarr",
            shape=SHAPE,
            chunks=STORED,
            dtype="float32",
            overwrite=True,
        )
        for name in ("edges", "spots")
    ]
    da.store(found, targets, lock=False)
    da.compute(volume.mean(), volume.std(axis=0), (volume - volume.mean()).max())
    across = volume.rechunk((SHAPE[0], 32, SHAPE[2]))
    (across.cumsum(axis=0)[-1] + 1).sum().compute()
    (volume.T @ da.ones(SHAPE[0], chunks=edge)).sum().compute()
    # a map and an open file of h5py belong to this process
    with dask.config.set(scheduler="threads", num_workers=2):
        raw = np.memmap(f"{folder}/volume.raw", np.float32, "r", shape=SHAPE)
        da.from_array(raw, blocks).map_blocks(np.abs).sum(axis=(1, 2)).compute()
        with h5py.File(f"{folder}/volume.h5", "r") as file:
            da.from_array(file["volume"], blocks).map_blocks(denoise).max().compute()


if __name__ == "__main__":
    chosen = arguments(__doc__, block=16)
    if not os.path.exists(f"{chosen.folder}/volume.raw"):
        make(chosen.folder)
    with session(chosen):
        for _ in range(chosen.times):
            work(chosen.folder, chosen.block)
