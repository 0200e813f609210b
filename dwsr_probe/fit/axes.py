"""Does splitting an axis change the values? A small block is computed whole and in two halves, each
half with its halo (`depth`), which is trimmed from the result as `map_overlap` does.

An axis whose halves give other values must stay whole (a Fourier or Hilbert transform along it), or
needs a larger halo: `reach` says how far from the cut values differ. Runs in the process that tries
blocks (child.py); needs NumPy only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

SAME, DIFFERENT, RESHAPED = "same", "different", "reshaped"
RANDOM, TOO_SHORT = "random", "too short"


@dataclass
class AxisCheck:
    """verdict: SAME; DIFFERENT: other values; RESHAPED: the halves cannot be put together, because
    the result does not have this axis; RANDOM: the function gives other values at each call, so
    nothing can be compared; TOO_SHORT: the block is not longer than two halos. reach: distance
    from the cut up to which values differ, in elements; None: everywhere."""

    axis: int
    verdict: str
    reach: int | None = None

    @property
    def must_stay_whole(self) -> bool:
        return self.verdict in (DIFFERENT, RESHAPED)


def check_axes(
    function: Callable[..., Any],
    arrays: Sequence[Any],
    axes: Sequence[int],
    depth: Sequence[int],
) -> list[AxisCheck]:
    """arrays: the inputs of one block; those with the shape of the first one are split with it.
    axes: that may be split. depth: halo along each axis."""
    whole, again = (_called(function, arrays) for _ in range(2))
    if not isinstance(whole, np.ndarray) or not _agree(whole, again):
        return [AxisCheck(axis, RANDOM) for axis in axes]
    return [_check_axis(function, arrays, axis, depth[axis], whole) for axis in axes]


def _check_axis(
    function: Callable[..., Any], arrays: Sequence[Any], axis: int, depth: int, whole: Any
) -> AxisCheck:
    n = arrays[0].shape[axis]
    cut = n // 2
    if cut <= 2 * depth or cut < 2:
        return AxisCheck(axis, TOO_SHORT)
    left = _called(function, [_cut(a, arrays[0], axis, 0, cut + depth) for a in arrays])
    right = _called(function, [_cut(a, arrays[0], axis, cut - depth, n) for a in arrays])
    joined = _joined(left, right, whole, (n, cut, depth))
    if joined is None:
        return AxisCheck(axis, RESHAPED)
    place, values = joined
    if _agree(whole, values):
        return AxisCheck(axis, SAME)
    return AxisCheck(axis, DIFFERENT, _reach(whole, values, place, cut * whole.shape[place] // n))


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
        parts = (
            (_slice(left, axis, 0, cut), _slice(right, axis, depth, None))
            if depth
            else (
                left,
                right,
            )
        )
        shape = list(parts[0].shape)
        shape[axis] += parts[1].shape[axis]
        others = parts[1].shape[:axis] + parts[1].shape[axis + 1 :]
        if tuple(shape) == whole.shape and others == whole.shape[:axis] + whole.shape[axis + 1 :]:
            return axis, np.concatenate(parts, axis=axis)
    return None


def _called(function: Callable[..., Any], arrays: Sequence[Any]) -> Any:
    found = function(*[a.copy() for a in arrays])  # it may write into them
    return found.get() if hasattr(found, "__cuda_array_interface__") else found


def _slice(array: Any, axis: int, start: int, stop: int | None) -> Any:
    return array[(slice(None),) * axis + (slice(start, stop),)]


def _cut(array: Any, first: Any, axis: int, start: int, stop: int) -> Any:
    return _slice(array, axis, start, stop) if array.shape == first.shape else array


def _differs(one: Any, other: Any) -> Any:
    """Where values differ by more than rounding."""
    if one.dtype.kind not in "fc":
        return one != other
    # A float32 result that was computed in another order differs by some units in the last place,
    # relative to the largest values.
    finite = np.isfinite(one)
    scale = np.abs(one[finite]).max(initial=0.0)
    tolerance = float(np.sqrt(np.finfo(one.dtype).eps)) * scale
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
