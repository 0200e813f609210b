"""Which run is meant: by directory, by board file, or the last one of this user."""
import os
import sqlite3

from dwsr_probe import _core
from dwsr_probe.board import Board, explain, list_boards, process_exists
from dwsr_probe.collector import Collector, read_board_into
from dwsr_probe.say import remove_marks
from dwsr_probe.settings import Settings
from dwsr_probe.store import FILE, Store, StoreError


def _pointer():
    """Where the last run is noted; OSError where there is no home to note it in."""
    state = os.environ.get("XDG_STATE_HOME") or os.path.join(os.path.expanduser("~"), ".local", "state")
    if not os.path.isabs(state):
        raise OSError("no home directory")
    return os.path.join(state, "dwsr-probe", "last-run")


def remember(directory):
    """Note the last run; a convenience that may fail."""
    try:
        path = _pointer()
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8", errors="surrogateescape") as f:
            f.write(os.path.abspath(directory))
    except OSError:
        pass


def last_run():
    """The directory of the last run: the noted one, else the newest below ./dwsr-runs."""
    try:
        with open(_pointer(), encoding="utf-8", errors="surrogateescape") as f:
            noted = f.read()
        if os.path.isfile(os.path.join(noted, FILE)):
            return noted
    except OSError:
        pass
    try:
        with os.scandir("dwsr-runs") as entries:
            found = [e.path for e in entries if os.path.isfile(os.path.join(e.path, FILE))]
    except OSError:
        found = []
    if not found:
        raise StoreError("there is no run yet; make one with: dwsr-probe run python job.py")
    return max(found, key=lambda path: os.stat(os.path.join(path, FILE)).st_mtime)


def sweep(directory, older_s=7 * 86_400):
    """Remove boards whose processes and collectors have been gone for so long: they are memory. How many."""
    removed = 0
    for path in list_boards(directory):
        try:
            board = Board(path)
            try:
                live = board.live()
                if board.silent_s(live) < older_s or board.is_alive(live):
                    continue
            finally:
                board.close()
            os.unlink(path)
            removed += 1
        except (_core.BoardError, OSError):
            continue
    return removed


def open_run(path, say):
    """The store of a run directory, of a single board file (after a crash; the file stays), or of the last run if `path` is None. StoreError says why not."""
    if path and os.path.isfile(path):
        store = Store.in_memory()
        try:
            read_board_into(store, path)
        except _core.BoardError as error:
            raise StoreError(explain(path, error)) from error
        return store
    directory = path or last_run()
    collect_leftovers(directory, say)
    return Store.open(directory)


def collect_leftovers(directory, say):
    """What the run's parent could not store: it was killed, its disk was full, or processes outlived it."""
    try:
        store = Store.open(directory, writable=True)
    except StoreError:
        return  # the reader will say it
    try:
        meta = store.meta()
        if meta["host"] != os.uname().nodename:
            return  # its boards are there, not here
        if process_exists(meta.get("parent", 0), meta.get("parent_ticks", 0)):
            return
        remove_marks(Settings(run=meta["run"], board_dir=meta["board_dir"]))
        alive = Collector(store, meta["run"], meta["board_dir"], say).round()
        if not alive and "exit_code" in meta:
            store.finish()
    except Exception as error:
        if type(error) in (sqlite3.DatabaseError, UnicodeDecodeError, StoreError):
            return  # damaged: the reader will say it
        say(f"cannot collect what the run left behind: {error}")
    finally:
        store.close()
