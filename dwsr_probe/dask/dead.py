"""What a killed worker left: its restarted successor takes over the board and keeps the records, the killed task's among them.

A board belongs to the successor if it names the same scheduler and the same nanny on this host. It is claimed by renaming it, which succeeds for one
of several takers. Under `dwsr-probe run` the parent collects instead.
"""
import json
import os

from dwsr_probe import _core

_rows = []  # of dead workers, in the form of record.row_of
_ROWS_MOST = 100_000


def rows():
    return list(_rows)


def forget():
    _rows.clear()


def adopt(directory, facts):
    """Take over dead boards in `directory` whose worker had this one's scheduler and nanny. How many."""
    from dwsr_probe.board import list_boards
    taken = 0
    for path in list_boards(directory):
        if path != _core.board_path():
            taken += _adopt_one(path, facts)
    del _rows[:-_ROWS_MOST]
    return taken


def _adopt_one(path, facts):
    from dwsr_probe.board import Board
    from dwsr_probe.collector import read_dead_board
    try:
        board = Board(path)
        theirs = json.loads(board.facts_text() or b"{}").get("workers", [])
        if not any(same_place(worker, facts) for worker in theirs) or board.is_alive(board.live()):
            return 0
        board.close()
        claimed = f"{path}.{os.getpid()}"
        os.rename(path, claimed)
    except (_core.BoardError, OSError, ValueError, AttributeError):
        return 0
    try:
        _rows.extend(read_dead_board(claimed))
    finally:
        os.unlink(claimed)
    return 1


def same_place(worker, facts):
    """Same scheduler and nanny; without a nanny nobody restarts a worker, and its name must tell."""
    if worker.get("scheduler") != facts["scheduler"]:
        return False
    return worker.get("nanny") == facts["nanny"] if facts["nanny"] else worker.get("name") == facts["name"]
