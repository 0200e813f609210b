"""The operators that are measured for the evaluation of forecasts: what people run on arrays,
tables, images and samples. One module for each library; measure.py runs them, groups.py says which
of them the model is tuned on.

Each has a ladder of shapes, from small to large, mostly not cubes. A method may learn the first
three before it forecasts the rest.
"""

from tests.bench.predict.operators import (
    arrays,
    images,
    labelled,
    learning,
    signals,
    tables,
    windows,
)
from tests.bench.predict.operators.operator import COUNT, Operator

__all__ = ["COUNT", "NEW", "OPERATORS", "SIMULATIONS", "Operator"]


def by_name(*lists):
    return {operator.name: operator for operators in lists for operator in operators}


_new = {
    "tables": tables,
    "learning": learning,
    "images": images,
    "labelled": labelled,
    "windows": windows,
}
NEW = {name: module.NEW for name, module in _new.items()}  # of 2026-11
OPERATORS = by_name(arrays.OPERATORS, signals.OPERATORS, tables.OPERATORS, *NEW.values())
# Without inputs: evaluated by their parameter only
SIMULATIONS = by_name(windows.SIMULATIONS)
