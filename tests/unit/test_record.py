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


def test_a_line_is_json_whatever_is_in_it():
    odd = 'a"\\\n\0\u2028🛢{}\'\'\''
    record = TaskRecord(seq=1, run=odd, host="", pid=2**40, process="1-2", key=odd, task_name=odd, start=1700000000.1234567, duration=1e-9, inputs=[{"type": odd, "shape": [1]}],
                        output={"type": odd}, alloc_peak_bytes=2**62, gpu=[], oom={"where": odd}, attribution="exact")
    line = record.to_json()
    assert json.loads(line) == record.to_dict() and "\n" not in line
    assert json.loads(TaskRecord().to_json()) == TaskRecord().to_dict()
