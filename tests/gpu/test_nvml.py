"""What the driver says of the devices: figures, every way to have none, and the thread that
asks. The real CuPy on the stand-in, each job a process.

Also RMM's statistics, which the same thread reads.
"""

import importlib.util
import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

if not importlib.util.find_spec("cupy"):
    pytest.skip("needs CuPy: make test-gpu", allow_module_level=True)
pytest.importorskip("pynvml")

from tests import standin

ROOT = Path(__file__).resolve().parents[2]
MIB = 1 << 20

JOB = """
import json, os, sys, threading, time, warnings
import cupy, dwsr_probe, standin
from dwsr_probe import _core
from dwsr_probe.board import records
from dwsr_probe.gpu import monitor

gpu = standin.board()
MIB = 1 << 20
STATES = {number: name for name, number in _core.NVML_STATES.items()}

def wait_until(condition, what="it"):
    deadline = time.monotonic() + 600
    while not (result := condition()):
        assert time.monotonic() < deadline, ("waited in vain for", what, state(), devices())
        time.sleep(0.005)
    return result

def state():
    return STATES[dwsr_probe.snapshot().live["nvml_state"]]

def devices():
    return dwsr_probe.snapshot().devices

def array(mib, device=0):
    with cupy.cuda.Device(device):
        return cupy.empty(mib * MIB, "u1")

def threads():
    return [t.name for t in threading.enumerate()].count("dwsr-nvml")

def asked(count=1):
    "Wait until the monitor has asked so many times more, of each device."
    for _ in range(count):
        before = {d["device"]: d["read_ns"] for d in devices()}
        anew = lambda: [
            d["device"]
            for d in devices()
            if d["read_ns"] is not None and d["read_ns"] != before.get(d["device"])
        ]
        wait_until(lambda: anew() == _core.gpu_devices_used() != [], "a reading")

def say(*values):
    print(json.dumps(values), flush=True)

assert dwsr_probe.start()
"""


@pytest.fixture
def env(tmp_path, board_dir):
    env = standin.environment(folder=tmp_path, devices=3, capacity_bytes=64 * MIB)
    return with_root(env)


def with_root(env):
    """Our package, wherever the tests run from; and no threads of BLAS's own, which would be
    counted."""
    return dict(
        env, PYTHONPATH=os.pathsep.join([env["PYTHONPATH"], str(ROOT)]), OPENBLAS_NUM_THREADS="1"
    )


def job(env, code, *options, code_at_end=0, before=""):
    """What the job printed, line by line. It has ended as it would have without us, and nobody
    has said a word."""
    text = textwrap.dedent(before) + JOB + textwrap.dedent(code)
    done = subprocess.run(
        [sys.executable, *options, "-c", text], env=env, capture_output=True, text=True, timeout=600
    )
    assert (done.returncode, done.stderr) == (code_at_end, ""), done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


# -- figures


def test_figures_of_several_devices_ten_times_a_second(env):
    ((found, times, whole),) = job(
        env,
        """
        arrays = [array(3, 0), array(5, 1), array(7, 2)]
        reads = [set(), set(), set()]

        def ten_times():
            for d in devices():
                reads[d["device"]].add(d["read_ns"])
            return all(len(r - {None}) >= 10 for r in reads)

        wait_until(ten_times, "ten readings")
        say(
            devices(),
            [sorted(r - {None}) for r in reads],
            [gpu.occupied_bytes(i) for i in range(3)],
        )
    """,
    )
    for number, (device, mib) in enumerate(zip(found, (3, 5, 7), strict=True)):
        assert (device["device"], device["name"], device["uuid"]) == (
            number,
            "Stand-in GPU",
            f"GPU-00000000-0000-0000-0000-{number:012d}",
        )
        assert (
            device["used_bytes"]
            == device["process_bytes"]
            == device["used_max_bytes"]
            == device["process_max_bytes"]
            == whole[number]
            == mib * MIB
        )
        assert device["total_bytes"] == 64 * MIB and device["utilisation_percent"] == 0
        gaps = [b - a for a, b in zip(times[number], times[number][1:], strict=False)]
        assert min(gaps) > 0.09e9  # no oftener; how late it may be is the machine's


def test_another_process_on_the_same_device(env):
    ((both, alone),) = job(
        env,
        """
        import subprocess

        x = array(5, 1)
        other = subprocess.Popen(
            [
                sys.executable,
                "-c",
                (
                    "import cupy, sys; cupy.cuda.Device(1).use(); x = cupy.empty(7 << 20, 'u1');"
                    " sys.stdin.read()"
                ),
            ],
            stdin=subprocess.PIPE,
        )
        wait_until(
            lambda: devices() and devices()[0]["used_bytes"] == 12 * MIB, "the other's bytes"
        )
        both = devices()[0]
        other.communicate(b"")
        wait_until(lambda: devices()[0]["used_bytes"] == 5 * MIB, "the other's end")
        say(both, devices()[0])
    """,
    )
    assert (both["process_bytes"], both["live_bytes"]) == (5 * MIB, 5 * MIB)
    assert (alone["used_max_bytes"], alone["process_max_bytes"], alone["process_bytes"]) == (
        12 * MIB,
        5 * MIB,
        5 * MIB,
    )


UUID = "GPU-00000000-0000-0000-0000-00000000000"


@pytest.mark.parametrize("names", ["uuid", "bus"])
@pytest.mark.parametrize(
    ("visible", "numbers"), [("1,0", [1, 0]), ("2", [2]), (f"{UUID}2,{UUID}0,1", [2, 0, 1])]
)
def test_visible_devices_are_found_by_their_names(env, visible, numbers, names):
    """By UUID; where this CUDA does not tell it, by the place on the bus."""
    env["CUDA_VISIBLE_DEVICES"] = visible
    hide = (
        """
        original = cupy.cuda.runtime.getDeviceProperties
        cupy.cuda.runtime.getDeviceProperties = lambda device: {
            k: v for k, v in original(device).items() if k != "uuid"
        }
    """
        if names == "bus"
        else ""
    )
    ((found, whole),) = job(
        env,
        textwrap.dedent(hide)
        + textwrap.dedent("""
        arrays = [array(2 + i, i) for i in range(cupy.cuda.runtime.getDeviceCount())]
        wait_until(lambda: len([d for d in devices() if d["used_bytes"]]) == len(arrays), "figures")
        say(devices(), [gpu.occupied_bytes(i) for i in range(3)])
    """),
    )
    assert [d["uuid"] for d in found] == [f"{UUID}{n}" for n in numbers]
    assert (
        [d["process_bytes"] for d in found]
        == [d["used_bytes"] for d in found]
        == [whole[n] for n in numbers]
        == [(2 + i) * MIB for i in range(len(numbers))]
    )


# -- no answer

WHOLE = {
    "used_bytes": 3 * MIB,
    "total_bytes": 64 * MIB,
    "process_bytes": 3 * MIB,
    "utilisation_percent": 0,
}
# the total is CUDA's
NOTHING = {
    "used_bytes": None,
    "total_bytes": 64 * MIB,
    "process_bytes": None,
    "utilisation_percent": None,
}
DENIED = """
import pynvml
def denied(): raise pynvml.NVMLError(pynvml.NVML_ERROR_NO_PERMISSION)
pynvml.nvmlInit = denied
"""
FAILURES = {  # name: (how, state, figures)
    "works": ("gpu.nvml('works')", "ok", WHOLE),
    "no module": ("sys.modules['pynvml'] = None", "no module", NOTHING),
    "no library": ("", "no driver", NOTHING),
    "no driver": ("gpu.nvml('no driver')", "no driver", NOTHING),
    "no permission": (
        "gpu.nvml('no permission')",
        "permission denied",
        {**WHOLE, "process_bytes": None},
    ),
    "no permission at all": (DENIED, "permission denied", NOTHING),
    "no utilization": ("gpu.nvml('no utilization')", "ok", {**WHOLE, "utilisation_percent": None}),
    "no memory info": ("gpu.nvml('no memory info')", "ok", {**WHOLE, "used_bytes": None}),
    "no process bytes": ("gpu.nvml('no process bytes')", "ok", {**WHOLE, "process_bytes": None}),
    "a broken module": (
        "import types; sys.modules['pynvml'] = types.ModuleType('pynvml')",
        "failed",
        None,
    ),
}


@pytest.mark.parametrize("name", FAILURES)
def test_no_answer_is_a_state(env, tmp_path, board_dir, name):
    """And nothing else: the job's own figures are there, its exit code is its own, nobody says a
    word."""
    how, state, figures = FAILURES[name]
    if name == "no library":
        env = with_root(standin.environment(folder=tmp_path, nvml=False))
    ((found, device, gpu),) = job(
        env,
        how
        + textwrap.dedent(
            """
        with dwsr_probe.task("work"):
            x = array(3)
            if how_it_ends != "failed":
                asked(3)
            wait_until(lambda: state() == how_it_ends and devices(), "the state")
            before = devices()[0]
            array(2)
            wait_until(lambda: devices()[0]["peak_bytes"] == 5 * MIB, "the peak")
        (record,) = records()
        say(state(), before, record.gpu)
        sys.exit(5)
    """.replace("how_it_ends", repr(state))
        ),
        code_at_end=5,
    )
    assert found == state
    if figures is not None:
        assert {name: device[name] for name in figures} == figures and device[
            "name"
        ] == "Stand-in GPU"
    assert device["live_bytes"] == device["peak_bytes"] == 3 * MIB
    assert gpu == [
        {
            "device": 0,
            "peak_bytes": 5 * MIB,
            "end_bytes": 3 * MIB,
            "pool_used_bytes": 5 * MIB,
            "pool_total_bytes": 5 * MIB,
        }
    ]


def test_a_driver_that_is_lost_and_comes_back(env):
    """It stays lost, however often it is looked for, until it is there."""
    before, lost, still, back, gpu = job(
        env,
        """
        monitor.REOPEN_EVERY = 2
        attempts = []
        reopen = monitor.Nvml.reopen
        monitor.Nvml.reopen = lambda self: (attempts.append(self.state), reopen(self))[1]
        x = array(3, 1)
        wait_until(lambda: devices() and devices()[0]["used_bytes"], "figures")
        say(state(), devices()[0])
        gpu.nvml("lost")
        wait_until(lambda: state() == "lost", "the loss")
        asked()
        with dwsr_probe.task("meanwhile"): array(2, 1)
        say(state(), devices()[0])
        wait_until(lambda: len(attempts) >= 3, "attempts")
        asked()
        say(state(), attempts)
        gpu.nvml("works")
        wait_until(lambda: state() == "ok", "the driver")
        wait_until(lambda: devices() and devices()[0]["used_bytes"], "figures")
        say(state(), devices()[0])
        (record,) = records()
        say(record.gpu, record.state)
    """,
    )
    assert before[0] == "ok" and before[1]["used_bytes"] == before[1]["process_bytes"] == 3 * MIB
    assert lost[0] == "lost" and {name: lost[1][name] for name in NOTHING} == NOTHING
    assert (
        lost[1]["used_max_bytes"] == 3 * MIB
        and lost[1]["uuid"] == before[1]["uuid"]
        and lost[1]["live_bytes"] == 3 * MIB
    )
    assert still[0] == "lost" and set(still[1]) == {"lost"}
    assert (
        back[0] == "ok"
        and back[1]["used_bytes"] == back[1]["process_bytes"] == 5 * MIB
        and back[1]["uuid"] == before[1]["uuid"]
    )
    assert gpu[0][0]["peak_bytes"] == 2 * MIB and gpu[1] == "ok"


# -- the thread


def test_it_lives_from_the_first_allocation_to_the_stop(env):
    (counts,) = job(
        env,
        """
        counts = [threads()]
        with dwsr_probe.task("no device"): cupy.cuda.alloc_pinned_memory(1000); cupy.empty(0)
        counts += [threads(), len(devices())]
        x = array(1)
        asked()
        counts += [threads()]
        with dwsr_probe.task("another device"): y = array(1, 1)
        asked()
        counts += [threads()]
        dwsr_probe.stop()
        counts += [threads(), threading.active_count()]
        z = array(1, 2)                      # nobody is interested
        counts += [threads()]
        dwsr_probe.start()
        asked()                              # of devices that are in use from before
        counts += [threads(), state()]
        dwsr_probe.stop()
        say(*counts, threads())
    """,
    )
    assert counts == [0, 0, 0, 1, 1, 0, 1, 0, 1, "ok", 0]


def test_it_is_nobodys_task(env):
    """Started inside a task, it allocates for itself: modules, NVML, answers."""
    ((peak, count),) = job(
        env,
        """
        # what CuPy itself needs at its first allocation is there
        array(1)
        dwsr_probe.stop()
        dwsr_probe.start()
        monitor.stop()
        for name in [n for n in sys.modules if "nvml" in n and not n.startswith("dwsr_probe")]:
            del sys.modules[name]
        with dwsr_probe.task("first"):
            monitor.start()
            asked(2)
            wait_until(lambda: state() == "ok")
        (record,) = records()
        say(record.alloc_peak_bytes, threads())
    """,
    )
    # waiting takes some, with bad luck one arena of the interpreter (1 MiB); importing pynvml
    # takes 4.4 MB
    assert peak < 2 << 20 and count == 1


def test_two_threads_allocate_first(env):
    (found,) = job(
        env,
        """
        class Threading:                     # the second comes while the first is at it
            Thread, Lock = threading.Thread, threading.Lock
            calls = 0
            def Event():
                Threading.calls += 1
                if Threading.calls == 1:
                    other = threading.Thread(target=monitor.start)
                    other.start(); other.join()
                return threading.Event()
        monitor.threading = Threading
        x = array(1)
        asked()
        count = threads()
        dwsr_probe.stop()
        say(count, threads())
    """,
    )
    assert found == [1, 0]


def test_a_thread_that_cannot_start(env):
    (found,) = job(
        env,
        """
        class Threading:
            Event, Lock = threading.Event, threading.Lock
            def Thread(**_): raise RuntimeError("can't start new thread")
        monitor.threading = Threading
        with dwsr_probe.task("work"): x = array(1); y = array(2, 1)
        wait_until(lambda: state() == "failed")
        say([g["peak_bytes"] for g in records()[0].gpu], dwsr_probe.snapshot().live["gpu_hook"])
    """,
    )
    assert found == [[MIB, 2 * MIB], 1]


def test_the_jobs_warnings_are_its_own(env, tmp_path):
    """While we import pynvml the job changes its filters."""
    (tmp_path / "fake").mkdir()
    (tmp_path / "fake" / "pynvml.py").write_text(
        "import builtins\nbuiltins.reached.set()\nbuiltins.go.wait()\nraise ImportError"
    )
    env["PYTHONPATH"] = os.pathsep.join([str(tmp_path / "fake"), env["PYTHONPATH"]])
    (found,) = job(
        env,
        """
        import builtins

        builtins.reached, builtins.go = threading.Event(), threading.Event()
        before = list(warnings.filters)
        x = array(1)
        reached.wait()
        with warnings.catch_warnings():
            warnings.simplefilter("error", UserWarning)
            go.set()
            wait_until(lambda: state() == "no module")
            try:
                warnings.warn("mine")
            except UserWarning:
                raised = True
            else:
                raised = False
        say(
            raised,
            [f for f in warnings.filters if f not in before and "pynvml" not in str(f)] == [],
            [f for f in before if f not in warnings.filters] == [],
        )
    """,
    )
    assert found == [True, True, True]


HANGS = """
    import pynvml
    inside, never = threading.Event(), threading.Event()
    def hang(handle): inside.set(); never.wait()
    pynvml.nvmlDeviceGetMemoryInfo = hang
    with dwsr_probe.task("work"): x = array(1)
    inside.wait()
"""


@pytest.mark.parametrize("end", ["pass", "dwsr_probe.stop()", "sys.exit(7)"])
def test_a_driver_that_hangs_does_not_hold_up_the_end(env, end):
    """It would be for ever, if the driver were waited for."""
    ((join_s,),) = job(
        env,
        textwrap.dedent(HANGS) + f"say(monitor.JOIN_S)\n{end}\n",
        code_at_end=7 if "7" in end else 0,
    )
    assert join_s <= 0.5


def test_a_driver_that_hangs_holds_up_one_fork_and_no_more(env):
    (found,) = job(
        env,
        textwrap.dedent(HANGS)
        + textwrap.dedent("""
        joins = []
        join = threading.Thread.join
        threading.Thread.join = lambda thread, *a: (joins.append(thread.name), join(thread, *a))
        for _ in range(3):
            pid = os.fork()
            if pid == 0: os._exit(0)
            assert os.waitpid(pid, 0)[1] == 0
        with dwsr_probe.task("after"): y = array(2)
        say(joins, threads(), records()[-1].gpu[0]["peak_bytes"])
    """),
    )
    assert found == [["dwsr-nvml"], 1, 2 * MIB]


# -- fork


def test_fork_while_it_runs(env):
    """The parent goes on, the child has a clean slate; and at the moment of Python's own look
    there is one thread (3.12 and later warn of more)."""
    *children, parent = job(
        env,
        """
        import numpy

        x = array(1)
        asked()
        for _ in range(20):
            pid = os.fork()
            if pid == 0:
                with dwsr_probe.task("in the child"):
                    y = numpy.ones(1_000_000)
                (record,) = records()
                say(state(), threads(), devices(), record.alloc_peak_bytes >= 8_000_000)
                sys.exit(0)
            assert os.waitpid(pid, 0)[1] == 0
        asked(2)
        with dwsr_probe.task("in the parent"):
            z = array(2)
        wait_until(
            lambda: devices()[0]["live_bytes"] == 3 * MIB, "the child's frees are not the parent's"
        )
        say(seen, threads(), state(), records()[-1].gpu[0]["peak_bytes"])
    """,
        "-W",
        "error::DeprecationWarning",
        before="""
        import os

        seen = []

        def look():
            with open("/proc/self/stat") as stat:
                seen.append(int(stat.read().rpartition(")")[2].split()[17]))

        os.register_at_fork(after_in_parent=look)  # before ours: where Python 3.12 looks
    """,
    )
    assert children == [["none", 0, [], True]] * 20
    assert parent == [[1] * 20, 1, "ok", 2 * MIB]


def test_fork_before_the_first_allocation(env):
    """The child is the one that uses the device: it has a monitor, its parent has none."""
    child, parent = job(
        env,
        """
        pid = os.fork()
        if pid == 0:
            with dwsr_probe.task("in the child"):
                x = array(3)
            asked()
            say(
                state(), threads(), devices()[0]["process_bytes"], records()[0].gpu[0]["peak_bytes"]
            )
            sys.exit(0)
        assert os.waitpid(pid, 0)[1] == 0
        say(state(), threads(), devices())
    """,
    )
    assert child == ["ok", 1, 3 * MIB, 3 * MIB] and parent == ["none", 0, []]


def test_multiprocessing_forks(env):
    (found,) = job(
        env,
        """
        import multiprocessing, numpy

        x = array(1)
        asked()

        def work(n):
            with dwsr_probe.task("in a child"):
                numpy.ones(n)
            return state(), threads(), len(records())

        with multiprocessing.get_context("fork").Pool(2) as pool:
            answers = pool.map(work, [1_000_000] * 6, chunksize=1)
        asked()
        say(
            sorted({tuple(a[:2]) for a in answers}),
            sum(a[2] == 0 for a in answers),
            threads(),
            state(),
        )
    """,
        "-W",
        "error::DeprecationWarning",
    )
    assert found == [[["none", 0]], 0, 1, "ok"]


def test_two_threads_fork(env):
    (found,) = job(
        env,
        """
        x = array(1)
        asked()
        def forks():
            for _ in range(20):
                pid = os.fork()
                if pid == 0: os._exit(threads())
                assert os.waitpid(pid, 0)[1] == 0
        both = [threading.Thread(target=forks) for _ in range(2)]
        for t in both: t.start()
        for t in both: t.join()
        asked(2)
        say(threads(), state())
    """,
    )
    assert found == [1, "ok"]


# -- RMM


@pytest.mark.skipif(not importlib.util.find_spec("rmm"), reason="needs RMM: pip install rmm-cu12")
def test_rmm_statistics(env):
    none, on, less, other = job(
        env,
        """
        import rmm

        x, y = array(1), array(1, 1)
        asked()
        say(*devices())  # RMM is there, its statistics are not
        counted = rmm.mr.StatisticsResourceAdaptor(
            rmm.mr.CallbackMemoryResource(
                lambda size, stream: 0x1000, lambda ptr, size, stream: None
            )
        )
        rmm.mr.set_per_device_resource(0, counted)
        stream = rmm.pylibrmm.stream.DEFAULT_STREAM
        first, second = counted.allocate(5 * MIB, stream), counted.allocate(7 * MIB, stream)
        wait_until(lambda: devices()[0]["rmm_bytes"] == 12 * MIB, "RMM's bytes")
        say(*devices())
        counted.deallocate(second, 7 * MIB, stream)
        wait_until(lambda: devices()[0]["rmm_bytes"] == 5 * MIB, "RMM's bytes")
        say(*devices())
        say(state())
    """,
    )
    figures = [
        [(d["rmm_bytes"], d["rmm_peak_bytes"]) for d in devices] for devices in (none, on, less)
    ]
    assert figures == [
        [(None, None)] * 2,
        [(12 * MIB, 12 * MIB), (None, None)],
        [(5 * MIB, 12 * MIB), (None, None)],
    ] and other == ["ok"]
