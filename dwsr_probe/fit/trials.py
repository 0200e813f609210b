"""Small blocks, tried in a process of its own (child.py) whose resident size is limited.

The limit is kept by watching: an address-space limit would count reservations as well. A process
that grows beyond it is ended. The process leads a session of its own, so Ctrl-C in a terminal does
not reach it, and what the function has started is ended with it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager, suppress
from multiprocessing import Pipe
from typing import TYPE_CHECKING, Any, NamedTuple

from dwsr_probe.fit.error import FitError
from dwsr_probe.fit.function import NamedFunction, name_of_function, pickled
from dwsr_probe.settings import SWITCH, Settings
from dwsr_probe.words import bytes_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from multiprocessing.connection import Connection

    from dwsr_probe.fit.arrays import ArraySource, Slices
    from dwsr_probe.fit.axes import AxisCheck, Shared

_WATCH_PERIOD_S = 0.002
_CHILDREN_EACH = 10  # of the periods: what the function has started is watched, too
_GROWTH_LEAST_BYTES = 256 << 20  # that a trial may take, whatever the memory asked for
_LIBRARIES_BYTES = 2 << 30  # that the function's modules may take in addition
_FUNCTION_BYTES_MOST = 1 << 30
_END_S = 2.0  # that the process may take for its own cleaning up
# What Dask's nanny sets for its workers: one thread per library, and memory given back at once
_WORKER_ENVIRONMENT = {
    "MALLOC_TRIM_THRESHOLD_": "65536",
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
}


class TrialFailed(FitError):
    """The function raised an exception on a block. Another block may be tried."""


class TriedCall(NamedTuple):
    """What one call of the function took. need_bytes: its own peak, or the growth of the process
    if the own peak misses memory. other_need_bytes: of a block of the same shape at another place;
    None if none was tried. first_call_bytes: what the first call took in addition. kept_bytes: what
    stays allocated after the call, without its result. reason: why the own peak is not exact; None
    if it is. device_bytes: memory of the device in use; None without one.
    is_contiguous: the result; another one is copied before it is stored."""

    shape: tuple[int, ...]
    record: dict[str, Any]
    need_bytes: int
    other_need_bytes: int | None
    first_call_bytes: int
    kept_bytes: int
    seconds: float
    read_seconds: float
    reason: str | None
    device_bytes: int | None = None
    is_contiguous: bool = True

    @property
    def input_bytes(self) -> int:
        found: int = self.record["input_bytes"]
        return found


class Trials:
    """The process, and what it has cost so far."""

    def __init__(self, connection: Connection, process: subprocess.Popen[bytes]) -> None:
        self._connection, self._process = connection, process
        self._sources: Sequence[ArraySource] = ()
        self._growth_bytes = 0.0  # beyond the baseline
        self.baseline_bytes = 0
        self.name = ""

    def load(self, function: Any, sources: Sequence[ArraySource], limit_bytes: float) -> None:
        """limit_bytes: how far the process may grow beyond its size before the first block."""
        if not callable(function) and not isinstance(function, NamedFunction):
            raise FitError(f"{function!r} is not a function; give one that is called with a block")
        self._sources = sources
        self.name = name_of_function(function)
        message = pickled(function, _FUNCTION_BYTES_MOST), [s.sent for s in sources], self.name
        limit_bytes = max(limit_bytes, _GROWTH_LEAST_BYTES)
        self._growth_bytes = limit_bytes + _LIBRARIES_BYTES
        self.baseline_bytes = self._ask("load", message)
        self._growth_bytes = limit_bytes

    def run(
        self, indexes: Sequence[Slices], others: Sequence[Slices] | None, warm_up: bool
    ) -> TriedCall:
        """One block. indexes: a slice of each source. others: of the same shape, elsewhere.
        TrialFailed says what the function raised."""
        began = time.perf_counter()
        parts = self._parts(indexes)
        read_seconds = time.perf_counter() - began
        other_parts = None if others is None else self._parts(others)
        found = self._ask("trial", (parts, other_parts, warm_up))
        record = found["record"]
        if found["changed"]:
            raise FitError(
                f"{self.name} changes its input: with Dask this corrupts the values of other tasks;"
                " let it work on a copy"
            )
        return TriedCall(
            tuple(record["inputs"][0]["shape"]),
            record,
            _need_bytes(found),
            _need_bytes(found["other"]) if found["other"] else None,
            found["first_call_bytes"],
            found["kept_bytes"],
            found["seconds"],
            read_seconds + found["read_seconds"],
            record["attribution_reason"],
            found["device_bytes"],
            found["is_contiguous"],
        )

    def serial_share(self, indexes: Sequence[Slices]) -> float:
        """The share of a call during which a second thread has to wait, from two calls side by
        side."""
        alone, both = self._ask("side_by_side", (self._parts(indexes),))
        return min(1.0, max(0.0, both / max(alone, 1e-9) - 1))

    def check_axes(
        self,
        indexes: Sequence[Slices],
        axes: Sequence[int],
        depth: Sequence[int],
        shared: Sequence[Shared],
        allowed: tuple[float, float],
    ) -> list[AxisCheck]:
        """allowed: as axes.Allowed."""
        arguments = self._parts(indexes), axes, depth, shared, allowed
        found: list[AxisCheck] = self._ask("axes", arguments)
        return found

    def _parts(self, indexes: Sequence[Slices]) -> list[Any]:
        return [
            source.read(index) if source.sent is None else index
            for source, index in zip(self._sources, indexes, strict=True)
        ]

    def _ask(self, method: str, arguments: tuple[Any, ...]) -> Any:
        pid, periods = self._process.pid, 0
        try:
            self._connection.send((method, arguments))
            while not self._connection.poll(_WATCH_PERIOD_S):
                periods += 1
                grown = _grown_bytes(pid, self.baseline_bytes, periods % _CHILDREN_EACH == 0)
                if grown > self._growth_bytes:
                    os.killpg(pid, signal.SIGKILL)  # at once: it may allocate without end
                    raise FitError(
                        f"{self.name} was stopped: it needed more than"
                        f" {bytes_text(self._growth_bytes)}, all that a trial may take"
                    )
                # Not seen by poll if a process that the function has forked holds the pipe, too
                if _has_ended(pid) and not self._connection.poll():
                    raise EOFError
            is_done, value = self._connection.recv()
        except (EOFError, OSError):
            raise FitError(
                f"{self.name} ended the process that tried it ({_end(self._process, _END_S)})"
            ) from None
        if not is_done:
            raise TrialFailed(f"{self.name} failed: {value}")
        return value


def _need_bytes(found: dict[str, Any]) -> int:
    own, misses = found["record"]["alloc_peak_bytes"], found["record"]["attribution_reason"]
    return max(own or 0, found["growth_bytes"] if misses or own is None else 0)


@contextmanager
def trials() -> Iterator[Trials]:
    """The process lives within the block, and no longer."""
    ours, theirs = Pipe()
    with tempfile.TemporaryDirectory(prefix="dwsr-probe-fit-", ignore_cleanup_errors=True) as board:
        # The path as it is here: the function's modules may be beside a script
        path = [str(folder) for folder in sys.path]
        code = f"import sys; sys.path[:] = {path!r}; from dwsr_probe.fit.child import main; "
        environment = {**os.environ, **_WORKER_ENVIRONMENT, SWITCH: ""}
        try:
            process = subprocess.Popen(
                [sys.executable, "-c", f"{code}main({theirs.fileno()}, {board!r})"],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                # Without the run that this process may belong to: trials are none of its tasks
                env={**environment, **Settings(board_dir=board).to_environ()},
                start_new_session=True,
            )
        except OSError as error:
            raise FitError(f"cannot start a process for trials: {error}") from error
        finally:
            theirs.close()
        patience_s = 0.0
        try:
            yield Trials(ours, process)
            patience_s = _END_S
        finally:
            ours.close()
            _end(process, patience_s)


def _end(process: subprocess.Popen[bytes], patience_s: float) -> str:
    """Ends the process and what it has started. Returns how it ended, in words."""
    until = time.monotonic() + patience_s
    while not _has_ended(process.pid) and time.monotonic() < until:
        time.sleep(_WATCH_PERIOD_S)
    if process.returncode is None:  # not waited for: its number cannot be another process's
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
    code = process.wait()
    return f"exit code {code}" if code >= 0 else f"signal {signal.Signals(-code).name}"


def _has_ended(pid: int) -> bool:
    try:
        options = os.WEXITED | os.WNOHANG | os.WNOWAIT
        return os.waitid(os.P_PID, pid, options) is not None
    except ChildProcessError:  # waited for already
        return True


def _grown_bytes(pid: int, baseline_bytes: int, with_children: bool) -> int:
    """Resident size beyond the baseline, with that of the processes that it has started."""
    grown = max(0, _resident_bytes(pid) - baseline_bytes)
    if with_children:
        grown += sum(_grown_bytes(child, baseline_bytes, True) for child in _children(pid))
    return grown


def _children(pid: int) -> list[int]:
    found: list[int] = []
    with suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with suppress(OSError), open(f"/proc/{pid}/task/{thread}/children") as file:
                found += map(int, file.read().split())
    return found


def _resident_bytes(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError):
        return 0  # it has just ended
