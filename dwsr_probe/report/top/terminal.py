"""The terminal: takes it over, gives it back whatever happens, reads keys, writes lines. Only lines
that have changed are written: the terminal may be far away."""

from __future__ import annotations

import os
import re
import sys
import termios
import tty
from collections.abc import Sequence
from typing import Any, TextIO

# the other screen, no cursor, no wrapping: a sign that is wider than we think must not move the
# rest
_ENTER = "\x1b[?1049h\x1b[?25l\x1b[?7l\x1b[2J"
_LEAVE = "\x1b[0m\x1b[?7h\x1b[?25h\x1b[?1049l"
_KEYS = {
    "\x1b[A": "up",
    "\x1b[B": "down",
    "\x1b[C": "right",
    "\x1b[D": "left",
    "\x1bOA": "up",
    "\x1bOB": "down",
    "\x1bOC": "right",
    "\x1bOD": "left",
    "\x1b[5~": "page up",
    "\x1b[6~": "page down",
    "\x1b[H": "home",
    "\x1b[F": "end",
    "\x1bOH": "home",
    "\x1bOF": "end",
    "\x1b[1~": "home",
    "\x1b[4~": "end",
    "\x1b": "escape",
    "\r": "enter",
    "\n": "enter",
    "\x7f": "backspace",
    "\x08": "backspace",
    "\t": "tab",
}
_SEQUENCE = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1bO.|[^\x1b]|\x1b(?=\x1b|[^\[O])|\x1b$", re.S)
_INCOMPLETE = re.compile(r"\x1b(\[[0-9;?]*[ -/]*|O)?$")


def is_screen(stream: TextIO) -> bool:
    """Whether it is a terminal that can be drawn on."""
    return stream.isatty() and os.environ.get("TERM", "dumb") not in ("dumb", "")


class TerminalGone(Exception):
    """The terminal was closed, or the connection to it."""


class Terminal:
    """A context: whatever happens inside, the terminal is given back as it was."""

    def __init__(self) -> None:
        self._out = sys.stdout.fileno()
        self.keyboard = self._open_keyboard()  # a descriptor, or None
        self._saved_settings: list[Any] | None = None  # its settings, to be restored
        self._shown: Sequence[str | None] = []  # lines; None: not known
        self._incomplete = ""  # of a key's sequence

    @staticmethod
    def _open_keyboard() -> int | None:
        if sys.stdin is not None and sys.stdin.isatty():
            return sys.stdin.fileno()
        try:
            return os.open("/dev/tty", os.O_RDONLY | os.O_CLOEXEC)  # `... | dwsr-probe top`
        except OSError:
            return None

    def __enter__(self) -> Terminal:
        self.take_over()
        return self

    def __exit__(self, *_: object) -> None:
        self.give_back()

    def take_over(self) -> None:
        try:
            if self.keyboard is not None:
                self._saved_settings = termios.tcgetattr(self.keyboard)
                # keys one by one, without an echo; Ctrl-C and Ctrl-Z stay signals
                tty.setcbreak(self.keyboard)
        except termios.error as error:
            raise TerminalGone from error
        self._write(_ENTER)
        self._shown = []

    def give_back(self) -> None:
        try:
            self._write(_LEAVE)
        except TerminalGone:
            pass
        if self._saved_settings is not None and self.keyboard is not None:
            try:
                if os.tcgetpgrp(self.keyboard) != os.getpgrp():
                    return  # in the background: it is somebody else's now
                termios.tcsetattr(self.keyboard, termios.TCSADRAIN, self._saved_settings)
            except (termios.error, OSError):
                pass

    def size(self) -> tuple[int, int]:
        """Columns and lines."""
        try:
            width, height = os.get_terminal_size(self._out)
        except OSError:
            width = height = 0
        return max(width, 20) if width else 80, max(height, 4) if height else 24

    def invalidate(self) -> None:
        """Makes the next show() write all lines, because the size has changed."""
        self._shown = []

    def show(self, lines: list[str]) -> None:
        """Writes the lines that have changed. Each line is erased before it is written: erasing
        after the text would clear the last column."""
        if len(lines) != len(self._shown):
            self._shown = [None] * len(lines)
        changed = [
            f"\x1b[{i + 1};1H\x1b[2K{line}"
            for i, (line, old) in enumerate(zip(lines, self._shown, strict=True))
            if line != old
        ]
        if changed:
            # in one step, where the terminal can do that
            self._write("\x1b[?2026h" + "".join(changed) + "\x1b[?2026l")
        self._shown = lines

    def read(self) -> list[str]:
        """Names of the keys that were pressed."""
        assert self.keyboard is not None
        try:
            found = os.read(self.keyboard, 4096)
        except OSError as error:
            raise TerminalGone from error
        if not found:
            raise TerminalGone
        return self._parsed(found.decode("utf-8", "replace"))

    def take_incomplete(self) -> list[str]:
        """Removes an incomplete sequence. If the sequence is one Esc, the key was Esc itself."""
        text, self._incomplete = self._incomplete, ""
        return ["escape"] if text == "\x1b" else []

    @property
    def has_incomplete(self) -> bool:
        """A key's sequence is incomplete: over a network it may come in parts."""
        return bool(self._incomplete)

    def _parsed(self, text: str) -> list[str]:
        text = self._incomplete + text
        part = _INCOMPLETE.search(text)
        self._incomplete = part[0] if part else ""
        found = _SEQUENCE.findall(text[: len(text) - len(self._incomplete)])
        return [_KEYS.get(word, word) for word in found if word in _KEYS or len(word) == 1]

    def _write(self, text: str) -> None:
        data = text.encode("utf-8", "replace")
        try:
            while data:
                data = data[os.write(self._out, data) :]
        except OSError as error:
            raise TerminalGone from error
