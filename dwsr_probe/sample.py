"""Samples of the resident size: the form in which the sampler writes them on the board.

The store keeps them in this form, because a thousand rows a second would cost too much.
"""

from __future__ import annotations

import struct

from dwsr_probe import _core
from dwsr_probe.dataclass import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

_SAMPLE = struct.Struct(f"={len(_core.SAMPLE_FIELDS)}Q")
SAMPLE_BYTES = _SAMPLE.size
_UNREADABLE = 1 << 63  # sizes from here on mean that the size could not be read


class Sample(NamedTuple):
    """time_ns: of the board's clock. window_peak_bytes: the highest resident size since the last
    boundary (the last begin or end of a task). A size that could not be read is None."""

    time_ns: int
    rss_bytes: int | None
    window_peak_bytes: int | None
    period_ns: int


def unpack_samples(packed: bytes) -> Iterator[Sample]:
    for time_ns, rss, peak, period_ns in _SAMPLE.iter_unpack(packed):
        yield Sample(
            time_ns,
            rss if rss < _UNREADABLE else None,
            peak if peak < _UNREADABLE else None,
            period_ns,
        )
