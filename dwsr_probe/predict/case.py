"""A case: one size of the inputs and of the output, with its parameters and the kind of the output,
and the moments of the peaks seen with it. And cases as arrays, as posterior.py fits them. cases.py
has the sample that a learner keeps."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from dwsr_probe.predict.moments import FirstMoments
from dwsr_probe.predict.params import parse_params
from dwsr_probe.predict.sizes import InputSizes, features_of, non_negative_int, short_text
from dwsr_probe.predict.variant import Variant, VariantCounts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from dwsr_probe.predict.params import Params
    from dwsr_probe.predict.sizes import Features

    Floats = NDArray[np.float64]

Moments = tuple[float, float, float]  # count, sum, sum of squares


class CaseKey(NamedTuple):
    """What distinguishes a case from others."""

    sizes: InputSizes
    output_bytes: int
    params: Params = ()
    output_kind: str = ""  # "": not known

    @property
    def hash(self) -> int:
        """Of repr((self.sizes, self.output_bytes, *self.params)), which takes five times longer.
        Saved models have hashes without a kind of output."""
        (total, elements, (shape, nbytes, dtype)), output, params, output_kind = self
        text = (
            f"(InputSizes(total={total}, elements={elements}, largest=Array(shape={shape!r},"
            f" nbytes={nbytes}, dtype={dtype!r})), {output}"
        )
        for param in params:
            text += f", {param!r}"
        if output_kind:
            text += f", {output_kind!r}"
        return zlib.crc32((text + ")").encode())

    @property
    def without_output_bytes(self) -> CaseKey:
        return self._replace(output_bytes=0)

    @property
    def variant(self) -> Variant:
        shape = self.sizes.largest.shape
        return Variant(None if shape is None else len(shape), self.output_kind)

    def to_list(self) -> list[Any]:
        return [*self.sizes, self.output_bytes, dict(self.params), self.output_kind]

    @classmethod
    def parse(
        cls,
        total: Any,
        elements: Any,
        largest: Any,
        output: Any,
        params: Any,
        output_kind: Any = "",  # not in an earlier version
    ) -> CaseKey:
        """From a file."""
        return cls(
            InputSizes.parse(total, elements, largest),
            non_negative_int(output, "bytes"),
            parse_params(params),
            short_text(output_kind) or "",
        )


class CaseTable(NamedTuple):
    """The cases as arrays: size functions and parameters (cases, functions), and of the peaks of
    each case the mean, the variance, the count and the largest. variants: of each case. extremes:
    tasks of other cases that took most; their counts are like those of the cases. tasks: of each
    variant, also of cases that are not in the table."""

    features: Floats
    mean: Floats
    variance: Floats
    counts: Floats
    largest: Floats
    variants: tuple[Variant, ...] = ()
    extremes: CaseTable | None = None
    tasks: VariantCounts | None = None

    def at(self, places: Sequence[int] | NDArray[np.intp]) -> CaseTable:
        """Some of the cases."""
        features, mean, variance, counts, largest, variants, *_ = self
        return CaseTable(
            features[places],
            mean[places],
            variance[places],
            counts[places],
            largest[places],
            tuple(variants[place] for place in places) if variants else (),
        )

    def with_rows(self, other: CaseTable) -> CaseTable:
        """With those of another table."""
        return CaseTable(
            np.concatenate((self.features, other.features)),
            np.append(self.mean, other.mean),
            np.append(self.variance, other.variance),
            np.append(self.counts, other.counts),
            np.append(self.largest, other.largest),
            (*self.variants, *other.variants),
        )

    def discounted_to(self, n: float) -> CaseTable:
        """The cases, counted as at most n values."""
        return self._replace(counts=self.counts * min(1.0, n / self.counts.sum()))


class Case:
    """count, total, squares, largest: of the peaks seen, without first calls. first: the first
    calls; None: there are none."""

    __slots__ = ("count", "first", "key", "largest", "squares", "total")

    def __init__(self, key: CaseKey) -> None:
        self.key = key
        self.count = self.total = self.squares = self.largest = 0.0
        self.first: FirstMoments | None = None

    @property
    def features(self) -> Features:
        return features_of(self.key.sizes, self.key.output_bytes)

    @property
    def params(self) -> Params:
        return self.key.params

    @property
    def others(self) -> tuple[float, float, float]:
        """The moments without first calls."""
        return self.count, self.total, self.squares

    @property
    def moments(self) -> tuple[float, float, float]:
        """The moments of all tasks."""
        first = self.first
        if first is None:
            return self.others
        return self.count + first.tasks, self.total + first.total, self.squares + first.squares

    def largest_with(self, with_first: bool) -> float:
        return max(self.largest, self.first.largest if with_first and self.first else 0.0)

    def add(self, count: float, total: float, squares: float, largest: float) -> None:
        self.count += count
        self.total += total
        self.squares += squares
        self.largest = max(self.largest, largest)

    def add_first(self, more: FirstMoments) -> None:
        self.first = more if self.first is None else self.first.plus(more)


class FirstCase(NamedTuple):
    """A case that has first calls. hash: of its key."""

    hash: int
    key: CaseKey
    first: FirstMoments
