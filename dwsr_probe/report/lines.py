"""Lines of text for a terminal or a log: styles, lines wrapped at words, columns.

For the table that ends every run, comparisons and forecasts.

This module replaces rich, because importing rich alone takes almost the CPU time that a run may
cost.
"""

from __future__ import annotations

import os
import unicodedata

from dwsr_probe.dataclass import dataclass
from dwsr_probe.words import count_text, label_number, line_of, visible

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence
    from typing import TextIO

_CODES = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "cyan": "36"}
_LOG_WIDTH = 240  # columns of a file or a pipe, where lines are not wrapped
_GAP = 2  # spaces between columns
_NAMES_MOST = 4  # in a line of print_omitted_column


@dataclass
class Column:
    """A column of a table of tasks. On a narrow terminal columns with the highest rank are left out
    first."""

    title: str
    rank: int
    cells: Sequence[str]  # one per row
    left: bool = False  # aligned on the left


class Styled(str):
    """A text with a style: words of _CODES."""

    style: str

    def __new__(cls, text: str, style: str) -> Styled:
        made = super().__new__(cls, text)
        made.style = style
        return made


def display_width(text: str) -> int:
    """Width of a text on a terminal, in character cells: wide characters take two."""
    if text.isascii():
        return len(text)
    return sum(
        (
            0
            if unicodedata.category(c) in ("Mn", "Me", "Cf")
            else 2
            if unicodedata.east_asian_width(c) in "WF"
            else 1
        )
        for c in text
    )


def cut(text: str, most: int) -> str:
    """A text of at most `most` cells of a terminal: an ellipsis replaces the rest. The number of a
    label is kept, if there is room."""
    if display_width(text) <= most:
        return text
    number = label_number(text)
    if len(number) + 2 > most:
        number = ""
    text = text.removesuffix(number)
    while text and display_width(text) >= most - len(number):
        text = text[:-1]
    return text + "…" + number


class Lines:
    """Writes to a file. wraps: whether long lines are broken at words, as on a terminal."""

    def __init__(self, file: TextIO) -> None:
        environ = os.environ
        self._file, self.wraps = file, file.isatty()
        wanted = self.wraps or environ.get("FORCE_COLOR")
        self._colours = (
            wanted
            and not environ.get("NO_COLOR")
            and environ.get("TERM") not in ("dumb", "unknown")
        )
        self.width = self._terminal_width(environ.get("COLUMNS", ""))
        if not self.wraps:
            self.width = max(self.width, _LOG_WIDTH)

    def _terminal_width(self, setting: str) -> int:
        """setting: the value of the environment variable COLUMNS."""
        if setting.isdecimal() and int(setting):
            return int(setting)
        try:
            return os.get_terminal_size(self._file.fileno()).columns or 80
        except (OSError, ValueError):  # no terminal, or no file at all
            return 80

    def print(self, *pieces: str) -> None:
        """Print one line that consists of the pieces, styled or not. On a terminal a long line is
        wrapped."""
        parts = [(visible(piece), getattr(piece, "style", "")) for piece in pieces]
        text = "".join(part for part, _ in parts)
        for start, end in _line_ranges(text, self.width) if self.wraps else [(0, len(text))]:
            line, offset = [], 0
            for part, style in parts:
                inside = part[max(0, start - offset) : max(0, end - offset)]
                line.append(self._styled(inside, style))
                offset += len(part)
            self._file.write("".join(line) + "\n")

    def print_task_table(self, names: Iterable[str], columns: Iterable[Column]) -> list[Column]:
        """Print a table with a row per name; on a terminal only the columns that fit. Return the
        columns that were printed."""
        names, columns = [line_of(name) for name in names], list(columns)
        widths = [
            _GAP + max(map(display_width, (column.title, *column.cells))) for column in columns
        ]
        name_width = max(map(display_width, ("task", *names)))
        if self.wraps:
            least = min(name_width, max(12, self.width // 3))
            while len(columns) > 1 and least + sum(widths) > self.width:
                last = max(range(len(columns)), key=lambda i: columns[i].rank)
                del columns[last], widths[last]
            name_width = max(1, self.width - sum(widths))
        self.print_table(
            ["task", *(column.title for column in columns)],
            zip(
                [cut(name, name_width) for name in names],
                *(column.cells for column in columns),
                strict=True,
            ),
            {i for i, column in enumerate(columns, 1) if column.left},
        )
        return columns

    def print_omitted_column(self, names: Iterable[str], texts: Iterable[str]) -> None:
        """Print a column that did not fit into the table: each text once, followed by the names of
        its rows."""
        names_of: dict[str, dict[str, None]] = {}  # dicts as ordered sets
        for name, text in zip(names, texts, strict=True):
            if text:
                names_of.setdefault(text, {})[line_of(name)] = None
        for text, found in names_of.items():
            some = list(found)[:_NAMES_MOST]
            if len(found) > len(some):
                some.append(count_text(len(found) - len(some), "more name", "more names", "1"))
            self.print(Styled(f"{text}: {', '.join(some)}", "dim"))

    def print_table(
        self,
        titles: Sequence[str],
        rows: Iterable[Sequence[str]],
        left: Collection[int] = (),
    ) -> None:
        """Print rows of texts below their titles. The first column and those with the numbers in
        `left` are aligned on the left, all others on the right."""
        lines = [[Styled(title, "bold") for title in titles], *rows]
        widths = [max(map(display_width, column)) for column in zip(*lines, strict=True)]
        for row in lines:
            line = []
            for i, (width, cell) in enumerate(zip(widths, row, strict=True)):
                space = " " * (width - display_width(cell))
                text = self._styled(cell, getattr(cell, "style", ""))
                line.append(text + space if i == 0 or i in left else space + text)
            self._file.write((" " * _GAP).join(line).rstrip(" ") + "\n")

    def _styled(self, text: str, style: str) -> str:
        if not text or not style or not self._colours:
            return text
        return f"\x1b[{';'.join(_CODES[word] for word in style.split())}m{text}\x1b[0m"


def _line_ranges(text: str, width: int) -> Iterator[tuple[int, int]]:
    """(start, end) of each line: broken at a space where there is one."""
    start = 0
    while True:
        end, used = start, 0
        while end < len(text) and (used := used + display_width(text[end])) <= width:
            end += 1
        if end == len(text):
            yield start, end
            return
        end = max(end, start + 1)
        if text[end] != " ":
            space = text.rfind(" ", start, end)
            end = space if space > start else end
        yield start, end
        start = end + (text[end] == " ")
