"""The process that tries blocks: `main(descriptor of the pipe, board directory)`.

It loads the user's function, reads slices of the array, and calls the function on them under the
probe. The parent (trials.py) asks over a pipe, watches the resident size, and ends this process if
it grows beyond the limit. So neither a function that needs more than expected nor one that crashes
can harm the user's program. What the function prints goes to stderr.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import io
import os
import pickle
import signal
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

import numpy as np

import dwsr_probe
from dwsr_probe.board import records
from dwsr_probe.fit.axes import Allowed, check_axes
from dwsr_probe.fit.error import FitError
from dwsr_probe.fit.function import NamedFunction

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from dwsr_probe.fit.arrays import ArraySource, Slices
    from dwsr_probe.fit.axes import Shared

    Parts = Sequence[Slices | Any]  # of each source: a slice, or the values that the parent sent

_TIMED_S = 0.15  # short calls are repeated for so long, and the shortest time counts
_REPEATS_MOST = 4
# Of calls up to this long, there are at least two: the first one at a size waits for fresh pages
_TWICE_S = 0.6
_PR_SET_PDEATHSIG = 1
_TEXT_MOST = 300  # of an error's text


class _Block:
    """One block's inputs."""

    def __init__(self, sources: Sequence[ArraySource | None], parts: Parts) -> None:
        begin = time.perf_counter()
        self.arrays: list[Any] = [
            part if source is None else source.read(part)
            for source, part in zip(sources, parts, strict=True)
        ]
        self.read_seconds = time.perf_counter() - begin

    def digest(self) -> list[bytes]:
        return [hashlib.blake2b(_bytes_of(array)).digest() for array in self.arrays]


class _Job:
    def __init__(self, function: bytes, sources: Sequence[bytes | None], name: str) -> None:
        with contextlib.suppress(ImportError):  # what a worker has loaded counts for its base
            import dask.array  # noqa: F401
            import distributed.worker  # noqa: F401
        self._sources: list[ArraySource | None] = [
            None if sent is None else pickle.loads(sent) for sent in sources
        ]
        loaded = pickle.loads(function)
        self._function: Callable[..., Any] = (
            loaded.load() if isinstance(loaded, NamedFunction) else loaded
        )
        self._name = name
        self._first_peaks: list[int] = []  # of the first calls of a check
        self._baseline = _resident_bytes()

    def baseline(self) -> int:
        """Resident size with the function's modules loaded, before the first block."""
        return self._baseline

    def trial(self, parts: Parts, other_parts: Parts | None, warm_up: bool) -> dict[str, Any]:
        """Call the function on one block. other_parts: a block of the same shape at another place,
        None without one. It shows whether memory depends on values, and is called if calls are
        short. warm_up: call the function once before, so that imports, plans and caches of the
        first call do not count."""
        block = _Block(self._sources, parts)
        before = block.digest()
        first = self._measured(block)["record"]["alloc_peak_bytes"] or 0 if warm_up else 0
        found = self._measured(block)
        own = found["record"]["alloc_peak_bytes"] or 0
        first_call = max(first - own, _first_call_bytes(self._first_peaks, own)) if warm_up else 0
        until = time.perf_counter() + _TIMED_S - found["seconds"]
        other = None
        if other_parts is not None and (warm_up or time.perf_counter() < until):
            other = self._measured(_Block(self._sources, other_parts))
            found["seconds"] = min(found["seconds"], other["seconds"])
        for number in range(_REPEATS_MOST):
            is_known = other is not None or number > 0 or found["seconds"] > _TWICE_S
            if is_known and time.perf_counter() >= until:
                break
            found["seconds"] = min(found["seconds"], self._measured(block)["seconds"])
        return {
            **found,
            "first_call_bytes": max(0, first_call),
            "read_seconds": block.read_seconds,
            "changed": block.digest() != before,
            "other": other,
        }

    def side_by_side(self, parts: Parts) -> tuple[float, float]:
        """Seconds of a call alone, and of two calls in two threads."""
        arrays = _Block(self._sources, parts).arrays

        def call(_: int) -> None:
            self._function(*arrays)

        with ThreadPoolExecutor(2) as pool:
            list(pool.map(call, range(2)))  # the threads have started
            seconds = []
            for calls in (1, 2, 1, 2):
                began = time.perf_counter()
                list(pool.map(call, range(calls)))
                seconds.append(time.perf_counter() - began)
        return min(seconds[::2]), min(seconds[1::2])

    def axes(
        self,
        parts: Parts,
        axes: Sequence[int],
        depth: Sequence[int],
        shared: Sequence[Shared],
        allowed: tuple[float, float],
    ) -> list[Any]:
        arrays = _Block(self._sources, parts).arrays
        return check_axes(self._checked, arrays, axes, depth, shared, Allowed(*allowed))

    def _checked(self, *arrays: Any) -> Any:
        if len(self._first_peaks) > 1:
            return self._function(*arrays)
        with dwsr_probe.task(self._name) as task:
            result = self._function(*arrays)
        del task
        self._first_peaks.append(records()[-1].to_dict()["alloc_peak_bytes"] or 0)
        return result

    def _measured(self, block: _Block) -> dict[str, Any]:
        with dwsr_probe.task("call") as call:
            began = time.perf_counter()
            with dwsr_probe.task(self._name, inputs=block.arrays) as task:
                result = self._function(*block.arrays)
                seconds = time.perf_counter() - began
                task.output = result
            is_contiguous = _is_contiguous(result)
            del result, task
        del call
        record, around = (found.to_dict() for found in records()[-2:])
        missed = record["rss_peak_bytes"] - self._baseline - sum(a.nbytes for a in block.arrays)
        return {
            "record": record,
            "seconds": seconds,
            "growth_bytes": max(0, missed),
            "kept_bytes": around["alloc_end_bytes"] or 0,
            "device_bytes": _device_bytes(),
            "is_contiguous": is_contiguous,
        }


def _is_contiguous(result: Any) -> bool:
    return bool(getattr(getattr(result, "flags", None), "c_contiguous", True))


def _device_bytes() -> int | None:
    """Memory of the device in use; None without CuPy."""
    cupy = sys.modules.get("cupy")
    if cupy is None:
        return None
    try:
        return int(cupy.cuda.runtime.memGetInfo()[1])
    except Exception:  # no device
        return None


def _first_call_bytes(peaks: Sequence[int], of_larger_block: int) -> int:
    """What the first call took in addition. peaks: of the first calls with one block."""
    return peaks[0] - (peaks[1] if len(peaks) > 1 else of_larger_block) if peaks else 0


def _bytes_of(array: Any) -> Any:
    array = array.get() if hasattr(array, "__cuda_array_interface__") else array
    return np.ascontiguousarray(array).view(np.uint8)


def _resident_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _serve(connection: Connection) -> None:
    """Answers (method, arguments) with (True, value) or (False, text) until the parent closes."""
    job, here = None, os.getpid()
    while True:
        try:
            method, arguments = connection.recv()
        except EOFError:
            return
        answer: tuple[bool, Any]
        try:
            if job is None:
                job = _Job(*arguments)
                answer = True, job.baseline()
            else:
                answer = True, getattr(job, method)(*arguments)
        except FitError as error:
            answer = False, str(error)
        except BaseException as error:  # whatever the user's function raises, SystemExit as well
            answer = False, _text_of(error)
        if os.getpid() != here:  # the function has forked, and both copies have returned
            os._exit(0)
        connection.send(answer)


def _text_of(error: BaseException) -> str:
    text = str(error).strip()
    if len(text) > _TEXT_MOST:
        text = text[:_TEXT_MOST] + "…"
    if isinstance(error, MemoryError):
        return f"it ran out of memory{text and ': ' + text}"
    return f"it raised {type(error).__name__}{text and ': ' + text}"


def main(descriptor: int, board_dir: str) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")  # if memory runs out, the kernel ends this process first
    with contextlib.suppress(OSError):  # stderr may be closed
        os.dup2(2, 1)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)
    connection = Connection(descriptor)
    if not dwsr_probe.start(board_dir=board_dir):
        connection.recv()
        connection.send((False, "the probe cannot start in the process that tries blocks"))
        return
    _serve(connection)
    dwsr_probe.stop()
