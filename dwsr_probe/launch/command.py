"""The command of `run`: how it is called, how it is started, how its parent waits for its end.

The command keeps its signals and its exit code. Called by launch/__init__.py.
"""

from __future__ import annotations

import errno
import os
import resource
import signal
import sys

import dwsr_probe.boot
from dwsr_probe.dataclass import NamedTuple
from dwsr_probe.probe import program_of
from dwsr_probe.signals import wait_for

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Set
    from typing import Any

    Command = list[str] | tuple[str, ...]

EXIT_NOT_EXECUTABLE, EXIT_NOT_FOUND = 126, 127

# These are not forwarded: they cannot be caught, or stop the parent together with the command at a
# terminal, or mean a fault of the parent itself.
_NOT_FORWARDED = {
    signal.SIGKILL,
    signal.SIGSTOP,
    signal.SIGCHLD,
    signal.SIGTSTP,
    signal.SIGTTIN,
    signal.SIGTTOU,
    signal.SIGSEGV,
    signal.SIGBUS,
    signal.SIGFPE,
    signal.SIGILL,
    signal.SIGTRAP,
    signal.SIGSYS,
    signal.SIGPIPE,
}
FORWARDED = frozenset(signal.valid_signals() - _NOT_FORWARDED)
WATCHED = FORWARDED | {signal.SIGCHLD}
_SI_KERNEL = 128  # si_code of a signal from the terminal, which the command's group got as well


class Spawned(NamedTuple):
    """error: errno of a failed exec, or 0. floor_bytes: ru_maxrss of the command is at least this,
    because exec passes on the size of the process before it."""

    pid: int
    error: int
    floor_bytes: int = 0


class CommandEnd(NamedTuple):
    """How the command ended, from wait4. signal: the one that ended it, or None."""

    exit_code: int
    state: str
    signal: int | None
    peak_bytes: int


# -- how it is called


def with_interpreter(command: Command) -> Command:
    """The command, with this interpreter before a Python file. A file that names its own
    interpreter (executable, with a #! line) is called as it is."""
    program, *rest = command
    if (
        not program.endswith((".py", ".pyz"))
        or not os.path.isfile(program)
        or ("/" not in program and _is_on_path(program))
    ):
        return command  # the last case: an installed script, which a shell would find too
    return (
        [os.path.join(".", program), *rest] if _has_shebang(program) else [sys.executable, *command]
    )


def _is_on_path(program: str) -> bool:
    """Whether a shell would find a program of this name."""
    paths = (os.path.join(folder, program) for folder in os.get_exec_path())
    return any(os.access(path, os.X_OK) and not os.path.isdir(path) for path in paths)


def _has_shebang(program: str) -> bool:
    """Whether the file is executable and begins with #!."""
    try:
        with open(program, "rb") as file:
            return os.access(program, os.X_OK) and file.read(2) == b"#!"
    except OSError:
        return False


def short_name(command: Command) -> str:
    """The command in one word, for the run's name and directory: the script or module that an
    interpreter runs, or else the program."""
    program = os.path.basename(command[0])
    kind, value = program_of(command) if program.startswith("python") else ("", "")
    stem = (
        value
        if kind == "-m"
        else os.path.splitext(
            os.path.basename(value) if kind == "script" and value != "-" else program
        )[0]
    )
    return (
        "".join(c if c.isascii() and (c.isalnum() or c in "._-") else "_" for c in stem)[:40]
        or "run"
    )


def python_path(inherited: str | None) -> str:
    """PYTHONPATH with the probe's boot module, which Python loads at its start, in front."""
    boot = os.path.dirname(os.path.abspath(dwsr_probe.boot.__file__))
    rest = [part for part in inherited.split(os.pathsep) if part != boot] if inherited else []
    return os.pathsep.join([boot, *rest])


# -- how it is started


def hold_closed_streams() -> None:
    """Open /dev/null on those of the descriptors 0, 1 and 2 that are closed. exec closes them
    again, so the command finds its streams as the parent found them. Without this, a file of the
    parent could get such a number and be inherited."""
    for stream in range(3):
        try:
            os.fstat(stream)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest free number


def spawn(
    command: Command, environ: Mapping[str, str], mask: Set[int], sigchld_handler: Any
) -> Spawned:
    """fork and exec. Not vfork, which would make the parent's whole size the floor.

    mask: the signal mask of the command. sigchld_handler: its handler of SIGCHLD, as signal.signal
    returned it.
    """
    readable, writable = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            # Python ignores these two signals; the command must not inherit that.
            signal.signal(signal.SIGPIPE, signal.SIG_DFL)
            signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
            signal.signal(
                signal.SIGCHLD, sigchld_handler if sigchld_handler is not None else signal.SIG_DFL
            )
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            os.write(writable, b"%d " % (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024))
            os.execvpe(command[0], command, environ)
        except OSError as error:
            os.write(writable, b"%d" % (error.errno or errno.ENOEXEC))
        except BaseException:
            os.write(writable, b"%d" % errno.EINVAL)
        finally:
            os._exit(127)
    os.close(writable)
    with os.fdopen(readable, "rb") as pipe:
        floor, _, failed = pipe.read().partition(b" ")
    return Spawned(pid, int(failed or 0), int(floor or 0))


def spawn_without_pipe(command: Command, mask: Set[int]) -> Spawned:
    """The same without a descriptor of the parent, and without a floor."""
    try:
        pid = os.posix_spawnp(
            command[0],
            command,
            os.environ,
            setsigmask=mask,
            setsigdef=[signal.SIGPIPE, signal.SIGXFSZ],
        )
        return Spawned(pid, 0)
    except OSError as error:
        return Spawned(0, error.errno or errno.ENOEXEC)


def reap_failed_exec(command: Command, spawned: Spawned) -> tuple[int, str]:
    """Wait for the child whose exec failed. Returns a shell's exit code for it, and the reason."""
    if spawned.pid:
        os.waitpid(spawned.pid, 0)
    missing = spawned.error in (errno.ENOENT, errno.ENOTDIR) or (
        "/" not in command[0] and not _is_on_path(command[0])
    )
    if missing:
        return EXIT_NOT_FOUND, os.strerror(errno.ENOENT)
    return EXIT_NOT_EXECUTABLE, os.strerror(spawned.error)


# -- how its parent waits


def wait_for_end(pid: int, interval_s: float, between: Callable[[], object]) -> CommandEnd:
    """Forward signals to the command until it ends, and call between() at least every
    interval_s."""
    while True:
        info = wait_for(WATCHED, interval_s)
        if info and info.si_signo != signal.SIGCHLD:
            if info.si_code != _SI_KERNEL:
                try:
                    os.kill(pid, info.si_signo)
                except OSError:  # it has ended, or belongs to another user now
                    pass
            continue
        ended, status, usage = os.wait4(pid, os.WNOHANG)
        if ended:
            return _end_of(status, usage)
        between()


def _end_of(status: int, usage: resource.struct_rusage) -> CommandEnd:
    peak_bytes = usage.ru_maxrss * 1024
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        return CommandEnd(128 + number, "killed", number, peak_bytes)
    code = os.WEXITSTATUS(status)
    return CommandEnd(code, "error" if code else "ok", None, peak_bytes)
