"""What the hook adds to an allocation and its free, beside CuPy's own MemoryHooks. The real
CuPy, on the stand-in.

The parent starts each CuPy environment (make test-gpu makes them); `once` runs there.
"""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from pathlib import Path

from tests.bench import HERE, Section, spread

PAIRS = 20_000


def compile_hook():
    """Folder with gpu_memory_hook for this Python: compiled once, in any of its environments."""
    folder = Path(tempfile.mkdtemp(prefix="dwsr-bench-"))
    shutil.copy(HERE / "gpu_memory_hook.pyx", folder)
    subprocess.run([sys.executable, "-m", "cython", "gpu_memory_hook.pyx"], cwd=folder, check=True)
    subprocess.run(
        [
            "cc",
            "-O2",
            "-shared",
            "-fPIC",
            f"-I{sysconfig.get_path('include')}",
            "gpu_memory_hook.c",
            "-o",
            f"gpu_memory_hook{sysconfig.get_config_var('EXT_SUFFIX')}",
        ],
        cwd=folder,
        check=True,
    )
    return folder


def once(rounds):
    """JSON: nanoseconds of CPU per pair, by allocator and by what watches."""
    import warnings

    from tests import standin

    standin.start()
    import cupy
    from cupy.cuda import alloc
    from gpu_memory_hook import CompiledHook

    import dwsr_probe

    warnings.simplefilter("ignore")  # the asynchronous pool is experimental

    def pairs():
        begin = time.thread_time_ns()
        for _ in range(PAIRS):
            alloc(4096)
        return (time.thread_time_ns() - begin) / PAIRS

    plain = type(
        "PlainHook",
        (cupy.cuda.memory_hook.MemoryHook,),
        {
            "name": "plain",
            "live": 0,
            "peak": 0,
            "malloc_postprocess": (
                lambda self, device_id, size, mem_size, mem_ptr, pmem_id: self.__setattr__(
                    "live", self.live + mem_size
                )
            ),
            "free_postprocess": (
                lambda self, device_id, mem_size, mem_ptr, pmem_id: self.__setattr__(
                    "live", self.live - mem_size
                )
            ),
        },
    )()
    pool = cupy.cuda.MemoryPool()
    kinds = {
        "MemoryPool, cached": pool.malloc,
        "none (cudaMalloc)": None,
        "malloc_managed": cupy.cuda.malloc_managed,
        "MemoryAsyncPool": cupy.cuda.MemoryAsyncPool().malloc,
        "a Python function around the pool": lambda size: pool.malloc(size),
    }
    results = {}
    with tempfile.TemporaryDirectory(dir="/dev/shm") as boards:
        for _ in range(rounds):
            for name, allocator in kinds.items():
                row = results.setdefault(name, {})
                cupy.cuda.set_allocator(allocator)
                alloc(4096)
                row.setdefault("bare", []).append(pairs())
                if allocator == pool.malloc:
                    for label, hook in (("python", plain), ("cython", CompiledHook())):
                        with hook:
                            row.setdefault(label, []).append(pairs())
                assert dwsr_probe.start(board_dir=boards)
                with dwsr_probe.task("pairs"):
                    row.setdefault("hook", []).append(pairs())
                dwsr_probe.stop()
    print(json.dumps([cupy.__version__, results]))


def results_of(python, hook, rounds, path=None, cwd=None):
    """CuPy's version and what `once` found, in an environment with CuPy.

    hook: of compile_hook. path, cwd: of another build (tests/bench/budget_builds.py)."""
    environ = dict(os.environ, PYTHONPATH=os.pathsep.join([path or os.getcwd(), str(hook)]))
    code = f"from tests.bench import gpu; gpu.once({rounds})"
    done = subprocess.run(
        [python, "-c", code], env=environ, cwd=cwd, capture_output=True, text=True, check=True
    )
    return json.loads(done.stdout)


def run(quick=False):
    section = Section(
        "CuPy: an allocation and its free, with the hook",
        "≤ 0.5 µs of CPU more with CuPy's pool, ≤ 0.8 µs with other allocators",
        (
            "CuPy",
            "allocator",
            "bare pair, µs",
            "**with the hook, µs more**",
            "a MemoryHook in Python, µs more",
            "one in Cython, µs more",
        ),
    )
    hook = compile_hook()
    for version in (13, 14):
        cupy, results = results_of(f".venv-cupy-{version}/bin/python", hook, 3 if quick else 15)
        for name, row in results.items():

            def more(label, row=row):
                return (
                    spread([(a - b) / 1e3 for a, b in zip(row[label], row["bare"], strict=True)])
                    if label in row
                    else "–"
                )

            section.rows.append(
                (
                    cupy,
                    name,
                    spread([n / 1e3 for n in row["bare"]]),
                    more("hook"),
                    more("python"),
                    more("cython"),
                )
            )
    section.notes.append(
        "CuPy calls a MemoryHook for its MemoryPool only, and for a free only in the thread that"
        " set it."
    )
    section.notes.append(
        "On the stand-in of tests/standin: a real cudaMalloc takes far longer; what the hook adds"
        " is host work and does not."
    )
    shutil.rmtree(hook)
    return section
