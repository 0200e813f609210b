"""What a killed worker left: its restarted successor takes over the board, the killed task's
record in it.

A board belongs to the successor if it names the same scheduler and the same nanny on this host.
It is claimed by renaming it, which succeeds for one of several takers; the new name says whose
it is now, so that the next successor finds it, too, if this one is killed in turn. Read when it
is asked for, removed when the worker leaves cleanly. Under `dwsr-probe run` the parent collects
instead.
"""

import os
import pickle
import threading
import zlib

from dwsr_probe import _core

CLAIMED = ".claimed."
PIECE = 250
_OLD_S = 86_400
_claimed, _pieces = [], []  # paths; (records lost before it, rows packed) of all of them
_news = []  # a collector.News of each board: its totals, and the tasks that these do not count


def count():
    """How many pieces of them have been read so far: rows in the form of record.row_of, some
    hundred each."""
    return len(_pieces)


def rows_of(index):
    return pickle.loads(zlib.decompress(_pieces[index][1]))


def lost_of(index):
    """Records that were overwritten before that piece."""
    return _pieces[index][0]


def news():
    """What each board has counted (collector.News), as far as they have been read."""
    return list(_news)


def claimed():
    """Paths of the boards taken over."""
    return list(_claimed)


def release():
    """The same, and they are no longer ours."""
    paths = claimed()
    _claimed.clear()
    _pieces.clear()
    _news.clear()
    return paths


def forget():
    for path in release():
        _remove(path)


def _read(paths):
    """In a thread: a board takes half a second, and the event loop is the worker's. Packed: each
    kill leaves thousands of records, and who comes after several of them has little memory to
    spare. One that cannot be read is left out."""
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
        for first in range(0, len(found), PIECE):
            _pieces.append((lost, zlib.compress(pickle.dumps(found[first : first + PIECE]), 1)))
            lost = 0


def adopt(directory, facts):
    """Take over dead boards in `directory` whose worker had this one's scheduler and nanny. How
    many."""
    from dwsr_probe.board import list_boards

    before = len(_claimed)
    for path in [*list_boards(directory), *_left_claimed(directory)]:
        if path != _core.board_path():
            _look_at(path, facts)
    if len(_claimed) > before:
        threading.Thread(
            target=_read, args=(_claimed[before:],), name="dwsr-dead", daemon=True
        ).start()
    return len(_claimed) - before


def _left_claimed(directory):
    """Claimed by a worker that has been killed since."""
    from dwsr_probe.process import process_exists

    for name in sorted(os.listdir(directory)):
        words = name.partition(CLAIMED)[2].split(".")
        if (
            len(words) == 2
            and all(word.isdigit() for word in words)
            and not process_exists(int(words[0]), int(words[1]))
        ):
            yield os.path.join(directory, name)


def _look_at(path, facts):
    from dwsr_probe.board import Board
    from dwsr_probe.process import start_ticks

    try:
        board = Board(path)
        try:
            live = board.live()
            if board.run or (CLAIMED not in path and board.is_alive(live)):
                return
            theirs, is_old = board.facts().get("workers") or [], board.silent_s(live) > _OLD_S
        finally:
            board.close()
        if any(_same_place(worker, facts) for worker in theirs):
            claimed = (
                f"{path.partition(CLAIMED)[0]}{CLAIMED}{os.getpid()}.{start_ticks(os.getpid())}"
            )
            os.rename(path, claimed)
            _claimed.append(claimed)
        elif is_old:  # nobody has come for it
            _remove(path)
    except (_core.BoardError, OSError, AttributeError):
        return


def _same_place(worker, facts):
    """Same scheduler and nanny; without a nanny nobody restarts a worker but a person or a pod,
    and its name must tell."""
    if worker.get("scheduler") != facts["scheduler"]:
        return False
    return worker.get("nanny") == facts["nanny"] or (
        bool(worker.get("name")) and worker["name"] == facts["name"]
    )


def _remove(path):
    try:
        os.unlink(path)
    except OSError:
        pass
