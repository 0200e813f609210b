"""Resident size over time, from the board's packed samples: least and largest per bucket, so
that no peak is lost whatever the zoom."""

from dataclasses import dataclass

import numpy as np

from dwsr_probe.sample import SAMPLE_BYTES

SHOWN_MOST = 24  # processes with a line of their own: the largest
POINTS_MOST = 48_000  # of all lines together
_BATCH_BYTES = 4 << 20
_UNREAD = np.uint64(1 << 63)  # from here on: a size that could not be read


@dataclass
class Line:
    """One process. Each point has the time, and the least and the largest resident size around
    it, the kernel's mark among them."""

    process: int  # its place in the store's list
    time: np.ndarray
    low: np.ndarray
    high: np.ndarray


def memory_lines(store, processes, progress):
    """Lines of the largest processes, the largest first."""
    by_size = sorted(range(len(processes)), key=lambda i: -(processes[i][0].rss_peak_bytes or 0))[
        :SHOWN_MOST
    ]
    total = sum(processes[i][1].get("samples_written") or 0 for i in by_size)
    done, lines = 0, []
    for i in by_size:
        record, _ = processes[i]
        buckets = _Buckets(POINTS_MOST // max(1, len(by_size)))
        merged = np.array(list(store.merged_samples(record.process)), float).reshape(-1, 5)
        buckets.add(merged[:, 0] + 0.5, merged[:, 1], merged[:, 2], merged[:, 3])
        for epoch, samples in _batches(store.packed_samples(record.process)):
            progress("reading samples", done, total)
            done += samples.shape[0]
            known = samples[:, 1] < _UNREAD
            rss = samples[known, 1].astype(float)
            peak = np.where(
                samples[known, 2] < _UNREAD, samples[known, 2], samples[known, 1]
            ).astype(float)
            buckets.add(epoch + samples[known, 0] / 1e9, rss, rss, peak)
        line = Line(i, *buckets.folded())
        if line.time.size:
            lines.append(line)
    return lines


def _batches(pieces):
    """Pieces of a second each joined to some hundred thousand samples, of one epoch."""
    held, size, epoch = [], 0, None
    for piece_epoch, packed in pieces:
        if held and (piece_epoch != epoch or size >= _BATCH_BYTES):
            yield epoch, _unpacked(held)
            held, size = [], 0
        epoch = piece_epoch
        held.append(packed)
        size += len(packed)
    if held:
        yield epoch, _unpacked(held)


def _unpacked(pieces):
    packed = b"".join(pieces)
    return np.frombuffer(packed[: len(packed) - len(packed) % SAMPLE_BYTES], "=u8").reshape(
        -1, SAMPLE_BYTES // 8
    )


class _Buckets:
    """Points in order of time; whenever there are far too many, neighbours in time are folded.
    Memory is bounded whatever the length of the run."""

    def __init__(self, most):
        self._most = max(200, most)
        self._parts, self._size, self._mark = [], 0, 0.0

    def add(self, time, low, high, mark):
        """mark: the kernel's, since the last boundary. It tells of a peak here only when it has
        moved since the sample before."""
        if not time.size:
            return
        moved = np.diff(mark, prepend=self._mark) != 0
        self._mark = mark[-1]
        self._parts.append(np.stack([time, low, np.where(moved, np.maximum(high, mark), high)]))
        self._size += time.size
        if self._size > 16 * self._most:
            self._parts = [self._fold(np.concatenate(self._parts, axis=1), 4 * self._most)]
            self._size = self._parts[0].shape[1]

    @staticmethod
    def _fold(points, most):
        """At most so many points, one per stretch of time."""
        if points.shape[1] <= most:
            return points
        time = points[0]
        number = ((time - time[0]) * ((most - 1) / max(1e-9, time[-1] - time[0]))).astype(np.int64)
        first = np.flatnonzero(np.r_[True, number[1:] != number[:-1]])
        return np.stack(
            [
                time[first],
                np.minimum.reduceat(points[1], first),
                np.maximum.reduceat(points[2], first),
            ]
        )

    def folded(self):
        return (
            self._fold(np.concatenate(self._parts, axis=1), self._most)
            if self._parts
            else np.zeros((3, 0))
        )
