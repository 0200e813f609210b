"""Is a difference more than noise? Two permutation tests on the figures of two runs, and the
correction for multiple comparisons. Called by compare/difference.py.

The null hypothesis of both tests: it does not matter which run a task belongs to. Neither test
assumes a distribution. Each test also returns the least p that it could have found with these
figures. With few tasks, or figures that are all alike, even the least p is not significant.

Pure Python: a comparison needs no extra.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import groupby
from math import comb, erfc, prod, sqrt
from typing import NamedTuple

_EXACT_STRATUM_MOST = 20  # tasks in one stratum; with more, the normal approximation is as good
_EXACT_TOTAL_MOST = 24  # tasks in all strata
_SUPPORT_MOST = 20_000  # different values of the statistic

Stratum = tuple[list[float], list[float]]  # A's and B's figures that may be compared


class PValue(NamedTuple):
    p: float
    least: float  # the smallest p that the test could have found with these figures


_NO_EVIDENCE = PValue(1.0, 1.0)


def rank_test(strata: Sequence[Stratum]) -> PValue:
    """Are B's figures larger or smaller than A's? Two-sided.

    The Wilcoxon-Mann-Whitney test with midranks for ties, over strata with van Elteren's
    weights. With one task each in several strata it is the sign test. Exact where that is cheap.
    """
    parts = [_Ranks(a, b) for a, b in strata if a and b]
    parts = [part for part in parts if part.variance > 0]
    if not parts:
        return _NO_EVIDENCE
    found = abs(sum(part.weight * part.deviation for part in parts))
    most = max(
        abs(sum(part.weight * edge for part, edge in zip(parts, edges, strict=True)))
        for edges in zip(*(part.extremes() for part in parts), strict=True)
    )
    table = _exact_distribution(parts)
    if table is None:
        sigma = sqrt(sum(part.weight**2 * part.variance for part in parts))
        return PValue(erfc(found / sigma / sqrt(2)), erfc(most / sigma / sqrt(2)))

    def tail(edge: float) -> float:
        return min(1.0, sum(p for value, p in table.items() if abs(value) >= edge - 1e-5))

    return PValue(tail(found), tail(most))


class _Ranks:
    """One stratum. The statistic is the sum of B's ranks minus its expectation."""

    def __init__(self, a: Sequence[float], b: Sequence[float]) -> None:
        values = sorted([(value, 0) for value in a] + [(value, 1) for value in b])
        self.size, self.drawn = len(values), len(b)
        self.ranks: list[float] = []
        sum_of_b = 0.0
        for _, group in groupby(values, key=lambda pair: pair[0]):
            tied = [is_b for _, is_b in group]
            rank = len(self.ranks) + (len(tied) + 1) / 2
            self.ranks += [rank] * len(tied)
            sum_of_b += rank * sum(tied)
        self.expected = self.drawn * (self.size + 1) / 2
        self.deviation = sum_of_b - self.expected
        self.weight = 1 / (self.size + 1)
        middle = (self.size + 1) / 2
        self.variance = (
            self.drawn
            * (self.size - self.drawn)
            / (self.size * (self.size - 1))
            * sum((rank - middle) ** 2 for rank in self.ranks)
        )

    def extremes(self) -> tuple[float, float]:
        """The least and the largest deviation that is possible."""
        return (
            sum(self.ranks[: self.drawn]) - self.expected,
            sum(self.ranks[self.size - self.drawn :]) - self.expected,
        )

    def distribution(self) -> dict[float, float]:
        """Deviation → probability, over all ways to choose B's tasks."""
        counts: list[dict[float, int]] = [defaultdict(int) for _ in range(self.drawn + 1)]
        counts[0][0.0] = 1
        for seen, rank in enumerate(self.ranks):
            for drawn in range(min(self.drawn, seen + 1), 0, -1):
                for total, ways in counts[drawn - 1].items():
                    counts[drawn][total + rank] += ways
        ways = sum(counts[-1].values())
        return {total - self.expected: n / ways for total, n in counts[-1].items()}


def _exact_distribution(parts: Sequence[_Ranks]) -> dict[float, float] | None:
    """Weighted deviation → probability, of all strata together; None where that is too much
    work."""
    if (
        max(part.size for part in parts) > _EXACT_STRATUM_MOST
        or sum(part.size for part in parts) > _EXACT_TOTAL_MOST
    ):
        return None
    table = {0.0: 1.0}
    for part in parts:
        added = part.distribution()
        if len(table) * len(added) > _SUPPORT_MOST:
            return None
        convolved: dict[float, float] = defaultdict(float)
        for value, p in table.items():
            for deviation, q in added.items():
                convolved[round(value + part.weight * deviation, 6)] += p * q
        table = convolved
        if len(table) > _SUPPORT_MOST:
            return None
    return table


def exceedance_test(strata: Sequence[Stratum]) -> PValue:
    """Are the largest of B's figures larger than all of A's? One-sided and exact: the probability
    that all figures above A's largest are B's. Figures of all strata must be on one scale."""
    strata = [(a, b) for a, b in strata if a and b]
    if not strata:
        return _NO_EVIDENCE
    return PValue(
        _probability_above(max(max(a) for a, _ in strata), strata, count_both=False),
        _probability_above(_best_edge(strata), strata, count_both=True),
    )


def _best_edge(strata: Sequence[Stratum]) -> float:
    """A's largest figure in the most extreme case: B has the largest figures of each stratum, as
    many as it has tasks there. Then A's largest is the first figure that exceeds such a number."""
    remaining = [len(b) for _, b in strata]
    figures = ((value, i) for i, (a, b) in enumerate(strata) for value in (*a, *b))
    for value, i in sorted(figures, reverse=True):
        remaining[i] -= 1
        if remaining[i] < 0:
            return value
    raise ValueError("a stratum without figures of A")


def _probability_above(edge: float, strata: Sequence[Stratum], count_both: bool) -> float:
    """Probability that all figures above the edge are B's. count_both: as if A's figures above it
    were B's, too."""
    probability = 1.0
    for a, b in strata:
        above = sum(value > edge for value in ((*a, *b) if count_both else b))
        probability *= prod((len(b) - i) / (len(a) + len(b) - i) for i in range(above))
    return probability


def are_too_few(strata: Sequence[Stratum], alpha: float) -> bool:
    """Whether tasks are so few that no figures whatever could be significant.

    The least two-sided p is 2 divided by the number of ways to choose B's tasks. Counts are
    clipped, because larger ones do not change the answer."""
    ways = prod(comb(min(len(a), 9) + min(len(b), 9), min(len(b), 9)) for a, b in strata[:32])
    return 2 / ways > alpha


def holm(tests: Sequence[tuple[float, float]], alpha: float) -> list[float | None]:
    """Holm's adjusted p of each (p, least p). Tests that could not have been significant at
    `alpha` get None and do not count as comparisons (Tarone)."""
    counted = sorted(
        (i for i, (_, least) in enumerate(tests) if least <= alpha), key=lambda i: tests[i][0]
    )
    adjusted: list[float | None] = [None] * len(tests)
    largest = 0.0
    for place, i in enumerate(counted):
        largest = max(largest, min(1.0, tests[i][0] * (len(counted) - place)))
        adjusted[i] = largest
    return adjusted
