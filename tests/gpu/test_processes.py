"""What needs a process of its own: the order of imports, fork, exit, and SIGKILL in the middle
of a task."""

import os
import signal
import sys

import pytest

from dwsr_probe.board import Board
from tests import standin
from tests.conftest import processes, tasks, wait_until
from tests.gpu.conftest import DEVICES, MIB, ROOT, bare_environ, on

COMMON = """
import dwsr_probe, sys

def figure(name):
    r = [r for r in dwsr_probe.records() if r.task_name == name][-1]
    return (
        r.gpu and [(d["device"], d["peak_bytes"], d["end_bytes"]) for d in r.gpu]
    ), r.pinned_peak_bytes
"""


def test_cupy_before_the_start_after_it_or_inside_a_task(child):
    code = (
        COMMON
        + """
if "before" in sys.argv: import cupy
dwsr_probe.start()
if "after" in sys.argv: import cupy
with dwsr_probe.task("x"):
    if "inside" in sys.argv: import cupy
    x = cupy.empty(1024)
    with dwsr_probe.task("y"):
        x = cupy.empty(2048)  # while the other one is still there
        pinned = cupy.cuda.alloc_pinned_memory(512)
print(figure("x"), figure("y"))
"""
    )
    for moment in ("before", "after", "inside"):
        # page-locked memory is not seen after a late start
        seen = None if moment == "before" else 512
        assert (
            child(code, moment).stdout.strip()
            == f"([(0, 24576, 16384)], {seen}) ([(0, 16384, 16384)], {seen})"
        )


def test_without_cupy_nothing_of_ours_is_loaded(child):
    code = """
import dwsr_probe, sys

assert dwsr_probe.start()
with dwsr_probe.task("x"):
    pass
(record,) = dwsr_probe.records()
snapshot = dwsr_probe.snapshot()
print(
    record.gpu,
    record.oom,
    record.pinned_peak_bytes,
    snapshot.devices,
    snapshot.live["pinned_bytes"],
    snapshot.live["gpu_hook"],
)
print(
    [
        m
        for m in sys.modules
        if m.startswith("dwsr_probe.gpu") or m.startswith("cupy") and m != "cupy_backends"
    ]
)
dwsr_probe.stop()
print([f for f in sys.meta_path if "dwsr" in type(f).__module__])
"""
    first, loaded, finders = child(code, extra_env={"PYTHONPATH": str(ROOT)}).stdout.splitlines()
    assert (first, loaded, finders) == ("None None None [] None 0", "[]", "[]")


def test_a_cupy_that_cannot_be_imported(child, tmp_path):
    (tmp_path / "broken" / "cupy").mkdir(parents=True)
    (tmp_path / "broken" / "cupy" / "__init__.py").write_text("raise ImportError('no libcuda')")
    code = """
import dwsr_probe
dwsr_probe.start()
for _ in range(2):
    try: import cupy
    except ImportError as error: print(error)
"""
    done = child(code, extra_env={"PYTHONPATH": f"{tmp_path / 'broken'}{os.pathsep}{ROOT}"})
    assert done.stdout.split("\n")[:2] == ["no libcuda", "no libcuda"]


def test_a_module_that_is_only_called_cupy(child, tmp_path):
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "cupy.py").write_text("x = 1")
    code = "import dwsr_probe; dwsr_probe.start(); import cupy; print(cupy.x); dwsr_probe.stop()"
    done = child(
        code, check=False, extra_env={"PYTHONPATH": f"{tmp_path / 'other'}{os.pathsep}{ROOT}"}
    )
    assert (
        (done.returncode, done.stdout) == (0, "1\n")
        and done.stderr.count("\n") == 1
        and "cannot hook cupy" in done.stderr
    )


def test_fork_with_cupy_imported_but_unused(child):
    code = (
        COMMON
        + """
import cupy, os

dwsr_probe.start()
pids = []
for _ in range(3):
    pid = os.fork()
    if pid == 0:
        with dwsr_probe.task("child"):
            x = cupy.empty(1 << 20, "u1")
        ok = (
            figure("child")[0] == [(0, 1 << 20, 1 << 20)]
            and len(dwsr_probe.snapshot().running) == 0
        )
        os._exit(0 if ok else 1)
    pids.append(pid)
print([os.waitpid(pid, 0)[1] for pid in pids])
with dwsr_probe.task("parent"):
    x = cupy.empty(1000)
print(figure("parent")[0])
"""
    )
    assert child(code).stdout == "[0, 0, 0]\n[(0, 8192, 8192)]\n"


def test_fork_with_memory_in_use(child):
    """CUDA does not work in such a child, but leaving it does, and the parent's figures are the
    parent's."""
    code = (
        COMMON
        + """
import cupy, os
dwsr_probe.start()
with dwsr_probe.task("parent"):
    x = cupy.empty(1000)
    y = cupy.empty(1000)
    pid = os.fork()
    if pid == 0:
        assert dwsr_probe.snapshot().devices == []
        with dwsr_probe.task("child"): pass
        os._exit(figure("child")[0] != [])
    del y
    assert os.waitpid(pid, 0)[1] == 0
print(figure("parent")[0])
"""
    )
    assert child(code).stdout == "[(0, 16384, 8192)]\n"


@pytest.mark.parametrize(
    "leaves", ["", "1 / 0", "sys.exit(7)", "os._exit(9)", "os.kill(os.getpid(), 15)"]
)
def test_exit_with_live_arrays_and_busy_threads(child, leaves):
    code = """
import atexit, os, sys, threading, {probe}
import cupy
{start}
kept = [cupy.empty(1 << 20, "u1"), cupy.cuda.alloc_pinned_memory(100)]
cupy.cuda.set_allocator(None)
kept.append(cupy.empty(1 << 20, "u1"))
cycle = [cupy.empty(10)]; cycle.append(cycle)
atexit.register(lambda: kept.append(cupy.empty(100)))
go = threading.Event()
def work():
    while True:
        x = cupy.empty(1000)
        go.set()
threading.Thread(target=work, daemon=True).start()
go.wait()
{leaves}
"""

    def run(probe, start):
        done = child(code.format(probe=probe, start=start, leaves=leaves), check=False)
        return done.returncode, done.stdout, done.stderr

    bare = run("math", "")
    assert run("dwsr_probe", "dwsr_probe.start(); dwsr_probe.task('open').__enter__()") == bare
    assert bare[0] == {"": 0, "1 / 0": 1, "sys.exit(7)": 7, "os._exit(9)": 9}.get(leaves, -15)


# ---- below `dwsr-probe run` ----


@pytest.fixture
def gpu_cli(cli):
    (cli.cwd / "standin").mkdir()
    cli.env = standin.environment(
        folder=cli.cwd / "standin", devices=DEVICES, base=bare_environ(cli.env)
    )
    cli.env["PYTHONPATH"] = os.pathsep.join((cli.env["PYTHONPATH"], str(ROOT)))
    return cli


def test_a_job_below_run(gpu_cli):
    done, records = gpu_cli.job("""
        import cupy, dwsr_probe
        with dwsr_probe.task("works"):
            x = cupy.empty(1 << 20, "u1")
    """)
    assert done.returncode == 0, done.stderr
    (found,) = tasks(records, "works")
    assert found["gpu"] == [
        {
            "device": 0,
            "peak_bytes": MIB,
            "end_bytes": MIB,
            "pool_used_bytes": MIB,
            "pool_total_bytes": MIB,
        }
    ]
    assert (found["pinned_peak_bytes"], found["oom"]) == (0, None)


def test_killed_in_the_middle_of_a_task(gpu_cli, board_dir):
    script = gpu_cli.script("""
        import cupy, dwsr_probe, threading
        def work(device):
            with cupy.cuda.Device(device), dwsr_probe.task(f"device {device}"):
                cupy.empty(3 << 20, "u1")
                x = cupy.empty((device + 1) << 20, "u1")
                pinned = cupy.cuda.alloc_pinned_memory(1 << 20)
                together.wait()
                threading.Event().wait()
        together = threading.Barrier(3)
        for device in range(2):
            threading.Thread(target=work, args=(device,)).start()
        together.wait()
        print("ready", flush=True)
        threading.Event().wait()
    """)
    job = gpu_cli.start("run", "-o", gpu_cli.cwd / "run", sys.executable, script)
    assert job.stdout.readline() == "ready\n"

    def on_the_board():
        for path in board_dir.glob("*.board"):
            board = Board(path)
            found = {
                r.task_name: on(r, int(r.task_name[-1])) for r in board.snapshot().running if r.gpu
            }
            if found == {"device 0": (3 * MIB, MIB), "device 1": (3 * MIB, 2 * MIB)}:
                return board.pid

    os.kill(wait_until(on_the_board, "the board to show both tasks"), signal.SIGKILL)
    _, said = job.communicate(timeout=600)
    assert job.returncode == 137, said
    records = gpu_cli.records(gpu_cli.cwd / "run")
    for device in range(2):
        (found,) = tasks(records, f"device {device}")
        (figures,) = found["gpu"]
        assert (
            found["state"] == "killed"
            and figures["device"] == device
            and found["pinned_peak_bytes"] == MIB
        )
        assert (figures["peak_bytes"], figures["end_bytes"], figures["pool_total_bytes"]) == (
            3 * MIB,
            (device + 1) * MIB,
            3 * MIB,
        )
    assert processes(records)[0]["state"] == "killed"
