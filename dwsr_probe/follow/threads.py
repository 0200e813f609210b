"""Names of the Python threads that allocate for no task while tasks run.

A task may have handed work to such a thread in a way that is not followed. So a task beside which
they take much memory is marked, with the thread's name. Threads of a framework that work for no
task (Dask's event loop) are known by a function that the framework's hooks pass to `ignore`.

Called by binding/tasks.pyx at the end of a task, only if there is a thread without a name.
"""

from __future__ import annotations

import sys

from dwsr_probe import _core

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from threading import Thread

    IsKnown = Callable[[Thread], bool]

_ignored: list[IsKnown] = []


def ignore(is_known: IsKnown) -> None:
    """Do not count threads for which is_known(thread) is true."""
    if is_known not in _ignored:
        _ignored.append(is_known)


def name_all() -> None:
    while (found := _core.unnamed_thread()) is not None:
        entry, native_id = found
        name, counts = "", True
        try:
            thread = _by_native_id(native_id)
            if thread is not None:
                name = str(thread.name)
                counts = not name.startswith("dwsr-") and not any(
                    is_known(thread) for is_known in _ignored
                )
        except Exception:  # a name or a function of the job's
            pass
        _core.name_thread(entry, name.encode("utf-8", "replace"), counts)


def _by_native_id(native_id: int) -> Thread | None:
    """None: a thread that Python's module threading does not know, or one that has ended."""
    threading = sys.modules.get("threading")
    if threading is None:
        return None
    # not enumerate(): it takes a lock that this thread may hold
    for thread in list(threading._active.values()):
        if thread.native_id == native_id:
            return thread
    return None
