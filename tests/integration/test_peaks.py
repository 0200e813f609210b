"""Exact peaks: hidden spikes, with the GIL held, overlapping, below the sampling rate, and the
sampled fallback that says so."""

import ctypes
import mmap
import os
import subprocess

import pytest

from dwsr_probe import _core
from dwsr_probe.board import Board
from dwsr_probe.record import record_of
from tests.conftest import SAMPLED, processes, tasks

MIB = 1 << 20

SPIKE = (
    SAMPLED
    + """
import ctypes, mmap, sys
import dwsr_probe

def spike(mib, held=lambda: None):
    block = mmap.mmap(-1, mib << 20)
    for i in range(0, mib << 20, 4096):
        block[i] = 1
    held()
    block.close()

spike(300)  # warm
"""
)


def grew(record, mib, tolerance_mib=1.0):
    growth = (record["rss_peak_bytes"] - record["rss_before_bytes"]) / MIB
    assert abs(growth - mib) <= tolerance_mib, (
        f"{record['task_name']} grew by {growth:.1f} MiB, not {mib}"
    )


@pytest.mark.parametrize("period", ["0.1", "1", "1000"])
def test_a_spike_is_seen_at_any_sampling_rate(cli, period):
    done, records = cli.job(
        SPIKE
        + """
with dwsr_probe.task("before"): pass
with dwsr_probe.task("spike"): spike(200)
with dwsr_probe.task("after"): spike(20)
""",
        "--period",
        period,
    )
    assert done.returncode == 0, done.stderr
    for name, mib in (("before", 0), ("spike", 200), ("after", 20)):
        grew(tasks(records, name)[0], mib)
    assert all(r["rss_peak_source"] == "kernel" for r in tasks(records))
    (process,) = processes(records)
    assert (
        process["rss_peak_bytes"] >= 300 * MIB
        and process["task_name"] == "job.py"
        and process["state"] == "ok"
    )


@pytest.fixture(scope="session")
def gil_holder(tmp_path_factory):
    """A C function that ctypes.PyDLL calls with the GIL held throughout: touch, hold, release."""
    folder = tmp_path_factory.mktemp("gil")
    (folder / "hold.c").write_text("""
#include <stddef.h>
#include <stdint.h>
#include <sys/mman.h>
#include <unistd.h>
void hold(size_t bytes, unsigned us) {
    char *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (size_t i = 0; i < bytes; i += 4096) ((volatile char *)p)[i] = 1;
    usleep(us);
    munmap(p, bytes);
}
int hold_until(volatile uint64_t *word, uint64_t more) {
    uint64_t end = *word + more;
    for (int i = 0; i < 600000 && *word < end; i++) usleep(1000);
    return *word >= end;
}
""")
    subprocess.run(
        ["cc", "-O1", "-shared", "-fPIC", "-o", folder / "hold.so", folder / "hold.c"], check=True
    )
    return folder / "hold.so"


def test_a_spike_inside_one_call_that_holds_the_gil(cli, gil_holder):
    _, records = cli.job(
        SPIKE
        + f"""
hold = ctypes.PyDLL({str(gil_holder)!r}).hold
hold.argtypes = ctypes.c_size_t, ctypes.c_uint
with dwsr_probe.task("held"): hold(150 << 20, 300_000)
"""
    )
    grew(tasks(records, "held")[0], 150)


def test_the_sampler_runs_while_the_gil_is_held(probe, gil_holder):
    """The call ends when the board has ten samples more: a Python thread could not take one."""
    hold_until = ctypes.PyDLL(str(gil_holder)).hold_until
    hold_until.argtypes = ctypes.c_void_p, ctypes.c_uint64
    place = Board(_core.board_path()).header["live_offset"] + 8 * _core.LIVE_FIELDS.index(
        "samples_written"
    )
    with (
        open(_core.board_path(), "r+b") as file,
        mmap.mmap(file.fileno(), 0) as board,
        probe.task("held"),
    ):
        word = ctypes.c_uint64.from_buffer(board, place)
        assert hold_until(ctypes.addressof(word), 10)
        del word


def test_overlapping_tasks_in_python_threads(cli):
    _, records = cli.job(
        SPIKE
        + """
import threading
go, done = threading.Event(), threading.Event()

def neighbour():
    with dwsr_probe.task("b"):
        go.set()
        done.wait()

with dwsr_probe.task("a"):
    spike(150)                       # a alone
    thread = threading.Thread(target=neighbour)
    thread.start(); go.wait()
    spike(60)                        # both
    done.set(); thread.join()
with dwsr_probe.task("c"):
    with dwsr_probe.task("d"): spike(30)
    spike(10)
"""
    )
    for name, mib in (("a", 150), ("b", 60), ("c", 30), ("d", 30)):
        grew(tasks(records, name)[0], mib, 1.5)
    assert {r["task_name"]: r["overlap"] for r in tasks(records)} == {
        "a": 1,
        "b": 1,
        "c": 0,
        "d": 0,
    }


def test_keep_peak_samples_and_leaves_the_mark(cli):
    done, records = cli.job(
        SPIKE
        + """
import resource
sampled()
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
with dwsr_probe.task("held"): spike(100, sampled)
with dwsr_probe.task("small"): pass
assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >= before
""",
        "--keep-peak",
    )
    assert done.returncode == 0, done.stderr
    held, small = tasks(records)
    assert held["rss_peak_source"] == small["rss_peak_source"] == "sampled"
    grew(held, 100)
    grew(small, 0)
    # the all-time maximum is still the kernel's
    assert processes(records)[0]["rss_peak_bytes"] >= 300 * MIB
    assert "sampled" in done.stderr


def test_where_clear_refs_is_missing_it_is_sampled_and_says_so(board_dir, tmp_path):
    proc = tmp_path / "proc" / "self"
    proc.mkdir(parents=True)
    for name in ("statm", "status", "stat"):
        (proc / name).symlink_to(f"/proc/self/{name}")
    _core.start(
        directory=os.fsencode(board_dir),
        run=b"",
        host=b"h",
        task_name=b"t",
        worker=b"",
        python=b"3",
        period_ns=1_000_000,
        keep_peak=False,
        alloc=False,
        proc_root=os.fsencode(proc.parent),
    )
    try:
        with _core.task("t"):
            pass
        board = Board(_core.board_path())
        (raw,) = board.raw_records()[0]
        assert record_of(board, raw).rss_peak_source == "sampled"
    finally:
        _core.stop(remove=True)


def test_the_floor_across_exec(cli):
    """A child exec'd by a large process starts with ru_maxrss at the parent's size; its tasks
    must not inherit that."""
    cli.script(
        SPIKE.replace("spike(300)", "spike(10)") + "with dwsr_probe.task('child'): spike(30)",
        "child.py",
    )
    _, records = cli.job(
        """
import subprocess, sys
big = bytearray(400 << 20)
subprocess.run([sys.executable, "child.py"], check=True)
""",
        cwd=cli.cwd,
    )
    child = tasks(records, "child")[0]
    grew(child, 30)
    assert child["rss_peak_bytes"] < 100 * MIB


def test_a_fork_inside_a_sampled_task_keeps_its_peak(cli):
    _, records = cli.job(
        SPIKE.replace("spike(300)", "spike(10)")
        + """
import os
sampled()
with dwsr_probe.task("forks"):
    spike(200, sampled)
    if os.fork() == 0: os._exit(0)
    os.wait()
""",
        "--keep-peak",
    )
    grew(next(r for r in tasks(records, "forks") if r["state"] == "ok"), 200, 3)
