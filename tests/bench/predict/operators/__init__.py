"""The operators that are measured for the evaluation of forecasts: what people run on arrays,
tables, images and samples. One module for each library; measure.py runs them.

Each has a ladder of shapes, from small to large, mostly not cubes. A method may learn the first
three before it forecasts the rest.

Groups. The model is tuned on the operators of TUNED and on the tuning half of the new ones:
- "tuning", "held out" and "untouched" are the groups of earlier reports. Single results of all
  three have been looked at, so they now count as tuning groups.
- The operators added in November 2026 were drawn, before a model saw them, into "tuning 2026-11"
  and FROZEN. Nobody looks at single results of FROZEN while tuning: no report prints them without
  --final. An operator of it for which the model is changed moves to the tuning half, by name.
"""

import numpy as np

from tests.bench.predict.operators import (
    arrays,
    images,
    labelled,
    learning,
    signals,
    tables,
    windows,
)
from tests.bench.predict.operators.operator import COUNT, SMALL, Operator

__all__ = ["COUNT", "FROZEN", "GROUPS", "OPERATORS", "SIMULATIONS", "SMALL", "TEST", "Operator"]

SEED = 202611
FROZEN = "frozen 2026-11"
TUNING_HALF = "tuning 2026-11"


def by_name(*lists):
    return {operator.name: operator for operators in lists for operator in operators}


def draw(libraries, seed=SEED):
    """The names of each library, half of them (rounded up and down in turn) for tuning, the others
    frozen: two sets."""
    chance, tuning, frozen = np.random.default_rng(seed), set(), set()
    for names in libraries:
        mixed = [str(name) for name in chance.permutation(sorted(names))]
        half = (len(mixed) + (len(tuning) <= len(frozen))) // 2
        tuning.update(mixed[:half])
        frozen.update(mixed[half:])
    return frozenset(tuning), frozenset(frozen)


EARLIER = by_name(arrays.OPERATORS, signals.OPERATORS, tables.OPERATORS)
NEW = [module.NEW for module in (tables, learning, images, labelled, windows)]
OPERATORS = {**EARLIER, **by_name(*NEW)}
# Without inputs: evaluated by their parameter only
SIMULATIONS = by_name(windows.SIMULATIONS)

TUNED = frozenset(
    """gaussian_filter gradient_magnitude uniform_filter instantaneous_phase fftn argsort
cumulative_sum structure_tensor histogram matmul pad transpose where mean
groupby_mean sort_values covariance boolean_selection""".split()
)
UNTOUCHED = frozenset(
    "roll difference standardise resample opening shift label spectrogram qr outer"
    " broadcast_product stack rolling_mean describe".split()
)
_tuning, _frozen = draw([[operator.name for operator in operators] for operators in NEW])
GROUPS = {
    "tuning": TUNED,
    "held out": frozenset(EARLIER) - TUNED - UNTOUCHED,
    "untouched": UNTOUCHED,
    TUNING_HALF: _tuning,
    FROZEN: _frozen,
}
SIMULATION_GROUPS = dict(zip((TUNING_HALF, FROZEN), draw([list(SIMULATIONS)]), strict=True))
TEST = GROUPS[FROZEN] | SIMULATION_GROUPS[FROZEN]
