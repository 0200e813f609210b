"""The process row of a command that had no board: what wait4 reports about it.

Called by launch/__init__.py for programs other than Python, and for a program that a probed
process became by exec.
"""

from __future__ import annotations

import os

from dwsr_probe import _core
from dwsr_probe.process import process_key
from dwsr_probe.record import TaskRecord
from dwsr_probe.say import say

TYPE_CHECKING = False
if TYPE_CHECKING:
    from dwsr_probe.launch.command import Command, CommandEnd, Spawned
    from dwsr_probe.store import Store

_FLOOR_SLACK_BYTES = 2 << 20  # what the child still touches between its report and exec


def store_unprobed(
    store: Store,
    run: str,
    command: Command,
    spawned: Spawned,
    end: CommandEnd,
    *,
    started: float,
    ended: float,
    replaced: bool,
) -> None:
    """started, ended: epoch seconds. replaced: a probed process became this program by exec."""
    name = os.path.basename(command[0]) + (" (exec)" if replaced else "")
    if name.startswith("python") and not replaced:
        from dwsr_probe.boot.start import options_keep_probe_out

        why = (
            "-I, -S and -E keep it out"
            if options_keep_probe_out(command)
            else "this interpreter cannot load it"
        )
        say(f"{name} ran without the probe ({why}): only the whole process was measured")
    is_known = end.peak_bytes > spawned.floor_bytes + _FLOOR_SLACK_BYTES
    record = TaskRecord(
        kind="process",
        run=run,
        host=os.uname().nodename,
        pid=spawned.pid,
        process=process_key(spawned.pid, started),
        thread=spawned.pid,
        task_name=name,
        state=end.state,
        start=started,
        duration=ended - started,
        rss_peak_bytes=end.peak_bytes if is_known else None,
        rss_peak_source="kernel" if is_known else None,
        overlap=0,
        attribution="exact",
    )
    health = {
        "limit_bytes": _core.memory_limit(),
        "unprobed": True,
        "signal": end.signal,
        "peak_below_bytes": None if is_known else end.peak_bytes,
    }
    store.put_process(record, health)
