"""How long the job takes with a block, from measured durations of tasks.

    seconds = tasks × scheduling + blocks / workers × start + rounds × (read + compute)
    rounds = whole blocks / slots + (⌈blocks / slots⌉ − blocks / slots), slots = workers × threads

compute: measured seconds per byte, at the sizes that were measured and interpolated between them.
A small block may be faster per byte (it fits into a cache) or slower (fixed costs), so no line is
assumed. read: whole stored chunks are decoded, also if only a part of them is needed. whole blocks:
the volume of all blocks, in blocks of full size, because the last block along an axis is shorter.
The second term of the rounds is the tail: blocks that do not divide among the threads leave some
idle.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dwsr_probe.fit.candidates import block_counts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from dwsr_probe.fit.candidates import Blocks
    from dwsr_probe.fit.worker import Layout, Worker

    Floats = NDArray[np.float64]

SCHEDULING_S = 0.5e-3  # per task, in the scheduler: it handles one task after the other
# Per block, in the worker: threads take turns at it, because it is Python. 4 to 10 ms were measured
# for blocks that are read from zarr and written to it.
START_S = 4e-3


@dataclass
class Durations:
    """measured: (bytes of the block with its halo, seconds) of calls. read_seconds_per_byte: of
    decoded stored chunks. tasks_per_block: in the graph; None: by how blocks travel.
    serial_share: of a call, during which no other thread of the process works: it holds Python's
    GIL, or waits for memory."""

    measured: Sequence[tuple[float, float]]
    read_seconds_per_byte: float = 0.0
    scheduling_s: float = SCHEDULING_S
    start_s: float = START_S
    tasks_per_block: float | None = None
    serial_share: float = 0.0

    def compute(self, nbytes: Floats) -> Floats:
        """Seconds of one task."""
        by_size: dict[float, list[float]] = {}
        for size, seconds in self.measured:
            by_size.setdefault(size, []).append(seconds / max(size, 1))
        if not by_size:
            return np.zeros(len(nbytes))
        sizes = sorted(by_size)
        rates = [float(np.median(by_size[size])) for size in sizes]
        logs = np.log(np.maximum(nbytes, 1))
        rate = np.interp(logs, np.log(np.maximum(sizes, 1)), rates)
        found: Floats = rate * nbytes
        return found

    def job(self, blocks: Blocks, layout: Layout, worker: Worker, input_bytes: Floats) -> Floats:
        """Seconds of the whole job. input_bytes: of a block with its halo and other inputs."""
        count = layout.count(blocks)
        read = layout.read_bytes(blocks) * self.read_seconds_per_byte
        slower = 1 + self.serial_share * (worker.threads - 1)
        of_each = read + slower * self.compute(input_bytes)
        slots = worker.workers * worker.threads
        rounds = _whole_blocks(blocks, layout) / slots + np.ceil(count / slots) - count / slots
        tasks = self.tasks_per_block or _tasks_per_block(blocks, layout)
        scheduling = count * tasks * self.scheduling_s
        return scheduling + count / worker.workers * self.start_s + rounds * of_each


def _whole_blocks(blocks: Blocks, layout: Layout) -> Floats:
    """The volume of all blocks with their halos, in blocks of full size."""
    shape, around = np.asarray(layout.shape, float), 2 * np.asarray(layout.depth, float)
    counts = block_counts(layout.shape, blocks)
    found: Floats = np.minimum(counts, (shape + around * counts) / (blocks + around)).prod(axis=1)
    return found


def _tasks_per_block(blocks: Blocks, layout: Layout) -> Floats:
    found = np.ones(len(blocks))
    if any(layout.depth):
        is_cut = layout_cut(blocks, layout)
        halo = np.asarray(layout.depth) > 0
        found += 3.0 ** (is_cut & halo[None, :]).sum(axis=1)  # a task for each neighbour
    if layout.is_rechunked and layout.stored is not None:
        found += layout.read_bytes(blocks) / np.maximum(
            1.0, np.prod(layout.stored) * layout.itemsize
        )
    return found


def layout_cut(blocks: Blocks, layout: Layout) -> NDArray[np.bool_]:
    """Which axes are cut, for each candidate."""
    return blocks < np.asarray(layout.shape, np.int64)
