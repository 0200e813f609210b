"""What the parts of the evaluation work on: measured records, groups, methods. Called by
__main__."""

import sys
from functools import cached_property

from tests.bench.predict import families, records, unicamp
from tests.bench.predict.baselines import METHODS
from tests.bench.predict.groups import FROZEN, GROUPS, SIMULATION_GROUPS

TUNING_METHODS = ("ours", "OLS / 0.8")


class Data:
    """quick: fewer orders and records. tuning_only: no frozen operator or family, few orders, and
    of the methods ours and one baseline; nothing is measured. final: single results of frozen ones
    are printed."""

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
        """All records of our own operators and simulations, by name, and in the order of the
        groups."""
        groups = [*self.groups.values(), *self.simulation_groups.values()]
        names = [name for group in groups for name in sorted(group)]
        if not self.tuning_only:
            from tests.bench.predict import measure  # imports all libraries that are measured

            measure.complete(names, self._again)
        found = records.load()
        if missing := [name for name in names if name not in found]:
            print(f"not measured, left out: {', '.join(missing)}", file=sys.stderr)
        return {name: found[name] for name in names if name in found}

    @cached_property
    def own(self):
        """Records of the ladders, by operator."""
        names = [name for group in self.groups.values() for name in sorted(group)]
        return records.chosen(self.measured, records.LADDER, names)

    @cached_property
    def families(self):
        names = frozenset().union(*self.family_groups.values())
        found = families.records(again=self._again, measured_only=self.tuning_only)
        return {name: rows for name, rows in found.items() if name in names}

    @cached_property
    def unicamp(self):
        return unicamp.records() if unicamp.present() else {}
