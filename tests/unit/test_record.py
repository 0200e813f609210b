import json
import re
from dataclasses import fields
from pathlib import Path

import pytest

from dwsr_probe import _core
from dwsr_probe.record import ATTRIBUTION_REASONS, FIELDS, TaskRecord, devices_text, oom_text
from dwsr_probe.report.top.moment import task_row

CONTRACT = [
    "seq",
    "run",
    "host",
    "pid",
    "process",
    "worker",
    "thread",
    "key",
    "task_name",
    "state",
    "start",
    "duration",
    "inputs",
    "inputs_omitted",
    "input_bytes",
    "output",
    "output_bytes",
    "rss_before_bytes",
    "rss_peak_bytes",
    "rss_peak_source",
    "rss_error_bytes",
    "alloc_peak_bytes",
    "alloc_end_bytes",
    "alloc_count",
    "gc_freed_bytes",
    "gpu",
    "oom",
    "overlap",
    "attribution",
]


def test_the_contract_fields_are_all_there_in_order():
    assert list(FIELDS[: len(CONTRACT)]) == CONTRACT
    assert list(json.loads(TaskRecord().to_json())) == list(FIELDS)


def test_absent_is_null_not_zero():
    blank = json.loads(TaskRecord(task_name="x").to_json())
    for name in (
        "rss_peak_bytes",
        "alloc_peak_bytes",
        "input_bytes",
        "output_bytes",
        "gpu",
        "oom",
        "key",
    ):
        assert blank[name] is None


def test_growth():
    assert TaskRecord(rss_before_bytes=10, rss_peak_bytes=25).rss_growth_bytes == 15
    assert TaskRecord(rss_before_bytes=10).rss_growth_bytes is None


def test_a_line_is_json_whatever_is_in_it():
    odd = "a\"\\\n\0\u2028🛢{}'''"
    record = TaskRecord(
        seq=1,
        run=odd,
        host="",
        pid=2**40,
        process="1-2",
        key=odd,
        task_name=odd,
        start=1700000000.1234567,
        duration=1e-9,
        inputs=[{"type": odd, "shape": [1]}],
        output={"type": odd},
        alloc_peak_bytes=2**62,
        gpu=[],
        oom={"where": odd},
        attribution="exact",
    )
    line = record.to_json()
    assert json.loads(line) == record.to_dict() and "\n" not in line
    assert json.loads(TaskRecord().to_json()) == TaskRecord().to_dict()


def test_a_figure_of_the_board_needs_one_line_here():
    """A field without an expression is the board's word of the same name; every other word is used
    by some expression, or only by readers of boards."""
    of_readers = {"serial", "parent"}
    expressions = {
        f.name: f.metadata.get("expression", f"{{{f.name}}}") for f in fields(TaskRecord)
    }
    used = {word for text in expressions.values() for word in re.findall(r"{(\w+)}", text)}
    assert used | of_readers == set(_core.TASK_FIELDS) and not used & of_readers
    assert all(
        expressions[name] == f"{{{name}}}" for name in ("thread", "alloc_peak_bytes", "overlap")
    )


def test_what_a_task_needed_is_derived_in_one_place():
    record = TaskRecord(rss_before_bytes=10, rss_peak_bytes=25)
    assert (record.own_peak_bytes, record.gpu_peak_bytes) == (15, None)
    record = TaskRecord(
        rss_before_bytes=10,
        rss_peak_bytes=25,
        alloc_peak_bytes=4,
        gpu=[{"device": 0, "peak_bytes": 3}, {"device": 1, "peak_bytes": 8}],
    )
    # the largest device, not their sum
    assert (record.own_peak_bytes, record.gpu_peak_bytes) == (4, 8)
    assert (
        TaskRecord(gpu=[]).gpu_peak_bytes == 0
        and TaskRecord(rss_peak_bytes=3).own_peak_bytes is None
    )


@pytest.mark.parametrize(
    ("reason", "overlap", "needed"),
    [
        (None, 0, 4),
        ("foreign-allocator polars", 0, 15),
        ("unowned-thread zarr_io", 0, 15),
        ("native-threads", 0, 15),
        ("native-threads", 1, 4),  # growth may be the other task's
        ("inner-tasks", 0, 4),  # that memory was counted, for another task
        ("unheard-of", 0, 4),
    ],
)
def test_where_the_own_peak_may_miss_memory_growth_counts(reason, overlap, needed):
    record = TaskRecord(
        rss_before_bytes=10,
        rss_peak_bytes=25,
        alloc_peak_bytes=4,
        overlap=overlap,
        attribution="shared" if reason else "exact",
        attribution_reason=reason,
    )
    assert record.own_peak_bytes == needed
    record.rss_peak_bytes = 11  # the own peak is a part of what the task took
    assert record.own_peak_bytes == 4


def test_every_reason_has_a_word_and_a_row_in_the_docs():
    constants = [name for name in dir(_core) if re.fullmatch("REASON_[A-Z_]+", name)]
    numbers = {getattr(_core, name) for name in constants}
    assert set(ATTRIBUTION_REASONS) == numbers - {_core.REASON_NONE}
    text = (Path(__file__).parents[2] / "docs/figures.md").read_text()
    section = text.partition("### Attribution")[2].partition("\n#")[0]
    for word in ATTRIBUTION_REASONS.values():
        assert f"| `{word}` |" in section, word


def test_top_shows_the_largest_device():
    record = {
        "gpu": [
            {"device": 0, "peak_bytes": 3, "end_bytes": 1},
            {"device": 1, "peak_bytes": 8, "end_bytes": 1},
        ],
        "task_name": "x",
    }
    assert task_row(record.get, "1", 1.0, None).gpu_peak == 8


GOLDEN = (
    '{"seq":7,"run":"r","host":"h","pid":42,"process":"42-1","worker":"tcp://w","thread":43,"key":"k-1","task_name":"a'
    ' \\"name\\"","state":"ok","start":1.5,"duration":0.25,'
    '"inputs":[{"type": "ndarray", "dtype": "float32", "shape": [2, 3], "nbytes":'
    ' 24}],"inputs_omitted":0,"input_bytes":24,"output":{"type": "int", "dtype": null, "shape":'
    ' null, "nbytes": 28},'
    '"output_bytes":28,"rss_before_bytes":100,"rss_peak_bytes":200,"rss_peak_source":"kernel","rss_error_bytes":10,"alloc_peak_bytes":50,"alloc_end_bytes":0,"alloc_count":3,"gc_freed_bytes":null,'
    '"gpu":[{"device": 0, "peak_bytes": 5, "end_bytes": 0, "pool_used_bytes": 5,'
    ' "pool_total_bytes":'
    ' null}],"oom":null,"overlap":1,"attribution":"exact","kind":"task","pinned_peak_bytes":null,'
    '"pinned_end_bytes":null,"page_faults":12,"major_page_faults":0'
)


def test_the_line_of_a_record_is_what_other_programs_read():
    """/dwsr/tasks, the run store and `report --format json`: fields may be added behind these,
    nothing else changes."""
    record = TaskRecord(
        seq=7,
        run="r",
        host="h",
        pid=42,
        process="42-1",
        worker="tcp://w",
        thread=43,
        key="k-1",
        task_name='a "name"',
        state="ok",
        start=1.5,
        duration=0.25,
        inputs=[{"type": "ndarray", "dtype": "float32", "shape": [2, 3], "nbytes": 24}],
        input_bytes=24,
        output={"type": "int", "dtype": None, "shape": None, "nbytes": 28},
        output_bytes=28,
        rss_before_bytes=100,
        rss_peak_bytes=200,
        rss_peak_source="kernel",
        rss_error_bytes=10,
        alloc_peak_bytes=50,
        alloc_end_bytes=0,
        alloc_count=3,
        overlap=1,
        attribution="exact",
        gpu=[
            {
                "device": 0,
                "peak_bytes": 5,
                "end_bytes": 0,
                "pool_used_bytes": 5,
                "pool_total_bytes": None,
            }
        ],
        page_faults=12,
        major_page_faults=0,
    )
    line = record.to_json()
    assert line.startswith(GOLDEN) and line[len(GOLDEN) : len(GOLDEN) + 1] in ("}", ",")


def test_devices_and_failures_of_a_frame_are_written_as_ever():
    """Words of the board as JSON."""
    devices = ((1, 0, 100, 900, 1000), (4, 7, 8, None, None))
    assert _core.TASK_DEVICE_FIELDS == (
        "device",
        "live_bytes",
        "peak_bytes",
        "pool_used_bytes",
        "pool_total_bytes",
    )
    assert (
        devices_text(devices) == '[{"device":0,"peak_bytes":100,"end_bytes":0,'
        '"pool_used_bytes":900,"pool_total_bytes":1000},'
        '{"device":3,"peak_bytes":8,"end_bytes":7,"pool_used_bytes":null,"pool_total_bytes":null}]'
    )
    failed = dict.fromkeys(_core.OOM_FIELDS) | {
        "count": 1,
        "device": 0,
        "requested_bytes": 4096,
        "live_bytes": 0,
        "pool_used_bytes": 10,
        "pool_total_bytes": 20,
    }
    text = oom_text(tuple(failed.values()))
    assert (
        text == '{"where":"gpu:0","requested_bytes":4096,"live_bytes":0,'
        '"pool_used_bytes":10,"pool_total_bytes":20,"pool_limit_bytes":null,"count":1}'
    )
    for device, where in ((_core.PINNED, "pinned"), (_core.OOM_ON_HOST, "host"), (15, "gpu:15")):
        assert json.loads(oom_text(tuple((failed | {"device": device}).values())))["where"] == where
