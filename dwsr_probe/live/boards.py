"""All living processes of some board directories, read anew each time.

Used by the exporter, `run --metrics`, `top` and the predictor's run directories.
"""

from __future__ import annotations

import os
import pwd
import threading

from dwsr_probe import _core
from dwsr_probe.board import Board, list_boards
from dwsr_probe.live.process import LivingProcesses, read_process

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

PROCESSES_MOST = 64  # those that began first


class LivingBoards:
    """The boards stay open between two reads. A board that vanishes meanwhile is left out."""

    def __init__(
        self,
        directories: Callable[[], Iterable[str]],
        wanted: Callable[[Board], bool] = lambda board: True,
    ) -> None:
        self._directories, self._wanted = directories, wanted
        self._boards: dict[str, Board | None] = {}  # by path; None: not wanted
        self._lock = threading.Lock()

    def read(self) -> LivingProcesses:
        with self._lock:
            alive, unreadable = self._find_living()
            # those that began first keep their series
            alive.sort(key=lambda pair: pair[0].header["start_ns"])
            processes, pids = [], set()
            for board, live in alive[:PROCESSES_MOST]:
                pid = str(board.pid)
                if pid in pids:  # of another container
                    pid = f"{pid}:{board.header['pid_namespace']}"
                pids.add(pid)
                try:
                    processes.append(read_process(board, live, pid, _user_of(board.path)))
                except _core.BoardError:
                    self._close(board.path)
            return LivingProcesses(processes, max(0, len(alive) - PROCESSES_MOST), unreadable)

    def _find_living(self) -> tuple[list[tuple[Board, dict[str, Any]]], int]:
        """Boards of living processes with their live counters, and how many cannot be read."""
        # by process: one that has started its probe again has two boards for a while
        newest: dict[tuple[int, int, int | None], tuple[Board, dict[str, Any]]] = {}
        unreadable = 0
        paths = [path for directory in self._directories() for path in list_boards(directory)]
        for path in self._boards.keys() - set(paths):
            self._close(path)
        for path in paths:
            try:
                if path not in self._boards:
                    opened = Board(path)
                    self._boards[path] = opened if self._wanted(opened) else None
                board = self._boards[path]
                if board and board.is_alive(live := board.live()):
                    process = board.header["pid_namespace"], board.pid, board.start_ticks
                    other = newest.get(process)
                    if other is None or board.header["start_ns"] > other[0].header["start_ns"]:
                        newest[process] = board, live
            except _core.BoardError as error:
                unreadable += error.reason not in ("not ready", "unreadable")
                self._close(path)
        return list(newest.values()), unreadable

    def _close(self, path: str) -> None:
        board = self._boards.pop(path, None)
        if board:
            board.close()


def _user_of(path: str) -> str:
    try:
        return pwd.getpwuid(os.stat(path).st_uid).pw_name
    except (OSError, KeyError):
        return ""
