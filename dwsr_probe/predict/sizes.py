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
    from numpy.typing import NDArray

    Features = NDArray[np.float64]

BYTES_MOST = 1 << 60
# Axes of the largest input that are features of their own; of more axes the leading ones are folded
# into one.
_FEATURE_AXES = 4
_INPUTS_MOST = 64  # the rest is folded into one input
_COUNT_MOST = 1 << 20  # of equal inputs in succession
_AXES_MOST = 64  # as in NumPy
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
ALL_INPUTS, _ELEMENTS, _FIRST_HALO = 0, 3, 4 + len(_OUTPUT_COEFFICIENTS)
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
    rest = 0  # bytes of inputs beyond _INPUTS_MOST
    for number, given in enumerate(inputs):
        if not isinstance(given, dict):
            raise ValueError(f"input {number} is {given!r}, not {{dtype, shape, nbytes}}")
        shape, nbytes = given.get("shape"), given.get("nbytes")
        if shape is not None:
            if not isinstance(shape, (list, tuple)):
                raise ValueError(f"shape of input {number} is {shape!r}, not a list")
            if len(shape) > _AXES_MOST:
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
            listed = min(count, max(0, _INPUTS_MOST + 1 - len(arrays)))
            arrays += [array] * listed
            rest += (count - listed) * nbytes
    if len(arrays) > _INPUTS_MOST:
        rest += sum(array.nbytes for array in arrays[_INPUTS_MOST - 1 :])
        arrays[_INPUTS_MOST - 1 :] = [Array(None, rest)]
    return tuple(arrays)


def input_bytes(arrays: Arrays) -> int:
    return sum(array.nbytes for array in arrays)


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
        (array,) = parse_inputs([{"shape": shape, "nbytes": nbytes, "dtype": dtype}])
        return cls(
            non_negative_int(total, "bytes", _INPUTS_MOST * BYTES_MOST),
            non_negative_int(elements, "elements", 8 * _INPUTS_MOST * BYTES_MOST),
            array,
        )


@lru_cache(maxsize=4096)
def sizes_of(arrays: Arrays) -> InputSizes:
    elements = sum(
        math.prod(array.shape) * 8 if array.shape is not None else array.nbytes for array in arrays
    )
    return InputSizes(input_bytes(arrays), elements, _largest_array(arrays))


def _largest_array(arrays: Arrays) -> Array:
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
    features = np.zeros(FUNCTION_COUNT)
    features[:4] = total, largest.nbytes, output_bytes, sizes.elements
    features[4:_FIRST_HALO] = [
        total + coefficient * output_bytes for coefficient in _OUTPUT_COEFFICIENTS
    ]
    # An empty dataframe has a length of zero and yet bytes.
    shape = largest.shape if largest.shape and largest.nbytes and 0 not in largest.shape else None
    # Where there are bytes alone, functions of axes are the bytes.
    features[_FIRST_HALO:-1] = (
        largest.nbytes if shape is None else _axis_features(shape, largest.nbytes)
    )
    features.flags.writeable = False
    return features


def _axis_features(shape: tuple[int, ...], nbytes: int) -> list[float]:
    """The functions that use the axes of the largest input, in the order of SIZE_FUNCTIONS."""
    item = nbytes / math.prod(shape)
    features = [
        math.prod(float(length + 2 * halo if length >= halo else length) for length in shape) * item
        for halo in _HALOS
    ]
    features += (
        nbytes * math.log2(shape[-1] + 1),
        nbytes * math.log2(shape[0] + 1),
        nbytes * (_next_power_of_two(shape[-1]) / shape[-1]),
        _next_power_of_two(math.ceil(shape[0] / _HASH_LOAD)) * item,
    )
    kept = _FEATURE_AXES - 1
    folded = shape if len(shape) <= _FEATURE_AXES else (math.prod(shape[:-kept]), *shape[-kept:])
    folded = folded + (1,) * (_FEATURE_AXES - len(folded))
    features += (math.prod(folded[axis] for axis in axes) * item for axes in _AXIS_SUBSETS)
    longer = [length for length in shape if length > 1]
    # a table of one column is no square matrix
    side = min(longer, default=1) if len(longer) > 1 or len(shape) == 1 else 1
    square = side**2 * item
    features += (shape[0] ** 2 * item, shape[-1] ** 2 * item, square)
    features += (nbytes + coefficient * square for coefficient in _SQUARE_COEFFICIENTS)
    return features
