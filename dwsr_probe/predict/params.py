"""Parameters: the numbers and booleans among a task's arguments. param_functions.py has what a peak
may be proportional to.

Each learner has a list of parameter names. Vectors of size features are followed by the parameters
in the order of this list, NaN where a task does not have one.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dwsr_probe.predict.sizes import Arrays

# (name, value), sorted by name
Params = tuple[tuple[str, float], ...]

NAMES_MOST = _PARAMS_MOST = 16  # of parameters of one learner, and of one task
_NAME_CHARS_MOST = 64
_VALUE_MOST = 1e15


def parse_params(given: Any = None) -> Params:
    """Of a record or a question. ValueError if it cannot be parameters. Values that are no finite
    numbers say nothing and are left out."""
    if given is None or given == {}:
        return ()
    if not isinstance(given, dict) or not all(isinstance(name, str) for name in given):
        raise ValueError(f"params are {str(given)[:60]!r}, not names with numbers")
    found = []
    for name, value in given.items():
        if value is None:
            continue
        if not isinstance(value, (bool, int, float, np.integer, np.floating, np.bool_)):
            raise ValueError(f"parameter {name[:60]} is {str(value)[:60]!r}, not a number")
        if abs(value) <= _VALUE_MOST and len(name) <= _NAME_CHARS_MOST:  # not NaN
            found.append((name, float(value)))
    return tuple(sorted(found)[:_PARAMS_MOST])


def values_of(params: Params, names: Sequence[str]) -> list[float]:
    """In the order of the names, NaN where there is none."""
    given = dict(params)
    return [given.get(name, math.nan) for name in names]


class Given(NamedTuple):
    """What a task is given: its inputs and its parameters."""

    arrays: Arrays = ()
    params: Params = ()
