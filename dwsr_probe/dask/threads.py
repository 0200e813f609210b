"""Dask's own threads: event loops, communication, profiling, and what its task threads do between
two tasks. They work for no task, so memory that they take does not mark a task."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from threading import Thread

# Dask-Offload, Dask-Default-Threads, Dask-Callback-Thread; executors may have a prefix of their own
_PARTS = ("Dask-", "DaskThreadPoolExecutor")
_PREFIXES = ("IO loop", "Profile", "TCP-Executor", "AsyncProcess ")


def is_dasks(thread: Thread) -> bool:
    if thread.name.startswith(_PREFIXES) or any(part in thread.name for part in _PARTS):
        return True
    # the thread, mostly the main one, in which a worker's event loop runs
    worker = sys.modules.get("distributed.worker")
    instances = list(worker.Worker._instances) if worker is not None else []
    return any(server.thread_id == thread.ident for server in instances)
