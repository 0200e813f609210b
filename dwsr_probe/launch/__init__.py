"""Run a command under the probe: start it, forward signals, store its boards while it runs, return
its exit code.

The command comes first: it keeps stdin, stdout and stderr, its signals and its exit code, and it
runs even if the probe cannot. The parent is one loop around sigtimedwait (command.wait_for_end).
Called by the command line (`dwsr-probe run`).

launch/command.py starts the command and waits for it, launch/directory.py makes the run directory,
launch/unprobed.py describes a command without a board.
"""

from __future__ import annotations

import os
import resource
import signal
import sqlite3
import time

from dwsr_probe.board import list_boards
from dwsr_probe.collector import Collector
from dwsr_probe.launch.command import (
    FORWARDED,
    WATCHED,
    CommandEnd,
    Spawned,
    hold_closed_streams,
    python_path,
    reap_failed_exec,
    spawn,
    spawn_without_pipe,
    wait_for_end,
    with_interpreter,
)
from dwsr_probe.launch.directory import CannotProbe, NewRun, create_run
from dwsr_probe.runs import remember
from dwsr_probe.say import remove_said_files, say
from dwsr_probe.settings import Settings

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Protocol

    from dwsr_probe.launch.command import Command
    from dwsr_probe.store import Store
    from dwsr_probe.total import News

    class MetricsPort(Protocol):
        """export.serving.RunMetricsPort."""

        @property
        def Error(self) -> type[Exception]: ...

        def open(self, store: Store, settings: Settings) -> None: ...
        def start(self) -> None: ...
        def add_news(self, news: list[News]) -> None: ...
        def linger(self, collect: Callable[[], object]) -> None: ...
        def close(self) -> None: ...

    class StatusLine(Protocol):
        """report.status.Status."""

        def update(self, collector: Collector) -> None: ...
        def close(self) -> None: ...


EXIT_STRICT = 125

_ROUND_S = 1.0  # between two rounds of the collector
_CHECK_S = 0.1  # between two checks of how full the rings are
_FILL_LEVEL_MOST = 0.125  # a ring that is fuller than this is stored at once
_RETRY_S = 5.0  # after a failure of the store
_GRACE_S = 0.3  # for children that are about to end when the command has ended


class ProbeRequired(Exception):
    """The probe cannot work, and --strict says to run nothing in that case."""


def run(
    command: Command,
    directory: str | None = None,
    settings: Settings | None = None,
    strict: bool = False,
    metrics: MetricsPort | None = None,
    status: StatusLine | None = None,
) -> tuple[int, str | None]:
    """Run `command`. Returns its exit code and the run directory, or None without one."""
    settings = settings or Settings()
    command = with_interpreter(command)
    hold_closed_streams()
    new: NewRun | None = None
    try:
        new = create_run(command, directory, settings)
    except CannotProbe as problem:
        _warn_or_refuse(str(problem), strict)
    if new and metrics:
        try:
            metrics.open(new.store, settings)
        except metrics.Error as problem:
            if strict:
                new.discard()
                raise ProbeRequired(str(problem)) from problem
            say(f"{problem}. The job runs without metrics")
            metrics = None
    environ = dict(os.environ)
    earlier = list_boards(settings.board_dir) if new else []
    if new:
        environ.update(settings.to_environ())
        environ["PYTHONPATH"] = python_path(environ.get("PYTHONPATH"))
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, WATCHED)
    # If SIGCHLD were ignored, the kernel would not keep the exit code.
    sigchld_handler = signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    try:
        begin = time.time(), time.monotonic()
        try:
            spawned = spawn(command, environ, mask, sigchld_handler)
        except OSError as problem:  # no descriptors for a pipe, or no processes left
            if new:
                new.discard()
                _warn_or_refuse(f"cannot follow the command: {problem}", strict)
            new = None
            spawned = spawn_without_pipe(command, mask)
        if spawned.error:
            if new:
                new.discard()
            code, reason = reap_failed_exec(command, spawned)
            say(f"cannot run {command[0]}: {reason}")
            return code, None
        if not new:
            end = wait_for_end(spawned.pid, _ROUND_S, lambda: None)
            return end.exit_code, None
        store = new.store
        if store.directory:
            remember(store.directory)
        collector = Collector(
            store,
            settings.run,
            settings.board_dir,
            say,
            on_round=metrics.add_news if metrics else None,
            earlier=earlier,
        )
        end = _follow(command, spawned, collector, store, metrics, status, begin)
        return end.exit_code, store.directory
    finally:
        if status:
            status.close()
        if metrics:
            metrics.close()
        if new:
            remove_said_files(settings)
        while signal.sigtimedwait(FORWARDED, 0):  # they were meant for the command, which has ended
            pass
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _warn_or_refuse(reason: str, strict: bool) -> None:
    """Say that the command will run without the probe; with --strict, run nothing."""
    if strict:
        raise ProbeRequired(reason)
    say(f"{reason}. The job runs unprobed")


class _Rounds:
    """Calls the collector's rounds when they are due. The first failure is reported. After a
    failure the round is tried again later, and the boards stay until then."""

    def __init__(self, collector: Collector, directory: str | None) -> None:
        self._collector, self._directory = collector, directory
        self.failing = False
        self._reported, self._next_s = False, 0.0

    def round_if_due(self) -> None:
        try:
            is_due = time.monotonic() >= self._next_s or (
                not self.failing and self._collector.highest_fill_level() > _FILL_LEVEL_MOST
            )
        except Exception as error:
            self._on_failure(error)
            return
        if is_due:
            self.round()

    def round(self) -> int:
        """How many processes of the run are alive; 0 after a failure."""
        self._next_s = time.monotonic() + _ROUND_S
        try:
            alive = self._collector.round()
            self.failing = False
            return alive
        except Exception as error:
            self._on_failure(error)
            return 0

    def _on_failure(self, error: Exception) -> None:
        self.failing = True
        self._next_s = time.monotonic() + _RETRY_S
        if not self._reported:
            say(
                f"cannot write {self._directory}: {error}; the job goes on, its"
                f" boards stay in {self._collector.directory}: make room, then dwsr-probe report"
                " collects them"
            )
        self._reported = True


def raise_descriptor_limit() -> None:
    """The collector needs one descriptor per living board. The command has its own limit."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (OSError, ValueError):
        pass


def _follow(
    command: Command,
    spawned: Spawned,
    collector: Collector,
    store: Store,
    metrics: MetricsPort | None,
    status: StatusLine | None,
    begin: tuple[float, float],
) -> CommandEnd:
    """Store the boards of the command until it has ended, and then how it ended.

    begin: the date and the monotonic time just before the command was started.
    """
    pid, (started, begin_s) = spawned.pid, begin
    raise_descriptor_limit()
    collector.expect_exit(pid)
    if metrics:
        metrics.start()
    rounds = _Rounds(collector, store.directory)

    def between() -> None:
        rounds.round_if_due()
        if status:
            status.update(collector)

    end = wait_for_end(pid, _CHECK_S, between)
    end_s = time.monotonic()
    collector.note_exit(pid, end.state, end.signal)
    alive = rounds.round()
    while alive and time.monotonic() < end_s + _GRACE_S:
        signal.sigtimedwait([signal.SIGCHLD], 0.02)
        alive = rounds.round()
    if metrics:
        metrics.linger(rounds.round)
        metrics.close()  # before store.finish: the port reads the store
        alive = rounds.round()
    if not rounds.failing:
        ended = started + end_s - begin_s  # the machine's date may have been set in between
        try:
            if pid not in collector.pids or pid in collector.replaced:
                from dwsr_probe.launch.unprobed import store_unprobed

                store_unprobed(
                    store,
                    collector.run or "",
                    command,
                    spawned,
                    end,
                    started=started,
                    ended=ended,
                    replaced=pid in collector.replaced,
                )
            store.set_meta(end=ended, exit_code=end.exit_code)
            if not alive:
                store.finish()
        except sqlite3.Error as error:
            say(f"cannot write {store.directory}: {error}")
    if alive:
        still, when = (
            ("es of the job still run", "them when they end")
            if alive > 1
            else (" of the job still runs", "it when it ends")
        )
        say(f"{alive} process{still}; dwsr-probe report will collect {when}")
    store.close()
    return end
