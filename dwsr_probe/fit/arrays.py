"""The array whose blocks are fitted: NumPy, Dask, Zarr, xarray, HDF5, or a description alone.

`source_of` finds the shape, the dtype and the chunks in which the array is stored. A source is
pickled and sent to the process that tries blocks (child.py), which reads slices of it. Arrays in
memory stay here: their slices are read by `read` and sent one by one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from dwsr_probe.fit.error import FitError

if TYPE_CHECKING:
    from collections.abc import Sequence

    Slices = tuple[slice, ...]

MEMORY, FILE, DASK, MADE_UP = "memory", "file", "dask", "made up"


@dataclass
class ArraySource:
    """stored: lengths of the chunks in which the array is stored or computed; None: it has none.
    form: MEMORY: a NumPy array of this process; FILE: zarr, HDF5, a memory map; DASK: a Dask array;
    MADE_UP: no array, random values."""

    array: Any
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    stored: tuple[int, ...] | None
    form: str

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def stays_here(self) -> bool:
        """Whether slices must be read in this process. A graph with futures needs the client."""
        return self.form == MEMORY or (self.form == DASK and _has_futures(self.array))

    def read(self, index: Slices) -> Any:
        """The values of a slice, in memory."""
        if self.form == MADE_UP:
            return _made_up(_shape_of(self.shape, index), self.dtype)
        found = self.array[index]
        if self.form == DASK:
            found = found.compute()
        if hasattr(found, "__cuda_array_interface__"):
            return found
        return np.array(found, dtype=self.dtype)  # a copy: the function may write into it


def source_of(given: Any) -> ArraySource:
    """FitError if it is no array with a size."""
    if isinstance(given, ArraySource):
        return given
    array, stored, form = given, None, FILE
    if _is_of(given, "xarray"):
        # A Dataset has several arrays, and a shape of none
        array = getattr(given, "data" if _is_chunked(given) else "variable", None)
        chunks = getattr(given, "encoding", {}).get("chunks")
        stored = chunks or getattr(given, "encoding", {}).get("preferred_chunks")
        if isinstance(stored, dict):
            stored = [stored.get(name) for name in given.dims]
    if _is_chunked(array) and hasattr(array, "compute"):
        form, stored = DASK, [max(sizes, default=0) for sizes in array.chunks]
    elif isinstance(array, np.ndarray) and not isinstance(array, np.memmap):
        form = MEMORY
    elif stored is None:
        stored = getattr(array, "chunks", None)
    shape, dtype = getattr(array, "shape", None), getattr(array, "dtype", None)
    if shape is None or dtype is None or not hasattr(array, "__getitem__"):
        raise FitError(
            f"{type(given).__name__} is not an array; give a NumPy, Dask, Zarr, HDF5 or xarray"
            " array with a shape and a dtype"
        )
    dtype = np.dtype(dtype)
    lengths = tuple(_checked_length(length, axis) for axis, length in enumerate(shape))
    if not lengths:
        raise FitError("the array has no axes: a single number has no blocks")
    if dtype.hasobject:
        raise FitError(
            f"elements of dtype {dtype} are Python objects of unknown size; convert the array to"
            " numbers first"
        )
    if not stored or len(stored) != len(lengths) or not all(stored):
        stored = None
    return ArraySource(array, lengths, dtype, stored and tuple(map(int, stored)), form)


def made_up(shape: Sequence[int], dtype: str, stored: Sequence[int] | None = None) -> ArraySource:
    """An array that exists only as a description: trials see random values."""
    lengths = tuple(_checked_length(length, axis) for axis, length in enumerate(shape))
    return ArraySource(None, lengths, np.dtype(dtype), tuple(stored) if stored else None, MADE_UP)


def open_file(path: str) -> ArraySource:
    """A .npy file or a zarr array. FitError if it is neither."""
    try:
        if path.endswith(".npy"):
            return source_of(np.load(path, mmap_mode="r"))
        try:
            import zarr
        except ImportError as error:
            raise FitError(
                f"cannot read {path}: zarr is not installed; pip install zarr"
            ) from error
        found = zarr.open(path, mode="r")
    except FitError:
        raise
    except Exception as error:  # each format has errors of its own
        text = str(error) or type(error).__name__
        raise FitError(f"cannot read {path}: {text}; name a .npy file or a zarr array") from error
    if not hasattr(found, "shape"):
        arrays = ", ".join(sorted(name for name, _ in found.arrays())) or "none"
        raise FitError(f"{path} is a zarr group; name one of its arrays: {arrays}")
    return source_of(found)


def _checked_length(length: Any, axis: int) -> int:
    try:
        found = int(length)  # the length of a Dask array may be NaN
    except (TypeError, ValueError, OverflowError):
        raise FitError(
            f"the length of axis {axis} is not known; call compute_chunk_sizes() first"
        ) from None
    if found <= 0:
        raise FitError(f"axis {axis} has length {found}: there is nothing to split into blocks")
    return found


def _is_of(value: object, library: str) -> bool:
    return type(value).__module__.partition(".")[0] == library


def _is_chunked(array: Any) -> bool:
    """As Dask has it: the lengths of all chunks, for each axis."""
    chunks = getattr(array, "chunks", None)
    return bool(chunks) and isinstance(chunks, tuple) and isinstance(chunks[0], tuple)


def _has_futures(array: Any) -> bool:
    return any(_is_of(value, "distributed") for value in dict(array.dask).values())


def _shape_of(shape: Sequence[int], index: Slices) -> tuple[int, ...]:
    return tuple(len(range(*one.indices(length))) for one, length in zip(index, shape, strict=True))


def _made_up(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
    generator = np.random.default_rng(0)
    if dtype.kind in "fc":
        return generator.standard_normal(shape).astype(dtype)
    if dtype.kind in "iu":
        return generator.integers(0, min(np.iinfo(dtype).max, 1000), shape).astype(dtype)
    return generator.integers(0, 2, shape).astype(dtype)
