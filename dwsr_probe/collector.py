"""Follow the boards of one run into its store: while they live, and for the last time when they
are dead.

Called by `run`'s parent between events, and by `report` for a run whose parent is gone. One
round is one transaction; a board is removed only after the transaction that holds the last of
it. A board that cannot be read costs one line and nothing else.
"""

import errno
import os

from dwsr_probe import _core
from dwsr_probe.board import (
    Board,
    explain,
    list_boards,
    process_limit,
)
from dwsr_probe.process import process_exists
from dwsr_probe.record import SOURCES, from_row, to_row
from dwsr_probe.sample import SAMPLE_BYTES
from dwsr_probe.total import News, count_last

_HEALTH = (
    "samples_written",
    "samples_late",
    "sampler_period_ns",
    "sampler_cpu_ns",
    "resets",
    "reset_gaps",
    "tasks_begun",
    "tasks_dropped",
    "room_for_tasks",
    "ends_unmatched",
    "ends_elsewhere",
    "ends_missing",
    "files_reopened",
    "children_unprobed",
    "dask_hooks",
    "alloc_state",
    "unowned_bytes",
    "untracked_bytes",
    "gpu_hook",
    "gpu_unfollowed",
    "gpu_ooms",
    "pinned_peak_bytes",
    "nvml_state",
)


class _Followed:
    """How far one board has been stored."""

    def __init__(self, board, seq, sample_index, records_lost=0):
        self.board = board
        self.position = 0
        self.seq, self.sample_index = seq, sample_index
        self.last_serial = None
        self.finished_seq = 0  # of the newest record on the board
        # the newest frames, whose last one its process may not have counted any more
        self.last_packed = b""
        self.records_lost, self.samples_lost = records_lost, 0
        self.damaged = False
        self.ended = False  # somebody has stored all of it


class Collector:
    """run: which one's boards, None: all. remove: boards that are stored and dead. earlier:
    boards that were there before the run began: none of them is opened.

    ended(list of News): called after each round.
    """

    def __init__(self, store, run, directory, say, ended=None, remove=True, earlier=()):
        self.store, self.run, self.directory, self._say = store, run, directory, say
        self._ended, self._remove = ended, remove
        self._counting = ended is not None or store.counts
        self._news = []
        self._followed = {}  # path -> _Followed
        self._not_ours = set(earlier)
        self._awaited = None  # pid of the command
        # pid -> (state, signal or None), from wait4: better known than by guessing
        self._exits = {}
        self.pids = set()  # that had a board in this run
        self.replaced = set()  # of these: now another program, without a board
        self.stored = 0  # tasks

    def await_exit(self, pid):
        """Its parent is here, and will note_exit: until then, a process that has ended is not
        stored as one whose end nobody saw."""
        self._awaited = pid

    def note_exit(self, pid, state, signal=None):
        self._exits[pid] = state, signal
        self._awaited = None

    # -- discovery

    def _look_for_boards(self):
        paths = list_boards(self.directory)
        self._not_ours.intersection_update(paths)
        for path in paths:
            if path in self._followed or path in self._not_ours:
                continue
            try:
                board = Board(path)
            except _core.BoardError as error:
                if error.reason == "not ready" or error.detail in (errno.EMFILE, errno.ENFILE):
                    continue  # looked at again in the next round
                self._not_ours.add(path)
                if error.detail != errno.ENOENT:
                    self._say(explain(path, error))
                continue
            if self.run is not None and board.run != self.run:
                self._not_ours.add(path)
                board.close()
                continue
            self.pids.add(board.pid)
            self.replaced.discard(board.pid)  # what it became has a board after all
            self._followed[path] = _Followed(
                board, *self.store.progress_of(board.process), self.store.lost_of(board.process)
            )
            self._followed[path].ended = self.store.has_ended(board.process)

    def living(self):
        """(board, its live counters) of those that are followed and can be read."""
        for followed in self._followed.values():
            if not followed.damaged:
                try:
                    yield followed.board, followed.board.live()
                except _core.BoardError:
                    continue  # the next round will say it

    # -- rounds

    def pressure(self):
        """How full the fullest ring is with what has not been stored, 0 to 1. Finds new boards,
        and takes one small read of each."""
        most = 0.0
        self._look_for_boards()
        for followed in self._followed.values():
            if followed.damaged:
                continue
            try:
                live = followed.board.live()
            except _core.BoardError:
                continue  # the next round will say it
            if live["records_head"] is None or live["samples_written"] is None:
                continue
            header = followed.board.header
            most = max(
                most,
                (live["records_head"] - followed.position) / header["records_bytes"],
                (live["samples_written"] - followed.sample_index) / header["sample_count"],
            )
        return most

    def round(self):
        """Store what is new. Returns how many of the run's processes are alive."""
        self._look_for_boards()
        alive, ended = 0, []
        if not self._followed:  # nothing to store: a run of an earlier version stays what it is
            return 0
        self.store.begin()
        try:
            if self.store.others_wrote():
                self._catch_up()
            for path, followed in self._followed.items():
                if self._follow(followed):
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
        if self._ended is not None:
            self._ended(self._news)
            self._news = []
        for path in ended:
            self._followed.pop(path).board.close()
            self._not_ours.add(path)
            if self._remove:
                try:
                    os.unlink(path)
                except OSError:
                    pass
        return alive

    def _catch_up(self):
        """Another collector has stored something: perhaps of the boards that are followed here."""
        for followed in self._followed.values():
            process = followed.board.process
            followed.seq, followed.sample_index = self.store.progress_of(process)
            followed.records_lost, followed.ended = (
                self.store.lost_of(process),
                self.store.has_ended(process),
            )

    def _follow(self, followed):
        """One board's news; False when it is dead and all of it is stored. A damaged one is kept
        on the list until its process ends."""
        board = followed.board
        if followed.ended:
            return False
        if not followed.damaged:
            try:
                return self.follow_once(followed)
            # the latter two: what no writer writes has passed the checks
            except (_core.BoardError, ValueError, TypeError) as error:
                followed.damaged = True
                damage = (
                    error if isinstance(error, _core.BoardError) else _core.BoardError("damaged")
                )
                self._say(explain(board.path, damage) + "; what was read before is kept")
        return process_exists(board.pid, board.start_ticks)

    def follow_once(self, followed):
        board, live = followed.board, followed.board.live()
        # Asked before the last drain: what is written in between is not lost. A closed board waits
        # for its process's end, which
        # tells how it ended, unless the process has made another one.
        alive = board.is_alive(live) and (live["state"] == 1 or not self._has_newer(board))
        alive = alive or (
            board.pid == self._awaited and not process_exists(board.pid, board.start_ticks)
        )
        rows = self._drain_records(followed)
        self._drain_samples(followed)
        live = board.live()
        killed = [] if alive else self._store_killed(followed, live)
        state = "running" if alive else self._final_state(board, live, killed)
        health = self._health(followed, live)
        self.store.put_process(board.process_record(live, state), health)
        self._tell(followed, rows + [to_row(record) for record in killed], health, alive)
        return alive

    def _tell(self, followed, rows, health, alive):
        """Sums where single records are missing, where nothing more will come, and where
        somebody asks all the time."""
        board, totals = followed.board, None
        if not alive or followed.records_lost or self._counting:
            totals = board.totals()
        if totals is None and not self._counting:
            return
        if (
            totals is not None
            and not alive
            and max((total.last_seq for total in totals), default=0) < followed.finished_seq
        ):
            count_last(totals, self._last_finished(followed))
        news = News(
            board.process, totals, rows, followed.records_lost, process_limit(health), alive
        )
        self.store.put_totals(news)
        if self._ended is not None:
            self._news.append(news)

    def _last_finished(self, followed):
        """The newest record of a board."""
        board = followed.board
        if followed.last_packed:
            return from_row(board.rows(followed.last_packed)[-1])
        *_, record = board.finished()  # it was stored by another collector
        return record

    def _has_newer(self, board):
        return any(
            f.board.pid == board.pid
            and f.board.start_ticks == board.start_ticks
            and f.board.header["start_ns"] > board.header["start_ns"]
            for f in self._followed.values()
        )

    def _drain_records(self, followed):
        """Rows of a board without totals, where somebody counts; of all others frames are stored
        as they are."""
        board, rows = followed.board, []
        while True:
            found = board.frames(followed.position, after=followed.seq)
            followed.position = found.position
            if not found.some:
                return rows
            followed.last_serial, followed.finished_seq = found.last_serial, found.last_seq
            if not found.count:
                continue
            followed.records_lost += found.last_seq - followed.seq - found.count
            followed.seq, followed.last_packed = found.last_seq, found.packed
            self.store.add_frames(board, found)
            self.stored += found.count
            if self._counting and not board.has_totals:
                rows += board.rows(found.packed)

    def _drain_samples(self, followed):
        board = followed.board
        while True:
            before = followed.sample_index
            packed, followed.sample_index = board.packed_samples(before)
            if not packed:
                return
            first = followed.sample_index - len(packed) // SAMPLE_BYTES
            followed.samples_lost += first - before
            self.store.add_samples(board.process, first, packed, board.epoch_of(0))

    def _store_killed(self, followed, live):
        """Tasks that a dead process left running. The newest record's slot may not have been
        cleared any more: not twice."""
        board, killed = followed.board, []
        end = board.epoch_of(live["heartbeat_ns"] or live["end_ns"] or board.header["start_ns"])
        for serial, _, record in sorted(
            board.running(live, everywhere=True), key=lambda found: found[0]
        ):
            if serial == followed.last_serial:
                continue
            followed.seq += 1
            record.seq, record.state, record.duration = (
                followed.seq,
                "killed",
                max(0.0, end - record.start),
            )
            killed.append(record)
        self.store.add_rows([to_row(record) for record in killed])
        self.stored += len(killed)
        return killed

    def _final_state(self, board, live, killed):
        """ok, error, killed; None where nothing tells. The exit that wait4 saw is the last
        image's."""
        if live["state"] == 3:
            return "error"
        newer = self._has_newer(board)
        if newer or process_exists(board.pid, board.start_ticks) or board.tried_to_exec(live):
            if not newer and live["state"] == 1:
                self.replaced.add(board.pid)
            return "ok"
        if board.pid in self._exits:
            return self._exits[board.pid][0]
        if live["state"] == 2:
            return "ok"
        return "killed" if killed else None

    def _health(self, followed, live):
        health = {name: live[name] for name in _HEALTH}
        board = followed.board
        health.update(
            rss_peak_source=SOURCES.get(live["rss_source"]),
            limit_bytes=board.limit_bytes,
            period_ns=board.header["period_ns"],
            signal=self._exits.get(board.pid, (None, None))[1],
            records_lost=followed.records_lost,
            samples_lost=followed.samples_lost,
            python=board.python,
            devices=board.devices(),
            **board.facts(),
        )
        return health


def read_board_into(store, path):
    """One board as it is, live or dead; the file stays. BoardError if it cannot be read."""
    board = Board(path)
    try:
        Collector(store, board.run, os.path.dirname(path), None).follow_once(_Followed(board, 0, 0))
    finally:
        board.close()


class Contents:
    """What boards hold in plain lists that can be pickled, in the order of a store's own
    arguments."""

    counts = True

    def __init__(self):
        self.rows, self.processes, self.samples, self.news = [], [], [], []

    def add_frames(self, board, found):
        self.rows += board.rows(found.packed)

    def add_rows(self, rows):
        self.rows += rows

    def put_totals(self, news):
        self.news.append(news)

    def put_process(self, record, health):
        self.processes.append((to_row(record), health))

    def add_samples(self, process, first, packed, epoch):
        self.samples.append((process, first, packed, epoch))


def read_board(path):
    """All of one board, live or dead, without a store; what a dead one left running is killed.
    BoardError if it cannot be read."""
    found = Contents()
    read_board_into(found, path)
    return found
