"""Where a report goes: a file that is whole or not there, or standard output. Used by the
`report` command."""

import os
import sys
from contextlib import contextmanager

STDOUT = "-"


@contextmanager
def destination(path):
    """A binary file for `path`; None and "-": standard output. An error leaves what was there."""
    if path is None or path == STDOUT:
        sys.stdout.flush()
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    path = os.path.realpath(path)  # a link stays one
    if os.path.exists(path) and not os.path.isfile(path):  # a pipe or a device cannot be replaced
        with open(path, "wb") as file:
            yield file
        return
    part = f"{path}.{os.getpid()}"
    try:
        with open(part, "wb") as file:
            yield file
        os.replace(part, path)
    except BaseException:
        if os.path.exists(part):
            os.unlink(part)
        raise
