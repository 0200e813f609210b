"""Small blocks, tried in a process of its own (child.py) whose resident size is limited.

The limit is kept by watching: an address-space limit would count reservations as well. A process
that grows beyond it is ended, and the block counts as too large.
"""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import contextmanager
from multiprocessing import Pipe
from typing import TYPE_CHECKING, Any, NamedTuple

from dwsr_probe.fit.error import FitError
from dwsr_probe.fit.function import NamedFunction, name_of_function, pickled
from dwsr_probe.words import bytes_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from multiprocessing.connection import Connection

    from dwsr_probe.fit.arrays import ArraySource, Slices
    from dwsr_probe.fit.axes import AxisCheck

_WATCH_PERIOD_S = 0.002
_GROWTH_LEAST_BYTES = 256 << 20  # that a trial may take, whatever the memory asked for
# What Dask's nanny sets for its workers: one thread per library, and memory given back at once
_WORKER_ENVIRONMENT = {
    "MALLOC_TRIM_THRESHOLD_": "65536",
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
}


class TrialFailed(FitError):
    """The function failed on a block, or needed more memory than a trial may take."""


class TriedCall(NamedTuple):
    """What one call of the function took. need_bytes: its own peak, or the growth of the process
    if the own peak misses memory. first_call_bytes: what the first call took in addition.
    kept_bytes: what stays allocated after the call, beyond its result. reason: why the own peak is
    not exact; None if it is."""

    shape: tuple[int, ...]
    record: dict[str, Any]
    need_bytes: int
    first_call_bytes: int
    kept_bytes: int
    seconds: float
    read_seconds: float
    reason: str | None


class Trials:
    """The process, and what it has cost so far."""

    def __init__(self, connection: Connection, process: subprocess.Popen[bytes]) -> None:
        self._connection, self._process = connection, process
        self._sources: Sequence[ArraySource] = ()
        self._limit_bytes = 0.0
        self.baseline_bytes = 0
        self.name = ""

    def load(self, function: Any, sources: Sequence[ArraySource], limit_bytes: float) -> None:
        """limit_bytes: how far the process may grow beyond its size before the first block."""
        self._sources = sources
        self.name = name_of_function(function)
        sent = [source if not source.stays_here else None for source in sources]
        if isinstance(function, NamedFunction):
            self.name = function.name
        message = pickled(function), pickled(sent), self.name
        self._limit_bytes = float("inf")
        self.baseline_bytes = self._ask("load", message)
        self._limit_bytes = self.baseline_bytes + max(limit_bytes, _GROWTH_LEAST_BYTES)

    def run(self, indexes: Sequence[Slices], warm_up: bool) -> TriedCall:
        """One block. indexes: a slice of each source. TrialFailed says what the function did."""
        found = self._ask("trial", (self._parts(indexes), warm_up))
        record = found["record"]
        own, misses = record["alloc_peak_bytes"], record["attribution_reason"]
        need = max(own or 0, found["growth_bytes"] if misses or own is None else 0)
        shape = tuple(record["inputs"][0]["shape"])
        if found["changed"]:
            raise FitError(
                f"{self.name} changes its input: with Dask this corrupts the values of other tasks;"
                " let it work on a copy"
            )
        first = found["first_peak_bytes"]
        return TriedCall(
            shape,
            record,
            need,
            max(0, first - own) if first is not None and own is not None else 0,
            max(0, (record["alloc_end_bytes"] or 0) - (record["output_bytes"] or 0)),
            found["seconds"],
            found["read_seconds"],
            misses,
        )

    def check_axes(
        self, indexes: Sequence[Slices], axes: Sequence[int], depth: Sequence[int]
    ) -> list[AxisCheck]:
        found: list[AxisCheck] = self._ask("axes", (self._parts(indexes), axes, depth))
        return found

    def _parts(self, indexes: Sequence[Slices]) -> list[Any]:
        return [
            source.read(index) if source.stays_here else index
            for source, index in zip(self._sources, indexes, strict=True)
        ]

    def _ask(self, method: str, arguments: tuple[Any, ...]) -> Any:
        try:
            self._connection.send((method, arguments))
            while not self._connection.poll(_WATCH_PERIOD_S):
                if _resident_bytes(self._process.pid) > self._limit_bytes:
                    raise TrialFailed(
                        f"{self.name} needs more than {bytes_text(self._limit_bytes)} for this"
                        " small block"
                    )
            is_done, value = self._connection.recv()
        except (EOFError, ConnectionError):
            self._process.wait()
            raise TrialFailed(
                f"the process that tried {self.name} ended with exit code"
                f" {self._process.returncode}"
            ) from None
        if not is_done:
            raise TrialFailed(f"{self.name} failed: {value}")
        return value


@contextmanager
def trials() -> Iterator[Trials]:
    """The process lives within the block, and no longer."""
    ours, theirs = Pipe()
    process = subprocess.Popen(
        [sys.executable, "-m", "dwsr_probe.fit.child", str(theirs.fileno())],
        pass_fds=[theirs.fileno()],
        stdin=subprocess.DEVNULL,
        env={**os.environ, **_WORKER_ENVIRONMENT},
    )
    theirs.close()
    try:
        yield Trials(ours, process)
    finally:
        ours.close()
        process.kill()
        process.wait()


def _resident_bytes(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError):
        return 0  # it has just ended
