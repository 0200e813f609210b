"""Resident size over time, from the board's packed samples: the smallest and the largest value of
each interval, so that no peak is lost at any zoom.

Used by the page and by report/memory_plot.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dwsr_probe.sample import SAMPLE_BYTES

if TYPE_CHECKING:
    from dwsr_probe.report.html import Progress
    from dwsr_probe.report.summary import ProcessRow
    from dwsr_probe.store import Store

LINES_MOST = 24  # one per process: the largest processes
POINTS_MOST = 48_000  # of all lines together
_BATCH_BYTES = 4 << 20
_UNREADABLE = np.uint64(1 << 63)  # sizes from here on mean that the size could not be read


@dataclass
class MemoryLine:
    """One process. Each point has a time, and the smallest and the largest resident size of the
    interval around it. The largest includes the kernel's high-water mark."""

    process: int  # index in store.processes()
    time: np.ndarray
    low: np.ndarray
    high: np.ndarray


def memory_lines(
    store: Store, processes: Sequence[ProcessRow], progress: Progress
) -> list[MemoryLine]:
    """Of the largest processes, the largest first."""
    by_size = sorted(range(len(processes)), key=lambda i: -(processes[i][0].rss_peak_bytes or 0))
    shown = by_size[:LINES_MOST]
    total = sum(processes[i][1].get("samples_written") or 0 for i in shown)
    done, lines = 0, []
    for i in shown:
        process = processes[i][0].process or ""
        buckets = _Buckets(POINTS_MOST // max(1, len(shown)))
        merged = np.array(list(store.merged_samples(process)), np.float64).reshape(-1, 5)
        buckets.add(merged[:, 0] + 0.5, merged[:, 1], merged[:, 2], merged[:, 3])
        for epoch, samples in _batches(store.packed_samples(process)):
            progress("reading samples", done, total)
            done += samples.shape[0]
            known = samples[:, 1] < _UNREADABLE
            rss = samples[known, 1].astype(float)
            peak = np.where(
                samples[known, 2] < _UNREADABLE, samples[known, 2], samples[known, 1]
            ).astype(float)
            buckets.add(epoch + samples[known, 0] / 1e9, rss, rss, peak)
        line = MemoryLine(i, *buckets.points())
        if line.time.size:
            lines.append(line)
    return lines


def _batches(pieces: Iterable[tuple[float, bytes]]) -> Iterator[tuple[float, np.ndarray]]:
    """(epoch, samples): the pieces hold a second each; those with the same epoch are joined to
    batches of about _BATCH_BYTES."""
    held: list[bytes] = []
    size, epoch = 0, 0.0
    for piece_epoch, packed in pieces:
        if held and (piece_epoch != epoch or size >= _BATCH_BYTES):
            yield epoch, _unpack(held)
            held, size = [], 0
        epoch = piece_epoch
        held.append(packed)
        size += len(packed)
    if held:
        yield epoch, _unpack(held)


def _unpack(pieces: Sequence[bytes]) -> np.ndarray:
    packed = b"".join(pieces)
    return np.frombuffer(packed[: len(packed) - len(packed) % SAMPLE_BYTES], "=u8").reshape(
        -1, SAMPLE_BYTES // 8
    )


class _Buckets:
    """Points in order of time. Whenever there are far too many, neighbours in time are merged, so
    that the memory needed here does not grow with the length of the run."""

    def __init__(self, most: int) -> None:
        self._most = max(200, most)
        self._parts: list[np.ndarray] = []
        self._size, self._mark = 0, 0.0

    def add(self, time: np.ndarray, low: np.ndarray, high: np.ndarray, mark: np.ndarray) -> None:
        """mark: the kernel's high-water mark since the last boundary. It shows a peak at this
        sample only if it differs from the sample before."""
        if not time.size:
            return
        moved = np.diff(mark, prepend=self._mark) != 0
        self._mark = mark[-1]
        self._parts.append(np.stack([time, low, np.where(moved, np.maximum(high, mark), high)]))
        self._size += time.size
        if self._size > 16 * self._most:
            self._parts = [
                self._merge_neighbours(np.concatenate(self._parts, axis=1), 4 * self._most)
            ]
            self._size = self._parts[0].shape[1]

    @staticmethod
    def _merge_neighbours(points: np.ndarray, most: int) -> np.ndarray:
        """At most `most` points, one per interval of time."""
        if points.shape[1] <= most:
            return points
        time = points[0]
        number = ((time - time[0]) * ((most - 1) / max(1e-9, time[-1] - time[0]))).astype(np.int64)
        first = np.flatnonzero(np.concatenate([[True], number[1:] != number[:-1]]))
        return np.stack(
            [
                time[first],
                np.minimum.reduceat(points[1], first),
                np.maximum.reduceat(points[2], first),
            ]
        )

    def points(self) -> np.ndarray:
        """All points; the rows are time, smallest and largest value."""
        return (
            self._merge_neighbours(np.concatenate(self._parts, axis=1), self._most)
            if self._parts
            else np.zeros((3, 0))
        )
