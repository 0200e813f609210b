"""`report --format csv|parquet`: every record comes back as it was."""

import csv
import io
import json
import sys
from dataclasses import fields

import pandas as pd
import pytest

from dwsr_probe.record import FIELDS, NESTED, TaskRecord
from dwsr_probe.report.columns import write_csv, write_parquet
from dwsr_probe.report.groups import NoSuchTask
from dwsr_probe.report.output import destination
from dwsr_probe.store import Store
from tests.unit.test_task import HOSTILE


@pytest.fixture
def store():
    store = Store.in_memory()
    names = [n.encode("utf-8", "replace").decode() for n in HOSTILE if isinstance(n, str)] + [
        'a,b\r\nc;"d"',
        "=1+1",
        "plain",
    ]
    store.add_tasks(
        [
            TaskRecord(
                seq=i,
                process="p",
                task_name=name,
                key=None if i % 2 else name,
                state="ok",
                start=1.5e9 + i,
                duration=None if i == 3 else 0.1,
                inputs=[{"shape": [i, 2]}],
                thread=(1 << 62) + i,
                alloc_peak_bytes=None if i % 3 else 1 << 53 | 1,
                gpu=[{"device": 0, "peak_bytes": 5}] if i % 2 else None,
            )
            for i, name in enumerate(names, 1)
        ]
    )
    store.put_process(
        TaskRecord(kind="process", process="p", task_name="job.py", state="killed", pid=7), {}
    )
    return store


def expected(store):
    return [*store.tasks(), *(record for record, _ in store.processes())]


def test_csv_comes_back(store):
    file = io.BytesIO()
    write_csv(store, file)
    assert not file.closed
    found = list(csv.DictReader(io.StringIO(file.getvalue().decode(), newline="")))
    assert tuple(found[0]) == FIELDS and b"\0" not in file.getvalue()

    def value(f, text):
        if text == "" and f.type is not str:
            return None
        text = text.removeprefix("'").replace("\\x00", "\0")
        return (
            json.loads(text)
            if f.name in NESTED or f.type in (int, int | None, float | None)
            else text
        )

    assert [
        TaskRecord(**{f.name: value(f, row[f.name]) for f in fields(TaskRecord)}) for row in found
    ] == [
        TaskRecord(**{**record.to_dict(), "key": record.key or None}) for record in expected(store)
    ]


def test_no_cell_is_a_formula():
    """A spreadsheet would calculate it: `=HYPERLINK(...)` in the name of a task sends what is
    beside it elsewhere."""
    store, names = (
        Store.in_memory(),
        [
            "=1+1",
            "+1",
            "-1",
            "@SUM(A1)",
            "\t=1",
            "\r=1",
            "\n=1",
            "＝1",
            "'quoted",
            "plain",
            "a=b",
            " =1",
            "[1]",
        ],
    )
    store.add_tasks(
        [
            TaskRecord(
                seq=i,
                process="p",
                run=name,
                host=name,
                worker=name,
                key=name,
                task_name=name,
                state="ok",
                rss_before_bytes=5,
            )
            for i, name in enumerate(names)
        ]
    )
    file = io.BytesIO()
    write_csv(store, file)
    found = list(csv.DictReader(io.StringIO(file.getvalue().decode(), newline="")))
    assert [row["task_name"] for row in found] == ["'" + name for name in names[:9]] + names[9:]
    assert all(
        row["key"] == row["host"] == row["worker"] == row["run"] == row["task_name"]
        and row["rss_before_bytes"] == "5"
        for row in found
    )


def test_parquet_comes_back_with_pandas(store, tmp_path):
    with destination(tmp_path / "run.parquet") as file:
        write_parquet(store, file)
    frame = pd.read_parquet(tmp_path / "run.parquet", dtype_backend="numpy_nullable")
    assert (
        tuple(frame) == FIELDS
        and str(frame.alloc_peak_bytes.dtype) == "Int64"
        and str(frame.duration.dtype) == "Float64"
    )
    found = [
        {
            name: (
                None
                if value is None or value is pd.NA
                else json.loads(value)
                if name in NESTED
                else value
            )
            for name, value in row.items()
        }
        for row in frame.to_dict("records")
    ]
    assert [TaskRecord(**row) for row in found] == expected(store)


def test_only_the_tasks_of_a_name(tmp_path):
    store = Store.in_memory()
    store.add_tasks(
        TaskRecord(seq=i, process="p", task_name="store-map", operation=name, chain=["a", name])
        for i, name in enumerate(("Rms", "Gst", "Gst"), 1)
    )
    store.put_process(TaskRecord(kind="process", process="p", task_name="job.py"), {})
    for write, read in ((write_csv, pd.read_csv), (write_parquet, pd.read_parquet)):
        with destination(tmp_path / "out") as file:
            write(store, file, "Gst")
        frame = read(tmp_path / "out")
        assert frame.operation.tolist() == ["Gst", "Gst"]
        assert frame.chain.map(json.loads).tolist() == [["a", "Gst"]] * 2
        with pytest.raises(NoSuchTask), destination(tmp_path / "none") as file:
            write(store, file, "nothing")
        assert not (tmp_path / "none").exists()


def test_half_a_surrogate_pair_and_an_empty_run(tmp_path):
    store = Store.in_memory()
    for name in ("empty", "\ud800"):
        if name != "empty":
            store._db.execute(
                "INSERT INTO tasks (process, seq, task_name, inputs) VALUES ('p', 1, 'x', '[]')"
            )
        for write in (write_csv, write_parquet):
            with destination(tmp_path / "out") as file:
                write(store, file)
            assert (tmp_path / "out").stat().st_size > 100
    from dwsr_probe.report.columns import _utf8

    assert _utf8("\ud800 é") == "\\ud800 é" and _utf8(None) is None


def test_a_file_is_whole_or_as_it_was(tmp_path):
    path, link = tmp_path / "out", tmp_path / "link"
    path.write_text("before")
    link.symlink_to(path)
    with pytest.raises(RuntimeError), destination(path) as file:
        file.write(b"half")
        raise RuntimeError
    assert path.read_text() == "before" and sorted(p.name for p in tmp_path.iterdir()) == [
        "link",
        "out",
    ]
    with destination(link) as file:
        file.write(b"whole")
    assert link.is_symlink() and path.read_text() == "whole"
    with destination("/dev/null") as file:
        file.write(b"gone")


def test_without_pyarrow_one_clear_line(cli):
    assert cli("run", "-q", "-o", "run", sys.executable, "-c", "").returncode == 0
    (cli.cwd / "pyarrow.py").write_text("raise ImportError('not here')")
    done = cli(
        "report",
        "run",
        "--format",
        "parquet",
        "-o",
        "out",
        env={**cli.env, "PYTHONPATH": str(cli.cwd)},
    )
    assert (
        done.returncode == 1
        and done.stderr.count("\n") == 1
        and "pip install 'dwsr-probe[report]'" in done.stderr
        and not (cli.cwd / "out").exists()
    )
