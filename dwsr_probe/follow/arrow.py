"""Arrow's own mimalloc or jemalloc is inside its library. Its memory pools are wrapped
(csrc/arrow_pool.h), so that their blocks have owners like those of malloc. Work that a task hands
to Arrow's threads is followed there (csrc/arrow_threads.h).

Only in releases that this was tested with, and after a trial of each. Otherwise, tasks during which
the pool's number of allocations changes are marked.
"""

from __future__ import annotations

import os

from dwsr_probe import _core
from dwsr_probe.say import say_once

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# Major releases of Arrow whose pools were compared with Arrow's own statistics, to the byte, and
# whose threads were followed.
TESTED = range(15, 27)

# Blocks for the trial. Arrow rounds sizes up to a multiple of 64.
_TRIAL_BYTES, _RESIZED_BYTES = 64 * 1237, 64 * 2111
_TRIES = 3  # another thread may use the pool at the same time

_followed = _threads_followed = False


def hook(pyarrow: Any) -> None:
    global _followed, _threads_followed
    _followed = _threads_followed = False
    if _is_tested(pyarrow):
        _followed = _follow_memory(pyarrow)
        _threads_followed = _follow_threads(pyarrow)
    if not _followed:
        _mark(pyarrow)


def _follow_memory(pyarrow: Any) -> bool:
    try:
        _core.find_arrow_pools(_library(pyarrow))
        _check(pyarrow)
        _core.wrap_arrow_pools()
    except Exception as error:
        say_once(
            "pyarrow",
            f"cannot follow the memory of Arrow {pyarrow.cpp_version}: {error}. Tasks that use"
            " Arrow's own allocator are marked `shared`",
        )
        return False
    return True


def _follow_threads(pyarrow: Any) -> bool:
    try:
        _core.follow_arrow_threads(_library(pyarrow))
    except Exception as error:
        say_once(
            "pyarrow threads",
            f"cannot follow tasks into the threads of Arrow {pyarrow.cpp_version}: {error}. Tasks"
            " are marked `shared` if these threads take memory while several tasks run",
        )
        return False
    return True


def _library(pyarrow: Any) -> bytes:
    """The file of an extension that is linked to Arrow's C++ library."""
    return os.fsencode(pyarrow.lib.__file__)


def is_followed() -> bool:
    """Whether blocks of Arrow's own allocators are accounted."""
    return _followed


def are_threads_followed() -> bool:
    """Whether Arrow's threads work for the tasks that hand them work."""
    return _threads_followed


def _is_tested(pyarrow: Any) -> bool:
    major = getattr(pyarrow, "cpp_version", "").partition(".")[0]
    return major.isdecimal() and int(major) in TESTED


def _check(pyarrow: Any) -> None:
    """Use the pool that needs no allocator of Arrow's own. All pools have the same functions. The
    wrapper and Arrow's statistics must have seen the same bytes."""
    pool = pyarrow.system_memory_pool()
    grown = []

    def use() -> None:
        before = pool.bytes_allocated()
        buffer = pyarrow.allocate_buffer(_TRIAL_BYTES, memory_pool=pool, resizable=True)
        grown.append(pool.bytes_allocated() - before)
        buffer.resize(_RESIZED_BYTES)
        grown.append(pool.bytes_allocated() - before)
        del buffer
        grown.append(pool.bytes_allocated() - before)

    for _ in range(_TRIES):
        grown.clear()
        seen = _core.try_arrow_pool(use)
        if seen == (_TRIAL_BYTES, _TRIAL_BYTES, _RESIZED_BYTES, _RESIZED_BYTES) and grown == [
            _TRIAL_BYTES,
            _RESIZED_BYTES,
            0,
        ]:
            return
    raise RuntimeError(f"in a trial its pool allocated {grown} bytes, and {seen} were seen")


def _mark(pyarrow: Any) -> None:
    _core.use_foreign_counter(object)  # all tasks are marked, unless the next lines know more
    pool = pyarrow.default_memory_pool()
    system = pool.backend_name == "system"
    # Arrow before 19 has no count
    _core.use_foreign_counter(None if system else getattr(pool, "num_allocations", object))


def unhook() -> None:
    global _followed, _threads_followed
    _followed = _threads_followed = False
    _core.unwrap_arrow_pools()
    _core.leave_arrow_threads()
