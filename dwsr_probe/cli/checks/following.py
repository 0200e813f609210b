"""Checks of `doctor` on what malloc's hooks alone do not see: work in other threads, allocators
inside libraries, shared memory. Each line says how it is followed, or that tasks are marked.
Libraries are listed where they are installed; none is imported."""

from __future__ import annotations

import os
import platform
import sysconfig
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec

from dwsr_probe.cli.checks import Finding, limited, ok

_MARKED = "tasks that use it are marked `shared`"
# Libraries that hand work to asyncio loops in threads of their own
_LOOP_LIBRARIES = ("zarr", "fsspec")
# Libraries that fetch data in native threads, where no task can be followed
_NATIVE_FETCHERS = ("obstore", "icechunk")
# Libraries that do not allocate with malloc, and cannot be followed
_FOREIGN_ALLOCATORS = ("polars", "duckdb")
_COROUTINE_LIBRARIES = ("trio", "gevent")
_PRELOADED = ("jemalloc", "mimalloc", "tcmalloc")


def _version(library: str) -> str | None:
    """None: not installed."""
    try:
        return version(library)
    except PackageNotFoundError:  # polars-lts-cpu, for one, has the module of another distribution
        return "of unknown release" if find_spec(library) else None


def _installed(libraries: tuple[str, ...]) -> str:
    """ "zarr 3.1.5, fsspec 2026.2.0": those that are installed."""
    found = ((library, _version(library)) for library in libraries)
    return ", ".join(f"{library} {release}" for library, release in found if release)


def threads() -> Finding:
    users = _installed(_LOOP_LIBRARIES)
    also = f" ({users} use such loops)" if users else ""
    return ok(
        "threads",
        "work that a task hands to a ThreadPoolExecutor, a ThreadPool of multiprocessing or an"
        f" asyncio loop in another thread{also} counts for the task",
    )


def uvloop() -> Finding | None:
    release = _version("uvloop")
    if release is None:
        return None
    return limited(
        "uvloop",
        f"{release}: its loops are not followed; {_MARKED} (unowned-thread) if the loop takes more"
        " than 1 MiB and 5 % of the task's own peak",
        "use asyncio's own loop to have its work counted",
    )


def native_fetchers() -> Finding | None:
    users = _installed(_NATIVE_FETCHERS)
    if not users:
        return None
    return limited(
        "native threads",
        f"{users}: data is fetched in native threads, which count for a task while it runs alone;"
        " otherwise the tasks are marked `shared` (native-threads)",
        "one thread per process has exact figures",
    )


def coroutines() -> Finding | None:
    users = _installed(_COROUTINE_LIBRARIES)
    if not users:
        return None
    return ok(
        "coroutines",
        f"{users}: blocks that interleave in one thread are marked `shared` (coroutine); all others"
        " are exact",
    )


def arrow_release() -> Finding | None:
    """Why pyarrow's own allocator cannot be followed here; None where it can be tried. The check
    "pyarrow" tries it."""
    release = _version("pyarrow")
    if release is None or os.environ.get("ARROW_DEFAULT_MEMORY_POOL") == "system":
        return None
    from dwsr_probe.follow.arrow import TESTED

    major = release.partition(".")[0]
    if platform.machine() != "x86_64":
        why = f"its own allocator is followed on x86-64 only, not on {platform.machine()}"
    elif not major.isdecimal() or int(major) not in TESTED:
        why = f"its own allocator is followed in releases {min(TESTED)} to {max(TESTED)} only"
    else:
        return None
    return limited("arrow release", f"{release}: {why}; {_MARKED} (foreign-allocator)")


def _foreign_allocator(library: str) -> Finding | None:
    release = _version(library)
    if release is None:
        return None
    return limited(
        library,
        f"{release}: allocates by itself, which cannot be followed; {_MARKED} (foreign-allocator)",
        "`predict` uses the growth of the process instead, if tasks run one at a time",
    )


foreign_allocators = tuple(partial(_foreign_allocator, name) for name in _FOREIGN_ALLOCATORS)


def preloaded() -> Finding | None:
    """Only where another allocator is preloaded."""
    loaded = os.environ.get("LD_PRELOAD", "")
    names = [name for name in _PRELOADED if name in loaded]
    if not names:
        return None
    return ok(
        "preloaded", f"{', '.join(names)} (LD_PRELOAD): malloc and C++'s new are accounted, once"
    )


def python_malloc() -> Finding | None:
    """Only for interpreters that allocate with a mimalloc of their own."""
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        who = "free-threaded Python"
    elif os.environ.get("PYTHONMALLOC", "").startswith("mimalloc"):
        who = "PYTHONMALLOC=mimalloc: Python"
    else:
        return None
    return limited(
        "python's malloc",
        f"{who} has an allocator of its own: all tasks are marked `shared` (foreign-allocator)",
    )


def shared_memory() -> Finding:
    return ok(
        "shared memory",
        "of multiprocessing, memfd and /dev/shm counts for the task that creates it, until it is"
        " unlinked and unmapped",
    )
