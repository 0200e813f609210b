"""The inputs of many questions as columns of numbers, so that their size functions and the bytes of
their outputs are computed at once. many.py calls `columns_of`.

Only plain arrays are taken: of known lengths, none of them zero, and of at most a pebibyte, so that
all sums and products of lengths are exact. Formulas are those of sizes.py and rules those of
shapes.py, with arrays in the place of numbers.
"""

from __future__ import annotations

from itertools import chain
from math import prod
from types import NoneType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from dwsr_probe.predict.shapes import TOLERANCE, apply, dimension, sources_of
from dwsr_probe.predict.sizes import (
    AXES_MOST,
    BYTES_MOST,
    INPUTS_MOST,
    Arithmetic,
    all_features,
    axis_features,
    itemsize_of,
    parse_inputs,
    short_text,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from dwsr_probe.predict.shapes import OutputShape, Rule, Source
    from dwsr_probe.predict.sizes import Arrays

    Floats = NDArray[np.float64]
    # Of each input: its axes, its dtype, whether its bytes are given
    Form = tuple[tuple[int, str | None, bool], ...]

_FIELDS = {"type", "dtype", "shape", "nbytes", "lazy", "late"}  # of a plain array
_LISTS = (list, tuple)
_EXACT_MOST = 1 << 50
# Questions of one form that are answered together: fewer are answered sooner one by one, and more
# would take much memory.
_QUESTIONS_LEAST, _QUESTIONS_MOST = 4, 4096


class Columns(NamedTuple):
    """Questions of one form. places: among all questions. first: the inputs of the first one.
    shapes: of the inputs, with an array of lengths for each axis. largest: the place of the largest
    input."""

    places: NDArray[np.intp]
    first: Arrays
    shapes: tuple[tuple[NDArray[np.int64], ...], ...]
    nbytes: Floats  # (inputs, questions)
    elements: Floats  # of all inputs, of eight bytes each
    largest: int

    def total(self) -> Floats:
        """Bytes of all inputs."""
        return self.nbytes.sum(axis=0)

    def features(self, output_bytes: Floats) -> Floats:
        """A vector of size functions for each question."""
        shape = [lengths.astype(float) for lengths in self.shapes[self.largest]]
        nbytes = self.nbytes[self.largest]
        of_axes = axis_features(shape, nbytes, _OF_COLUMNS)
        columns = all_features(self.total(), nbytes, output_bytes, self.elements, of_axes)
        found = np.empty((len(self.places), len(columns)))
        for number, column in enumerate(columns):
            found[:, number] = column
        return found

    def output_bytes(self, rules: OutputShape) -> Floats:
        """By the rules for the shape of the output; NaN where they do not tell."""
        unknown = np.full(len(self.places), np.nan)
        itemsize = rules.itemsize(self.first)
        if rules.unknown or rules.dimensions is None or itemsize is None:
            return unknown
        sources = sources_of(self.shapes)
        shift = max(map(len, self.shapes)) - len(rules.dimensions)
        elements, is_known = np.ones(len(self.places)), np.ones(len(self.places), bool)
        for axis, explaining in enumerate(rules.dimensions):
            preferred, believed = dimension(explaining, axis, shift)
            length = _lengths(preferred, sources)
            if length is None:
                return unknown
            elements, is_known = elements * length, is_known & (length >= 0)
            for rule in believed:
                if (other := _lengths(rule, sources)) is not None:
                    agrees = np.abs(other - length) <= np.maximum(1, TOLERANCE * length)
                    is_known &= agrees | (other < 0)
        nbytes = np.rint(elements * itemsize)
        return np.where(is_known & (nbytes <= BYTES_MOST), nbytes, np.nan)


def columns_of(questions: Sequence[Any]) -> list[Columns]:
    """Of the questions that can be answered together. The other ones are in none of them."""
    by_form: dict[Form, list[int]] = {}
    for place, inputs in enumerate(questions):
        if (form := _form(inputs)) is not None:
            by_form.setdefault(form, []).append(place)
    found = []
    for form, places in by_form.items():
        for begin in range(0, len(places), _QUESTIONS_MOST):
            some = places[begin : begin + _QUESTIONS_MOST]
            found += _columns(form, some, [questions[place] for place in some])
    return found


def _form(inputs: Any) -> Form | None:
    """What the questions of one form have in common; None: their inputs are not plain arrays."""
    if type(inputs) not in _LISTS or not 0 < len(inputs) <= INPUTS_MOST:
        return None
    form = []
    for given in inputs:
        if type(given) is not dict or not _FIELDS.issuperset(given):
            return None
        shape: Any = given.get("shape")
        dtype: Any = given.get("dtype")
        if (
            type(shape) not in _LISTS
            or not 0 < len(shape) <= AXES_MOST
            or not (dtype is None or type(dtype) is str)
        ):
            return None
        form.append((len(shape), dtype, given.get("nbytes") is not None))
    return tuple(form)


def _columns(form: Form, places: list[int], asked: list[Any]) -> list[Columns]:
    """For each input that is the largest one of some of the questions."""
    if len(places) < _QUESTIONS_LEAST:
        return []
    columns = list(zip(*asked, strict=True))  # of each input
    if not all(map(_has_integers, columns)):
        good = [n for n, inputs in enumerate(asked) if _has_integers(inputs)]
        return _columns(form, [places[n] for n in good], [asked[n] for n in good])
    try:
        lengths = [np.array([given["shape"] for given in column], float).T for column in columns]
        sizes = [
            np.array([given["nbytes"] for given in column], float) if has_bytes else None
            for column, (*_, has_bytes) in zip(columns, form, strict=True)
        ]
    except OverflowError:  # an integer with more digits than a float can hold
        return []
    with np.errstate(over="ignore", invalid="ignore"):
        volumes = np.array([one.prod(axis=0) for one in lengths])
        for number, (_, dtype, _) in enumerate(form):
            if sizes[number] is None:
                sizes[number] = volumes[number] * (itemsize_of(str(short_text(dtype))) or 8)
        nbytes, elements = np.array(sizes), 8 * volumes.sum(axis=0)
        is_plain = (nbytes > 0).all(axis=0)
        is_plain &= np.maximum(nbytes.sum(axis=0), elements) <= _EXACT_MOST
    for one in lengths:
        is_plain &= (one > 0).all(axis=0)
    found, largest = [], nbytes.argmax(axis=0)
    for number in range(len(form)):
        chosen = is_plain & (largest == number)
        if chosen.any():
            found.append(
                Columns(
                    np.array(places)[chosen],
                    parse_inputs(asked[int(chosen.argmax())]),
                    tuple(tuple(one[:, chosen].astype(np.int64)) for one in lengths),
                    nbytes[:, chosen],
                    elements[chosen],
                    number,
                )
            )
    return found


def _has_integers(inputs: Iterable[Any]) -> bool:
    lengths = chain.from_iterable(given["shape"] for given in inputs)
    nbytes = {type(given.get("nbytes")) for given in inputs}
    return {*map(type, lengths)} == {int} and nbytes <= {int, NoneType}


def _lengths(rule: Rule, sources: dict[Source, Any]) -> Any:
    """What a rule gives for each question, below zero if it cannot hold; None: for none."""
    if rule[0] == "padded":
        return None if rule[1] not in sources else sources[rule[1]] + rule[2]
    return apply(rule, sources)


def _next_power_of_two(lengths: Floats) -> Floats:
    return np.ldexp(1.0, np.frexp(lengths - 1)[1])


def _padded(shape: Sequence[Floats], halo: int) -> Any:
    return prod(np.where(lengths >= halo, lengths + 2 * halo, lengths) for lengths in shape)


def _shortest(shape: Sequence[Floats]) -> Floats:
    lengths = np.array(shape)
    longer = lengths > 1
    shortest = np.where(longer, lengths, np.inf).min(axis=0)
    return np.where(longer.sum(axis=0) > (len(shape) > 1), shortest, 1.0)


_OF_COLUMNS = Arithmetic(np.log2, np.ceil, _next_power_of_two, _padded, _shortest)
