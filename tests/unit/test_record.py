import json

from dwsr_probe.record import FIELDS, TaskRecord

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
