"""The shape of what a task returns, learned per dimension from pairs of inputs and output, so
that forecasts can be chained through a graph. task.py has one OutputShape per task name.

Each dimension of the output has a set of rules that explain all pairs seen so far (kept, padded,
scaled, frequencies, summed over the inputs, constant). Rules that a pair contradicts are dropped.
Sets only shrink, so the order of pairs does not matter. Where no rule is left, or the rules left
disagree about the inputs in question, the answer is unknown, not a guess.
"""

from __future__ import annotations

import math
from functools import lru_cache
from math import gcd
from typing import TYPE_CHECKING, Any, NamedTuple

from dwsr_probe.predict.sizes import BYTES_MOST, itemsize_of, non_negative_int, short_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from dwsr_probe.predict.sizes import Arrays

    # The place of a length: (number of the input, axis), or ("sum", axis) over all inputs.
    Source = tuple[Any, int]
    # ("constant", length), ("kept", source), ("frequencies", source), ("padded", source, by) or
    # ("scaled", source, numerator, denominator, "down" or "up"). Saved models have the same lists.
    Rule = tuple[Any, ...]

_INPUTS_MOST, _AXES_MOST = 4, 8  # inputs and axes that rules refer to
_RATIO_MOST = 16  # numerator and denominator
TOLERANCE = 0.1  # relative: rules whose lengths differ less agree


def sources_of(shapes: Sequence[tuple[Any, ...] | None]) -> dict[Source, Any]:
    """The lengths that a dimension of the output may come from: numbers, or arrays of them
    (columns.py). shapes: of the inputs."""
    found: dict[Source, Any] = {
        (number, axis): length
        for number, shape in enumerate(shapes[:_INPUTS_MOST])
        if shape
        for axis, length in enumerate(shape[:_AXES_MOST])
    }
    known = [shape for shape in shapes if shape is not None]
    if len(shapes) > 1 and len(known) == len(shapes) and len({*map(len, known)}) == 1:
        for axis in range(min(len(known[0]), _AXES_MOST)):
            found["sum", axis] = sum(shape[axis] for shape in known)
    return found


def _rules(sources: dict[Source, int], length: int) -> frozenset[Rule]:
    """All rules that give this length."""
    rules: set[Rule] = {("constant", length)}
    for source, source_length in sources.items():
        rules.add(
            ("kept", source)
            if source_length == length
            else ("padded", source, length - source_length)
        )
        if source_length // 2 + 1 == length:
            rules.add(("frequencies", source))  # of a real Fourier transform
        for numerator, denominator in _ratios(length, source_length):
            rules.update(
                rule
                for rounding in ("down", "up")
                if apply(rule := ("scaled", source, numerator, denominator, rounding), sources)
                == length
            )
    return frozenset(rules)


def _ratios(length: int, source_length: int) -> Iterator[tuple[int, int]]:
    """All ratios of small numbers, except 1, that could turn `source_length` into `length`: all, so
    that the order of pairs does not matter."""
    for denominator in range(1, _RATIO_MOST + 1):
        low = max(1, (length - 1) * denominator // max(source_length, 1))
        high = min(_RATIO_MOST, (length + 1) * denominator // max(source_length, 1) + 1)
        for numerator in range(low, high + 1):
            if numerator != denominator and gcd(numerator, denominator) == 1:
                yield numerator, denominator


def apply(rule: Rule, sources: dict[Source, int]) -> int | None:
    """The length that a rule gives for these sources, or None."""
    if rule[0] == "constant":
        return rule[1]
    source_length = sources.get(rule[1])
    if source_length is None:
        return None
    if rule[0] == "kept":
        return source_length
    if rule[0] == "frequencies":
        return source_length // 2 + 1
    if rule[0] == "padded":
        return padded if (padded := source_length + rule[2]) >= 0 else None
    product = source_length * rule[2]
    return product // rule[3] if rule[4] == "down" else -(-product // rule[3])


def _rank(rule: Rule, axis: int, shift: int) -> tuple[Any, ...]:
    """The order of preference while several rules explain all pairs: the same axis kept, then axes
    aligned at the end, then simpler ratios, constants last. shift: axes that the inputs have more
    than the output."""
    kind = ("kept", "scaled", "frequencies", "padded", "constant").index(rule[0])
    if rule[0] == "constant":
        return (kind,)
    source = rule[1]
    place = 0 if source[1] == axis else 1 if source[1] == axis + shift else 2
    return (
        kind,
        source[0] == "sum",
        place,
        str(source),
        *(abs(part) if isinstance(part, int) else 0 for part in rule[2:]),
    )


class _Dimension(NamedTuple):
    """How the length of one dimension is told: by the preferred rule. believed: the other rules,
    which must give about the same length."""

    preferred: Rule
    believed: tuple[Rule, ...]


@lru_cache(maxsize=4096)
def dimension(rules: frozenset[Rule], axis: int, shift: int) -> _Dimension:
    """A rule that keeps this axis is believed at once, because most operators keep the shape.
    shift: axes that the inputs have more than the output; 0 if axes may be kept."""
    preferred = min(rules, key=lambda rule: _rank(rule, axis, shift))
    keeping = [
        rule
        for rule in rules
        if not shift and rule[0] == "kept" and rule[1][1] == axis and rule[1][0] != "sum"
    ]
    return _Dimension(preferred, tuple(rule for rule in keeping or rules if rule != preferred))


def _agree(length: int, rules: Iterable[Rule], sources: dict[Source, int]) -> bool:
    """Do all rules give about this length here? If not, the shapes seen were too alike to tell the
    rules apart (cubes: which axis was reduced?), and the learner of the bytes is the better
    guess."""
    found = [other for rule in rules if (other := apply(rule, sources)) is not None]
    return all(abs(other - length) <= max(1, TOLERANCE * length) for other in found)


def _explaining(rules: frozenset[Rule], length: int, sources: dict[Source, int]) -> frozenset[Rule]:
    kept = [rule for rule in rules if apply(rule, sources) == length]
    return rules if len(kept) == len(rules) else frozenset(kept)


class OutputShape:
    """The output of one task name."""

    def __init__(self) -> None:
        self.dimensions: list[frozenset[Rule]] | None = None  # None: nothing seen
        self.dtype: str | None = None
        self.type: str | None = None
        self.same_dtype = True  # always that of the first input
        self.bytes_per_element: float | None = None  # of dtypes without a fixed size
        self.n = 0
        self.unknown = False  # no rule explains all pairs

    def learn(self, arrays: Arrays, output: dict[str, Any]) -> None:
        shape = output.get("shape")
        if (
            self.unknown
            or not isinstance(shape, (list, tuple))
            or not all(isinstance(length, int) and length >= 0 for length in shape)
            or len(shape) > _AXES_MOST
        ):
            self.unknown = True  # for good, so that the order of pairs does not matter
            return
        sources = sources_of([array.shape for array in arrays])
        if self.dimensions is None:
            self.dimensions = [_rules(sources, length) for length in shape]
            self.dtype, self.type = output.get("dtype"), output.get("type")
        elif len(shape) != len(self.dimensions):
            self.unknown = True
        else:
            self.dimensions = [
                _explaining(rules, length, sources)
                for rules, length in zip(self.dimensions, shape, strict=True)
            ]
            self.unknown = not all(self.dimensions)
        if output.get("dtype") != self.dtype:
            self.dtype = None
        if output.get("type") != self.type:
            self.type = None
        if not arrays or arrays[0].dtype != output.get("dtype"):
            self.same_dtype = False
        elements, nbytes = math.prod(shape), output.get("nbytes")
        itemsize = itemsize_of(str(output.get("dtype")))
        if elements and nbytes is not None:
            if itemsize is None:
                self.bytes_per_element = max(self.bytes_per_element or 0.0, nbytes / elements)
            elif not 0.99 < nbytes / (elements * itemsize) < 1.01:
                self.unknown = True  # a sparse array: its axes say nothing about its bytes
        self.n += 1

    def predict(self, arrays: Arrays) -> dict[str, Any] | None:
        """{type, dtype, shape, nbytes}, or None: unknown."""
        if self.unknown or self.dimensions is None:
            return None
        sources = sources_of([array.shape for array in arrays])
        shift = max([len(array.shape or ()) for array in arrays], default=0) - len(self.dimensions)
        shape = []
        for axis, rules in enumerate(self.dimensions):
            preferred, believed = dimension(rules, axis, shift)
            length = apply(preferred, sources)
            if length is None or (believed and not _agree(length, believed, sources)):
                return None
            shape.append(length)
        dtype = self._dtype(arrays)
        itemsize = self.itemsize(arrays)
        if itemsize is None:
            return None
        nbytes = round(math.prod(shape) * itemsize)
        return (
            {"type": self.type, "dtype": dtype, "shape": shape, "nbytes": nbytes}
            if nbytes <= BYTES_MOST
            else None
        )

    def _dtype(self, arrays: Arrays) -> str | None:
        return arrays[0].dtype if self.same_dtype and arrays else self.dtype

    def itemsize(self, arrays: Arrays) -> float | None:
        """Bytes of one element of the output; None: not known."""
        return itemsize_of(str(self._dtype(arrays))) or self.bytes_per_element

    def merge(self, other: OutputShape) -> None:
        if self.unknown or other.unknown:
            self.unknown = True
            return
        if other.n == 0:
            return
        if self.n == 0:
            self.__dict__.update(other.__dict__)  # sets are replaced, never changed
            return
        ours, theirs = self.dimensions or [], other.dimensions or []
        self.unknown = len(ours) != len(theirs)
        if not self.unknown:
            self.dimensions = [one & two for one, two in zip(ours, theirs, strict=True)]
            self.unknown = not all(self.dimensions)
        self.dtype = self.dtype if self.dtype == other.dtype else None
        self.type = self.type if self.type == other.type else None
        self.same_dtype = self.same_dtype and other.same_dtype
        self.bytes_per_element = (
            max(self.bytes_per_element or 0.0, other.bytes_per_element or 0.0) or None
        )
        self.n += other.n

    def to_dict(self) -> dict[str, Any]:
        dimensions = (
            None
            if self.dimensions is None
            else [
                sorted(
                    (
                        [list(part) if isinstance(part, tuple) else part for part in rule]
                        for rule in rules
                    ),
                    key=str,
                )
                for rules in self.dimensions
            ]
        )
        return {
            "dimensions": dimensions,
            "dtype": self.dtype,
            "type": self.type,
            "same_dtype": self.same_dtype,
            "bytes_per_element": self.bytes_per_element,
            "n": self.n,
            "unknown": self.unknown,
        }

    @classmethod
    def from_dict(cls, saved: dict[str, Any]) -> OutputShape:
        """ValueError if to_dict cannot have given this."""
        self = cls()
        self.dtype, self.type = short_text(saved["dtype"]), short_text(saved["type"])
        self.same_dtype, self.unknown = bool(saved["same_dtype"]), bool(saved["unknown"])
        self.n = non_negative_int(saved["n"], "n")
        if saved["bytes_per_element"] is not None:
            self.bytes_per_element = float(saved["bytes_per_element"])
            if not 0 <= self.bytes_per_element <= BYTES_MOST:
                raise ValueError("a damaged model: bytes per element")
        if saved["dimensions"] is not None:
            self.dimensions = [
                frozenset(
                    tuple(tuple(part) if isinstance(part, list) else part for part in rule)
                    for rule in rules
                )
                for rules in saved["dimensions"]
            ]
            if (
                len(self.dimensions) > _AXES_MOST
                or not all(_is_rule(rule) for rules in self.dimensions for rule in rules)
                or not (self.unknown or all(self.dimensions))
            ):
                raise ValueError("a damaged model: rules of the output's shape")
        elif self.n and not self.unknown:
            raise ValueError("a damaged model: no rules of the output's shape")
        return self


def _is_rule(rule: Rule) -> bool:
    kind, *rest = rule
    if kind == "constant":
        return len(rest) == 1 and non_negative_int(rest[0], "a length") == rest[0]
    (which, axis), *parts = rest
    if axis not in range(_AXES_MOST) or not (which == "sum" or which in range(_INPUTS_MOST)):
        return False
    if kind == "padded":
        return len(parts) == 1 and non_negative_int(abs(parts[0]), "a length") == abs(parts[0])
    if kind == "scaled":
        return (
            len(parts) == 3
            and all(part in range(1, _RATIO_MOST + 1) for part in parts[:2])
            and parts[2] in ("down", "up")
        )
    return kind in ("kept", "frequencies") and not parts
