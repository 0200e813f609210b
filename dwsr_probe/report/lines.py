"""Lines of text for a terminal or a log: styles, lines wrapped at words, columns.

For the table that ends every run, comparisons and forecasts.

Not rich: its import alone takes almost the CPU time that a run may cost.
"""

import os
import unicodedata
from collections import namedtuple

from dwsr_probe.report.words import count_text, line_of, visible

_CODES = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "cyan": "36"}
_IN_A_LOG = 240  # columns: nobody wraps lines there
_GAP = 2  # between columns
_NAMES_MOST = 4  # of a line below a table

# Of a table of tasks. On a narrow terminal columns of the highest rank go first.
Column = namedtuple("Column", "title rank cells left", defaults=(False,))


class Styled(str):
    """A text with a style: words of _CODES."""

    def __new__(cls, text, style):
        made = super().__new__(cls, text)
        made.style = style
        return made


def cells(text):
    """How many cells of a terminal a text takes."""
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


def cut(text, most):
    """A text of at most so many cells: an ellipsis stands for the rest."""
    if cells(text) <= most:
        return text
    while text and cells(text) >= most:
        text = text[:-1]
    return text + "…"


class Lines:
    """wraps: whether long lines are broken at words."""

    def __init__(self, file):
        environ = os.environ
        self._file, self.wraps = file, file.isatty()
        wanted = self.wraps or environ.get("FORCE_COLOR")
        self._colours = (
            wanted
            and not environ.get("NO_COLOR")
            and environ.get("TERM") not in ("dumb", "unknown")
        )
        self.width = self._columns(environ.get("COLUMNS", ""))
        if not self.wraps:
            self.width = max(self.width, _IN_A_LOG)

    def _columns(self, told):
        if told.isdecimal() and int(told):
            return int(told)
        try:
            return os.get_terminal_size(self._file.fileno()).columns or 80
        except (OSError, ValueError):  # no terminal, or no file at all
            return 80

    def print(self, *pieces):
        """One line of texts, styled or not; several where it wraps."""
        pieces = [(visible(piece), getattr(piece, "style", "")) for piece in pieces]
        text = "".join(piece for piece, _ in pieces)
        for start, end in _broken(text, self.width) if self.wraps else [(0, len(text))]:
            line, at = [], 0
            for piece, style in pieces:
                line.append(self._styled(piece[max(0, start - at) : max(0, end - at)], style))
                at += len(piece)
            self._file.write("".join(line) + "\n")

    def tasks(self, names, columns):
        """A table with a row per name; on a terminal only the columns that fit. Those it shows."""
        names, columns = [line_of(name) for name in names], list(columns)
        wide = [_GAP + max(map(cells, (column.title, *column.cells))) for column in columns]
        room = max(map(cells, ("task", *names)))
        if self.wraps:
            least = min(room, max(12, self.width // 3))
            while len(columns) > 1 and least + sum(wide) > self.width:
                goes = max(range(len(columns)), key=lambda i: columns[i].rank)
                del columns[goes], wide[goes]
            room = max(1, self.width - sum(wide))
        self.table(
            ["task", *(column.title for column in columns)],
            zip(
                [cut(name, room) for name in names],
                *(column.cells for column in columns),
                strict=True,
            ),
            {i for i, column in enumerate(columns, 1) if column.left},
        )
        return columns

    def below(self, names, texts):
        """What a column would have said that did not fit: each text once, with its names."""
        of = {}
        for name, text in zip(names, texts, strict=True):
            if text:
                of.setdefault(text, {})[line_of(name)] = None
        for text, who in of.items():
            some = list(who)[:_NAMES_MOST]
            if len(who) > len(some):
                some.append(count_text(len(who) - len(some), "more name", "more names", "1"))
            self.print(Styled(f"{text}: {', '.join(some)}", "dim"))

    def table(self, titles, rows, left=()):
        """Rows of texts below their titles: the first column on the left, and those with these
        numbers; all others on the right."""
        rows = [[Styled(title, "bold") for title in titles], *rows]
        wide = [max(map(cells, column)) for column in zip(*rows, strict=True)]
        for row in rows:
            line = []
            for i, (width, cell) in enumerate(zip(wide, row, strict=True)):
                space = " " * (width - cells(cell))
                text = self._styled(cell, getattr(cell, "style", ""))
                line.append(text + space if i == 0 or i in left else space + text)
            self._file.write((" " * _GAP).join(line).rstrip(" ") + "\n")

    def _styled(self, text, style):
        if not text or not style or not self._colours:
            return text
        return f"\x1b[{';'.join(_CODES[word] for word in style.split())}m{text}\x1b[0m"


def _broken(text, width):
    """(start, end) of each line: broken at a space where there is one."""
    start = 0
    while True:
        end, used = start, 0
        while end < len(text) and (used := used + cells(text[end])) <= width:
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
