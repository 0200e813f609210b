"""Numbers and names as people read them, the same in every view."""

import unicodedata

_NAME_MOST = 48


class AtLeast(float):
    """A lower bound: the task was killed, and may have needed more."""


class About(float):
    """From a histogram, within 5 %: single records are missing."""


def _sign(n, at_least="≥ "):
    return at_least if isinstance(n, AtLeast) else "≈ " if isinstance(n, About) else ""


def bytes_text(n, at_least="≥ "):
    """1.5 GiB, 12.0 MiB, 4.0 KiB; ≥ 500.0 MiB of a lower bound, or "at least" in other words; ≈
    1.0 MiB from a histogram."""
    if n is None:
        return "–"
    sign = _sign(n, at_least)
    for unit, size in (("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if n >= size:
            return f"{sign}{n / size:.1f} {unit}"
    return f"{sign}{n:.0f} B"


def seconds_text(s):
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


def percent_text(ratio):
    if ratio is None:
        return "–"
    return (
        f"{'≥ ' if isinstance(ratio, AtLeast) else ''}{100 * ratio:.{0 if ratio >= 0.1 else 1}f} %"
    )


def count_text(n, one, many, word="One"):
    """ "One task", "2 tasks"; word: what 1 is called."""
    return f"{word if n == 1 else f'{n:,}'} {one if n == 1 else many}"


def process_title(record):
    """ "worker 0 (pid 28163)"."""
    return f"{record.task_name} (pid {record.pid})"


def line_of(text, most=_NAME_MOST):
    """Any text as one safe line, and long ones cut."""
    if len(text) > most:
        text = text[: most - 1] + "…"
    return visible(text)


def visible(text):
    """Any text on one line: control characters become visible."""
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


def inputs_text(inputs, omitted=0):
    """ "float32 (48, 48, 64), DataFrame 3.0 MiB": what is known of each input, of
    many the first."""
    parts = []
    for one in inputs[:6]:
        if not isinstance(one, dict):
            continue
        shape = one.get("shape")
        kind = one.get("dtype") or one.get("type") or "?"
        parts.append(
            f"{kind} ({', '.join(map(str, shape))})"
            if isinstance(shape, list)
            else (
                f"{kind} {bytes_text(one['nbytes'])}"
                if one.get("nbytes") is not None
                else str(kind)
            )
        )
    more = len(inputs) - len(parts) + (omitted or 0)
    return line_of(", ".join(parts) + (f" and {more:,} more" if more > 0 else ""), 160)
