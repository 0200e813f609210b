"""A bar on stderr for work that takes long. On a terminal only, and not for what is done in a
moment."""

import sys
import time

from rich.console import Console
from rich.progress import BarColumn, TextColumn
from rich.progress import Progress as Bar

_SILENT_S = 0.7


class Progress:
    """progress(what, done, all), as often as one likes."""

    def __init__(self):
        self._bar, self._began, self._task = None, time.monotonic(), None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self._bar is not None:
            self._bar.stop()

    def __call__(self, what, done, total):
        if self._bar is None:
            if not sys.stderr.isatty() or time.monotonic() - self._began < _SILENT_S:
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
