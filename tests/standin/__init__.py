"""A GPU that is not there: the real, unmodified CuPy (13, 14) on host memory, and an NVML
library beside it. No GPU, no driver, no CUDA.

Covers allocation in all its kinds, capacity and out-of-memory, copies, devices, streams, and
kernels that launch and do nothing: assert on bytes and counts, never on values that a kernel
would compute. Not covered: `@`, random, fft (libraries that are absent), CUDA graphs, IPC, and
sort, unique, percentile: Thrust talks to the real runtime, and CuPy 13 aborts the process over
it.

In this process, before `import cupy`:      board = standin.start() In a child (or all of a Dask
cluster):      env = standin.environment(python=...); subprocess.run([python, ...], env=env) The
truth and the knobs, from either side:  standin.board(env), see board.py
"""

import ctypes
import os
import sys
from pathlib import Path

from .board import Board

__all__ = ["Board", "board", "environment", "start"]
BOOT = Path(__file__).resolve().parent / "boot"


def environment(
    python=sys.executable, devices=None, capacity_bytes=None, folder=None, nvml=True, base=None
):
    """The environment for a child process that shall see `devices` GPUs; all children with the
    same folder share them.

    Without options: $STANDIN_GPU_DEVICES (2) devices of $STANDIN_GPU_BYTES (1 GiB), in a folder
    of their own that goes when this process does. nvml=False: the library is not found, as on a
    machine without NVIDIA's driver."""
    from .native import build  # here, not above: no child needs it

    env = dict(os.environ if base is None else base)
    built = build(python)
    folder = Path(folder or temporary_folder())
    if not (folder / "board").exists():
        Board(
            folder,
            devices or int(env.get("STANDIN_GPU_DEVICES", 2)),
            capacity_bytes or int(env.get("STANDIN_GPU_BYTES", 1 << 30)),
        )
    env.update(
        STANDIN_DIR=str(folder),
        STANDIN_BUILD=str(built),
        CUPY_ACCELERATORS="",
        CUPY_CACHE_DIR=str(folder / "kernels"),
    )
    env["PYTHONPATH"] = os.pathsep.join(filter(None, [str(BOOT), env.get("PYTHONPATH")]))
    if nvml:
        env["LD_LIBRARY_PATH"] = os.pathsep.join(
            filter(None, [str(built), env.get("LD_LIBRARY_PATH")])
        )
    return env


def temporary_folder():
    import atexit
    import shutil
    import tempfile

    folder, owner = tempfile.mkdtemp(prefix="standin-"), os.getpid()
    # not by a forked child
    atexit.register(lambda: owner == os.getpid() and shutil.rmtree(folder, ignore_errors=True))
    return folder


def board(env=os.environ):
    return Board(env["STANDIN_DIR"])


def start(**options):
    """Installs the stand-in in this process; options of environment(), which only the first call
    can choose. Returns the board."""
    from .install import install, installed

    if installed():
        return board()
    if "STANDIN_DIR" not in os.environ or options:
        env = environment(**options)
        os.environ.update(
            {
                name: env[name]
                for name in ("STANDIN_DIR", "STANDIN_BUILD", "CUPY_ACCELERATORS", "CUPY_CACHE_DIR")
            }
        )
        if options.get("nvml", True):
            # LD_LIBRARY_PATH is too late here; a library that is loaded is found by name
            ctypes.CDLL(env["STANDIN_BUILD"] + "/libnvidia-ml.so.1")
    install(Path(os.environ["STANDIN_BUILD"]))
    return board()
