"""The block to use: of all candidates whose worker stays within its memory with probability 1 − δ,
the one with the least expected time; or the largest one.

Among blocks within 5 % of the least time the smaller one is chosen: it leaves more room for what
was not foreseen.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from dwsr_probe.fit.candidates import Blocks
    from dwsr_probe.fit.worker import Shares

    Floats = NDArray[np.float64]

TIME, LARGEST = "time", "largest"
OBJECTIVES = (TIME, LARGEST)
NEARLY_AS_FAST = 1.05


@dataclass
class Chosen:
    """place: of the candidate; None: none fits. larger: the smallest candidate that contains it and
    does not fit; None: there is none."""

    place: int | None
    larger: int | None


def choose(
    blocks: Blocks,
    block_bytes: Floats,
    shares: Shares,
    seconds: Floats,
    tiers: Sequence[NDArray[np.bool_]],
    objective: str,
    q: float,
) -> Chosen:
    """tiers: masks of candidates. Those of the first tier go first; those of the next are taken if
    none of these fits."""
    least, most = shares.least(), shares.most()

    def fits(place: int) -> bool:
        # The exact bound takes a millisecond: it is computed only where it decides.
        return least[place] <= 1 and (most[place] <= 1 or shares.bound(place, q) <= 1)

    for wanted in tiers:
        places = np.flatnonzero(wanted)
        if objective == LARGEST:
            order = places[np.lexsort((seconds[places], -block_bytes[places]))]
            found = next((int(p) for p in order if fits(int(p))), None)
        else:
            found = _fastest(places, blocks, block_bytes, seconds, fits)
        if found is not None:
            return Chosen(found, _next_larger(found, blocks, block_bytes, fits))
    return Chosen(None, None)


def _fastest(
    places: NDArray[np.intp],
    blocks: Blocks,
    block_bytes: Floats,
    seconds: Floats,
    fits: Callable[[int], bool],
) -> int | None:
    order = places[np.argsort(seconds[places], kind="stable")]
    best = next((int(p) for p in order if fits(int(p))), None)
    if best is None:
        return None
    near = order[seconds[order] <= NEARLY_AS_FAST * seconds[best]]
    # Of equal volumes the one with the longest rows: loops along the last axis are fastest.
    near = near[np.lexsort((seconds[near], -blocks[near, -1], block_bytes[near]))]
    return next(int(p) for p in near if fits(int(p)))


def _next_larger(
    found: int, blocks: Blocks, block_bytes: Floats, fits: Callable[[int], bool]
) -> int | None:
    contains = (blocks >= blocks[found]).all(axis=1) & (block_bytes > block_bytes[found])
    places = np.flatnonzero(contains)
    order = places[np.argsort(block_bytes[places], kind="stable")]
    return next((int(p) for p in order if not fits(int(p))), None)
