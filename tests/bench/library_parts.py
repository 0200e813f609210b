"""What following a library adds to one step of it: a step of an asyncio loop, an allocation by
Arrow. Functions of Runs, called by the rows of tests/bench/budgets.py and tests/bench/libraries.py.
"""

import asyncio
import ctypes
import shutil
import threading
import time
from functools import cache
from pathlib import Path

import dwsr_probe
from tests.bench import HERE, compiled, in_fresh_python
from tests.bench.figure import NotMeasured, difference

COROUTINES, STEPS = 10, 5_000
PAIRS = {64: 1_000_000, 1 << 20: 50_000}


async def _step():
    for _ in range(STEPS):
        await asyncio.sleep(0)


async def _steps():
    """Microseconds of CPU of a step, of the loop's thread."""
    begin = time.thread_time()
    await asyncio.gather(*(_step() for _ in range(COROUTINES)))
    return (time.thread_time() - begin) / (COROUTINES * STEPS) * 1e6


class _Loop:
    """An event loop in a thread of its own that is older than every task, as zarr and fsspec have
    one."""

    def __init__(self):
        self.loop = asyncio.new_event_loop()
        threading.Thread(target=self.loop.run_forever, daemon=True).start()

    def step(self):
        return asyncio.run_coroutine_threadsafe(_steps(), self.loop).result()


def steps_without_tasks():
    """Prints microseconds of a step: the least bare, and the least beside the probe in a process
    that has no task. In a fresh process."""
    loop, bare, probed = _Loop(), [], []
    for _ in range(7):
        bare.append(loop.step())
        assert dwsr_probe.start(alloc=True, period_ms=1000)
        probed.append(loop.step())
        dwsr_probe.stop()
    print(min(bare), min(probed))


def steps_for_task(probed):
    """Prints microseconds of a step that a task has handed to the loop: the least of several. In a
    fresh process, which starts the probe or is bare to its end: a bare step must not meet what the
    probe has placed."""
    loop = _Loop()
    if probed:
        assert dwsr_probe.start(alloc=True, period_ms=1000)
    found = []
    for _ in range(7):
        with dwsr_probe.task("steps"):
            found.append(loop.step())
    print(min(found))


def _in_turn(runs, call):
    """Numbers of fresh processes that are bare and probed, in turn."""
    bare, probed = [], []
    for _ in range(runs.rounds(11, 3)):
        for found, on in ((bare, False), (probed, True)):
            code = f"from tests.bench import library_parts; library_parts.{call.format(on)}"
            found.append(in_fresh_python(code)[0])
    return bare, probed


def asyncio_step_for_task(runs):
    bare, probed = _in_turn(runs, "steps_for_task({})")
    return difference(bare, probed, said=f"bare {min(bare):.2f} µs")


def asyncio_step_without_tasks(runs):
    code = "from tests.bench.library_parts import steps_without_tasks; steps_without_tasks()"
    rows = [in_fresh_python(code) for _ in range(runs.rounds(11, 3))]
    bare, probed = zip(*rows, strict=True)
    return difference(bare, probed, said=f"bare {min(bare):.2f} µs")


@cache
def _pairs_library():
    """Compiled against the headers that pyarrow brings, linked to its own libarrow."""
    try:
        import pyarrow
    except ImportError:
        raise NotMeasured("pyarrow is missing: pip install pyarrow") from None
    if not shutil.which("g++"):
        raise NotMeasured("g++ is missing: apt-get install g++")
    (arrow,) = Path(pyarrow.get_library_dirs()[0]).glob("libarrow.so.*")
    language = "g++", "-std=gnu++20", f"-I{pyarrow.get_include()}"
    return compiled("arrow_pairs.so", HERE / "arrow_pairs.cpp", arrow, language=language)


def pairs_of_arrow(path, size, probed):
    """Prints nanoseconds of a pair: the least of several. In a fresh process."""
    import pyarrow  # loads libarrow, which the library at `path` needs

    library = ctypes.CDLL(path)
    library.arrow_pairs.restype = ctypes.c_double
    library.arrow_pairs.argtypes = ctypes.c_uint, ctypes.c_int64
    if probed:
        assert dwsr_probe.start(alloc=True, period_ms=1000)
    with dwsr_probe.task("pairs"):
        found = [library.arrow_pairs(PAIRS[size], size) for _ in range(7)]
    assert min(found) > 0, f"{pyarrow.default_memory_pool().backend_name} has no memory"
    print(min(found))


def arrow_pair(size):
    def more(runs):
        library = str(_pairs_library())
        bare, probed = _in_turn(runs, f"pairs_of_arrow({library!r}, {size}, {{}})")
        return difference(bare, probed, said=f"bare {min(bare):.1f} ns")

    return more
