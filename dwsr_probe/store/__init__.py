"""The run directory: one SQLite file, `run.sqlite`, with a run's records, processes and samples.

`Store` is written by the collector alone (this file) and read by every report (store/reader.py).
store/file.py has the tables and versions; store/checks.py the types that readers rely on.

Finished tasks are kept as the frames of their boards (table frames), because a row of SQLite's
own costs 4 µs. The tables origins and texts hold what is needed to make rows of frames. Some tasks
are kept as rows (table tasks): killed tasks, gathered tasks, and all tasks of runs before version
3. Positions number the tasks of both tables in the order in which they were stored.
"""

from __future__ import annotations

import json
import os
import sqlite3
import time

from dwsr_probe.record import FIELDS, to_row
from dwsr_probe.sample import SAMPLE_BYTES, unpack_samples
from dwsr_probe.store.file import (
    FILE,
    StoreError,
    create,
    create_in_memory,
    filesystem_of,
    is_network,
    open_existing,
    upgrade,
)
from dwsr_probe.store.reader import SampleRange, StoredProcess, StoredProgress, StoreReader

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from dwsr_probe.board import Board, Frames
    from dwsr_probe.record import Row, TaskRecord
    from dwsr_probe.total import News

__all__ = [
    "FILE",
    "SampleRange",
    "Store",
    "StoreError",
    "StoreReader",
    "StoredProcess",
    "StoredProgress",
    "filesystem_of",
    "is_network",
]

_MERGE_AFTER_S = 600.0  # age of samples that are merged into one range a second
_MERGE_EVERY_S = 60.0
_INSERT_TASK = (
    f"INSERT OR IGNORE INTO tasks (position, {', '.join(FIELDS)}) VALUES"
    f" ({', '.join('?' * (1 + len(FIELDS)))})"
)


class Store(StoreReader):
    """One run. `Store.create` for the collector, `Store.open` for readers."""

    # Whether the collector is to put totals here in every round, not only where records were lost.
    wants_totals = False

    def __init__(self, directory: str | None, connection: sqlite3.Connection) -> None:
        super().__init__(directory, connection)
        self._merge_due_s = 0.0  # of the monotonic clock
        self._next_position: int | None = None  # of the next task that is written
        # of the processes whose frames are written
        self._stored_origins: dict[str, str] = {}  # as JSON
        self._stored_text_counts: dict[str, int] = {}
        self._stored_totals: dict[tuple[str, int], int] = {}  # (process, number) → its last_seq

    @classmethod
    def create(cls, directory: str | os.PathLike[str]) -> Store:
        directory = os.fspath(directory)
        return cls(directory, create(directory))

    @classmethod
    def in_memory(cls) -> Store:
        return cls(None, create_in_memory())

    @classmethod
    def open(cls, directory: str | os.PathLike[str], writable: bool = False) -> Store:
        directory = os.fspath(directory)
        return cls(directory, open_existing(directory, writable))

    def finish(self) -> None:
        """Nothing more will be written: remove the journal beside the file. The run can then be
        copied as one file, and read where it cannot be written."""
        try:
            self._db.execute("PRAGMA journal_mode=DELETE")
        except sqlite3.OperationalError:
            # A reader such as `top` has it open; whoever closes it last removes the journal.
            pass

    # One round of a collector is one transaction: a killed collector leaves complete rounds.

    def begin(self) -> None:
        """Lock the run for writing: two readers may collect what a killed parent left."""
        self._db.execute("BEGIN IMMEDIATE")
        # Here and not when it is opened: readers leave a run of an older version unchanged.
        if self._missing_fields or not self._has_frames:
            upgrade(self._db, self._missing_fields)
            self._inspect_tables()

    def commit(self) -> None:
        self._db.execute("COMMIT")

    def rollback(self) -> None:
        if self._db.in_transaction:
            self._db.execute("ROLLBACK")
        self._next_position = None
        self._stored_origins.clear()
        self._stored_text_counts.clear()
        self._stored_totals.clear()

    def set_meta(self, **values: Any) -> None:
        self._db.executemany(
            "INSERT OR REPLACE INTO meta VALUES (?, ?)",
            [(k, json.dumps(v)) for k, v in values.items()],
        )

    def _reserve_positions(self, count: int) -> int:
        """The first of `count` positions that no task has yet."""
        if self._next_position is None:
            self._next_position = 1 + self._value(
                "SELECT MAX((SELECT IFNULL(MAX(position), 0) FROM tasks), (SELECT"
                " IFNULL(MAX(position + count - 1), 0) FROM frames))"
            )
        first = self._next_position
        self._next_position = first + count
        return first

    def add_rows(self, rows: Iterable[Row]) -> None:
        """Tasks in the form of record.row_of."""
        rows = list(rows)
        self._db.executemany(
            _INSERT_TASK,
            (
                (position, *row)
                for position, row in enumerate(rows, self._reserve_positions(len(rows)))
            ),
        )

    def add_tasks(self, records: Iterable[TaskRecord]) -> None:
        self.add_rows(map(to_row, records))

    def add_frames(self, board: Board, found: Frames) -> None:
        """Finished tasks as the board packs them. Its earlier ones are stored already, or lost."""
        self._put_origin(board)
        self._db.execute(
            "INSERT INTO frames VALUES (?, ?, ?, ?, ?, ?)",
            (
                self._reserve_positions(found.count),
                found.count,
                board.process,
                found.first_seq,
                found.last_seq,
                found.packed,
            ),
        )

    def _put_origin(self, board: Board) -> None:
        """Store the origin and the texts that this board's frames refer to, if they are new."""
        process, now = board.process, board.to_json()
        if process not in self._stored_text_counts:
            self._stored_text_counts[process] = self._value(
                "SELECT COUNT(*) FROM texts WHERE process = ?", process
            )
        if now != self._stored_origins.get(process):
            self._db.execute(
                "INSERT OR REPLACE INTO origins VALUES (?, ?, ?)",
                (process, now, board.layout.text),
            )
            self._stored_origins[process] = now
        count = self._stored_text_counts[process]
        if len(board.texts) > count:
            new = enumerate(board.texts[count:], count)
            self._db.executemany(
                "INSERT OR IGNORE INTO texts VALUES (?, ?, ?)",
                ((process, number, text) for number, text in new),
            )
            self._stored_text_counts[process] = len(board.texts)

    def put_totals(self, news: News) -> None:
        """Store the totals of a process, if its board has them."""
        changed = [
            (number, one)
            for number, one in enumerate(news.totals or ())
            if one.count and self._stored_totals.get((news.process, number)) != one.last_seq
        ]
        self._db.executemany(
            "INSERT OR REPLACE INTO totals VALUES (?, ?, ?)",
            ((news.process, number, one.to_json()) for number, one in changed),
        )
        self._stored_totals.update(
            ((news.process, number), one.last_seq) for number, one in changed
        )

    def put_process(self, record: TaskRecord, health: dict[str, Any]) -> None:
        self._db.execute(
            "INSERT OR REPLACE INTO processes VALUES (?, ?, ?)",
            (record.process, record.to_json(), json.dumps(health)),
        )

    def add_samples(self, process: str, first: int, packed: bytes, epoch: float) -> None:
        """Store a piece of a board's ring without unpacking it: a thousand samples a second must
        cost next to nothing.

        first: number of its first sample. epoch: the date when the board's clock was 0.
        """
        last = next(unpack_samples(packed[-SAMPLE_BYTES:]))
        self._db.execute(
            "INSERT OR IGNORE INTO samples VALUES (?, ?, ?, ?, ?, ?)",
            (
                process,
                first,
                first + len(packed) // SAMPLE_BYTES,
                epoch,
                epoch + last.time_ns / 1e9,
                packed,
            ),
        )

    def add_merged(self, rows: Iterable[tuple[str, float, int, int, int | None, int]]) -> None:
        """Rows: the process, then the fields of a SampleRange of one second. A range that is stored
        already for that second is extended."""
        self._db.executemany(
            "INSERT INTO merged VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET rss_min_bytes ="
            " MIN(rss_min_bytes, excluded.rss_min_bytes), rss_max_bytes = MAX(rss_max_bytes,"
            " excluded.rss_max_bytes), peak_bytes = MAX(peak_bytes, excluded.peak_bytes), samples ="
            " samples + excluded.samples",
            rows,
        )

    def merge_samples(self, now: float | None = None) -> None:
        """Replace samples that are ten minutes older than the newest by one range a second. Does
        so at most once a minute.

        Ages are relative to the newest sample, not to today's date: a run that is over keeps its
        last ten minutes, however late it is read. They are measured on the boards' own clock
        (end - epoch), because dates jump when the machine's clock is set.
        """
        clock = time.monotonic() if now is None else now
        if clock < self._merge_due_s:
            return
        self._merge_due_s = clock + _MERGE_EVERY_S
        if now is None:
            now = self._value("SELECT MAX(end - epoch) FROM samples") or 0.0
        old = self._db.execute(
            "SELECT rowid, process, epoch, packed FROM samples WHERE end - epoch < ?",
            (now - _MERGE_AFTER_S,),
        ).fetchall()
        for rowid, process, epoch, packed in old:
            self.add_merged(
                (process, second, *values) for second, values in _by_second(epoch, packed).items()
            )
            # The row stays without its samples: it says how far this process has been stored.
            self._db.execute(
                "UPDATE samples SET packed = x'', end = NULL WHERE rowid = ?", (rowid,)
            )


def _by_second(epoch: float, packed: bytes) -> dict[int, tuple[int, int, int, int]]:
    """{epoch second: (least rss, largest rss, peak, number of samples)}."""
    seconds: dict[int, tuple[int, int, int, int]] = {}
    for time_ns, rss, peak, _ in unpack_samples(packed):
        if rss is not None:
            second, peak = int(epoch + time_ns / 1e9), rss if peak is None else peak
            least, largest, highest, count = seconds.get(second, (rss, rss, peak, 0))
            seconds[second] = (min(least, rss), max(largest, rss), max(highest, peak), count + 1)
    return seconds
