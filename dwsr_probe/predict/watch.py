"""One look at a worker, an exporter or a run directory: what has ended since the last one, what runs, and how much room each process has.

A look is taken in a thread of the service's pool; what is in it was written by others and is checked before it is used.
"""
import math
import os
import sqlite3
from dataclasses import dataclass, field

from prometheus_client.parser import text_string_to_metric_families

from dwsr_probe.export.client import Stream, StreamError
from dwsr_probe.export.sources import LiveBoards
from dwsr_probe.export.totals import Totals
from dwsr_probe.export.view import View
from dwsr_probe.record import from_row
from dwsr_probe.store import Store, StoreError

RECORDS_MOST = 1_000  # of one look: what waits to be learned is held in memory
ASK_S = 5.0
_ROOM = {"dwsr_process_headroom_bytes": "headroom_bytes", "dwsr_process_resident_bytes": "resident_bytes"}


@dataclass
class Room:
    """What a process has, and what is left for it."""

    headroom_bytes: float | None = None
    resident_bytes: float | None = None


@dataclass
class Look:
    records: list = field(default_factory=list)
    running: list = field(default_factory=list)
    rooms: dict = field(default_factory=dict)  # pid → Room
    lost: int = 0
    state: dict = field(default_factory=dict)  # where the reader is after it
    more: bool = False  # there is more at once


@dataclass(frozen=True)
class Login:
    """How targets are asked."""

    token: str | None = None
    basic: str | None = None
    ca_file: str | None = None


class Worker:
    """A port that serves /dwsr/tasks: a Dask worker, `run --metrics`, an exporter."""

    def __init__(self, url, login=None, state=None):
        """ValueError: not a URL."""
        login = login or Login()
        self._stream = Stream(url, login.token, login.basic, state, login.ca_file, ASK_S)
        self.name = self._stream.host

    def look(self):
        found = self._stream.poll(limit=RECORDS_MOST, running=True)
        return Look(found.records, found.running, self._rooms() if found.running else {}, found.lost, self._stream.state, len(found.records) >= RECORDS_MOST)

    def _rooms(self):
        try:
            return rooms_of(self._stream.page("/metrics"))
        except StreamError:  # the stream is what matters
            return {}


def rooms_of(text):
    """{pid: Room} of a page of metrics; only our lines are parsed: Dask's are many."""
    found = {}
    try:
        for family in text_string_to_metric_families("".join(line + "\n" for line in text.splitlines() if line.startswith(tuple(_ROOM)))):
            for sample in family.samples:
                if sample.name in _ROOM and math.isfinite(sample.value) and sample.value >= 0:
                    setattr(found.setdefault(sample.labels.get("pid", ""), Room()), _ROOM[sample.name], sample.value)
    except (ValueError, KeyError, IndexError):  # of the parser, on what is no such page
        return {}
    return found


class RunDirectory:
    """A run of this machine by its directory: its store, also while it is being written, and the boards of its living processes."""

    def __init__(self, directory, state=None):
        """StoreError: there is no run."""
        self._directory, self.name = os.path.abspath(directory), os.path.basename(os.path.abspath(directory))
        store = Store.open(self._directory)
        try:
            self._meta = store.meta()
        finally:
            store.close()
        state = state or {}
        self._position = state.get("position", 0) if state.get("run") == self._meta.get("run") else 0
        self._boards = LiveBoards(lambda: [self._meta["board_dir"]], lambda board: board.run == self._meta["run"])

    def look(self):
        try:
            store = Store.open(self._directory)  # anew: looks are taken in several threads
            try:
                rows = store.rows_after(self._position, RECORDS_MOST)
            finally:
                store.close()
        except (StoreError, sqlite3.Error) as error:
            raise StreamError(f"{self._directory}: {error}") from error
        if rows:
            self._position = rows[-1][0]
        view = View(Totals(), self._boards.look()[0])
        rooms = {p.pid: Room(None, p.live["rss_bytes"]) for p in view.processes}
        for pid, left in view.headrooms():
            rooms[pid].headroom_bytes = left
        return Look([from_row(row).to_dict() for _, row in rows], [slot.record.to_dict() for slot in view.slots()], rooms, 0,
                    {"run": self._meta.get("run"), "position": self._position}, len(rows) >= RECORDS_MOST)
