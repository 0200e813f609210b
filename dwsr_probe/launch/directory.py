"""The directory of a new run: found, made, described, and removed again if nothing ran.

Called by launch/__init__.py before the command starts.
"""

from __future__ import annotations

import os
import sqlite3
import time

from dwsr_probe import _core
from dwsr_probe.advice import failure_text
from dwsr_probe.launch.command import short_name
from dwsr_probe.process import start_ticks
from dwsr_probe.runs import RUNS_DIRECTORY, sweep
from dwsr_probe.say import say
from dwsr_probe.settings import SWITCH, switched_off
from dwsr_probe.store import FILE, Store, StoreError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from dwsr_probe.launch.command import Command
    from dwsr_probe.settings import Settings


class CannotProbe(Exception):
    """The command has to run without the probe; the text says why."""


class NewRun:
    """made: the directories that did not exist before, from the outermost in."""

    def __init__(self, store: Store, made: list[str]) -> None:
        self.store, self._made = store, made

    def discard(self) -> None:
        """Nothing ran: remove the run. Directories that existed before stay, also empty ones."""
        self.store.close()
        directory = self.store.directory or ""
        for suffix in ("", "-wal", "-shm"):
            try:
                os.unlink(os.path.join(directory, FILE + suffix))
            except OSError:
                pass
        _remove_empty(self._made)


def create_run(command: Command, chosen: str | None, settings: Settings) -> NewRun:
    """Create the store of a run, and give the run its name (settings.run).

    chosen: the directory that the user named, or None.
    """
    started = time.time()
    name = short_name(command)
    if switched_off():
        raise CannotProbe(f"the probe is switched off ({SWITCH}=off)")
    stamp = time.strftime("%Y%m%d-%H%M%S", time.localtime(started))
    settings.run = f"{stamp}-{name}-{os.getpid()}"
    try:
        _core.try_board(os.fsencode(settings.board_dir))
    except OSError as error:
        raise CannotProbe(failure_text(error, settings.board_dir)) from error
    sweep(settings.board_dir)
    made: list[str] = []
    try:
        default = os.path.join(RUNS_DIRECTORY, f"{stamp}-{name}")
        store = Store.create(_free_directory(chosen, default, made))
        store.set_meta(
            run=settings.run,
            command=list(command),
            start=started,
            host=os.uname().nodename,
            parent=os.getpid(),
            parent_ticks=start_ticks(os.getpid()),
            board_dir=settings.board_dir,
        )
    except (StoreError, OSError, sqlite3.Error) as error:
        _remove_empty(made)
        raise CannotProbe(
            str(error)
            if isinstance(error, StoreError)
            else f"cannot write a run directory here: {error}; choose another with -o DIR"
        ) from error
    return NewRun(store, made)


def _free_directory(chosen: str | None, default: str, made: list[str]) -> str:
    """The chosen or default directory, or one beside it if it holds a run already: nothing is
    overwritten.

    Directories that had to be made are added to `made`.
    """
    directory = candidate = os.path.abspath(chosen or default)
    n = 1
    while True:
        try:
            # mkdir succeeds for one process only. Only the user may read task names and keys.
            _make(candidate, made, 0o700)
            break
        except FileExistsError:
            if (
                chosen
                and os.path.isdir(candidate)
                and not os.path.exists(os.path.join(candidate, FILE))
            ):
                break
            if not os.path.isdir(candidate):
                raise StoreError(
                    f"cannot write the run directory {candidate}: it is not a directory; choose"
                    " another with -o DIR"
                ) from None
        n += 1
        candidate = f"{directory}-{n}"
    if chosen and candidate != directory:
        say(f"{directory} holds a run already; this one goes to {candidate}")
    return candidate


def _make(directory: str, made: list[str], mode: int = 0o777) -> None:
    """Like os.makedirs. Adds the directories that this call made itself to `made`."""
    parent = os.path.dirname(directory)
    if not os.path.exists(parent):
        try:
            _make(parent, made)
        except FileExistsError:  # another process was faster: the directory belongs to it
            pass
    os.mkdir(directory, mode)
    made.append(directory)


def _remove_empty(made: list[str]) -> None:
    for directory in reversed(made):
        try:
            os.rmdir(directory)
        except OSError:
            pass
