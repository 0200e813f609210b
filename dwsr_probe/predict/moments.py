"""Moments of the peaks of first calls, which a case keeps apart from those of other tasks. Used by
cases.py and first_calls.py."""

from __future__ import annotations

from typing import Any, NamedTuple

from dwsr_probe.predict.sizes import BYTES_MOST, parse_row


class FirstMoments(NamedTuple):
    """Number of tasks, sum and sum of squares of their peaks, the largest peak, and the sum of what
    the tasks kept."""

    tasks: float
    total: float
    squares: float
    largest: float
    kept: float

    @classmethod
    def of(cls, y: float, kept: float) -> FirstMoments:
        """Of one task."""
        return cls(1.0, y, y * y, y, kept)

    @property
    def mean(self) -> float:
        return self.total / self.tasks

    def plus(self, other: FirstMoments) -> FirstMoments:
        return FirstMoments(
            self.tasks + other.tasks,
            self.total + other.total,
            self.squares + other.squares,
            max(self.largest, other.largest),
            self.kept + other.kept,
        )

    def discounted(self, factor: float) -> FirstMoments:
        """Counted `factor` times as much."""
        return FirstMoments(
            self.tasks * factor,
            self.total * factor,
            self.squares * factor,
            self.largest,
            self.kept * factor,
        )

    @classmethod
    def parse(cls, saved: Any) -> FirstMoments:
        """From a file."""
        largest, kept = parse_row(saved[3:], 2, "cases")
        return cls(*parse_moments(saved[:3]), largest, kept)


def parse_moments(moments: Any) -> tuple[float, float, float]:
    """From a file. Checked by the Cauchy-Schwarz inequality: without it a variance would be
    negative."""
    count, total, squares = parse_row(moments, 3, "cases")
    if (
        not 0 < count < 1e18
        or total > count * BYTES_MOST
        or total**2 > count * squares * (1 + 1e-6)
    ):
        raise ValueError("a damaged model: cases")
    return count, total, squares
