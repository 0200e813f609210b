"""`fit_blocks` and `dwsr-probe fit`: trials in real processes, plans on real Dask clusters."""

import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time

import numpy as np
import psutil
import pytest

from dwsr_probe.fit import FitError, fit_blocks
from tests.conftest import wait_until

PY = sys.executable
MIB = 1 << 20
SHAPE = 120, 250, 200  # 23 MiB


@pytest.fixture(scope="module")
def x():
    return np.random.default_rng(0).standard_normal(SHAPE).astype("float32")


@pytest.fixture(autouse=True)
def nothing_is_left(board_dir, tmp_path, monkeypatch):
    """No process, no board, no file of the trials."""
    files = tmp_path / "files"
    files.mkdir()
    monkeypatch.setenv("TMPDIR", str(files))
    monkeypatch.setattr("tempfile.tempdir", str(files))
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    yield
    left = {child.pid for child in psutil.Process().children(recursive=True)} - before
    assert not left, f"processes left: {[psutil.Process(pid).cmdline() for pid in left]}"
    assert not list(files.glob("dwsr-probe*")) and not list(board_dir.glob("*"))


def fitted(function, *arrays, memory="4GiB", threads=2, **options):
    return fit_blocks(function, *arrays, memory=memory, threads=threads, **options)


def fails(function, *arrays, **options):
    with pytest.raises(FitError) as found:
        fitted(function, *arrays, **options)
    text = str(found.value)
    assert len(text) < 600
    return text


def ratios(plan):
    return [round(tried.need_bytes / tried.input_bytes, 1) for tried in plan.trials]


# -- what is learned


def test_trials_are_few_small_and_reported(x):
    said = []
    plan = fitted(lambda a: np.sqrt(a * a + 1), x, progress=said.append)
    sizes = [tried.input_bytes / MIB for tried in plan.trials]
    assert sizes == pytest.approx([1, 4, 16], rel=0.05) and ratios(plan) == [2, 2, 2]
    assert len({tried.shape for tried in plan.trials}) == 3
    assert [check.verdict for check in plan.axes] == ["same"] * 3 and plan.notes == []
    assert len(said) == 5 and said[0] == "starting a process for trials"
    assert said[1].startswith("checking which axes can be cut, on a block of ")
    assert [text.split(" of ")[0] for text in said[2:]] == ["trying a block"] * 3
    shown = str(plan)
    assert shown.count("tried ") == 3 and "trials and checks took" in shown
    assert plan.trust == "fair" and plan.task == "<lambda>"
    assert plan.task_bytes == pytest.approx(2 * plan.block_bytes, rel=0.02)
    assert plan.task_bytes <= plan.task_bound_bytes < 1.25 * plan.task_bytes
    assert plan.expected_bytes <= plan.bound_bytes <= plan.allowed_bytes < plan.memory_bytes
    assert [sum(lengths) for lengths in plan.chunks] == list(SHAPE)


def test_the_user_s_data_stay_as_they_are(x):
    before = x.copy()
    x.flags.writeable = False
    text = fails(lambda a: np.multiply(a, 2, out=a), x)
    x.flags.writeable = True
    assert text.startswith(
        "<lambda> changes its input: with Dask this corrupts the values of other"
    )
    assert np.array_equal(x, before)


def test_axes_that_stay_whole(x):
    plan = fitted(lambda a: np.fft.fft(a, axis=1), x)
    assert plan.block[1] == SHAPE[1] and plan.block != SHAPE
    assert plan.notes == ["axis 1 stays whole: values change when it is cut"]
    plan = fitted(lambda a: np.fft.fft(a, axis=1), x, whole_axes=[2], objective="largest")
    assert plan.block[2] == SHAPE[2] and plan.axes == [] and plan.notes == []
    text = fails(lambda a: np.cumsum(np.cumsum(np.cumsum(a, 0), 1), 2), x, memory="330MB")
    assert "(3 axes stay whole: 0, 1, 2)" in text and "cut a whole axis" in text


def test_several_inputs_halos_and_other_results(x):
    weights = np.arange(200, dtype="float32")
    plan = fitted(
        lambda a, w: (a * w).sum(axis=0).astype("complex128"), x, weights, depth=(0, 2, 0)
    )
    assert plan.block[0] == SHAPE[0] and plan.axes[0].verdict == "reshaped"
    assert [check.verdict for check in plan.axes[1:]] == ["same", "same"] or plan.notes
    # The product lives beside the sum
    assert all(1 <= ratio < 1.6 for ratio in ratios(plan))


def test_memory_that_depends_on_values():
    """Half of the array needs a copy more. The plan says so, and its bound covers it."""
    x = np.ones((240, 250, 100), "float32")
    x[:120] = 2

    def copies(a):
        found = [a.copy() for _ in range(int(a[0, 0, 0]) * 2)]
        return found[0]

    plan = fitted(copies, x)
    (note,) = (note for note in plan.notes if "values" in note and "axis" not in note)
    assert note.startswith("memory depends on values: two blocks of ")
    assert "the bound is wider" in note and plan.trust == "low"
    assert plan.task_bound_bytes > 1.3 * plan.task_bytes
    assert plan.task_bound_bytes >= 4 * plan.block_bytes
    plain = fitted(lambda a: (a + 1) * 2, x)
    assert plain.notes == [] and plain.task_bound_bytes < 1.25 * plain.task_bytes


def test_memory_that_bends(x):
    def squares(a):
        side = np.ones(a.size // 512, "uint8")
        return np.outer(side, side)[:1, :1]

    plan = fitted(squares, x, whole_axes=(), objective="largest", memory="2GiB")
    assert [note for note in plan.notes if note.startswith("memory is not in proportion")]
    truth = (plan.block_bytes / 4 // 512) ** 2
    assert truth <= plan.task_bound_bytes and plan.bound_bytes < 2 << 30


def test_values_of_the_array_decide(x):
    """Blocks are real slices: with integers of the array as sizes."""
    sizes = np.full(SHAPE, 3, "int32")

    def grows(a):
        return np.zeros((int(a.max()), *a.shape), "float32")[0]

    assert ratios(fitted(grows, sizes)) == [3, 3, 3]


def test_what_the_first_call_takes(x):
    def first(a, seen=[]):  # noqa: B006
        if not seen:
            seen.append(np.ones(32 << 20, "uint8"))
        return a + 1

    plan = fitted(first, x, threads=3)
    assert "the first task in each thread takes 32.0 MiB more" in plan.notes
    rest = plan.bound_bytes - plan.base_bytes - 3 * 2 * plan.block_bytes
    assert rest >= 3 * 32 * MIB


# -- where functions come from


SCRIPT = """
    import sys
    import numpy as np
    from beside import factor
    from dwsr_probe.fit import fit_blocks

    more = 5

    class Filter:
        def __init__(self, factor):
            self.factor = factor
        def apply(self, a):
            return self.factor * a

    def scaled(a):
        return factor(a) * more

    x = np.ones((100, 100, 100), "float32")
    if __name__ == "__main__":
        for function in (scaled, lambda a: factor(a), Filter(3).apply, np.sqrt):
            plan = fit_blocks(function, x, memory="2GiB", threads=1)
            print(plan.task, len(plan.trials), plan.notes)
"""


def test_functions_of_a_script(cli):
    """Of __main__, with modules beside the script, from another directory; also under `run`, whose
    tasks trials are not."""
    folder = cli.cwd / "folder"
    folder.mkdir()
    (folder / "beside.py").write_text("def factor(a):\n    return a * 2\n")
    (folder / "job.py").write_text(textwrap.dedent(SCRIPT))
    for words in ([PY], [PY, "-m", "dwsr_probe", "run", "-q", "-o", "run", PY]):
        done = subprocess.run(
            [*words, folder / "job.py"], cwd=cli.cwd, env=cli.env, capture_output=True, text=True
        )
        assert done.returncode == 0 and not done.stderr, done.stderr
        lines = done.stdout.splitlines()
        assert [line.split()[0] for line in lines] == ["scaled", "<lambda>", "apply", "sqrt"]
        assert all(line.endswith(" []") for line in lines), lines
    records = cli.records(cli.cwd / "run")
    assert [record["kind"] for record in records] == ["process"]


def test_the_probe_may_be_switched_off(x, monkeypatch):
    """It is needed in the process of the trials only."""
    monkeypatch.setenv("DWSR_PROBE", "off")
    monkeypatch.setenv("DWSR_PROBE_ALLOC", "0")
    assert ratios(fitted(lambda a: a + 1, x)) == [1, 1, 1]


# -- functions that do harm


def test_a_function_that_allocates_without_end(x):
    """It is stopped at the limit, long before the machine's memory ends."""

    def endless(a):
        kept = []
        while True:
            kept.append(np.ones(1 << 20))

    text = fails(endless, x, memory="500MB")
    assert text.startswith("endless was stopped: it needed more than 333.8 MiB")


def test_a_process_of_the_function_that_allocates_without_end(x):
    def forks(a):
        if not os.fork():
            kept = []
            while True:
                kept.append(np.ones(1 << 20))
        os.wait()

    assert fails(forks, x, memory="500MB").startswith("forks was stopped: it needed more than")


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ("os._exit(3)", "ended the process that tried it (exit code 3)"),
        ("os.kill(os.getpid(), 9)", "ended the process that tried it (signal SIGKILL)"),
        ("__import__('ctypes').string_at(0)", "ended the process that tried it (signal SIGSEGV)"),
        ("sys.exit(4)", "failed: it raised SystemExit: 4, on a block of "),
        ("raise ValueError('no\\n' * 100_000)", "failed: it raised ValueError: no\nno"),
        ("raise KeyboardInterrupt", "failed: it raised KeyboardInterrupt, on a block of"),
        ("np.ones(1 << 50)", "failed: it ran out of memory"),
        ("os.closerange(3, 100)", "ended the process that tried it"),
        ("os.fork() and os._exit(5) or time.sleep(1000)", "(exit code 5)"),
        ("input()", "failed: it raised EOFError"),
        ("import none_such", "failed: it raised ModuleNotFoundError: No module named 'none_such'"),
    ],
)
def test_functions_that_fail(x, body, text, capfd):
    space = {"os": os, "sys": sys, "np": np, "time": time}
    exec(f"def broken(a):\n    {body}\n    return a\n", space)
    found = fails(space["broken"], x)
    assert found.startswith("broken ") and text in found
    capfd.readouterr()


def test_a_function_that_forks(x):
    """Both copies return; only one of them answers."""

    def forks(a):
        os.fork()
        return a + 1

    plan = fitted(forks, x)
    assert 1 <= len(plan.trials) <= 3 and plan.bound_bytes <= plan.allowed_bytes


def test_a_process_that_the_function_leaves_behind(x, tmp_path):
    """It ends with the trials, and not before: they may need it."""
    path = str(tmp_path / "pid")

    def leaves(a):
        if not os.path.exists(path):
            process = subprocess.Popen(["sleep", "1000"])
            with open(path, "w") as file:
                file.write(str(process.pid))
        return a + 1

    fitted(leaves, x)
    pid = int((tmp_path / "pid").read_text())
    wait_until(lambda: not psutil.pid_exists(pid), "the end of the sleeping process")


def test_a_function_that_raises_on_small_blocks(x):
    def picky(a):
        if a.nbytes < 2 * MIB:
            raise ValueError("too small")
        return a + 1

    plan = fitted(picky, x)
    assert [round(t.input_bytes / MIB) for t in plan.trials] == [4, 16] and plan.block_bytes > MIB
    assert plan.notes == [
        "whether axis 0, 1, 2 can be cut was not checked: the function fails on small blocks; if it"
        " must stay whole, say so with whole axes"
    ]
    # A quarter of the check's block is enough: the axes are checked on a larger one
    plan = fitted(lambda a: a + (1 if a.nbytes > 200_000 else 1 / 0), x)
    assert [check.verdict for check in plan.axes] == ["same"] * 3


def test_a_function_that_raises_on_large_blocks(x):
    def picky(a):
        if a.nbytes > 8 * MIB:
            raise ValueError("too large")
        return a + 1

    text = fails(picky, x)
    assert text.startswith("picky failed: it raised ValueError: too large, on a block of ")


@pytest.mark.parametrize("kept", ["a.copy()", "found"])
def test_a_function_that_leaks(x, kept):
    """Also if it keeps what it returns."""
    space = {"kept": []}
    exec(f"def leaky(a):\n    found = a + 1\n    kept.append({kept})\n    return found\n", space)
    text = fails(space["leaky"], x)
    assert text.startswith("leaky keeps memory after each call (")
    assert "about 22.9 MiB by the end of the job, whatever the block is" in text


def test_a_function_that_prints_much(x, capfd):
    """Nothing of it reaches the program's own output."""

    def prints(a):
        print("spam " * 100_000)
        return a + 1

    assert fitted(prints, x).trials
    said = capfd.readouterr()
    assert not said.out and len(said.err) > 1_000_000 and set(said.err.split()) == {"spam"}


def test_functions_and_inputs_that_cannot_be_tried(x):
    import threading

    lock = threading.Lock()
    assert "cannot send the function" in fails(lambda a: lock, x) and not lock.locked()
    assert fails(3, x) == "3 is not a function; give one that is called with a block"
    assert "the array with most axes comes first" in fails(np.add, x[0], x)
    large = np.broadcast_to(np.float32(1), (1 << 16, 1 << 14))
    text = fails(lambda a, b: a, x, large, memory="1GiB")
    assert text.startswith("the inputs of one small block have 4.0 GiB, more than the")


def test_memory_below_one_row(x):
    text = fails(lambda a: np.fft.fft(a, axis=2), x, memory="100MB")
    assert text.startswith(
        "no block fits: even 1×1×200, 800 B (one axis stays whole: 2), needs up to"
    )
    assert "of the 66.8 MiB that may be used" in text and "give each worker " in text


# -- Ctrl-C

HANGS = """
    import os, sys, time
    import numpy as np
    from dwsr_probe.fit import fit_blocks

    def hangs(a):
        with open("pid.new", "w") as file:
            file.write(str(os.getpid()))
        os.rename("pid.new", "pid")
        while True:
            time.sleep(1000)

    if __name__ == "__main__":
        try:
            fit_blocks(hangs, np.ones((100, 100, 100)), memory="2GiB", threads=1)
        except KeyboardInterrupt:
            children = open(f"/proc/self/task/{os.getpid()}/children").read()
            print("interrupted", repr(children))
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_the_program_ends_while_a_function_hangs(cli, number):
    """Ctrl-C reaches all processes of the terminal's group."""
    script = cli.script(HANGS)
    process = subprocess.Popen(
        [PY, script],
        cwd=cli.cwd,
        env=cli.env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    wait_until((cli.cwd / "pid").exists, "the function's call")
    child = psutil.Process(int((cli.cwd / "pid").read_text()))
    os.killpg(process.pid, number)
    out, err = process.communicate(timeout=300)
    wait_until(lambda: not child.is_running(), "the end of the process that tries blocks")
    assert not err
    if number == signal.SIGINT:
        assert process.returncode == 0 and out == "interrupted ''\n"
    else:
        assert process.returncode == -number
        shutil.rmtree(
            next((cli.cwd / "files").glob("dwsr-probe-fit-*"))
        )  # nobody was left to do it


def test_ctrl_c_on_the_command_line(cli):
    cli.script(HANGS)
    process = cli.start(
        *("fit", "job:hangs", "--shape", "100,100,100", "--dtype", "f4", "--memory", "2GiB"),
        start_new_session=True,
    )
    wait_until((cli.cwd / "pid").exists, "the function's call")
    child = psutil.Process(int((cli.cwd / "pid").read_text()))
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=300)
    assert process.returncode and not out and "Traceback" not in err, err
    assert not child.is_running() or child.status() == psutil.STATUS_ZOMBIE


# -- the command


JOB = """
    import numpy as np

    def envelope(a, power=1):
        return np.abs(np.fft.fft(a, axis=1)) ** power

    def doubled(a):
        return 2 * a

    class Filters:
        doubled = staticmethod(doubled)
"""
ASKED = ("--shape", "200,300,400", "--dtype", "float32", "--memory", "1GiB", "--threads", "2")


@pytest.fixture
def job(cli):
    cli.script(JOB)
    return cli


def test_the_command(job):
    """As a table for people."""
    done = job("fit", "job:envelope", *ASKED)
    assert done.returncode == 0 and not done.stderr, done.stderr
    lines = done.stdout.splitlines()
    heads = [line.split()[0] for line in lines if line and not line[0].isspace()]
    assert heads[:6] == ["block", "chunks", "worker", "memory", "task", "time"]
    assert sum(line.startswith("tried ") for line in lines) in (2, 3)
    assert (
        "note: blocks of random values were tried; real data may need more or less memory" in lines
    )
    assert "note: axis 1 stays whole: values change when it is cut" in lines
    assert "memory   1.0 GiB, of which 70 % may be used: 716.8 MiB" in lines
    assert any("◆" in line for line in lines)  # the chosen block in the plot


def test_the_command_for_programs(job):
    """As JSON; named by a file, with an argument of the function and data of a file."""
    zarr = pytest.importorskip("zarr")
    x = np.random.default_rng(0).standard_normal((90, 80, 100)).astype("float32")
    np.save(job.cwd / "x.npy", x)
    stored = zarr.open_array(
        job.cwd / "x.zarr", mode="w", shape=x.shape, chunks=(30, 80, 50), dtype="float32"
    )
    stored[:] = x
    for name in ("x.npy", "x.zarr"):
        done = job(
            *("fit", "job.py:envelope", "--data", name, "--memory", "1GiB", "--threads", "1"),
            *("--param", "power=2", "--format", "json", "--objective", "largest"),
        )
        assert done.returncode == 0 and not done.stderr, done.stderr
        plan = json.loads(done.stdout)
        assert plan["block"] == [90, 80, 100] and plan["task"] == "envelope"
        assert plan["block_bytes"] == x.nbytes and 1 <= len(plan["trials"]) <= 3
        assert plan["chunks"] == [[90], [80], [100]] and plan["blocks"] == 1
        assert plan["expected_bytes"] <= plan["bound_bytes"] <= plan["allowed_bytes"]
        assert plan["notes"] == ["axis 1 stays whole: values change when it is cut"]


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (("job:none", *ASKED), 1, "job has no none"),
        (("none:f", *ASKED), 1, "No module named 'none'"),
        (("none.py:f", *ASKED), 1, "there is no file none.py"),
        (("job:np", *ASKED), 1, "np of job is a module, no function"),
        (("job:doubled", *ASKED, "--param", "power=2"), 1, "unexpected keyword argument 'power'"),
        (("job:doubled", "--shape", "10,10", "--dtype", "float23"), 1, "is not a NumPy dtype"),
        (("job:doubled", "--shape", "10,0", "--dtype", "f4"), 1, "axis 1 has length 0"),
        (("job:doubled", "--data", "none.npy"), 1, "cannot read none.npy"),
        (("job:doubled", *ASKED, "--memory", "900TiB"), 1, "of this machine"),
        (("job:doubled", *ASKED, "--memory", "120MB"), 1, "no block fits: even 1×1×1, 4 B"),
        (("job:doubled", *ASKED, "--memory", "much"), 2, "is not a number of bytes"),
        (("job:doubled", *ASKED, "--threads", "0"), 2, "--threads is a whole number from 1"),
        (("job:doubled",), 2, "give the array"),
    ],
)
def test_one_clear_error(job, words, code, text):
    done = job("fit", *words)
    assert done.returncode == code and not done.stdout and "Traceback" not in done.stderr
    said = done.stderr.splitlines()
    assert len(said) <= 2 and said[0].startswith("dwsr-probe: ") and text in done.stderr, said


# -- plans that run


CLUSTER = """
    import json, os, sys, warnings
    import dask, numpy as np, zarr
    import dask.array as da
    from distributed import Client, LocalCluster
    from scipy.ndimage import uniform_filter
    from dwsr_probe.fit import fit_blocks
    warnings.simplefilter("ignore")
    rng = np.random.default_rng(0)
    dask.config.set({"distributed.admin.large-graph-warning-threshold": "1 GB"})

    def elementwise(a):
        return np.sqrt(a * a + 1)

    def envelope(a):
        spectrum = np.fft.fft(a, axis=2)
        spectrum[:, :, a.shape[2] // 2 :] = 0
        return np.abs(np.fft.ifft(spectrum, axis=2)).astype("float32")

    def smooth(a):
        return uniform_filter(a, size=5, mode="nearest")

    def ranked(a):
        return np.sort(a, axis=1)[:, ::-1]

    def energy(a):
        return (a.astype("float64") ** 2).sum(axis=2)

    def peak_bytes():
        with open("/proc/self/status") as file:
            return next(int(line.split()[1]) << 10 for line in file if line.startswith("VmHWM"))

    def report(client, name, plan, pids):
        peaks = client.run(peak_bytes)
        print(json.dumps({
            "name": name, "is_same": pids == client.run(os.getpid), "peak": max(peaks.values()),
            "bound": plan.bound_bytes, "limit": plan.memory_bytes, "threads": plan.tasks_at_once,
            "base": plan.base_bytes, "blocks": plan.block_count, "notes": plan.notes,
            "block_bytes": plan.block_bytes, "workers": plan.workers,
        }), flush=True)
"""
RUN = """
if __name__ == "__main__":
    shape = 240, 400, 500  # 183 MiB
    stored = zarr.open_array("x.zarr", mode="w", shape=shape, chunks=(40, 400, 125), dtype="f4")
    for begin in range(0, 240, 40):
        stored[begin : begin + 40] = rng.standard_normal((40, *shape[1:]), dtype="float32")

    def cluster():  # a fresh one for each function: workers keep some memory of earlier tasks
        return LocalCluster(
            n_workers=1, threads_per_worker=2, memory_limit="700MiB", dashboard_address=None
        )

    for function in (ranked, elementwise, energy, envelope):
        with cluster() as workers, Client(workers) as client:
            pids = client.run(os.getpid)
            plan = fit_blocks(function, stored, objective="largest")
            blocks = da.from_zarr("x.zarr", chunks=plan.chunks)
            options = {"drop_axis": 2} if function is energy else {}
            result = blocks.map_blocks(function, dtype="f4", **options)
            chunks = tuple(lengths[0] for lengths in result.chunks)
            out = zarr.open_array(
                function.__name__, mode="w", shape=result.shape, chunks=chunks, dtype="f4"
            )
            da.store(result, out, lock=False)
            report(client, function.__name__, plan, pids)
    # Blocks are made by rechunk, from a persisted array: its values are the cluster's futures
    with cluster() as workers, Client(workers) as client:
        pids = client.run(os.getpid)
        small = da.from_zarr("x.zarr")[:80].persist()
        plan = fit_blocks(smooth, small + 1, depth=2)
        result = (small + 1).rechunk(plan.chunks).map_overlap(
            smooth, depth=2, boundary="none", dtype="f4"
        )
        result.sum().compute()
        report(client, "overlap", plan, pids)
"""


def test_plans_run_on_a_real_cluster(cli):
    """Limits, threads and base are those of the connected Client. No worker is restarted, and none
    needs more than the plan's bound."""
    pytest.importorskip("distributed")
    pytest.importorskip("zarr")
    pytest.importorskip("scipy")
    cli.script(textwrap.dedent(CLUSTER) + textwrap.dedent(RUN), "cluster.py")
    done = subprocess.run(
        [PY, "cluster.py"], cwd=cli.cwd, env=cli.env, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr
    found = {plan["name"]: plan for plan in map(json.loads, done.stdout.splitlines())}
    assert list(found) == ["ranked", "elementwise", "energy", "envelope", "overlap"]
    for name, plan in found.items():
        assert (plan["limit"], plan["threads"], plan["workers"]) == (700 * MIB, 2, 1)
        # No kill: the worker is the same, and was not near its limit.
        assert plan["is_same"] and plan["peak"] < 0.95 * plan["limit"], plan
        assert plan["base"] < plan["bound"] <= 0.7 * plan["limit"] and plan["base"] > 50 * MIB
        if name != "overlap":
            # How often a peak is above its bound is counted by `make bench-fit`.
            assert plan["peak"] <= 1.1 * plan["bound"], plan
            assert plan["blocks"] > 1 and plan["block_bytes"] > 2 * MIB
            axis = {"energy": "axis 2", "envelope": "axis 2", "ranked": "axis 1"}.get(name)
            said = [note for note in plan["notes"] if "stays whole" in note]
            assert bool(said) == bool(axis) and (not axis or axis in said[0]), plan["notes"]
