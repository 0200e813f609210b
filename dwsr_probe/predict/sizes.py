"""Size functions: what the peak of a task may be proportional to, in bytes. They are the candidate
features of the regression in posterior.py, which says for every task name which one holds.

`size_features(arrays, output_bytes)` is the vector of all of them. The arrays come from the inputs
of a record (`parse_inputs`): arrays, dataframes (rows x columns), or bytes alone.
"""

from __future__ import annotations

import math
from functools import lru_cache
from itertools import combinations
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    Features = NDArray[np.float64]

BYTES_MOST = 1 << 60
# Axes of the largest input that are features of their own; of more axes the leading ones are folded
# into one.
_FEATURE_AXES = 4
INPUTS_MOST = 64  # the rest is folded into one input
_COUNT_MOST = 1 << 20  # of equal inputs in succession
AXES_MOST = 64  # as in NumPy
_TEXT_MOST = 256  # characters of the name of a dtype or a type
_HASH_LOAD = 0.77  # of the hash tables in pandas
_HALOS = (2, 8, 32)
# The square of the smallest axis beside the input: the work space of linear algebra.
_SQUARE_COEFFICIENTS = (1.0, 4.0)
_OUTPUT_COEFFICIENTS = (0.25, 0.5, 1.0, 2.0, 4.0)  # of the output beside the inputs
_AXIS_SUBSETS = [axes for count in (3, 2, 1) for axes in combinations(range(_FEATURE_AXES), count)]

# Name and logarithm of the prior weight. Simple functions weigh most. Functions of single axes are
# many, and with few values one of them fits by chance: they weigh least.
SIZE_FUNCTIONS: list[tuple[str, float]] = (
    [("inputs", 0.0), ("largest input", -1.0), ("output", -1.5), ("elements", -2.0)]
    + [
        (f"inputs and {coefficient:g} x output", -1.0 - abs(math.log2(coefficient)) / 2)
        for coefficient in _OUTPUT_COEFFICIENTS
    ]
    + [(f"largest input with a halo of {halo}", -2.5) for halo in _HALOS]
    + [
        ("n log n, last axis", -3.5),
        ("n log n, first axis", -3.5),
        ("last axis to a power of two", -3.5),
        ("hash table of the rows", -3.5),
    ]
    # the first axis alone is more likely than others: the rows of a table
    + [
        ("axes " + "x".join(map(str, axes)), -3.5 if axes == (0,) else -6.0)
        for axes in _AXIS_SUBSETS
    ]
    + [("first axis squared", -5.0), ("last axis squared", -5.0), ("smallest axis squared", -5.0)]
    + [
        (f"largest input and {coefficient:g} x smallest axis squared", -3.5)
        for coefficient in _SQUARE_COEFFICIENTS
    ]
    + [("constant", -3.0)]
)
FUNCTION_COUNT = len(SIZE_FUNCTIONS)
FUNCTION_NUMBER = {name: number for number, (name, _) in enumerate(SIZE_FUNCTIONS)}
LOG_PRIOR = np.array([weight for _, weight in SIZE_FUNCTIONS])
# Places in the vector: the bytes of all inputs, the elements, the first function with a halo.
ALL_INPUTS, OUTPUT, _ELEMENTS, _FIRST_HALO = 0, 2, 3, 4 + len(_OUTPUT_COEFFICIENTS)
_AXIS_FUNCTIONS = FUNCTION_COUNT - 1 - _FIRST_HALO
# The functions that use the axes of the largest input.
USES_AXES = np.array(
    [
        number == _ELEMENTS or _FIRST_HALO <= number < FUNCTION_COUNT - 1
        for number in range(FUNCTION_COUNT)
    ]
)
# How many times each function contains the bytes of the output.
OUTPUT_COEFFICIENT = np.array(
    [
        1.0 if name == "output" else float(name.split()[2]) if name.endswith("x output") else 0.0
        for name, _ in SIZE_FUNCTIONS
    ]
)


def _next_power_of_two(length: int) -> int:
    return 1 << (length - 1).bit_length()


class Array(NamedTuple):
    """One input, or an output."""

    shape: tuple[int, ...] | None  # None: only its bytes are known
    nbytes: int
    dtype: str | None = None


Arrays = tuple[Array, ...]


def non_negative_int(value: Any, what: str, most: float = BYTES_MOST) -> int:
    """A count or a number of bytes. ValueError, which begins with `what`, for anything else."""
    if type(value) is int and 0 <= value <= most:  # nearly always
        return value
    if (
        isinstance(value, bool)
        or not isinstance(value, (int, float, np.integer, np.floating))
        or value != value
    ):
        raise ValueError(f"{what} is {str(value)[:60]!r}, not a number")
    if value < 0:
        raise ValueError(f"{what} is below zero")
    # Before int(): an integer of JSON may have more digits than a float can hold.
    if value > most:
        raise ValueError(f"{what} is more than any machine has")
    return int(value)


def parse_numbers(values: Any, shape: tuple[int, ...], what: str) -> NDArray[np.float64]:
    """From a file: an array of non-negative numbers, or ValueError."""
    found = np.array(values, dtype=float)
    if found.shape != shape or not np.isfinite(found.sum()) or (found < 0).any():
        raise ValueError(f"a damaged model: {what}")
    return found


def parse_row(values: Any, count: int, what: str) -> list[float]:
    """The same for a few numbers, ten times faster."""
    found = [float(value) for value in values]
    if len(found) != count or min(found, default=0) < 0 or not sum(found) < math.inf:
        raise ValueError(f"a damaged model: {what}")
    return found


def short_text(value: Any) -> str | None:
    """The name of a type, cut to a bounded length, or None."""
    return None if value is None else str(value)[:_TEXT_MOST]


@lru_cache(maxsize=256)
def itemsize_of(dtype: str) -> int | None:
    """Bytes of one element, or None for dtypes without a fixed size (object, string)."""
    try:
        kind = np.dtype(dtype)
    except (TypeError, ValueError, SyntaxError):  # pandas' names, several types of a dataframe
        return None
    return None if kind.hasobject or kind.itemsize == 0 else kind.itemsize


def parse_inputs(inputs: Any) -> Arrays:
    """The inputs of a record, or of a question: a list of {dtype, shape} or {nbytes}, each `count`
    times. Inputs of unknown size are left out. ValueError if the list cannot be inputs.

    An array that repeats its memory (np.broadcast_to) counts with its logical bytes: an operation
    on it allocates as on any array of this shape."""
    if not isinstance(inputs, (list, tuple)):
        raise ValueError(
            f"inputs are {type(inputs).__name__}, not a list of {{dtype, shape, nbytes}}"
        )
    arrays: list[Array] = []
    rest = 0  # bytes of inputs beyond INPUTS_MOST
    for number, given in enumerate(inputs):
        if not isinstance(given, dict):
            raise ValueError(f"input {number} is {given!r}, not {{dtype, shape, nbytes}}")
        shape, nbytes = given.get("shape"), given.get("nbytes")
        if shape is not None:
            if not isinstance(shape, (list, tuple)):
                raise ValueError(f"shape of input {number} is {shape!r}, not a list")
            if len(shape) > AXES_MOST:
                raise ValueError(f"shape of input {number} has {len(shape):,} axes")
            # A length is null if only the contents tell it: what a mask selects.
            shape = (
                None
                if None in shape
                else tuple(non_negative_int(length, f"shape of input {number}") for length in shape)
            )
        if (count := given.get("count")) is not None:
            count = non_negative_int(count, f"count of input {number}", _COUNT_MOST)
        dtype = short_text(given.get("dtype"))
        if nbytes is None and shape is not None:
            nbytes = math.prod(shape) * (itemsize_of(str(dtype)) or 8)
        if nbytes is not None:
            # The axes of a sparse array say nothing about its bytes.
            dense = shape is None or math.prod(shape) <= BYTES_MOST
            nbytes = non_negative_int(nbytes, f"bytes of input {number}")
            if (logical := given.get("logical_bytes")) is not None:
                nbytes = max(nbytes, non_negative_int(logical, f"bytes of input {number}"))
            array = Array(shape if dense else None, nbytes, dtype)
            if count is None:
                arrays.append(array)
                continue
            non_negative_int(count * nbytes, f"bytes of input {number}")
            listed = min(count, max(0, INPUTS_MOST + 1 - len(arrays)))
            arrays += [array] * listed
            rest += (count - listed) * nbytes
    if len(arrays) > INPUTS_MOST:
        rest += sum(array.nbytes for array in arrays[INPUTS_MOST - 1 :])
        arrays[INPUTS_MOST - 1 :] = [Array(None, rest)]
    return tuple(arrays)


def input_bytes(arrays: Arrays) -> int:
    return sum([array.nbytes for array in arrays])


class InputSizes(NamedTuple):
    """All that the size functions use of the inputs. total, elements: bytes of all inputs, as they
    are and with eight bytes for each element. largest: the largest input."""

    total: int
    elements: int
    largest: Array

    @classmethod
    def parse(cls, total: Any, elements: Any, largest: Any) -> InputSizes:
        """From a file."""
        shape, nbytes, dtype = largest
        if shape is not None:
            if len(shape) > AXES_MOST:
                raise ValueError("a damaged model: axes")
            shape = tuple([non_negative_int(length, "a length") for length in shape])
            if math.prod(shape) > BYTES_MOST:
                raise ValueError("a damaged model: a shape")
        return cls(
            non_negative_int(total, "bytes", INPUTS_MOST * BYTES_MOST),
            non_negative_int(elements, "elements", 8 * INPUTS_MOST * BYTES_MOST),
            Array(shape, non_negative_int(nbytes, "bytes"), short_text(dtype)),
        )


@lru_cache(maxsize=4096)
def sizes_of(arrays: Arrays) -> InputSizes:
    elements = sum(
        [array.nbytes if array.shape is None else math.prod(array.shape) * 8 for array in arrays]
    )
    return InputSizes(input_bytes(arrays), elements, _largest_array(arrays))


def _largest_array(arrays: Arrays) -> Array:
    if len(arrays) == 1:
        return arrays[0]
    return max(arrays, key=lambda array: array.nbytes, default=Array(None, 0))


def axis_count(arrays: Arrays) -> int | None:
    """Axes of the largest input; None: its shape is not known."""
    shape = _largest_array(arrays).shape
    return None if shape is None else len(shape)


def size_features(arrays: Arrays, output_bytes: int) -> Features:
    """All size functions of these inputs, float64, read-only. output_bytes: 0 if unknown."""
    return features_of(sizes_of(arrays), output_bytes)


@lru_cache(maxsize=4096)
def features_of(sizes: InputSizes, output_bytes: int) -> Features:
    """size_features of inputs that are known by their sizes."""
    total, largest = float(sizes.total), sizes.largest
    # An empty dataframe has a length of zero and yet bytes.
    shape = largest.shape if largest.shape and largest.nbytes and 0 not in largest.shape else None
    # Where there are bytes alone, functions of axes are the bytes.
    of_axes = (
        [largest.nbytes] * _AXIS_FUNCTIONS
        if shape is None
        else axis_features(shape, largest.nbytes, _OF_NUMBERS)
    )
    found = all_features(total, largest.nbytes, output_bytes, sizes.elements, of_axes)
    features = np.array(found, float)
    features.flags.writeable = False
    return features


def all_features(
    total: Any, largest_bytes: Any, output_bytes: Any, elements: Any, of_axes: list[Any]
) -> list[Any]:
    """In the order of SIZE_FUNCTIONS; numbers, or arrays of them."""
    beside_output = [total + coefficient * output_bytes for coefficient in _OUTPUT_COEFFICIENTS]
    return [total, largest_bytes, output_bytes, elements, *beside_output, *of_axes, 0.0]


def with_output(features: Features, output_bytes: Features) -> Features:
    """Vectors of size functions, and of what follows them, with another output."""
    found = features.copy()
    total = features[:, ALL_INPUTS]
    found[:, OUTPUT] = output_bytes
    for place, coefficient in enumerate(_OUTPUT_COEFFICIENTS, _ELEMENTS + 1):
        found[:, place] = total + coefficient * output_bytes
    return found


def clear_caches() -> None:
    """Some MB, if thousands of shapes were seen."""
    sizes_of.cache_clear()
    features_of.cache_clear()


class Arithmetic(NamedTuple):
    """What functions of axes need beside products: of numbers, or of arrays of them (columns.py).
    padded: the volume of a shape with a halo around its axes. shortest: the shortest axis that is
    longer than 1; a table of one column is no square matrix."""

    log2: Callable[[Any], Any]
    ceil: Callable[[Any], Any]
    next_power_of_two: Callable[[Any], Any]
    padded: Callable[[Sequence[Any], int], Any]
    shortest: Callable[[Sequence[Any]], Any]


def axis_features(shape: Sequence[Any], nbytes: Any, of: Arithmetic) -> list[Any]:
    """The functions that use the axes of the largest input, in the order of SIZE_FUNCTIONS."""
    item = nbytes / math.prod(shape)
    kept = _FEATURE_AXES - 1
    folded = shape if len(shape) <= _FEATURE_AXES else (math.prod(shape[:-kept]), *shape[-kept:])
    axes = [*folded, *[1] * kept]
    a, b, c, d = axes[:_FEATURE_AXES]
    products = (  # in the order of _AXIS_SUBSETS
        *(a * b * c, a * b * d, a * c * d, b * c * d),
        *(a * b, a * c, a * d, b * c, b * d, c * d),
        *(a, b, c, d),
    )
    square = of.shortest(shape) ** 2 * item
    return [
        *[of.padded(shape, halo) * item for halo in _HALOS],
        nbytes * of.log2(shape[-1] + 1),
        nbytes * of.log2(shape[0] + 1),
        nbytes * (of.next_power_of_two(shape[-1]) / shape[-1]),
        of.next_power_of_two(of.ceil(shape[0] / _HASH_LOAD)) * item,
        *[product * item for product in products],
        shape[0] ** 2 * item,
        shape[-1] ** 2 * item,
        square,
        *[nbytes + coefficient * square for coefficient in _SQUARE_COEFFICIENTS],
    ]


def _padded(shape: Sequence[int], halo: int) -> float:
    return math.prod([float(length + 2 * halo if length >= halo else length) for length in shape])


def _shortest(shape: Sequence[int]) -> int:
    longer = [length for length in shape if length > 1]
    return min(longer, default=1) if len(longer) > 1 or len(shape) == 1 else 1


_OF_NUMBERS = Arithmetic(math.log2, math.ceil, _next_power_of_two, _padded, _shortest)
