"""The one table of metrics of what was measured (serve/metrics.py has that of forecasts). The
exposition, docs/metrics.md, the golden test and the check of the dashboards come from it.

By Prometheus' rules: base units, `_total` for counters only. A task's key is never a label; task
names are bounded (totals.py), so are processes (live/boards.py) and slots (view.py). `read(view)`
gives (label values..., value) for each series; a figure that is not known has none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from dwsr_probe import _core

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from dwsr_probe.export.totals import NameTotals, Sum
    from dwsr_probe.live.process import LivingProcess, RunningTask

    # A view: export.view.MeasuredView, or serve.service.PredictorView
    Reader = Callable[[Any], Iterable[tuple[Any, ...]]]

COUNTER, GAUGE, HISTOGRAM, INFO = "counter", "gauge", "histogram", "info"


@dataclass(frozen=True)
class Metric:
    name: str  # as in the exposition, with _total or _info
    type: str
    help: str
    labels: tuple[str, ...]
    source: str  # which figure it is, or what it is made of
    read: Reader
    own_port_only: bool = False  # not on a Dask worker's port: too many series


def _names(value: Callable[[NameTotals], float]) -> Reader:
    """Per task name, one value of its totals."""
    return lambda view: ((name, value(totals)) for name, totals in view.totals.names.items())


def _peaks(value: Callable[[Sum], float]) -> Reader:
    return lambda view: (
        (name, kind, device, value(peak))
        for name, totals in view.totals.names.items()
        for (kind, device), peak in totals.peaks.items()
    )


def _slots(value: Callable[[RunningTask], Any]) -> Reader:
    return lambda view: (
        (task.pid, task.slot, found) for task in view.running if (found := value(task)) is not None
    )


def _slot_devices(field: str) -> Reader:
    return lambda view: (
        (task.pid, task.slot, str(d["device"]), d[field])
        for task in view.running
        for d in view.devices_of(task)
    )


def _processes(value: Callable[[LivingProcess], Any]) -> Reader:
    return lambda view: (
        (process.pid, found) for process in view.processes if (found := value(process)) is not None
    )


def _live(field: str, scale: float = 1) -> Reader:
    return _processes(
        lambda process: (
            None
            if process.live[field] is None
            else process.live[field] * scale
            if scale != 1
            else process.live[field]
        )
    )


def _devices(field: str, scale: float = 1) -> Reader:
    return lambda view: (
        (p.pid, str(d["device"]), d[field] * scale if scale != 1 else d[field])
        for p in view.processes
        for d in p.devices
        if d[field] is not None
    )


def _workers(field: str) -> Reader:
    return _processes(
        lambda process: sum(w.get(field) or 0 for w in process.workers) if process.workers else None
    )


NAME, SLOT, PID, DEVICE = ("task_name",), ("pid", "slot"), ("pid",), ("pid", "device")
PEAK = ("task_name", "kind", "device")

METRICS = (
    # -- tasks that have ended, by name
    Metric(
        "dwsr_tasks_total",
        COUNTER,
        "Tasks that have ended.",
        ("task_name", "outcome"),
        "state",
        lambda view: (
            (name, outcome, count)
            for name, totals in view.totals.names.items()
            for outcome, count in totals.outcomes.items()
        ),
    ),
    Metric(
        "dwsr_task_peak_bytes_total",
        COUNTER,
        "Sum of the tasks' peaks; kind is rss_growth, alloc, or cupy with its device.",
        PEAK,
        "rss_peak_bytes - rss_before_bytes, alloc_peak_bytes, gpu.peak_bytes",
        _peaks(lambda peak: peak.total),
    ),
    Metric(
        "dwsr_task_peak_max_bytes",
        GAUGE,
        "Largest peak of one task, of the same kinds.",
        PEAK,
        "the same",
        _peaks(lambda peak: peak.most),
    ),
    Metric(
        "dwsr_task_peak_max_ratio",
        GAUGE,
        "Largest own peak of one task (growth of the resident size where allocations are not"
        " accounted), as a share of its own process's limit.",
        NAME,
        "alloc_peak_bytes, limits",
        lambda view: (
            (name, totals.of_limit)
            for name, totals in view.totals.names.items()
            if totals.of_limit is not None
        ),
        own_port_only=True,
    ),
    Metric(
        "dwsr_task_input_bytes_total",
        COUNTER,
        "Sum of the tasks' input bytes.",
        NAME,
        "input_bytes",
        _names(lambda t: t.input.total),
    ),
    Metric(
        "dwsr_task_input_max_bytes",
        GAUGE,
        "Largest input bytes of one task.",
        NAME,
        "input_bytes",
        _names(lambda t: t.input.most),
    ),
    Metric(
        "dwsr_task_output_bytes_total",
        COUNTER,
        "Sum of the tasks' output bytes.",
        NAME,
        "output_bytes",
        _names(lambda t: t.output.total),
    ),
    Metric(
        "dwsr_task_output_max_bytes",
        GAUGE,
        "Largest output bytes of one task.",
        NAME,
        "output_bytes",
        _names(lambda t: t.output.most),
    ),
    Metric(
        "dwsr_task_duration_seconds_total",
        COUNTER,
        "Sum of the tasks' durations.",
        NAME,
        "duration",
        _names(lambda t: t.duration.total),
    ),
    Metric(
        "dwsr_task_duration_max_seconds",
        GAUGE,
        "Longest duration of one task.",
        NAME,
        "duration",
        _names(lambda t: t.duration.most),
    ),
    Metric(
        "dwsr_task_alloc_peak_bytes",
        HISTOGRAM,
        "Own peaks of the tasks, by name.",
        NAME,
        "alloc_peak_bytes",
        lambda view: ((name, t.histogram) for name, t in view.totals.names.items() if t.histogram),
        own_port_only=True,
    ),
    Metric(
        "dwsr_peak_bytes",
        HISTOGRAM,
        "Own peaks of all tasks (growth of the resident size where allocations are not accounted).",
        (),
        "alloc_peak_bytes",
        lambda view: ((view.totals.all,),),
    ),
    # -- tasks that run, by slot
    Metric(
        "dwsr_slot_busy",
        GAUGE,
        "1: the slot runs a task of this name.",
        ("pid", "slot", "task_name"),
        "slots",
        lambda view: ((task.pid, task.slot, task.record.task_name, 1) for task in view.running),
    ),
    Metric(
        "dwsr_slot_live_bytes",
        GAUGE,
        "The running task's own live bytes.",
        SLOT,
        "alloc",
        _slots(lambda s: s.record.alloc_end_bytes),
    ),
    Metric(
        "dwsr_slot_peak_bytes",
        GAUGE,
        "Its own peak so far (growth of the resident size where allocations are not accounted).",
        SLOT,
        "alloc",
        _slots(lambda s: s.record.own_peak_bytes),
    ),
    Metric(
        "dwsr_slot_running_seconds",
        GAUGE,
        "How long it has been running.",
        SLOT,
        "start",
        _slots(lambda s: s.seconds),
    ),
    Metric(
        "dwsr_slot_device_live_bytes",
        GAUGE,
        "The running task's own live bytes on a device.",
        ("pid", "slot", "device"),
        "gpu",
        _slot_devices("end_bytes"),
    ),
    Metric(
        "dwsr_slot_device_peak_bytes",
        GAUGE,
        "Its own peak on a device so far.",
        ("pid", "slot", "device"),
        "gpu",
        _slot_devices("peak_bytes"),
    ),
    # -- processes
    Metric(
        "dwsr_process_info",
        INFO,
        "What the process is.",
        ("pid", "program", "worker", "worker_name", "run", "user", "python"),
        "header",
        lambda view: (
            (
                p.pid,
                p.program,
                p.workers_text("address"),
                p.workers_text("name"),
                p.run,
                p.user,
                p.python,
                1,
            )
            for p in view.processes
        ),
    ),
    Metric(
        "dwsr_process_resident_bytes", GAUGE, "Resident size now.", PID, "statm", _live("rss_bytes")
    ),
    Metric(
        "dwsr_process_resident_max_bytes",
        GAUGE,
        "Largest resident size so far, from the kernel's high-water mark.",
        PID,
        "VmHWM",
        _live("rss_max_bytes"),
    ),
    Metric(
        "dwsr_process_limit_bytes",
        GAUGE,
        "What it may use: Dask's limit of the worker, or the cgroup's, or the machine's memory.",
        PID,
        "limits",
        _processes(lambda p: p.limit_bytes),
    ),
    Metric(
        "dwsr_process_headroom_bytes",
        GAUGE,
        "What it may still take: the least that its cgroup, the groups above, the machine and its"
        " Dask worker's limit have left.",
        PID,
        "cgroup",
        _processes(lambda p: p.headroom_bytes),
    ),
    Metric(
        "dwsr_process_unowned_bytes",
        GAUGE,
        "Live bytes that were allocated outside tasks since the first task.",
        PID,
        "alloc",
        _processes(
            lambda p: p.live["unowned_bytes"] if p.live["alloc_state"] == _core.ALLOC_ON else None
        ),
    ),
    Metric(
        "dwsr_process_managed_bytes",
        GAUGE,
        "What Dask keeps in the worker's memory, by its own sum.",
        PID,
        "worker",
        _workers("managed_bytes"),
    ),
    Metric(
        "dwsr_process_spilled_bytes",
        GAUGE,
        "What Dask has spilled to disk.",
        PID,
        "worker",
        _workers("spilled_bytes"),
    ),
    Metric(
        "dwsr_process_running_tasks", GAUGE, "Tasks that run now.", PID, "slots", _live("running")
    ),
    Metric(
        "dwsr_process_pinned_bytes",
        GAUGE,
        "Page-locked host memory that CuPy has given out.",
        PID,
        "cupy",
        _live("pinned_bytes"),
    ),
    # -- devices that a process has allocated on
    Metric(
        "dwsr_device_info",
        INFO,
        "Which device it is.",
        ("pid", "device", "uuid", "name"),
        "CUDA",
        lambda view: (
            (p.pid, str(d["device"]), d["uuid"], d["name"], 1)
            for p in view.processes
            for d in p.devices
        ),
    ),
    Metric(
        "dwsr_device_live_bytes",
        GAUGE,
        "Live bytes of this process from CuPy's allocators.",
        DEVICE,
        "cupy",
        _devices("live_bytes"),
    ),
    Metric("dwsr_device_peak_bytes", GAUGE, "Their peak.", DEVICE, "cupy", _devices("peak_bytes")),
    Metric(
        "dwsr_device_pool_used_bytes",
        GAUGE,
        "In use of CuPy's pool.",
        DEVICE,
        "cupy",
        _devices("pool_used_bytes"),
    ),
    Metric(
        "dwsr_device_pool_total_bytes",
        GAUGE,
        "What CuPy's pool holds of the device.",
        DEVICE,
        "cupy",
        _devices("pool_total_bytes"),
    ),
    Metric(
        "dwsr_device_unseen_bytes",
        GAUGE,
        "In use of the pool, but not allocated through the hook.",
        DEVICE,
        "cupy",
        _devices("unseen_bytes"),
    ),
    Metric(
        "dwsr_device_total_bytes",
        GAUGE,
        "Memory of the device.",
        DEVICE,
        "NVML or CUDA",
        _devices("total_bytes"),
    ),
    Metric(
        "dwsr_device_used_bytes",
        GAUGE,
        "In use on the device by everybody, as the driver says.",
        DEVICE,
        "NVML",
        _devices("used_bytes"),
    ),
    Metric(
        "dwsr_device_process_bytes",
        GAUGE,
        "Of it by this process.",
        DEVICE,
        "NVML",
        _devices("process_bytes"),
    ),
    Metric(
        "dwsr_device_utilisation_ratio",
        GAUGE,
        "Share of time in which a kernel ran.",
        DEVICE,
        "NVML",
        _devices("utilisation_percent", 0.01),
    ),
    # -- the probe itself
    Metric(
        "dwsr_probe_up",
        GAUGE,
        "1: the probe of this process runs.",
        PID,
        "state",
        _processes(lambda p: int(p.live["state"] == _core.BOARD_OPEN)),
    ),
    Metric(
        "dwsr_probe_fallback",
        GAUGE,
        "1: something works less well than it should (dwsr-probe doctor says why).",
        ("pid", "kind"),
        "state",
        lambda view: (
            (p.pid, kind, value) for p in view.processes for kind, value in p.fallbacks.items()
        ),
    ),
    Metric(
        "dwsr_probe_samples_total",
        COUNTER,
        "Samples of the resident size.",
        PID,
        "sampler",
        _live("samples_written"),
    ),
    Metric(
        "dwsr_probe_samples_late_total",
        COUNTER,
        "Samples that came more than a period late.",
        PID,
        "sampler",
        _live("samples_late"),
    ),
    Metric(
        "dwsr_probe_records_lost_total",
        COUNTER,
        "Records that were overwritten before they were read, of all processes.",
        (),
        "records",
        lambda view: ((view.records_lost,),),
    ),
    Metric(
        "dwsr_probe_tasks_dropped_total",
        COUNTER,
        "Tasks that found no free slot and were not measured.",
        PID,
        "slots",
        _live("tasks_dropped"),
    ),
    Metric(
        "dwsr_probe_cpu_seconds_total",
        COUNTER,
        "CPU time of the sampler.",
        PID,
        "sampler",
        _live("sampler_cpu_ns", 1e-9),
    ),
    Metric(
        "dwsr_probe_resident_bytes",
        GAUGE,
        "Memory of the probe inside the process: its board and the table of owners.",
        PID,
        "board",
        _live("own_bytes"),
    ),
    Metric(
        "dwsr_names_dropped",
        GAUGE,
        "Distinct task names that went to `other`.",
        (),
        "totals",
        lambda view: ((view.totals.names_dropped,),),
    ),
    Metric(
        "dwsr_processes_dropped",
        GAUGE,
        "Living processes beyond the most that have series of their own.",
        (),
        "boards",
        lambda view: ((view.processes_dropped,),),
    ),
    Metric(
        "dwsr_boards_unreadable",
        GAUGE,
        "Boards that could not be read: damaged, or of another version.",
        (),
        "boards",
        lambda view: ((view.boards_unreadable,),),
    ),
    Metric(
        "dwsr_build_info",
        INFO,
        "This dwsr-probe.",
        ("version", "board_version"),
        "",
        lambda view: ((view.version, view.board_version, 1),),
    ),
)


def rows(metrics: Iterable[Metric]) -> list[str]:
    """A table of metrics in Markdown, as lines."""
    lines = ["| metric | type | labels | what it is | from |", "|---|---|---|---|---|"]
    for metric in metrics:
        where = " (not on a Dask worker's port)" if metric.own_port_only else ""
        lines.append(
            f"| `{metric.name}` | {metric.type} | {', '.join(metric.labels)} | {metric.help}{where}"
            f" | {metric.source} |"
        )
    return lines


def markdown() -> str:
    """The first part of docs/metrics.md; dwsr_probe/serve/metrics.py has the whole."""
    return "\n".join(
        [
            "# Metrics",
            "",
            (
                "Made from the table in `dwsr_probe/export/metrics.py` by `python -m"
                " dwsr_probe.serve.metrics > docs/metrics.md`. [live.md](live.md) says where they"
                " are served."
            ),
            "",
            *rows(METRICS),
            "",
            (
                "A figure that is not known has no series. `task_name` has at most 80 values and"
                " `other`; a task's key is never a label. `device` is CUDA's number, empty for host"
                " memory; `pid` is the"
            ),
            (
                "process's own; `slot` numbers a process's running tasks. Histograms have buckets"
                " from 1 MiB to 1 TiB, by fours."
            ),
            "",
        ]
    )
