"""`dwsr_probe.load` in a real notebook kernel, and what the frames hold."""

import re
import subprocess
import sys
from html import unescape

import nbformat
import pandas as pd
import pytest
from nbclient import NotebookClient

import dwsr_probe
from dwsr_probe.record import TaskRecord
from dwsr_probe.store import Store, StoreError
from tests.integration.test_compare import JOB
from tests.unit.test_task import HOSTILE

PY = sys.executable


@pytest.fixture
def run(cli):
    job = JOB.replace('"once"', '"<script>alert(1)</script>"')
    assert cli("run", "-q", "-o", "run", PY, cli.script(job), 1, 1).returncode == 0
    return cli.cwd / "run"


def test_a_notebook(run):
    cells = [
        f"import dwsr_probe\nrun = dwsr_probe.load({str(run)!r})\nrun",
        "run.tasks.dtypes['start']",
        "run.summary()",
        "run.plot()",
        "run.samples.rss_bytes.max() > 0",
        "run.model().names()",
    ]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(code) for code in cells])
    NotebookClient(notebook, timeout=600, kernel_name="python3").execute()
    shown = [cell.outputs[-1]["data"] for cell in notebook.cells]
    assert (
        "37 tasks" in shown[0]["text/plain"]
        and "&lt;script&gt;alert(1)" in shown[0]["text/html"]
        and "<script" not in shown[0]["text/html"]
    )
    assert len(shown[0]["text/html"]) < 10_000 and "envelope" in shown[0]["text/html"]
    assert "datetime64" in shown[1]["text/plain"] and "envelope" in shown[2]["text/html"]
    (page,) = re.findall(r'<iframe [^>]*srcdoc="([^"]*)"></iframe>', shown[3]["text/html"])
    page = unescape(page)
    # nothing is fetched
    assert "Bokeh" in page and not re.findall(r"<(?:script|link)[^>]* (?:src|href)=", page)
    assert shown[4]["text/plain"] in ("True", "np.True_") and "'envelope'" in shown[5]["text/plain"]


def test_frames(run):
    loaded = dwsr_probe.load(run)
    tasks = loaded.tasks
    assert loaded.tasks is tasks and len(tasks) == 37
    assert {str(tasks[name].dtype) for name in tasks if name.endswith("_bytes")} == {
        "Int64"
    } and str(tasks.task_name.dtype) == "category"
    assert isinstance(tasks.start.dtype, pd.DatetimeTZDtype) and tasks.duration.dtype == float
    first = tasks[tasks.task_name == "envelope"].iloc[0]
    assert (
        first.inputs[0]["shape"] == [40, 40, 40]
        and first.alloc_peak_bytes >= 3 * 8 * 40**3
        and tasks.output_bytes.isna().all()
    )
    samples = loaded.samples
    assert (
        len(samples)
        and samples.time.is_monotonic_increasing
        and set(samples.process) == set(loaded.processes.process)
    )
    assert (
        samples.peak_bytes.max() <= loaded.processes.rss_peak_bytes.max()
        and (samples.peak_bytes >= samples.rss_bytes).mean() > 0.5
    )
    began, ended = (
        loaded.processes.start[0],
        loaded.processes.start[0] + pd.Timedelta(seconds=loaded.processes.duration[0]),
    )
    assert samples.time.min() >= began - pd.Timedelta(
        "1s"
    ) and samples.time.max() <= ended + pd.Timedelta("1s")
    summary = loaded.summary()
    assert (
        summary.loc["smooth", "count"] == 12
        and summary.alloc_peak_max_bytes.is_monotonic_decreasing
    )
    assert (
        loaded.model(most=5).predict([{"dtype": "float64", "shape": [40, 40, 40]}], "envelope").n
        >= 5
    )


CLUSTER = """import numpy as np, dwsr_probe.dask
from distributed import Client, LocalCluster
from dask.distributed import wait

cluster = LocalCluster(n_workers=2, threads_per_worker=1, processes=False, dashboard_address=None)
client = Client(cluster)
client.register_plugin(dwsr_probe.dask.Probe())

def double(x):
    return x + x

wait(
    client.map(
        double,
        [np.ones(n) for n in (100_000, 200_000, 300_000)],
        key=[f"double-{i}" for i in range(3)],
    )
)
frame = dwsr_probe.dask.records(client)"""


def test_records_of_a_cluster_in_a_notebook(tmp_path):
    """Their plot and their page, without a run directory; the page also of some of them, and
    after the frame was pickled."""
    cells = [
        CLUSTER,
        "frame.plot(height=250)",
        "frame.summary()",
        (
            f"import os, pickle\nos.chdir({str(tmp_path)!r})\nsome ="
            " pickle.loads(pickle.dumps(frame[frame.key =="
            " 'double-1']))\n[frame.to_page('all.html'), some.to_page('some.html')]"
        ),
        "client.close(); cluster.close(); len(frame)",
    ]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(code) for code in cells])
    NotebookClient(notebook, timeout=300, kernel_name="python3").execute()
    plot, summary, pages, count = (cell.outputs[-1]["data"] for cell in notebook.cells[1:])
    assert "height:270px" in plot["text/html"] and " (pid " in unescape(plot["text/html"])
    assert all(
        "own peak" in text and "1.5 MiB" in text and "_bytes" not in text
        for text in (summary["text/html"], summary["text/plain"])
    )
    assert pages["text/plain"] == "['all.html', 'some.html']" and count["text/plain"] == "3"
    for name, tasks in (("all.html", 3), ("some.html", 1)):
        page = (tmp_path / name).read_text()
        assert (
            f"<strong>{tasks}</strong>" in page
            and "Dask cluster inproc://" in page
            and "exit code" not in page
        )


def test_the_legend_covers_no_curve():
    from dwsr_probe.report.memory_plot import figure_of

    store = Store.in_memory()
    store.put_process(
        TaskRecord(kind="process", process="p", pid=7, task_name="worker 0", state="ok", start=1e9),
        {},
    )
    store.add_samples(
        "p", 0, b"".join(n.to_bytes(8, "little") for n in (5, 1 << 20, 1 << 21, 1_000_000)), 1e9
    )
    plot = figure_of(store)
    assert [type(one).__name__ for one in plot.right] == ["Legend"] and not [
        one for one in plot.center if type(one).__name__ == "Legend"
    ]
    assert plot.legend[0].items[0].label.value == "worker 0 (pid 7)"


def test_a_summary_has_numbers_and_shows_units(run):
    summary = dwsr_probe.load(run).summary()
    assert summary.alloc_peak_max_bytes.max() > 1 << 20 and summary.loc["smooth", "count"] == 12
    for text in (
        repr(summary),
        summary._repr_html_(),
        repr(summary.head(2)),
        repr(summary.sort_values("count")),
    ):
        assert (
            "MiB" in text
            and "own peak" in text
            and " ms" in text
            and "_bytes" not in text
            and "gpu" not in text
        )
    assert "…" not in repr(summary).split("alert")[0] and all(
        len(line) <= 80 for line in repr(summary).splitlines()
    )


def test_the_page_of_a_run(run, tmp_path):
    loaded = dwsr_probe.load(run)
    assert (
        loaded.to_page() == str(run / "report.html")
        and "envelope" in (run / "report.html").read_text()
    )
    assert (
        loaded.to_page(tmp_path / "p.html") == tmp_path / "p.html"
        and (tmp_path / "p.html").stat().st_size > 100_000
    )


def test_what_is_missing_for_a_plot_is_said_first(tmp_path):
    """Without matplotlib our plot is made all the same, pandas' own says what it needs; without
    Bokeh plot and page say that. And `doctor` says both before."""
    for name in ("matplotlib", "bokeh"):
        (tmp_path / name).mkdir()
        (tmp_path / name / f"{name}.py").write_text("raise ImportError('not here')")
    code = """
from dwsr_probe.dask.gather import Records

frame = Records({"process": ["p"], "seq": [1]})
for what in (
    frame.plot,
    lambda: frame.plot(x="process", y="seq"),
    frame.plot.hist,
    lambda: frame.to_page("p.html"),
):
    try:
        print(type(what()).__name__)
    except ImportError as error:
        print(error)
"""
    texts = {}
    for name in ("matplotlib", "bokeh"):
        done = subprocess.run(
            [PY, "-c", code],
            capture_output=True,
            text=True,
            env={"PYTHONPATH": str(tmp_path / name)},
            cwd=tmp_path,
        )
        assert done.returncode == 0, done.stderr
        texts[name] = done.stdout.splitlines()
    assert (
        texts["matplotlib"][0] == "figure"
        and "matplotlib is required" in texts["matplotlib"][1]
        and "matplotlib is required" in texts["matplotlib"][2]
    )
    assert all("pip install 'dwsr-probe[report]'" in texts["bokeh"][i] for i in (0, 3))
    absent = (
        "import importlib.util as u; found = u.find_spec; u.find_spec = lambda name: None if name"
        " == %r else found(name)\nfrom dwsr_probe.cli.checks.libraries import notebook;"
        " print(notebook())"
    )
    said = {
        name: subprocess.run([PY, "-c", absent % name], capture_output=True, text=True).stdout
        for name in texts
    }
    assert (
        "need matplotlib" in said["matplotlib"]
        and "pip install 'dwsr-probe[report]'" in said["bokeh"]
    )


def test_empty_one_and_hostile():
    from dwsr_probe.report.notebook import Run

    store = Store.in_memory()
    run = Run(store)
    assert (
        "No task was marked" in run._repr_html_()
        and len(run.tasks) == len(run.samples) == len(run.processes) == len(run.summary()) == 0
    )
    assert run.plot()._repr_html_().startswith("<iframe") and run.model().names() == []
    names = [n.encode("utf-8", "replace").decode() for n in HOSTILE if isinstance(n, str)] + [
        "<img src=x>"
    ]
    store.add_tasks(
        [
            TaskRecord(seq=i, process="p", task_name=name, state="killed")
            for i, name in enumerate(names)
        ]
    )
    store.put_process(
        TaskRecord(
            kind="process",
            process="p",
            task_name="</script><script>alert(1)</script>",
            state="killed",
            start=1e9,
        ),
        {},
    )
    store.add_samples(
        "p", 0, b"".join(n.to_bytes(8, "little") for n in (5, 1 << 20, 1 << 21, 1_000_000)), 1e9
    )
    run = Run(store)
    assert (
        "<img" not in run._repr_html_()
        and "<script" not in run._repr_html_()
        and run.tasks.alloc_peak_bytes.isna().all()
    )
    assert (run.samples.rss_bytes[0], run.samples.peak_bytes[0]) == (
        1 << 20,
        1 << 21,
    ) and "<script>alert" not in unescape(run.plot()._repr_html_())


def test_a_damaged_field_is_missing_alone():
    from dwsr_probe.report.notebook import Run

    store = Store.in_memory()
    store.add_tasks(
        [
            TaskRecord(
                seq=i,
                process="p",
                task_name="x",
                state="ok",
                inputs=[{"shape": [i]}],
                gpu=[{"device": 0, "peak_bytes": 7}],
            )
            for i in (1, 2)
        ]
    )
    store._db.execute("UPDATE tasks SET inputs = '[{', gpu = '}' WHERE seq = 1")
    tasks = Run(store).tasks
    assert list(tasks.inputs) == [[], [{"shape": [2]}]] and list(
        tasks.gpu_peak_bytes.fillna(0)
    ) == [0, 7]


def test_what_cannot_be_loaded(run, tmp_path):
    with pytest.raises(StoreError, match="holds no run"):
        dwsr_probe.load(tmp_path / "no")
    data = (run / "run.sqlite").read_bytes()
    (run / "run.sqlite").write_bytes(data[:4096] + b"\xa5" * (len(data) - 4096))
    with pytest.raises(StoreError, match="damaged"):
        dwsr_probe.load(run)


def test_import_stays_light_and_what_is_missing_is_said(tmp_path):
    (tmp_path / "pandas.py").write_text("raise ImportError('not here')")
    code = """import sys, dwsr_probe

assert "load" in dwsr_probe.__all__ and not {"pandas", "sqlite3", "dwsr_probe.report"} & set(
    sys.modules
)
try:
    dwsr_probe.load
except ImportError as error:
    print(error)"""
    done = subprocess.run(
        [PY, "-c", code], capture_output=True, text=True, env={"PYTHONPATH": str(tmp_path)}
    )
    assert done.returncode == 0 and "pip install 'dwsr-probe[report]'" in done.stdout, done.stderr
