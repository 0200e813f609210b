"""All boards of this machine as a source: of this user, or of all users for root. Served by
`dwsr-probe export`, read by `dwsr-probe top`. Boards are left where they are.
"""

from __future__ import annotations

import glob
import os
import time
from functools import cache
from itertools import islice

from dwsr_probe.collector import Collector
from dwsr_probe.export.sources.recent import RecentRecords
from dwsr_probe.export.sources.source import Batch, Source, parse_cursor
from dwsr_probe.export.totals import Totals
from dwsr_probe.export.view import MeasuredView
from dwsr_probe.live.boards import LivingBoards
from dwsr_probe.live.process import LivingProcesses

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager
    from typing import Any

CAP_DAC_READ_SEARCH = 2


class MachineSource(Source):
    def __init__(
        self,
        directories: list[str] | None = None,
        records_most: int = 50_000,
        say: Callable[[str], None] = lambda text: None,
    ) -> None:
        """directories: None or empty for all that this user may read. records_most: kept in
        memory."""
        self._directories: Callable[[], list[str]] = (
            (lambda: directories) if directories else board_directories
        )
        self._boards = LivingBoards(self._directories)
        self._recent, self._say = RecentRecords(records_most), say
        self._collectors: dict[str, Collector] = {}  # by directory
        self._failing: set[str] = set()  # directories
        self._lock = self._recent.lock
        self._stream_id = f"{os.getpid()}-{time.time_ns()}"
        # what ended before this start: a restart of the exporter must not count it twice
        self._recent.adds_to_totals = False
        self.collect()
        self._recent.adds_to_totals, self._lost_before = True, self._recent.lost_total()

    @property
    def totals(self) -> Totals:
        return self._recent.totals

    def collect(self) -> None:
        """Reads what is new on all boards. Called a few times a second, by the thread that made
        the source."""
        there = self._directories()
        # a directory that has gone may have boards that are held open, killed tasks on them
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

    def locked(self) -> AbstractContextManager[Any]:
        return self._lock

    def view(self) -> MeasuredView:
        return MeasuredView.of(
            self.totals, self.living(), self._recent.lost_total() - self._lost_before
        )

    def living(self) -> LivingProcesses:
        return self._boards.read()

    def read(self, since: str, most: int) -> Batch:
        with self._lock:
            recent = self._recent
            position, lost_before = parse_cursor(since, self._stream_id)
            if position > recent.end:  # nobody here wrote it
                position = lost_before = 0
            oldest = recent.end - len(recent.lines)
            lost = recent.lost_total()
            overwritten = max(0, oldest - position) if position else 0
            position = max(position, oldest)
            lines = list(islice(recent.lines, position - oldest, position - oldest + most))
            end = position + len(lines)
            return Batch(
                lines,
                f"{self._stream_id}~{end}~{lost}",
                max(0, lost - lost_before) + overwritten,
                end < recent.end,
            )

    def end_states(self) -> dict[int | None, str | None]:
        """{pid: state} of the processes that ended last."""
        with self._lock:
            return dict(self._recent.end_states)

    @property
    def ended_before_start(self) -> set[str | None]:
        """Processes that had ended before this start: their boards stay until somebody collects
        them."""
        return self._recent.ended_before_start

    def worker_ports(self) -> list[dict[str, Any]]:
        return [
            worker
            for process in self.living().processes
            for worker in process.workers
            if worker.get("http")
        ]


def board_directories() -> list[str]:
    """Where boards are on this machine: this user's, or everybody's if this user may read them."""
    from dwsr_probe.settings import default_board_directory

    own = default_board_directory()
    if not _may_read_all():
        return [own]
    found = {
        own,
        *glob.glob("/dev/shm/dwsr-probe-*"),
        *glob.glob("/tmp/dwsr-probe-*"),
        *glob.glob("/run/user/*/dwsr-probe"),
    }
    return sorted(path for path in found if os.path.isdir(path) and not os.path.islink(path))


@cache
def _may_read_all() -> bool:
    """Root, or a service with CAP_DAC_READ_SEARCH (deploy/systemd)."""
    if os.geteuid() == 0:
        return True
    try:
        with open("/proc/self/status", encoding="ascii", errors="replace") as status:
            effective = next(line for line in status if line.startswith("CapEff:"))
    except (OSError, StopIteration):
        return False
    return bool(int(effective.split()[1], 16) >> CAP_DAC_READ_SEARCH & 1)
