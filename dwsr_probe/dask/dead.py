"""Boards of killed workers: the restarted successor takes them over, with the killed tasks in them.

A board belongs to the successor if it names the same scheduler and the same nanny on this host.
The successor claims it by renaming it, which succeeds for one of several workers. The new name says
who has claimed it, so that the next successor finds it if this one is killed in turn. Boards are
read in a thread of their own, and removed when the worker leaves cleanly. attach calls `adopt`;
http and held read the results. Under `dwsr-probe run` the parent collects instead.
"""

from __future__ import annotations

import os
import pickle
import threading
import zlib

from dwsr_probe import _core

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Any

CLAIMED = ".claimed."
ROWS_PER_PIECE = 250
ABANDONED_S = 86_400  # a board that no worker has claimed for so long is removed


class Piece:
    """Some rows (record.row_of) of a board, packed."""

    __slots__ = ("lost", "packed")

    def __init__(self, lost: int, rows: Sequence[Any]) -> None:
        self.lost = lost  # records that were overwritten before the first row
        self.packed = zlib.compress(pickle.dumps(rows), 1)

    def rows(self) -> Any:
        return pickle.loads(zlib.decompress(self.packed))


_claimed: list[str] = []  # paths
_pieces: list[Piece] = []  # of all boards that have been read
_news: list[Any] = []  # a collector.News of each board: its totals, and the tasks not yet in them


def piece_count() -> int:
    """The number of pieces that have been read so far."""
    return len(_pieces)


def piece_rows(index: int) -> Any:
    """The rows of a piece."""
    return _pieces[index].rows()


def piece_lost(index: int) -> int:
    """The number of records that were overwritten before that piece."""
    return _pieces[index].lost


def news() -> list[Any]:
    """A collector.News of each board that has been read so far: its totals."""
    return list(_news)


def claimed() -> list[str]:
    """Paths of the boards that this process has taken over."""
    return list(_claimed)


def hand_over() -> list[str]:
    """Returns the paths of the boards, which the caller now has to remove, and drops what was read
    from them."""
    paths = claimed()
    _claimed.clear()
    _pieces.clear()
    _news.clear()
    return paths


def remove_all() -> None:
    """Remove the files of the boards, and drop what was read from them."""
    for path in hand_over():
        _remove(path)


def _read_boards(paths: list[str]) -> None:
    """In a thread, because a board takes half a second and the event loop is the worker's. Rows are
    packed, because each kill leaves thousands of records and a worker after several kills has
    little memory left. A board that cannot be read is left out."""
    from dwsr_probe.collector import read_board

    _core.adopt_handle(0)
    for path in paths:
        try:
            contents = read_board(path)
        except (_core.BoardError, OSError):
            continue
        found = contents.rows
        _news.extend(contents.news)
        lost = found[-1][0] - len(found) if found else 0
        for first in range(0, len(found), ROWS_PER_PIECE):
            _pieces.append(Piece(lost, found[first : first + ROWS_PER_PIECE]))
            lost = 0


def adopt(directory: str, facts: dict[str, Any]) -> int:
    """Take over dead boards in `directory` whose worker had the same scheduler and nanny as the one
    with these facts. Returns their number."""
    from dwsr_probe.board import list_boards

    before = len(_claimed)
    for path in [*list_boards(directory), *_orphaned_claims(directory)]:
        if path != _core.board_path():
            _claim_if_ours(path, facts)
    if len(_claimed) > before:
        threading.Thread(
            target=_read_boards, args=(_claimed[before:],), name="dwsr-dead", daemon=True
        ).start()
    return len(_claimed) - before


def _orphaned_claims(directory: str) -> Iterator[str]:
    """Paths of boards whose claimant has been killed since."""
    from dwsr_probe.process import process_exists

    for name in sorted(os.listdir(directory)):
        words = name.partition(CLAIMED)[2].split(".")
        if (
            len(words) == 2
            and all(word.isdigit() for word in words)
            and not process_exists(int(words[0]), int(words[1]))
        ):
            yield os.path.join(directory, name)


def _claim_if_ours(path: str, facts: dict[str, Any]) -> None:
    from dwsr_probe.board import Board
    from dwsr_probe.process import start_ticks

    try:
        board = Board(path)
        try:
            live = board.live()
            if board.run or (CLAIMED not in path and board.is_alive(live)):
                return
            theirs, is_old = board.facts().get("workers") or [], board.silent_s(live) > ABANDONED_S
        finally:
            board.close()
        if any(_is_predecessor(worker, facts) for worker in theirs):
            claimed = (
                f"{path.partition(CLAIMED)[0]}{CLAIMED}{os.getpid()}.{start_ticks(os.getpid())}"
            )
            os.rename(path, claimed)
            _claimed.append(claimed)
        elif is_old:
            _remove(path)
    except (_core.BoardError, OSError, AttributeError):
        return


def _is_predecessor(worker: dict[str, Any], facts: dict[str, Any]) -> bool:
    """Whether the worker with these facts succeeds `worker`: both have the same scheduler, and the
    same nanny or name. Without a nanny, a person or a pod restarts the worker, and only the name
    is the same."""
    if worker.get("scheduler") != facts["scheduler"]:
        return False
    return worker.get("nanny") == facts["nanny"] or (
        bool(worker.get("name")) and worker["name"] == facts["name"]
    )


def _remove(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:
        pass
