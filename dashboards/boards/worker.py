"""The dashboard `worker`. What does one process do, and how near is it to its limit?"""

from panels import (
    HEADROOM_STEPS,
    dashboard,
    stat_panel,
    table_panel,
    time_series_panel,
)
from queries import HEADROOM_SHARE, JOIN_TASK, SLOT_LEGEND, TASK_LINK, WORKER_UID

worker = dashboard(
    WORKER_UID,
    "Worker",
    "One process: what runs in it now, and what its memory is made of.",
    (
        (
            "Now",
            (
                stat_panel(
                    "Headroom",
                    "Share of the limit that is left.",
                    "percentunit",
                    f"min({HEADROOM_SHARE})",
                    HEADROOM_STEPS,
                ),
                stat_panel(
                    "Resident",
                    "Size of the process in memory.",
                    "bytes",
                    "sum(dwsr_process_resident_bytes)",
                ),
                stat_panel(
                    "Limit",
                    "Dask's for the worker, or the cgroup's, or the machine's memory.",
                    "bytes",
                    "min(dwsr_process_limit_bytes)",
                ),
                stat_panel("Running tasks", "Now.", "short", "sum(dwsr_process_running_tasks)"),
                stat_panel(
                    "Longest running",
                    "How long the oldest of the running tasks has been at it.",
                    "s",
                    "max(dwsr_slot_running_seconds)",
                ),
                stat_panel(
                    "Spilled",
                    "What Dask has moved to disk.",
                    "bytes",
                    "sum(dwsr_process_spilled_bytes)",
                ),
                table_panel(
                    "Running tasks",
                    "Each slot is a thread that runs a task. Own bytes: allocated by the task"
                    " itself.",
                    ("pid", "slot", "operation", "task_name"),
                    ("Own peak so far", "bytes", f"dwsr_slot_peak_bytes {JOIN_TASK}", None),
                    ("Own bytes now", "bytes", f"dwsr_slot_live_bytes {JOIN_TASK}", None),
                    ("Running", "s", f"dwsr_slot_running_seconds {JOIN_TASK}", None),
                    links=[TASK_LINK],
                    span=14,
                ),
                table_panel(
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
                time_series_panel(
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
                time_series_panel(
                    "Headroom",
                    "What the process may still take: others in its cgroup have taken their part,"
                    " page cache has not.",
                    "bytes",
                    ("{{pid}} @ {{instance}}", "dwsr_process_headroom_bytes"),
                ),
                time_series_panel(
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
                time_series_panel(
                    "Own bytes now",
                    "Of the running tasks, stacked: what they hold together.",
                    "bytes",
                    (SLOT_LEGEND, f"dwsr_slot_live_bytes {JOIN_TASK}"),
                    stacked=True,
                ),
                time_series_panel(
                    "Own peak so far",
                    "Of the running tasks.",
                    "bytes",
                    (SLOT_LEGEND, f"dwsr_slot_peak_bytes {JOIN_TASK}"),
                ),
                time_series_panel(
                    "Running for",
                    "A line that keeps rising is a task that does not end.",
                    "s",
                    (SLOT_LEGEND, f"dwsr_slot_running_seconds {JOIN_TASK}"),
                ),
                time_series_panel(
                    "Running tasks",
                    "Slots that are busy.",
                    "short",
                    ("{{pid}} @ {{instance}}", "dwsr_process_running_tasks"),
                ),
            ),
        ),
    ),
    variables=(("pid", "Process", "dwsr_process_info", False),),
)
