"""What the page is made from: columns and lines that lose no peak, in bounded size. The page
itself is in tests/pages."""

import os
import re
import struct
import subprocess
import sys

import numpy as np
import pytest

from dwsr_probe.record import TaskRecord
from dwsr_probe.report.html import tasks as tasks_module
from dwsr_probe.report.html import write_page
from dwsr_probe.report.html.memory import POINTS_MOST, memory_lines
from dwsr_probe.report.html.page import page_of
from dwsr_probe.report.html.tasks import TaskThread, collect_tasks
from dwsr_probe.store import FILE, Store

MIB = 1 << 20


def quiet(*_):
    pass


def process(name="1-1", peak=100 * MIB, **health):
    return (
        TaskRecord(
            kind="process",
            process=name,
            pid=1,
            task_name="job.py",
            state="ok",
            start=1000.0,
            duration=1.0,
            rss_peak_bytes=peak,
        ),
        health,
    )


def store_of(samples, epoch=1000.0, piece=1000):
    store = Store.in_memory()
    packed = np.array(samples, np.uint64).tobytes()
    for first in range(0, len(samples), piece):
        store.add_samples("1-1", first, packed[32 * first : 32 * (first + piece)], epoch)
    return store


def test_no_peak_is_lost():
    """A spike of one sample among a million, up and down; and one that only the kernel's mark
    has seen."""
    samples = np.zeros((1_000_000, 4), np.uint64)
    samples[:, 0], samples[:, 1], samples[:, 2] = (
        np.arange(len(samples)) * 10**6,
        50 * MIB,
        50 * MIB,
    )
    samples[123_457, 1] = samples[123_457, 2] = 900 * MIB
    samples[700_001, 1] = 1 * MIB
    # the mark stays until the next boundary: the peak was before the first of them
    samples[800_000:800_500, 2] = 700 * MIB
    samples[5, 1] = samples[5, 2] = 2**64 - 1  # could not be read
    (line,) = memory_lines(store_of(samples), [process()], quiet)
    assert line.time.size <= POINTS_MOST and (line.high.max(), line.low.min()) == (900 * MIB, MIB)
    assert abs(line.time[line.high.argmax()] - 1123.457) < 0.05
    marked = line.time[line.high == 700 * MIB]
    assert marked.size == 1 and abs(marked[0] - 1800) < 0.05
    assert np.all(np.diff(line.time) > 0)


def test_few_samples_stay_as_they_are():
    samples = [(i * 10**6, (50 + i) * MIB, (50 + i) * MIB, 10**6) for i in range(300)]
    (line,) = memory_lines(store_of(samples, piece=7), [process()], quiet)
    assert line.low.tolist() == line.high.tolist() == [s[1] for s in samples]


def test_merged_seconds_come_first():
    store = store_of([(i * 10**7, 5 * MIB, 9 * MIB, 10**7) for i in range(100)])
    store.merge_samples(now=1e6)
    store.add_samples("1-1", 100, struct.pack("=4Q", 2 * 10**9, 6 * MIB, 6 * MIB, 1), 1000.0)
    (line,) = memory_lines(store, [process()], quiet)
    assert line.high.tolist() == [9 * MIB, 6 * MIB] and line.time.tolist() == [1000.5, 1002.0]


def test_only_the_largest_processes_have_lines():
    store, many = Store.in_memory(), [process(f"{i}-1", i * MIB) for i in range(1, 60)]
    for record, _ in many:
        store.add_samples(record.process, 0, struct.pack("=4Q", 1, MIB, MIB, 1), 1000.0)
    lines = memory_lines(store, many, quiet)
    assert [many[line.process][0].rss_peak_bytes for line in lines] == [
        i * MIB for i in range(59, 35, -1)
    ]


def task(seq, start, duration, own=MIB, thread=1, process="1-1", **more):
    return TaskRecord(
        seq=seq,
        process=process,
        thread=thread,
        task_name=more.pop("name", "f"),
        state="ok",
        start=start,
        duration=duration,
        alloc_peak_bytes=own,
        rss_before_bytes=0,
        rss_peak_bytes=own,
        **more,
    )


def test_a_task_with_an_input_of_unknown_size_keeps_its_dots_and_advice():
    """As those of xarray, and methods in runs of older versions. The sizes that are known count,
    as in the model."""
    unknown, pages = {"type": "Dataset", "dtype": None, "shape": None, "nbytes": None}, []
    for more in ([], [unknown]):
        store = Store.in_memory()
        store.put_process(*process(peak=190 * MIB, limit_bytes=200 * MIB))
        for n in range(1, 13):
            given = {"type": "ndarray", "dtype": "uint8", "shape": [n * MIB], "nbytes": n * MIB}
            store.add_tasks(
                [
                    task(
                        n,
                        1000.0 + n,
                        0.5,
                        own=10 * n * MIB,
                        inputs=[*more, given],
                        input_bytes=None if more else n * MIB,
                    )
                ]
            )
        assert collect_tasks(store, [process()], quiet).columns["input"].tolist() == [
            n * MIB for n in range(1, 13)
        ]
        pages.append(page_of(store, quiet))
    assert all('id="scatter0"' in page and "model from 12 tasks" in page for page in pages)
    advice = [re.search('<div class="advice">(.*?)</div>', page, re.DOTALL)[1] for page in pages]
    assert advice[0] == advice[1] != ""


def test_lanes_and_nests():
    store = Store.in_memory()
    store.add_tasks(
        [
            task(1, 2.0, 1.0),
            task(2, 1.0, 5.0),
            task(3, 2.2, 0.1),
            task(4, 7.0, 1.0),
            task(5, 1.0, 1.0, thread=2),
            task(1, 0.5, 1.0, process="2-2"),
        ]
    )
    found = collect_tasks(store, [process(), process("2-2")], quiet)
    assert found.columns["start"].tolist() == [0.5, 1.0, 1.0, 2.0, 2.2, 7.0]
    assert found.columns["depth"].tolist() == [0, 0, 0, 1, 2, 0]
    assert found.lanes == [TaskThread(0, 1), TaskThread(0, 2), TaskThread(1, 1)]
    assert found.columns["lane"].tolist() == [2, 0, 1, 0, 0, 0]


def test_very_many_threads_share_lanes():
    store = Store.in_memory()
    store.add_tasks(task(i, float(i), 1.5, thread=i) for i in range(1, 501))
    found = collect_tasks(store, [process()], quiet)
    assert len(found.lanes) == 2 and found.lanes == [None, None]


def test_of_too_many_the_largest_and_longest_are_kept(monkeypatch):
    monkeypatch.setattr(tasks_module, "PLOTTED_MOST", 100)
    store = Store.in_memory()
    store.add_tasks(
        task(i, i / 10, 0.01 if i != 500 else 9.0, own=i, key=str(i)) for i in range(1, 1001)
    )
    found = collect_tasks(store, [process()], quiet)
    assert (
        found.count == 1000
        and len(found.keys) == 100
        and {"1000", "500", "951"} <= set(found.keys)
        and [s.count for s in found.summaries] == [1000]
    )
    assert [record.alloc_peak_bytes for record in found.largest] == list(range(1000, 980, -1))
    assert "100 largest and longest of 1,000 tasks" in page_of(store, quiet)


def test_what_cannot_be_compressed_is_cut(tmp_path):
    """Keys of noise: the file stays below 8 MB, the largest tasks keep theirs."""
    noise = np.random.default_rng(0)
    store = Store.in_memory()
    store.add_tasks(
        task(i, i / 10, 0.01, own=i * 1000, key=noise.bytes(75).hex()) for i in range(1, 100_001)
    )
    assert write_page(store, tmp_path / "page.html", quiet) < 8_000_000


def test_nothing_of_the_job_is_markup():
    text = "</script><script>alert(1)</script>\" onload='x' ${css} $css"
    store = Store.in_memory()
    store.add_tasks([task(1, 1.0, 1.0, name=text, key=text, host=text)])
    store.put_process(*process(python=text))
    store.set_meta(run=text, command=[text], exit_code=1)
    page = page_of(store, quiet)
    assert "<script>alert" not in page and "onload='x'" not in page
    assert len(re.findall("<script", page.partition("</style>")[2])) == 5


def test_without_the_model_points_alone(monkeypatch):
    monkeypatch.setitem(sys.modules, "dwsr_probe.predict.model", None)
    store = Store.in_memory()
    store.add_tasks(
        [
            task(
                i,
                float(i),
                1.0,
                inputs=[{"dtype": "u1", "shape": [i, MIB], "nbytes": i * MIB}],
                input_bytes=i * MIB,
            )
            for i in range(1, 9)
        ]
    )
    page = page_of(store, quiet)
    assert "dwsr-probe[predict]" in page and 'id="scatter0"' in page


def test_the_command(cli):
    store = Store.create(cli.cwd / "run")
    store.add_tasks([task(1, 1.0, 1.0)])
    store.set_meta(run="r", host="elsewhere")
    store.close()
    done = cli("report", "run", "--format", "html")
    # no bar in a pipe
    assert (
        done.returncode == 0 and done.stdout.startswith("run/report.html (") and done.stderr == ""
    )
    done = cli("report", "run", "--format", "html", "-o", "other.html")
    assert (cli.cwd / "other.html").read_text().startswith("<!doctype html>")
    assert (
        cli("report", "run", "--format", "html", "-o", "-").stdout
        == (cli.cwd / "other.html").read_text()
    )
    done = cli("report", "run", "--format", "html", "-o", "no/such/folder.html")
    assert (
        done.returncode == 1
        and "choose another file with -o FILE" in done.stderr
        and len(done.stderr.splitlines()) == 1
    )
    assert sorted(path.name for path in cli.cwd.glob("*.html")) == ["other.html"]


def test_a_bar_on_a_terminal(cli):
    store = Store.create(cli.cwd / "run")
    store.add_tasks([task(1, 1.0, 1.0)])
    store.set_meta(run="r", host="elsewhere")
    store.close()
    code = (
        "from dwsr_probe.report import progress; progress._DELAY_S = 0; from dwsr_probe.cli import"
        " main; main()"
    )
    ours, theirs = os.openpty()
    done = subprocess.run(
        [sys.executable, "-c", code, "report", "run", "--format", "html"],
        stdout=subprocess.PIPE,
        stderr=theirs,
        text=True,
        cwd=cli.cwd,
        env=dict(cli.env, TERM="xterm"),
    )
    os.close(theirs)
    shown = os.read(ours, 1 << 16).decode()
    os.close(ours)
    assert (
        done.returncode == 0
        and "writing the page" in shown
        and done.stdout.startswith("run/report.html (")
    )


def test_without_bokeh_one_line(cli):
    store = Store.create(cli.cwd / "run")
    store.set_meta(run="r", host="elsewhere")
    store.close()
    code = "import sys; sys.modules['bokeh'] = None; from dwsr_probe.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code, "report", "run", "--format", "html"],
        capture_output=True,
        text=True,
        cwd=cli.cwd,
        env=cli.env,
    )
    assert (
        done.returncode == 1
        and "pip install 'dwsr-probe[report]'" in done.stderr
        and "Traceback" not in done.stderr
    )


@pytest.mark.parametrize("seed", range(12))
def test_a_damaged_store_is_one_line_or_a_page(cli, seed):
    store = Store.create(cli.cwd / "run")
    store.add_tasks(task(i, float(i), 1.0, key="k" * 50) for i in range(1, 2000))
    store.put_process(*process())
    store.set_meta(run="r", host="elsewhere")
    store.finish()
    store.close()
    path, noise = cli.cwd / "run" / FILE, np.random.default_rng(seed)
    content = bytearray(path.read_bytes())
    if seed % 3 == 0:
        content = content[: len(content) * (1 + seed) // 14]
    else:
        for place in noise.integers(100, len(content), 200 * seed):
            content[place] = noise.integers(256)
    path.write_bytes(content)
    done = cli("report", "run", "--format", "html")
    assert "Traceback" not in done.stderr, done.stderr
    assert (
        (cli.cwd / "run" / "report.html").exists()
        if done.returncode == 0
        else (
            done.stderr.count("dwsr-probe:") == 1 and not (cli.cwd / "run" / "report.html").exists()
        )
    ), done.stderr
    assert {path.name for path in (cli.cwd / "run").iterdir()} <= {FILE, "report.html"}


def test_own_peaks_that_are_not_exact_are_marked_with_their_reason():
    store = Store.in_memory()
    store.add_tasks(
        [
            TaskRecord(
                seq=n,
                process="1-1",
                task_name="query",
                state="ok",
                start=1000.0 + n,
                duration=1.0,
                alloc_peak_bytes=24,
                rss_before_bytes=0,
                rss_peak_bytes=160 * MIB,
                overlap=0,
                attribution="shared" if n < 3 else "exact",
                attribution_reason='unowned-thread <b>"x' if n < 3 else None,
            )
            for n in range(1, 5)
        ]
    )
    store.put_process(*process())
    page = page_of(store, quiet)
    assert "Own peaks are not exact in 2 of 4 tasks (2 unowned-thread &lt;b&gt;" in page
    assert page.count('<abbr title="not exact: unowned-thread &lt;b&gt;&quot;x">†</abbr>') == 2
    assert "needed most: at least 160.0 MiB" in page and "<b>&quot;" not in page
