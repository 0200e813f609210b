"""The posteriors of one learner: with its parameters, if they explain the peaks, and without them,
for questions that do not name them. learner.py keeps one and asks it."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from dwsr_probe.predict.params import NAMES_MOST
from dwsr_probe.predict.posterior import posterior, posterior_with_params
from dwsr_probe.predict.sizes import ALL_INPUTS
from dwsr_probe.predict.variants import Part, Variants, differ

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from numpy.typing import NDArray

    from dwsr_probe.predict.case import CaseTable
    from dwsr_probe.predict.mixture import LowerBound, Mixture
    from dwsr_probe.predict.params import Params
    from dwsr_probe.predict.sizes import Features

    Floats = NDArray[np.float64]


_EXPLAINED_SHARE = 0.05  # of what a case took, up to which it is explained
_OFF_MOST = 0.005  # of the tasks, that are not
_ROUGH_DEVIATION = 0.05  # of functions of numbers, where a factor for each value fits better


class Tables(NamedTuple):
    """The cases of a learner, without and with parameters. None: there are none."""

    plain: CaseTable | None
    with_params: CaseTable | None

    def discounted_to(self, n: float) -> Tables:
        """The cases, counted as at most n values."""
        return self.changed(lambda table: table.discounted_to(n))

    def changed(self, change: Callable[[CaseTable], CaseTable]) -> Tables:
        changed = [None if table is None else change(table) for table in self]
        return Tables(*(one if one is not None and len(one.mean) else None for one in changed))


class Fitted(NamedTuple):
    """plain: of the inputs alone. with_params: None where parameters explain nothing.
    of_numbers: the same without levels, which say nothing about values beyond those seen.
    single_sizes: as plain, without derived functions; None where there are none. variants: None
    where one fit explains all cases."""

    plain: Mixture
    with_params: Mixture | None = None
    of_numbers: Mixture | None = None
    single_sizes: Mixture | None = None
    variants: Variants | None = None

    def parts(self, axes: int | None, output_kind: str = "") -> list[Part]:
        """What answers for a task with so many axes of its largest input: this, or one or more
        variants. output_kind: "" if it is not known."""
        found = self.variants.parts(axes, output_kind) if self.variants is not None else []
        return found or [Part(1.0, self)]

    def given(self, features: Features) -> Mixture:
        """What answers a question with these size features and parameters."""
        for mixture in (self.with_params, self.of_numbers):
            if mixture is not None and mixture.knows(features):
                return mixture
        return self.plain

    def misses_params(self, features: Features) -> bool:
        """Whether peaks depend on parameters, and those in question are not given or not known:
        functions of numbers may say little about a value that was never seen."""
        if self.with_params is None:
            return False
        found = self.given(features)
        is_rough = found is not self.with_params and found.sigma_mean > _ROUGH_DEVIATION
        return found is self.plain or is_rough

    def probabilities_above(
        self, bounds: Sequence[LowerBound], size_ratios: Sequence[float]
    ) -> Floats:
        """P(y > bound) of each bound, as a forecast would give it."""
        found = self.plain.probabilities_above(bounds, size_ratios)
        if self.with_params is not None:
            known = [self.with_params.knows(bound.features) for bound in bounds]
            if any(known):
                places = np.flatnonzero(known).tolist()
                found[places] = self.with_params.probabilities_above(
                    [bounds[place] for place in places], [size_ratios[place] for place in places]
                )
        return found

    def explains_all(self) -> bool:
        """Whether it says of practically every task what it took."""
        mixture = self.with_params or self.plain
        if mixture.cases is None or self.variants is not None:
            return False
        tasks = off = 0.0
        for cases in (mixture.cases, mixture.cases.extremes):
            if cases is not None:
                distance = np.abs(mixture.means_of(cases.features) - cases.mean)
                distance += np.sqrt(cases.variance)
                is_off = distance > _EXPLAINED_SHARE * cases.mean + mixture.floor
                tasks += float(cases.counts.sum())
                off += float(cases.counts @ is_off)
        return off <= _OFF_MOST * tasks

    @property
    def sigma_mean(self) -> float:
        return (self.with_params or self.plain).sigma_mean


def fit(tables: Tables, floor: int, bounds: Sequence[LowerBound] = ()) -> Fitted:
    """floor: bytes below which a difference means nothing."""
    fitted = _fit(tables, bounds, floor)
    table, mixture = tables.plain, fitted.plain
    if fitted.with_params is not None:
        table, mixture = tables.with_params, fitted.with_params
    if table is None or len({*table.variants}) < 2:
        return fitted
    if not differ(table, mixture.means_of(table.features), floor):
        return fitted
    assert tables.plain is not None
    pooled = fitted.plain.means_of(tables.plain.features)
    return fitted._replace(variants=Variants(tables, bounds, partial(_fit, floor=floor), pooled))


def _fit(tables: Tables, bounds: Sequence[LowerBound], floor: int) -> Fitted:
    not_implied = _not_implied(bounds)
    plain = posterior(tables.plain, floor, not_implied)
    single_sizes = None
    if plain.derived is not None:
        single_sizes = posterior(tables.plain, floor, not_implied, with_derived=False)
    if tables.with_params is None:
        return Fitted(plain, single_sizes=single_sizes)
    with_params = posterior_with_params(tables.with_params, floor, bounds)
    of_numbers = with_params
    if with_params is not None and with_params.has_levels:
        of_numbers = posterior_with_params(tables.with_params, floor, bounds, with_levels=False)
    return Fitted(plain, with_params, of_numbers, single_sizes)


def _not_implied(bounds: Sequence[LowerBound]) -> list[LowerBound]:
    """Without those that say no more than another, if parameters are left out: killed tasks that
    differ in a parameter alone."""
    kept: list[LowerBound] = []
    for bound in sorted(bounds, key=lambda one: (one.features[ALL_INPUTS], -one.bytes)):
        same_kind = [one.bytes for one in kept if one.is_tight == bound.is_tight]
        if bound.bytes > max(same_kind, default=-1.0):
            kept.append(bound)
    return kept


class ParamNames(list[str]):
    """Of one learner, in the order in which they were first seen: a name keeps its place."""

    def add(self, names: Iterable[str]) -> bool:
        """Returns whether there are new ones."""
        before = len(self)
        self += [name for name in names if name not in self][: NAMES_MOST - before]
        return len(self) > before


def names_in(params: Params) -> list[str]:
    return [name for name, _ in params]
