"""The process that tries blocks: `python -m dwsr_probe.fit.child DESCRIPTOR LIMIT`.

It loads the user's function, reads slices of the array, and calls the function on them under the
probe. The parent (trials.py) asks over a pipe, watches the resident size, and ends this process if
it grows beyond the limit. So neither a function that needs more than expected nor one that crashes
can harm the user's program. What the function prints goes to stderr.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
import pickle
import signal
import sys
import time
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

import numpy as np

import dwsr_probe
from dwsr_probe.board import records
from dwsr_probe.fit.axes import check_axes
from dwsr_probe.fit.error import FitError
from dwsr_probe.fit.function import NamedFunction

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from dwsr_probe.fit.arrays import ArraySource, Slices

_TIMED_S = 0.15  # short calls are repeated for so long, and the shortest time counts
_REPEATS_MOST = 4
# Of calls up to this long, there are at least two: the first one at a size waits for fresh pages
_TWICE_S = 0.6
_PR_SET_PDEATHSIG = 1


class _Block:
    """One block's inputs: a slice of each source, or values that the parent has sent."""

    def __init__(self, sources: Sequence[ArraySource], parts: Sequence[Any]) -> None:
        begin = time.perf_counter()
        self.arrays = [
            part if isinstance(part, np.ndarray) else source.read(part)
            for source, part in zip(sources, parts, strict=True)
        ]
        self.read_seconds = time.perf_counter() - begin

    def digest(self) -> list[bytes]:
        return [hashlib.blake2b(_bytes_of(array)).digest() for array in self.arrays]


class _Job:
    def __init__(self, function: bytes, sources: bytes, name: str) -> None:
        with contextlib.suppress(ImportError):  # what a worker has loaded counts for its base
            import dask.array  # noqa: F401
            import distributed.worker  # noqa: F401
        self._sources: list[ArraySource] = pickle.loads(sources)
        loaded = pickle.loads(function)
        self._function: Callable[..., Any] = (
            loaded.load() if isinstance(loaded, NamedFunction) else loaded
        )
        self._name = name
        self._baseline = _resident_bytes()

    def baseline(self) -> int:
        """Resident size with the function's modules loaded, before the first block."""
        return self._baseline

    def trial(self, parts: Sequence[Slices | Any], warm_up: bool) -> dict[str, Any]:
        """Call the function on one block. warm_up: call it once before, so that imports, plans
        and caches of the first call do not count."""
        block = _Block(self._sources, parts)
        before = block.digest()
        first = self._measured(block)["record"]["alloc_peak_bytes"] if warm_up else None
        found = self._measured(block)
        until = time.perf_counter() + _TIMED_S - found["seconds"]
        for number in range(_REPEATS_MOST):
            is_known = number > 0 or found["seconds"] > _TWICE_S
            if is_known and time.perf_counter() >= until:
                break
            found["seconds"] = min(found["seconds"], self._measured(block)["seconds"])
        return {
            **found,
            "first_peak_bytes": first,
            "read_seconds": block.read_seconds,
            "changed": block.digest() != before,
        }

    def axes(
        self, parts: Sequence[Slices | Any], axes: Sequence[int], depth: Sequence[int]
    ) -> list[Any]:
        return check_axes(self._function, _Block(self._sources, parts).arrays, axes, depth)

    def _measured(self, block: _Block) -> dict[str, Any]:
        began = time.perf_counter()
        with dwsr_probe.task(self._name, inputs=block.arrays) as task:
            result = self._function(*block.arrays)
            seconds = time.perf_counter() - began
            task.output = result
        del result, task
        record = records()[-1].to_dict()
        missed = record["rss_peak_bytes"] - self._baseline - sum(a.nbytes for a in block.arrays)
        return {"record": record, "seconds": seconds, "growth_bytes": max(0, missed)}


def _bytes_of(array: Any) -> Any:
    array = array.get() if hasattr(array, "__cuda_array_interface__") else array
    return np.ascontiguousarray(array).view(np.uint8)


def _resident_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _serve(connection: Connection) -> None:
    """Answers (method, arguments) with (True, value) or (False, text) until the parent closes."""
    job = None
    while True:
        try:
            method, arguments = connection.recv()
        except EOFError:
            return
        try:
            if job is None:
                job = _Job(*arguments)
                connection.send((True, job.baseline()))
            else:
                connection.send((True, getattr(job, method)(*arguments)))
        except FitError as error:
            connection.send((False, str(error)))
        except MemoryError:
            connection.send((False, "it ran out of memory"))
        except Exception as error:  # whatever the user's function raises
            text = str(error).strip()
            connection.send((False, f"it raised {type(error).__name__}{text and ': ' + text}"))


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which ends this
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")  # if memory runs out, the kernel ends this process first
    os.dup2(2, 1)
    dwsr_probe.start()
    _serve(Connection(int(sys.argv[1])))
    dwsr_probe.stop()


if __name__ == "__main__":
    main()
