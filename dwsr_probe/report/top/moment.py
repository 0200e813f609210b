"""One look: the processes, what runs in them, and what has ended since the look before. Made by
watch.py and port.py, added up by picture.py.

What is in it was written by others: figures are checked here, names wherever they are shown.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

from dwsr_probe.export.totals import checked_devices
from dwsr_probe.record import growth_of, largest_device
from dwsr_probe.report.words import line_of

RECORDS_MOST = 5_000  # of one look: a long run is taken in bit by bit, and the view stays live


class WatchError(Exception):
    """There is nothing to look at, or not now; the text says why."""


class TaskKey(NamedTuple):
    """What identifies a running task, everywhere: process, thread and start of its record. Texts,
    because a port may send anything."""

    process: str
    thread: str
    start: str


def task_key(process, thread, start):
    return TaskKey(str(process), str(thread), str(start))


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
    late: float = 0
    cpu_s: float = 0.0
    dropped: float = 0
    fallbacks: tuple = ()
    # dicts with the board's names: device, name, live_bytes, ...
    devices: list = field(default_factory=list)
    state: str = "running"  # or killed, died (without a task), failed, ended


@dataclass
class TaskRow:
    key: TaskKey
    pid: str
    name: str
    seconds: float | None
    live: float | None
    peak: float | None
    limit: float | None = None  # of its process
    gpu_peak: float | None = None
    rate: float | None = None  # of live bytes, per second
    chance: float | None = None  # to exceed what its process has left


@dataclass
class Moment:
    processes: list = field(default_factory=list)
    tasks: list = field(default_factory=list)
    records: list = field(default_factory=list)  # that have ended since the last look: dicts
    lost: int = 0
    more_processes: int = 0
    unreadable: int = 0
    behind: bool = False  # there are more records to read at once
    # pid → how its process ended: ok, error, killed; None: without a word
    gone: dict = field(default_factory=dict)
    ended: str = ""  # the job has, and how
    stale: bool = False  # later looks have failed
    trouble: str = ""  # why, or what else does not work


def number(value):
    """A figure that can be one; else None."""
    return value if type(value) in (int, float) and 0 <= value < 1 << 63 else None


def own_peak(get):
    """Of a record by its fields; where allocations are not accounted, the growth of its process."""
    peak = number(get("alloc_peak_bytes"))
    return (
        growth_of(number(get("rss_peak_bytes")), number(get("rss_before_bytes")))
        if peak is None
        else peak
    )


def name_of(program, worker):
    """Of a process: its Dask worker's name with the program, unless that says it already."""
    return f"{worker} ({program})" if worker and program != f"worker {worker}" else program


def pid_text(value):
    """Shown as it is: of a port it may be anything."""
    return line_of(str(value), 32)


def task_of(get, pid, seconds, limit):
    """A running task. get: a field of its record."""
    devices = checked_devices(get("gpu"))
    return TaskRow(
        task_key(get("process"), get("thread"), get("start")),
        pid,
        str(get("task_name")),
        seconds,
        number(get("alloc_end_bytes")),
        own_peak(get),
        limit,
        largest_device(devices) if devices else None,
    )
