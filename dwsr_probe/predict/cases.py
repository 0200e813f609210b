"""What a learner keeps of its exact values: a sample of *cases* (case.py). Tasks with parameters
are also kept in a second sample, in which the parameters are part of the case.

The sample has the cases with the smallest hashes and those with the largest inputs. A case that
leaves the sample never returns, because other cases only become more. So the moments of each case
in the sample are complete, the order of arrival does not matter, and the sample of two merged
models is the one that a single model would have. Forgetting scales the counts. learner.py has the
samples of one kind of memory; posterior.py fits their `table`.

A case has the moments of first calls apart from those of other tasks (first_calls.py). `leave_out`
says of which cases the first calls do not count.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from dwsr_probe.predict.case import Case, CaseKey, CaseTable, FirstCase
from dwsr_probe.predict.cases_of_sums import SumsCase, cases_of_sums, parse_features
from dwsr_probe.predict.extremes import Extremes
from dwsr_probe.predict.moments import FirstMoments, parse_moments
from dwsr_probe.predict.params import values_of
from dwsr_probe.predict.sizes import (
    BYTES_MOST,
    features_of,
    parse_row,
)
from dwsr_probe.predict.variant import OTHERS, UNKNOWN_VARIANT, VariantCounts

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from dwsr_probe.predict.case import Moments
    from dwsr_probe.predict.params import Params
    from dwsr_probe.predict.variant import Variant

    Floats = NDArray[np.float64]

_BY_HASH, _BY_SIZE = 64, 8  # cases that are kept
_SUMS_MOST = 12  # cases made of sums
_DIFFERENCE_LEAST = 1e-4  # of a mean that makes a fit out of date, relative
_COUNT_LEAST = 1e-3  # of a case that is remembered after forgetting
_COMPARED_FROM = 3  # values with which first calls can be compared
_KNOWN_FROM = 4  # tasks of a variant
_ONE_SIZE = 1.02  # up to which ratio lengths and sizes are about the same
_FREEDOM_LEAST = 3  # degrees of freedom needed to estimate the noise


_Counted = tuple[Case, "Moments"]


def _are_alike(counted: list[_Counted]) -> bool:
    """Whether there are cases, and their sizes and lengths are about the same."""
    sizes = [case.key.sizes for case, _ in counted]
    shapes = {one.largest.shape or () for one in sizes}
    lengths = [[one.total for one in sizes], *zip(*shapes, strict=False)]
    return len({*map(len, shapes)}) == 1 and all(
        max(values) <= _ONE_SIZE * min(values) for values in lengths
    )


class CaseSample:
    """n: all values that were added, also of cases that are not in the sample; less what was
    forgotten. first_n: first calls among them. version: changes when a fit of the cases would
    change; _changes: with every value of a case in the sample."""

    def __init__(self) -> None:
        self.n = self.first_n = 0.0
        self._cases: dict[int, Case] = {}  # by hash
        self._sums: list[SumsCase] = []  # of models that an earlier version saved
        self.version = self._changes = 0
        # Of a case that is not in the sample: above this hash, and with no larger inputs than
        # these, it cannot come in.
        self._hash_most, self._total_least = 1 << 32, -1
        self._extremes = Extremes()
        self._tasks = VariantCounts()
        self._noise: tuple[int, float | None] | None = None  # by version
        self._left_out: frozenset[int] = frozenset()  # hashes of cases without their first calls
        self._one_size: tuple[list[_Counted], bool] | None = None  # of those counted
        self._last_counted: tuple[tuple[Any, ...], list[_Counted]] | None = None
        self._last_features: tuple[list[Case | SumsCase], list[str], Floats] | None = None

    def __len__(self) -> int:
        return len(self._cases) + len(self._sums)

    @property
    def state(self) -> tuple[int, float]:
        """Changes with all that first_calls.py decides by, and with the table."""
        return self._changes, min(self.n - self.first_n, _COMPARED_FROM)

    def add(self, key: CaseKey, y: float, first: FirstMoments | None = None) -> None:
        """first: the same value as a first call, if it is one."""
        self.n += 1
        if first is not None:
            self.first_n += 1
        hash_ = key.hash
        self._tasks.add(key.variant)
        case = self._cases.get(hash_)
        if case is None:
            if hash_ > self._hash_most and key.sizes.total <= self._total_least:
                if first is None and self._extremes.add(key, hash_, y):
                    self._changes += 1
                    self.version += 1
                return
            self._changes += 1
            case = self._cases[hash_] = Case(key)
            self._add_to(case, y, first)
            self.version += 1
            self._limit()
            return
        self._changes += 1
        compared = self.first_n and min(case.count, self.n - self.first_n) <= _COMPARED_FROM
        if first is not None or not case.count or compared:  # with what first calls may be, changed
            self._add_to(case, y, first)
            self.version += 1
            return
        mean = case.total / case.count
        case.add(1, y, y * y, y)
        if abs(y - mean) > _DIFFERENCE_LEAST * mean:
            self.version += 1

    @staticmethod
    def _add_to(case: Case, y: float, first: FirstMoments | None) -> None:
        if first is None:
            case.add(1, y, y * y, y)
        else:
            case.add_first(first)

    def _limit(self) -> None:
        """Keep the size of the sample."""
        if len(self._cases) <= _BY_HASH:
            return
        by_hash = sorted(self._cases)[:_BY_HASH]
        by_size = sorted(self._cases, key=lambda key: (-self._cases[key].key.sizes.total, key))
        by_size = by_size[:_BY_SIZE]
        kept = {*by_hash, *by_size}
        for key, case in self._cases.items():
            # Not what was forgotten, nor where the largest peak is not known
            if key not in kept and case.count >= 1 and case.largest < BYTES_MOST:
                self._extremes.add(case.key, key, case.largest)
        self._cases = {key: self._cases[key] for key in kept}
        self._hash_most = by_hash[-1]
        self._total_least = self._cases[by_size[-1]].key.sizes.total

    def discount(self, factor: float) -> None:
        """Forget: all values count `factor` times as much."""
        self.n *= factor
        self.first_n *= factor
        every: list[Case | SumsCase] = [*self._cases.values(), *self._sums]
        for case in every:
            case.count *= factor
            case.total *= factor
            case.squares *= factor
        for case in self._cases.values():
            if case.first is not None:
                case.first = case.first.discounted(factor)
        self._cases = {
            k: case for k, case in self._cases.items() if case.moments[0] >= _COUNT_LEAST
        }
        if len(self._cases) <= _BY_HASH:
            self._hash_most, self._total_least = 1 << 32, -1
        self._extremes.clear()
        self._tasks.discount(factor)
        self.version += 1
        self._changes += 1

    def merge(self, other: CaseSample) -> None:
        self.n += other.n
        self.first_n += other.first_n
        for key, theirs in other._cases.items():
            case = self._cases.get(key)
            if case is None:
                case = self._cases[key] = Case(theirs.key)
            case.add(*theirs.others, theirs.largest)
            if theirs.first is not None:
                case.add_first(theirs.first)
        self._extremes.merge(other._extremes)
        self._tasks.merge(other._tasks)
        self._sums = [*self._sums, *other._sums][:_SUMS_MOST]
        self._limit()
        self.version += 1
        self._changes += 1

    def _counted(self) -> list[_Counted]:
        """The cases that count, and their moments, in the order of the hashes."""
        of = self._changes, self._left_out
        if self._last_counted is None or self._last_counted[0] != of:
            found = []
            for key, case in sorted(self._cases.items()):
                is_plain = case.first is None or key in self._left_out
                moments = case.others if is_plain else case.moments
                if moments[0] > 0:
                    found.append((case, moments))
            self._last_counted = of, found
        return self._last_counted[1]

    def first_cases(self) -> list[FirstCase]:
        """The cases that have first calls, in the order of the hashes."""
        return [
            FirstCase(key, case.key, case.first)
            for key, case in sorted(self._cases.items())
            if case.first is not None
        ]

    def leave_out(self, hashes: Iterable[int]) -> None:
        """Of these cases the first calls do not count; of all others they do."""
        left_out = frozenset(hashes)
        if left_out != self._left_out:
            self._left_out, self._noise = left_out, None

    def table(self, param_names: Sequence[str] = ()) -> CaseTable | None:
        """In the order of the hashes, so that rounding does not depend on the order of arrival.
        param_names: of the parameters that follow the size functions. None: there are no cases."""
        counted = self._counted()
        cases: list[Case | SumsCase] = [case for case, _ in counted]
        cases += self._sums
        if not cases:
            return None
        features = self._features(cases, [*param_names])
        moments = [one for _, one in counted] + [case.moments for case in self._sums]
        count, total, squares = np.array(moments).T
        mean = total / count
        variance = np.maximum(squares / count - mean * mean, 0)
        largest = [
            case.largest_with(case.key.hash not in self._left_out) for case, _ in counted
        ] + [math.inf] * len(self._sums)
        common = self._tasks.common()
        of_cases = (case.key.variant for case, _ in counted)
        variants = [one if one in common else OTHERS for one in of_cases]
        variants += [UNKNOWN_VARIANT] * len(self._sums)
        extremes = self._extremes_table(param_names, count.sum())
        return CaseTable(
            features,
            mean,
            variance,
            count,
            np.array(largest),
            tuple(variants),
            extremes,
            self._tasks,
        )

    def is_new_variant(self, variant: Variant) -> bool:
        """Whether other variants were seen, and this one hardly."""
        tasks = self._tasks.get(variant, 0.0)
        return tasks < _KNOWN_FROM and self.n - tasks >= _KNOWN_FROM

    def _extremes_table(self, param_names: Sequence[str], sampled: float) -> CaseTable | None:
        """sampled: values of the cases in the sample. Each extreme counts as this share of one, as
        if it were one of the tasks that are not."""
        found = list(self._extremes)
        if not found:
            return None
        features = np.array([features_of(one.key.sizes, one.key.output_bytes) for one in found])
        if param_names:
            params = [values_of(one.key.params, param_names) for one in found]
            features = np.concatenate((features, params), axis=1)
        peaks, counts = np.array([one.peak for one in found]), np.ones(len(found))
        return CaseTable(features, peaks, 0 * counts, counts * min(1.0, sampled / self.n), peaks)

    def _features(self, cases: list[Case | SumsCase], param_names: list[str]) -> Floats:
        """Of these cases. Most of them, or all, were there before."""
        before: dict[Case | SumsCase, Floats] = {}
        if self._last_features is not None:
            of_cases, of_names, features = self._last_features
            if of_names == param_names:
                if of_cases == cases:
                    return features
                before = dict(zip(of_cases, features, strict=True))
        features = np.array(
            [
                before[case]
                if case in before
                else [*case.features, *values_of(case.params, param_names)]
                for case in cases
            ]
        )
        self._last_features = cases, param_names, features
        return features

    def seen(self) -> list[tuple[int, float, int]]:
        """(input bytes, mean, count) of each size of the inputs, smallest first."""
        return sorted(
            (key.sizes.total, total / count, max(1, round(count)))
            for key, (count, total, _) in self.by_inputs().items()
        )

    def is_new_value(self, params: Params) -> bool:
        """Whether tasks repeat values of their parameters, and none had these."""
        cases = self._cases.values()
        seen = {case.params for case in cases}
        return params not in seen and sum(case.count for case in cases) >= 2 * len(seen) > 0

    def has_one_size(self) -> bool:
        """Whether all inputs had about the same sizes, as far as the sample tells."""
        counted = self._counted()
        if self._one_size is None or self._one_size[0] is not counted:
            self._one_size = counted, not self._sums and _are_alike(counted)
        return self._one_size[1]

    def noise_deviation(self, floor: int) -> float | None:
        """Relative standard deviation among tasks with the same sizes and parameters; None
        if too few were repeated. floor: bytes below which a difference means nothing."""
        if self._noise is None or self._noise[0] != self.version:
            self._noise = self.version, self._noise_deviation(floor)
        return self._noise[1]

    def _noise_deviation(self, floor: int) -> float | None:
        freedom = residuals = 0.0
        for count, total, squares in self.by_inputs().values():
            mean = total / count
            if count > 1 and mean > 0:
                freedom += count - 1
                residuals += max(0.0, squares - total * mean) / (mean * mean + floor**2)
        return math.sqrt(residuals / freedom) if freedom >= _FREEDOM_LEAST else None

    def by_inputs(self, with_output_kind: bool = False) -> dict[CaseKey, Moments]:
        """The moments of cases that differ in their output only, added. Of those that count.
        with_output_kind: of outputs of one kind."""
        found: dict[CaseKey, Moments] = {}
        for case, moments in self._counted():
            key = case.key.without_output_bytes
            if not with_output_kind:
                key = key._replace(output_kind="")
            count, total, squares = found.get(key, (0.0, 0.0, 0.0))
            found[key] = count + moments[0], total + moments[1], squares + moments[2]
        return found

    def to_dict(self) -> dict[str, Any]:
        return {
            "n": self.n,
            "by_key": [
                [*case.others, *case.key.to_list()] for _, case in sorted(self._cases.items())
            ],
            # By the place of the case in the list
            "first": [
                [place, *case.first]
                for place, (_, case) in enumerate(sorted(self._cases.items()))
                if case.first is not None
            ],
            "first_n": self.first_n,
            "largest": [
                [place, case.largest]
                for place, (_, case) in enumerate(sorted(self._cases.items()))
                if case.count > 1
            ],
            "extremes": self._extremes.to_list(),
            "variants": self._tasks.to_list(),
            "sums": [[case.features.tolist(), *case.moments] for case in self._sums],
        }

    @classmethod
    def from_dict(cls, saved: dict[str, Any]) -> CaseSample:
        """ValueError if to_dict cannot have given this."""
        self = cls()
        self.n = parse_row([saved["n"]], 1, "n")[0]
        # Of an earlier version: the moments stand behind the key.
        rows = (
            saved["by_key"] if "by_key" in saved else [(*r[4:], *r[:4], {}) for r in saved["cases"]]
        )
        sums = saved["sums"]
        if len(rows) > _BY_HASH + _BY_SIZE or len(sums) > _SUMS_MOST:
            raise ValueError("a damaged model: cases")
        # Of an earlier version it is not known which were first calls.
        firsts = {place: FirstMoments.parse(row) for place, *row in saved.get("first", [])}
        # Of an earlier version the largest peaks are not known.
        unknown = [(place, BYTES_MOST) for place in range(len(rows))]
        largest = {
            place: parse_row([peak], 1, "cases")[0] for place, peak in saved.get("largest", unknown)
        }
        self._extremes = Extremes.parse(saved.get("extremes", []))
        self._tasks = VariantCounts.parse(saved.get("variants", []))
        for place, row in enumerate(rows):
            key = CaseKey.parse(*row[3:])
            case = self._cases[key.hash] = Case(key)
            case.first = firsts.get(place)
            if "variants" not in saved:
                self._tasks.add(key.variant, float(row[0]))
            if case.first is None or any(row[:3]):
                moments = parse_moments(row[:3])
                case.add(*moments, largest.get(place, moments[1]))
        self.first_n = parse_row([saved.get("first_n", 0)], 1, "n")[0]
        for features, *moments in sums:
            self._sums.append(SumsCase(parse_features(features), *parse_moments(moments)))
        self._limit()
        return self

    @classmethod
    def from_sums(cls, scalars: Any, vectors: Any) -> CaseSample:
        """Of a model that an earlier version saved."""
        self = cls()
        self._sums = cases_of_sums(scalars, vectors)
        self.n = sum(case.count for case in self._sums)
        return self
