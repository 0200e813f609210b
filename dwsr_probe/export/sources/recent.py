"""The newest records of all processes of a machine, in memory: where the exporter's collector
stores them instead of a run's store. Used by machine.py.
"""

from __future__ import annotations

import threading
from collections import deque

from dwsr_probe.export.totals import HISTOGRAMS_MOST, Totals
from dwsr_probe.record import FIELDS, TaskRecord, json_of_row

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from dwsr_probe.board import Board, Frames
    from dwsr_probe.collector import News

_PROCESS, _SEQ = FIELDS.index("process"), FIELDS.index("seq")
ENDED_MOST = 256  # processes


class RecentRecords:
    """The part of Store's interface that the collector uses: the newest records as lines, by
    position, and totals. Samples are not kept.

    A round is stored as a whole or not at all, as in the run store: a round that fails is read
    again and must not count twice. Readers hold `lock`.
    """

    wants_totals = True

    def __init__(self, most: int) -> None:
        self.totals, self.lock = Totals(histograms_most=HISTOGRAMS_MOST), threading.RLock()
        self.lines: deque[str] = deque(maxlen=most)
        self.end = 0  # position behind the newest line
        # records lost, by living process, and of all that have ended
        self.lost: dict[str | None, int] = {}
        self._lost_ended = 0
        self.adds_to_totals = True  # False: what is stored is marked as added instead
        # pid → state of the processes that ended last; None: it did not say
        self.end_states: dict[int | None, str | None] = {}
        # processes that had ended before the exporter started
        self.ended_before_start: set[str | None] = set()
        self._seqs: dict[str | None, int] = {}  # the newest stored seq of each living process
        self.begin()

    def merge_samples(self) -> None: ...
    def add_samples(self, process: str, first: int, packed: bytes, epoch: float) -> None: ...

    def begin(self) -> None:
        """A new round."""
        self._new_lines: list[str] = []
        self._new_processes: list[tuple[TaskRecord, int]] = []
        self._new_totals: list[News] = []
        self._new_seqs: dict[str, int] = {}

    rollback = begin

    def add_frames(self, board: Board, found: Frames) -> None:
        self.add_rows(board.rows(found.packed))

    def add_rows(self, rows: list[tuple[Any, ...]]) -> None:
        self._new_lines += map(json_of_row, rows)
        self._new_seqs.update((row[_PROCESS], row[_SEQ]) for row in rows[-1:])

    def put_totals(self, news: News) -> None:
        self._new_totals.append(news)

    def put_process(self, record: TaskRecord, health: dict[str, Any]) -> None:
        self._new_processes.append((record, health.get("records_lost") or 0))

    def commit(self) -> None:
        with self.lock:
            self.lines.extend(self._new_lines)
            self.end += len(self._new_lines)
            self._seqs.update(self._new_seqs)
            for one in self._new_totals:
                if self.adds_to_totals:
                    self.totals.add_news(one)
                elif one.alive:
                    self.totals.mark_added(one.process, one.totals)
            for record, lost in self._new_processes:
                self.lost[record.process] = max(lost, self.lost.get(record.process, 0))
                if record.state != "running":
                    self._lost_ended += self.lost.pop(record.process)
                    self._seqs.pop(record.process, None)
                    self.end_states.pop(record.pid, None)  # the newest stands last
                    self.end_states[record.pid] = record.state
                    if not self.adds_to_totals:
                        self.ended_before_start.add(record.process)
            while len(self.end_states) > ENDED_MOST:
                self.end_states.pop(next(iter(self.end_states)))
        self.begin()

    def lost_total(self) -> int:
        return self._lost_ended + sum(self.lost.values())

    def notice_other_writers(self) -> bool:
        return False

    def has_ended(self, process: str) -> bool:
        return False

    def lost_of(self, process: str) -> int:
        return self.lost.get(process, 0)

    def progress_of(self, process: str) -> tuple[int, int]:
        return self._seqs.get(process, 0), 0
