"""The service's directory: state.json has the model and how far each target was read, written as a
whole or not at all; rounds.jsonl has each forecast beside the actual figure.

One service at a time: the directory is locked. A state that cannot be read is renamed, and the
service begins anew.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable
from dataclasses import asdict
from typing import IO, TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from dwsr_probe.predict.forecast import Round

T = TypeVar("T")

VERSION = 1
FILE, ROUNDS = "state.json", "rounds.jsonl"
STATE_BYTES_MOST = 256 << 20
ROUNDS_BYTES_MOST = 16 << 20  # then the file is renamed, and replaces the one renamed before


def _open_private(path: str, mode: str) -> IO[str]:
    """A file for this user alone, because names of tasks are in it; also a file that an earlier
    version left readable for others."""

    def private(path: str, flags: int) -> int:
        return os.open(path, flags, 0o600)

    file = open(path, mode, encoding="utf-8", opener=private)  # noqa: SIM115 - the caller's
    os.fchmod(file.fileno(), 0o600)
    return file


class StateError(Exception):
    """The directory cannot be used; the text says why and what to do."""


def default_directory() -> str:
    state = os.environ.get("XDG_STATE_HOME") or os.path.join(
        os.path.expanduser("~"), ".local", "state"
    )
    if not os.path.isabs(state):
        raise StateError(
            "there is no home directory to keep the state in; name one with --state DIR"
        )
    return os.path.join(state, "dwsr-probe", "predict")


class State:
    def __init__(self, directory: str, say: Callable[[str], None]) -> None:
        self._directory, self._say, self._failing = directory, say, False
        try:
            os.makedirs(directory, mode=0o700, exist_ok=True)
            self._lock = os.open(
                os.path.join(directory, "lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600
            )
        except OSError as error:
            raise StateError(
                f"cannot keep the state in {directory}: {error}; choose another directory with"
                " --state DIR"
            ) from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._lock)
            raise StateError(
                f"another predictor uses {directory}; choose another directory with --state DIR"
            ) from error

    def load(self, use: Callable[[dict[str, Any]], T]) -> T | None:
        """What `use` makes of the saved dict; None: nothing was saved, or it is damaged. `use`
        may raise any error that damaged data cause."""
        path = os.path.join(self._directory, FILE)
        try:
            with open(path, encoding="utf-8") as f:
                if os.fstat(f.fileno()).st_size > STATE_BYTES_MOST:
                    raise ValueError(
                        f"it has more than {STATE_BYTES_MOST >> 20} MiB, which no honest one has"
                    )
                found = json.load(f)
            if found["version"] != VERSION:
                raise ValueError(f"version {found['version']}, this dwsr-probe knows {VERSION}")
            return use(found)
        except FileNotFoundError:
            return None
        except (
            OSError,
            ValueError,
            TypeError,
            KeyError,
            AttributeError,
            OverflowError,
            RecursionError,
            MemoryError,
        ) as error:
            aside = f"{path}.damaged"
            try:
                os.replace(path, aside)
            except OSError:
                pass
            self._say(
                f"the state in {path} cannot be used ({str(error)[:200] or type(error).__name__});"
                f" it is now {aside}, and the model begins anew"
            )
            return None

    def save(self, state: dict[str, Any]) -> None:
        """As a whole or not at all. A failure is reported once, until a save succeeds."""
        path = os.path.join(self._directory, FILE)
        try:
            with _open_private(f"{path}.new", "w") as f:
                json.dump({"version": VERSION, **state}, f)
                f.flush()
                os.fsync(f.fileno())
            os.replace(f"{path}.new", path)
            self._failing = False
        except (OSError, MemoryError) as error:
            self._report_failure(error)

    def append(self, rounds: list[Round], now: float) -> None:
        """Appends a line for each round to rounds.jsonl."""
        if not rounds:
            return
        path = os.path.join(self._directory, ROUNDS)
        try:
            with _open_private(path, "a") as f:
                f.writelines(
                    json.dumps({"time": round(now, 3), **asdict(r)}) + "\n" for r in rounds
                )
                size = f.tell()
            if size > ROUNDS_BYTES_MOST:
                os.replace(path, f"{path}.1")
        except OSError as error:
            self._report_failure(error)

    def _report_failure(self, error: Exception) -> None:
        if not self._failing:
            self._say(
                f"cannot write to {self._directory}: {error or 'out of memory'}; forecasts go on, a"
                " restart would begin where it was saved last"
            )
        self._failing = True

    def close(self) -> None:
        os.close(self._lock)
