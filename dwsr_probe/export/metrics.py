"""The one table of metrics of what was measured (serve/metrics.py has that of forecasts). The
exposition, docs/metrics.md, the golden test and the check of the dashboards come from it.

By Prometheus' rules: base units, `_total` for counters only. A task's key or chain is never a
label; pairs of task name and operation are bounded (totals.py), so are processes (live/boards.py)
and slots (view.py). `read(view)` gives (label values..., value) for each series; a figure that is
not known has none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from dwsr_probe import _core
from dwsr_probe.live.process import MODEL_OUTCOMES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from dwsr_probe.export.totals import Histogram, PairTotals, SumAndMax
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
    made_from: str  # which figure it is, or what it is made of
    read: Reader
    dedicated_port_only: bool = False  # not on a Dask worker's port: too many series


def _per_pair(value: Callable[[PairTotals], float | Histogram | None]) -> Reader:
    """Per task name and operation, one value of their totals; None: no series."""
    return lambda view: (
        (*pair, found)
        for pair, totals in view.totals.pairs.items()
        if (found := value(totals)) is not None
    )


def _per_peak(value: Callable[[SumAndMax], float]) -> Reader:
    return lambda view: (
        (*pair, kind, device, value(peak))
        for pair, totals in view.totals.pairs.items()
        for (kind, device), peak in totals.peaks.items()
    )


def _per_slot(value: Callable[[RunningTask], Any]) -> Reader:
    return lambda view: (
        (task.pid, task.slot, found) for task in view.running if (found := value(task)) is not None
    )


def _per_slot_device(field: str) -> Reader:
    return lambda view: (
        (task.pid, task.slot, str(d["device"]), d[field])
        for task in view.running
        for d in view.devices_of(task)
    )


def _per_process(value: Callable[[LivingProcess], Any]) -> Reader:
    return lambda view: (
        (process.pid, found) for process in view.processes if (found := value(process)) is not None
    )


def _live_field(field: str, scale: float = 1) -> Reader:
    return _per_process(
        lambda process: (
            None
            if process.live[field] is None
            else process.live[field] * scale
            if scale != 1
            else process.live[field]
        )
    )


def _device_field(field: str, scale: float = 1) -> Reader:
    return lambda view: (
        (p.pid, str(d["device"]), d[field] * scale if scale != 1 else d[field])
        for p in view.processes
        for d in p.devices
        if d[field] is not None
    )


def _model_figure(name: str) -> Reader:
    """Of processes with a model inside."""
    return _per_process(lambda process: process.worker_model.get(name))


def _workers_sum(field: str) -> Reader:
    return _per_process(
        lambda process: sum(w.get(field) or 0 for w in process.workers) if process.workers else None
    )


BY_PAIR, BY_SLOT, BY_PID, BY_DEVICE = (
    ("task_name", "operation"),
    ("pid", "slot"),
    ("pid",),
    ("pid", "device"),
)
BY_PEAK = (*BY_PAIR, "kind", "device")

METRICS = (
    # -- tasks that have ended, by task name and operation
    Metric(
        "dwsr_tasks_total",
        COUNTER,
        "Tasks that have ended.",
        (*BY_PAIR, "outcome"),
        "state",
        lambda view: (
            (*pair, outcome, count)
            for pair, totals in view.totals.pairs.items()
            for outcome, count in totals.outcomes.items()
        ),
    ),
    Metric(
        "dwsr_task_peak_bytes_total",
        COUNTER,
        "Sum of the tasks' peaks; kind is rss_growth, alloc, or cupy with its device.",
        BY_PEAK,
        "rss_peak_bytes - rss_before_bytes, alloc_peak_bytes, gpu.peak_bytes",
        _per_peak(lambda peak: peak.total),
    ),
    Metric(
        "dwsr_task_peak_max_bytes",
        GAUGE,
        "Largest peak of one task, of the same kinds.",
        BY_PEAK,
        "the same",
        _per_peak(lambda peak: peak.largest),
    ),
    Metric(
        "dwsr_task_peak_max_ratio",
        GAUGE,
        "Largest own peak of one task (growth of the resident size where allocations are not"
        " accounted), as a share of its own process's limit.",
        BY_PAIR,
        "alloc_peak_bytes, limits",
        _per_pair(lambda t: t.peak_max_ratio),
        dedicated_port_only=True,
    ),
    Metric(
        "dwsr_task_input_bytes_total",
        COUNTER,
        "Sum of the tasks' input bytes.",
        BY_PAIR,
        "input_bytes",
        _per_pair(lambda t: t.input.total),
    ),
    Metric(
        "dwsr_task_input_max_bytes",
        GAUGE,
        "Largest input bytes of one task.",
        BY_PAIR,
        "input_bytes",
        _per_pair(lambda t: t.input.largest),
    ),
    Metric(
        "dwsr_task_output_bytes_total",
        COUNTER,
        "Sum of the tasks' output bytes.",
        BY_PAIR,
        "output_bytes",
        _per_pair(lambda t: t.output.total),
    ),
    Metric(
        "dwsr_task_output_max_bytes",
        GAUGE,
        "Largest output bytes of one task.",
        BY_PAIR,
        "output_bytes",
        _per_pair(lambda t: t.output.largest),
    ),
    Metric(
        "dwsr_task_duration_seconds_total",
        COUNTER,
        "Sum of the tasks' durations.",
        BY_PAIR,
        "duration",
        _per_pair(lambda t: t.duration.total),
    ),
    Metric(
        "dwsr_task_duration_max_seconds",
        GAUGE,
        "Longest duration of one task.",
        BY_PAIR,
        "duration",
        _per_pair(lambda t: t.duration.largest),
    ),
    Metric(
        "dwsr_task_alloc_peak_bytes",
        HISTOGRAM,
        "Own peaks of the tasks, by task name and operation.",
        BY_PAIR,
        "alloc_peak_bytes",
        _per_pair(lambda t: t.histogram),
        dedicated_port_only=True,
    ),
    Metric(
        "dwsr_peak_bytes",
        HISTOGRAM,
        "Own peaks of all tasks (growth of the resident size where allocations are not accounted).",
        (),
        "alloc_peak_bytes",
        lambda view: ((view.totals.own_peaks,),),
    ),
    # -- tasks that run, by slot
    Metric(
        "dwsr_slot_busy",
        GAUGE,
        "1: the slot runs a task of this name and operation.",
        (*BY_SLOT, *BY_PAIR),
        "slots",
        lambda view: (
            (
                task.pid,
                task.slot,
                task.record.task_name,
                task.record.operation or task.record.task_name,
                1,
            )
            for task in view.running
        ),
    ),
    Metric(
        "dwsr_slot_live_bytes",
        GAUGE,
        "The running task's own live bytes.",
        BY_SLOT,
        "alloc",
        _per_slot(lambda s: s.record.alloc_end_bytes),
    ),
    Metric(
        "dwsr_slot_peak_bytes",
        GAUGE,
        "Its own peak so far (growth of the resident size where allocations are not accounted).",
        BY_SLOT,
        "alloc",
        _per_slot(lambda s: s.record.own_peak_bytes),
    ),
    Metric(
        "dwsr_slot_running_seconds",
        GAUGE,
        "How long it has been running.",
        BY_SLOT,
        "start",
        _per_slot(lambda s: s.seconds),
    ),
    Metric(
        "dwsr_slot_device_live_bytes",
        GAUGE,
        "The running task's own live bytes on a device.",
        ("pid", "slot", "device"),
        "gpu",
        _per_slot_device("end_bytes"),
    ),
    Metric(
        "dwsr_slot_device_peak_bytes",
        GAUGE,
        "Its own peak on a device so far.",
        ("pid", "slot", "device"),
        "gpu",
        _per_slot_device("peak_bytes"),
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
        "dwsr_process_resident_bytes",
        GAUGE,
        "Resident size now.",
        BY_PID,
        "statm",
        _live_field("rss_bytes"),
    ),
    Metric(
        "dwsr_process_resident_max_bytes",
        GAUGE,
        "Largest resident size so far, from the kernel's high-water mark.",
        BY_PID,
        "VmHWM",
        _live_field("rss_max_bytes"),
    ),
    Metric(
        "dwsr_process_limit_bytes",
        GAUGE,
        "What it may use: Dask's limit of the worker, or the cgroup's, or the machine's memory.",
        BY_PID,
        "limits",
        _per_process(lambda p: p.limit_bytes),
    ),
    Metric(
        "dwsr_process_headroom_bytes",
        GAUGE,
        "What it may still take: the least that its cgroup, the groups above, the machine and its"
        " Dask worker's limit have left.",
        BY_PID,
        "cgroup",
        _per_process(lambda p: p.headroom_bytes),
    ),
    Metric(
        "dwsr_process_unowned_bytes",
        GAUGE,
        "Live bytes that were allocated outside tasks since the first task.",
        BY_PID,
        "alloc",
        _per_process(
            lambda p: p.live["unowned_bytes"] if p.live["alloc_state"] == _core.ALLOC_ON else None
        ),
    ),
    Metric(
        "dwsr_process_managed_bytes",
        GAUGE,
        "What Dask keeps in the worker's memory, by its own sum.",
        BY_PID,
        "worker",
        _workers_sum("managed_bytes"),
    ),
    Metric(
        "dwsr_process_spilled_bytes",
        GAUGE,
        "What Dask has spilled to disk.",
        BY_PID,
        "worker",
        _workers_sum("spilled_bytes"),
    ),
    Metric(
        "dwsr_process_running_tasks",
        GAUGE,
        "Tasks that run now.",
        BY_PID,
        "slots",
        _live_field("running"),
    ),
    Metric(
        "dwsr_process_pinned_bytes",
        GAUGE,
        "Page-locked host memory that CuPy has given out.",
        BY_PID,
        "cupy",
        _live_field("pinned_bytes"),
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
        BY_DEVICE,
        "cupy",
        _device_field("live_bytes"),
    ),
    Metric(
        "dwsr_device_peak_bytes",
        GAUGE,
        "Their peak.",
        BY_DEVICE,
        "cupy",
        _device_field("peak_bytes"),
    ),
    Metric(
        "dwsr_device_pool_used_bytes",
        GAUGE,
        "In use of CuPy's pool.",
        BY_DEVICE,
        "cupy",
        _device_field("pool_used_bytes"),
    ),
    Metric(
        "dwsr_device_pool_total_bytes",
        GAUGE,
        "What CuPy's pool holds of the device.",
        BY_DEVICE,
        "cupy",
        _device_field("pool_total_bytes"),
    ),
    Metric(
        "dwsr_device_unseen_bytes",
        GAUGE,
        "In use of the pool, but not allocated through the hook.",
        BY_DEVICE,
        "cupy",
        _device_field("unseen_bytes"),
    ),
    Metric(
        "dwsr_device_total_bytes",
        GAUGE,
        "Memory of the device.",
        BY_DEVICE,
        "NVML or CUDA",
        _device_field("total_bytes"),
    ),
    Metric(
        "dwsr_device_used_bytes",
        GAUGE,
        "In use on the device by everybody, as the driver says.",
        BY_DEVICE,
        "NVML",
        _device_field("used_bytes"),
    ),
    Metric(
        "dwsr_device_process_bytes",
        GAUGE,
        "Of it by this process.",
        BY_DEVICE,
        "NVML",
        _device_field("process_bytes"),
    ),
    Metric(
        "dwsr_device_utilisation_ratio",
        GAUGE,
        "Share of time in which a kernel ran.",
        BY_DEVICE,
        "NVML",
        _device_field("utilisation_percent", 0.01),
    ),
    # -- the probe itself
    Metric(
        "dwsr_probe_up",
        GAUGE,
        "1: the probe of this process runs.",
        BY_PID,
        "state",
        _per_process(lambda p: int(p.live["state"] == _core.BOARD_OPEN)),
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
        BY_PID,
        "sampler",
        _live_field("samples_written"),
    ),
    Metric(
        "dwsr_probe_samples_late_total",
        COUNTER,
        "Samples that came more than a period late.",
        BY_PID,
        "sampler",
        _live_field("samples_late"),
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
        BY_PID,
        "slots",
        _live_field("tasks_dropped"),
    ),
    Metric(
        "dwsr_probe_cpu_seconds_total",
        COUNTER,
        "CPU time of the sampler.",
        BY_PID,
        "sampler",
        _live_field("sampler_cpu_ns", 1e-9),
    ),
    Metric(
        "dwsr_probe_resident_bytes",
        GAUGE,
        "Memory of the probe inside the process: its board and the table of owners.",
        BY_PID,
        "board",
        _live_field("own_bytes"),
    ),
    # -- the model inside a Dask worker, where it is on
    Metric(
        "dwsr_worker_model_records_total",
        COUNTER,
        "Records of its own process: learned, expected (a repeat that said nothing new),"
        " skipped_early, skipped_new, skipped_surprising and skipped_repeat (for want of CPU time),"
        " lost (overwritten before they were read), refused (impossible figures).",
        ("pid", "outcome"),
        "worker_model",
        lambda view: (
            (process.pid, outcome, process.worker_model[outcome])
            for process in view.processes
            for outcome in MODEL_OUTCOMES
            if outcome in process.worker_model
        ),
    ),
    Metric(
        "dwsr_worker_model_questions_total",
        COUNTER,
        "Forecasts that were requested from it.",
        BY_PID,
        "worker_model",
        _model_figure("questions"),
    ),
    Metric(
        "dwsr_worker_model_unanswered_total",
        COUNTER,
        "Of these: requests whose answer was not in memory yet.",
        BY_PID,
        "worker_model",
        _model_figure("unanswered"),
    ),
    Metric(
        "dwsr_worker_model_cpu_seconds_total",
        COUNTER,
        "CPU time of its thread.",
        BY_PID,
        "worker_model",
        _model_figure("cpu_seconds"),
    ),
    Metric(
        "dwsr_names_dropped",
        GAUGE,
        "Distinct pairs of task name and operation that went to `other`.",
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


def markdown_table(metrics: Iterable[Metric]) -> list[str]:
    """A table of metrics in Markdown, as lines."""
    lines = ["| metric | type | labels | what it is | from |", "|---|---|---|---|---|"]
    for metric in metrics:
        where = " (not on a Dask worker's port)" if metric.dedicated_port_only else ""
        lines.append(
            f"| `{metric.name}` | {metric.type} | {', '.join(metric.labels)} | {metric.help}{where}"
            f" | {metric.made_from} |"
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
            *markdown_table(METRICS),
            "",
            (
                "A figure that is not known has no series. `operation` is the job's own function"
                " inside the task, or the task name if there is none. Sums and maxima over"
                " `operation` are the figures of the task name. At most 80 pairs of `task_name` and"
                " `operation` have series of their own; further pairs are counted as `other`, with"
                " `other` as operation. A task's key or chain is never a label."
            ),
            "",
            (
                "`device` is CUDA's number, empty for host memory; `pid` is the process's own;"
                " `slot` numbers a process's running tasks. Histograms have buckets from 1 MiB to 1"
                " TiB, by fours."
            ),
            "",
        ]
    )
