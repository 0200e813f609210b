"""Targets of the predictor: a port that serves /dwsr/tasks, or a run directory of this machine.
Each is polled for updates: what has ended since the last one, and what runs.

Called in a thread of the service's pool. A target is not trusted: what it sends is checked and
packed as it is read, so that an update has a known size whatever the target sends.
"""

from __future__ import annotations

import marshal
import os
import sqlite3
from dataclasses import dataclass, field
from typing import Any

from dwsr_probe.export.checked import checked_record
from dwsr_probe.export.client import OverBudget, Stream, StreamError, StreamOverBudget
from dwsr_probe.live.boards import LivingBoards
from dwsr_probe.live.wire import TaskIdentity, running_dicts, task_identity
from dwsr_probe.record import from_row
from dwsr_probe.store import Store, StoreError

RECORDS_MOST, RUNNING_MOST = 250, 1_024  # of one update
UPDATE_BYTES_MOST = 1 << 20  # of its records, packed
ANSWER_TIMEOUT_S = 5.0  # for a whole answer of a port


@dataclass
class TargetUpdate:
    """What a target has sent since the update before."""

    records: list[bytes] = field(default_factory=list)  # finished, packed
    ended: set[TaskIdentity] = field(default_factory=set)  # the identities of `records`
    running: list[dict[str, Any]] = field(default_factory=list)
    lost: int = 0
    refused: int = 0
    reader_state: dict[str, Any] = field(default_factory=dict)  # of the reader after this update
    more: bool = False  # more records can be read at once


class RecordPacker:
    """Checks the records of one update, packs the finished ones, and counts. Finished records wait
    to be learned as packed bytes: they take a fifth of the memory, and their size is known."""

    def __init__(self) -> None:
        self.ended: set[TaskIdentity] = set()
        self.bytes = self.running = 0

    def pack(self, record: dict[str, Any]) -> Any:
        """A running record as a checked dict, a finished one as bytes. ValueError: not a valid
        record. OverBudget: the update is full."""
        found = checked_record(record)
        if found.get("state") == "running":
            self.running += 1
            if self.running > RUNNING_MOST:
                raise ValueError("more than are followed")
            return found
        packed = marshal.dumps(found)
        self.bytes += len(packed)
        if self.bytes > UPDATE_BYTES_MOST:
            raise OverBudget("its records are too long")
        self.ended.add(task_identity(found.get))
        return packed


unpack = marshal.loads


@dataclass(frozen=True)
class Login:
    """What the predictor sends to its targets."""

    token: str | None = None
    basic: str | None = None
    ca_file: str | None = None


class PortTarget:
    """A port that serves /dwsr/tasks: a Dask worker, `run --metrics`, an exporter."""

    def __init__(
        self, url: str, login: Login | None = None, state: dict[str, Any] | None = None
    ) -> None:
        """ValueError: not a URL, or not a state."""
        login = login or Login()
        self._stream = Stream(url, login.token, login.basic, state, login.ca_file, ANSWER_TIMEOUT_S)
        self.name = self._stream.host
        self._records_per_update = RECORDS_MOST  # as far as is known

    def poll(self, most: int = RECORDS_MOST) -> TargetUpdate:
        limit, packer = min(most, self._records_per_update), RecordPacker()
        try:
            found = self._stream.poll(limit=limit, running=True, keep=packer.pack)
        except StreamOverBudget:
            self._records_per_update = max(1, limit // 2)
            raise
        self._records_per_update = min(RECORDS_MOST, 2 * self._records_per_update)
        return TargetUpdate(
            found.records,
            packer.ended,
            found.running,
            found.lost,
            found.refused,
            self._stream.state,
            len(found.records) + found.refused >= limit,
        )


class RunTarget:
    """A run of this machine by its directory: its store, also while it is being written, and the
    boards of its living processes."""

    def __init__(self, directory: str, state: dict[str, Any] | None = None) -> None:
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
        self._boards = LivingBoards(
            lambda: [self._meta["board_dir"]], lambda board: board.run == self._meta["run"]
        )

    def poll(self, most: int = RECORDS_MOST) -> TargetUpdate:
        try:
            store = Store.open(self._directory)  # anew: polls run in several threads
            try:
                rows = store.rows_after(self._position, most)
            finally:
                store.close()
        except (StoreError, sqlite3.Error) as error:
            raise StreamError(f"{self._directory}: {error}") from error
        packer, refused, full = RecordPacker(), 0, False
        records: list[bytes] = []
        for position, row in rows:
            try:
                records.append(packer.pack(from_row(row).to_dict()))
            except ValueError as error:
                if full := isinstance(error, OverBudget) and bool(records):
                    break
                refused += 1
            self._position = position
        return TargetUpdate(
            records,
            packer.ended,
            running_dicts(self._boards.read().processes)[:RUNNING_MOST],
            0,
            refused,
            {"run": self._meta.get("run"), "position": self._position},
            full or len(rows) >= most,
        )
