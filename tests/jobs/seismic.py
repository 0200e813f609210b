"""A seismic pipeline of five operators, stored as zarr arrays. The operators are objects, in the
way of DASF: each passes a private method of its own to map_overlap or map_blocks.

`python seismic.py FOLDER --block EDGE`: EDGE is the length of a block along the inlines.
"""

import os

import dask.array as da
import numpy as np
import zarr
from numpy.lib.stride_tricks import sliding_window_view
from scipy.ndimage import correlate1d, gaussian_filter
from session import arguments, session

SHAPE = 256, 96, 96  # of float32: 9 MiB
STORED = 32, 96, 96
HALF = 1, 1, 4  # of a window of 3 × 3 × 9


class Operator:
    def transform(self, volume):
        raise NotImplementedError


class Gaussian(Operator):
    def __init__(self, sigma):
        self._sigma = sigma

    def __operation(self, block):
        return gaussian_filter(block, self._sigma)

    def transform(self, volume):
        return volume.map_overlap(self.__operation, depth=4, boundary="reflect", dtype="float32")


class RMS(Operator):
    """Root of the mean square in a window along the traces."""

    def __operation(self, block, length):
        weights = np.full(length, 1 / length, np.float32)
        return np.sqrt(correlate1d(block * block, weights))

    def transform(self, volume):
        return volume.map_blocks(self.__operation, length=9, dtype="float32")


class Semblance(Operator):
    """Coherence of neighbouring traces; the windows are copied, nine to each voxel."""

    def __operation(self, block):
        padded = np.pad(block, ((1, 1), (1, 1), (0, 0)), mode="edge")
        windows = sliding_window_view(padded, (3, 3), (0, 1)).reshape(*block.shape, 9)
        total = windows.sum(axis=-1) ** 2
        return total / (9 * (windows * windows).sum(axis=-1) + np.float32(1e-9))

    def transform(self, volume):
        return volume.map_overlap(self.__operation, depth=HALF, boundary="reflect", dtype="float32")


class GST(Operator):
    """Gradient structure tensor; its trace is the result."""

    def tensor(self, block):
        slopes = np.gradient(block)
        return {
            (i, j): gaussian_filter(slopes[i] * slopes[j], 1) for i in range(3) for j in range(i, 3)
        }

    def __operation(self, block):
        tensor = self.tensor(block)
        return tensor[0, 0] + tensor[1, 1] + tensor[2, 2]

    def transform(self, volume):
        return volume.map_overlap(self.__operation, depth=HALF, boundary="reflect", dtype="float32")


class Chaos(Operator):
    """From the eigenvalues of the structure tensor: nine numbers for each voxel."""

    def __init__(self):
        self.__tensor = GST()

    def __operation(self, block):
        tensor = self.__tensor.tensor(block)
        whole = np.empty((*block.shape, 3, 3), np.float32)
        for (i, j), values in tensor.items():
            whole[..., i, j] = whole[..., j, i] = values
        low, middle, high = np.moveaxis(np.linalg.eigvalsh(whole), -1, 0)
        return (2 * middle / (low + high + np.float32(1e-9))).astype(np.float32)

    def transform(self, volume):
        return da.map_overlap(
            self.__operation, volume, depth=HALF, boundary="reflect", dtype="float32"
        )


OPERATORS = Gaussian(1.5), RMS(), Semblance(), GST(), Chaos()


def make(path):
    random = np.random.default_rng(1)
    volume = zarr.create_array(path, shape=SHAPE, chunks=STORED, dtype="float32")
    trace = np.sin(np.arange(SHAPE[2], dtype=np.float32) / 5)
    volume[:] = trace + random.standard_normal(SHAPE, dtype=np.float32) / 10


def work(folder, edge):
    volume = da.from_zarr(f"{folder}/seismic.zarr", chunks=(edge, *SHAPE[1:]))
    results, targets = [], []
    for operator in OPERATORS:
        results.append(operator.transform(volume))
        targets.append(
            zarr.create_array(
                f"{folder}/{type(operator).__name__}-{edge}.zarr",
                shape=SHAPE,
                chunks=STORED,
                dtype="float32",
                overwrite=True,
            )
        )
    da.store(results, targets, lock=False)


if __name__ == "__main__":
    chosen = arguments(__doc__, block=32)
    if not os.path.exists(f"{chosen.folder}/seismic.zarr"):
        make(f"{chosen.folder}/seismic.zarr")
    with session(chosen):
        for _ in range(chosen.times):
            work(chosen.folder, chosen.block)
