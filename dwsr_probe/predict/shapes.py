"""The shape of what a task returns, learned per dimension from pairs of inputs and output, so
that forecasts can be chained through a graph.

Each dimension of the output has a set of rules that explain all pairs seen so far (kept, padded,
scaled, frequencies, summed over the inputs, constant); those that a pair contradicts are
dropped. Sets only shrink, so the order does not matter. Where none is left, or those left
disagree about the inputs asked for, the answer is unknown, not a guess.
"""

import math
from math import gcd

from dwsr_probe.predict.sizes import MOST_BYTES, itemsize_of, text, whole

_INPUTS, _AXES = 4, 8  # looked at
_MOST_RATIO = 16
_APART = 0.1  # of a length: rules that differ less are one answer


def _sources(shapes):
    """Lengths that a dimension of the output may come from, by reference: (input, axis), or
    ("sum", axis) of all inputs."""
    found = {
        (i, axis): length
        for i, shape in enumerate(shapes[:_INPUTS])
        if shape
        for axis, length in enumerate(shape[:_AXES])
    }
    if len(shapes) > 1 and all(
        shape is not None and len(shape) == len(shapes[0] or ()) for shape in shapes
    ):
        found.update(
            {
                ("sum", axis): sum(shape[axis] for shape in shapes)
                for axis in range(min(len(shapes[0]), _AXES))
            }
        )
    return found


def _rules(sources, length):
    """All that give this length: ("kept", source), ("padded", source, by), ("scaled", source,
    numerator, denominator, rounding), ("constant", length)."""
    rules = {("constant", length)}
    for source, given in sources.items():
        rules.add(("kept", source) if given == length else ("padded", source, length - given))
        if given // 2 + 1 == length:
            rules.add(("frequencies", source))  # of a real Fourier transform
        for numerator, denominator in _near(length, given):
            rules.update(
                rule
                for rounding in ("down", "up")
                if _apply(rule := ("scaled", source, numerator, denominator, rounding), sources)
                == length
            )
    return rules


def _near(length, given):
    """Ratios of small numbers other than 1 that could take one to the other: all of them, so
    that it does not matter which pair comes first."""
    for denominator in range(1, _MOST_RATIO + 1):
        low = max(1, (length - 1) * denominator // max(given, 1))
        high = min(_MOST_RATIO, (length + 1) * denominator // max(given, 1) + 1)
        for numerator in range(low, high + 1):
            if numerator != denominator and gcd(numerator, denominator) == 1:
                yield numerator, denominator


def _apply(rule, sources):
    """The length that a rule gives for these sources, or None."""
    if rule[0] == "constant":
        return rule[1]
    given = sources.get(rule[1])
    if given is None:
        return None
    if rule[0] == "kept":
        return given
    if rule[0] == "frequencies":
        return given // 2 + 1
    if rule[0] == "padded":
        return given + rule[2] if given + rule[2] >= 0 else None
    product = given * rule[2]
    return product // rule[3] if rule[4] == "down" else -(-product // rule[3])


def _rank(rule, axis, shift):
    """Which rule is believed first while several explain everything: the same axis kept, then
    aligned at the end, then simpler ratios, constants last."""
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


def _agree(length, rules, sources, axis):
    """Do the rules that explain everything seen say about the same here? Shapes seen were too
    alike to tell them apart otherwise (cubes: which axis was reduced?), and the bytes alone
    (model.py) are then a better guess. An axis that stays is believed at once: most operators
    keep the shape."""
    staying = (
        [rule for rule in rules if rule[0] == "kept" and rule[1][1] == axis and rule[1][0] != "sum"]
        if axis is not None
        else []
    )
    found = [other for rule in staying or rules if (other := _apply(rule, sources)) is not None]
    return all(abs(other - length) <= max(1, _APART * length) for other in found)


class OutputShape:
    """Of one task name."""

    def __init__(self):
        self.dimensions = None  # a set of rules each; None: nothing seen, or too different
        self.dtype = self.type = None
        self.same_dtype = True  # as the first input's, all of the time
        self.bytes_per_element = None  # of outputs whose dtype does not tell
        self.n = 0
        self.unknown = False

    def learn(self, arrays, output):
        shape = output.get("shape")
        if (
            self.unknown
            or not isinstance(shape, (list, tuple))
            or not all(isinstance(length, int) and length >= 0 for length in shape)
            or len(shape) > _AXES
        ):
            self.unknown = True  # the first as well as a later one: order does not matter
            return
        sources = _sources([array.shape for array in arrays])
        if self.dimensions is None:
            self.dimensions = [_rules(sources, length) for length in shape]
            self.dtype, self.type = output.get("dtype"), output.get("type")
        elif len(shape) != len(self.dimensions):
            self.unknown = True
        else:
            self.dimensions = [
                {rule for rule in rules if _apply(rule, sources) == length}
                for rules, length in zip(self.dimensions, shape, strict=True)
            ]
            self.unknown = not all(self.dimensions)
        if output.get("dtype") != self.dtype:
            self.dtype = None
        if output.get("type") != self.type:
            self.type = None
        if not arrays or arrays[0].dtype != output.get("dtype"):
            self.same_dtype = False
        elements = math.prod(shape)
        if (
            itemsize_of(str(output.get("dtype"))) is None
            and elements
            and output.get("nbytes") is not None
        ):
            self.bytes_per_element = max(self.bytes_per_element or 0.0, output["nbytes"] / elements)
        self.n += 1

    def predict(self, arrays):
        """{type, dtype, shape, nbytes}, or None: unknown."""
        if self.unknown or self.dimensions is None:
            return None
        sources = _sources([array.shape for array in arrays])
        most = max((len(array.shape or ()) for array in arrays), default=0)
        shape = []
        for axis, rules in enumerate(self.dimensions):
            rule = min(rules, key=lambda rule: _rank(rule, axis, most - len(self.dimensions)))
            length = _apply(rule, sources)
            if length is None or not _agree(
                length, rules, sources, axis if most == len(self.dimensions) else None
            ):
                return None
            shape.append(length)
        dtype = arrays[0].dtype if self.same_dtype and arrays else self.dtype
        itemsize = itemsize_of(str(dtype)) or self.bytes_per_element
        if itemsize is None:
            return None
        nbytes = round(math.prod(shape) * itemsize)
        return (
            {"type": self.type, "dtype": dtype, "shape": shape, "nbytes": nbytes}
            if nbytes <= MOST_BYTES
            else None
        )

    def merge(self, other):
        if self.unknown or other.unknown:
            self.unknown = True
            return
        if other.n == 0:
            return
        if self.n == 0:
            self.__dict__.update(other.__dict__)  # sets are replaced, never changed
            return
        self.unknown = len(self.dimensions) != len(other.dimensions)
        if not self.unknown:
            self.dimensions = [
                mine & theirs
                for mine, theirs in zip(self.dimensions, other.dimensions, strict=True)
            ]
            self.unknown = not all(self.dimensions)
        self.dtype = self.dtype if self.dtype == other.dtype else None
        self.type = self.type if self.type == other.type else None
        self.same_dtype = self.same_dtype and other.same_dtype
        self.bytes_per_element = (
            max(self.bytes_per_element or 0.0, other.bytes_per_element or 0.0) or None
        )
        self.n += other.n

    def to_dict(self):
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
    def from_dict(cls, kept):
        self = cls()
        self.dtype, self.type, self.same_dtype, self.unknown, self.n = (
            text(kept["dtype"]),
            text(kept["type"]),
            bool(kept["same_dtype"]),
            bool(kept["unknown"]),
            whole(kept["n"], "n"),
        )
        if kept["bytes_per_element"] is not None:
            self.bytes_per_element = float(kept["bytes_per_element"])
            if not 0 <= self.bytes_per_element <= MOST_BYTES:
                raise ValueError("a damaged model: bytes per element")
        if kept["dimensions"] is not None:
            self.dimensions = [
                {
                    tuple(tuple(part) if isinstance(part, list) else part for part in rule)
                    for rule in rules
                }
                for rules in kept["dimensions"]
            ]
            if (
                len(self.dimensions) > _AXES
                or not all(_is_rule(rule) for rules in self.dimensions for rule in rules)
                or not (self.unknown or all(self.dimensions))
            ):
                raise ValueError("a damaged model: rules of the output's shape")
        elif self.n and not self.unknown:
            raise ValueError("a damaged model: no rules of the output's shape")
        return self


def _is_rule(rule):
    kind, *rest = rule
    if kind == "constant":
        return len(rest) == 1 and whole(rest[0], "a length") == rest[0]
    (which, axis), *parts = rest
    if axis not in range(_AXES) or not (which == "sum" or which in range(_INPUTS)):
        return False
    if kind == "padded":
        return len(parts) == 1 and whole(abs(parts[0]), "a length") == abs(parts[0])
    if kind == "scaled":
        return (
            len(parts) == 3
            and all(part in range(1, _MOST_RATIO + 1) for part in parts[:2])
            and parts[2] in ("down", "up")
        )
    return kind in ("kept", "frequencies") and not parts
