"""Functions of parameters that a peak may be proportional to. param_search.py finds those of a
group; mixture.py uses them as derived.py's functions.

Such a function is alpha * first + beta * base * v**power, with `first` a size function, `base` a
size (or 1) and v a parameter, or the product of two. Or it is base * factor(v), with a factor for
each value seen (levels): between two values it is interpolated, beyond them it is not known.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from dwsr_probe.predict.sizes import (
    FUNCTION_COUNT,
    FUNCTION_NUMBER,
    OUTPUT_COEFFICIENT,
    USES_AXES,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

ONE = "one"  # not a size: for tasks whose memory follows the parameter alone
FACES = "faces"  # bytes of the faces of the largest input, for windows that go beyond it
# Base → powers of the parameter
POWERS = {
    ONE: (1, 2, 3),
    "inputs": (1, 2, 3, -1),
    "output": (1,),
    "axes 0": (1, 2),
    FACES: (1,),
}
BASES = list(POWERS)
_BASE_WEIGHTS = np.zeros((FUNCTION_COUNT, len(BASES)))
for _number, _base in enumerate(BASES):
    if _base in FUNCTION_NUMBER:
        _BASE_WEIGHTS[FUNCTION_NUMBER[_base], _number] = 1.0
_BASE_WEIGHTS[FUNCTION_NUMBER["largest input with a halo of 8"], BASES.index(FACES)] = 1 / 16
_BASE_WEIGHTS[FUNCTION_NUMBER["largest input"], BASES.index(FACES)] = -1 / 16
_BASE_CONSTANTS = np.array([float(base == ONE) for base in BASES])
_BASE_USES_AXES = np.array([base in ("axes 0", FACES) for base in BASES])
_BASE_OUTPUT = np.array([float(base == "output") for base in BASES])


def base_sizes(features: Floats) -> Floats:
    """The bases of one vector of size functions, or of an array of vectors."""
    return features[..., :FUNCTION_COUNT] @ _BASE_WEIGHTS + _BASE_CONSTANTS


class Levels(NamedTuple):
    """A factor for each value of one parameter, by rising values."""

    values: Floats
    factors: Floats


class ParamFunctions(NamedTuple):
    """Arrays, one entry for each function. log_prior: of its weight. first: -1 where there is none.
    slots: places of one or two parameters (-1) among those of the learner. largest: of the values
    seen. levels: where the power is 0."""

    log_prior: Floats
    first: NDArray[np.intp]
    base: NDArray[np.intp]
    slots: NDArray[np.intp]
    power: Floats
    alpha: Floats
    beta: Floats
    largest: Floats
    levels: tuple[Levels | None, ...]

    @property
    def used(self) -> NDArray[np.intp]:
        """The places of all parameters that are needed."""
        return np.unique(self.slots[self.slots >= 0])

    def values(self, features: Floats) -> Floats:
        """features: one vector of size features and parameters, or an array of vectors."""
        first = np.where(self.first < 0, 0.0, features[..., self.first])
        return self.alpha * first + self.beta * self.second(features)

    def second(self, features: Floats) -> Floats:
        bases = base_sizes(features)[..., self.base]
        given = features[..., FUNCTION_COUNT:]
        product = np.where(self.slots < 0, 1.0, given[..., self.slots]).prod(axis=-1)
        with np.errstate(divide="ignore", invalid="ignore"):
            second = bases * product**self.power
        for number, levels in enumerate(self.levels):
            if levels is not None:
                factors = np.interp(given[..., self.slots[number, 0]], *levels)
                second[..., number] = bases[..., number] * factors
        return second

    @property
    def has_levels(self) -> bool:
        return any(self.levels)

    def knows(self, given: Floats) -> Any:
        """Whether all of these parameters that are needed are there, and among the levels. None of
        those seen was below zero, where functions are of numbers. given: one vector, or an array of
        vectors."""
        known = ~np.isnan(given[..., self.used]).any(axis=-1)
        for levels, slots, power in zip(self.levels, self.slots, self.power, strict=True):
            value = given[..., slots[0]]
            if levels is not None:
                known = known & (levels.values[0] <= value) & (value <= levels.values[-1])
            else:
                others = given[..., slots[1]] >= 0 if slots[1] >= 0 else True
                known = known & (value >= 0 if power > 0 else value > 0) & others
        return known

    @property
    def uses_axes(self) -> NDArray[np.bool_]:
        of_first = np.where(self.first < 0, False, USES_AXES[self.first])
        return of_first | _BASE_USES_AXES[self.base]

    @property
    def output_coefficient(self) -> Floats:
        """How many times each function contains the bytes of the output, in the middle."""
        of_first = np.where(self.first < 0, 0.0, OUTPUT_COEFFICIENT[self.first])
        return self.alpha * of_first + self.beta * _BASE_OUTPUT[self.base]

    def only(self, place: int) -> ParamFunctions:
        return ParamFunctions._make(part[place : place + 1] for part in self)
