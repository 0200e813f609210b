"""Blocks that an array can be cut into. Blocks are not cubes: each axis is cut by itself.

Lengths along an axis are ceil(n / k), so that all blocks but the last are equal and the last one is
nearly as large; and these lengths rounded up to whole stored chunks, because a block that cuts
through stored chunks reads them more than once.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from numpy.typing import NDArray

    Blocks = NDArray[np.int64]  # a row per block, a column per axis

_BLOCKS_MOST = 20_000
_LENGTHS_MOST = 300  # along one axis, if a run has several kinds of tasks
_LARGER_MOST = 512  # times the volume of the block that a run has used: nothing is known beyond
_SLIVER_SHARE = 0.5  # of a block: a last block that is shorter is a sliver


def candidate_blocks(
    shape: Sequence[int],
    stored: Sequence[int] | None = None,
    whole_axes: Collection[int] = (),
    least: Sequence[int] | None = None,
    used: Sequence[int] | None = None,
) -> Blocks:
    """All combinations of lengths along the axes, at most 20,000. least: the shortest length that
    is allowed along each axis. used: a block that a run has used, if `stored` is not known: then
    lengths are multiples of its lengths, and halves of them, which its stored chunks allow, too."""
    free = [axis for axis in range(len(shape)) if axis not in whole_axes and shape[axis] > 1]
    most = int(_BLOCKS_MOST ** (1 / max(1, len(free))))
    if used is not None:
        most = min(most, _LENGTHS_MOST)
    lengths = [
        [n]
        if axis not in free
        else multiples_of(n, used[axis], least[axis] if least else 1, most)
        if used and not stored
        else axis_lengths(n, stored[axis] if stored else None, least[axis] if least else 1, most)
        for axis, n in enumerate(shape)
    ]
    grid = np.meshgrid(*lengths, indexing="ij")
    found = np.stack([one.ravel() for one in grid], axis=1).astype(np.int64)
    if used is None:
        return found
    ratios = (found / np.asarray(used, float)).prod(axis=1)
    near: Blocks = found[ratios <= max(_LARGER_MOST, ratios.min())]
    return near


def axis_lengths(n: int, stored: int | None = None, least: int = 1, most: int = 1000) -> list[int]:
    """Lengths of blocks along an axis of length n, ascending. most: how many; those that consist of
    whole stored chunks go first."""
    least = min(max(1, least), n)
    # All values of ceil(n / k): k itself up to the root, and the quotients beyond it
    root = min(n, math.isqrt(n) + 1)
    even = {-(-n // k) for k in range(1, root + 1)} | {
        length for length in range(1, root + 1) if -(-n // -(-n // length)) == length
    }
    aligned = {n}
    if stored and 1 < stored < n:
        aligned |= {min(n, -(-length // stored) * stored) for length in even}
    found = {
        length: length in aligned
        for length in sorted(even | aligned)
        if length >= least and not _leaves_sliver(n, length)
    }
    whole = [length for length, is_aligned in found.items() if is_aligned]
    other = [length for length, is_aligned in found.items() if not is_aligned]
    kept = thinned(whole, most)
    return sorted(kept + thinned(other, most - len(kept)))


def multiples_of(n: int, used: int, least: int = 1, most: int = 1000) -> list[int]:
    """Halves and multiples of a length that was used along an axis of length n, ascending."""
    found, half = {n}, used
    while half >= max(1, least):
        if half <= n:
            found.add(half)
        if half % 2:
            break
        half //= 2
    found |= {length for length in range(used, n, used) if not _leaves_sliver(n, length)}
    return thinned(sorted(found), most)


def thinned(lengths: list[int], most: int) -> list[int]:
    """At most so many of these, with nearly equal ratios between neighbours."""
    if len(lengths) <= most:
        return lengths
    if most <= 0:
        return []
    if most == 1:
        return [lengths[-1]]
    logs = np.log(lengths)
    wanted = np.linspace(logs[0], logs[-1], most)
    above = np.searchsorted(logs, wanted).clip(1, len(lengths) - 1)
    nearest = above - (wanted - logs[above - 1] < logs[above] - wanted)
    return [lengths[place] for place in np.unique(nearest)]


def _leaves_sliver(n: int, length: int) -> bool:
    rest = n % length
    return 0 < rest < _SLIVER_SHARE * length


def block_counts(shape: Sequence[int], blocks: Blocks) -> NDArray[np.int64]:
    """How many blocks the array has along each axis, a row per candidate."""
    counts: NDArray[np.int64] = -(-np.asarray(shape, np.int64) // blocks)
    return counts


def chunks_of(shape: Sequence[int], block: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    """The lengths of all blocks along each axis, as Dask writes them."""
    found = []
    for n, length in zip(shape, block, strict=True):
        count, rest = divmod(n, int(length))
        found.append((int(length),) * count + ((rest,) if rest else ()))
    return tuple(found)


def are_aligned(blocks: Blocks, stored: Sequence[int], shape: Sequence[int]) -> NDArray[np.bool_]:
    """Whether blocks consist of whole stored chunks."""
    whole = blocks >= np.asarray(shape, np.int64)
    found: NDArray[np.bool_] = ((blocks % np.asarray(stored, np.int64) == 0) | whole).all(axis=1)
    return found


def stored_chunks_touched(blocks: Blocks, stored: Sequence[int], shape: Sequence[int]) -> Any:
    """The largest number of stored chunks that one block reads from, for each candidate. A block
    whose edges are not those of stored chunks touches one more along that axis."""
    size = np.minimum(np.asarray(stored, np.int64), np.asarray(shape, np.int64))
    whole = blocks >= np.asarray(shape, np.int64)
    aligned = (blocks % size == 0) | whole
    along = np.where(aligned, -(-blocks // size), -(-(blocks - 1) // size) + 1)
    most = -(-np.asarray(shape, np.int64) // size)
    return np.minimum(along, most).prod(axis=1)
