"""Figures and names as short texts for people. Standard library only: run's parent shows its status with them."""
import unicodedata


def bytes_text(n):
    """1.5 GiB, 12.0 MiB, 4.0 KiB."""
    if n is None:
        return "–"
    for unit, size in (("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if n >= size:
            return f"{n / size:.1f} {unit}"
    return f"{n:.0f} B"


def seconds_text(s):
    if s is None:
        return "–"
    if s >= 60:
        minutes, seconds = divmod(round(s), 60)
        return f"{minutes}:{seconds:02d} min"
    return f"{s:.2f} s" if s >= 1 else f"{s * 1e3:.1f} ms" if s >= 1e-3 else f"{s * 1e6:.0f} µs"


def one_line(name, most):
    """A name that others wrote as one safe line of at most so many of its characters: what a terminal would obey becomes visible."""
    if len(name) > most:
        name = name[:most - 1] + "…"
    if name.isascii() and name.isprintable():
        return name
    # C*: control, format (bidirectional marks among them), surrogates, unassigned. Z*: line separators and odd spaces.
    return "".join(c if c == " " or unicodedata.category(c)[0] not in "CZ" else c.encode("unicode_escape").decode() for c in name)
