"""`run`'s status while the job runs: tasks done and running, resident size, headroom, in the
terminal's title. Called by run's parent between its events.

In the title, because the screen is the job's: the job writes there at any time, and nobody can
know where its cursor is. Ways to draw a line on the screen, and why they fail:
- at the cursor: it overwrites a prompt or a progress bar, or the job's output follows it;
- with the cursor saved and restored: wrong as soon as the screen scrolls in between;
- in a scroll region (as apt does): breaks programs that use the whole screen, and stays if `run`
  is killed;
- through a pty in between: changes what the job sees.
A title moves no cursor and takes no cell. Each title is one write, which no other write can cut
in two.
"""

from __future__ import annotations

import os
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import TextIO

    from dwsr_probe.collector import Collector

FIRST_AFTER_S, EVERY_S = 1.0, 0.5
# a terminal without a stack of titles has an empty title afterwards
_PUSH, _POP = b"\x1b[22;2t", b"\x1b]2;\x07\x1b[23;2t"
# values of TERM whose terminals have a title; others may print the sequence (Linux' console did)
_TERMS_WITH_TITLE = (
    "xterm",
    "screen",
    "tmux",
    "rxvt",
    "alacritty",
    "foot",
    "kitty",
    "wezterm",
    "vte",
    "gnome",
    "konsole",
    "st-",
)


def has_title(stream: TextIO | None, environ: Mapping[str, str] = os.environ) -> bool:
    """Whether the stream is a terminal with a title: not a pipe, not CI."""
    return (
        stream is not None
        and stream.isatty()
        and not environ.get("CI")
        and environ.get("TERM", "").startswith(_TERMS_WITH_TITLE)
    )


class Status:
    """Never waits and never fails: a terminal that accepts nothing now (Ctrl-S) is left alone, and
    so is a terminal that has gone."""

    def __init__(self, name: str) -> None:
        self._name, self._next = name, time.monotonic() + FIRST_AFTER_S
        self._terminal: int | None = None  # descriptor
        self._shown: str | None = None
        self._done = False

    def update(self, collector: Collector) -> None:
        """Called by run's loop, ten times a second."""
        if self._done or time.monotonic() < self._next:
            return
        self._next = time.monotonic() + EVERY_S
        try:
            self._show(self._text(collector))
        except Exception:  # the job comes first: no status is better than a line about it
            self._done = True

    def close(self) -> None:
        """Restores the title."""
        self._done = True
        if self._terminal is not None:
            try:
                if self._shown is not None and _is_foreground(self._terminal):
                    os.write(self._terminal, _POP)
            except OSError:
                pass
            os.close(self._terminal)
            self._terminal = None

    def _text(self, collector: Collector) -> str:
        from dwsr_probe.live.process import least_headroom_bytes, read_process
        from dwsr_probe.words import bytes_text, line_of

        processes = [
            read_process(board, live, tasks=False) for board, live in collector.readable_boards()
        ]
        running = sum(process.live["running"] or 0 for process in processes)
        rss = sum(process.live["rss_bytes"] or 0 for process in processes)
        headroom = least_headroom_bytes(processes)
        return (
            f"{collector.stored:,} done, {running:,} running, rss {bytes_text(rss)}, headroom"
            f" {bytes_text(headroom)}: {line_of(self._name, 80)}"
        )

    def _show(self, text: str) -> None:
        if text == self._shown:
            return
        # opened anew, so that O_NONBLOCK does not hold for the job's own descriptor
        if self._terminal is None:
            self._terminal = os.open(
                os.ttyname(sys.stderr.fileno()),
                os.O_WRONLY | os.O_NOCTTY | os.O_NONBLOCK | os.O_CLOEXEC,
            )
        if not _is_foreground(self._terminal):
            return
        title = b"\x1b]2;" + text.encode("ascii", "replace") + b"\x07"
        try:
            os.write(self._terminal, title if self._shown is not None else _PUSH + title)
            self._shown = text
        except BlockingIOError:
            pass


def _is_foreground(terminal: int) -> bool:
    """Whether the job is in the foreground. In the background (`&`, Ctrl-Z and bg) the title is
    the shell's."""
    return os.tcgetpgrp(terminal) == os.getpgrp()
