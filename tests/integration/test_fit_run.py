"""`dwsr-probe fit RUN`: answers from runs of real jobs (tests/jobs); and what `predict` and the
report say of the same runs. A run that was killed is in test_rescue.py."""

import json
import re
import sys
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from dwsr_probe.fit import FitError, fit_blocks
from tests.conftest import Cli, tasks

for module in ("distributed", "zarr", "flox"):
    pytest.importorskip(module)
PY = sys.executable
FOLDER = Path(__file__).parents[1] / "jobs"
MIB = 1 << 20


@pytest.fixture(scope="module")
def cli(tmp_path_factory):
    cli = Cli(tmp_path_factory.mktemp("fit"))
    cli.env["DWSR_PROBE_BOARD_DIR"] = str(cli.cwd / "boards")
    cli.env["PYTHONWARNINGS"] = "ignore"
    return cli


@pytest.fixture(scope="module")
def ran(cli):
    """A function of the job's name and the length of its blocks: the path of the run."""

    @cache
    def run(name, block):
        path = cli.cwd / f"{name}-{block}"
        done = cli(
            "run", "-q", "-o", path, PY, FOLDER / f"{name}.py", cli.cwd, "--block", str(block)
        )
        assert done.returncode == 0, done.stderr
        return path

    return run


def plan_of(cli, *words, code=0):
    done = cli("fit", *words, "--format", "json")
    assert done.returncode == code, done.stderr
    return json.loads(done.stdout) if code == 0 else done.stderr


def test_the_whole_job(cli, ran):
    plan = plan_of(cli, ran("seismic", 64))
    assert plan["used"]["block"] == [64, 96, 96] and plan["used"]["fits"]
    assert [sum(lengths) for lengths in plan["chunks"]] == [256, 96, 96]
    assert [max(lengths) for lengths in plan["chunks"]] == plan["block"]
    names = {step["task"] for step in plan["steps"]}
    assert {"Chaos", "GST", "Semblance", "RMS", "Gaussian"} <= names
    # What was measured is within the bound of the run's own block.
    records = cli.records(ran("seismic", 64))
    worker = max(r["rss_peak_bytes"] for r in records if r["kind"] == "process")
    assert worker <= plan["used"]["bound_bytes"]
    bounds = {step["task"]: step["used_bound_bytes"] for step in plan["steps"]}
    for record in tasks(records):
        if record["operation"] in bounds:
            assert record["alloc_peak_bytes"] <= bounds[record["operation"]], record


def test_less_memory_means_smaller_blocks(cli, ran):
    run = ran("seismic", 64)
    found = [plan_of(cli, run, "--memory", size) for size in ("4GB", "700MB", "450MB")]
    sizes = [plan["block_bytes"] for plan in found]
    assert sizes[0] >= sizes[1] > sizes[2]
    for plan in found:
        assert plan["bound_bytes"] <= plan["allowed_bytes"] <= 0.7 * plan["memory_bytes"] + 1
    assert not found[2]["used"]["fits"] and found[2]["used"]["task"] == "Chaos"


def test_what_does_not_fit_says_what_is_needed(cli, ran):
    said = plan_of(cli, ran("seismic", 64), "--memory", "150MB", code=1)
    assert said.count("\n") == 1 and "no block fits" in said and "give each worker" in said


def test_a_page(cli, ran):
    pytest.importorskip("bokeh")
    page = cli.cwd / "fit.html"
    done = cli("fit", ran("seismic", 64), "--html", page)
    assert done.returncode == 0, done.stderr
    text = page.read_text()
    assert "<h1>Blocks for Chaos</h1>" in text and "each     Chaos: up to" in text
    assert not re.search(r"<(script|link)[^>]+(src|href)=", text)  # nothing is fetched
    done = cli("fit", ran("seismic", 64), "--html", cli.cwd / "no" / "such")
    assert done.returncode == 1 and done.stderr.count("\n") == 1


def test_one_task(cli, ran):
    plan = plan_of(
        cli,
        "--from",
        ran("seismic", 64),
        *("--task", "GST", "--shape", "512,512,512", "--memory", "1GiB", "--threads", "2"),
    )
    assert plan["task"] == "GST" and [sum(n) for n in plan["chunks"]] == [512, 512, 512]
    assert plan["bound_bytes"] <= plan["allowed_bytes"]


def test_from_a_run_in_a_program(ran):
    def semblance(block):
        raise AssertionError("nothing is called")

    volume = np.zeros((512, 96, 96), np.float32)
    options = {"memory": "1GiB", "threads": 2, "task": "Semblance"}
    plan = fit_blocks(semblance, volume, run=ran("seismic", 64), **options)
    assert plan.task == "Semblance" and not plan.trials
    assert [sum(lengths) for lengths in plan.chunks] == [512, 96, 96]
    with pytest.raises(FitError, match="no task 'nosuch' in this run"):
        fit_blocks(semblance, volume, run=ran("seismic", 64), **{**options, "task": "nosuch"})


def test_partitions_of_a_dataframe(cli, ran):
    done = cli("fit", ran("tables", 100_000))
    assert done.returncode == 0, done.stderr
    assert "rows per partition" in done.stdout
    plan = plan_of(cli, ran("tables", 100_000))
    assert plan["rows_per_partition"] == plan["block"][0] > 0


def test_xarray_with_a_dataset_beside_it(cli, ran):
    plan = plan_of(cli, ran("climate", 64), "--memory", "2GB", "--threads", "4")
    assert plan["tasks_at_once"] == 4 and plan["bound_bytes"] <= plan["allowed_bytes"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--task", "nosuch"], "no task 'nosuch' in this run; there are "),
        (["--shape", "1,2"], "have 3 axes, --shape has 2"),
        (["--memory", "much"], "'much' is not a number of bytes"),
        (["--threads", "0"], "--threads is a whole number from 1"),
        (["--delta", "2"], "delta is a probability"),
        (["--fill", "0"], "fill is a share"),
        (["--whole-axes", "7"], "whole axes are numbers from 0 to 2"),
    ],
)
def test_bad_words(cli, ran, words, said):
    done = cli("fit", ran("seismic", 64), *words)
    assert done.returncode in (1, 2) and said in done.stderr, done.stderr
    assert not done.stdout and "Traceback" not in done.stderr


def test_predict_for_a_chunk_and_a_worker(cli, ran):
    """Learned at blocks of 64, asked for 128 in the words of the dataset, and measured there."""
    done = cli(
        "predict",
        ran("seismic", 64),
        *("--task", "Semblance", "--chunk", "128,96,96", "--threads", "2"),
        *("--limit", "250MB", "--format", "json"),
    )
    assert done.returncode == 0, done.stderr
    (found,) = map(json.loads, done.stdout.splitlines())
    measured = [
        r["alloc_peak_bytes"]
        for r in tasks(cli.records(ran("seismic", 128)))
        if r["operation"] == "Semblance"
    ]
    assert found["mean_bytes"] == pytest.approx(max(measured), rel=0.25)
    worker = found["worker"]
    assert worker["threads"] == 2 and worker["base_bytes"] > 50 * MIB
    assert worker["upper_bytes"] > worker["base_bytes"] + 2 * found["mean_bytes"]
    assert worker["exceeds"] > found["exceeds"]
    said = cli(
        "predict", ran("seismic", 64), "--task", "Semblance", "--limit", "250MB", "--threads", "2"
    ).stdout
    assert "a worker with 2 such tasks at once" in said and "in this worker" in said


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--chunk", "64,96,96"], "--task NAME"),
        (["--task", "GST", "--chunk", "64"], "3 axes"),
        (["--task", "GST", "--chunk", "64,9,9", "--nbytes", "5"], "name one"),
        (["--task", "GST", "--threads", "none"], "whole number"),
    ],
)
def test_bad_questions(cli, ran, words, said):
    done = cli("predict", ran("seismic", 64), *words)
    assert done.returncode == 2 and said in done.stderr and not done.stdout, done.stderr


def test_a_run_without_tasks(cli):
    path = cli.cwd / "empty"
    assert cli("run", "-q", "-o", path, PY, "-c", "pass").returncode == 0
    assert "there is no task in this run" in plan_of(cli, path, code=1)


TINY = """
import dask.array as da
from distributed import Client, LocalCluster

if __name__ == "__main__":
    options = {"n_workers": 1, "threads_per_worker": 2, "dashboard_address": None}
    with LocalCluster(**options) as cluster, Client(cluster):
        x = da.zeros((2000, 1000), chunks=(1, 1000))
        x.map_blocks(lambda block: block + 1).sum().compute()
"""


def test_blocks_that_are_too_small(cli):
    path = cli.cwd / "tiny"
    done = cli("run", "-q", "-o", path, PY, cli.script(TINY, "tiny.py"))
    assert done.returncode == 0, done.stderr
    said = cli("report", path).stdout
    assert "Blocks are too small: " in said and "of the time was overhead. Use blocks of" in said
    plan = plan_of(cli, path)
    assert "Use blocks of " + "×".join(map(str, plan["block"])) in said
    assert plan["block"][0] > 10 and plan["block"][1] == 1000
