"""Everything that can be asked of a stored run: tasks, processes, totals, samples.

`StoreReader` is the reading half of `Store`. Reports, `top`, the predictor and the collector call
it. Every value is checked when it is read (store/checks.py). A value that dwsr-probe wrote and that
cannot be read back was damaged or changed by somebody: StoreError.
"""

from __future__ import annotations

import json
from contextlib import contextmanager
from itertools import islice
from operator import itemgetter

from dwsr_probe import origin, total
from dwsr_probe.dataclass import NamedTuple
from dwsr_probe.record import FIELDS, compiled_from_row
from dwsr_probe.sample import SAMPLE_BYTES, unpack_samples
from dwsr_probe.store import checks
from dwsr_probe.store.file import StoreError, columns_of, has_frames, missing_fields

TYPE_CHECKING = False
if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterable, Iterator
    from typing import Any

    from dwsr_probe.origin import Origin
    from dwsr_probe.record import Row, TaskRecord
    from dwsr_probe.total import Total

_BATCH_ROWS = 1_000
_SEQ = FIELDS.index("seq")


class StoredProcess(NamedTuple):
    """health: the probe's counters in this process, and what its program reported (facts)."""

    record: TaskRecord
    health: dict[str, Any]


class StoredProgress(NamedTuple):
    """How far a process is stored. seq: of its last task; sample_index: number of its next
    sample."""

    seq: int
    sample_index: int


class SampleRange(NamedTuple):
    """One sample, or the range of all samples of one second. time: epoch seconds."""

    time: float
    rss_min_bytes: int | None
    rss_max_bytes: int | None
    peak_bytes: int | None
    samples: int


class StoreReader:
    def __init__(self, directory: str | None, connection: sqlite3.Connection) -> None:
        self.directory = directory  # None: in memory
        self._db = connection
        self._data_version: int | None = None  # SQLite's, at the last call of notice_other_writers
        self._origins: dict[str, Origin] = {}  # by process
        self._origin_texts: dict[str, str] = {}  # the JSON that they were made of
        # the piece of frames that was unpacked last
        self._unpacked_position: int | None = None
        self._unpacked_rows: list[Row] = []
        self._inspect_tables()

    def _inspect_tables(self) -> None:
        """The columns and tables that this run has: a run of an older version lacks some."""
        self._missing_fields = missing_fields(self._db)
        self._columns = columns_of(self._missing_fields)
        self._has_frames = has_frames(self._db)

    def close(self) -> None:
        self._db.close()

    @contextmanager
    def _damage_is_an_error(self) -> Iterator[None]:
        try:
            yield
        except (ValueError, TypeError, RecursionError) as error:
            raise StoreError(
                f"cannot read {self.directory or 'the run'}: {error}; it is damaged"
            ) from error

    def _value(self, query: str, *values: object) -> Any:
        """The single value of a query that has one row."""
        return self._db.execute(query, values).fetchone()[0]

    def meta(self) -> dict[str, Any]:
        """What `run` noted about the run: its name, command, start, host, ..."""
        with self._damage_is_an_error():
            return checks.checked_meta(
                {k: json.loads(v) for k, v in self._db.execute("SELECT key, value FROM meta")}
            )

    # -- tasks

    def rows(self) -> Iterator[Row]:
        """Tasks as tuples in the order of FIELDS, nested fields as JSON text; in order of end
        within each process."""
        if not self._has_frames:
            yield from self._loose_rows("ORDER BY process, seq")
            return
        for (process,) in self._db.execute(
            "SELECT process FROM frames UNION SELECT process FROM tasks ORDER BY process"
        ).fetchall():
            loose = list(self._loose_rows("WHERE process IS ? ORDER BY seq", process))
            packed = self._packed_rows(process)
            yield from _merged_by_seq(packed, loose) if loose else packed

    def tasks(self) -> Iterator[TaskRecord]:
        """The same tasks as records. Equal nested fields are one object in all records: do not
        change them."""
        rows, nested, from_row = self.rows(), checks.NestedParser(), compiled_from_row()
        while True:
            with self._damage_is_an_error():
                batch = [from_row(row, nested) for row in islice(rows, _BATCH_ROWS)]
            if not batch:
                return
            yield from batch

    def _loose_rows(self, where: str, *values: object) -> Iterator[Row]:
        found = self._db.execute(f"SELECT {self._columns} FROM tasks {where}", values)
        while batch := found.fetchmany(_BATCH_ROWS):
            with self._damage_is_an_error():
                batch = list(map(checks.checked_row, batch))
            yield from batch

    def _packed_rows(self, process: str) -> Iterator[Row]:
        for (packed,) in self._db.execute(
            "SELECT packed FROM frames WHERE process IS ? ORDER BY first_seq", (process,)
        ):
            with self._damage_is_an_error():
                rows = self._origin(process).rows(packed)
            yield from rows

    def _origin(self, process: str) -> Origin:
        """The origin of a process, with the texts that its frames refer to. It is read again each
        time, because a running job adds texts and workers."""
        found = self._db.execute(
            "SELECT origin, layout FROM origins WHERE process = ?", (process,)
        ).fetchone()
        if found is None:
            raise ValueError("packed records are there without their layout")
        text, layout = found
        if self._origin_texts.get(process) != text:
            self._origins[process] = origin.from_json(process, text, layout)
            self._origin_texts[process] = text
        known = self._origins[process]
        texts = self._db.execute(
            "SELECT text FROM texts WHERE process = ? AND number >= ? ORDER BY number",
            (process, len(known.texts)),
        )
        known.texts += [text for (text,) in texts]
        return known

    def rows_after(self, position: int, most: int) -> list[tuple[int, Row]]:
        """(position, row) of the tasks behind a position, in the order in which they were
        stored; 0: from the first."""
        loose = self._db.execute(
            f"SELECT position, {self._columns} FROM tasks WHERE position > ? ORDER BY position"
            " LIMIT ?",
            (position, most),
        ).fetchall()
        with self._damage_is_an_error():
            found = [(row[0], checks.checked_row(row[1:])) for row in loose]
            found += self._packed_after(position, most)
        return sorted(found, key=itemgetter(0))[:most]

    def _packed_after(self, position: int, most: int) -> Iterator[tuple[int, Row]]:
        if not self._has_frames:
            return
        # from the piece that holds the next position on
        pieces = self._db.execute(
            "SELECT position, process, packed FROM frames WHERE position >= (SELECT"
            " IFNULL(MAX(position), 0) FROM frames WHERE position <= ?) ORDER BY position",
            (position + 1,),
        )
        for first, process, packed in pieces:
            if most <= 0:
                return
            if self._unpacked_position != first:
                self._unpacked_rows = self._origin(process).rows(packed)
                self._unpacked_position = first
            wanted = self._unpacked_rows[max(0, position + 1 - first) :][:most]
            most -= len(wanted)
            yield from enumerate(wanted, max(first, position + 1))

    def task_count(self) -> int:
        return self._frames_count() + self._value("SELECT COUNT(*) FROM tasks")

    def _frames_count(self, where: str = "", *values: object) -> int:
        if not self._has_frames:
            return 0
        return self._value(f"SELECT IFNULL(SUM(count), 0) FROM frames {where}", *values)

    # -- processes

    def totals(self) -> dict[str, list[Total]]:
        """The exact sums of each task name, by process, where the run has them."""
        found: dict[str, list[Total]] = {}
        if self._has_frames:
            with self._damage_is_an_error():
                for process, text in self._db.execute(
                    "SELECT process, total FROM totals ORDER BY process, number"
                ):
                    found.setdefault(process, []).append(total.from_json(text))
        return found

    def processes(self) -> list[StoredProcess]:
        """In order of start."""
        with self._damage_is_an_error():
            found = [
                StoredProcess(*checks.checked_process(json.loads(record), json.loads(health)))
                for record, health in self._db.execute("SELECT record, health FROM processes")
            ]
        return sorted(found, key=lambda one: one.record.start or 0)

    # -- progress: asked by collectors

    def notice_other_writers(self) -> bool:
        """True if another connection has written since the last call."""
        before, self._data_version = self._data_version, self._value("PRAGMA data_version")
        return self._data_version != before

    def has_ended(self, process: str) -> bool:
        """Whether all of a process is stored: its row says how it ended."""
        found = self._db.execute(
            "SELECT record FROM processes WHERE process = ?", (process,)
        ).fetchone()
        with self._damage_is_an_error():
            return found is not None and json.loads(found[0]).get("state") != "running"

    def lost_of(self, process: str) -> int:
        """Number of records that were overwritten on the board before they could be stored."""
        rows = self._value("SELECT COUNT(*) FROM tasks WHERE process = ?", process)
        packed = self._frames_count("WHERE process = ?", process)
        return self.progress_of(process).seq - packed - rows

    def progress_of(self, process: str) -> StoredProgress:
        seq = self._value("SELECT MAX(seq) FROM tasks WHERE process = ?", process)
        packed = (
            self._value("SELECT MAX(last_seq) FROM frames WHERE process = ?", process)
            if self._has_frames
            else 0
        )
        index = self._value("SELECT MAX(next) FROM samples WHERE process = ?", process)
        return StoredProgress(max(seq or 0, packed or 0), index or 0)

    # -- samples

    def merged_samples(self, process: str) -> Iterator[SampleRange]:
        """Samples older than ten minutes, as one range a second, in order of time."""
        for row in self._db.execute(
            "SELECT time, rss_min_bytes, rss_max_bytes, peak_bytes, samples FROM merged WHERE"
            " process = ? ORDER BY time",
            (process,),
        ):
            with self._damage_is_an_error():
                checks.check_numbers("a sample", row)
            yield SampleRange(*row)

    def packed_samples(self, process: str) -> Iterator[tuple[float, bytes]]:
        """(epoch, packed) of the newer samples in order of time, for readers of millions.

        packed: a piece of a board's ring, SAMPLE_BYTES each (dwsr_probe.sample). epoch: the date,
        in seconds, when the board's clock was 0.
        """
        for epoch, packed in self._db.execute(
            "SELECT epoch, packed FROM samples WHERE process = ? AND LENGTH(packed) > 0 ORDER BY"
            " first",
            (process,),
        ):
            with self._damage_is_an_error():
                checks.check_packed("samples", epoch, packed, SAMPLE_BYTES)
            yield epoch, packed

    def samples(self, process: str) -> Iterator[SampleRange]:
        """All samples in order of time."""
        yield from self.merged_samples(process)
        for epoch, packed in self.packed_samples(process):
            for time_ns, rss, peak, _ in unpack_samples(packed):
                yield SampleRange(epoch + time_ns / 1e9, rss, rss, peak, 1)


def _merged_by_seq(packed: Iterable[Row], loose: Iterable[Row]) -> Iterator[Row]:
    """Rows of one process from both tables."""
    from heapq import merge

    return merge(packed, loose, key=itemgetter(_SEQ))
