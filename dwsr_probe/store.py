"""The run directory: one SQLite file, `run.sqlite`, with a run's records, processes and samples.

Written by the collector alone; read by every report. WAL while it is written, except on network filesystems, where WAL is not safe.
"""
import json
import os
import sqlite3
import time

from dwsr_probe.record import FIELDS, TaskRecord, from_row, to_row

FILE = "run.sqlite"
VERSION = 1
MERGE_AFTER_S = 600.0
_NETWORK = {"nfs", "nfs4", "cifs", "smb3", "smbfs", "lustre", "gpfs", "beegfs", "ceph", "9p", "afs", "glusterfs", "pvfs2", "orangefs", "panfs"}
_INTEGERS = {"seq", "pid", "thread", "inputs_omitted", "overlap"}
_REALS = {"start", "duration"}


class StoreError(Exception):
    """A run directory cannot be used; the text says why and what to do."""


def _column(name):
    if name in _INTEGERS or name.endswith("_bytes") or name == "alloc_count":
        return f"{name} INTEGER"
    return f"{name} {'REAL' if name in _REALS else 'TEXT'}"


_SCHEMA = f"""
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT);
CREATE TABLE tasks ({", ".join(map(_column, FIELDS))}, PRIMARY KEY (process, seq)) WITHOUT ROWID;
CREATE TABLE processes (process TEXT PRIMARY KEY, record TEXT, health TEXT);
CREATE TABLE samples (process TEXT, time REAL, rss_min_bytes INTEGER, rss_max_bytes INTEGER, peak_bytes INTEGER, samples INTEGER);
CREATE INDEX samples_time ON samples (process, time);
"""
_INSERT_TASK = f"INSERT OR IGNORE INTO tasks VALUES ({', '.join('?' * len(FIELDS))})"


def filesystem_of(path, mountinfo="/proc/self/mountinfo"):
    """Type of the filesystem that holds `path` ("ext4", "nfs4", ...)."""
    path, best, kind = os.path.realpath(path), "", ""
    try:
        with open(mountinfo, encoding="utf-8", errors="surrogateescape") as lines:
            for line in lines:
                before, _, after = line.partition(" - ")
                point = before.split()[4].replace("\\040", " ")
                if (path == point or path.startswith(point.rstrip("/") + "/")) and len(point) >= len(best):
                    best, kind = point, after.split()[0]
    except (OSError, IndexError):
        pass
    return kind


def is_network(kind):
    return kind in _NETWORK or kind.startswith("fuse")


class Store:
    """One run. `Store.create` for the collector, `Store.open` for readers."""

    def __init__(self, directory, connection):
        self.directory = directory
        self._db = connection
        self._merge_due = 0.0

    @classmethod
    def create(cls, directory):
        try:
            os.makedirs(directory, exist_ok=True)
            db = sqlite3.connect(os.path.join(directory, FILE), isolation_level=None)
            if not is_network(filesystem_of(directory)):
                db.execute("PRAGMA journal_mode=WAL")
            db.execute("PRAGMA synchronous=NORMAL")
            db.executescript(f"BEGIN; {_SCHEMA} PRAGMA user_version={VERSION}; COMMIT;")
        except (OSError, sqlite3.Error) as error:
            raise StoreError(f"cannot write the run directory {directory}: {error}; choose another with -o DIR") from error
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
            raise StoreError(f"{directory} holds no run ({FILE} is missing); name a directory that `dwsr-probe run` wrote")
        try:
            # A plain read-only open cannot recover a WAL that a killed collector left; a read-write one can.
            mode = "rw" if os.access(path, os.W_OK) and os.access(directory, os.W_OK) else "ro"
            db = sqlite3.connect(f"file:{_quote(os.path.abspath(path))}?mode={mode}", uri=True, isolation_level=None)
            version = db.execute("PRAGMA user_version").fetchone()[0]
        except sqlite3.Error as error:
            raise StoreError(f"cannot read {path}: {error}; it is damaged or not a run of dwsr-probe") from error
        if version != VERSION:
            raise StoreError(f"{path} has version {version}, this dwsr-probe knows version {VERSION}; read it with the one that wrote it")
        if not writable:
            db.execute("PRAGMA query_only=1")
        return cls(directory, db)

    def close(self):
        self._db.close()

    # -- writing: everything of one round in one transaction, so that a killed collector leaves whole rounds

    def begin(self):
        self._db.execute("BEGIN")

    def commit(self):
        self._db.execute("COMMIT")

    def rollback(self):
        if self._db.in_transaction:
            self._db.execute("ROLLBACK")

    def set_meta(self, **values):
        self._db.executemany("INSERT OR REPLACE INTO meta VALUES (?, ?)", [(k, json.dumps(v)) for k, v in values.items()])

    def add_rows(self, rows):
        """Tasks in the form of record.row_of."""
        self._db.executemany(_INSERT_TASK, rows)

    def add_tasks(self, records):
        self.add_rows(map(to_row, records))

    def put_process(self, record, health):
        self._db.execute("INSERT OR REPLACE INTO processes VALUES (?, ?, ?)", (record.process, record.to_json(), json.dumps(health)))

    def add_samples(self, process, samples):
        """samples: (epoch seconds, rss, peak)."""
        self._db.executemany("INSERT INTO samples VALUES (?, ?, ?, ?, ?, 1)", [(process, t, rss, rss, peak) for t, rss, peak in samples])

    def merge_samples(self, now=None):
        """Samples older than ten minutes become one row a second, with their least and largest values. Looks once a minute."""
        now = time.time() if now is None else now
        if now < self._merge_due:
            return
        self._merge_due = now + 60.0
        old = (now - MERGE_AFTER_S,)
        raw = "samples = 1 AND time < ?"
        self._db.execute("CREATE TEMP TABLE IF NOT EXISTS merged AS SELECT * FROM samples LIMIT 0")
        self._db.execute(
            "INSERT INTO merged SELECT process, CAST(time AS INTEGER), MIN(rss_min_bytes), MAX(rss_max_bytes), MAX(peak_bytes),"
            f" COUNT(*) FROM samples WHERE {raw} GROUP BY process, CAST(time AS INTEGER) HAVING COUNT(*) > 1", old)
        self._db.execute(
            f"DELETE FROM samples WHERE {raw} AND EXISTS (SELECT 1 FROM merged WHERE merged.process = samples.process"
            " AND merged.time = CAST(samples.time AS INTEGER))", old)
        self._db.execute("INSERT INTO samples SELECT * FROM merged")
        self._db.execute("DELETE FROM merged")

    # -- reading

    def meta(self):
        return {k: json.loads(v) for k, v in self._db.execute("SELECT key, value FROM meta")}

    def tasks(self):
        """Records in order of end within each process."""
        for row in self._db.execute(f"SELECT {', '.join(FIELDS)} FROM tasks ORDER BY process, seq"):
            yield from_row(row)

    def processes(self):
        """(record, health) of each process, in order of start."""
        rows = [(TaskRecord(**json.loads(r)), json.loads(h)) for r, h in self._db.execute("SELECT record, health FROM processes")]
        return sorted(rows, key=lambda row: row[0].start or 0)

    def progress_of(self, process):
        """How far a process's tasks and samples are stored: last seq, time of the last sample."""
        seq = self._db.execute("SELECT MAX(seq) FROM tasks WHERE process = ?", (process,)).fetchone()[0]
        return seq or 0, self._db.execute("SELECT MAX(time) FROM samples WHERE process = ?", (process,)).fetchone()[0] or 0.0

    def samples(self, process):
        return self._db.execute(
            "SELECT time, rss_min_bytes, rss_max_bytes, peak_bytes, samples FROM samples WHERE process = ? ORDER BY time", (process,))


def _quote(path):
    from urllib.parse import quote
    return quote(path)
