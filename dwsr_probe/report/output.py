"""Where a report goes: a file that appears only when it is complete, or standard output.

Used by the `report` command and by notebooks.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO

STDOUT = "-"


@contextmanager
def destination(path: str | os.PathLike[str] | None) -> Iterator[IO[bytes]]:
    """A binary file for `path`; standard output for None and "-". After an error the path holds
    what it held before."""
    if path is None or path == STDOUT:
        sys.stdout.flush()
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    target = os.path.realpath(path)  # a symbolic link stays, its target is replaced
    if os.path.exists(target) and not os.path.isfile(target):
        with open(target, "wb") as file:  # a pipe or a device cannot be replaced
            yield file
        return
    part = f"{target}.{os.getpid()}"
    try:
        with open(part, "wb") as file:
            yield file
        os.replace(part, target)
    except BaseException:
        if os.path.exists(part):
            os.unlink(part)
        raise
