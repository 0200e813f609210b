"""What a learner keeps of its exact values: a sample of *cases*. A case is one size of the inputs
and of the output, with the count, the sum and the sum of squares of the peaks seen with it.

The sample has the cases with the smallest hashes and those with the largest inputs. A case that
leaves the sample never returns, because other cases only become more. So the moments of each case
in the sample are complete, the order of arrival does not matter, and the sample of two merged
models is the one that a single model would have. Forgetting scales the counts. learner.py has one
sample per kind of memory; posterior.py fits its `table`.
"""

from __future__ import annotations

import math
import zlib
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from dwsr_probe.predict.cases_of_sums import SumsCase, cases_of_sums, parse_features
from dwsr_probe.predict.sizes import (
    BYTES_MOST,
    InputSizes,
    features_of,
    non_negative_int,
    parse_numbers,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from dwsr_probe.predict.sizes import Features

    Floats = NDArray[np.float64]

_BY_HASH, _BY_SIZE = 64, 8  # cases that are kept
_SUMS_MOST = 12  # cases made of sums
_DIFFERENCE_LEAST = 1e-4  # of a mean that makes a fit out of date, relative
_COUNT_LEAST = 1e-3  # of a case that is remembered after forgetting
_FREEDOM_LEAST = 3  # degrees of freedom needed to estimate the noise


class CaseTable(NamedTuple):
    """The cases as arrays: size functions (cases, functions), and of the peaks of each case the
    mean, the variance and the count."""

    features: Floats
    mean: Floats
    variance: Floats
    counts: Floats

    def discounted_to(self, n: float) -> CaseTable:
        """The cases, counted as at most n values."""
        return self._replace(counts=self.counts * min(1.0, n / self.counts.sum()))


class _Case:
    """count, total, squares: of the peaks seen."""

    __slots__ = ("count", "output_bytes", "sizes", "squares", "total")

    def __init__(self, sizes: InputSizes, output_bytes: int) -> None:
        self.sizes, self.output_bytes = sizes, output_bytes
        self.count = self.total = self.squares = 0.0

    @property
    def features(self) -> Features:
        return features_of(self.sizes, self.output_bytes)

    @property
    def moments(self) -> tuple[float, float, float]:
        return self.count, self.total, self.squares

    def add(self, count: float, total: float, squares: float) -> None:
        self.count += count
        self.total += total
        self.squares += squares


class CaseSample:
    """n: all values that were added, also of cases that are not in the sample; less what was
    forgotten. version: changes when a fit of the cases would change."""

    def __init__(self) -> None:
        self.n = 0.0
        self._cases: dict[int, _Case] = {}  # by hash
        self._sums: list[SumsCase] = []  # of models that an earlier version saved
        self.version = 0
        # Of a case that is not in the sample: above this hash, and with no larger inputs than
        # these, it cannot come in.
        self._hash_most, self._total_least = 1 << 32, -1
        self._noise: tuple[int, float | None] | None = None  # by version

    def __len__(self) -> int:
        return len(self._cases) + len(self._sums)

    def add(self, sizes: InputSizes, output_bytes: int, y: float) -> None:
        self.n += 1
        key = _key(sizes, output_bytes)
        case = self._cases.get(key)
        if case is None:
            if key > self._hash_most and sizes.total <= self._total_least:
                return
            case = self._cases[key] = _Case(sizes, output_bytes)
            case.add(1, y, y * y)
            self.version += 1
            self._limit()
            return
        mean = case.total / case.count
        case.add(1, y, y * y)
        if abs(y - mean) > _DIFFERENCE_LEAST * mean:
            self.version += 1

    def _limit(self) -> None:
        """Keep the size of the sample."""
        if len(self._cases) <= _BY_HASH:
            return
        by_hash = sorted(self._cases)[:_BY_HASH]
        by_size = sorted(self._cases, key=lambda key: (-self._cases[key].sizes.total, key))
        by_size = by_size[:_BY_SIZE]
        self._cases = {key: self._cases[key] for key in {*by_hash, *by_size}}
        self._hash_most = by_hash[-1]
        self._total_least = self._cases[by_size[-1]].sizes.total

    def discount(self, factor: float) -> None:
        """Forget: all values count `factor` times as much."""
        self.n *= factor
        every: list[_Case | SumsCase] = [*self._cases.values(), *self._sums]
        for case in every:
            case.count *= factor
            case.total *= factor
            case.squares *= factor
        self._cases = {k: case for k, case in self._cases.items() if case.count >= _COUNT_LEAST}
        if len(self._cases) <= _BY_HASH:
            self._hash_most, self._total_least = 1 << 32, -1
        self.version += 1

    def merge(self, other: CaseSample) -> None:
        self.n += other.n
        for key, theirs in other._cases.items():
            case = self._cases.get(key)
            if case is None:
                case = self._cases[key] = _Case(theirs.sizes, theirs.output_bytes)
            case.add(*theirs.moments)
        self._sums = [*self._sums, *other._sums][:_SUMS_MOST]
        self._limit()
        self.version += 1

    def table(self) -> CaseTable:
        """In the order of the hashes, so that rounding does not depend on the order of arrival."""
        cases: list[_Case | SumsCase] = [self._cases[key] for key in sorted(self._cases)]
        cases += self._sums
        features = np.array([case.features for case in cases])
        count, total, squares = np.array([case.moments for case in cases]).T
        mean = total / count
        return CaseTable(features, mean, np.maximum(squares / count - mean * mean, 0), count)

    def seen(self) -> list[tuple[int, float, int]]:
        """(input bytes, mean, count) of each size of the inputs, smallest first."""
        return sorted(
            (sizes.total, total / count, max(1, round(count)))
            for sizes, (count, total, _) in self._by_inputs().items()
        )

    def has_one_size(self) -> bool:
        """Whether all inputs had the same sizes, as far as the sample tells."""
        if self._sums or not self._cases:
            return False
        first = next(iter(self._cases.values())).sizes
        return all(case.sizes == first for case in self._cases.values())

    def noise_deviation(self, floor: int) -> float | None:
        """Relative standard deviation among tasks with inputs of the same sizes; None if too few
        were repeated. floor: bytes below which a difference means nothing."""
        if self._noise is None or self._noise[0] != self.version:
            self._noise = self.version, self._noise_deviation(floor)
        return self._noise[1]

    def _noise_deviation(self, floor: int) -> float | None:
        freedom = residuals = 0.0
        for count, total, squares in self._by_inputs().values():
            mean = total / count
            if count > 1 and mean > 0:
                freedom += count - 1
                residuals += max(0.0, squares - total * mean) / (mean * mean + floor**2)
        return math.sqrt(residuals / freedom) if freedom >= _FREEDOM_LEAST else None

    def _by_inputs(self) -> dict[InputSizes, tuple[float, float, float]]:
        """The moments of cases that differ in their output only, added."""
        found: dict[InputSizes, tuple[float, float, float]] = {}
        for key in sorted(self._cases):
            case = self._cases[key]
            count, total, squares = found.get(case.sizes, (0.0, 0.0, 0.0))
            found[case.sizes] = count + case.count, total + case.total, squares + case.squares
        return found

    def to_dict(self) -> dict[str, Any]:
        return {
            "n": self.n,
            "cases": [
                [*case.sizes, case.output_bytes, case.count, case.total, case.squares]
                for _, case in sorted(self._cases.items())
            ],
            "sums": [[case.features.tolist(), *case.moments] for case in self._sums],
        }

    @classmethod
    def from_dict(cls, saved: dict[str, Any]) -> CaseSample:
        """ValueError if to_dict cannot have given this."""
        self = cls()
        self.n = float(parse_numbers([saved["n"]], (1,), "n")[0])
        rows, sums = saved["cases"], saved["sums"]
        if len(rows) > _BY_HASH + _BY_SIZE or len(sums) > _SUMS_MOST:
            raise ValueError("a damaged model: cases")
        for row in rows:
            (total, elements, largest, output_bytes), moments = row[:4], row[4:]
            sizes = InputSizes.parse(total, elements, largest)
            output_bytes = non_negative_int(output_bytes, "bytes")
            case = self._cases[_key(sizes, output_bytes)] = _Case(sizes, output_bytes)
            case.add(*_parse_moments(moments))
        for features, *moments in sums:
            self._sums.append(SumsCase(parse_features(features), *_parse_moments(moments)))
        self._limit()
        return self

    @classmethod
    def from_sums(cls, scalars: Any, vectors: Any) -> CaseSample:
        """Of a model that an earlier version saved."""
        self = cls()
        self._sums = cases_of_sums(scalars, vectors)
        self.n = sum(case.count for case in self._sums)
        return self


def _parse_moments(moments: Any) -> tuple[float, float, float]:
    """Checked by the Cauchy-Schwarz inequality: without it a variance would be negative."""
    count, total, squares = parse_numbers(moments, (3,), "cases").tolist()
    if (
        not 0 < count < 1e18
        or total > count * BYTES_MOST
        or total**2 > count * squares * (1 + 1e-6)
    ):
        raise ValueError("a damaged model: cases")
    return count, total, squares


def _key(sizes: InputSizes, output_bytes: int) -> int:
    return zlib.crc32(repr((sizes, output_bytes)).encode())
