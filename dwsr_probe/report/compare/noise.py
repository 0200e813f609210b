"""Is a difference more than noise? Two tests on figures of two runs, and the correction for
asking of many task names. Pure Python: comparing needs no extra.

Both ask how often chance would do it if it did not matter which run a task is of, and assume
nothing about how figures are spread. A test also says the least probability it could have
found: with few tasks, or figures that are all alike, none of the answers would have been "more
than noise".
"""

from collections import defaultdict
from itertools import groupby
from math import comb, erfc, prod, sqrt

_EXACT_MOST = 20  # tasks in one stratum; with more, the normal approximation is as good
_EXACT_ALL, _SUPPORT_MOST = 24, 20_000


def rank_test(strata):
    """(p, least p) that B's figures are larger or smaller than A's, two-sided. strata: (A's
    figures, B's figures) of tasks that may be compared with each other.

    The Wilcoxon-Mann-Whitney test with midranks for ties, over strata with van Elteren's
    weights; of pairs it is the sign test. Exact where that is cheap.
    """
    parts = [_Stratum(a, b) for a, b in strata if a and b]
    parts = [part for part in parts if part.spread > 0]
    if not parts:
        return 1.0, 1.0
    found = abs(sum(part.weight * part.deviation for part in parts))
    most = max(
        abs(sum(part.weight * edge for part, edge in zip(parts, edges, strict=True)))
        for edges in zip(*(part.extremes() for part in parts), strict=True)
    )
    table = _exact(parts)
    if table is None:
        sigma = sqrt(sum(part.weight**2 * part.spread for part in parts))
        return erfc(found / sigma / sqrt(2)), erfc(most / sigma / sqrt(2))
    return tuple(
        min(1.0, sum(share for value, share in table.items() if abs(value) >= edge - 1e-5))
        for edge in (found, most)
    )


class _Stratum:
    """Ranks of one stratum; everything about the sum of B's ranks, from its expectation."""

    def __init__(self, a, b):
        values = sorted([(value, 0) for value in a] + [(value, 1) for value in b])
        self.size, self.drawn = len(values), len(b)
        self.ranks, of_b, at = [], 0.0, 0
        for _, tied in groupby(values, key=lambda pair: pair[0]):
            tied = [from_b for _, from_b in tied]
            rank = at + (len(tied) + 1) / 2
            self.ranks += [rank] * len(tied)
            of_b += rank * sum(tied)
            at += len(tied)
        self.expected = self.drawn * (self.size + 1) / 2
        self.deviation = of_b - self.expected
        self.weight = 1 / (self.size + 1)
        middle = (self.size + 1) / 2
        # its variance
        self.spread = (
            self.drawn
            * (self.size - self.drawn)
            / (self.size * (self.size - 1))
            * sum((rank - middle) ** 2 for rank in self.ranks)
        )

    def extremes(self):
        return (
            sum(self.ranks[: self.drawn]) - self.expected,
            sum(self.ranks[self.size - self.drawn :]) - self.expected,
        )

    def chances(self):
        """{deviation: probability} over all draws."""
        counts = [defaultdict(int) for _ in range(self.drawn + 1)]
        counts[0][0.0] = 1
        for seen, rank in enumerate(self.ranks):
            for drawn in range(min(self.drawn, seen + 1), 0, -1):
                for total, ways in counts[drawn - 1].items():
                    counts[drawn][total + rank] += ways
        ways = sum(counts[-1].values())
        return {total - self.expected: n / ways for total, n in counts[-1].items()}


def _exact(parts):
    """{weighted deviation: probability} of all strata together, or None where that is too much
    work."""
    if (
        max(part.size for part in parts) > _EXACT_MOST
        or sum(part.size for part in parts) > _EXACT_ALL
    ):
        return None
    table = {0.0: 1.0}
    for part in parts:
        chances, following = part.chances(), defaultdict(float)
        if len(table) * len(chances) > _SUPPORT_MOST:
            return None
        for value, share in table.items():
            for deviation, chance in chances.items():
                following[round(value + part.weight * deviation, 6)] += share * chance
        table = following
        if len(table) > _SUPPORT_MOST:
            return None
    return table


def exceedance_test(strata):
    """(p, least p) that the largest of B's figures are larger than all of A's by more than
    chance, one-sided: so many of the top ones are B's. Exact; strata as above, with figures on
    one scale."""
    strata = [(a, b) for a, b in strata if a and b]
    if not strata:
        return 1.0, 1.0
    # At best B would have all of the largest, as many as it has in each stratum; the next one would
    # be A's largest.
    left = [len(b) for _, b in strata]
    for value, place in sorted(
        ((value, place) for place, (a, b) in enumerate(strata) for value in (*a, *b)), reverse=True
    ):
        left[place] -= 1
        if left[place] < 0:
            at_best = value
            break
    return _above(strata, max(max(a) for a, _ in strata), False), _above(strata, at_best, True)


def _above(strata, edge, of_both):
    """How probable it is that all figures above the edge are B's."""
    chance = 1.0
    for a, b in strata:
        top = sum(value > edge for value in ((*a, *b) if of_both else b))
        chance *= prod((len(b) - i) / (len(a) + len(b) - i) for i in range(top))
    return chance


def are_too_few(strata, alpha):
    """Whether tasks are so few that no figures whatever would be more than noise."""
    # more of either would say no other
    return (
        2 / prod(comb(min(len(a), 9) + min(len(b), 9), min(len(b), 9)) for a, b in strata[:32])
        > alpha
    )


def holm(tests, alpha):
    """Adjusted p of (p, least p) each, in order. Those that could not have said yes at `alpha`
    are none of the questions asked (Tarone), so they cost the others nothing."""
    asked = sorted(
        (i for i, (_, least) in enumerate(tests) if least <= alpha), key=lambda i: tests[i][0]
    )
    adjusted, worst = [None] * len(tests), 0.0
    for place, i in enumerate(asked):
        worst = max(worst, min(1.0, tests[i][0] * (len(asked) - place)))
        adjusted[i] = worst
    return adjusted
