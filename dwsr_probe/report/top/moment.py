"""One moment: the processes, what runs in them, and what has ended since the moment before. Made by
watch.py and port.py, added up by picture.py.

What is in it was written by others: figures are checked here, names wherever they are shown.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from dwsr_probe.export.totals import checked_devices
from dwsr_probe.live.wire import TaskIdentity, task_identity
from dwsr_probe.predict.group import Group, group_of
from dwsr_probe.record import growth_of, largest_device_peak, needed_bytes
from dwsr_probe.words import line_of

_CHAIN_MOST = 256  # functions
RECORDS_MOST = 5_000  # of one moment: a long run is read in pieces, and the screen stays live


class WatchError(Exception):
    """There is nothing to show, or not now; the text says why."""


@dataclass
class ProcessRow:
    pid: str
    name: str
    run: str = ""
    rss: float | None = None
    rss_max: float | None = None
    limit: float | None = None
    headroom: float | None = None
    running: int = 0
    samples: float = 0
    samples_late: float = 0
    sampler_cpu_s: float = 0.0
    tasks_dropped: float = 0
    fallbacks: tuple[str, ...] = ()
    # dicts with the board's names: device, name, live_bytes, ...
    devices: list[dict[str, Any]] = field(default_factory=list)
    state: str = "running"  # or killed, died (without a task), failed, ended


@dataclass
class TaskRow:
    """name: what the screen calls it: its task name, until picture.py knows its row's label."""

    identity: TaskIdentity
    pid: str
    name: str
    seconds: float | None
    live: float | None
    peak: float | None
    limit: float | None = None  # of its process
    gpu_peak: float | None = None
    rate: float | None = None  # of live bytes, per second
    overrun_ratio: float | None = None  # probability to exceed what its process has left
    task_name: str = ""
    group: Group | None = None  # None: of its name alone

    @property
    def words(self) -> tuple[str, ...]:
        """What the filter finds it by."""
        return (self.name, self.task_name, *(self.group.chain if self.group else ()))


@dataclass
class Moment:
    processes: list[ProcessRow] = field(default_factory=list)
    tasks: list[TaskRow] = field(default_factory=list)
    # that have ended since the last moment
    records: list[dict[str, Any]] = field(default_factory=list)
    records_lost: int = 0
    processes_dropped: int = 0
    boards_unreadable: int = 0
    behind: bool = False  # there are more records to read at once
    # pid → how its process ended: ok, error, killed; None: it did not say
    end_states: dict[str, str | None] = field(default_factory=dict)
    job_end: str = ""  # how the job has ended; empty: it has not
    stale: bool = False  # later reads have failed
    trouble: str = ""  # why, or what else does not work


class Watch(Protocol):
    """What `top` reads: watch.py's boards and runs, port.py's ports."""

    title: str
    interval_s: float  # between two reads, unless the user says otherwise

    def read(self) -> Moment:
        """WatchError."""


def valid_number(value: Any) -> float | None:
    """The value if it is a number that a figure can have; else None."""
    return value if type(value) in (int, float) and 0 <= value < 1 << 63 else None


def _valid_bytes(value: Any) -> int | None:
    number = valid_number(value)
    return None if number is None else int(number)


def own_peak(get: Callable[[str], Any]) -> float | None:
    """Own peak of a task; where allocations are not accounted, or the own peak may miss memory,
    the growth of its process. get: gives a field of its record."""
    reason = get("attribution_reason")
    return needed_bytes(
        _valid_bytes(get("alloc_peak_bytes")),
        growth_of(_valid_bytes(get("rss_peak_bytes")), _valid_bytes(get("rss_before_bytes"))),
        reason if isinstance(reason, str) else None,
        _valid_bytes(get("overlap")),
    )


def process_title(program: str, worker: str) -> str:
    """The name of a process's Dask worker with the program, unless the program has that name."""
    return f"{worker} ({program})" if worker and program != f"worker {worker}" else program


def pid_text(value: Any) -> str:
    """For the screen: a port may send anything."""
    return line_of(str(value), 32)


def row_group(get: Callable[[str], Any]) -> Group:
    """The row that a task belongs to. get: gives a field of its record."""
    operation, chain = get("operation"), get("chain")
    if not isinstance(chain, list) or not all(isinstance(name, str) for name in chain):
        chain = None
    return group_of(
        str(get("task_name")),
        operation if isinstance(operation, str) else None,
        chain and chain[:_CHAIN_MOST],
    )


def task_row(
    get: Callable[[str], Any], pid: str, seconds: float | None, limit: float | None
) -> TaskRow:
    """A running task. get: gives a field of its record. limit: of its process."""
    devices, group = checked_devices(get("gpu")), row_group(get)
    return TaskRow(
        task_identity(get),
        pid,
        group.name,
        seconds,
        valid_number(get("alloc_end_bytes")),
        own_peak(get),
        limit,
        largest_device_peak(devices) if devices else None,
        task_name=str(get("task_name")),
        group=group,
    )
