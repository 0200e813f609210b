"""Which run is meant: by directory, by name, by board file, or the last one."""

import os
import sqlite3
import time

from dwsr_probe import _core
from dwsr_probe.board import Board, created, explain, list_boards
from dwsr_probe.collector import Collector, read_board_into
from dwsr_probe.process import process_exists
from dwsr_probe.say import remove_marks
from dwsr_probe.settings import Settings
from dwsr_probe.store import FILE, Store, StoreError

HOME = "dwsr-runs"  # where `run` makes its directories, below the current one


def _pointer():
    """Where the last run is noted; OSError where there is no home to note it in."""
    state = os.environ.get("XDG_STATE_HOME") or os.path.join(
        os.path.expanduser("~"), ".local", "state"
    )
    if not os.path.isabs(state):
        raise OSError("no home directory")
    return os.path.join(state, "dwsr-probe", "last-run")


def remember(directory):
    """Note the last run; a convenience that may fail."""
    try:
        path = _pointer()
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        with open(
            path,
            "w",
            encoding="utf-8",
            errors="surrogateescape",
            opener=lambda path, flags: os.open(path, flags, 0o600),
        ) as f:
            f.write(os.path.abspath(directory))
    except OSError:
        pass


def _noted():
    """The directory that remember() was told last, if it still holds a run; else None."""
    try:
        with open(_pointer(), encoding="utf-8", errors="surrogateescape") as f:
            noted = f.read()
    except OSError:
        return None
    return noted if _holds_run(noted) else None


def _holds_run(directory):
    return os.path.isfile(os.path.join(directory, FILE))


def _runs_here():
    """The directories below ./dwsr-runs."""
    try:
        with os.scandir(HOME) as entries:
            return [os.path.abspath(entry.path) for entry in entries if _holds_run(entry.path)]
    except OSError:
        return []


def _begin_of(directory):
    """When the run began, for the newest of several: its name says so, and other runs' times of
    change do not."""
    changed = os.stat(os.path.join(directory, FILE)).st_mtime
    try:
        return (
            time.mktime(time.strptime(os.path.basename(directory)[:15], "%Y%m%d-%H%M%S")),
            changed,
        )
    except (ValueError, OverflowError):
        return changed, changed


def last_run():
    """The directory of the last run: the newest of the current directory, else the last one of
    this user anywhere."""
    found, noted = _runs_here(), _noted()
    if noted and os.path.realpath(noted).startswith(os.path.join(os.path.realpath("."), "")):
        found.append(noted)  # by `run -o`
    if found:
        return max(found, key=_begin_of)
    if not noted:
        raise StoreError("there is no run yet; make one with: dwsr-probe run job.py")
    return noted


def find_run(word, say):
    """The directory of the run that a person means, and say() which one, unless `word` is that
    directory.

    None: the last one. A directory with a run. The name of a directory below ./dwsr-runs, or
    beside the last run. The name of the run, which has the pid of its parent at the end.
    StoreError says why not.
    """
    if word and _holds_run(word):
        return word
    directory = _named(word) if word else last_run()
    say(f"the run is {directory}" if word else f"the last run is {directory}")
    return directory


def _named(word):
    noted = _noted()
    if os.path.basename(word) == word:
        for directory in [
            os.path.join(HOME, word),
            *([os.path.join(os.path.dirname(noted), word)] if noted else []),
        ]:
            if _holds_run(directory):
                return os.path.abspath(directory)
        for directory in sorted(
            {*_runs_here(), *([noted] if noted else [])}, key=_begin_of, reverse=True
        ):
            if _name_of(directory) == word:
                return directory
    raise StoreError(
        f"{word} holds no run ({FILE} is missing), and no run of this name is in {HOME}; name a"
        " directory that `dwsr-probe run` wrote"
    )


def _name_of(directory):
    try:
        store = Store.open(directory)
        try:
            return store.meta().get("run")
        finally:
            store.close()
    except (StoreError, sqlite3.Error, UnicodeDecodeError):
        return None


def sweep(directory, older_s=7 * 86_400, unfinished_s=3600):
    """Remove boards whose processes and collectors have been gone for so long: they are memory.
    How many.

    unfinished_s: of boards whose processes died while making them. Only on a filesystem without
    O_TMPFILE: others have no name by then.
    """
    removed, now = 0, time.time()
    for path in list_boards(directory):
        if now - created(path) < min(older_s, unfinished_s):
            continue  # not opened: there may be thousands
        try:
            try:
                board = Board(path)
            except _core.BoardError as error:
                if (
                    error.reason == "not ready"
                    and time.time() - os.stat(path).st_mtime > unfinished_s
                ):
                    os.unlink(path)
                    removed += 1
                continue
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
    """The store of a run (see find_run), or of a single board file (after a crash; the file
    stays). StoreError says why not."""
    if path and os.path.isfile(path):
        store = Store.in_memory()
        try:
            read_board_into(store, path)
        except _core.BoardError as error:
            raise StoreError(explain(path, error)) from error
        return store
    directory = find_run(path, say)
    collect_leftovers(directory, say)
    return Store.open(directory)


def collect_leftovers(directory, say):
    """What the run's parent could not store: it was killed, its disk was full, or processes
    outlived it."""
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
