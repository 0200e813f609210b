"""First calls: tasks that may have paid for what later tasks reuse (imports, FFT plans, buffers of
OpenBLAS). Their peaks are compared with those of the other tasks. Where they are higher, they
are left out of the forecast, and are reported as `FirstCalls`. learner.py calls `settle` before it
infers a posterior.

A first call is the first task of a group in a thread of a process; or the first later one that
keeps much memory beyond its output. (OpenBLAS takes a buffer for each concurrent call, and keeps
it. So a thread's first task may find a buffer, and a later one need another.) Thus at most two
tasks of a thread are first calls, and memory that a task takes again and again is not hidden.

A case's first calls are left out if all of this holds:

- At least three other tasks have the same inputs and parameters. Or there are at least three others
  whose fit says what these inputs need, and either the first calls kept as much as they took in
  addition, or others have inputs of similar size: a first call must not be the only one that knows.
  Or one or two have the same inputs and parameters, and the first calls kept as much.
- The largest peak is above the others, by more than their noise, and further than any of them is
  above the fit.

In all other cases they count like any task. Everything is decided anew for each posterior, from the
cases alone, so that the order of arrival does not matter.
"""

from __future__ import annotations

import math
import zlib
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from dwsr_probe.predict.fitted import Fitted, Tables, fit
from dwsr_probe.predict.params import values_of
from dwsr_probe.predict.posterior import RoughLine, rough_line
from dwsr_probe.predict.sizes import ALL_INPUTS, FUNCTION_COUNT, features_of, non_negative_int

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from numpy.typing import NDArray

    from dwsr_probe.predict.case import FirstCase
    from dwsr_probe.predict.cases import CaseSample
    from dwsr_probe.predict.mixture import Mixture
    from dwsr_probe.predict.moments import FirstMoments
    from dwsr_probe.predict.records import Identity
    from dwsr_probe.predict.sizes import InputSizes

    Floats = NDArray[np.float64]

# Not of the growth of a process: memory that it had already does not make it grow, so the first
# tasks show the most.
KINDS_WITH_FIRST_CALLS = ("alloc", "gpu")
_THREADS_MOST = 512
_KEPT_LEAST, _KEPT_LEAST_SHARE = 1 << 20, 0.02  # bytes, and of the peak: much
COMPARED_FROM = 3  # other tasks
# How far above the others a first call is, to be left out: standard deviations, a share of the
# mean, and floors.
_DEVIATIONS, _SHARE, _FLOORS = 4.0, 0.02, 2
_REACH_DEVIATIONS = 3.0  # above the mean of a case: its largest peaks
_SIZE_FACTOR = 1.5  # up to which inputs are of similar size
# Of a rough line through the others: up to what deviation it is used, and how many deviations above
# it a first call agrees.
_ROUGH_DEVIATION_MOST, _ROUGH_DEVIATIONS = 0.05, 3.0
_KEPT_SHARE = 0.8  # of what first calls took in addition
_IRRELEVANT_VALUES = 4  # of a parameter that does not matter


class FirstCalls(NamedTuple):
    """What the first task in a thread takes in addition at most, and the number of first calls
    that were left out."""

    bytes: int = 0
    tasks: int = 0


NO_FIRST_CALLS = FirstCalls()


class Threads:
    """The threads in which tasks of a group have ended: the last 512."""

    def __init__(self) -> None:
        # By a hash of process and thread: whether a later task kept much
        self._kept: dict[int, bool] = {}

    def add(self, identity: Identity | None, keeps: bool) -> bool:
        """A task that ended. keeps: much memory beyond its output. Returns whether it is a first
        call."""
        if identity is None or identity[1] is None:
            return False
        thread = _hash(identity)
        kept_before = self._kept.pop(thread, None)  # the one seen last stands at the end
        self._kept[thread] = bool(kept_before) or (keeps and kept_before is not None)
        if len(self._kept) > _THREADS_MOST:
            del self._kept[next(iter(self._kept))]
        return kept_before is None or (keeps and not kept_before)

    def is_new(self, identity: Identity) -> bool:
        return identity[1] is not None and _hash(identity) not in self._kept

    def merge(self, other: Threads) -> None:
        for thread, kept in other._kept.items():
            self._kept[thread] = self._kept.pop(thread, False) or kept
        while len(self._kept) > _THREADS_MOST:
            del self._kept[next(iter(self._kept))]

    def to_list(self) -> list[list[int]]:
        return [[thread, int(kept)] for thread, kept in self._kept.items()]

    @classmethod
    def from_list(cls, saved: Any) -> Threads:
        """ValueError if to_list cannot have given this."""
        self = cls()
        if len(saved) > _THREADS_MOST:
            raise ValueError("a damaged model: threads")
        for thread, kept in saved:
            self._kept[non_negative_int(thread, "a thread")] = bool(kept)
        return self


def keeps_much(kept_bytes: int, peak: int) -> bool:
    return kept_bytes > max(_KEPT_LEAST, _KEPT_LEAST_SHARE * peak)


def _hash(identity: Identity) -> int:
    return zlib.crc32(f"{identity[0]} {identity[1]}".encode())


class Settled(NamedTuple):
    """tables: of the cases that count. fitted: what was inferred from them, if it was."""

    tables: Tables
    first_calls: FirstCalls = NO_FIRST_CALLS
    fitted: Fitted | None = None


def settle(plain: CaseSample, with_params: CaseSample, names: Sequence[str], floor: int) -> Settled:
    """Decide which first calls count. names: of the parameters. floor: bytes below which a
    difference means nothing."""
    samples = plain, with_params
    for cases in samples:
        cases.leave_out(())
    if not 0 < plain.first_n < plain.n:
        return Settled(Tables(plain.table(), with_params.table(names)))
    firsts = _compared(plain, with_params).first_cases()
    if not firsts:  # in the sample
        return Settled(Tables(plain.table(), with_params.table(names)))
    for cases in samples:
        cases.leave_out(case.hash for case in cases.first_cases())
    others = _Others(plain, with_params, names, floor)
    excess = {case: others.excess(case) for case in firsts}
    # Without parameters, a case may have first calls of several: all are left out, or none.
    left_out = {_sizes(case) for case in firsts if excess[case]}
    left_out -= {_sizes(case) for case in firsts if not excess[case]}
    are_all = True
    for cases in samples:
        found = cases.first_cases()
        kept_out = [case.hash for case in found if _sizes(case) in left_out or excess.get(case)]
        cases.leave_out(kept_out)
        are_all = are_all and len(kept_out) == len(found)
    return Settled(
        Tables(plain.table(), with_params.table(names)),
        FirstCalls(
            round(max(excess.values(), default=0.0)),
            round(sum(case.first.tasks for case in firsts if excess[case])),
        ),
        others.fitted_if_any if are_all else None,
    )


def _sizes(case: FirstCase) -> tuple[InputSizes, int]:
    return case.key.sizes, case.key.output_bytes


def _compared(plain: CaseSample, with_params: CaseSample) -> CaseSample:
    """The tasks that first calls are compared with: those that have parameters, if most have."""
    return with_params if 2 * with_params.n > plain.n else plain


class _Others:
    """The tasks that are no first calls, of samples that leave out all first calls."""

    def __init__(
        self, plain: CaseSample, with_params: CaseSample, names: Sequence[str], floor: int
    ) -> None:
        cases = _compared(plain, with_params)
        self._names = names if cases is with_params else ()
        self._floor = floor
        self._tables = Tables(plain.table(), with_params.table(names))
        table = self._tables.plain if cases is plain else self._tables.with_params
        self._alike = cases.by_inputs(with_output_kind=True)
        self._table = table if cases.n - cases.first_n >= COMPARED_FROM else None
        self._rough: RoughLine | None = None
        self.fitted_if_any: Fitted | None = None

    def excess(self, case: FirstCase) -> float:
        """By how many bytes the first calls of a case are above the others at most; 0: they
        count."""
        first = case.first
        count, total, squares = self._alike.get(case.key.without_output_bytes, (0.0, 0.0, 0.0))
        mean = total / count if count else 0.0
        if count >= COMPARED_FROM:
            variance = max(0.0, squares / count - mean * mean) * count / (count - 1)
            expected, limit = mean, mean + tolerance(mean, math.sqrt(variance), self._floor)
        else:
            expected, limit = self._expected(case)
        if first.largest > limit:
            return first.largest - expected
        is_above = first.mean - mean > tolerance(mean, 0.0, self._floor)
        if 0 < count < COMPARED_FROM and is_above and _kept_it(first, mean):
            return first.largest - mean
        return 0.0

    def _expected(self, case: FirstCase) -> tuple[float, float]:
        """What a fit of the others says of a case, and up to what first calls agree with it;
        infinite if the others say nothing."""
        features = np.concatenate(
            (
                features_of(case.key.sizes, case.key.output_bytes),
                values_of(case.key.params, self._names),
            )
        )
        if (
            self._table is None
            or self._agrees_roughly(case.first.largest, features)
            or not self._is_within(features)
        ):
            return 0.0, math.inf
        (part, *others) = self._fitted.parts(*case.key.variant)
        mixture = (self._fitted if others else part.fitted).given(features)
        predictive = mixture.predict(features)
        expected = predictive.mean
        if not _kept_it(case.first, expected) and not self._has_similar(features[ALL_INPUTS]):
            return 0.0, math.inf
        limit = expected + tolerance(expected, predictive.deviation, self._floor)
        return expected, max(limit, expected * self._reach(mixture))

    def _agrees_roughly(self, y: float, features: Floats) -> bool:
        """Most first calls take no more than others. Then the posterior of the others alone, which
        takes long, is not needed."""
        assert self._table is not None
        if self._rough is None:
            self._rough = rough_line(self._table, self._floor)
        if self._rough.deviation > _ROUGH_DEVIATION_MOST:
            return False
        expected = self._rough.at(features)
        deviation = _ROUGH_DEVIATIONS * self._rough.deviation * expected
        return y <= expected + max(deviation, _SHARE * expected, _FLOORS * self._floor)

    @property
    def _fitted(self) -> Fitted:
        if self.fitted_if_any is None:
            self.fitted_if_any = fit(self._tables, self._floor)
        return self.fitted_if_any

    def _reach(self, mixture: Mixture) -> float:
        """How many times more than the fit says another task took."""
        table = self._table
        assert table is not None
        expected = mixture.means_of(table.features)
        highest = table.mean + _REACH_DEVIATIONS * np.sqrt(table.variance)
        known = expected > self._floor
        return float((highest[known] / expected[known]).max(initial=1.0))

    def _has_similar(self, size: float) -> bool:
        """Whether others have inputs of similar size: no smaller, and no larger."""
        assert self._table is not None
        ratios = (self._table.features[:, ALL_INPUTS] + 1) / (size + 1)
        return bool(
            ((ratios <= 1) & (ratios >= 1 / _SIZE_FACTOR)).any()
            and ((ratios >= 1) & (ratios <= _SIZE_FACTOR)).any()
        )

    def _is_within(self, features: Floats) -> bool:
        """Whether inputs and parameters are like those of the others."""
        assert self._table is not None
        seen = self._table.features
        sizes = seen[:, ALL_INPUTS]
        size = features[ALL_INPUTS]
        if not sizes.min() / _SIZE_FACTOR <= size <= sizes.max() * _SIZE_FACTOR:
            return False
        for place in range(FUNCTION_COUNT, len(features)):
            value, values = features[place], np.unique(seen[:, place])
            if math.isnan(value):
                continue
            values = values[~np.isnan(values)]
            is_between = len(values) and values[0] <= value <= values[-1]
            if not is_between and (len(values) < _IRRELEVANT_VALUES or self._fitted.with_params):
                return False
        return True


def _kept_it(first: FirstMoments, expected: float) -> bool:
    """Whether first calls kept what they took beyond `expected`."""
    return first.kept >= _KEPT_SHARE * (first.mean - expected) * first.tasks


def tolerance(mean: float, deviation: float, floor: int) -> float:
    """Bytes above or below what was expected, up to which a task agrees with it."""
    return max(_DEVIATIONS * deviation, _SHARE * mean, _FLOORS * floor)
