"""Running tasks and living processes as JSON, for readers elsewhere: /dwsr/tasks?running=1 and
/dwsr/processes.

The lists of fields are the contract of docs/live.md: fields may be added, never renamed. Readers
check what they get (export/checked.py).
"""

from __future__ import annotations

import json

from dwsr_probe.dataclass import NamedTuple
from dwsr_probe.live.process import LivingProcess, LivingProcesses

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any


class TaskIdentity(NamedTuple):
    """Identifies a task among all tasks of all processes: three fields of its record. `top` and the
    predictor join by it, and the model knows running tasks by it."""

    process: str | None
    thread: int | None
    start: float | None


def task_identity(get: Callable[[str], Any]) -> TaskIdentity:
    """get: returns a field of the task's record."""
    return TaskIdentity(get("process"), get("thread"), get("start"))


# What a running task's line has beside the fields of its record
RUNNING_FIELDS = (
    "running_seconds",
    "process_resident_bytes",
    "process_limit_bytes",
    "process_headroom_bytes",
)
DEVICE_FIELDS = (
    "device",
    "name",
    "uuid",
    "live_bytes",
    "peak_bytes",
    "pool_used_bytes",
    "pool_total_bytes",
    "unseen_bytes",
    "total_bytes",
    "used_bytes",
    "process_bytes",
    "utilisation_percent",
)
PROCESS_FIELDS: dict[str, Callable[[LivingProcess], Any]] = {
    "process": lambda process: process.identity,
    "pid": lambda process: process.pid,
    "program": lambda process: process.program,
    "worker": lambda process: process.workers_text("address"),
    "worker_name": lambda process: process.workers_text("name"),
    "run": lambda process: process.run,
    "user": lambda process: process.user,
    "python": lambda process: process.python,
    "resident_bytes": lambda process: process.live["rss_bytes"],
    "resident_max_bytes": lambda process: process.live["rss_max_bytes"],
    "limit_bytes": lambda process: process.limit_bytes,
    "headroom_bytes": lambda process: process.headroom_bytes,
    "running_tasks": lambda process: process.live["running"],
    "samples": lambda process: process.live["samples_written"],
    "samples_late": lambda process: process.live["samples_late"],
    "sampler_cpu_seconds": lambda process: (process.live["sampler_cpu_ns"] or 0) / 1e9,
    "tasks_dropped": lambda process: process.live["tasks_dropped"],
    "fallbacks": lambda process: [name for name, bad in process.fallbacks.items() if bad],
    "devices": lambda process: [
        {name: device[name] for name in DEVICE_FIELDS} for device in process.devices
    ],
}


def _process_fields(process: LivingProcess) -> dict[str, int | None]:
    """The RUNNING_FIELDS that all tasks of a process share."""
    return {
        "process_resident_bytes": process.live["rss_bytes"],
        "process_limit_bytes": process.limit_bytes,
        "process_headroom_bytes": process.headroom_bytes,
    }


def running_lines(processes: Iterable[LivingProcess]) -> list[str]:
    """One line for each running task: its record and RUNNING_FIELDS."""
    lines = []
    for process in processes:
        shared = _compact(_process_fields(process))[1:]
        lines += [
            f'{task.record.to_json()[:-1]},"running_seconds":{round(task.seconds, 6)},{shared}'
            for task in process.running
        ]
    return lines


def running_dicts(processes: Iterable[LivingProcess]) -> list[dict[str, Any]]:
    """The same as dicts, for a reader on this machine."""
    return [
        task.record.to_dict()
        | {"running_seconds": round(task.seconds, 6)}
        | _process_fields(process)
        for process in processes
        for task in process.running
    ]


def _compact(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


def processes_text(living: LivingProcesses) -> str:
    """The answer of /dwsr/processes."""
    return _compact(
        {
            "processes": [
                {name: value(process) for name, value in PROCESS_FIELDS.items()}
                for process in living.processes
            ],
            "processes_dropped": living.dropped,
            "boards_unreadable": living.unreadable,
        }
    )
