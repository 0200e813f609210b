"""Checks of `doctor` on the machine: kernel, Python, directories, memory limit."""

from __future__ import annotations

import os
import platform
import sysconfig

from dwsr_probe.cli.checks import Finding, failed, limited, ok


def kernel() -> Finding:
    release = platform.release()
    if platform.system() != "Linux":
        return failed("kernel", platform.platform(), "dwsr-probe works on Linux only")
    try:
        recent = tuple(int(part) for part in release.split(".")[:2]) >= (4, 0)
    except ValueError:
        recent = True
    if not recent:
        return limited(
            "kernel",
            f"Linux {release}",
            "the high-water mark can be reset since 4.0: peaks will be sampled",
        )
    cpus = os.cpu_count()
    return ok("kernel", f"Linux {release}, {cpus} CPU{'' if cpus == 1 else 's'}")


def python() -> Finding:
    from dwsr_probe import __version__, _core

    threads = "free-threaded, " if sysconfig.get_config_var("Py_GIL_DISABLED") else ""
    # Both kinds work. Reports of bugs need to say which one it is.
    linked = "shared" if sysconfig.get_config_var("Py_ENABLE_SHARED") else "static"
    return ok(
        "python",
        f"{platform.python_version()}, {threads}{linked} libpython, {platform.machine()};"
        f" dwsr-probe {__version__}, board version {_core.BOARD_VERSION}",
    )


def package_directory() -> str:
    """The directory that this dwsr_probe is imported from."""
    package = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    return os.path.dirname(package)


def shadowed_package() -> Finding | None:
    """Concerns only current directories from which programs would import another dwsr_probe."""
    here = os.getcwd()
    if not os.path.isfile(os.path.join(here, "dwsr_probe", "__init__.py")):
        return None
    if os.path.samefile(here, package_directory()):
        return None
    return limited(
        "package",
        f"installed in {package_directory()}, but the current directory has a source tree of the"
        " same name",
        "`python -c`, `python -m` and scripts of this directory import the source tree: work in"
        " another directory, or `pip install -e .`",
    )


def off_switch() -> Finding | None:
    from dwsr_probe.settings import SWITCH, switched_off

    if not switched_off():
        return None
    return limited(
        "switch",
        f"{SWITCH}=off is set: nothing is measured",
        f"unset {SWITCH} to measure; the lines below are as if it were not set",
    )


def board_directory() -> Finding:
    from dwsr_probe import _core
    from dwsr_probe.advice import failure_text
    from dwsr_probe.board import list_boards
    from dwsr_probe.settings import default_board_directory

    directory = default_board_directory()
    try:
        _core.try_board(os.fsencode(directory))
    except OSError as error:
        return failed("board directory", directory, failure_text(error, directory))
    space = os.statvfs(directory)
    text = (
        f"{directory}, {space.f_bavail * space.f_frsize >> 20:,} MiB free"
        f" ({_core.BOARD_BYTES / 2**20:.1f} MiB per process that runs tasks)"
    )
    left = [path for path in list_boards(directory) if not _has_living_process(path)]
    if left:
        return limited(
            "board directory",
            f"{text}; {len(left)} left by processes that are gone",
            f"read one with `dwsr-probe report {left[0]}`, then remove them",
        )
    return ok("board directory", text)


def _has_living_process(path: str) -> bool:
    from dwsr_probe import _core
    from dwsr_probe.board import Board

    try:
        board = Board(path)
        return bool(board.is_alive(board.live()))
    except _core.BoardError:
        return False


def memory_limit() -> Finding:
    import psutil

    from dwsr_probe import _core

    total, limit = psutil.virtual_memory().total, _core.memory_limit()
    if limit is None:
        return limited(
            "memory limit",
            "neither a cgroup limit nor the machine's memory can be read",
            "is /proc mounted?",
        )
    kind = "of the cgroup" if limit < total else "the whole machine, no cgroup limit below it"
    return ok("memory limit", f"{limit / 2**30:.1f} GiB ({kind})")


def run_directory() -> Finding:
    from dwsr_probe.store import filesystem_of, is_network

    kind = filesystem_of(".")
    if is_network(kind):
        return limited(
            "run directory",
            f"the current directory is on {kind}",
            "the run store works there without WAL; -o DIR on a local disk is faster",
        )
    return ok("run directory", f"the current directory is on {kind or 'an unknown filesystem'}")
