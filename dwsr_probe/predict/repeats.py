"""A sample of the input shapes of one task name, with the moments of the values seen for each.
Tasks with the same shapes show how far the peak depends on the values of the inputs. learner.py has
one sample per kind of memory."""

from __future__ import annotations

import math
import zlib
from typing import TYPE_CHECKING, Any

from dwsr_probe.predict.sizes import non_negative_int, parse_numbers

if TYPE_CHECKING:
    from dwsr_probe.predict.sizes import Arrays

_SHAPES_MOST = 64
_FREEDOM_LEAST = 3  # degrees of freedom needed to estimate the noise


class _ShapeMoments:
    """Count, sum and sum of squares of the values seen with one set of input shapes."""

    __slots__ = ("count", "input_bytes", "squares", "total")

    def __init__(
        self, input_bytes: int, count: int = 0, total: float = 0.0, squares: float = 0.0
    ) -> None:
        self.input_bytes, self.count = input_bytes, count
        self.total, self.squares = total, squares

    def add(self, y: float) -> None:
        self.count += 1
        self.total += y
        self.squares += y * y

    def merge(self, other: _ShapeMoments) -> None:
        self.count += other.count
        self.total += other.total
        self.squares += other.squares


class ShapeSample:
    """By a hash of the input shapes. Those with the smallest hashes are kept, so the sample does
    not depend on the order of arrival."""

    def __init__(self) -> None:
        self._shapes: dict[int, _ShapeMoments] = {}

    def add(self, arrays: Arrays, input_bytes: int, y: float) -> None:
        key = zlib.crc32(repr(arrays).encode())
        moments = self._shapes.get(key)
        if moments is None:
            if len(self._shapes) >= _SHAPES_MOST:
                if key > (largest := max(self._shapes)):
                    return
                del self._shapes[largest]
            moments = self._shapes[key] = _ShapeMoments(input_bytes)
        moments.add(y)

    def seen(self) -> list[tuple[int, float, int]]:
        """(input bytes, mean, count) of each shape, smallest first."""
        return sorted(
            (moments.input_bytes, moments.total / moments.count, moments.count)
            for moments in self._shapes.values()
        )

    def noise_deviation(self, floor: int) -> float | None:
        """Relative standard deviation among tasks with the same shapes; None if too few shapes
        were repeated. floor: bytes below which a difference means nothing."""
        freedom = squares = 0.0
        for moments in self._shapes.values():
            mean = moments.total / moments.count
            if moments.count > 1 and mean > 0:
                freedom += moments.count - 1
                residual = max(0.0, moments.squares - moments.total * mean)
                squares += residual / (mean * mean + floor**2)
        return math.sqrt(squares / freedom) if freedom >= _FREEDOM_LEAST else None

    def merge(self, other: ShapeSample) -> None:
        for key, theirs in other._shapes.items():
            self._shapes.setdefault(key, _ShapeMoments(theirs.input_bytes)).merge(theirs)
        self._shapes = dict(sorted(self._shapes.items())[:_SHAPES_MOST])

    def to_dict(self) -> dict[str, list[float]]:
        return {
            str(key): [moments.input_bytes, moments.count, moments.total, moments.squares]
            for key, moments in self._shapes.items()
        }

    @classmethod
    def from_dict(cls, saved: dict[str, Any]) -> ShapeSample:
        """ValueError if to_dict cannot have given this."""
        self = cls()
        by_key = sorted(saved.items(), key=lambda item: int(item[0]))
        for key, (input_bytes, count, *sums) in by_key[:_SHAPES_MOST]:
            self._shapes[int(key)] = _ShapeMoments(
                non_negative_int(input_bytes, "input bytes", math.inf),
                max(1, non_negative_int(count, "a count")),
                *parse_numbers(sums, (2,), "shapes").tolist(),
            )
        return self
