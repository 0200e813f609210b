"""Which memory limits a block: a task's largest peak against the limit it is under."""

import io

from dwsr_probe.record import TaskRecord
from dwsr_probe.report.summary import summarise
from dwsr_probe.report.table import print_report
from dwsr_probe.store import Store

GIB = 1 << 30
DEVICE = {"device": 0, "name": "A100", "total_bytes": 40 * GIB, "peak_bytes": 20 * GIB}


def task(name, host, gpu=None, **more):
    return TaskRecord(task_name=name, process="p", alloc_peak_bytes=host, gpu=gpu, **more)


def on(device, peak):
    return {
        "device": device,
        "peak_bytes": peak,
        "end_bytes": 0,
        "pool_used_bytes": None,
        "pool_total_bytes": None,
    }


def process(**health):
    return TaskRecord(
        kind="process", process="p", task_name="job.py", state="ok", rss_peak_bytes=GIB
    ), {"limit_bytes": 64 * GIB, **health}


def only(records, *processes):
    (summary,) = summarise(records, processes)
    return summary


def test_the_larger_ratio_limits():
    device = only(
        [task("a", 2 * GIB, [on(0, 10 * GIB)]), task("a", GIB, [on(0, 20 * GIB)])],
        process(devices=[DEVICE]),
    )
    assert (device.limiting_memory, device.host_ratio, device.device_ratio) == (
        "device",
        2 / 64,
        0.5,
    )
    assert (device.gpu_peak_median_bytes, device.gpu_peak_max_bytes) == (15 * GIB, 20 * GIB)
    host = only([task("a", 48 * GIB, [on(0, GIB)])], process(devices=[DEVICE]))
    assert (host.limiting_memory, host.host_ratio) == ("host", 0.75)


def test_the_limit_is_the_nearest_one():
    """A pool's limit is below the device, a worker's below the machine."""
    limited = only(
        [task("a", None, [on(0, 5 * GIB)])],
        process(devices=[{**DEVICE, "pool_limit_bytes": 10 * GIB}]),
    )
    assert limited.device_ratio == 0.5
    worker = only(
        [task("a", GIB, worker="tcp://w")],
        process(workers=[{"address": "tcp://w", "memory_limit_bytes": 4 * GIB}]),
    )
    assert (worker.host_ratio, worker.limiting_memory) == (0.25, "host")


def test_what_is_not_known_limits_nothing():
    unknown = only([task("a", GIB, [on(3, GIB)])])
    assert (unknown.limiting_memory, unknown.host_ratio, unknown.device_ratio) == (None, None, None)
    assert only([task("a", GIB)], process()).gpu_peak_max_bytes is None


def report(*records, **health):
    store, out = Store.in_memory(), io.StringIO()
    store.add_tasks([TaskRecord(**{**r.to_dict(), "seq": i}) for i, r in enumerate(records, 1)])
    store.put_process(*process(**health))
    print_report(store, out)
    return out.getvalue()


def test_columns_appear_with_a_gpu_only():
    with_gpu = report(
        task("glcm", 2 * GIB, [on(0, 20 * GIB)]),
        task("read", GIB, []),
        devices=[DEVICE],
        gpu_hook=1,
        nvml_state=3,
        gpu_ooms=2,
    )
    assert "gpu peak, max" in with_gpu and "gpu 50 %, host 3.1 %" in with_gpu
    assert "gpu 0 (A100): own peak 20.0 GiB of 40.0 GiB (50.0 %)" in with_gpu
    assert (
        "NVML found no driver" in with_gpu
        and "2 device allocations failed for lack of memory" in with_gpu
    )
    assert "gpu" not in report(task("glcm", 2 * GIB))
