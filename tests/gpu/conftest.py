"""The real CuPy on the stand-in: started here, before any test imports cupy.
`/path/to/venv/bin/python -m pytest tests/gpu`, one venv per CuPy.

`probe` and `board_dir` are the fixtures of tests/conftest.py; with `standin_board` first in a
test's list the probe stops before the checks at its end.
"""

import gc
import importlib.util
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests import standin
from tests.conftest import wait_until

KIB, MIB, DEVICES, CAPACITY = 1 << 10, 1 << 20, 2, 1 << 30
POOLS = []  # of the test that runs
ROOT = Path(__file__).resolve().parents[2]

if importlib.util.find_spec("cupy"):
    BOARD = standin.start(devices=DEVICES, capacity_bytes=CAPACITY)
else:
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture
def standin_board():
    """The stand-in's truth and knobs. The test begins and ends with CuPy's own allocators, empty
    pools and every knob in its place."""
    reset()
    before = device_truth()  # a test that failed may still hold some
    yield BOARD
    reset()
    assert all(now <= then for now, then in zip(device_truth(), before, strict=True))


def reset():
    import cupy

    cupy.cuda.set_allocator(cupy.get_default_memory_pool().malloc)
    cupy.cuda.set_pinned_memory_allocator(cupy.get_default_pinned_memory_pool().malloc)
    BOARD.nvml("works")
    gc.collect()
    for device in range(DEVICES):
        BOARD.set_capacity(CAPACITY, device)
        BOARD.fail_next(0, device)
        with cupy.cuda.Device(device):
            cupy.get_default_memory_pool().set_limit(0)
            for pool in (cupy.get_default_memory_pool(), *POOLS):
                pool.free_all_blocks()
            cupy.cuda.runtime.deviceSynchronize()  # CUDA's own pools
    POOLS.clear()
    cupy.get_default_pinned_memory_pool().free_all_blocks()


def new_pool(allocator=None):
    """A MemoryPool whose cache is given back after the test: CuPy 14 does not when the pool
    goes."""
    import cupy

    POOLS.append(cupy.cuda.MemoryPool(allocator))
    return POOLS[-1]


def device_truth():
    """Bytes that the process holds on each device, pools' caches included."""
    return [BOARD.live_bytes(device, os.getpid()) for device in range(DEVICES)]


def array(nbytes):
    import cupy

    return cupy.empty(nbytes, "u1")


def record(name):
    """The newest finished task of that name."""
    import dwsr_probe

    return [r for r in dwsr_probe.records() if r.task_name == name][-1]


def on(record, device=0):
    """A task's (peak, end) bytes on a device; (0, 0) if it allocated nothing there."""
    return next(
        ((d["peak_bytes"], d["end_bytes"]) for d in record.gpu if d["device"] == device), (0, 0)
    )


def device_now(number=0):
    """A device as the board shows it, {} if it is not there."""
    import dwsr_probe

    return next((d for d in dwsr_probe.snapshot().devices if d["device"] == number), {})


def shows(expected, device=0, field="live_bytes"):
    """Wait until the sampler has put this on the board: it looks every few milliseconds."""

    def found():
        seen.append(device_now(device).get(field))
        return seen[-1] == expected

    seen = []
    try:
        wait_until(found, f"{field} {expected} of device {device}", timeout=600)
    except AssertionError as error:
        raise AssertionError(f"{error}; the board shows {seen[-1]}") from None
    return True


@pytest.fixture
def child(tmp_path, board_dir):
    """child(code, *arguments, devices=2, ...): run code in a Python process of its own on a
    stand-in of its own, with this dwsr_probe."""

    def run(
        code,
        *arguments,
        devices=DEVICES,
        capacity_bytes=CAPACITY,
        check=True,
        extra_env=None,
        **options,
    ):
        env = standin.environment(
            folder=tmp_path / "standin",
            devices=devices,
            capacity_bytes=capacity_bytes,
            base=bare_environ(),
        )
        env["PYTHONPATH"] = os.pathsep.join((env["PYTHONPATH"], str(ROOT)))
        env.update(extra_env or {})
        options = {"text": True, "capture_output": True, "timeout": 600, **options}
        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)], env=env, **options
        )
        assert not check or (done.returncode, done.stderr) == (
            0,
            "",
        ), f"exit {done.returncode}\n{done.stdout}{done.stderr}"
        return done

    (tmp_path / "standin").mkdir()
    return run


def bare_environ(environ=os.environ):
    """Without the stand-in of this process."""
    return {name: value for name, value in environ.items() if not name.startswith("STANDIN_")}
