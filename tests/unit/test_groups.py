"""Rows of views: by operation and chain, their labels, and which of them a user means by a name."""

import io
import json

import pytest

from dwsr_probe import _core
from dwsr_probe.predict.group import Group
from dwsr_probe.record import TaskRecord
from dwsr_probe.report.columns import rows as rows_of_columns
from dwsr_probe.report.groups import Grouping, NoSuchTask, asked_tasks
from dwsr_probe.report.html.page import page_of
from dwsr_probe.report.html.tasks import collect_tasks
from dwsr_probe.report.summary import summarise
from dwsr_probe.report.table import print_report
from dwsr_probe.report.verdict import make_verdict
from dwsr_probe.store import Store
from dwsr_probe.total import from_words

MIB = 1 << 20
OPERATORS = ("Gaussian", "Rms", "Semblance", "Gst", "Chaos")
SHORT, LONG = ["getitem", "smooth", "store"], ["getitem", "overlap", "smooth", "store"]


def task(seq, operation, own=MIB, name="store-map", chain=None, process="1-1", **more):
    return TaskRecord(
        seq=seq,
        process=process,
        task_name=name,
        operation=operation,
        chain=chain,
        state=more.pop("state", "ok"),
        start=1000.0 + seq,
        duration=0.5,
        alloc_peak_bytes=own,
        rss_before_bytes=0,
        rss_peak_bytes=own,
        **more,
    )


def process(name="1-1", **health):
    record = TaskRecord(
        kind="process", process=name, pid=1, task_name="job.py", state="ok", start=1000.0
    )
    return record, health


def store_of(records, *processes):
    store = Store.in_memory()
    store.add_tasks(records)
    for record, health in processes or [process()]:
        store.put_process(record, health)
    return store


def table(store, **options):
    out = io.StringIO()
    print_report(store, out, **options)
    return out.getvalue()


def two_chains():
    """Two chains of one operation, and a task without one."""
    return [
        task(1, "smooth", 8 * MIB, chain=LONG),
        task(2, "smooth", 2 * MIB, chain=SHORT),
        task(3, "smooth", 2 * MIB, chain=list(SHORT)),
        task(4, None, MIB, name="getitem"),
        task(5, None, MIB, name="rechunk", chain=["getitem", "concatenate"]),
    ]


def test_five_operators_under_one_prefix_are_five_rows():
    records = [task(i, name, (i + 1) * MIB) for i, name in enumerate(2 * OPERATORS, 1)]
    found = summarise(records)
    assert [(s.label, s.count) for s in found] == [(name, 2) for name in reversed(OPERATORS)]
    assert {s.task_names for s in found} == {("store-map",)}
    text = table(store_of(records))
    assert "store-map" not in text and all(f"\n{name} " in text for name in OPERATORS)
    (sentence,) = make_verdict(found, []).sentences
    assert "".join(sentence).startswith("Chaos needed most: 11.0 MiB")


def test_chains_of_one_operation_are_numbered_and_told_apart():
    found = summarise(two_chains())
    assert [(s.label, s.count, s.group.chain) for s in found] == [
        ("smooth (2 of 2)", 1, tuple(LONG)),
        ("smooth (1 of 2)", 2, tuple(SHORT)),
        ("getitem", 1, ()),
        ("rechunk", 1, ("getitem", "concatenate")),
    ]
    text = table(store_of(two_chains()))
    assert (
        "smooth (2 of 2): getitem → overlap → smooth → store\n"
        "smooth (1 of 2): getitem → smooth → store\n"
        in text
        and "concatenate" not in text  # its name alone tells which row it is
    )
    alone = table(store_of([*two_chains(), task(6, "smooth", chain=None)]))
    assert "smooth (1 of 3): smooth alone\n" in alone


def test_a_long_name_keeps_its_number():
    name = "a" * 300
    text = table(store_of([task(i, name, chain=[name] * i) for i in (1, 2)]))
    assert "aaa… (1 of 2)  " in text and "aaa… (2 of 2): " in text


def test_chains_that_are_parsed_anew_are_the_same_row():
    """The ids of chains that were dropped are used again."""
    grouping = Grouping()
    found = {grouping.of(task(1, "f", chain=["a", "f", str(i % 3)])) for i in range(1000)}
    assert len(found) == 3


@pytest.mark.parametrize(
    ("asked", "labels"),
    [
        ("smooth", {"smooth (1 of 2)", "smooth (2 of 2)"}),  # an operation
        ("smooth (1 of 2)", {"smooth (1 of 2)"}),  # a label
        ("overlap", {"smooth (2 of 2)"}),  # a function of a chain
        ("store-map", {"smooth (1 of 2)", "smooth (2 of 2)"}),  # a prefix of keys
        ("getitem", {"smooth (1 of 2)", "smooth (2 of 2)", "getitem", "rechunk"}),
        ("rechunk", {"rechunk"}),
    ],
)
def test_a_user_asks_by_any_name(asked, labels):
    store = store_of(two_chains())
    found = {s.label: s.count for s in summarise(store.tasks()) if s.label in labels}
    text = table(store, task=asked)
    rows = [line.split("  ")[0] for line in text.splitlines()]
    assert {row for row in rows if row in labels} == labels
    hidden = 4 - len(labels)
    assert (f"{hidden if hidden > 1 else 'one'} other task name" in text) == bool(hidden)
    count = sum(found.values())
    assert len(list(asked_tasks(store, asked))) == count
    assert len(list(rows_of_columns(store, asked))) == count
    collected = collect_tasks(store, store.processes(), lambda *_: None, asked)
    assert {s.label for s in collected.summaries} == labels and collected.count == count
    assert len(collected.all_summaries) == 4


def test_a_name_that_no_task_has():
    store = store_of(two_chains())
    for show in (
        lambda: table(store, task="smoth"),
        lambda: asked_tasks(store, "smoth"),
        lambda: page_of(store, lambda *_: None, "smoth"),
    ):
        with pytest.raises(NoSuchTask) as error:
            show()
        assert str(error.value) == (
            "no task is called 'smoth'; there are getitem, rechunk, smooth (1 of 2), smooth (2 of"
            " 2); key prefixes and functions of a chain are names, too"
        )
    with pytest.raises(NoSuchTask, match="the run has no tasks"):
        table(store_of([]), task="x")
    many = store_of([task(i, f"f{i}") for i in range(1, 101)])
    with pytest.raises(NoSuchTask, match=" and 70 more; "):
        table(many, task="x")


def total_of(records):
    found = from_words((None,) * len(_core.TOTAL_FIELDS), (), ({}, {}, {}, {}), ())
    found.name, found.operation = records[0].task_name, records[0].operation
    for record in records:
        found.add(record)
    return found


def test_where_records_are_lost_rows_are_by_pair_and_nothing_is_counted_twice():
    """Totals do not know chains. A name that they count has one row, without a chain."""
    lost = [task(i, "smooth", i * MIB, chain=LONG if i % 2 else SHORT) for i in range(1, 11)]
    rms = [task(i, "Rms", MIB, chain=["getitem", "Rms"]) for i in range(11, 21)]
    plain = [task(i, None, MIB, name="getitem") for i in range(21, 31)]
    whole = [task(i, "smooth", 5 * MIB, chain=SHORT, process="2-2") for i in range(1, 5)]
    whole += [task(i, "Gst", MIB, chain=["getitem", "Gst"], process="2-2") for i in range(5, 9)]
    killed = task(31, "smooth", MIB, chain=LONG, state="killed")
    kept = [*lost[8:], *rms[9:], *plain[9:], killed, *whole]
    processes = [process(records_lost=26), process("2-2")]
    totals = {"1-1": [total_of(some) for some in (lost, rms, plain)]}
    found = {s.label: s for s in summarise(kept, processes, totals)}
    assert {label: (s.count, s.killed) for label, s in found.items()} == {
        "smooth": (15, 1),
        "Rms": (10, 0),
        "getitem": (10, 0),
        "Gst": (4, 0),
    }
    assert (found["smooth"].group, found["Rms"].group) == (Group("smooth"), Group("Rms"))
    assert found["Gst"].group.chain == ("getitem", "Gst")
    assert found["smooth"].alloc_peak_max_bytes == 10 * MIB
    # the model knows them by the chain that their records have, if that is one
    assert found["Rms"].model_name == "Rms [getitem → Rms]"
    assert found["smooth"].model_name == "smooth"
    grouping = Grouping(processes, totals)
    rows = {grouping.of(record) for record in kept}
    assert rows == {s.group for s in found.values()}
    assert grouping.asked("overlap") == {Group("smooth")}


def test_what_a_task_reads_itself_is_not_held_before():
    """The baseline is what the process holds without the task: memory at its begin, without the
    inputs that are in memory then."""
    kept = {"type": "ndarray", "dtype": "uint8", "shape": [MIB], "nbytes": MIB}
    inputs = [kept, kept | {"lazy": True, "count": 2}, kept | {"late": True}]
    record = task(1, "load", inputs=inputs, input_bytes=4 * MIB)
    record.rss_before_bytes = 10 * MIB
    (found,) = summarise([record])
    assert found.baseline_bytes == 9 * MIB


def test_pairs_beyond_the_most_are_other():
    kept = [task(i, "Rms") for i in range(1, 5)] + [task(5, "Gst")]
    totals = {"1-1": [total_of(kept[:4]), total_of(kept[4:])]}
    totals["1-1"][1].name = totals["1-1"][1].operation = None
    found = summarise(kept, [process(records_lost=1)], totals)
    assert {(s.label, s.count) for s in found} == {("Rms", 4), ("other", 1)}


def test_records_say_what_they_are_called(tmp_path):
    store = store_of(two_chains())
    (first, *_) = (json.loads(record.to_json()) for record in asked_tasks(store, "overlap"))
    assert (first["task_name"], first["operation"], first["chain"]) == ("store-map", "smooth", LONG)


def test_the_page_has_rows_by_operation():
    page = page_of(store_of(two_chains()), lambda *_: None)
    assert "<code>smooth (1 of 2)</code>" in page
    assert "getitem → overlap → smooth → store; key store-map</div>" in page
    only = page_of(store_of(two_chains()), lambda *_: None, "overlap")
    assert "<code>smooth (2 of 2)</code>" in only and "<code>smooth (1 of 2)</code>" not in only
    assert "only tasks of <code>overlap</code> are shown" in only
    hostile = "</script><img src=x onerror=alert(1)>"
    page = page_of(
        store_of([task(1, hostile, chain=[hostile, "f"], name=hostile)]), lambda *_: None, hostile
    )
    assert "<img" not in page
