"""One process in words: how it ended, its Dask workers, and what limits its measurement.

Used by the terminal's table, the HTML page and the verdict. `health` holds what the process's board
reported (store.processes()). Part of it was written by the job, so fields may be missing.
"""

from __future__ import annotations

from dwsr_probe import _core
from dwsr_probe.board import process_limit
from dwsr_probe.words import count_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from dwsr_probe.record import TaskRecord

# Dask's nanny ends a worker that is above 95 % of its limit. The nanny looks every 100 ms, and the
# last sample may be older, so a recorded peak from 90 % on counts as reaching that limit.
NANNY_SHARE = 0.90

_NVML_NOTES = {  # by the board's nvml_state
    _core.NVML_NO_MODULE: (
        "nvidia-ml-py is not installed: the driver's figures of the devices are missing"
    ),
    _core.NVML_NO_DRIVER: "NVML found no driver",
    _core.NVML_DENIED: "NVML may not report the memory of single processes: permission denied",
    _core.NVML_LOST: "the driver was lost",
    _core.NVML_FAILED: "reading NVML failed",
}


def process_notes(health: Mapping[str, Any]) -> list[str]:
    """What limits the measurement of a process; empty if nothing does."""
    notes: list[str] = []

    def add_count(number: int | None, text: str, plural: str) -> None:
        if number:
            notes.append(f"{number:,} {text if number == 1 else plural}")

    if health.get("unprobed"):
        return ["not probed; the peak is of this process or of one of its children"]
    if health.get("alloc_state") == _core.ALLOC_UNAVAILABLE:
        notes.append("allocations could not be accounted: another tool holds the hooks")
    if health.get("dask_hooks") == _core.DASK_HOOKS_TRANSITIONS:
        notes.append(
            "tasks of some kinds were followed on Dask's event loop (`shared`): this release of"
            " distributed has functions that are not known; the worker's log names them"
        )
    if health.get("untracked_bytes"):
        notes.append(
            f"{count_text(health['untracked_bytes'], 'byte', 'bytes', '1')} found the owner table"
            " full: frees from other threads are not followed there"
        )
    if health.get("gpu_hook") == _core.GPU_HOOK_OFF:
        notes.append("the hook on CuPy's memory failed: device memory was measured up to then only")
    if health.get("devices") and health.get("nvml_state") in _NVML_NOTES:
        notes.append(_NVML_NOTES[health["nvml_state"]])
    add_count(
        health.get("gpu_ooms"),
        "device allocation failed for lack of memory",
        "device allocations failed for lack of memory",
    )
    add_count(
        health.get("gpu_unfollowed"),
        "device allocation was not followed: one device too many, or a pointer of the job's own"
        " class",
        "device allocations were not followed: devices too many, or pointers of the job's own"
        " class",
    )
    if health.get("rss_peak_source") == "sampled":
        notes.append("peaks are sampled")
    add_count(health.get("records_lost"), "record lost", "records lost")
    add_count(health.get("samples_lost"), "sample lost", "samples lost")
    why = "its board could not grow" if health.get("room_for_tasks") == 0 else "too many at once"
    add_count(
        health.get("tasks_dropped"), f"task not measured: {why}", f"tasks not measured: {why}"
    )
    add_count(health.get("ends_unmatched"), "end without begin", "ends without begin")
    add_count(health.get("ends_elsewhere"), "end in another thread", "ends in another thread")
    add_count(
        health.get("ends_missing"),
        "task left open by its thread",
        "tasks left open by their threads",
    )
    add_count(
        health.get("children_unprobed"),
        "Python child ran without the probe (-I, -S, -E or a bare environment)",
        "Python children ran without the probe (-I, -S, -E or a bare environment)",
    )
    return notes


def was_killed(record: TaskRecord, health: Mapping[str, Any]) -> bool:
    """Whether a process was killed, for certain or very likely.

    State "killed" alone means that tasks were under way at the end. That is also true of a
    process that ended early by itself. So one more sign is needed: a signal, a peak near the
    limit, or no known limit."""
    limit, peak = process_limit(health), record.rss_peak_bytes
    return record.state == "killed" and (
        health.get("signal") is not None or not limit or not peak or peak >= NANNY_SHARE * limit
    )


def process_outcome(record: TaskRecord, health: Mapping[str, Any], exit_code: int | None) -> str:
    """How a process ended, in words. exit_code: of the job.

    Pools end their workers by a signal, and many programs leave by os._exit. In a job that
    succeeded such an end is no cause for concern."""
    if record.state == "killed" and not was_killed(record, health):
        return "ended with tasks under way"
    return record.state or ("ended" if exit_code == 0 else "ended, how is not known")


def worker_facts(health: Mapping[str, Any]) -> list[str]:
    """ "worker tcp://…, 2 threads, limit 4.0 GiB" for each of Dask's workers in the process."""
    facts = []
    for worker in health.get("workers") or ():
        if not worker.get("address"):
            continue
        limit = worker.get("memory_limit_bytes")
        spilled = worker.get("spilled_bytes")
        facts.append(
            f"worker {worker['address']},"
            f" {count_text(worker.get('nthreads') or 0, 'thread', 'threads', '1')}"
            + (f", limit {limit / 2**30:.1f} GiB" if limit else "")
            + (f", {spilled / 2**20:.1f} MiB spilled" if spilled else "")
        )
    return facts


def sampler_text(record: TaskRecord, health: Mapping[str, Any]) -> str | None:
    """ "1,234 samples, 0.1 % late, 0.3 % of a core, 1 slow reset of the kernel's mark", None
    without a sampler."""
    written = health.get("samples_written")
    if not written:
        return None
    late = 100 * (health.get("samples_late") or 0) / written
    text = f"{count_text(written, 'sample', 'samples', '1')}, {late:.1f} % late"
    if record.duration:
        text += (
            f", {100 * (health.get('sampler_cpu_ns') or 0) / 1e9 / record.duration:.2f} % of a core"
        )
    if gaps := health.get("reset_gaps"):
        text += f", {count_text(gaps, 'slow reset', 'slow resets', '1')} of the kernel's mark"
    return text
