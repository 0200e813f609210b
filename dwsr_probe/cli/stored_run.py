"""The stored run that a command reads: found by what the user named, with what its processes left
behind."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from dwsr_probe.cli import fail

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dwsr_probe.store import Store


@contextmanager
def stored_run(run: str | None) -> Iterator[Store]:
    """run: None: the last one. Exits with a message if there is none, or if it cannot be read."""
    import sqlite3

    from dwsr_probe.runs import collect_leftovers, find_run
    from dwsr_probe.say import say
    from dwsr_probe.store import Store, StoreError

    try:
        directory = find_run(run, say)
        collect_leftovers(directory, say)
        yield Store.open(directory)
    except StoreError as error:
        fail(error)
    except sqlite3.Error as error:
        fail(
            f"cannot read {run or 'the last run'}: {error}; it is damaged, or being written on"
            " another machine"
        )
