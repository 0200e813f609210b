"""The dashboard `worker`. What does one process do, and how near is it to its limit?"""

from panels import ROOM_STEPS, dashboard, grid, lines, link, number
from queries import BUSY, ROOM, SLOT, TASK, WORKER

worker = dashboard(
    WORKER,
    "Worker",
    "One process: what runs in it now, and what its memory is made of.",
    (
        (
            "Now",
            (
                number(
                    "Headroom",
                    "Share of the limit that is left.",
                    "percentunit",
                    f"min({ROOM})",
                    ROOM_STEPS,
                ),
                number(
                    "Resident",
                    "Size of the process in memory.",
                    "bytes",
                    "sum(dwsr_process_resident_bytes)",
                ),
                number(
                    "Limit",
                    "Dask's for the worker, or the cgroup's, or the machine's memory.",
                    "bytes",
                    "min(dwsr_process_limit_bytes)",
                ),
                number("Running tasks", "Now.", "short", "sum(dwsr_process_running_tasks)"),
                number(
                    "Longest running",
                    "How long the oldest of the running tasks has been at it.",
                    "s",
                    "max(dwsr_slot_running_seconds)",
                ),
                number(
                    "Spilled",
                    "What Dask has moved to disk.",
                    "bytes",
                    "sum(dwsr_process_spilled_bytes)",
                ),
                grid(
                    "Running tasks",
                    "Each slot is a thread that runs a task. Own bytes: allocated by the task"
                    " itself.",
                    ("pid", "slot", "task_name"),
                    ("Own peak so far", "bytes", f"dwsr_slot_peak_bytes {BUSY}", None),
                    ("Own bytes now", "bytes", f"dwsr_slot_live_bytes {BUSY}", None),
                    ("Running", "s", f"dwsr_slot_running_seconds {BUSY}", None),
                    links=[("task_name", "This task", link(TASK, task_name="task_name"))],
                    span=14,
                ),
                grid(
                    "Process",
                    "What it is.",
                    ("instance", "pid", "program", "worker", "run", "user", "python"),
                    (None, "short", "dwsr_process_info", None),
                    span=10,
                ),
            ),
        ),
        (
            "Memory",
            (
                lines(
                    "Memory",
                    "Resident size and limit; managed: what Dask keeps by its own sum; unowned:"
                    " live bytes that no task allocated.",
                    "bytes",
                    ("resident {{pid}} @ {{instance}}", "dwsr_process_resident_bytes"),
                    ("highest {{pid}} @ {{instance}}", "dwsr_process_resident_max_bytes"),
                    ("managed {{pid}} @ {{instance}}", "dwsr_process_managed_bytes"),
                    ("unowned {{pid}} @ {{instance}}", "dwsr_process_unowned_bytes"),
                    ("limit {{pid}} @ {{instance}}", "dwsr_process_limit_bytes"),
                    span=24,
                ),
                lines(
                    "Headroom",
                    "What the process may still take: others in its cgroup have taken their part,"
                    " page cache has not.",
                    "bytes",
                    ("{{pid}} @ {{instance}}", "dwsr_process_headroom_bytes"),
                ),
                lines(
                    "Spilled",
                    "What Dask has moved to disk.",
                    "bytes",
                    ("{{pid}} @ {{instance}}", "dwsr_process_spilled_bytes"),
                ),
            ),
        ),
        (
            "Slots",
            (
                lines(
                    "Own bytes now",
                    "Of the running tasks, stacked: what they hold together.",
                    "bytes",
                    (SLOT, f"dwsr_slot_live_bytes {BUSY}"),
                    stacked=True,
                ),
                lines(
                    "Own peak so far",
                    "Of the running tasks.",
                    "bytes",
                    (SLOT, f"dwsr_slot_peak_bytes {BUSY}"),
                ),
                lines(
                    "Running for",
                    "A line that keeps rising is a task that does not end.",
                    "s",
                    (SLOT, f"dwsr_slot_running_seconds {BUSY}"),
                ),
                lines(
                    "Running tasks",
                    "Slots that are busy.",
                    "short",
                    ("{{pid}} @ {{instance}}", "dwsr_process_running_tasks"),
                ),
            ),
        ),
    ),
    variable=("pid", "Process", "dwsr_process_info"),
)
