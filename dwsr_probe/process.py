"""Processes by pid and start time: pids recur, a pair of pid and start time does not.

Called by everything that asks whether the process of a board still exists.
"""

from __future__ import annotations

import os
from functools import cache


def process_key(pid: int, start: float) -> str:
    """The field `process` of records: the pid and the moment, in epoch seconds, when the
    measurement of the process began. A process that calls exec begins a second time."""
    return f"{pid}-{int(start * 1e6)}"


def start_ticks(pid: int) -> int | None:
    """When a process started, in ticks of the kernel's clock. None if there is no such process, or
    if it has ended and its parent has not waited for it yet."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as stat:
            fields = stat.read().rpartition(b")")[2].split()
    except OSError:
        return None
    return None if fields[0] in (b"Z", b"X") else int(fields[19])


def process_exists(pid: int, ticks: int | None) -> bool:
    """ticks: start_ticks of the process that is meant."""
    return ticks is not None and start_ticks(pid) == ticks


@cache
def own_pid_namespace() -> int:
    """The inode of this process's pid namespace; 0 if it is not known."""
    try:
        return os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        return 0
