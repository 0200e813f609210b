"""What stands behind a port: this process, a run, or all boards of this machine. Each gives a
view for the metrics and lines for the stream.

A cursor of the stream is a text: where it came from, a position there, and how many records had
been lost by then. A cursor from elsewhere (before a restart) begins anew.
"""

import glob
import os
import pwd
import threading
import time
from collections import deque
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cache
from itertools import islice

from dwsr_probe import _core
from dwsr_probe.board import Board, list_boards
from dwsr_probe.collector import Collector
from dwsr_probe.export.metrics import METRICS
from dwsr_probe.export.totals import HISTOGRAMS_MOST, Totals
from dwsr_probe.export.view import NAMES_SERIES_MOST, PROCESSES_MOST, View, look_at
from dwsr_probe.record import FIELDS, json_of_row, row_of

CAP_DAC_READ_SEARCH = 2
_PROCESS, _SEQ = FIELDS.index("process"), FIELDS.index("seq")
ENDED_MOST = 256  # processes
_DIGITS_MOST = 18  # below 2**63: SQLite and the board's reader take no more


@dataclass
class Batch:
    lines: list
    cursor: str
    lost: int  # since the cursor that was given
    more: bool  # there is more to read at once


def _cursor(text, origin, count=2):
    """The numbers of a cursor from this origin; zeros of any other, and of one that nobody here
    wrote."""
    found, *numbers = text.rsplit("~", count)
    if (
        found == origin
        and len(numbers) == count
        and all(n.isascii() and n.isdecimal() and len(n) <= _DIGITS_MOST for n in numbers)
    ):
        return tuple(map(int, numbers))
    return (0,) * count


class Source:
    """own_port: series are not counted so strictly as on a Dask worker's. locked(): while a
    view's totals are read."""

    own_port = True
    metrics = METRICS

    def close(self): ...

    def workers(self):
        """(process, worker) of Dask workers with ports of their own, for service discovery."""
        return []


class LiveBoards:
    """Boards of living processes in some directories, looked at anew each time; one that
    vanishes meanwhile is left out."""

    def __init__(self, directories, wanted=lambda board: True):
        self._directories, self._wanted = directories, wanted
        self._open = {}  # path → Board, or None: not wanted
        self._lock = threading.Lock()

    def look(self):
        """View's processes, how many more there are, how many boards cannot be read."""
        with self._lock:
            return self._look()

    def _look(self):
        # by process: one that has started its probe again has two boards for a while
        newest, unreadable = {}, 0
        paths = [path for directory in self._directories() for path in list_boards(directory)]
        for path in self._open.keys() - set(paths):
            self._close(path)
        for path in paths:
            try:
                if path not in self._open:
                    board = Board(path)
                    self._open[path] = board if self._wanted(board) else None
                board = self._open[path]
                if board and board.is_alive(live := board.live()):
                    same = newest.setdefault(
                        (board.header["pid_namespace"], board.pid, board.start_ticks), (board, live)
                    )
                    if board.header["start_ns"] > same[0].header["start_ns"]:
                        newest[board.header["pid_namespace"], board.pid, board.start_ticks] = (
                            board,
                            live,
                        )
            except _core.BoardError as error:
                unreadable += error.reason not in ("not ready", "unreadable")
                self._close(path)
        # those that began first keep their series
        boards = sorted(newest.values(), key=lambda pair: pair[0].header["start_ns"])
        found, names = [], set()
        for board, live in boards[:PROCESSES_MOST]:
            name = str(board.pid)
            if name in names:  # of another container
                name = f"{name}:{board.header['pid_namespace']}"
            names.add(name)
            try:
                found.append(look_at(board, live, name, _owner(board.path)))
            except _core.BoardError:
                self._close(board.path)
        return found, max(0, len(boards) - PROCESSES_MOST), unreadable

    def _close(self, path):
        board = self._open.pop(path, None)
        if board:
            board.close()

    def running(self):
        """JSON lines of the tasks that run now."""
        processes, _, _ = self.look()
        return [slot.record.to_json() for process in processes for slot in process.slots]


def _with_lost(looked, lost):
    processes, dropped, unreadable = looked
    return processes, lost, dropped, unreadable


def _owner(path):
    try:
        return pwd.getpwuid(os.stat(path).st_uid).pw_name
    except (OSError, KeyError):
        return ""


class OwnProcess(Source):
    """(a) This process, on its Dask worker's port. Its board counts what ends, and so did those
    of killed predecessors: a view is made on the worker's event loop, and reads no single
    records."""

    own_port = False
    locked = staticmethod(nullcontext)

    def __init__(self, dead=None):
        """dead: what killed predecessors left (dwsr_probe.dask.dead): `news`, and in pieces
        `count`, `rows_of`, `lost_of`."""
        self.totals = Totals(series_most=NAMES_SERIES_MOST)
        self._board = self._path = None
        # _dead_added: boards in the totals
        self._dead, self._dead_added, self._dead_read = dead, 0, (None, [])

    def _current(self):
        """The board, anew after a restart of the probe; None without one."""
        path = _core.board_path()
        if path != self._path:
            self._count()  # what ended since the last look
            self._board = Board(path) if path else None
            self._path = path
        return self._board

    def _count(self):
        if self._board is not None:
            try:
                self.totals.add_totals(self._board.process, self._board.totals())
            except _core.BoardError:  # somebody wrote into it
                pass

    def _dead_count(self):
        return 0 if self._dead is None else self._dead.count()

    def _dead_rows(self, index):
        """Of one piece; the last one is kept, for readers of less."""
        if self._dead_read[0] != index:
            self._dead_read = index, self._dead.rows_of(index)
        return self._dead_read[1]

    def view(self):
        for news in self._dead.news()[self._dead_added :] if self._dead else ():
            self.totals.add_news(news)
            self._dead_added += 1
        board = self._current()
        if board is None:
            return View(self.totals)
        self._count()
        return View(self.totals, [look_at(board, board.live())], own_port=False)

    def read(self, since, most):
        board = self._current()
        if board is None:
            return Batch([], since, 0, False)
        try:
            return self._read(board, most, *_cursor(since, board.process, 4))
        except _core.BoardError:  # a position where no record begins: not a cursor of ours
            return self._read(board, most, 0, 0, 0, 0)

    def _read(self, board, most, dead, dead_row, position, seq):
        """The boards taken over first. What comes later there is read then: a cursor says how
        far it is in both."""
        rows, lost = [], 0
        while len(rows) < most and dead < self._dead_count():
            piece = self._dead_rows(dead)
            if piece and dead_row == 0:
                lost += self._dead.lost_of(dead)
            found = piece[dead_row : dead_row + most - len(rows)]
            rows += found
            dead_row += len(found)
            if dead_row >= len(piece):
                dead, dead_row = dead + 1, 0
        while len(rows) < most:
            raws, position = board.records(position, most - len(rows))
            if not raws:
                break
            lost -= seq + len(raws)
            rows += [row_of(board, raw) for raw in raws]
            seq = rows[-1][0]
            lost += seq
        return Batch(
            [json_of_row(row) for row in rows],
            f"{board.process}~{dead}~{dead_row}~{position}~{seq}",
            lost,
            len(rows) >= most,
        )

    def running(self):
        board = self._current()
        return [] if board is None else [record.to_json() for _, _, record in board.running()]


class Run(Source):
    """(b) A run, served by its parent: totals from its collector, the stream from its store,
    gauges from the living boards."""

    def __init__(self, store_at, run, directory):
        """store_at: opens the store for reading, in the server's thread."""
        self.totals = Totals(histograms_most=HISTOGRAMS_MOST)
        self._store_at, self._store, self._run = store_at, None, run
        self._boards = LiveBoards(lambda: [directory], lambda board: board.run == run)
        self._lock, self._lost = threading.RLock(), {}  # a view is made while its reader holds it

    def ended(self, news):
        """Called by the collector after each round, with a collector.News of each process."""
        with self._lock:
            for one in news:
                self.totals.add_news(one)
                self._lost[one.process] = one.records_lost

    def view(self):
        return View(self.totals, *_with_lost(self._boards.look(), sum(self._lost.values())))

    def locked(self):
        return self._lock

    def close(self):
        if self._store is not None:
            self._store.close()

    def read(self, since, most):
        if self._store is None:
            self._store = self._store_at()
        position, lost_before = _cursor(since, self._run)
        with self._lock:
            lost = sum(self._lost.values())
        found = self._store.rows_after(position, most)
        if found:
            position = found[-1][0]
        return Batch(
            [json_of_row(row) for _, row in found],
            f"{self._run}~{position}~{lost}",
            max(0, lost - lost_before),
            len(found) == most,
        )

    def running(self):
        return self._boards.running()


class Recent:
    """A store in memory for the collector: the newest records as lines, by position, and totals.
    Samples are not kept.

    A round is there as a whole or not at all, as in the run store: one that fails is read again,
    and must not count twice. Readers hold `lock`.
    """

    counts = True

    def __init__(self, most):
        self.totals, self.lock = Totals(histograms_most=HISTOGRAMS_MOST), threading.RLock()
        self.lines, self.end = deque(maxlen=most), 0
        # records, by living process, and of all that have ended
        self.lost, self._lost_ended = {}, 0
        self.counting = True  # into the totals
        self.ended = {}  # pid → state, of the processes that ended last; None: it did not say
        self.ended_before = set()  # processes that had ended before we came
        self._seqs = {}  # how far each living process is told
        self.begin()

    def merge_samples(self): ...
    def add_samples(self, process, first, packed, epoch): ...

    def begin(self):
        self._lines, self._processes, self._news, self._told = [], [], [], {}  # of this round

    rollback = begin

    def add_frames(self, board, found):
        self._add(board.rows(found.packed))

    def add_rows(self, rows):
        self._add(rows)

    def _add(self, rows):
        self._lines += map(json_of_row, rows)
        self._told.update((row[_PROCESS], row[_SEQ]) for row in rows[-1:])

    def put_totals(self, news):
        self._news.append(news)

    def put_process(self, record, health):
        self._processes.append((record, health.get("records_lost") or 0))

    def commit(self):
        with self.lock:
            self.lines.extend(self._lines)
            self.end += len(self._lines)
            self._seqs.update(self._told)
            for one in self._news:
                if self.counting:
                    self.totals.add_news(one)
                elif one.alive:
                    self.totals.pass_over(one.process, one.totals)
            for record, lost in self._processes:
                self.lost[record.process] = max(lost, self.lost.get(record.process, 0))
                if record.state != "running":
                    self._lost_ended += self.lost.pop(record.process)
                    self._seqs.pop(record.process, None)
                    self.ended.pop(record.pid, None)  # the newest stands last
                    self.ended[record.pid] = record.state
                    if not self.counting:
                        self.ended_before.add(record.process)
            while len(self.ended) > ENDED_MOST:
                self.ended.pop(next(iter(self.ended)))
        self.begin()

    def all_lost(self):
        return self._lost_ended + sum(self.lost.values())

    def others_wrote(self):
        return False

    def has_ended(self, process):
        return False

    def lost_of(self, process):
        return self.lost.get(process, 0)

    def progress_of(self, process):
        return self._seqs.get(process, 0), 0


class Machine(Source):
    """(c) All boards of this machine: of this user, or of all users for root. Boards are left
    where they are."""

    def __init__(self, directories=None, keep=50_000, say=lambda text: None):
        self._directories = (lambda: directories) if directories else board_directories
        self._boards = LiveBoards(self._directories)
        self._recent, self._say = Recent(keep), say
        self._collectors, self._failing = {}, set()  # by directory
        self._lock = self._recent.lock
        self._origin = f"{os.getpid()}-{time.time_ns()}"
        # what ended before we came: a restart of ours must not count it twice
        self._recent.counting = False
        self.follow()
        self._recent.counting, self._lost_before = True, self._recent.all_lost()

    @property
    def totals(self):
        return self._recent.totals

    def follow(self):
        """What is new on all boards; a few times a second."""
        there = self._directories()
        # one that is gone has boards that we hold open, killed tasks on them
        for directory in [*there, *(self._collectors.keys() - set(there))]:
            if directory not in self._collectors:
                self._collectors[directory] = Collector(
                    self._recent, None, directory, self._say, remove=False
                )
            try:
                alive = self._collectors[directory].round()
                self._failing.discard(directory)
                if not alive and directory not in there:
                    del self._collectors[directory]
            # boards are their users' own: one of them must not stop the others
            except Exception as error:
                if directory not in self._failing:
                    self._say(f"cannot follow the boards in {directory}: {error!r}; trying again")
                self._failing.add(directory)

    def view(self):
        return View(
            self.totals,
            *_with_lost(self._boards.look(), self._recent.all_lost() - self._lost_before),
        )

    def locked(self):
        return self._lock

    def read(self, since, most):
        with self._lock:
            recent = self._recent
            position, lost_before = _cursor(since, self._origin)
            if position > recent.end:  # nobody here wrote it
                position = lost_before = 0
            oldest = recent.end - len(recent.lines)
            lost = recent.all_lost()
            overwritten = max(0, oldest - position) if position else 0
            position = max(position, oldest)
            lines = list(islice(recent.lines, position - oldest, position - oldest + most))
            end = position + len(lines)
            return Batch(
                lines,
                f"{self._origin}~{end}~{lost}",
                max(0, lost - lost_before) + overwritten,
                end < recent.end,
            )

    def running(self):
        return self._boards.running()

    def ended(self):
        """{pid: state} of the processes that ended last."""
        with self._lock:
            return dict(self._recent.ended)

    @property
    def ended_before(self):
        """Processes that had ended before we came: their boards lie there until somebody
        collects them."""
        return self._recent.ended_before

    def workers(self):
        processes, _, _ = self._boards.look()
        return [
            (process, worker)
            for process in processes
            for worker in process.workers
            if worker.get("http")
        ]


def board_directories():
    """Where boards are on this machine: of this user; of everybody for who may read them all."""
    from dwsr_probe.settings import default_board_directory

    own = default_board_directory()
    if not _reads_everything():
        return [own]
    found = {
        own,
        *glob.glob("/dev/shm/dwsr-probe-*"),
        *glob.glob("/tmp/dwsr-probe-*"),
        *glob.glob("/run/user/*/dwsr-probe"),
    }
    return sorted(path for path in found if os.path.isdir(path) and not os.path.islink(path))


@cache
def _reads_everything():
    """Root, or a service with CAP_DAC_READ_SEARCH (deploy/systemd)."""
    if os.geteuid() == 0:
        return True
    try:
        with open("/proc/self/status", encoding="ascii", errors="replace") as status:
            effective = next(line for line in status if line.startswith("CapEff:"))
    except (OSError, StopIteration):
        return False
    return bool(int(effective.split()[1], 16) >> CAP_DAC_READ_SEARCH & 1)
