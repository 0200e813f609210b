"""Numbers and names as people read and write them, the same in every view.

Every run loads this module, so it does without `typing` and `re`.
"""

from __future__ import annotations

import unicodedata

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from dwsr_probe.record import TaskRecord

    Sentence = tuple[str, ...]  # texts, and names as Name

_NAME_MOST = 48  # characters
_INPUTS_MOST = 6  # inputs that are described
_UNIT_EXPONENTS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4, "p": 5}  # of 1000 or 1024


class AtLeast(float):
    """A lower bound: a task was killed, and may have needed more."""


class About(float):
    """A value from a histogram, correct within 5 %: records of single tasks are missing."""


def _sign(n: float, at_least: str = "≥ ") -> str:
    return at_least if isinstance(n, AtLeast) else "≈ " if isinstance(n, About) else ""


def bytes_text(n: float | None, at_least: str = "≥ ") -> str:
    """ "1.5 GiB", "4.0 KiB"; "≥ 500.0 MiB" for a lower bound; "≈ 1.0 MiB" from a histogram.
    at_least: the mark of a lower bound."""
    if n is None:
        return "–"
    sign = _sign(n, at_least)
    for unit, size in (("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if n >= size:
            return f"{sign}{n / size:.1f} {unit}"
    return f"{sign}{n:.0f} B"


def parse_bytes(given: Any) -> float:
    """Bytes from "8GiB", "500 MB", "1e9" or a number. GB is 10**9 and GiB is 2**30."""
    if isinstance(given, str):
        import re

        found = re.fullmatch(
            r"\s*([0-9.]+(?:e[+-]?[0-9]+)?)\s*([kmgtp]?)(i?)b?\s*", given, re.IGNORECASE
        )
        if not found:
            raise ValueError(f"{given!r} is not a number of bytes; write 8GiB, 500MB or 1000000")
        number, unit, binary = found.groups()
        given = (
            parse_number(number, "a size")
            * (1024 if binary else 1000) ** _UNIT_EXPONENTS[unit.lower()]
        )
    value = parse_number(given, "a size")
    if value < 0:
        raise ValueError("a number of bytes is not negative")
    return value


def parse_number(given: Any, what: str) -> float:
    """A finite number; ValueError that says `what` it should be."""
    try:
        value = None if isinstance(given, bool) else float(given)
    except (TypeError, ValueError, OverflowError):
        value = None
    if value is None or value - value != 0:
        raise ValueError(f"{what} is a number")
    return value


def seconds_text(s: float | None) -> str:
    if s is None:
        return "–"
    sign = _sign(s)
    if s >= 3600:
        hours, minutes = divmod(round(s / 60), 60)
        return f"{sign}{hours}:{minutes:02d} h"
    if s >= 60:
        minutes, seconds = divmod(round(s), 60)
        return f"{sign}{minutes}:{seconds:02d} min"
    return sign + (
        f"{s:.2f} s" if s >= 1 else f"{s * 1e3:.1f} ms" if s >= 1e-3 else f"{s * 1e6:.0f} µs"
    )


def percent_text(ratio: float | None) -> str:
    if ratio is None:
        return "–"
    return (
        f"{'≥ ' if isinstance(ratio, AtLeast) else ''}{100 * ratio:.{0 if ratio >= 0.1 else 1}f} %"
    )


def count_text(n: int, singular: str, plural: str, one: str = "One") -> str:
    """ "One task", "2 tasks". one: how the number 1 is written ("One", "one" or "1")."""
    return f"{one if n == 1 else f'{n:,}'} {singular if n == 1 else plural}"


class Name(str):
    """The name of a task or a process inside a sentence. Views may set it apart."""


def name_of(text: str) -> Name:
    return Name(line_of(text))


def process_title(record: TaskRecord) -> str:
    """ "worker 0 (pid 28163)"."""
    return f"{record.task_name} (pid {record.pid})"


def line_of(text: str, most: int = _NAME_MOST) -> str:
    """Any text as one printable line of at most `most` characters. The number of a label is
    kept: "a_very_long_na… (1 of 2)"."""
    if len(text) > most:
        number = label_number(text)
        text = text[: max(0, most - 1 - len(number))] + "…" + number
    return visible(text)


def label_number(text: str) -> str:
    """ " (1 of 2)" at the end of a row's label; empty if there is none."""
    _, mark, tail = text[-24:].rpartition(" (")
    first, of, last = tail.removesuffix(")").partition(" of ")
    is_number = mark and of and tail.endswith(")") and first.isdecimal() and last.isdecimal()
    return mark + tail if is_number else ""


def visible(text: str) -> str:
    """Any text as one printable line: control characters become escape sequences."""
    if text.isprintable():
        return text
    # C*: control, format (bidirectional marks among them), surrogates, unassigned. Z*: line
    # separators and odd spaces.
    return "".join(
        (
            c
            if c == " " or unicodedata.category(c)[0] not in "CZ"
            else c.encode("unicode_escape").decode()
        )
        for c in text
    )


def shape_text(shape: Sequence[int]) -> str:
    """ "128×128×64"."""
    return "×".join(map(str, shape))


def inputs_text(inputs: Sequence[Any], omitted: int | None = 0) -> str:
    """ "float32 (48, 48, 64) from a file, 4 × DataFrame 3.0 MiB": type and shape or size of the
    first inputs. omitted: number of inputs that the record leaves out."""
    parts, more = [], omitted or 0
    for i, one in enumerate(inputs):
        count = input_count(one)
        if i >= _INPUTS_MOST or not isinstance(one, dict):
            more += count
            continue
        shape, nbytes = one.get("shape"), one.get("nbytes")
        text = str(one.get("dtype") or one.get("type") or "?")
        if isinstance(shape, list):
            text += f" ({', '.join(map(str, shape))})"
        elif nbytes is not None:
            text += f" {bytes_text(nbytes)}"
        if count > 1:
            text = f"{count:,} × {text}"
        parts.append(f"{text} from a file" if one.get("lazy") else text)
    return line_of(", ".join(parts) + (f" and {more:,} more" if more > 0 else ""), 160)


def input_count(given: Any) -> int:
    """How many equal inputs an entry of a record's inputs stands for."""
    count = given.get("count") if isinstance(given, dict) else None
    return count if type(count) is int and count > 0 else 1
