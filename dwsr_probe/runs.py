"""Find the run that a user means: by directory, by name, by board file, or the last one. Also
collects and removes what earlier runs left behind.

Called by `report`, `top`, `predict` and `dwsr_probe.load`; by `run` to note a new run and to remove
old boards.
"""

from __future__ import annotations

import os
import sqlite3
import time

from dwsr_probe import _core
from dwsr_probe.board import Board, created_at, explain, list_boards
from dwsr_probe.collector import Collector, read_board_into
from dwsr_probe.process import process_exists
from dwsr_probe.say import remove_said_files
from dwsr_probe.settings import Settings
from dwsr_probe.store import FILE, Store, StoreError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    Say = Callable[[str], object]

RUNS_DIRECTORY = "dwsr-runs"  # where `run` makes its directories, below the current one


def _note_path() -> str:
    """The file that names the last run; OSError if there is no home directory for it."""
    state = os.environ.get("XDG_STATE_HOME") or os.path.join(
        os.path.expanduser("~"), ".local", "state"
    )
    if not os.path.isabs(state):
        raise OSError("no home directory")
    return os.path.join(state, "dwsr-probe", "last-run")


def remember(directory: str) -> None:
    """Note the last run. A failure is ignored, because the note is only a convenience."""
    try:
        path = _note_path()
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


def _noted() -> str | None:
    """The directory of the last call of remember(), if it still holds a run; else None."""
    try:
        with open(_note_path(), encoding="utf-8", errors="surrogateescape") as f:
            noted = f.read()
    except OSError:
        return None
    return noted if _holds_run(noted) else None


def _holds_run(directory: str) -> bool:
    return os.path.isfile(os.path.join(directory, FILE))


def _runs_here() -> list[str]:
    """The runs below ./dwsr-runs."""
    try:
        with os.scandir(RUNS_DIRECTORY) as entries:
            return [os.path.abspath(entry.path) for entry in entries if _holds_run(entry.path)]
    except OSError:
        return []


def _age_key(directory: str) -> tuple[float, float]:
    """Sorts runs by the date in their directory's name, then by the time of the last change. The
    last change alone would not do: reading an older run may change its file."""
    changed = os.stat(os.path.join(directory, FILE)).st_mtime
    try:
        return (
            time.mktime(time.strptime(os.path.basename(directory)[:15], "%Y%m%d-%H%M%S")),
            changed,
        )
    except (ValueError, OverflowError):
        return changed, changed


def last_run() -> str:
    """The directory of the last run: the newest below the current directory, or else the last one
    that this user made anywhere."""
    found, noted = _runs_here(), _noted()
    if noted and os.path.realpath(noted).startswith(os.path.join(os.path.realpath("."), "")):
        found.append(noted)  # by `run -o`
    if found:
        return max(found, key=_age_key)
    if not noted:
        raise StoreError("there is no run yet; make one with: dwsr-probe run job.py")
    return noted


def find_run(word: str | None, say: Say) -> str:
    """The directory of the run that a user means. say() reports it, unless `word` is that
    directory. StoreError if there is none.

    word: one of
    - None: the last run;
    - a directory with a run;
    - the name of a directory below ./dwsr-runs, or beside the last run;
    - the name of the run, which ends with the pid of its parent.
    """
    if word and _holds_run(word):
        return word
    directory = _find_by_name(word) if word else last_run()
    say(f"the run is {directory}" if word else f"the last run is {directory}")
    return directory


def _find_by_name(word: str) -> str:
    """By the name of the directory, else by the name of the run. StoreError if there is none."""
    noted = _noted()
    if os.path.basename(word) == word:
        for directory in [
            os.path.join(RUNS_DIRECTORY, word),
            *([os.path.join(os.path.dirname(noted), word)] if noted else []),
        ]:
            if _holds_run(directory):
                return os.path.abspath(directory)
        for directory in sorted(
            {*_runs_here(), *([noted] if noted else [])}, key=_age_key, reverse=True
        ):
            if _name_of(directory) == word:
                return directory
    raise StoreError(
        f"{word} holds no run ({FILE} is missing), and no run of this name is in {RUNS_DIRECTORY};"
        " name a directory that `dwsr-probe run` wrote"
    )


def _name_of(directory: str) -> str | None:
    try:
        store = Store.open(directory)
        try:
            return store.meta().get("run")
        finally:
            store.close()
    except (StoreError, sqlite3.Error, UnicodeDecodeError):
        return None


def sweep(directory: str, older_s: float = 7 * 86_400, unfinished_s: float = 3600) -> int:
    """Remove boards whose processes have been dead for older_s, because boards occupy memory.
    Returns their number.

    unfinished_s: the same for boards whose processes died while making them. They exist only on a
    filesystem without O_TMPFILE: on others a board gets its name when it is complete.
    """
    removed, now = 0, time.time()
    for path in list_boards(directory):
        if now - created_at(path) < min(older_s, unfinished_s):
            continue  # without opening it: there may be thousands
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


def open_run(path: str | None, say: Say) -> Store:
    """The store of a run (see find_run), or the contents of a single board file, as after a crash.
    The board file stays. StoreError if it cannot be read."""
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


def collect_leftovers(directory: str, say: Say) -> None:
    """Store what the run's parent could not store: it was killed, its disk was full, or processes
    outlived it."""
    try:
        store = Store.open(directory, writable=True)
    except StoreError:
        return  # the caller reads the same run and reports the error
    try:
        meta = store.meta()
        if meta["host"] != os.uname().nodename:
            return  # its boards are on that host
        if process_exists(meta.get("parent", 0), meta.get("parent_ticks", 0)):
            return
        remove_said_files(Settings(run=meta["run"], board_dir=meta["board_dir"]))
        alive = Collector(store, meta["run"], meta["board_dir"], say).round()
        if not alive and "exit_code" in meta:
            store.finish()
    except Exception as error:
        if type(error) in (sqlite3.DatabaseError, UnicodeDecodeError, StoreError):
            return  # damaged: the caller reports it
        say(f"cannot collect what the run left behind: {error}")
    finally:
        store.close()
