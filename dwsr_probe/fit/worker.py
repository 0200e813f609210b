"""The memory of one worker while it works through blocks.

    peak = base + held + first calls + threads × max(load, input + own peak, store)

base: the process with its libraries, without blocks. held: blocks and results that are in memory
beside the running tasks. first calls: what the first task in each thread takes and keeps. load: a
block that is read from stored chunks, with the chunks that are decoded at the same time. store: a
result while it is written, with its encoded bytes; the block is free by then. own peak:
of the threads together, from the joint posterior, because tasks of one name are not independent.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from dwsr_probe.fit.candidates import block_counts, stored_chunks_touched

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from dwsr_probe.fit.candidates import Blocks
    from dwsr_probe.fit.steps import Needs

    Floats = NDArray[np.float64]

_CHUNKS_DECODED_AT_ONCE = 10  # zarr's async.concurrency
# Threads of a process that decode: Python's default for thread pools, on this machine's CPUs
_DECODERS = min(32, (os.cpu_count() or 1) + 4)


@dataclass
class Worker:
    """allowed_bytes: what it may use of its limit."""

    allowed_bytes: float
    base_bytes: float
    threads: int
    workers: int = 1


@dataclass
class Layout:
    """How blocks travel through the graph. stored: lengths of the chunks that are read; None: the
    array is in memory. used: the block of a run. held_blocks: how many blocks' worth of memory a
    worker of that run held beside its tasks. depth: halo along each axis, as `map_overlap` has it.
    is_rechunked: blocks are made by `rechunk` from the array's own chunks, not read as blocks.
    keeps_results: results stay in the workers (compute, persist) instead of being stored."""

    shape: Sequence[int]
    itemsize: float
    depth: Sequence[int]
    stored: Sequence[int] | None = None
    used: Sequence[int] | None = None
    held_blocks: float = 0.0
    is_rechunked: bool = False
    keeps_results: bool = False

    def block_bytes(self, blocks: Blocks) -> Floats:
        return blocks.prod(axis=1).astype(float) * self.itemsize

    def count(self, blocks: Blocks) -> Floats:
        return block_counts(self.shape, blocks).prod(axis=1).astype(float)

    def read_bytes(self, blocks: Blocks) -> Floats:
        """What reading one block decodes: whole stored chunks."""
        if self.stored is None:
            return self.block_bytes(blocks)
        chunk = self._stored_bytes()
        return np.maximum(
            stored_chunks_touched(blocks, self.stored, self.shape) * chunk, self.block_bytes(blocks)
        )

    def load_bytes(self, blocks: Blocks) -> Floats:
        """What a thread needs while it reads one block: the block, and the stored chunks that are
        decoded at the same time, each with its encoded bytes, which may be as large."""
        if self.stored is None or self.is_rechunked:
            return self.block_bytes(blocks)
        return self.block_bytes(blocks) + self._decoded_at_once(blocks) * 2 * self._stored_bytes()

    def _decoded_at_once(self, blocks: Blocks) -> Floats:
        assert self.stored is not None
        touched = stored_chunks_touched(blocks, self.stored, self.shape)
        found: Floats = np.minimum(touched, _CHUNKS_DECODED_AT_ONCE)
        return found

    def _stored_bytes(self) -> float:
        assert self.stored is not None
        lengths = [min(n, length) for n, length in zip(self.shape, self.stored, strict=True)]
        return float(np.prod(lengths)) * self.itemsize

    def held_bytes(self, blocks: Blocks, worker: Worker, output_bytes: Floats) -> Floats:
        """Of one worker, beside its running tasks."""
        held = np.zeros(len(blocks))
        block, count = self.block_bytes(blocks), self.count(blocks)
        if any(self.depth):
            held += block * np.minimum(count, self._neighbours(blocks, worker.threads))
        if self.is_rechunked and self.stored is not None:
            # Parts of chunks keep whole chunks alive: those of the blocks that the threads have.
            # The next block is put together beside its chunks. One chunk more than there are
            # threads is decoded (distributed.scheduler.worker-saturation), with its encoded bytes.
            read, decoded = self.read_bytes(blocks), 2 * self._stored_bytes()
            held += worker.threads * (read - block) + read + block + (worker.threads + 1) * decoded
        elif self.stored is not None:
            # Chunks are decoded in threads of zarr, and glibc keeps what such threads have freed.
            chunks = np.minimum(worker.threads * self._decoded_at_once(blocks), _DECODERS)
            held += chunks * self._stored_bytes()
        held = np.maximum(held, block * np.minimum(count, self.held_blocks))
        if self.keeps_results:
            held += output_bytes * np.ceil(count / worker.workers)
        return held

    def _neighbours(self, blocks: Blocks, threads: int) -> Floats:
        """How many blocks `map_overlap` keeps until all their neighbours have what they need of
        them. Blocks are worked through with the last axis fastest. So along the first axis that is
        cut, a whole layer of blocks waits for the next layer: up to three layers are held."""
        counts = block_counts(self.shape, blocks).astype(float)
        is_cut = counts > 1
        first = np.argmax(is_cut, axis=1)
        beyond = np.arange(counts.shape[1])[None, :] > first[:, None]
        layer = np.where(beyond, counts, 1.0).prod(axis=1)
        held = 2 * layer + np.maximum(layer, threads) + 1
        # A block's last neighbour is so many blocks further on
        steps = np.cumprod(counts[:, ::-1], axis=1)[:, ::-1] / counts
        held = np.maximum(held, 2 * np.where(is_cut, steps, 0.0).sum(axis=1) + threads)
        return np.where(is_cut.any(axis=1), held, 0.0)


class WorkerMemory(NamedTuple):
    """Of each candidate block: the parts of the formula, in bytes of one worker."""

    base: float
    held: Floats
    first_calls: float
    load: Floats  # of all threads; or to store, if that is more
    needs: Sequence[Needs]
    threads: int

    def fixed(self) -> Floats:
        return self.base + self.first_calls + self.held

    def mean(self) -> Floats:
        own = [self.threads * (n.input_bytes + n.mean) for n in self.needs]
        return self.fixed() + np.maximum(self.load, np.max(own, axis=0))

    def least(self) -> Floats:
        """The bound is at least this: one thread at its bound, the others at their means."""
        others = self.threads - 1
        own = [
            self.threads * n.input_bytes + n.upper + others * np.minimum(n.mean, n.upper)
            for n in self.needs
        ]
        return self.fixed() + np.maximum(self.load, np.max(own, axis=0))

    def most(self) -> Floats:
        """At most this: if all threads reached their bounds at once."""
        own = [self.threads * (n.input_bytes + n.upper) for n in self.needs]
        return self.fixed() + np.maximum(self.load, np.max(own, axis=0))

    def bound(self, place: int, q: float) -> float:
        own = max(
            self.threads * n.input_bytes[place] + n.joint_upper(place, self.threads, q)
            for n in self.needs
        )
        return float(self.fixed()[place] + max(self.load[place], own))

    def deciding(self, place: int) -> Needs:
        """The step that needs most."""
        return max(self.needs, key=lambda n: n.input_bytes[place] + n.upper[place])


class Shares(NamedTuple):
    """Memories that must not be exceeded, each with what may be used of it: the host's, and that of
    a device. Figures are shares of what may be used, of the memory that is exhausted first."""

    memories: Sequence[tuple[WorkerMemory, float]]

    def least(self) -> Floats:
        found: Floats = np.max([memory.least() / most for memory, most in self.memories], axis=0)
        return found

    def most(self) -> Floats:
        found: Floats = np.max([memory.most() / most for memory, most in self.memories], axis=0)
        return found

    def bound(self, place: int, q: float) -> float:
        return max(memory.bound(place, q) / most for memory, most in self.memories)


def memory_of_device(needs: Sequence[Needs], worker: Worker, count: int) -> WorkerMemory:
    """Of the device that the worker's threads share. Arrays of the host take nothing of it."""
    nothing = np.zeros(count)
    return WorkerMemory(0.0, nothing, 0.0, nothing, needs, worker.threads)


def worker_memory(
    blocks: Blocks,
    layout: Layout,
    worker: Worker,
    needs: Sequence[Needs],
    first_call_bytes: float = 0.0,
    store_copies: float = 0.0,
) -> WorkerMemory:
    """store_copies: how many times a result is in memory while it is stored; 0: own peaks include
    storing, as those of a run do."""
    outputs = np.max([n.output_bytes for n in needs], axis=0)
    return WorkerMemory(
        worker.base_bytes,
        layout.held_bytes(blocks, worker, outputs),
        worker.threads * first_call_bytes,
        worker.threads * np.maximum(layout.load_bytes(blocks), store_copies * outputs),
        needs,
        worker.threads,
    )
