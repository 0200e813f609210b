"""One look at a worker, an exporter or a run directory: what has ended since the last one, what
runs, and how much room each process has.

A look is taken in a thread of the service's pool. What is in it was written by others: it is
checked and packed as it is read, so that a look has a known size whatever the target sends.
"""

import marshal
import math
import os
import sqlite3
from dataclasses import dataclass, field

from dwsr_probe.export.checked import checked
from dwsr_probe.export.client import Stream, StreamError, StreamTooLong, TooLong, samples_of
from dwsr_probe.export.sources import LiveBoards
from dwsr_probe.export.totals import Totals
from dwsr_probe.export.view import View
from dwsr_probe.record import from_row
from dwsr_probe.serve.slots import identity
from dwsr_probe.store import Store, StoreError

RECORDS_MOST, RUNNING_MOST = 250, 1_024  # of one look
LOOK_BYTES = 1 << 20  # of its records, packed
ASK_S = 5.0
_ROOM = {
    "dwsr_process_headroom_bytes": "headroom_bytes",
    "dwsr_process_resident_bytes": "resident_bytes",
}


@dataclass
class Room:
    """What a process has, and what is left for it."""

    headroom_bytes: float | None = None
    resident_bytes: float | None = None


@dataclass
class Look:
    records: list = field(default_factory=list)  # packed
    ended: set = field(default_factory=set)  # their identities
    running: list = field(default_factory=list)
    rooms: dict = field(default_factory=dict)  # pid → Room
    lost: int = 0
    refused: int = 0
    state: dict = field(default_factory=dict)  # where the reader is after it
    more: bool = False  # there is more at once


class Packing:
    """What a look keeps of each record. Finished ones wait to be learned: as bytes, which take a
    fifth of the memory and can be counted."""

    def __init__(self):
        self.ended, self.bytes, self.running = set(), 0, 0

    def keep(self, record):
        """ValueError: the record cannot be. TooLong: the look is full."""
        found = checked(record)
        if found.get("state") == "running":
            self.running += 1
            if self.running > RUNNING_MOST:
                raise ValueError("more than are followed")
            return found
        packed = marshal.dumps(found)
        self.bytes += len(packed)
        if self.bytes > LOOK_BYTES:
            raise TooLong("its records are too long")
        self.ended.add(identity(found))
        return packed


unpacked = marshal.loads


@dataclass(frozen=True)
class Login:
    """How targets are asked."""

    token: str | None = None
    basic: str | None = None
    ca_file: str | None = None


class Worker:
    """A port that serves /dwsr/tasks: a Dask worker, `run --metrics`, an exporter."""

    def __init__(self, url, login=None, state=None):
        """ValueError: not a URL, or the state is none."""
        login = login or Login()
        self._stream = Stream(url, login.token, login.basic, state, login.ca_file, ASK_S)
        self.name = self._stream.host
        self._fits = RECORDS_MOST  # records that fit into a look, as far as is known

    def look(self, most=RECORDS_MOST):
        limit, packing = min(most, self._fits), Packing()
        try:
            found = self._stream.poll(limit=limit, running=True, keep=packing.keep)
        except StreamTooLong:
            self._fits = max(1, limit // 2)
            raise
        self._fits = min(RECORDS_MOST, 2 * self._fits)
        return Look(
            found.records,
            packing.ended,
            found.running,
            self._rooms() if found.running else {},
            found.lost,
            found.refused,
            self._stream.state,
            len(found.records) + found.refused >= limit,
        )

    def _rooms(self):
        try:
            return rooms_of(self._stream.page("/metrics"))
        except StreamError:  # the stream is what matters
            return {}


def rooms_of(page):
    """{pid: Room} of a page of metrics; only our lines are parsed: Dask's are many."""
    found = {}
    try:
        for name, labels, value in samples_of(page, tuple(_ROOM)):
            if name in _ROOM and math.isfinite(value) and value >= 0:
                setattr(found.setdefault(labels.get("pid", ""), Room()), _ROOM[name], value)
    except ValueError:  # it is no such page
        return {}
    return found


class RunDirectory:
    """A run of this machine by its directory: its store, also while it is being written, and the
    boards of its living processes."""

    def __init__(self, directory, state=None):
        """StoreError: there is no run."""
        self._directory, self.name = (
            os.path.abspath(directory),
            os.path.basename(os.path.abspath(directory)),
        )
        store = Store.open(self._directory)
        try:
            self._meta = store.meta()
        finally:
            store.close()
        state = state or {}
        self._position = (
            state.get("position", 0) if state.get("run") == self._meta.get("run") else 0
        )
        self._boards = LiveBoards(
            lambda: [self._meta["board_dir"]], lambda board: board.run == self._meta["run"]
        )

    def look(self, most=RECORDS_MOST):
        try:
            store = Store.open(self._directory)  # anew: looks are taken in several threads
            try:
                rows = store.rows_after(self._position, most)
            finally:
                store.close()
        except (StoreError, sqlite3.Error) as error:
            raise StreamError(f"{self._directory}: {error}") from error
        packing, records, refused, full = Packing(), [], 0, False
        for position, row in rows:
            try:
                records.append(packing.keep(from_row(row).to_dict()))
            except ValueError as error:
                if full := isinstance(error, TooLong) and bool(records):
                    break
                refused += 1
            self._position = position
        view = View(Totals(), self._boards.look()[0])
        rooms = {p.pid: Room(None, p.live["rss_bytes"]) for p in view.processes}
        for pid, left in view.headrooms():
            rooms[pid].headroom_bytes = left
        return Look(
            records,
            packing.ended,
            [slot.record.to_dict() for slot in view.slots()],
            rooms,
            0,
            refused,
            {"run": self._meta.get("run"), "position": self._position},
            full or len(rows) >= most,
        )
