import json
import re
from dataclasses import fields

from dwsr_probe import _core
from dwsr_probe.record import FIELDS, TaskRecord
from dwsr_probe.report.top.moment import task_of

CONTRACT = ["seq", "run", "host", "pid", "process", "worker", "thread", "key", "task_name", "state", "start", "duration", "inputs", "inputs_omitted", "input_bytes", "output", "output_bytes", "rss_before_bytes", "rss_peak_bytes", "rss_peak_source", "rss_error_bytes", "alloc_peak_bytes", "alloc_end_bytes", "alloc_count", "gc_freed_bytes", "gpu", "oom", "overlap", "attribution"]


def test_the_contract_fields_are_all_there_in_order():
    assert list(FIELDS[:len(CONTRACT)]) == CONTRACT
    assert list(json.loads(TaskRecord().to_json())) == list(FIELDS)


def test_absent_is_null_not_zero():
    blank = json.loads(TaskRecord(task_name="x").to_json())
    for name in ("rss_peak_bytes", "alloc_peak_bytes", "input_bytes", "output_bytes", "gpu", "oom", "key"):
        assert blank[name] is None


def test_growth():
    assert TaskRecord(rss_before_bytes=10, rss_peak_bytes=25).rss_growth_bytes == 15
    assert TaskRecord(rss_before_bytes=10).rss_growth_bytes is None


def test_a_line_is_json_whatever_is_in_it():
    odd = 'a"\\\n\0\u2028🛢{}\'\'\''
    record = TaskRecord(seq=1, run=odd, host="", pid=2**40, process="1-2", key=odd, task_name=odd, start=1700000000.1234567, duration=1e-9, inputs=[{"type": odd, "shape": [1]}],
                        output={"type": odd}, alloc_peak_bytes=2**62, gpu=[], oom={"where": odd}, attribution="exact")
    line = record.to_json()
    assert json.loads(line) == record.to_dict() and "\n" not in line
    assert json.loads(TaskRecord().to_json()) == TaskRecord().to_dict()


def test_a_figure_of_the_board_needs_one_line_here():
    """A field without a source is the board's word of the same name; every other word is used by some source, or only by readers of boards."""
    of_readers = {"serial", "parent"}
    sources = {f.name: f.metadata.get("source", f"{{{f.name}}}") for f in fields(TaskRecord)}
    used = {word for source in sources.values() for word in re.findall(r"{(\w+)}", source)}
    assert used | of_readers == set(_core.TASK_FIELDS) and not used & of_readers
    assert all(sources[name] == f"{{{name}}}" for name in ("thread", "alloc_peak_bytes", "overlap"))


def test_what_a_task_needed_is_derived_in_one_place():
    record = TaskRecord(rss_before_bytes=10, rss_peak_bytes=25)
    assert (record.own_peak_bytes, record.gpu_peak_bytes) == (15, None)
    record = TaskRecord(rss_before_bytes=10, rss_peak_bytes=25, alloc_peak_bytes=4,
                        gpu=[{"device": 0, "peak_bytes": 3}, {"device": 1, "peak_bytes": 8}])
    assert (record.own_peak_bytes, record.gpu_peak_bytes) == (4, 8)  # the largest device, not their sum
    assert TaskRecord(gpu=[]).gpu_peak_bytes == 0 and TaskRecord(rss_peak_bytes=3).own_peak_bytes is None


def test_top_shows_the_largest_device():
    record = {"gpu": [{"device": 0, "peak_bytes": 3, "end_bytes": 1}, {"device": 1, "peak_bytes": 8, "end_bytes": 1}], "task_name": "x"}
    assert task_of(record.get, "1", 1.0, None).gpu_peak == 8
