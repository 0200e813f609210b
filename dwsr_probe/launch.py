"""Run a command under the probe: start it, forward signals, drain its boards while it runs,
return its exit code.

The command comes first: it keeps stdin, stdout and stderr, its signals and its exit code, and it
runs even if the probe cannot. Everything else here is the parent's loop around one sigtimedwait.
"""

import errno
import os
import resource
import signal
import sqlite3
import sys
import time

import dwsr_probe.boot
from dwsr_probe import _core
from dwsr_probe.advice import failure_text
from dwsr_probe.board import list_boards
from dwsr_probe.collector import Collector
from dwsr_probe.probe import program_of
from dwsr_probe.process import process_key, start_ticks
from dwsr_probe.record import TaskRecord
from dwsr_probe.runs import HOME, remember, sweep
from dwsr_probe.say import remove_marks, say
from dwsr_probe.settings import SWITCH, Settings, switched_off
from dwsr_probe.signals import wait_for
from dwsr_probe.store import FILE, Store, StoreError

EXIT_STRICT, EXIT_NOT_EXECUTABLE, EXIT_NOT_FOUND = 125, 126, 127

# Not these: they cannot be caught, stop us together with the command at a terminal, or mean a fault
# of our own.
_OWN = {
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
FORWARDED = frozenset(signal.valid_signals() - _OWN)
_SI_KERNEL = 128  # from the terminal: it reached the command's process group already
# a round each second, or as soon as a look finds a ring this full
_ROUND_S, _LOOK_S, _PRESSURE = 1.0, 0.1, 0.125
_RETRY_S = 5.0  # after a failure of the store
_FLOOR_SLACK_BYTES = 2 << 20  # what the child still touches on its way into exec
_GRACE_S = 0.3  # for children that are just ending when the command has ended


class Strict(Exception):
    """The probe cannot work and the user asked to stop then."""


def run(command, directory=None, settings=None, strict=False, metrics=None, status=None):
    """Run `command`; (exit code, run directory or None). metrics: a serving.Serving, or None.
    status: a report.status.Status, or None."""
    settings = settings or Settings()
    command = _with_interpreter(command)
    _hold_closed_streams()
    store, made = _prepare(command, directory, settings, strict)
    if store and metrics:
        try:
            metrics.open(store, settings)
        except metrics.Error as error:
            if strict:
                _forget(store, made)
                raise Strict(str(error)) from error
            say(f"{error}. The job runs without metrics")
            metrics = None
    environ = dict(os.environ)
    earlier = list_boards(settings.board_dir) if store else ()
    if store:
        environ.update(settings.to_environ())
        environ["PYTHONPATH"] = _python_path(environ.get("PYTHONPATH"))
    watched = FORWARDED | {signal.SIGCHLD}
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, watched)
    # ignored, it would take the exit code with it
    on_child = signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    try:
        try:
            pid, error, floor = _spawn(command, environ, mask, on_child)
        except OSError as failed:  # no descriptors for a pipe, or no processes left
            _forget(store, made)
            if store:
                _unprobed(f"cannot follow the command: {failed}", strict)
            store = None
            pid, error = _spawn_bare(command, mask)
        if error:
            if pid:
                os.waitpid(pid, 0)
            _forget(store, made)
            missing = error in (errno.ENOENT, errno.ENOTDIR) or (
                "/" not in command[0] and not _on_path(command[0])
            )
            say(f"cannot run {command[0]}: {os.strerror(errno.ENOENT if missing else error)}")
            return EXIT_NOT_FOUND if missing else EXIT_NOT_EXECUTABLE, None
        if not store:
            how, _ = _wait(pid, watched, _ROUND_S, lambda: None)
            return (
                os.waitstatus_to_exitcode(how) if os.WIFEXITED(how) else 128 + os.WTERMSIG(how)
            ), None
        remember(store.directory)
        return _follow(command, pid, floor, watched, store, settings, metrics, status, earlier)
    finally:
        if status:
            status.close()
        if metrics:
            metrics.close()
        if store:
            remove_marks(settings)
        while signal.sigtimedwait(FORWARDED, 0):  # meant for the command, which is gone: not for us
            pass
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


# -- before


def _hold_closed_streams():
    """The command is to find 0, 1 and 2 as we did: where one is closed, nothing of ours may take
    its place and be inherited."""
    for stream in range(3):
        try:
            os.fstat(stream)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets that number, and is closed by exec


def _prepare(command, directory, settings, strict):
    """The store and the directories made for it, from the outermost in; (None, []) where the
    command must run unprobed."""
    started = time.time()
    name = _run_name(command)
    if switched_off():
        _unprobed(f"the probe is switched off ({SWITCH}=off)", strict)
        return None, []
    stamp = time.strftime("%Y%m%d-%H%M%S", time.localtime(started))
    settings.run = f"{stamp}-{name}-{os.getpid()}"
    try:
        _core.try_board(os.fsencode(settings.board_dir))
    except OSError as error:
        _unprobed(failure_text(error, settings.board_dir), strict)
        return None, []
    sweep(settings.board_dir)
    made = []
    try:
        store = Store.create(
            _free_directory(directory, os.path.join(HOME, f"{stamp}-{name}"), made)
        )
        store.set_meta(
            run=settings.run,
            command=list(command),
            start=started,
            host=os.uname().nodename,
            parent=os.getpid(),
            parent_ticks=start_ticks(os.getpid()),
            board_dir=settings.board_dir,
        )
    except (StoreError, OSError, sqlite3.Error) as error:
        text = (
            str(error)
            if isinstance(error, StoreError)
            else f"cannot write a run directory here: {error}; choose another with -o DIR"
        )
        _remove(made)
        _unprobed(text, strict)
        return None, []
    return store, made


def _unprobed(text, strict):
    if strict:
        raise Strict(text)
    say(f"{text}. The job runs unprobed")


def _free_directory(chosen, default, made):
    """The directory itself, or one beside it when that holds a run already: nothing is overwritten.

    Directories that had to be made are added to `made`.
    """
    directory = candidate = os.path.abspath(chosen or default)
    n = 1
    while True:
        try:
            # whoever makes it has it; task names and keys are this user's
            _make(candidate, made, 0o700)
            break
        except FileExistsError:
            if (
                chosen
                and os.path.isdir(candidate)
                and not os.path.exists(os.path.join(candidate, FILE))
            ):
                break
            if not os.path.isdir(candidate):
                raise StoreError(
                    f"cannot write the run directory {candidate}: it is not a directory; choose"
                    " another with -o DIR"
                ) from None
        n += 1
        candidate = f"{directory}-{n}"
    if chosen and candidate != directory:
        say(f"{directory} holds a run already; this one goes to {candidate}")
    return candidate


def _make(directory, made, mode=0o777):
    """Like os.makedirs, and adds what was made by us, and by nobody else, to `made`."""
    parent = os.path.dirname(directory)
    if not os.path.exists(parent):
        try:
            _make(parent, made)
        except FileExistsError:  # another process was faster: the directory is its own
            pass
    os.mkdir(directory, mode)
    made.append(directory)


def _remove(made):
    """Directories that we made, innermost first, as far as they are empty."""
    for directory in reversed(made):
        try:
            os.rmdir(directory)
        except OSError:
            pass


def _forget(store, made):
    """Nothing ran: leave no run directory behind. Directories that were there before stay, empty
    or not."""
    if store:
        store.close()
        for suffix in ("", "-wal", "-shm"):
            try:
                os.unlink(os.path.join(store.directory, FILE + suffix))
            except OSError:
                pass
        _remove(made)


def _with_interpreter(command):
    """The command with this interpreter before a Python file, unless the file names its own
    (executable, with a #! line)."""
    program, *rest = command
    if (
        not program.endswith((".py", ".pyz"))
        or not os.path.isfile(program)
        or ("/" not in program and _on_path(program))
    ):
        return command  # the last: an installed script, which a shell would find, too
    return (
        [os.path.join(".", program), *rest]
        if _names_interpreter(program)
        else [sys.executable, *command]
    )


def _on_path(program):
    """Whether a program of this name is there that a shell would start."""
    paths = (os.path.join(folder, program) for folder in os.get_exec_path())
    return any(os.access(path, os.X_OK) and not os.path.isdir(path) for path in paths)


def _names_interpreter(program):
    try:
        with open(program, "rb") as file:
            return os.access(program, os.X_OK) and file.read(2) == b"#!"
    except OSError:
        return False


def _run_name(command):
    """A word for the run's directory: the script of an interpreter, else the program."""
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


def _python_path(inherited):
    boot = os.path.dirname(os.path.abspath(dwsr_probe.boot.__file__))
    rest = (
        [part for part in (inherited or "").split(os.pathsep) if part != boot] if inherited else []
    )
    return os.pathsep.join([boot, *rest])


# -- the command


def _spawn(command, environ, mask, on_child):
    """fork and exec; (pid, errno of a failed exec or 0, floor).

    The floor: exec passes the size of the process before it on as the least ru_maxrss can say.
    Not vfork: that would be all of ours.
    """
    readable, writable = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            # Python ignores these two; the command must not inherit that
            signal.signal(signal.SIGPIPE, signal.SIG_DFL)
            signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
            signal.signal(signal.SIGCHLD, on_child if on_child is not None else signal.SIG_DFL)
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
    return pid, int(failed or 0), int(floor or 0)


def _spawn_bare(command, mask):
    """The same without a descriptor and without a floor: (pid, errno)."""
    try:
        return (
            os.posix_spawnp(
                command[0],
                command,
                os.environ,
                setsigmask=mask,
                setsigdef=[signal.SIGPIPE, signal.SIGXFSZ],
            ),
            0,
        )
    except OSError as error:
        return 0, error.errno or errno.ENOEXEC


def _wait(pid, watched, look_s, look):
    """Until the command ends: forward signals, call look() at least every look_s. Returns
    wait4's status and usage."""
    while True:
        info = wait_for(watched, look_s)
        if info and info.si_signo != signal.SIGCHLD:
            if info.si_code != _SI_KERNEL:
                try:
                    os.kill(pid, info.si_signo)
                except OSError:  # it is gone, or another user's now
                    pass
            continue
        ended, status, usage = os.wait4(pid, os.WNOHANG)
        if ended:
            return status, usage
        look()


class _Draining:
    """Rounds of the collector at the right moments. A failure is said once and tried again
    later; the boards stay meanwhile."""

    def __init__(self, collector):
        self.collector, self.failing, self._said, self._next = collector, False, False, 0.0

    def look(self):
        try:
            due = time.monotonic() >= self._next or (
                not self.failing and self.collector.pressure() > _PRESSURE
            )
        except Exception as error:
            return self._failed(error)
        if due:
            self.round()

    def round(self):
        self._next = time.monotonic() + _ROUND_S
        try:
            alive = self.collector.round()
            self.failing = False
            return alive
        except Exception as error:
            return self._failed(error)

    def _failed(self, error):
        self.failing = True
        self._next = time.monotonic() + _RETRY_S
        if not self._said:
            say(
                f"cannot write {self.collector.store.directory}: {error}; the job goes on, its"
                f" boards stay in {self.collector.directory}: make room, then dwsr-probe report"
                " collects them"
            )
        self._said = True
        return 0


def raise_descriptor_limit():
    """One descriptor per live board; the command has its own limit already."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (OSError, ValueError):
        pass


def _follow(command, pid, floor, watched, store, settings, metrics, status, earlier):
    started, begin = time.time(), time.monotonic()
    raise_descriptor_limit()
    collector = Collector(
        store,
        settings.run,
        settings.board_dir,
        say,
        on_round=metrics.ended if metrics else None,
        earlier=earlier,
    )
    collector.await_exit(pid)
    if metrics:
        metrics.start()
    draining = _Draining(collector)

    def look():
        draining.look()
        if status:
            status.look(collector)

    how, usage = _wait(pid, watched, _LOOK_S, look)
    end = time.monotonic()
    ended = started + end - begin  # the machine's clock may have been set meanwhile
    signalled = os.WIFSIGNALED(how)
    code = 128 + os.WTERMSIG(how) if signalled else os.WEXITSTATUS(how)
    state = "killed" if signalled else "error" if code else "ok"
    ended_by = os.WTERMSIG(how) if signalled else None
    collector.note_exit(pid, state, ended_by)
    alive = draining.round()
    while alive and time.monotonic() < end + _GRACE_S:
        signal.sigtimedwait([signal.SIGCHLD], 0.02)
        alive = draining.round()
    if metrics:
        metrics.linger(draining.round)
        metrics.close()  # before the store is finished: its reader is open
        alive = draining.round()
    if not draining.failing:
        try:
            if pid not in collector.pids or pid in collector.replaced:
                _store_unprobed(
                    store,
                    settings.run,
                    command,
                    pid,
                    started,
                    ended,
                    state,
                    ended_by,
                    usage.ru_maxrss * 1024,
                    floor,
                    pid in collector.replaced,
                )
            store.set_meta(end=ended, exit_code=code)
            if not alive:
                store.finish()
        except sqlite3.Error as error:
            say(f"cannot write {store.directory}: {error}")
    if alive:
        say(
            f"{alive}"
            f" process{'es of the job still run' if alive > 1 else ' of the job still runs'};"
            " dwsr-probe report will collect"
            f" {'them when they end' if alive > 1 else 'it when it ends'}"
        )
    store.close()
    return code, store.directory


def _store_unprobed(
    store, run, command, pid, started, ended, state, ended_by, peak, floor, replaced
):
    """The process row of a command without a board, from wait4; also of the program that a
    probed one became by exec."""
    from dwsr_probe.boot.start import options_keep_probe_out

    name = os.path.basename(command[0]) + (" (exec)" if replaced else "")
    if name.startswith("python") and not replaced:
        why = (
            "-I, -S and -E keep it out"
            if options_keep_probe_out(command)
            else "this interpreter cannot load it"
        )
        say(f"{name} ran without the probe ({why}): only the whole process was measured")
    known = peak > floor + _FLOOR_SLACK_BYTES
    record = TaskRecord(
        kind="process",
        run=run,
        host=os.uname().nodename,
        pid=pid,
        process=process_key(pid, started),
        thread=pid,
        task_name=name,
        state=state,
        start=started,
        duration=ended - started,
        rss_peak_bytes=peak if known else None,
        rss_peak_source="kernel" if known else None,
        overlap=0,
        attribution="exact",
    )
    store.put_process(
        record,
        {
            "limit_bytes": _core.memory_limit(),
            "unprobed": True,
            "signal": ended_by,
            "peak_below_bytes": None if known else peak,
        },
    )
