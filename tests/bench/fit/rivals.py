"""The blocks that others would use for the same job."""

import math
from itertools import pairwise

import numpy as np
from dask.array.core import normalize_chunks

from dwsr_probe.fit.candidates import block_counts, candidate_blocks

PUBLISHED_SHARE = 0.8  # of the limit
_COUNT_MOST = 400  # blocks of a candidate: more take too long to try
_ALIGNED, _OTHER = 8, 4


def auto(operator):
    """Dask's own choice, with its default of 128 MiB for a block."""
    chunks = normalize_chunks(
        tuple(-1 if axis in operator.whole else "auto" for axis in range(len(operator.shape))),
        operator.shape,
        dtype=np.float32,
        previous_chunks=operator.stored,
    )
    return tuple(max(lengths) for lengths in chunks)


def even(operator, threads):
    """A piece of the first axis for each thread."""
    axis = next(i for i in range(len(operator.shape)) if i not in operator.whole)
    return tuple(-(-n // threads) if i == axis else n for i, n in enumerate(operator.shape))


def published(operator, plan):
    """The largest cube whose edge divides all axes, and whose expected peak stays below 80 % of the
    limit. The peak is the one that our model expects. None: there is no such cube."""
    cut = [n for axis, n in enumerate(operator.shape) if axis not in operator.whole]
    divisor = math.gcd(*cut)
    for edge in range(divisor, 0, -1):
        block = tuple(
            n if axis in operator.whole else edge for axis, n in enumerate(operator.shape)
        )
        if (
            divisor % edge == 0
            and expected_bytes(plan, block) < PUBLISHED_SHARE * plan.memory_bytes
        ):
            return block
    return None


def expected_bytes(plan, block):
    """Of a worker, by the plan's curve."""
    sizes = [point.input_bytes for point in plan.curve]
    peaks = [point.expected_bytes for point in plan.curve]
    return float(np.interp(4 * math.prod(block), sizes, peaks))


def candidates(operator, plan, seed):
    """Twelve blocks at most, of the fit's own grid, from small to large: most of them of whole
    stored chunks. Left out are blocks that cannot fit, because their input and output alone fill
    the limit, and blocks that are too many."""
    blocks = candidate_blocks(operator.shape, operator.stored, operator.whole, operator.depth)
    sizes = 4 * blocks.prod(axis=1)
    fixed = plan.base_bytes + plan.tasks_at_once * 2 * sizes
    count = block_counts(operator.shape, blocks).prod(axis=1)
    possible = (fixed < plan.memory_bytes) & (count <= _COUNT_MOST)
    whole = (blocks % operator.stored == 0) | (blocks == operator.shape)
    is_aligned = whole.all(axis=1)
    chance = np.random.default_rng(seed)
    found = [
        *_spread(blocks[possible & is_aligned], _ALIGNED, chance),
        *_spread(blocks[possible & ~is_aligned], _OTHER, chance),
    ]
    return [tuple(map(int, block)) for block in found]


def _spread(blocks, most, chance):
    """One of each range of sizes, whose limits have equal ratios."""
    if len(blocks) <= most:
        return list(blocks)
    logs = np.log(blocks.prod(axis=1))
    limits = np.linspace(logs.min(), logs.max() + 1e-9, most + 1)
    groups = [blocks[(logs >= a) & (logs < b)] for a, b in pairwise(limits)]
    return [group[chance.integers(len(group))] for group in groups if len(group)]
