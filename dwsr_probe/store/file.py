"""The file `run.sqlite`: its tables, its versions, and how it is created and opened.

Called by store/__init__.py; `doctor` asks for the kind of filesystem.

WAL is used while the file is written, except on network filesystems, where WAL is not safe.
"""

from __future__ import annotations

import os
import sqlite3

from dwsr_probe.record import DEFAULTS, FIELDS, TYPES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection

FILE = "run.sqlite"
# A field may be added to the record without a new version: runs without it are read with its
# default.
VERSION, VERSION_OLDEST = 3, 2
_BUSY_TIMEOUT_S = 30
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
_URI_SAFE = frozenset(b"/._-~0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")


class StoreError(Exception):
    """A run directory cannot be used; the text says why and what to do."""


def _column(name: str) -> str:
    return f"{name} {({int: 'INTEGER', float: 'REAL'}).get(TYPES[name], 'TEXT')}"


def _default(name: str) -> str:
    """The default of a field as an SQL literal."""
    value = DEFAULTS[name]
    return "NULL" if value is None else repr(value)


_PACKED_TABLES = """
CREATE TABLE origins (process TEXT PRIMARY KEY, origin TEXT, layout BLOB);
CREATE TABLE texts (process TEXT, number INTEGER, text TEXT,
    PRIMARY KEY (process, number)) WITHOUT ROWID;
CREATE TABLE frames (position INTEGER PRIMARY KEY, count INTEGER, process TEXT,
    first_seq INTEGER, last_seq INTEGER, packed BLOB);
CREATE INDEX frames_of_process ON frames (process, first_seq);
CREATE TABLE totals (process TEXT, number INTEGER, total TEXT,
    PRIMARY KEY (process, number)) WITHOUT ROWID;
"""
_TABLES = (
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
    + _PACKED_TABLES
)


def filesystem_of(path: str, mountinfo: str = "/proc/self/mountinfo") -> str:
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


def is_network(filesystem: str) -> bool:
    return filesystem in _NETWORK or filesystem.startswith("fuse")


def create(directory: str) -> sqlite3.Connection:
    """Create the directory, if it is missing, and an empty run in it."""
    path = os.path.join(directory, FILE)
    try:
        os.makedirs(directory, mode=0o700, exist_ok=True)
        # Created before SQLite opens it: SQLite's journals get the mode of the file.
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        db = sqlite3.connect(path, isolation_level=None, timeout=_BUSY_TIMEOUT_S)
        if not is_network(filesystem_of(directory)):
            db.execute("PRAGMA journal_mode=WAL")
        db.execute("PRAGMA synchronous=NORMAL")
        db.executescript(f"BEGIN; {_TABLES} PRAGMA user_version={VERSION}; COMMIT;")
    except (OSError, sqlite3.Error) as error:
        raise StoreError(
            f"cannot write the run directory {directory}: {error}; choose another with -o DIR"
        ) from error
    return db


def create_in_memory() -> sqlite3.Connection:
    db = sqlite3.connect(":memory:", isolation_level=None)
    db.executescript(_TABLES)
    return db


def open_existing(directory: str, writable: bool) -> sqlite3.Connection:
    path = os.path.join(directory, FILE)
    if not os.path.isfile(path):
        raise StoreError(
            f"{directory} holds no run ({FILE} is missing); name a directory that `dwsr-probe"
            " run` wrote"
        )
    # A writable file is opened for writing, because only then can SQLite recover what a killed
    # collector left in the journal. Any other file is read as it is: a finished run has no journal.
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
            timeout=_BUSY_TIMEOUT_S,
        )
        version = db.execute("PRAGMA user_version").fetchone()[0]
    except sqlite3.Error as error:
        raise StoreError(
            f"cannot read {path}: {error}; it is damaged or not a run of dwsr-probe"
        ) from error
    if version == 0:  # SQLite's default, which an empty file has too
        raise StoreError(f"{path} is empty, or not a run of dwsr-probe")
    if not VERSION_OLDEST <= version <= VERSION:
        raise StoreError(
            f"{path} has version {version}, this dwsr-probe knows versions {VERSION_OLDEST} to"
            f" {VERSION}; read it with the one that wrote it"
        )
    if not writable:
        db.execute("PRAGMA query_only=1")
    return db


def _quoted(path: str) -> str:
    """A path for SQLite's URIs. Importing urllib for this would cost a run several
    milliseconds."""
    return "".join(chr(byte) if byte in _URI_SAFE else f"%{byte:02X}" for byte in os.fsencode(path))


def missing_fields(db: sqlite3.Connection) -> list[str]:
    """Fields of the record that the table of an older run does not have."""
    present = {name for _, name, *_ in db.execute("PRAGMA table_info(tasks)")}
    return [name for name in FIELDS if name not in present]


def has_frames(db: sqlite3.Connection) -> bool:
    """False for a run of version 2, which has rows only."""
    return bool(db.execute("SELECT 1 FROM sqlite_master WHERE name = 'frames'").fetchone())


def columns_of(missing: Collection[str]) -> str:
    """The columns of a SELECT in the order of FIELDS; a missing field has its default."""
    return ", ".join(f"{_default(name)} AS {name}" if name in missing else name for name in FIELDS)


def upgrade(db: sqlite3.Connection, missing: Collection[str]) -> None:
    """Give a run of an older version today's columns and tables, within the transaction."""
    for name in missing:
        db.execute(f"ALTER TABLE tasks ADD COLUMN {_column(name)} DEFAULT {_default(name)}")
    if not has_frames(db):
        for statement in filter(str.strip, _PACKED_TABLES.split(";")):
            db.execute(statement)
        db.execute(f"PRAGMA user_version={VERSION}")
