"""The dashboard `overview`. Who uses how much memory, against the limit?"""

from panels import (
    HEADROOM_STEPS,
    NONE_STEPS,
    USED_STEPS,
    dashboard,
    dashboard_link,
    heatmap_panel,
    increase_within,
    rate,
    stat_panel,
    table_panel,
    time_series_panel,
    with_process_labels,
)
from queries import (
    FAILED,
    HEADROOM_SHARE,
    KILLED,
    OVERVIEW_UID,
    OWN_PEAK_MAX,
    PEAK_OF_LIMIT,
    PROCESS_LEGEND,
    TASK_LINK,
    USED_SHARE,
    WORKER_UID,
    outcomes_panel,
)

overview = dashboard(
    OVERVIEW_UID,
    "Overview",
    "Who uses how much memory, against the limit.",
    (
        (
            "Is there room?",
            (
                stat_panel(
                    "Least headroom",
                    "Of the process that is nearest to its limit: the share that is left.",
                    "percentunit",
                    f"min({HEADROOM_SHARE})",
                    HEADROOM_STEPS,
                ),
                stat_panel(
                    "Killed tasks",
                    "In the time shown: tasks whose process died while they ran.",
                    "short",
                    f"sum({increase_within(KILLED)})",
                    NONE_STEPS,
                ),
                stat_panel(
                    "Failed tasks",
                    "In the time shown: tasks that raised an exception.",
                    "short",
                    f"sum({increase_within(FAILED)})",
                    NONE_STEPS,
                ),
                stat_panel(
                    "Running tasks",
                    "Now, in all processes.",
                    "short",
                    "sum(dwsr_process_running_tasks)",
                ),
                stat_panel(
                    "Tasks per second",
                    "Tasks that ended, of all operations and outcomes.",
                    "ops",
                    f"sum({rate('dwsr_tasks_total')})",
                ),
                stat_panel(
                    "Processes",
                    "Living processes with a probe.",
                    "short",
                    "count(dwsr_process_info)",
                ),
            ),
        ),
        (
            "Processes against their limits",
            (
                table_panel(
                    "Processes",
                    "Each process now. The limit is Dask's for the worker, or the cgroup's, or the"
                    " machine's memory.",
                    ("instance", "pid", "program", "worker"),
                    ("Used", "percentunit", with_process_labels(f"({USED_SHARE})"), USED_STEPS),
                    ("Resident", "bytes", with_process_labels("dwsr_process_resident_bytes"), None),
                    (
                        "Highest so far",
                        "bytes",
                        with_process_labels("dwsr_process_resident_max_bytes"),
                        None,
                    ),
                    ("Limit", "bytes", with_process_labels("dwsr_process_limit_bytes"), None),
                    ("Headroom", "bytes", with_process_labels("dwsr_process_headroom_bytes"), None),
                    (
                        "Running tasks",
                        "short",
                        with_process_labels("dwsr_process_running_tasks"),
                        None,
                    ),
                    links=[
                        (
                            "pid",
                            "This worker",
                            dashboard_link(WORKER_UID, instance="instance", pid="pid"),
                        )
                    ],
                ),
                time_series_panel(
                    "Used of the limit",
                    "Share of the limit that is in use, by the process and by others in its cgroup,"
                    " without page cache. Dask pauses workers at 80 % and ends them at 95 %.",
                    "percentunit",
                    (PROCESS_LEGEND, with_process_labels(f"({USED_SHARE})")),
                    steps=USED_STEPS,
                    top=1,
                ),
                time_series_panel(
                    "Resident size",
                    "Of each process, and its limit.",
                    "bytes",
                    (PROCESS_LEGEND, with_process_labels("dwsr_process_resident_bytes")),
                    (f"limit of {PROCESS_LEGEND}", with_process_labels("dwsr_process_limit_bytes")),
                ),
            ),
        ),
        (
            "Tasks by operation",
            (
                table_panel(
                    "Tasks",
                    "What one task of each operation needed at most, since the start. The operation"
                    " is the job's own function inside the task, task_name the prefix of its key."
                    " Own peak: bytes that the task itself allocated, whoever ran beside it.",
                    ("operation", "task_name"),
                    ("Own peak", "bytes", OWN_PEAK_MAX, None),
                    ("Of the limit", "percentunit", PEAK_OF_LIMIT, USED_STEPS),
                    (
                        "Growth of the process",
                        "bytes",
                        'dwsr_task_peak_max_bytes{kind="rss_growth"}',
                        None,
                    ),
                    ("Largest input", "bytes", "dwsr_task_input_max_bytes", None),
                    ("Longest", "s", "dwsr_task_duration_max_seconds", None),
                    (
                        "Tasks in the time shown",
                        "short",
                        f"sum by (task_name, operation) ({increase_within('dwsr_tasks_total')})",
                        None,
                    ),
                    (
                        "Killed",
                        "short",
                        f"sum by (task_name, operation) ({increase_within(KILLED)})",
                        NONE_STEPS,
                    ),
                    links=[TASK_LINK],
                    height=10,
                ),
                outcomes_panel(),
                time_series_panel(
                    "Where the time goes",
                    "Seconds of tasks that ended, per second: how many ran at once, by operation.",
                    "short",
                    (
                        "{{operation}}",
                        f"sum by (operation) ({rate('dwsr_task_duration_seconds_total')})",
                    ),
                    stacked=True,
                ),
                heatmap_panel(
                    "Own peaks of all tasks",
                    "How many tasks had a peak in which range; the ranges grow by fours.",
                    "dwsr_peak_bytes_bucket",
                    span=24,
                ),
            ),
        ),
    ),
)
