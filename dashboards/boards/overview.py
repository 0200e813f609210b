"""The dashboard `overview`. Who uses how much memory, against the limit?"""

from panels import (
    NONE_STEPS,
    ROOM_STEPS,
    USED_STEPS,
    buckets,
    dashboard,
    grid,
    increase_within,
    lines,
    link,
    number,
    rate,
    with_process_labels,
)
from queries import (
    FAILED,
    KILLED,
    OVERVIEW,
    OWN_PEAK,
    PEAK_OF_LIMIT,
    ROOM,
    TASK,
    USED,
    WHO,
    WORKER,
    outcomes,
)

overview = dashboard(
    OVERVIEW,
    "Overview",
    "Who uses how much memory, against the limit.",
    (
        (
            "Is there room?",
            (
                number(
                    "Least headroom",
                    "Of the process that is nearest to its limit: the share that is left.",
                    "percentunit",
                    f"min({ROOM})",
                    ROOM_STEPS,
                ),
                number(
                    "Killed tasks",
                    "In the time shown: tasks whose process died while they ran.",
                    "short",
                    f"sum({increase_within(KILLED)})",
                    NONE_STEPS,
                ),
                number(
                    "Failed tasks",
                    "In the time shown: tasks that raised an exception.",
                    "short",
                    f"sum({increase_within(FAILED)})",
                    NONE_STEPS,
                ),
                number(
                    "Running tasks",
                    "Now, in all processes.",
                    "short",
                    "sum(dwsr_process_running_tasks)",
                ),
                number(
                    "Tasks per second",
                    "Tasks that ended, of all names and outcomes.",
                    "ops",
                    f"sum({rate('dwsr_tasks_total')})",
                ),
                number(
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
                grid(
                    "Processes",
                    "Each process now. The limit is Dask's for the worker, or the cgroup's, or the"
                    " machine's memory.",
                    ("instance", "pid", "program", "worker"),
                    ("Used", "percentunit", with_process_labels(f"({USED})"), USED_STEPS),
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
                    links=[("pid", "This worker", link(WORKER, instance="instance", pid="pid"))],
                ),
                lines(
                    "Used of the limit",
                    "Share of the limit that is in use, by the process and by others in its cgroup,"
                    " without page cache. Dask pauses workers at 80 % and ends them at 95 %.",
                    "percentunit",
                    (WHO, with_process_labels(f"({USED})")),
                    steps=USED_STEPS,
                    top=1,
                ),
                lines(
                    "Resident size",
                    "Of each process, and its limit.",
                    "bytes",
                    (WHO, with_process_labels("dwsr_process_resident_bytes")),
                    (f"limit of {WHO}", with_process_labels("dwsr_process_limit_bytes")),
                ),
            ),
        ),
        (
            "Tasks by name",
            (
                grid(
                    "Tasks",
                    "What one task of each name needed at most, since the start. Own peak: bytes"
                    " that the task itself allocated, whoever ran beside it.",
                    ("task_name",),
                    ("Own peak", "bytes", OWN_PEAK, None),
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
                        f"sum by (task_name) ({increase_within('dwsr_tasks_total')})",
                        None,
                    ),
                    (
                        "Killed",
                        "short",
                        f"sum by (task_name) ({increase_within(KILLED)})",
                        NONE_STEPS,
                    ),
                    links=[("task_name", "This task", link(TASK, task_name="task_name"))],
                    height=10,
                ),
                outcomes(),
                lines(
                    "Where the time goes",
                    "Seconds of tasks that ended, per second: how many ran at once, by name.",
                    "short",
                    (
                        "{{task_name}}",
                        f"sum by (task_name) ({rate('dwsr_task_duration_seconds_total')})",
                    ),
                    stacked=True,
                ),
                buckets(
                    "Own peaks of all tasks",
                    "How many tasks had a peak in which range; the ranges grow by fours.",
                    "dwsr_peak_bytes_bucket",
                    span=24,
                ),
            ),
        ),
    ),
)
