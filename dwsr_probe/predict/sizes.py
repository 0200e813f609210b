"""Size functions: what the peak of a task may be proportional to, in bytes. Each is tried for
every task; the posterior says which holds.

`sizes(arrays, output_bytes)` is the one vector of them. Built from the records' inputs
(`arrays_of`), which may be arrays, dataframes (rows x columns), or bytes alone.
"""

import math
from functools import lru_cache
from itertools import combinations
from typing import NamedTuple

import numpy as np

_LOAD = 0.77  # of the hash tables of pandas
AXES = 4  # of the largest input; of more, the leading ones count as one
MOST_BYTES = 1 << 60
# told apart; axes: as NumPy; text: of a dtype or a type
_MOST_INPUTS, _MOST_AXES, _MOST_TEXT = 64, 64, 256
_HALOS = (2, 8, 32)
_SQUARES = (1.0, 4.0)  # of the smallest axis beside the input: the work space of linear algebra
_SHARES = (0.25, 0.5, 1.0, 2.0, 4.0)  # of the output beside the inputs
_SUBSETS = [axes for count in (3, 2, 1) for axes in combinations(range(AXES), count)]

# Name and log of the prior weight: simple ones first; those of single axes are many, and with few
# values one of them fits by chance.
FUNCTIONS = (
    [("inputs", 0.0), ("largest input", -1.0), ("output", -1.5), ("elements", -2.0)]
    + [(f"inputs and {share:g} x output", -1.0 - abs(math.log2(share)) / 2) for share in _SHARES]
    + [(f"largest input with a halo of {halo}", -2.5) for halo in _HALOS]
    + [
        ("n log n, last axis", -3.5),
        ("n log n, first axis", -3.5),
        ("last axis to a power of two", -3.5),
        ("hash table of the rows", -3.5),
    ]
    # the first alone: a table's rows
    + [("axes " + "x".join(map(str, axes)), -3.5 if axes == (0,) else -6.0) for axes in _SUBSETS]
    + [("first axis squared", -5.0), ("last axis squared", -5.0), ("smallest axis squared", -5.0)]
    + [(f"largest input and {share:g} x smallest axis squared", -3.5) for share in _SQUARES]
    + [("constant", -3.0)]
)
COUNT = len(FUNCTIONS)
INPUTS, _ELEMENTS, _HALO = 0, 3, 4 + len(_SHARES)
LOG_PRIOR = np.array([weight for _, weight in FUNCTIONS])
# those that look at the axes of the largest input
BY_SHAPE = np.array([number == _ELEMENTS or _HALO <= number < COUNT - 1 for number in range(COUNT)])
OUTPUT_SHARE = np.array(
    [
        1.0 if name == "output" else float(name.split()[2]) if name.endswith("x output") else 0.0
        for name, _ in FUNCTIONS
    ]
)


def _power_of_two(length):
    return 1 << (length - 1).bit_length()


class Array(NamedTuple):
    shape: tuple | None  # None: only its bytes are known
    nbytes: int
    dtype: str | None = None


def whole(value, what, most=MOST_BYTES):
    """A count or a number of bytes, or ValueError."""
    if (
        isinstance(value, bool)
        or not isinstance(value, (int, float, np.integer, np.floating))
        or value != value
    ):
        raise ValueError(f"{what} is {str(value)[:60]!r}, not a number")
    if value < 0:
        raise ValueError(f"{what} is below zero")
    if value > most:  # of any length: an integer of JSON may have more digits than a float can hold
        raise ValueError(f"{what} is more than any machine has")
    return int(value)


def text(value):
    """A name of a type, of bounded length, or None."""
    return None if value is None else str(value)[:_MOST_TEXT]


@lru_cache(maxsize=256)
def itemsize_of(dtype):
    """Bytes of one element, or None for those that have no fixed size (object, string)."""
    try:
        kind = np.dtype(dtype)
    except (TypeError, ValueError, SyntaxError):  # pandas' names, several types of a dataframe
        return None
    return None if kind.hasobject or kind.itemsize == 0 else kind.itemsize


def arrays_of(inputs):
    """The record's inputs, or what a user gave for them: dtype and shape, or nbytes."""
    if not isinstance(inputs, (list, tuple)):
        raise ValueError(
            f"inputs are {type(inputs).__name__}, not a list of {{dtype, shape, nbytes}}"
        )
    arrays = []
    for number, given in enumerate(inputs):
        if not isinstance(given, dict):
            raise ValueError(f"input {number} is {given!r}, not {{dtype, shape, nbytes}}")
        shape, nbytes = given.get("shape"), given.get("nbytes")
        if shape is not None:
            if not isinstance(shape, (list, tuple)):
                raise ValueError(f"shape of input {number} is {shape!r}, not a list")
            if len(shape) > _MOST_AXES:
                raise ValueError(f"shape of input {number} has {len(shape):,} axes")
            shape = tuple(whole(length, f"shape of input {number}") for length in shape)
        dtype = text(given.get("dtype"))
        if nbytes is None and shape is not None:
            nbytes = math.prod(shape) * (itemsize_of(str(dtype)) or 8)
        if nbytes is not None:
            # else sparse: its axes say nothing
            dense = shape is None or math.prod(shape) <= MOST_BYTES
            arrays.append(
                Array(shape if dense else None, whole(nbytes, f"bytes of input {number}"), dtype)
            )
    if len(arrays) > _MOST_INPUTS:  # the rest as one, of bytes alone
        arrays[_MOST_INPUTS - 1 :] = [
            Array(None, sum(array.nbytes for array in arrays[_MOST_INPUTS - 1 :]))
        ]
    return tuple(arrays)


def _largest(arrays):
    return max(arrays, key=lambda array: array.nbytes, default=Array(None, 0))


def axes_of(arrays):
    """How many the largest input has; None: its shape is not known."""
    shape = _largest(arrays).shape
    return None if shape is None else len(shape)


@lru_cache(maxsize=4096)
def sizes(arrays, output_bytes):
    """All size functions of these inputs, float64. output_bytes: 0 if unknown."""
    everything = float(sum(array.nbytes for array in arrays))
    found = np.zeros(COUNT)
    elements = sum(
        math.prod(array.shape) * 8 if array.shape is not None else array.nbytes for array in arrays
    )
    largest = _largest(arrays)
    found[:4] = everything, largest.nbytes, output_bytes, elements
    at = _HALO
    found[4:at] = [everything + share * output_bytes for share in _SHARES]
    # an empty dataframe has bytes, too
    shape = largest.shape if largest.shape and largest.nbytes and 0 not in largest.shape else None
    if shape is None:  # bytes alone: what looks at axes is as if it were the bytes
        found[at:-1] = largest.nbytes
    else:
        item = largest.nbytes / math.prod(shape)
        for halo in _HALOS:
            found[at] = (
                math.prod(
                    float(length + 2 * halo if length >= halo else length) for length in shape
                )
                * item
            )
            at += 1
        found[at : at + 4] = (
            largest.nbytes * math.log2(shape[-1] + 1),
            largest.nbytes * math.log2(shape[0] + 1),
            largest.nbytes * (_power_of_two(shape[-1]) / shape[-1]),
            _power_of_two(math.ceil(shape[0] / _LOAD)) * item,
        )
        at += 4
        folded = shape if len(shape) <= AXES else (math.prod(shape[: 1 - AXES]), *shape[1 - AXES :])
        folded = folded + (1,) * (AXES - len(folded))
        for axes in _SUBSETS:
            found[at] = math.prod(folded[axis] for axis in axes) * item
            at += 1
        longer = [length for length in shape if length > 1]
        # a table of one column is no square matrix
        square = (min(longer, default=1) if len(longer) > 1 or len(shape) == 1 else 1) ** 2 * item
        found[at:-1] = (
            shape[0] ** 2 * item,
            shape[-1] ** 2 * item,
            square,
            *(largest.nbytes + share * square for share in _SQUARES),
        )
    found.flags.writeable = False
    return found
