"""The array whose blocks are fitted: NumPy, Dask, Zarr, xarray, HDF5, or a description alone.

`source_of` finds the shape, the dtype and the chunks in which the array is stored. A source is
pickled and sent to the process that tries blocks (child.py), which reads slices of it. Arrays that
are in memory, that cannot be pickled (h5py), or that only this process can compute (through its
Client) stay here: their slices are read by `read` and sent one by one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from dwsr_probe.fit.error import FitError
from dwsr_probe.fit.function import pickled
from dwsr_probe.fit.limits import running_client

if TYPE_CHECKING:
    from collections.abc import Sequence

    Slices = tuple[slice, ...]

MEMORY, FILE, DASK, MADE_UP = "memory", "file", "dask", "made up"
_SENT_BYTES_MOST = 16 << 20


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

    @cached_property
    def sent(self) -> bytes | None:
        """As the process that tries blocks can load it. None: slices must be read here."""
        if self.form == MEMORY or isinstance(self.array, np.memmap):
            return None
        if self.form == DASK and running_client() is not None:  # its graph may hold futures
            return None
        try:
            return pickled(self, _SENT_BYTES_MOST)
        except FitError:
            return None

    def read(self, index: Slices) -> Any:
        """The values of a slice, in memory."""
        if self.form == MADE_UP:
            return random_values(_shape_of(self.shape, index), self.dtype)
        found = self.array[index]
        if self.form == DASK:
            found = found.compute()
        if hasattr(found, "__cuda_array_interface__"):
            return found
        # A copy: the function may write into it. A masked array keeps its mask.
        return np.array(found, dtype=self.dtype, subok=self.form in (MEMORY, DASK))


def source_of(given: Any) -> ArraySource:
    """FitError if it is no array with a size."""
    if isinstance(given, ArraySource):
        return given
    array, stored, form = given, None, FILE
    if _is_of(given, "xarray"):
        array, stored = _of_xarray(given)
    if _is_chunked(array) and hasattr(array, "compute"):
        form, stored = DASK, [max(sizes, default=0) for sizes in array.chunks]
    elif isinstance(array, np.ndarray) and not isinstance(array, np.memmap):
        form, stored = MEMORY, None
    elif stored is None:
        stored = getattr(array, "chunks", None)
    shape, dtype = getattr(array, "shape", None), getattr(array, "dtype", None)
    if shape is None or dtype is None or not hasattr(array, "__getitem__"):
        raise FitError(
            f"{type(given).__name__} is not an array; give a NumPy, Dask, Zarr, HDF5 or xarray"
            " array with a shape and a dtype"
        )
    dtype = _checked_dtype(dtype)
    lengths = _checked_lengths(shape)
    if not stored or len(stored) != len(lengths) or not all(stored):
        stored = None
    chunks = None if stored is None else tuple(map(int, stored))
    return ArraySource(array, lengths, dtype, chunks, form)


def made_up(shape: Sequence[int], dtype: str, stored: Sequence[int] | None = None) -> ArraySource:
    """An array that exists only as a description: trials see random values."""
    lengths, chunks = _checked_lengths(shape), None
    if stored:
        chunks = _checked_lengths(stored)
        if len(chunks) != len(lengths):
            raise FitError(f"stored chunks have {len(chunks)} axes, the array has {len(lengths)}")
    return ArraySource(None, lengths, _checked_dtype(dtype), chunks, MADE_UP)


def shared_axes(first: Sequence[int], shape: Sequence[int]) -> dict[int, int]:
    """Axes of an array of this shape that are cut with axes of the first one: aligned at the last
    axes, as NumPy broadcasts, and as long."""
    offset = len(first) - len(shape)
    return {offset + axis: axis for axis, n in enumerate(shape) if n == first[offset + axis]}


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


def _of_xarray(given: Any) -> tuple[Any, Any]:
    """(array that is read, lengths of its stored chunks or None)"""
    if not hasattr(given, "dtype"):  # a Dataset, which has several arrays
        return None, None
    if _is_chunked(given):
        return given.data, None
    variable = getattr(given, "variable", given)
    if getattr(variable, "_in_memory", False):
        return given.values, None
    encoding = getattr(given, "encoding", {})
    by_name = encoding.get("preferred_chunks")
    if isinstance(by_name, dict):  # right for transposed arrays, too
        return variable, [by_name.get(name) for name in given.dims]
    return variable, encoding.get("chunks") or encoding.get("chunksizes")


def _checked_dtype(given: Any) -> np.dtype[Any]:
    try:
        found = np.dtype(given)
    except TypeError:
        raise FitError(f"{given!r} is not a NumPy dtype; write float32, for example") from None
    if found.hasobject:
        raise FitError(
            f"elements of dtype {found} are Python objects of unknown size; convert the array to"
            " numbers first"
        )
    return found


def _checked_lengths(shape: Sequence[Any]) -> tuple[int, ...]:
    if not len(shape):
        raise FitError("the array has no axes: a single number has no blocks")
    return tuple(_checked_length(length, axis) for axis, length in enumerate(shape))


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


def _shape_of(shape: Sequence[int], index: Slices) -> tuple[int, ...]:
    return tuple(len(range(*one.indices(length))) for one, length in zip(index, shape, strict=True))


def random_values(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
    generator = np.random.default_rng(0)
    if dtype.kind in "fc":
        return generator.standard_normal(shape).astype(dtype)
    most = min(np.iinfo(dtype).max, 1000) if dtype.kind in "iu" else 2
    return generator.integers(0, most, shape).astype(dtype)
