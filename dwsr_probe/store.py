"""The run directory: one SQLite file, `run.sqlite`, with a run's records, processes and samples.

Written by the collector alone; read by every report. WAL while it is written, except on network
filesystems, where WAL is not safe.

Finished tasks are kept as the frames of their boards (table frames), with the layout that says
which fields these have and what else it takes to make rows of them (origins, texts): a row of
SQLite's own costs 4 µs. Tasks that come as rows stand in the table tasks: those that were
killed, those that were gathered, and all of runs before version 3. A position counts the tasks
of both in the order in which they came.
"""

import json
import os
import sqlite3
import time
from contextlib import contextmanager
from itertools import islice
from operator import itemgetter

from dwsr_probe import origin, stored, total
from dwsr_probe.board import SAMPLE_BYTES, unpack_samples
from dwsr_probe.record import DEFAULTS, FIELDS, TYPES, from_row, to_row

FILE = "run.sqlite"
# a field of the record may be added without a new version: runs without it have its default
VERSION, VERSION_OLDEST = 3, 2
MERGE_AFTER_S = 600.0
_AT_ONCE = 1_000  # rows
_NETWORK = {
    "nfs",
    "nfs4",
    "cifs",
    "smb3",
    "smbfs",
    "lustre",
    "gpfs",
    "beegfs",
    "ceph",
    "9p",
    "afs",
    "glusterfs",
    "pvfs2",
    "orangefs",
    "panfs",
}


class StoreError(Exception):
    """A run directory cannot be used; the text says why and what to do."""


def _column(name):
    return f"{name} {({int: 'INTEGER', float: 'REAL'}).get(TYPES[name], 'TEXT')}"


def _sql(value):
    return "NULL" if value is None else repr(value)


_PACKED = """
CREATE TABLE origins (process TEXT PRIMARY KEY, origin TEXT, layout BLOB);
CREATE TABLE texts (process TEXT, number INTEGER, text TEXT,
    PRIMARY KEY (process, number)) WITHOUT ROWID;
CREATE TABLE frames (position INTEGER PRIMARY KEY, count INTEGER, process TEXT,
    first_seq INTEGER, last_seq INTEGER, packed BLOB);
CREATE INDEX frames_of_process ON frames (process, first_seq);
CREATE TABLE totals (process TEXT, number INTEGER, total TEXT,
    PRIMARY KEY (process, number)) WITHOUT ROWID;
"""
_SCHEMA = (
    f"""
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT);
CREATE TABLE tasks (position INTEGER PRIMARY KEY, {", ".join(map(_column, FIELDS))},
    UNIQUE (process, seq));
CREATE TABLE processes (process TEXT PRIMARY KEY, record TEXT, health TEXT);
CREATE TABLE samples (process TEXT, first INTEGER, next INTEGER, epoch REAL, end REAL,
    packed BLOB, PRIMARY KEY (process, first));
CREATE TABLE merged (process TEXT, time REAL, rss_min_bytes INTEGER, rss_max_bytes INTEGER,
    peak_bytes INTEGER, samples INTEGER,
                     PRIMARY KEY (process, time));
"""
    + _PACKED
)
_INSERT_TASK = (
    f"INSERT OR IGNORE INTO tasks (position, {', '.join(FIELDS)}) VALUES"
    f" ({', '.join('?' * (1 + len(FIELDS)))})"
)
_SEQ = FIELDS.index("seq")


def filesystem_of(path, mountinfo="/proc/self/mountinfo"):
    """Type of the filesystem that holds `path` ("ext4", "nfs4", ...)."""
    path, best, kind = os.path.realpath(path), "", ""
    try:
        with open(mountinfo, encoding="utf-8", errors="surrogateescape") as lines:
            for line in lines:
                before, _, after = line.partition(" - ")
                point = before.split()[4].replace("\\040", " ")
                if (path == point or path.startswith(point.rstrip("/") + "/")) and len(
                    point
                ) >= len(best):
                    best, kind = point, after.split()[0]
    except (OSError, IndexError):
        pass
    return kind


def is_network(kind):
    return kind in _NETWORK or kind.startswith("fuse")


_PLAIN = frozenset(b"/._-~0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")


def _quoted(path):
    """A path for SQLite's URIs. Not by urllib, whose import costs a run several milliseconds."""
    return "".join(chr(byte) if byte in _PLAIN else f"%{byte:02X}" for byte in os.fsencode(path))


def _merged(packed, loose):
    """Rows of one process from both tables, by seq."""
    from heapq import merge

    return merge(packed, loose, key=itemgetter(_SEQ))


class Store:
    """One run. `Store.create` for the collector, `Store.open` for readers."""

    # whether the totals of boards are to be put here all the time, not only where single records
    # are missing
    counts = False

    def __init__(self, directory, connection):
        self.directory = directory
        self._db = connection
        self._merge_due = 0.0
        there = {name for _, name, *_ in connection.execute("PRAGMA table_info(tasks)")}
        # of a run of an earlier version
        self._missing = [name for name in FIELDS if name not in there]
        self._names = ", ".join(
            name if name in there else f"{_sql(DEFAULTS[name])} AS {name}" for name in FIELDS
        )
        self._has_frames = bool(
            connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'frames'").fetchone()
        )
        self._next_position = None  # of the next task that is written
        self._data_version = None  # SQLite's, as others_wrote saw it
        # of the processes whose frames are written: their origin as it is kept, and how many texts
        self._kept = {}
        self._kept_totals = {}  # (process, number) → last seq that is counted there
        # for readers: (text, origin.Origin) by process; the frames that were unpacked last
        self._origins, self._unpacked = {}, (None, None)

    @classmethod
    def create(cls, directory):
        try:
            os.makedirs(directory, mode=0o700, exist_ok=True)
            # SQLite's journals have its mode
            os.close(
                os.open(os.path.join(directory, FILE), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            )
            db = sqlite3.connect(os.path.join(directory, FILE), isolation_level=None, timeout=30)
            if not is_network(filesystem_of(directory)):
                db.execute("PRAGMA journal_mode=WAL")
            db.execute("PRAGMA synchronous=NORMAL")
            db.executescript(f"BEGIN; {_SCHEMA} PRAGMA user_version={VERSION}; COMMIT;")
        except (OSError, sqlite3.Error) as error:
            raise StoreError(
                f"cannot write the run directory {directory}: {error}; choose another with -o DIR"
            ) from error
        return cls(directory, db)

    @classmethod
    def in_memory(cls):
        db = sqlite3.connect(":memory:", isolation_level=None)
        db.executescript(_SCHEMA)
        return cls(None, db)

    @classmethod
    def open(cls, directory, writable=False):
        path = os.path.join(directory, FILE)
        if not os.path.isfile(path):
            raise StoreError(
                f"{directory} holds no run ({FILE} is missing); name a directory that `dwsr-probe"
                " run` wrote"
            )
        # Writable, it can recover what a killed collector left in the journal. Otherwise as it is:
        # a finished run has no journal.
        mode = (
            "mode=rw"
            if os.access(path, os.W_OK) and os.access(directory, os.W_OK)
            else "mode=ro&immutable=1"
        )
        try:
            db = sqlite3.connect(
                f"file:{_quoted(os.path.abspath(path))}?{mode}",
                uri=True,
                isolation_level=None,
                timeout=30,
            )
            version = db.execute("PRAGMA user_version").fetchone()[0]
        except sqlite3.Error as error:
            raise StoreError(
                f"cannot read {path}: {error}; it is damaged or not a run of dwsr-probe"
            ) from error
        if version == 0:  # SQLite's own, also of an empty file
            raise StoreError(f"{path} is empty, or not a run of dwsr-probe")
        if not VERSION_OLDEST <= version <= VERSION:
            known = (
                f"version {VERSION}"
                if VERSION == VERSION_OLDEST
                else f"versions {VERSION_OLDEST} to {VERSION}"
            )
            raise StoreError(
                f"{path} has version {version}, this dwsr-probe knows {known}; read it with the one"
                " that wrote it"
            )
        if not writable:
            db.execute("PRAGMA query_only=1")
        return cls(directory, db)

    def _renew(self):
        """Before more is written into a run of an earlier version: who only reads it leaves it
        as it is."""
        for name in self._missing:
            self._db.execute(
                f"ALTER TABLE tasks ADD COLUMN {_column(name)} DEFAULT {_sql(DEFAULTS[name])}"
            )
        if not self._has_frames:
            for statement in filter(str.strip, _PACKED.split(";")):
                self._db.execute(statement)
            self._db.execute(f"PRAGMA user_version={VERSION}")
        if self._missing or not self._has_frames:
            self.__init__(self.directory, self._db)

    def close(self):
        self._db.close()

    def finish(self):
        """Nothing more will be written: no journal beside the file, so that it can be read where
        it cannot be written, and copied as it is."""
        try:
            self._db.execute("PRAGMA journal_mode=DELETE")
        # somebody reads it just now, as `top` does; whoever closes it last removes the journal
        except sqlite3.OperationalError:
            pass

    # -- writing: everything of one round in one transaction, so that a killed collector leaves
    # whole rounds

    def begin(self):
        """Alone: two readers may collect what a killed parent left."""
        self._db.execute("BEGIN IMMEDIATE")
        self._renew()

    def commit(self):
        self._db.execute("COMMIT")

    def rollback(self):
        if self._db.in_transaction:
            self._db.execute("ROLLBACK")
        self._next_position = None
        self._kept.clear()
        self._kept_totals.clear()

    def set_meta(self, **values):
        self._db.executemany(
            "INSERT OR REPLACE INTO meta VALUES (?, ?)",
            [(k, json.dumps(v)) for k, v in values.items()],
        )

    def _positions(self, count):
        """The first of so many positions that nobody has."""
        if self._next_position is None:
            last = self._db.execute(
                "SELECT MAX((SELECT IFNULL(MAX(position), 0) FROM tasks), (SELECT"
                " IFNULL(MAX(position + count - 1), 0) FROM frames))"
            ).fetchone()[0]
            self._next_position = last + 1
        self._next_position += count
        return self._next_position - count

    def add_rows(self, rows):
        """Tasks in the form of record.row_of."""
        rows = list(rows)
        self._db.executemany(
            _INSERT_TASK,
            ((position, *row) for position, row in enumerate(rows, self._positions(len(rows)))),
        )

    def add_frames(self, board, found):
        """Finished tasks as they are packed: board.Frames of a board, whose earlier ones are
        here or lost."""
        self._keep_origin(board)
        self._db.execute(
            "INSERT INTO frames VALUES (?, ?, ?, ?, ?, ?)",
            (
                self._positions(found.count),
                found.count,
                board.process,
                found.first_seq,
                found.last_seq,
                found.packed,
            ),
        )

    def _keep_origin(self, board):
        text, count = self._kept.get(board.process, (None, None))
        if text is None:
            count = self._db.execute(
                "SELECT COUNT(*) FROM texts WHERE process = ?", (board.process,)
            ).fetchone()[0]
        if (now := board.to_json()) != text:
            self._db.execute(
                "INSERT OR REPLACE INTO origins VALUES (?, ?, ?)",
                (board.process, now, board.layout.text),
            )
        if len(board.texts) > count:
            new = enumerate(board.texts[count:], count)
            self._db.executemany(
                "INSERT OR IGNORE INTO texts VALUES (?, ?, ?)",
                ((board.process, number, text) for number, text in new),
            )
        self._kept[board.process] = now, len(board.texts)

    def put_totals(self, news):
        """Exact sums of a process (collector.News), where it has them."""
        changed = [
            (number, one)
            for number, one in enumerate(news.totals or ())
            if one.count and self._kept_totals.get((news.process, number)) != one.last_seq
        ]
        self._db.executemany(
            "INSERT OR REPLACE INTO totals VALUES (?, ?, ?)",
            ((news.process, number, one.to_json()) for number, one in changed),
        )
        self._kept_totals.update(((news.process, number), one.last_seq) for number, one in changed)

    def add_tasks(self, records):
        self.add_rows(map(to_row, records))

    def put_process(self, record, health):
        self._db.execute(
            "INSERT OR REPLACE INTO processes VALUES (?, ?, ?)",
            (record.process, record.to_json(), json.dumps(health)),
        )

    def add_samples(self, process, first, packed, epoch):
        """A piece of a board's ring as it is, from sample number `first` on: a thousand a second
        must cost nothing. epoch: of its clock's 0."""
        last = next(unpack_samples(packed[-SAMPLE_BYTES:]))
        self._db.execute(
            "INSERT OR IGNORE INTO samples VALUES (?, ?, ?, ?, ?, ?)",
            (
                process,
                first,
                first + len(packed) // SAMPLE_BYTES,
                epoch,
                epoch + last[0] / 1e9,
                packed,
            ),
        )

    def add_merged(self, rows):
        """Rows of one second each: (process, epoch second, least rss, largest rss, peak, how
        many samples)."""
        self._db.executemany(
            "INSERT INTO merged VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET rss_min_bytes ="
            " MIN(rss_min_bytes, excluded.rss_min_bytes), rss_max_bytes = MAX(rss_max_bytes,"
            " excluded.rss_max_bytes), peak_bytes = MAX(peak_bytes, excluded.peak_bytes), samples ="
            " samples + excluded.samples",
            rows,
        )

    def merge_samples(self, now=None):
        """Samples ten minutes older than the newest become one row a second, with their least
        and largest values. Looks once a minute.

        By the newest, not by the clock: a run that is over keeps its last ten minutes however
        late it is looked at. Ages are of the boards' own clock, in seconds (end - epoch): dates
        jump when the machine's clock is set."""
        clock = time.monotonic() if now is None else now
        if clock < self._merge_due:
            return
        self._merge_due = clock + 60.0
        if now is None:
            now = self._db.execute("SELECT MAX(end - epoch) FROM samples").fetchone()[0] or 0.0
        old = self._db.execute(
            "SELECT rowid, process, epoch, packed FROM samples WHERE end - epoch < ?",
            (now - MERGE_AFTER_S,),
        ).fetchall()
        for rowid, process, epoch, packed in old:
            seconds = {}
            for t, rss, peak, _ in unpack_samples(packed):
                if rss is not None:
                    second = seconds.setdefault(int(epoch + t / 1e9), [rss, rss, peak, 0])
                    second[:] = (
                        min(second[0], rss),
                        max(second[1], rss),
                        max(second[2], peak),
                        second[3] + 1,
                    )
            self.add_merged((process, second, *values) for second, values in seconds.items())
            # The row stays without its samples: it says how far this process has been stored.
            self._db.execute(
                "UPDATE samples SET packed = x'', end = NULL WHERE rowid = ?", (rowid,)
            )

    # -- reading

    @contextmanager
    def _trusting(self):
        """What we wrote ourselves and cannot read back was damaged, or changed by somebody."""
        try:
            yield
        except (ValueError, TypeError, RecursionError) as error:
            raise StoreError(
                f"cannot read {self.directory or 'the run'}: {error}; it is damaged"
            ) from error

    def meta(self):
        with self._trusting():
            return stored.meta(
                {k: json.loads(v) for k, v in self._db.execute("SELECT key, value FROM meta")}
            )

    def rows(self):
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
            yield from _merged(packed, loose) if loose else packed

    def tasks(self):
        """The same as records. Equal nested fields are one object: not to be changed."""
        rows, nested = self.rows(), stored.Nested()
        while True:
            with self._trusting():
                some = [from_row(row, nested) for row in islice(rows, _AT_ONCE)]
            if not some:
                return
            yield from some

    def _loose_rows(self, where, *values):
        found = self._db.execute(f"SELECT {self._names} FROM tasks {where}", values)
        while some := found.fetchmany(_AT_ONCE):
            with self._trusting():
                some = list(map(stored.row, some))
            yield from some

    def _packed_rows(self, process):
        for (packed,) in self._db.execute(
            "SELECT packed FROM frames WHERE process IS ? ORDER BY first_seq", (process,)
        ):
            with self._trusting():
                rows = self._origin(process).rows(packed)
            yield from rows

    def _origin(self, process):
        """What it takes to make rows of the frames of a process, as it is now: of a run that
        goes on it grows."""
        found = self._db.execute(
            "SELECT origin, layout FROM origins WHERE process = ?", (process,)
        ).fetchone()
        if found is None:
            raise ValueError("packed records are there without their layout")
        text, known = self._origins.get(process, (None, None))
        if text != found[0]:
            known = origin.from_json(process, *found)
            self._origins[process] = found[0], known
        texts = self._db.execute(
            "SELECT text FROM texts WHERE process = ? AND number >= ? ORDER BY number",
            (process, len(known.texts)),
        )
        known.texts += [text for (text,) in texts]
        return known

    def rows_after(self, position, most):
        """(position, row) of the tasks behind a position, in the order in which they were
        stored; 0: from the first."""
        loose = self._db.execute(
            f"SELECT position, {self._names} FROM tasks WHERE position > ? ORDER BY position"
            " LIMIT ?",
            (position, most),
        ).fetchall()
        with self._trusting():
            found = [(row[0], stored.row(row[1:])) for row in loose]
            for at, row in self._packed_after(position, most):
                found.append((at, row))
        return sorted(found, key=itemgetter(0))[:most]

    def _packed_after(self, position, most):
        if not self._has_frames:
            return
        pieces = self._db.execute(
            "SELECT position, process, packed FROM frames WHERE position >= (SELECT"
            " IFNULL(MAX(position), 0) FROM frames WHERE position <= ?) ORDER BY position",
            (position + 1,),
        )
        for first, process, packed in pieces:
            if most <= 0:
                return
            if self._unpacked[0] != first:
                self._unpacked = first, self._origin(process).rows(packed)
            rows = self._unpacked[1]
            for at, row in enumerate(
                rows[max(0, position + 1 - first) :][:most], max(first, position + 1)
            ):
                most -= 1
                yield at, row

    def totals(self):
        """{process: list of total.Total} of the processes that have them here."""
        found = {}
        if self._has_frames:
            with self._trusting():
                for process, text in self._db.execute(
                    "SELECT process, total FROM totals ORDER BY process, number"
                ):
                    found.setdefault(process, []).append(total.from_json(text))
        return found

    def processes(self):
        """(record, health) of each process, in order of start."""
        with self._trusting():
            rows = [
                stored.process(json.loads(r), json.loads(h))
                for r, h in self._db.execute("SELECT record, health FROM processes")
            ]
        return sorted(rows, key=lambda row: row[0].start or 0)

    def others_wrote(self):
        """Whether another connection has written since the last call."""
        before, (self._data_version,) = (
            self._data_version,
            self._db.execute("PRAGMA data_version").fetchone(),
        )
        return self._data_version != before

    def has_ended(self, process):
        """Whether all of a process is stored: its row says how it ended."""
        found = self._db.execute(
            "SELECT record FROM processes WHERE process = ?", (process,)
        ).fetchone()
        with self._trusting():
            return found is not None and json.loads(found[0]).get("state") != "running"

    def lost_of(self, process):
        """Records of a process that were overwritten before they could be stored, up to where it
        is stored."""
        packed = (
            self._db.execute(
                "SELECT IFNULL(SUM(count), 0) FROM frames WHERE process = ?", (process,)
            ).fetchone()[0]
            if self._has_frames
            else 0
        )
        return (
            self.progress_of(process)[0]
            - packed
            - self._db.execute(
                "SELECT COUNT(*) FROM tasks WHERE process = ?", (process,)
            ).fetchone()[0]
        )

    def progress_of(self, process):
        """How far a process is stored: its last seq, the number of its next sample."""
        (seq,) = self._db.execute(
            "SELECT MAX(seq) FROM tasks WHERE process = ?", (process,)
        ).fetchone()
        (packed,) = (
            self._db.execute(
                "SELECT MAX(last_seq) FROM frames WHERE process = ?", (process,)
            ).fetchone()
            if self._has_frames
            else (0,)
        )
        (index,) = self._db.execute(
            "SELECT MAX(next) FROM samples WHERE process = ?", (process,)
        ).fetchone()
        return max(seq or 0, packed or 0), index or 0

    def task_count(self):
        packed = (
            self._db.execute("SELECT IFNULL(SUM(count), 0) FROM frames").fetchone()[0]
            if self._has_frames
            else 0
        )
        return packed + self._db.execute("SELECT COUNT(*) FROM tasks").fetchone()[0]

    def merged_samples(self, process):
        """(epoch second, least rss, largest rss, peak, how many samples) of what is older than
        ten minutes, in order of time."""
        for row in self._db.execute(
            "SELECT time, rss_min_bytes, rss_max_bytes, peak_bytes, samples FROM merged WHERE"
            " process = ? ORDER BY time",
            (process,),
        ):
            with self._trusting():
                stored.numbers("a sample", row)
            yield row

    def packed_samples(self, process):
        """(epoch of its clock's 0, pieces of the board's ring as they are) in order of time: for
        readers of millions. Records of SAMPLE_BYTES."""
        for row in self._db.execute(
            "SELECT epoch, packed FROM samples WHERE process = ? AND LENGTH(packed) > 0 ORDER BY"
            " first",
            (process,),
        ):
            with self._trusting():
                stored.blob("samples", *row, SAMPLE_BYTES)
            yield row

    def samples(self, process):
        """(epoch seconds, least rss, largest rss, peak, how many samples) in order of time."""
        yield from self.merged_samples(process)
        for epoch, packed in self.packed_samples(process):
            for t, rss, peak, _ in unpack_samples(packed):
                yield epoch + t / 1e9, rss, rss, peak, 1
