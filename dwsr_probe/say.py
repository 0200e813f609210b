"""How we speak inside somebody's program: one line on stderr, or nothing; of a failure that many
processes share, one for all of them."""

import os
import sys

from dwsr_probe import _core
from dwsr_probe.settings import Settings

# Kinds of failure inside a job. The first is the C side's own (csrc/probe.h); at most
# PROBE_SAY_KINDS.
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
)


def say(text):
    """One line on stderr, if there is one and it takes it. Never on another stream, never an
    exception."""
    if sys.stderr is not None:
        try:
            # one write: lines of several processes do not run into each other
            sys.stderr.write(f"dwsr-probe: {text}\n")
            sys.stderr.flush()
        except (OSError, ValueError):
            pass


def say_once(kind, text, settings=None):
    """say() of the first process of the run that has something of this kind to say; without a
    run, of a process and its forked children."""
    if kind not in KINDS or (
        _core.say_first(KINDS.index(kind))
        and _is_first_of_run(kind, settings or Settings.from_environ())
    ):
        say(text)


def _is_first_of_run(kind, settings):
    """Whoever creates the mark is the first. In /tmp, because processes of another user cannot
    reach the boards."""
    if not settings.run:
        return True
    for path in _marks(kind, settings):
        try:
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
            return True
        except FileExistsError:
            return False
        except (OSError, ValueError):  # ValueError: a name that no file can have
            continue
    return True


def _marks(kind, settings):
    name = f"{settings.run}.{kind}.said".replace("/", "_")
    return f"/tmp/dwsr-probe-{name}", os.path.join(settings.board_dir, name)


def remove_marks(settings):
    """The run is over."""
    for kind in KINDS:
        for path in _marks(kind, settings):
            try:
                os.unlink(path)
            except (OSError, ValueError):
                pass
