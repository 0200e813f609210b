"""The records that one worker holds: of its board, of killed predecessors, of earlier probes.

`of_this_worker` runs in the workers for gather.records, without pandas. attach calls `keep` when
the probe is switched off. Boards are read in Dask's offload thread, because one may take half a
second and the event loop is the worker's.
"""

from __future__ import annotations

import asyncio
import logging
import os
import pickle
import zlib

from dwsr_probe import _core

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

KEPT_MOST_BYTES = 8 << 20  # of boards that are kept after switching off, packed
logger = logging.getLogger("dwsr_probe")


class PackedBoard:
    """A board's contents in bytes."""

    __slots__ = ("packed", "tasks")

    def __init__(self, path: str) -> None:
        """BoardError if the board cannot be read."""
        from dwsr_probe.collector import read_board

        found = read_board(path)
        contents = pickle.dumps((found.rows, found.processes, found.samples))
        self.packed, self.tasks = zlib.compress(contents, 1), len(found.rows)


_kept: list[PackedBoard] = []
_dropped = 0  # number of tasks that were dropped to keep within KEPT_MOST_BYTES
_keeping: set[asyncio.Future[None]] = set()  # asyncio has only weak references to them


async def of_this_worker() -> dict[str, Any] | None:
    """{boards: packed, dropped: tasks by process, measured: whether the probe is on}; None without
    a probe and without boards."""
    from distributed.utils import offload

    answer: dict[str, Any] | None = await offload(_pack_all)
    return answer


def _pack_all() -> dict[str, Any] | None:
    from dwsr_probe.dask import dead

    own = _core.board_path()
    found = [board.packed for board in _kept]
    for path in [*dead.claimed(), *filter(None, [own])]:
        try:
            found.append(PackedBoard(path).packed)
        except (_core.BoardError, OSError) as error:
            logger.warning(
                "dwsr-probe cannot read %s: %r. Its tasks are missing in records()", path, error
            )
    if own is None and not found:
        return None
    process = f"{os.uname().nodename} {os.getpid()}"
    return {"boards": found, "dropped": {process: _dropped}, "measured": own is not None}


def unpack(packed: bytes) -> Any:
    """(rows, processes, samples) as in collector.Contents."""
    return pickle.loads(zlib.decompress(packed))


def keep(paths: list[str]) -> None:
    """Move boards into memory and remove their files. Called on the event loop, after the probe
    was switched off."""
    from distributed.utils import offload

    future = asyncio.ensure_future(offload(_keep_packed, paths))
    _keeping.add(future)
    future.add_done_callback(_keeping.discard)


def _keep_packed(paths: list[str]) -> None:
    """In the offload thread."""
    global _dropped
    for path in paths:
        try:
            board = PackedBoard(path)
            if board.tasks:
                _kept.append(board)
        except (_core.BoardError, OSError) as error:
            logger.warning("dwsr-probe cannot read %s: %r. Its tasks are lost", path, error)
        try:
            os.unlink(path)
        except OSError:
            pass
    while sum(len(board.packed) for board in _kept) > KEPT_MOST_BYTES:
        _dropped += _kept.pop(0).tasks
