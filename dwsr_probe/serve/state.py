"""The service's directory: state.json, the model and how far each target was read, in one file
that is there as a whole; rounds.jsonl, what each forecast was worth.

One service at a time: the directory is locked. A state that cannot be read is put aside, and the
service begins anew.
"""

import fcntl
import json
import os
from dataclasses import asdict

VERSION = 1
FILE, ROUNDS = "state.json", "rounds.jsonl"
STATE_BYTES_MOST = 256 << 20
ROUNDS_BYTES_MOST = 16 << 20  # then it is renamed, and the one before it goes


def _opened(path, mode):
    """For this user alone: names of tasks are in it. Also one that an earlier version left
    readable."""

    def private(path, flags):
        return os.open(path, flags, 0o600)

    file = open(path, mode, encoding="utf-8", opener=private)  # noqa: SIM115 - the caller's
    os.fchmod(file.fileno(), 0o600)
    return file


class StateError(Exception):
    """The directory cannot be used; the text says why and what to do."""


def default_directory():
    state = os.environ.get("XDG_STATE_HOME") or os.path.join(
        os.path.expanduser("~"), ".local", "state"
    )
    if not os.path.isabs(state):
        raise StateError(
            "there is no home directory to keep the state in; name one with --state DIR"
        )
    return os.path.join(state, "dwsr-probe", "predict")


class State:
    def __init__(self, directory, say):
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

    def load(self, use):
        """What `use` makes of the saved dict; None without one. `use` may raise what a damaged
        file makes it raise."""
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

    def save(self, found):
        """Whole or not at all. What fails is said once, until it works again."""
        path = os.path.join(self._directory, FILE)
        try:
            with _opened(f"{path}.new", "w") as f:
                json.dump({"version": VERSION, **found}, f)
                f.flush()
                os.fsync(f.fileno())
            os.replace(f"{path}.new", path)
            self._failing = False
        except (OSError, MemoryError) as error:
            self._failed(error)

    def append(self, rounds, now):
        """Each round as a line."""
        if not rounds:
            return
        path = os.path.join(self._directory, ROUNDS)
        try:
            with _opened(path, "a") as f:
                f.writelines(
                    json.dumps({"time": round(now, 3), **asdict(r)}) + "\n" for r in rounds
                )
                size = f.tell()
            if size > ROUNDS_BYTES_MOST:
                os.replace(path, f"{path}.1")
        except OSError as error:
            self._failed(error)

    def _failed(self, error):
        if not self._failing:
            self._say(
                f"cannot write to {self._directory}: {error or 'out of memory'}; forecasts go on, a"
                " restart would begin where it was saved last"
            )
        self._failing = True

    def close(self):
        os.close(self._lock)
