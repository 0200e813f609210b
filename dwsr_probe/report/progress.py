"""A progress bar on stderr, for `report --format html` and `predict`. It appears on a terminal
only, and only if the work takes long."""

from __future__ import annotations

import sys
import time

from rich.console import Console
from rich.progress import BarColumn, TaskID, TextColumn
from rich.progress import Progress as Bar

_DELAY_S = 0.7  # before the bar appears


class Progress:
    """Called as progress(what, done, total), as often as one likes."""

    def __init__(self) -> None:
        self._bar: Bar | None = None
        self._task = TaskID(0)
        self._began = time.monotonic()

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def __call__(self, what: str, done: int, total: int) -> None:
        if self._bar is None:
            if not sys.stderr.isatty() or time.monotonic() - self._began < _DELAY_S:
                return
            self._bar = Bar(
                TextColumn("{task.description}"),
                BarColumn(),
                console=Console(file=sys.stderr),
                transient=True,
            )
            self._task = self._bar.add_task(what)
            self._bar.start()
        self._bar.update(self._task, description=what, completed=done, total=total or None)
