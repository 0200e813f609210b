"""`run`'s status while the job runs: tasks done and running, resident size, headroom, in the
terminal's title. Called by run's parent between its events.

In the title, because the screen is the job's: it writes there whenever it likes, and nobody can
know where its cursor is. A line of ours, drawn at the cursor, would overwrite a prompt or a
progress bar, or be followed by the job's own output; save and restore of the cursor fails as
soon as the screen scrolls in between; a scroll region (as apt has) breaks programs that use the
whole screen, and stays if we are killed; a pty in between would change what the job sees. A
title moves no cursor and takes no cell. Each is one write, which no other write can cut in two.
"""

import os
import sys
import time

AFTER_S, EVERY_S = 1.0, 0.5
# who has no stack of titles has an empty one afterwards
_PUSH, _POP = b"\x1b[22;2t", b"\x1b]2;\x07\x1b[23;2t"
# others may print them (Linux' console did)
_TAKE_TITLES = (
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


def wanted(stream, environ=os.environ):
    """Somebody sits in front of a terminal with a title: not a pipe, not CI."""
    return (
        stream is not None
        and stream.isatty()
        and not environ.get("CI")
        and environ.get("TERM", "").startswith(_TAKE_TITLES)
    )


class Status:
    """Never waits and never fails: a terminal that takes nothing now (Ctrl-S) is left alone, one
    that has gone is forgotten."""

    def __init__(self, name):
        self._name, self._terminal, self._next, self._shown = (
            name,
            None,
            time.monotonic() + AFTER_S,
            None,
        )
        self._done = False

    def look(self, collector):
        """By run's loop, ten times a second."""
        if self._done or time.monotonic() < self._next:
            return
        self._next = time.monotonic() + EVERY_S
        try:
            self._show(self._text(collector))
        except Exception:  # the job comes first: no status is better than a line about it
            self._done = True

    def close(self):
        """The title is as it was."""
        self._done = True
        if self._terminal is not None:
            try:
                if self._shown is not None and self._is_ours():
                    os.write(self._terminal, _POP)
            except OSError:
                pass
            os.close(self._terminal)
            self._terminal = None

    def _text(self, collector):
        from dwsr_probe.live.process import least_headroom_bytes, read_process
        from dwsr_probe.report.words import bytes_text, line_of

        processes = [read_process(board, live, tasks=False) for board, live in collector.living()]
        running = sum(process.live["running"] or 0 for process in processes)
        rss = sum(process.live["rss_bytes"] or 0 for process in processes)
        headroom = least_headroom_bytes(processes)
        return (
            f"{collector.stored:,} done, {running:,} running, rss {bytes_text(rss)}, headroom"
            f" {bytes_text(headroom)}: {line_of(self._name, 80)}"
        )

    def _show(self, text):
        if text == self._shown:
            return
        # opened anew: not to wait is then our own setting, not the job's
        if self._terminal is None:
            self._terminal = os.open(
                os.ttyname(sys.stderr.fileno()),
                os.O_WRONLY | os.O_NOCTTY | os.O_NONBLOCK | os.O_CLOEXEC,
            )
        if not self._is_ours():
            return
        title = b"\x1b]2;" + text.encode("ascii", "replace") + b"\x07"
        try:
            os.write(self._terminal, title if self._shown is not None else _PUSH + title)
            self._shown = text
        except BlockingIOError:
            pass

    def _is_ours(self):
        """The job is in the foreground: in the background (`&`, Ctrl-Z and bg) the title is the
        shell's."""
        return os.tcgetpgrp(self._terminal) == os.getpgrp()
