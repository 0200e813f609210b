"""Larger and smaller blocks: the inputs of a task at another volume, and the largest volume that
fits into a given amount of memory. Used by the forecast's plot, the report's curves and its advice.

A block is scaled along the axes whose lengths differ among the tasks of its group (`VaryingAxes`):
stacks of images along the first axis, tables along their rows, cubes along all axes. Forecasts are
surest along these axes. If no lengths differ, all axes are scaled by the same factor, except those
shorter than 16.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from dwsr_probe.predict.sizes import parse_inputs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dwsr_probe.predict.forecast import Forecast
    from dwsr_probe.predict.model import Model

Inputs = list[dict[str, Any]]

_SHORT_AXIS = 16  # shorter axes are the columns of a table or the channels of an image
_SCALE_MOST = 8.0
_HALVINGS = 10  # of the interval in which the largest scale is searched
_SIZES = ("nbytes", "logical_bytes")  # of an input


class VaryingAxes:
    """The axes whose lengths differ among the tasks of a group, for each input. An input without a
    shape counts as one axis, whose length is its bytes."""

    def __init__(self) -> None:
        self._first: list[Sequence[int]] | None = None
        self._axes: list[set[int]] = []  # for each input
        self._alike = True  # all tasks had the same number of inputs, with the same numbers of axes

    def add(self, inputs: Inputs) -> None:
        lengths = [_lengths(given) for given in inputs]
        if self._first is None:
            self._first, self._axes = lengths, [set() for _ in lengths]
        elif list(map(len, lengths)) != list(map(len, self._first)):
            self._alike = False
        else:
            for axes, before, now in zip(self._axes, self._first, lengths, strict=True):
                axes.update(axis for axis, length in enumerate(now) if length != before[axis])

    def of_inputs(self, inputs: Inputs) -> list[set[int]] | None:
        """The axes to scale, for each of these inputs; None: not known."""
        if self._first is None or not self._alike or not any(self._axes):
            return None
        axes_counts = [len(_lengths(given)) for given in inputs]
        return self._axes if axes_counts == list(map(len, self._first)) else None


def _shape(given: dict[str, Any]) -> Sequence[int] | None:
    """None: not known, or not of every axis (what a mask selects)."""
    shape = given.get("shape")
    return None if shape is None or None in shape else shape


def _lengths(given: dict[str, Any]) -> Sequence[int]:
    shape = _shape(given)
    return (given.get("nbytes") or 0,) if shape is None else shape


def _long_axes(given: dict[str, Any]) -> set[int]:
    """All axes but the short ones: a table keeps its columns, an image its channels. If all axes
    are short, all of them are scaled."""
    lengths = _lengths(given)
    return {
        axis
        for axis, length in enumerate(lengths)
        if length >= _SHORT_AXIS or max(lengths) < _SHORT_AXIS or _shape(given) is None
    }


def scaled(inputs: Inputs, scale: float, varying_axes: VaryingAxes | None = None) -> Inputs:
    """The same inputs with `scale` times their volume, as far as whole lengths allow. Inputs
    without varying axes stay as they are. A block that the task itself reads (lazy, late) is scaled
    as any other input."""
    axes = varying_axes.of_inputs(inputs) if varying_axes is not None else None
    if axes is None:
        axes = [_long_axes(given) for given in inputs]
    return [_scaled(given, scale, along) for given, along in zip(inputs, axes, strict=True)]


def _scaled(given: dict[str, Any], scale: float, axes: set[int]) -> dict[str, Any]:
    shape, sizes = _shape(given), {n: given[n] for n in _SIZES if given.get(n) is not None}
    if not axes:
        return given
    if shape is None:
        sizes = {name: round(size * scale) for name, size in sizes.items()}
        return {**given, **({"shape": None} if "shape" in given else {}), **sizes}
    factor = scale ** (1 / len(axes))
    lengths = [
        max(1, round(length * factor)) if axis in axes and length else length
        for axis, length in enumerate(shape)
    ]
    before, now = max(math.prod(shape), 1), math.prod(lengths)
    sizes = {name: round(size * now / before) for name, size in sizes.items()}
    return {**given, "shape": lengths, **sizes}


def input_bytes(inputs: Inputs) -> int | None:
    """Bytes of the inputs whose size is known, as the model counts; None: there are inputs, and no
    size is known."""
    arrays = parse_inputs(inputs)
    return sum(array.nbytes for array in arrays) if arrays or not inputs else None


def held_bytes(inputs: Inputs) -> int:
    """Bytes of the inputs that are in memory before the task begins. What the task reads itself
    (lazy, late) is part of its own peak."""
    return sum(
        (given.get("nbytes") or 0) * (given.get("count") or 1)
        if given.get("logical_bytes") is not None
        else input_bytes([given]) or 0
        for given in inputs
        if not given.get("lazy") and not given.get("late")
    )


def largest_scale(
    model: Model,
    task_name: str,
    inputs: Inputs,
    room_bytes: float,
    kind: str = "alloc",
    varying_axes: VaryingAxes | None = None,
    params: dict[str, float] | None = None,
) -> float | None:
    """How many times the volume of these inputs fits into `room_bytes` with 99 % probability, at
    most 8; None if the model's trust is too low to say so, or if nothing fits.

    On the host (kind alloc) the inputs themselves take part of the room. So does what the first
    task in a thread takes in addition. task_name: as in Model.predict."""

    def forecast(block: Inputs) -> Forecast:
        return model.predict(block, task_name, kind, params=params)

    if room_bytes <= 0 or not inputs or not forecast(inputs).is_trusted:
        return None

    def fits(scale: float) -> bool:
        block = scaled(inputs, scale, varying_axes)
        held = held_bytes(block) if kind == "alloc" else 0
        found = forecast(block)
        return held + found.upper(0.99) + found.first_call_bytes <= room_bytes

    low, high = 0.0, _SCALE_MOST
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low or None
