"""What one worker holds: tasks on its board, of killed predecessors, and from before switching off.

`of_this_worker` runs in the workers for gather.records, without pandas; attach calls `keep`. Boards
are read in Dask's offload thread: one may take half a second, and the event loop is the worker's.
"""

import asyncio
import logging
import os
import pickle
import zlib

from dwsr_probe import _core

KEPT_MOST_BYTES = 8 << 20  # of what is kept after switching off, packed
logger = logging.getLogger("dwsr_probe")
_kept = []  # (packed board, its tasks)
_dropped = 0  # tasks that were kept no longer
_keeping = set()  # futures: the loop itself holds them weakly


async def of_this_worker():
    """{boards: packed, dropped: by process, measured: is the probe on}; None without any of
    them."""
    from distributed.utils import offload

    return await offload(_answer)


def _answer():
    from dwsr_probe.dask import dead

    own = _core.board_path()
    found = [packed for packed, _ in _kept]
    for path in [*dead.claimed(), *filter(None, [own])]:
        try:
            found.append(pack(path)[0])
        except (_core.BoardError, OSError) as error:
            logger.warning(
                "dwsr-probe cannot read %s: %r. Its tasks are missing in records()", path, error
            )
    if own is None and not found:
        return None
    process = f"{os.uname().nodename} {os.getpid()}"
    return {"boards": found, "dropped": {process: _dropped}, "measured": own is not None}


def pack(path):
    """A board's contents in bytes, and the number of its tasks. BoardError if it is unreadable."""
    from dwsr_probe.collector import read_board

    found = read_board(path)
    contents = pickle.dumps((found.rows, found.processes, found.samples))
    return zlib.compress(contents, 1), len(found.rows)


def unpack(packed):
    """(rows, processes, samples) as in collector.Contents."""
    return pickle.loads(zlib.decompress(packed))


def keep(paths):
    """After the probe was switched off, on the event loop: boards move into memory, files go."""
    from distributed.utils import offload

    future = asyncio.ensure_future(offload(_keep, paths))
    _keeping.add(future)
    future.add_done_callback(_keeping.discard)


def _keep(paths):
    global _dropped
    for path in paths:
        try:
            packed = pack(path)
            if packed[1]:
                _kept.append(packed)
        except (_core.BoardError, OSError) as error:
            logger.warning("dwsr-probe cannot read %s: %r. Its tasks are lost", path, error)
        try:
            os.unlink(path)
        except OSError:
            pass
    while sum(len(packed) for packed, _ in _kept) > KEPT_MOST_BYTES:
        _dropped += _kept.pop(0)[1]
