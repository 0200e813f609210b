"""`dwsr-probe predict`: what a run teaches, asked on the command line."""

import json
import subprocess
import sys

import pytest

from dwsr_probe.predict import Model
from dwsr_probe.record import TaskRecord
from dwsr_probe.serve.ledger import Ledger
from dwsr_probe.store import Store

JOB = """
    import dwsr_probe, numpy as np
    for n in range(12):
        x = np.ones((100 * (n % 4 + 1), 1000), "float32")
        with dwsr_probe.task("double", inputs=[x]) as block:
            y = x * 2
        with dwsr_probe.task("sum", inputs=[x, y]):
            float((x + y).sum())
"""


@pytest.fixture
def run(cli):
    done, _ = cli.job(JOB, "-q")
    assert done.returncode == 0
    return cli.cwd / "run"


def lines(done):
    said = [
        line
        for line in done.stderr.splitlines()
        if not line.startswith("dwsr-probe: the last run is ")
    ]
    assert done.returncode == 0 and not said, done.stderr
    return done.stdout.splitlines()


def test_one_task(cli, run):
    shown = lines(
        cli(
            "predict",
            run,
            "--task",
            "double",
            "--shape",
            "5000,1000",
            "--dtype",
            "float32",
            "--limit",
            "1GiB",
        )
    )
    assert (
        shown[0] == "double of 5000×1000 float32"
        and shown[1].startswith("own peak: 19.")
        and "99 %" in shown[1]
        and shown[2]
        == "more than 1GiB: less than 0.1 % probable for one task alone; --threads N answers for a"
        " worker"
    )
    assert (
        "learned from 12 tasks" in "\n".join(shown)
        and any("◆" in line for line in shown)
        and max(map(len, shown)) <= 100
    )
    assert max(len(line) for line in shown if "┤" in line) <= 80
    (found,) = map(
        json.loads,
        lines(
            cli(
                "predict",
                run,
                "--task",
                "double",
                "--shape",
                "5000x1000",
                "--dtype",
                "float32",
                "--limit",
                "1GiB",
                "--format",
                "json",
            )
        ),
    )
    assert (
        abs(found["mean_bytes"] / 20e6 - 1) < 0.03
        and found["mean_bytes"] <= found["upper_bytes"] < 22e6
        and found["n"] == 12
        and found["exceeds"] < 0.001
    )


WINDOWS = """
    import dwsr_probe, numpy as np
    from numpy.lib.stride_tricks import sliding_window_view

    @dwsr_probe.task("patches")
    def patches(x, size, seed):
        return np.ascontiguousarray(sliding_window_view(x, (size, size)))

    x = np.ones((300, 300))
    for n in range(6):
        patches(x, 3 + 2 * (n % 3), seed=n)
"""


def test_parameters(cli):
    """Windows of 3, 5 and 7 were seen; one of 9 is asked for."""
    done, _ = cli.job(WINDOWS, "-q")
    assert done.returncode == 0
    words = "predict", "--task", "patches", "--shape", "300,300", "--dtype", "float64"
    (found,) = map(json.loads, lines(cli(*words, "--param", "size=9", "--format", "json")))
    truth = 292 * 292 * 81 * 8
    assert abs(found["mean_bytes"] / truth - 1) < 0.05 and found["params"] == {"size": 9.0}
    assert found["depends_on"] == ["size"] and truth < found["upper_bytes"] < 1.5 * truth
    shown = lines(cli(*words, "--param", "size=9", "--param", "seed=1"))
    assert shown[0] == "patches of 300×300 float64, size 9"
    shown = "\n".join(lines(cli(*words)))
    assert (
        "note: params: the peak depends on a parameter whose" in shown and "--param size=" in shown
    )
    (largest,) = map(json.loads, lines(cli(*words[:3], "--format", "json")))
    assert largest["params"] == {"size": 7, "seed": 5}  # of the last task with these inputs
    done = cli(*words, "--param", "sigma=9")
    assert done.returncode == 1 and "no parameter sigma; recorded: seed, size" in done.stderr
    done = cli(*words, "--param", "size")
    assert done.returncode == 2 and "write sigma=30" in done.stderr


def test_several_inputs_and_other_kinds(cli, run):
    (two,) = map(
        json.loads,
        lines(
            cli(
                "predict",
                run,
                "--task",
                "sum",
                "--shape",
                "800,1000",
                "--shape",
                "800,1000",
                "--dtype",
                "float32",
                "--format",
                "json",
            )
        ),
    )
    assert len(two["inputs"]) == 2 and abs(two["mean_bytes"] / 3.2e6 - 1) < 0.1
    (growth,) = map(
        json.loads,
        lines(
            cli(
                "predict",
                run,
                "--task",
                "double",
                "--kind",
                "rss",
                "--quantile",
                "0.5",
                "--format",
                "json",
            )
        ),
    )
    # the largest seen
    assert (
        growth["kind"] == "rss"
        and growth["q"] == 0.5
        and growth["inputs"][0]["shape"] == [400, 1000]
    )


def test_all_tasks_of_the_last_run(cli, run):
    head, *rows = lines(cli("predict"))
    # own peaks, the largest first
    assert "largest input" in head and [row.split()[:2] for row in rows] == [
        ["sum", "alloc"],
        ["double", "alloc"],
    ]
    assert all(
        row.split()[1] == "alloc" for row in lines(cli("predict", run, "--kind", "alloc"))[1:]
    )
    found = [json.loads(line) for line in lines(cli("predict", run, "--format", "json"))]
    assert {(f["task"], f["kind"]) for f in found} >= {("double", "alloc"), ("sum", "alloc")}


def test_the_ten_largest_tasks(cli):
    cli.job(
        """
        import dwsr_probe, numpy as np
        for n in range(1, 13):
            with dwsr_probe.task(f"step {n}"):
                np.ones(n * 100_000)
    """,
        "-q",
    )
    *rows, more = lines(cli("predict", "run"))[1:]
    assert [row.split()[1] for row in rows] == [
        str(n) for n in range(12, 2, -1)
    ] and more == "and 2 smaller tasks: --task NAME, or --format json for all"
    assert len(lines(cli("predict", "run", "--format", "json"))) >= 12
    cli("run", "-q", "-o", "plain", "--no-alloc", sys.executable, "job.py")
    # without accounting, growth
    assert {row.split()[2] for row in lines(cli("predict", "plain"))[1:-1]} == {"rss"}


def test_inputs_of_unknown_size(cli):
    """As those of xarray's tasks, and the `self` of a method in runs of older versions."""
    cli.job(
        """
        import dwsr_probe, numpy as np
        class Lazy: pass
        for n in range(1, 7):
            x = np.ones(n * 50_000)
            with dwsr_probe.task("scale", inputs=[Lazy(), x]):
                x * 2
            with dwsr_probe.task("open", inputs=[Lazy()]):
                np.ones(100_000)
    """,
        "-q",
    )
    rows = [row.split() for row in lines(cli("predict", "run"))[1:]]
    assert (
        [row[0] for row in rows] == ["scale", "open"]
        and rows[0][3:5] == ["2.3", "MiB"]
        and rows[1][3] == "–"
    )
    shown = lines(cli("predict", "run", "--task", "scale"))
    assert shown[0] == "scale of Lazy of unknown size, 300000 float64 (the largest seen)" and any(
        "◆" in line for line in shown
    )
    shown = lines(cli("predict", "run", "--task", "open", "--limit", "2GB"))
    assert shown[0] == "open of Lazy of unknown size (the largest seen)" and shown[2].startswith(
        "more than 2GB: "
    )
    assert not any("┤" in line for line in shown)  # there is no size to draw it by
    assert [
        json.loads(line)["task"]
        for line in lines(cli("predict", "run", "--kind", "alloc", "--format", "json"))
    ] == ["open", "scale"]


def test_an_unknown_task_lists_all_names_whole(cli):
    names = [f"{i:02}-{'a' * 60}" for i in range(12)]
    cli.job(
        f"""
        import dwsr_probe, numpy as np
        for name in {names}:
            with dwsr_probe.task(name):
                np.ones(1000)
    """,
        "-q",
    )
    done = cli("predict", "run", "--task", "never")
    assert (
        done.returncode == 1
        and done.stderr == f"dwsr-probe: no task 'never' was seen; there are {', '.join(names)}\n"
    )


def test_the_plot_of_a_table_keeps_its_columns(cli):
    cli.job(
        """
        import dwsr_probe, numpy as np, pandas as pd

        for n in range(12):
            rows = 20_000 * (n % 4 + 1)
            with dwsr_probe.task(
                "sort",
                inputs=[
                    pd.DataFrame(
                        {
                            "key": np.arange(rows) % 97,
                            "value": np.ones(rows),
                            "kind": pd.Categorical(np.arange(rows) % 3),
                        }
                    )
                ],
            ):
                y = np.ones(4 * rows)
    """,
        "-q",
    )
    shown = lines(cli("predict", "run", "--task", "sort"))
    assert shown[0] == "sort of 80000×3 DataFrame (the largest seen)"
    top = next(line for line in shown if "┤" in line).split()
    assert top[1] == "MiB" and 2 < float(top[0]) < 10  # 2.4 MiB and its bound


POLARS_JOB = """
    import dwsr_probe, polars
    for _ in range(5):
        with dwsr_probe.task("query"):
            numbers = polars.int_range(0, 5_000_000, eager=True)
            (numbers * 2).sort(descending=True).sum()
"""


def assert_not_promised(cli, run):
    """40 MB of numbers, twice or three times: nobody is told that a few KiB are enough."""
    shown = "\n".join(lines(cli("predict", run, "--task", "query", "--limit", "1GiB")))
    assert "own peak: at least " in shown and "at most" not in shown
    assert "more than 1GiB: not known" in shown and "own peaks may miss memory in 5 of 5" in shown
    words = ("predict", run, "--task", "query", "--limit", "1MiB", "--format", "json")
    (found,) = map(json.loads, lines(cli(*words)))
    assert found["mean_bytes"] > 40e6 and found["exceeds"] == 1.0
    assert found["upper_bytes"] is None and not found["promised"]
    table = "\n".join(lines(cli("predict", run)))
    assert "no bound" in table and "≥ " in table and "unseen" in table


def test_what_was_not_seen_is_not_promised(cli):
    """A run as it is stored when a library allocates by itself: the first task makes the process
    grow, the others find its pages again."""
    store = Store.create(str(cli.cwd / "run"))
    store.set_meta(host="another")  # which has the boards: nothing is left to collect here
    store.add_tasks(
        [
            TaskRecord(
                seq=n + 1,
                process="1-1",
                task_name="query",
                state="ok",
                start=float(n),
                duration=0.1,
                alloc_peak_bytes=24,
                rss_before_bytes=50_000_000 if n == 0 else 170_000_000,
                rss_peak_bytes=170_000_000,
                overlap=0,
                attribution="shared",
                attribution_reason="foreign-allocator polars",
            )
            for n in range(5)
        ]
    )
    store.close()
    assert_not_promised(cli, cli.cwd / "run")


def test_a_polars_job_is_not_promised_to_fit(cli):
    pytest.importorskip("polars")
    done, records = cli.job(POLARS_JOB, "-q")
    assert done.returncode == 0
    queries = [record for record in records if record["task_name"] == "query"]
    assert {record["attribution"] for record in queries} == {"shared"}
    assert_not_promised(cli, cli.cwd / "run")


def test_a_run_without_accounting_is_asked_for_growth(cli):
    done, _ = cli.job(JOB, "-q", "--no-alloc")
    assert done.returncode == 0
    shown = lines(cli("predict", cli.cwd / "run", "--task", "double"))
    assert shown[1].startswith("growth of the process: ")


def test_a_saved_model(cli, run):
    model, ledger = Model(), Ledger()
    for record in cli.records(run):
        model.learn(record)
        ledger.add_record(record)
    model.save(cli.cwd / "model.json")
    (found,) = map(
        json.loads,
        lines(
            cli(
                "predict",
                "model.json",
                "--task",
                "double",
                "--shape",
                "5000,1000",
                "--dtype",
                "float32",
                "--format",
                "json",
            )
        ),
    )
    (same,) = map(
        json.loads,
        lines(
            cli(
                "predict",
                run,
                "--task",
                "double",
                "--shape",
                "5000,1000",
                "--dtype",
                "float32",
                "--format",
                "json",
            )
        ),
    )
    assert found == same
    assert "◆" in cli("predict", "model.json", "--task", "double").stdout
    (cli.cwd / "state.json").write_text(
        json.dumps({"model": model.to_dict(), "ledger": ledger.to_dict()})
    )
    assert lines(cli("predict", "state.json")) == lines(cli("predict", run))
    (cli.cwd / "bad.json").write_text("{}")
    done = cli("predict", "bad.json")
    assert (
        done.returncode == 1 and "not a model" in done.stderr and len(done.stderr.splitlines()) == 1
    )


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (["nowhere"], 1, "holds no run"),
        (["run", "--task", "never"], 1, "there are double, sum"),
        (["run", "--task", "double", "--shape", "5"], 2, "needs its dtype"),
        (["run", "--task", "double", "--shape", "a", "--dtype", "int8"], 2, "is not a shape"),
        (["run", "--task", "double", "--shape", "5", "--dtype", "float99"], 2, "is not a dtype"),
        (["run", "--shape", "5", "--dtype", "int8"], 2, "--task NAME"),
        (["run", "--limit", "5"], 2, "--task NAME"),
        (["run", "--task", "double", "--limit", "much"], 2, "is not a number of bytes"),
        (["run", "--task", "double", "--quantile", "1"], 2, "between 0 and 1"),
        (["run", "--kind", "disk"], 2, "alloc, rss, gpu, output"),
        (["run", "--kind", "gpu"], 1, "no task has figures"),
    ],
)
def test_what_makes_no_sense_is_one_line(cli, run, words, code, text):
    done = cli("predict", *words)
    assert (
        (done.returncode, done.stdout) == (code, "")
        and text in done.stderr
        and len(done.stderr.splitlines()) == 1
    ), done.stderr


def test_a_run_without_tasks(cli):
    cli.job("pass", "-q")
    done = cli("predict", "run")
    assert done.returncode == 1 and "no task to learn from" in done.stderr


def test_the_reader_goes_away(cli, run):
    done = subprocess.run(
        f"{sys.executable} -m dwsr_probe predict {run} --task double | head -1",
        shell=True,
        capture_output=True,
        text=True,
        cwd=cli.cwd,
        env=cli.env,
        timeout=600,
    )
    assert done.stdout.startswith("double of") and done.stderr == ""


@pytest.mark.parametrize("words", [["predict", "x"], ["predict", "serve", "--from", "a:1"]])
def test_without_numpy(cli, words):
    """The extra is named."""
    code = (
        f"import sys; sys.modules['numpy'] = None; import dwsr_probe.cli; sys.argv[1:] = {words!r};"
        " dwsr_probe.cli.main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        cwd=cli.cwd,
        env=cli.env,
        timeout=600,
    )
    assert (
        done.returncode == 1
        and "pip install 'dwsr-probe[predict]'" in done.stderr
        and len(done.stderr.splitlines()) == 1
    ), done.stderr


def test_help_tells_of_both(cli):
    done = cli("predict", "--help")
    assert (
        done.returncode == 0
        and "--shape" in done.stdout
        and "predict serve --help" in " ".join(done.stdout.split())
    )
    assert "--from-token-file" in cli("predict", "serve", "--help").stdout


PIPELINE = """
    import dask, dask.array as da, numpy as np

    class Operator:
        def __init__(self, copies):
            self.copies = copies
        def __call__(self, block):
            return sum(np.array(block) for _ in range(self.copies))

    class Narrow(Operator):
        pass

    class Wide(Operator):
        def __call__(self, block):
            parts = [np.array(block) for _ in range(self.copies)]
            return sum(parts)

    def smooth(block):
        return block * 2

    if __name__ == "__main__":
        for rows in (50, 100, 150):
            x = da.from_array(np.ones((300, 2000)), chunks=(rows, 2000))
            out = np.empty(x.shape)
            for operator in (Narrow(2), Wide(6)):
                da.store(x.map_blocks(operator, dtype=x.dtype), out, lock=False)
            da.store(x.map_blocks(smooth, dtype=x.dtype), out, lock=False)
            x.map_blocks(smooth, dtype=x.dtype)[5:].compute(scheduler="threads")
"""


def test_operators_under_one_prefix(cli):
    """As a pipeline that stores its blocks has them: each operator has a row and a forecast."""
    pytest.importorskip("dask")
    done, _ = cli.job(PIPELINE, "-q")
    assert done.returncode == 0, done.stderr
    run = cli.cwd / "run"
    table = lines(cli("predict", run))
    names = {line.split("  ")[0] for line in table}
    assert {"Narrow", "Wide"} <= names and any(name.startswith("smooth") for name in names)
    narrow, wide = (
        json.loads(lines(cli("predict", run, "--task", name, "--format", "json"))[0])
        for name in ("Narrow", "Wide")
    )
    assert narrow["operation"] == "Narrow" and narrow["n"] == wide["n"] == 6 + 3 + 2
    assert wide["mean_bytes"] > 2 * narrow["mean_bytes"] > 0


def store_of_groups(cli):
    """Two operators under one prefix of keys, one of them in two chains; and an odd task whose
    inputs have no size."""
    store = Store.create(str(cli.cwd / "run"))
    store.set_meta(host="another")  # which has the boards: nothing is left to collect here
    unknown = {"type": "Survey", "dtype": None, "shape": None, "nbytes": None}
    masked = {"type": "Array", "dtype": "float64", "shape": [None, 5], "nbytes": None}

    def one(n, operation, chain, factor, name="store-map", **fields):
        rows = 100 * (n % 4 + 1)
        block = {"type": "Array", "dtype": "float64", "shape": [rows, 1000], "nbytes": 8000 * rows}
        return TaskRecord(
            process="1-1",
            task_name=name,
            state="ok",
            start=float(n),
            duration=0.1,
            operation=operation,
            chain=chain,
            alloc_peak_bytes=factor * 8000 * rows,
            **{"inputs": [{**block, "lazy": True}], "input_bytes": 8000 * rows, **fields},
        )

    records = [
        made
        for n in range(12)
        for made in (
            one(n, "rms", ["getitem", "rms", "store"], 3),
            one(n, "gst", ["getitem", "gst", "store"], 9),
            one(n, "rms", ["rms", "store"], 2),
            one(n, None, None, 1, "odd", inputs=[unknown, masked], input_bytes=None),
        )
    ]
    for seq, made in enumerate(records, 1):
        made.seq = seq
    store.add_tasks(records)
    store.close()
    return cli.cwd / "run"


def test_a_task_by_any_of_its_names(cli):
    run = store_of_groups(cli)

    def asked(name, *words):
        return [
            json.loads(line)
            for line in lines(cli("predict", run, "--task", name, "--format", "json", *words))
        ]

    chains = {"rms [getitem → rms → store]": 3, "rms [rms → store]": 2}
    for name, groups in (
        ("gst", ["gst [getitem → gst → store]"]),
        ("gst [getitem → gst → store]", ["gst [getitem → gst → store]"]),
        ("rms", ["rms [rms → store]", "rms [getitem → rms → store]"]),
        ("rms (1 of 2)", ["rms [rms → store]"]),
        ("rms (2 of 2)", ["rms [getitem → rms → store]"]),
        ("getitem", ["gst [getitem → gst → store]", "rms [getitem → rms → store]"]),
        ("odd", ["odd"]),
    ):
        found = asked(name)
        assert [one["group"] for one in found] == groups and all(
            one["task"] == name and one["n"] == 12 for one in found
        )
    assert len(asked("store-map")) == 3 and asked("odd")[0]["operation"] is None
    *of_groups, of_any = asked("rms", "--shape", "800,1000", "--dtype", "float64")
    for one in of_groups:
        factor = chains[one["group"]]  # twice the largest block that was read
        assert one["mean_bytes"] == pytest.approx(factor * 6_400_000, rel=0.02)
        assert one["operation"] == "rms" and "rms" in one["chain"]
    assert of_any["group"] is None and "mixture" in of_any["notes"]
    assert of_any["upper_bytes"] == max(one["upper_bytes"] for one in of_groups)
    assert asked("never")[0]["trust"] == "none"


def test_a_table_of_groups(cli):
    run = store_of_groups(cli)
    table = lines(cli("predict", run))
    assert [line.split("  ")[0] for line in table[1:5]] == [
        "gst",
        "rms (2 of 2)",
        "rms (1 of 2)",
        "odd",
    ]
    assert table[5:] == ["rms (1 of 2): rms → store", "rms (2 of 2): getitem → rms → store"]
    shown = lines(cli("predict", run, "--task", "rms"))
    titles = [line for line in shown if line.startswith(("rms", "chain"))]
    assert titles == [
        "rms (1 of 2) of 400×1000 float64 (the largest seen)",
        "chain: rms → store",
        "rms (2 of 2) of 400×1000 float64 (the largest seen)",
        "chain: getitem → rms → store",
    ]
    (first, *_) = lines(cli("predict", run, "--task", "odd"))
    assert first.startswith("odd of Survey of unknown size")
    done = cli("predict", run, "--task", "never")
    assert done.returncode == 1 and done.stderr == (
        "dwsr-probe: no task 'never' was seen; there are gst, odd, rms (1 of 2), rms (2 of 2)\n"
    )


def test_methods_that_are_marked(cli):
    """`self` is no input, and an object of the job's own class has no size."""
    done, _ = cli.job(
        """
        import dwsr_probe, numpy as np
        class Survey:
            @dwsr_probe.task("scale")
            def scale(self, x):
                return x * 2
            @dwsr_probe.task("merge")
            def merge(self, other, x=None):
                return other
        for n in range(8):
            Survey().scale(np.ones((100 * (n % 4 + 1), 1000)))
            Survey().merge(Survey())
            Survey().merge(Survey(), np.ones(1000))
        """,
        "-q",
    )
    assert done.returncode == 0
    run = cli.cwd / "run"
    table = lines(cli("predict", run))
    assert [line.split()[0] for line in table[1:3]] == ["scale", "merge"]
    assert lines(cli("predict", run, "--format", "json"))
    for name, given in (("scale", "400×1000 float64"), ("merge", "Survey of unknown size")):
        assert lines(cli("predict", run, "--task", name))[0].startswith(f"{name} of {given}")


FIRST_CALLS = """
    import threading, time
    from concurrent.futures import ThreadPoolExecutor
    import dask.threaded, numpy as np

    local, ready = threading.local(), threading.Barrier(4)

    def filtered(x):
        if not hasattr(local, "buffer"):  # as OpenBLAS and FFT plans: once in each thread
            ready.wait(300)
            local.buffer = np.ones(4 << 20)
        y = x * 2.0
        return y + x

    sides = [250 if number % 3 else 500 for number in range(40)]
    graph = {("filtered", n): (filtered, np.ones((side, 1000))) for n, side in enumerate(sides)}
    dask.threaded.get(graph, list(graph), num_workers=4)
"""


def test_first_calls_of_threads(cli):
    """Each of four threads takes 32 MiB at its first call, and keeps them."""
    done, _ = cli.job(FIRST_CALLS, "-q")
    assert done.returncode == 0, done.stderr
    for side in (250, 500):
        words = "predict", "--task", "filtered", "--shape", f"{side},1000", "--dtype", "float64"
        (found,) = map(json.loads, lines(cli(*words, "--format", "json")))
        need = 2 * side * 1000 * 8
        assert found["n"] == 40 and "value-dependent" not in found["notes"]
        assert abs(found["mean_bytes"] / need - 1) < 0.05 and found["upper_bytes"] < 1.25 * need
        assert found["trust"] == "good" and "first-calls" in found["notes"]
        assert 31 << 20 < found["first_call_bytes"] < 34 << 20
        shown = "\n".join(lines(cli(*words)))
        assert "note: first-calls: the first task in a process or thread may take more" in shown
        assert "up to 32.0 MiB more" in shown
