"""Does splitting an axis change the values? A small block is computed whole and in two halves, each
half with its halo (`depth`), which is trimmed from the result as `map_overlap` does.

An axis whose halves give other values must stay whole (a Fourier or Hilbert transform along it), or
needs a larger halo: `reach` says how large. Runs in the process that tries blocks (child.py); needs
NumPy only.
"""

from __future__ import annotations

import time
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Shared = dict[int, int]  # axes of another array that are cut with these axes of the first one

SAME, DIFFERENT, RESHAPED, FAILED = "same", "different", "reshaped", "failed"
RANDOM, UNCHECKED = "random", "unchecked"

_TOO_SHORT = "it is not longer than two halos"
_NO_ARRAY = "the function returns no array"
_TOO_SLOW = "the check would take too long"


@dataclass
class AxisCheck:
    """verdict: SAME; DIFFERENT: other values; RESHAPED: the halves cannot be put together, because
    the result does not have this axis; FAILED: the function fails on a half; RANDOM: the function
    gives other values at each call, so nothing can be compared; UNCHECKED: reason says why.
    reach: the halo beyond which all values are the same, in elements; None: there is none."""

    axis: int
    verdict: str
    reach: int | None = None
    reason: str = ""

    @property
    def must_stay_whole(self) -> bool:
        return self.verdict in (DIFFERENT, RESHAPED, FAILED)


@dataclass
class Allowed:
    """How long a check may take: so many seconds, or so many times the first call."""

    seconds: float
    calls: float = 0.0
    clock: Callable[[], float] = time.perf_counter

    def __post_init__(self) -> None:
        self._began, self._call_seconds = self.clock(), 0.0

    def called(self) -> None:
        self._call_seconds = self._call_seconds or self.clock() - self._began

    def is_enough(self) -> bool:
        """For one more call."""
        until = max(self.seconds, self.calls * self._call_seconds)
        return self.clock() - self._began + self._call_seconds <= until


def check_axes(
    function: Callable[..., Any],
    arrays: Sequence[Any],
    axes: Sequence[int],
    depth: Sequence[int],
    shared: Sequence[Shared],
    allowed: Allowed,
) -> list[AxisCheck]:
    """arrays: the inputs of one block. axes: that may be cut. depth: halo along each axis. shared:
    of each array. An exception of the function on the whole block is the caller's."""
    arrays = [_varied(array) for array in arrays]
    whole = _called(function, arrays)
    allowed.called()
    if not isinstance(whole, np.ndarray):
        return [AxisCheck(axis, UNCHECKED, reason=_NO_ARRAY) for axis in axes]
    if not allowed.is_enough():
        return [AxisCheck(axis, UNCHECKED, reason=_TOO_SLOW) for axis in axes]
    if not _agree(whole, _called(function, arrays)):
        return [AxisCheck(axis, RANDOM) for axis in axes]
    return [
        _check_axis(function, arrays, axis, depth[axis], whole, shared)
        if allowed.is_enough()
        else AxisCheck(axis, UNCHECKED, reason=_TOO_SLOW)
        for axis in axes
    ]


def _check_axis(
    function: Callable[..., Any],
    arrays: Sequence[Any],
    axis: int,
    depth: int,
    whole: Any,
    shared: Sequence[Shared],
) -> AxisCheck:
    n = arrays[0].shape[axis]
    cut = _place_of_cut(n)
    if cut <= depth:
        return AxisCheck(axis, UNCHECKED, reason=_TOO_SHORT)
    try:
        left, right = (
            _called(function, [_cut(*one, axis, *ends) for one in zip(arrays, shared, strict=True)])
            for ends in ((0, cut + depth), (cut - depth, n))
        )
    except Exception:  # whatever the user's function raises
        return AxisCheck(axis, FAILED)
    joined = _joined(left, right, whole, (n, cut, depth))
    if joined is None:
        return AxisCheck(axis, RESHAPED)
    place, values = joined
    if _agree(whole, values):
        return AxisCheck(axis, SAME)
    reach = _reach(whole, values, place, cut * whole.shape[place] // n)
    return AxisCheck(axis, DIFFERENT, None if reach is None else depth + reach)


def _place_of_cut(n: int) -> int:
    """About the middle, and no multiple of 2 or 3: blocks that a function makes smaller by such a
    factor have the same values only if all of them are cut at multiples of it."""
    cut = n // 2
    return cut - (cut - 1) % (6 if cut > 6 else 2) if cut else 0


def _varied(array: Any) -> Any:
    """Other values near them instead of equal ones, which often stay the same whatever is cut."""
    if array.dtype.kind not in "fciu" or array.size < 2 or type(array) is not np.ndarray:
        return array
    value = array.flat[0]
    if _differs(np.full(1, value), array).any():
        return array
    generator = np.random.default_rng(0)
    if array.dtype.kind in "iu":
        least = min(int(value), np.iinfo(array.dtype).max - 1)
        return generator.integers(least, least + 2, array.shape, array.dtype)
    value = value if np.isfinite(value) else 0
    values = value + (abs(value) or 1) * generator.random(array.shape)
    return np.asarray(values, array.dtype)


def _joined(
    left: Any, right: Any, whole: Any, lengths: tuple[int, int, int]
) -> tuple[int, Any] | None:
    """(axis of the result, values): the results of both halves as one. The axis may have another
    number in the result, or another length if there is no halo to trim. None: they do not fit
    together. lengths: of the axis, of the left half, of the halo."""
    n, cut, depth = lengths
    if not all(isinstance(half, np.ndarray) and half.ndim == whole.ndim for half in (left, right)):
        return None
    for axis in range(whole.ndim):
        if depth and (left.shape[axis], right.shape[axis]) != (cut + depth, n - cut + depth):
            continue
        parts = left, right
        if depth:
            parts = _slice(left, axis, 0, cut), _slice(right, axis, depth, None)
        shape = list(parts[0].shape)
        shape[axis] += parts[1].shape[axis]
        others = parts[1].shape[:axis] + parts[1].shape[axis + 1 :]
        if tuple(shape) == whole.shape and others == whole.shape[:axis] + whole.shape[axis + 1 :]:
            return axis, np.concatenate(parts, axis=axis)
    return None


def _called(function: Callable[..., Any], arrays: Sequence[Any]) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the trials have the same ones
        found = function(*[a.copy() for a in arrays])  # it may write into them
    if hasattr(found, "__cuda_array_interface__"):
        return found.get()
    if isinstance(found, np.ma.MaskedArray):
        return found.filled()
    return np.asarray(found) if isinstance(found, (np.generic, int, float, complex)) else found


def _slice(array: Any, axis: int, start: int, stop: int | None) -> Any:
    return array[(slice(None),) * axis + (slice(start, stop),)]


def _cut(array: Any, shared: Shared, axis: int, start: int, stop: int) -> Any:
    return _slice(array, shared[axis], start, stop) if axis in shared else array


def _differs(one: Any, other: Any) -> Any:
    """Where values differ by more than rounding."""
    if one.dtype.kind not in "fc":
        return one != other
    # A float32 result that was computed in another order differs by some units in the last place,
    # relative to the largest values.
    finite = np.isfinite(one)
    scale = np.abs(one[finite]).max(initial=0.0)
    tolerance = float(np.finfo(one.dtype).eps) ** (2 / 3) * scale
    with np.errstate(invalid="ignore"):
        close = np.abs(one - other) <= tolerance
    return ~(close | (one == other) | (np.isnan(one) & np.isnan(other)))


def _agree(one: Any, other: Any) -> bool:
    return (
        isinstance(other, np.ndarray)
        and one.shape == other.shape
        and one.dtype == other.dtype
        and not _differs(one, other).any()
    )


def _reach(whole: Any, joined: Any, axis: int, cut: int) -> int | None:
    others = tuple(i for i in range(whole.ndim) if i != axis)
    places = np.flatnonzero(_differs(whole, joined).any(axis=others))
    reach = int(max(cut - places.min(), places.max() - cut + 1))
    return reach if reach <= min(cut, whole.shape[axis] - cut) // 2 else None
