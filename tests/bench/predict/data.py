"""What the parts of the evaluation work on: measured records, groups, methods. Called by
__main__."""

from functools import cached_property

from tests.bench.predict import families, measure, unicamp
from tests.bench.predict.baselines import METHODS
from tests.bench.predict.operators import FROZEN, GROUPS, OPERATORS, SIMULATION_GROUPS, SIMULATIONS

TUNING_METHODS = ("ours", "OLS / 0.8")


class Data:
    """quick: fewer orders and records. tuning_only: no frozen operator or family, few orders, and
    of the methods ours and one baseline. final: single results of frozen ones are printed."""

    def __init__(self, quick=False, again=False, tuning_only=False, final=False):
        self.quick, self.tuning_only, self.final = quick, tuning_only, final
        self._again = again
        self.methods = {
            name: make
            for name, make in METHODS.items()
            if not tuning_only or name in TUNING_METHODS
        }
        self.groups = self._open(GROUPS)
        self.family_groups = self._open(families.GROUPS)
        self.simulation_groups = self._open(SIMULATION_GROUPS)
        self._closed = frozenset().union(
            *(found[FROZEN] for found in (GROUPS, families.GROUPS, SIMULATION_GROUPS))
        )

    def _open(self, groups):
        return {g: names for g, names in groups.items() if g != FROZEN or not self.tuning_only}

    def may_be_named(self, name):
        """Whether single results of this operator or family are printed."""
        return self.final or name not in self._closed

    @cached_property
    def measured(self):
        """All records of our own operators and simulations, by name; frozen ones only if they are
        evaluated."""
        names = frozenset().union(*self.groups.values(), *self.simulation_groups.values())
        found = measure.all_records(self._again)
        return {name: found[name] for name in (*OPERATORS, *SIMULATIONS) if name in names}

    @cached_property
    def own(self):
        """Records of the ladders, by operator."""
        return measure.chosen(self.measured, measure.LADDER.fullmatch, OPERATORS)

    @cached_property
    def families(self):
        names = frozenset().union(*self.family_groups.values())
        return {n: rows for n, rows in families.records(self._again).items() if n in names}

    @cached_property
    def unicamp(self):
        return unicamp.records() if unicamp.present() else {}

    def group_of(self, name):
        return next(group for group, names in self.groups.items() if name in names)
