"""A run as a source: `run --metrics` serves it from the job's parent, `top RUN` reads it.

Totals come from the run's collector, the stream from its store, living processes from its boards.
"""

from __future__ import annotations

import threading

from dwsr_probe.export.sources.source import Batch, Source, parse_cursor
from dwsr_probe.export.totals import HISTOGRAMS_MOST, Totals
from dwsr_probe.export.view import MeasuredView
from dwsr_probe.live.boards import LivingBoards
from dwsr_probe.live.process import LivingProcesses
from dwsr_probe.record import json_of_row

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from contextlib import AbstractContextManager
    from typing import Any

    from dwsr_probe.collector import News
    from dwsr_probe.store import Store


class RunSource(Source):
    def __init__(self, open_store: Callable[[], Store], run: str, directory: str) -> None:
        """open_store: called by the thread that serves. directory: of the run's boards."""
        self.totals = Totals(histograms_most=HISTOGRAMS_MOST)
        self._open_store, self._run = open_store, run
        self._store: Store | None = None
        self._boards = LivingBoards(lambda: [directory], lambda board: board.run == run)
        self._lock = threading.RLock()  # a view is made while its reader holds it
        self._lost: dict[str, int] = {}  # records, by process

    def add_news(self, news: Iterable[News]) -> None:
        """Called by the collector after each round, in the thread of `run`'s loop."""
        with self._lock:
            for one in news:
                self.totals.add_news(one)
                self._lost[one.process] = one.records_lost

    def locked(self) -> AbstractContextManager[Any]:
        return self._lock

    def view(self) -> MeasuredView:
        return MeasuredView.of(self.totals, self.living(), sum(self._lost.values()))

    def living(self) -> LivingProcesses:
        return self._boards.read()

    def read(self, since: str, most: int) -> Batch:
        if self._store is None:
            self._store = self._open_store()
        position, lost_before = parse_cursor(since, self._run)
        with self._lock:
            lost = sum(self._lost.values())
        found = self._store.rows_after(position, most)
        if found:
            position = found[-1][0]
        return Batch(
            [json_of_row(row) for _, row in found],
            f"{self._run}~{position}~{lost}",
            max(0, lost - lost_before),
            len(found) == most,
        )

    def close(self) -> None:
        if self._store is not None:
            self._store.close()
