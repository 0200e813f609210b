"""Texts of a fixed width for the screen: sizes, times, bars, sparklines, and names that others
wrote."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from rich.cells import cell_len, set_cell_size

from dwsr_probe.words import label_number, line_of

BLOCKS, EIGHTHS = "▁▂▃▄▅▆▇█", " ▏▎▍▌▋▊▉"


def size(n: float | None) -> str:
    """At most 8 characters, with three digits: 1.25 GiB, 12.5 MiB, 1023 KiB."""
    if n is None:
        return "–"
    for unit, least in (("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if n >= least:
            value = n / least
            return (
                f"{min(value, 9999):.{0 if value >= 99.95 else 1 if value >= 9.995 else 2}f} {unit}"
            )
    return f"{n:.0f} B"


def duration(s: float | None) -> str:
    """At most 8 characters: 3.2 s, 12:05, 3:02:05, 12 days."""
    if s is None:
        return "–"
    if s < 60:
        return f"{s:.1f} s"
    if s >= 360_000:
        return f"{s / 86_400:.0f} days"
    minutes, seconds = divmod(int(s), 60)
    return (
        f"{minutes}:{seconds:02d}"
        if minutes < 60
        else f"{minutes // 60}:{minutes % 60:02d}:{seconds:02d}"
    )


def growth(rate: float | None) -> str:
    """Bytes per second with a sign; empty below 1 KiB per second."""
    if rate is None or abs(rate) < 1024:
        return ""
    return f"{'+' if rate > 0 else '-'}{size(abs(rate))}/s"


def bar(live: float | None, peak: float | None, limit: float | None, width: int) -> str:
    """█ now, to an eighth of a cell; ▒ at the peak; · up to the limit."""
    if not limit:
        return "·" * width
    # at least an eighth if there is anything
    eighths = min(8 * width, round(8 * width * (live or 0) / limit)) or int(bool(live))
    filled = "█" * (eighths // 8) + (EIGHTHS[eighths % 8] if eighths % 8 else "")
    return (filled + "▒" * (min(width, round(width * (peak or 0) / limit)) - len(filled))).ljust(
        width, "·"
    )


def sparkline(values: Iterable[float], width: int) -> str:
    """The newest value on the right, scaled from 0 to the largest. Where there are more values
    than cells, each cell shows the largest of its values."""
    values = list(values)
    if not values or width < 1:
        return " " * max(0, width)
    per = -(-len(values) // width)
    cut = len(values) % per  # the oldest cell may have fewer
    cells = ([max(values[:cut])] if cut else []) + [
        max(values[i : i + per]) for i in range(cut, len(values), per)
    ]
    most = max(cells) or 1
    return "".join(BLOCKS[min(7, int(8 * v / most))] for v in cells).rjust(width)


@lru_cache(1024)
def name(text: str, width: int) -> str:
    """A name that is safe for a terminal, cut or filled up to so many cells. The number of a label
    is kept, if there is room. Variation selectors
    are left out: terminals do not agree how wide they make a sign."""
    text = "".join(c for c in line_of(text, 2 * width) if not "\ufe00" <= c <= "\ufe0f")
    if cell_len(text) <= width:
        return set_cell_size(text, width)
    number = label_number(text)
    if len(number) + 2 > width:
        number = ""
    return set_cell_size(text.removesuffix(number), width - 1 - len(number)) + "…" + number
