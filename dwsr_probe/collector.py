"""Follow the boards of one run into its store, until their processes are dead and all is stored.

Called by `run`'s parent between events, by `report` for a run whose parent is gone, by `export`
for all boards of the machine, and by Dask workers for single boards (read_board).

One round is one transaction. A board is removed only after the transaction that stores its last
data. A board that cannot be read costs one line on stderr and nothing else.
"""

from __future__ import annotations

import errno
import os

from dwsr_probe import _core
from dwsr_probe.board import Board, explain, list_boards
from dwsr_probe.dataclass import NamedTuple
from dwsr_probe.followed import FollowedBoard
from dwsr_probe.process import process_exists
from dwsr_probe.record import to_row
from dwsr_probe.total import News

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import Any, Protocol

    from dwsr_probe.board import Frames, Live
    from dwsr_probe.followed import Sink
    from dwsr_probe.record import Row, TaskRecord

    class CollectorStore(Sink, Protocol):
        """What a collector needs of a store: dwsr_probe.store.Store, or the exporter's ring in
        memory."""

        def begin(self) -> None: ...
        def commit(self) -> None: ...
        def rollback(self) -> None: ...
        def merge_samples(self) -> None: ...
        def notice_other_writers(self) -> bool: ...
        def has_ended(self, process: str) -> bool: ...
        def lost_of(self, process: str) -> int: ...
        def progress_of(self, process: str) -> tuple[int, int]: ...


__all__ = ["Collector", "Contents", "News", "read_board", "read_board_into"]


class Exit(NamedTuple):
    """How a process ended, from wait4. signal: the one that ended it."""

    state: str
    signal: int | None


class Collector:
    """run: whose boards are followed; None: all boards of the directory.
    remove: whether to remove boards that are stored and whose processes are dead.
    earlier: boards that existed before the run began; none of them is opened.
    on_round: called with a list of News after each round.
    """

    def __init__(
        self,
        store: CollectorStore,
        run: str | None,
        directory: str,
        say: Callable[[str], object],
        on_round: Callable[[list[News]], object] | None = None,
        remove: bool = True,
        earlier: Iterable[str] = (),
    ) -> None:
        self.store, self.run, self.directory, self._say = store, run, directory, say
        self._on_round, self._remove = on_round, remove
        self._wants_totals = on_round is not None or store.wants_totals
        self._news: list[News] = []
        self._followed: dict[str, FollowedBoard] = {}  # by path
        self._ignored = set(earlier)  # paths: of other runs, unreadable, or stored already
        self._expected_exit: int | None = None  # pid of the command, until its exit is noted
        self._exits: dict[int, Exit] = {}  # by pid
        self.pids: set[int] = set()  # processes that had a board in this run
        self.replaced: set[int] = set()  # of these: now another program, without a board
        self.stored = 0  # tasks

    def expect_exit(self, pid: int) -> None:
        """The caller is the parent of this process and will call note_exit. Until then the end of
        the process is not stored, because only the parent sees how it ended."""
        self._expected_exit = pid

    def note_exit(self, pid: int, state: str, signal: int | None = None) -> None:
        self._exits[pid] = Exit(state, signal)
        self._expected_exit = None

    # -- discovery

    def _find_boards(self) -> None:
        paths = list_boards(self.directory)
        self._ignored.intersection_update(paths)
        for path in paths:
            if path in self._followed or path in self._ignored:
                continue
            try:
                board = Board(path)
            except _core.BoardError as error:
                if error.reason == "not ready" or error.detail in (errno.EMFILE, errno.ENFILE):
                    continue  # opened again in the next round
                self._ignored.add(path)
                if error.detail != errno.ENOENT:
                    self._say(explain(path, error))
                continue
            if self.run is not None and board.run != self.run:
                self._ignored.add(path)
                board.close()
                continue
            self.pids.add(board.pid)
            self.replaced.discard(board.pid)  # the program that it became has a board after all
            followed = FollowedBoard(board)
            self._read_progress(followed)
            self._followed[path] = followed

    def _read_progress(self, followed: FollowedBoard) -> None:
        """How far the store says that a board is stored."""
        process = followed.board.process
        followed.seq, followed.sample_index = self.store.progress_of(process)
        followed.records_lost = self.store.lost_of(process)
        followed.ended = self.store.has_ended(process)

    def _read_live(self) -> Iterator[tuple[FollowedBoard, Live]]:
        """The live counters of all boards that can be read."""
        for followed in self._followed.values():
            if not followed.damaged:
                try:
                    live = followed.board.live()
                except _core.BoardError:
                    continue  # the next round reports it
                yield followed, live

    def readable_boards(self) -> Iterator[tuple[Board, Live]]:
        """The followed boards that can be read, with their live counters. Their processes may have
        ended since the last round."""
        for followed, live in self._read_live():
            yield followed.board, live

    # -- rounds

    def highest_fill_level(self) -> float:
        """How much of the fullest ring has not been stored, 0 to 1. Finds new boards, and reads
        only the live counters of each."""
        self._find_boards()
        return max((one.fill_level(live) for one, live in self._read_live()), default=0.0)

    def round(self) -> int:
        """Store what is new. Returns how many of the run's processes are alive."""
        self._find_boards()
        alive, ended = 0, []
        if not self._followed:  # nothing to store: a run of an older version stays unchanged
            return 0
        self.store.begin()
        try:
            if self.store.notice_other_writers():  # another collector, perhaps of the same boards
                for followed in self._followed.values():
                    self._read_progress(followed)
            for path, followed in self._followed.items():
                if self._store_new_or_report(followed):
                    alive += 1
                else:
                    ended.append(path)
            self.store.merge_samples()
            self.store.commit()
        except BaseException:
            self.store.rollback()
            self._followed.clear()  # found again in the next round, from where the store says
            self._news.clear()
            raise
        if self._on_round is not None:
            self._on_round(self._news)
            self._news = []
        for path in ended:
            self._followed.pop(path).board.close()
            self._ignored.add(path)
            if self._remove:
                try:
                    os.unlink(path)
                except OSError:
                    pass
        return alive

    def _store_new_or_report(self, followed: FollowedBoard) -> bool:
        """The same as store_new, but a board that cannot be read is reported once. A damaged board
        stays on the list until its process ends."""
        board = followed.board
        if followed.ended:
            return False
        if not followed.damaged:
            try:
                return self.store_new(followed)
            # ValueError, TypeError: values that no probe writes, but that pass the checks of _core
            except (_core.BoardError, ValueError, TypeError) as error:
                followed.damaged = True
                damage = (
                    error if isinstance(error, _core.BoardError) else _core.BoardError("damaged")
                )
                self._say(explain(board.path, damage) + "; what was read before is kept")
        return process_exists(board.pid, board.start_ticks)

    def store_new(self, followed: FollowedBoard) -> bool:
        """Store what is new on a board. False: its process is dead and all of it is stored.
        BoardError, ValueError or TypeError if it cannot be read."""
        board = followed.board
        # Asked before the rings are read, so that nothing which is written in between is lost.
        alive = self._is_unfinished(board, board.live())
        unpack = self._wants_totals and not board.has_totals
        count, rows = followed.store_records(self.store, unpack)
        followed.store_samples(self.store)
        live = board.live()
        killed = [] if alive else followed.killed_tasks(live)
        killed_rows = [to_row(record) for record in killed]
        if killed_rows:
            self.store.add_rows(killed_rows)
        self.stored += count + len(killed)
        state = "running" if alive else self._final_state(board, live, bool(killed))
        exit_ = self._exits.get(board.pid)
        health = followed.health(live, exit_.signal if exit_ else None)
        self.store.put_process(board.process_record(live, state), health)
        self._put_totals(followed, rows + killed_rows, health, alive)
        return alive

    def _is_unfinished(self, board: Board, live: Live) -> bool:
        """Whether more may be written on the board, or more be known about the end of its process.

        A closed board waits for the end of its process, which shows how it ended, unless the
        process has made another board.
        """
        if board.is_alive(live) and (
            live["state"] == _core.BOARD_OPEN or not self._has_newer(board)
        ):
            return True
        return board.pid == self._expected_exit and not process_exists(board.pid, board.start_ticks)

    def _put_totals(
        self, followed: FollowedBoard, rows: list[Row], health: dict[str, Any], alive: bool
    ) -> None:
        """Store the totals of a process that is dead, or whose records were lost; of all processes
        if the caller or the store wants totals."""
        if alive and not followed.records_lost and not self._wants_totals:
            return
        news = followed.news(rows, health, alive)
        if news.totals is None and not self._wants_totals:
            return
        self.store.put_totals(news)
        if self._on_round is not None:
            self._news.append(news)

    def _has_newer(self, board: Board) -> bool:
        """Whether the same process has made another board since, as it does after exec."""
        return any(
            other.pid == board.pid
            and other.start_ticks == board.start_ticks
            and other.header["start_ns"] > board.header["start_ns"]
            for other in (followed.board for followed in self._followed.values())
        )

    def _final_state(self, board: Board, live: Live, left_tasks: bool) -> str | None:
        """ok, error or killed; None if nothing shows how the process ended.

        left_tasks: the process left tasks running. The exit that wait4 reported belongs to the
        last program that the process ran.
        """
        if live["state"] == _core.BOARD_CLOSED_ERROR:
            return "error"
        newer = self._has_newer(board)
        if newer or process_exists(board.pid, board.start_ticks) or board.tried_to_exec(live):
            if not newer and live["state"] == _core.BOARD_OPEN:
                self.replaced.add(board.pid)
            return "ok"
        if board.pid in self._exits:
            return self._exits[board.pid].state
        if live["state"] == _core.BOARD_CLOSED:
            return "ok"
        return "killed" if left_tasks else None


def read_board_into(sink: Sink, path: str) -> None:
    """Put the contents of one board, of a living or a dead process, into a store. The file stays.
    BoardError if it cannot be read."""
    board = Board(path)
    try:
        store: Any = sink  # without rounds, a Sink is all that the collector uses
        collector = Collector(store, board.run, os.path.dirname(path), say=lambda text: None)
        collector.store_new(FollowedBoard(board))
    finally:
        board.close()


class Contents:
    """The contents of boards in plain lists, which can be pickled. Their elements are what the
    methods of a store take as arguments."""

    wants_totals = True

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self.processes: list[tuple[Row, dict[str, Any]]] = []
        self.samples: list[tuple[str, int, bytes, float]] = []
        self.news: list[News] = []

    def add_frames(self, board: Board, found: Frames) -> None:
        self.rows += board.rows(found.packed)

    def add_rows(self, rows: Iterable[Row]) -> None:
        self.rows += rows

    def put_totals(self, news: News) -> None:
        self.news.append(news)

    def put_process(self, record: TaskRecord, health: dict[str, Any]) -> None:
        self.processes.append((to_row(record), health))

    def add_samples(self, process: str, first: int, packed: bytes, epoch: float) -> None:
        self.samples.append((process, first, packed, epoch))


def read_board(path: str) -> Contents:
    """The contents of one board, of a living or a dead process, without a store. Tasks that a dead
    process left running count as killed. BoardError if it cannot be read."""
    found = Contents()
    read_board_into(found, path)
    return found
