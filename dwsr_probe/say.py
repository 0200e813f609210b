"""Messages inside somebody's program: one line on stderr, or nothing. A failure that many processes
share is one line for all of them.

Called by everything of ours in the probed process, and by the commands.
"""

from __future__ import annotations

import os
import sys

from dwsr_probe import _core
from dwsr_probe.settings import Settings

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

# Kinds of failure inside a job. The first is for the C side (csrc/probe.h). At most
# PROBE_MESSAGE_KINDS.
KINDS = (
    "sampler",
    "start",
    "room",
    "boot",
    "cupy memory",
    "distributed.worker",
    "dask.local",
    "cupy",
    "pyarrow",
    "concurrent.futures.thread",
    "asyncio.base_events",
    "multiprocessing.pool",
    "features",
    "worker model",
)


def say(text: str) -> None:
    """One line on stderr, if stderr is open and can be written. Never on another stream, never an
    exception."""
    if sys.stderr is not None:
        try:
            # one write, so that lines of several processes do not mix
            sys.stderr.write(f"dwsr-probe: {text}\n")
            sys.stderr.flush()
        except (OSError, ValueError):
            pass


def say_once(kind: str, text: str, settings: Settings | None = None) -> None:
    """say(), but only in the first process of the run that reports this kind of failure; without a
    run, in the first of a process and its forked children."""
    if kind not in KINDS or (
        _core.claim_message(KINDS.index(kind))
        and _claim_for_run(kind, settings or Settings.from_environ())
    ):
        say(text)


def _claim_for_run(kind: str, settings: Settings) -> bool:
    """True for the first process of the run that calls this for a kind of failure: the one that
    creates the file. The files are in /tmp, because processes of another user cannot reach the
    boards."""
    if not settings.run:
        return True
    for path in _said_paths(kind, settings):
        try:
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
            return True
        except FileExistsError:
            return False
        except (OSError, ValueError):  # ValueError: a name that no file can have
            continue
    return True


def _said_paths(kind: str, settings: Settings) -> Sequence[str]:
    """Paths of the file that says that a line was printed. The second is used if the first cannot
    be created."""
    name = f"{settings.run}.{kind}.said".replace("/", "_")
    return f"/tmp/dwsr-probe-{name}", os.path.join(settings.board_dir, name)


def remove_said_files(settings: Settings) -> None:
    """Remove the files of _claim_for_run. Called when the run is over."""
    for kind in KINDS:
        for path in _said_paths(kind, settings):
            try:
                os.unlink(path)
            except (OSError, ValueError):
                pass
