"""`python dashboards/build.py [DIRECTORY]`: writes the dashboards as JSON, the same bytes each
time. Needs grafana-foundation-sdk, for developers only.

The first row of each answers its question at a glance; below it, where to look next. README.md
says what each is for.
"""

import json
import sys
from pathlib import Path

from grafana_foundation_sdk.cog.encoder import JSONEncoder
from panels import (
    CHANCE_STEPS,
    NONE_STEPS,
    OUTCOMES,
    ROOM_STEPS,
    USED_STEPS,
    buckets,
    dashboard,
    grid,
    happened,
    lines,
    link,
    number,
    of_device,
    rate,
    told,
)

OVERVIEW, TASK, WORKER, GPU, PROBE = (
    "dwsr-overview",
    "dwsr-task",
    "dwsr-worker",
    "dwsr-gpu",
    "dwsr-probe-health",
)

WHO = "{{program}} {{pid}} @ {{instance}}"
USED = "1 - dwsr_process_headroom_bytes / dwsr_process_limit_bytes"
ROOM = "dwsr_process_headroom_bytes / dwsr_process_limit_bytes"
OWN_PEAK, OWN_PEAKS = (
    'dwsr_task_peak_max_bytes{kind="alloc"}',
    'dwsr_task_peak_bytes_total{kind="alloc"}',
)
PER_INPUT_BYTE = f"sum({rate(OWN_PEAKS)}) / sum({rate('dwsr_task_input_bytes_total')})"
# Each task against the limit of its own process. A Dask worker's port does not serve the ratio: one
# process is behind it.
PEAK_OF_LIMIT = (
    "(max by (job, instance, task_name) (dwsr_task_peak_max_ratio) or max by (job, instance,"
    f" task_name) ({OWN_PEAK}) / on (job, instance) group_left () max by (job, instance)"
    " (dwsr_process_limit_bytes unless on (job, instance) dwsr_task_peak_max_ratio))"
)
LIMIT_WHERE_IT_RUNS = "(dwsr_process_limit_bytes and on (job, instance, pid) dwsr_slot_busy)"
BOUND, RUNNING = (
    'dwsr_forecast_bound_bytes{kind="alloc"}',
    "{{task_name}} {{slot}}: {{pid}} @ {{target}}",
)
SCORED, EXCEEDED = (
    'dwsr_forecasts_scored_total{kind="alloc"}',
    'dwsr_forecasts_exceeded_total{kind="alloc"}',
)
KILLED, FAILED = 'dwsr_tasks_total{outcome="killed"}', 'dwsr_tasks_total{outcome="error"}'
PER_DEVICE = "max by (uuid, name)"
CACHED = of_device("(dwsr_device_pool_total_bytes - dwsr_device_pool_used_bytes)")
DEVICE_USED = f"{PER_DEVICE} ({of_device('dwsr_device_used_bytes')})"
DEVICE_TOTAL = f"{PER_DEVICE} ({of_device('dwsr_device_total_bytes')})"
NEEDED = f"({DEVICE_USED} - (sum by (uuid, name) ({CACHED}) or 0 * {DEVICE_USED})) / {DEVICE_TOTAL}"


def mean(total, by="", per=""):
    """Per task that has ended; by: labels of the answer, per: those of them that tasks are
    counted by, too."""
    return (
        f"sum by ({by}) ({rate(total)}) / on ({per}) group_left () sum by ({per})"
        f" ({rate('dwsr_tasks_total')})"
    )


def outcomes(title="Tasks per second, by outcome", span=12):
    return lines(
        title,
        "Tasks that ended, stacked. Killed: their process died while they ran.",
        "ops",
        ("{{outcome}}", f"sum by (outcome) ({rate('dwsr_tasks_total')})"),
        stacked=True,
        colors=OUTCOMES,
        span=span,
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
                    f"sum({happened(KILLED)})",
                    NONE_STEPS,
                ),
                number(
                    "Failed tasks",
                    "In the time shown: tasks that raised an exception.",
                    "short",
                    f"sum({happened(FAILED)})",
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
                    ("Used", "percentunit", told(f"({USED})"), USED_STEPS),
                    ("Resident", "bytes", told("dwsr_process_resident_bytes"), None),
                    ("Highest so far", "bytes", told("dwsr_process_resident_max_bytes"), None),
                    ("Limit", "bytes", told("dwsr_process_limit_bytes"), None),
                    ("Headroom", "bytes", told("dwsr_process_headroom_bytes"), None),
                    ("Running tasks", "short", told("dwsr_process_running_tasks"), None),
                    links=[("pid", "This worker", link(WORKER, instance="instance", pid="pid"))],
                ),
                lines(
                    "Used of the limit",
                    "Share of the limit that is in use, by the process and by others in its cgroup,"
                    " without page cache. Dask pauses workers at 80 % and ends them at 95 %.",
                    "percentunit",
                    (WHO, told(f"({USED})")),
                    steps=USED_STEPS,
                    top=1,
                ),
                lines(
                    "Resident size",
                    "Of each process, and its limit.",
                    "bytes",
                    (WHO, told("dwsr_process_resident_bytes")),
                    (f"limit of {WHO}", told("dwsr_process_limit_bytes")),
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
                        f"sum by (task_name) ({happened('dwsr_tasks_total')})",
                        None,
                    ),
                    ("Killed", "short", f"sum by (task_name) ({happened(KILLED)})", NONE_STEPS),
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

task = dashboard(
    TASK,
    "Task",
    "One kind of task: its peak, how it grows with the input, how it is distributed.",
    (
        (
            "How much does one $task_name need?",
            (
                number(
                    "Own peak, most",
                    "The largest number of live bytes that one task itself had allocated.",
                    "bytes",
                    f"max({OWN_PEAK})",
                ),
                number(
                    "Of the limit",
                    "The largest share that one task took of the limit of its own process.",
                    "percentunit",
                    f"max({PEAK_OF_LIMIT})",
                    USED_STEPS,
                ),
                number(
                    "Own peak, mean", "Of the tasks that ended lately.", "bytes", mean(OWN_PEAKS)
                ),
                number(
                    "Peak per input byte",
                    "Mean own peak over mean input of the tasks that ended lately. Where it is"
                    " steady, a block twice as large needs twice as much.",
                    "suffix:×",
                    PER_INPUT_BYTE,
                ),
                number(
                    "Tasks per second",
                    "That ended, with any outcome.",
                    "ops",
                    f"sum({rate('dwsr_tasks_total')})",
                ),
                number(
                    "Killed",
                    "In the time shown: their process died while they ran.",
                    "short",
                    f"sum({happened(KILLED)})",
                    NONE_STEPS,
                ),
            ),
        ),
        (
            "Peak",
            (
                lines(
                    "Mean peak",
                    "Of the tasks that ended lately. alloc: the task's own bytes; rss_growth: how"
                    " much the process grew meanwhile, neighbours included; cupy: own bytes on a"
                    " device.",
                    "bytes",
                    ("{{kind}} {{device}}", mean("dwsr_task_peak_bytes_total", "kind, device")),
                ),
                lines(
                    "Largest peak",
                    "Of one task since the start, by kind, and the limits of the processes that run"
                    " such a task now.",
                    "bytes",
                    ("{{kind}} {{device}}", "max by (kind, device) (dwsr_task_peak_max_bytes)"),
                    ("limit of {{pid}} @ {{instance}}", LIMIT_WHERE_IT_RUNS),
                ),
            ),
        ),
        (
            "Forecast (of dwsr-probe predict serve)",
            (
                number(
                    "99 % bound",
                    "Of one task with the largest inputs seen: own peak that is exceeded once in a"
                    " hundred times.",
                    "bytes",
                    f"max({BOUND})",
                ),
                number(
                    "Of the limit",
                    "The same, as a share of the limit of the process that runs such a task now; of"
                    " several the smallest.",
                    "percentunit",
                    f"max({BOUND}) / min({LIMIT_WHERE_IT_RUNS})",
                    USED_STEPS,
                ),
                number(
                    "Error",
                    "Of the expected own peak, relative; the newest tasks weigh most.",
                    "percentunit",
                    'max(dwsr_forecast_error_ratio{kind="alloc"})',
                ),
                number(
                    "Bound exceeded",
                    "In the time shown: share of tasks whose own peak was above its 99 % bound."
                    " About 1 % is right.",
                    "percentunit",
                    f"sum({happened(EXCEEDED)}) / sum({happened(SCORED)})",
                ),
                number(
                    "Trust",
                    "0: nothing was seen, 1: low, 2: fair, 3: good.",
                    "short",
                    'min(dwsr_forecast_trust{kind="alloc"})',
                ),
                number(
                    "Overrun, most probable",
                    "Of the running tasks: the largest probability that one exceeds what its"
                    " process has left for it.",
                    "percentunit",
                    "max(dwsr_forecast_overrun_ratio)",
                    CHANCE_STEPS,
                ),
                lines(
                    "Expected peak and bound",
                    "Own peak of one task with the largest inputs seen, the largest measured so"
                    " far, and the limits of the processes that run such a task now.",
                    "bytes",
                    ("expected", 'max(dwsr_forecast_mean_bytes{kind="alloc"})'),
                    ("99 % bound", f"max({BOUND})"),
                    ("largest so far", f"max({OWN_PEAK})"),
                    ("limit of {{pid}} @ {{instance}}", LIMIT_WHERE_IT_RUNS),
                ),
                lines(
                    "Running tasks: probability of an overrun",
                    "That a running task exceeds what its process has left for it, given what it"
                    " has taken already.",
                    "percentunit",
                    (RUNNING, "dwsr_forecast_overrun_ratio"),
                    steps=CHANCE_STEPS,
                    top=1,
                ),
                lines(
                    "Running tasks: room",
                    "What the process has left for each: its own live bytes and the headroom.",
                    "bytes",
                    (RUNNING, "dwsr_forecast_room_bytes"),
                ),
                lines(
                    "Running tasks: time until the room is gone",
                    "At the pace of the last half minute. No line: it does not grow.",
                    "s",
                    (RUNNING, "dwsr_forecast_overrun_seconds"),
                ),
                lines(
                    "Error",
                    "Of what was expected, relative; the newest tasks weigh most. alloc: own peak;"
                    " rss: growth of the process; gpu: on a device; output: what it returns.",
                    "percentunit",
                    ("{{kind}}", "max by (kind) (dwsr_forecast_error_ratio)"),
                ),
                lines(
                    "Bounds exceeded",
                    "Share of the tasks that ended lately above their 99 % bound. About 1 % is"
                    " right.",
                    "percentunit",
                    (
                        "{{kind}}",
                        (
                            f"sum by (kind) ({rate('dwsr_forecasts_exceeded_total')}) / (sum by"
                            f" (kind) ({rate('dwsr_forecasts_scored_total')}) > 0)"
                        ),
                    ),
                ),
                lines(
                    "Reward per forecast",
                    "Mean log score of the tasks that ended lately: how probable the forecast held"
                    " what came. Higher is better.",
                    "short",
                    (
                        "{{kind}}",
                        (
                            "sum by (kind) (delta(dwsr_forecast_reward[$__rate_interval])) / (sum"
                            " by (kind) (increase(dwsr_forecasts_scored_total[$__rate_interval]))"
                            " > 0)"
                        ),
                    ),
                    signed=True,
                ),
                lines(
                    "Trust",
                    "0: nothing was seen, 1: low, 2: fair, 3: good.",
                    "short",
                    ("{{kind}}", "min by (kind) (dwsr_forecast_trust)"),
                    top=3,
                ),
            ),
        ),
        (
            "Distribution (where dwsr-probe serves itself: not on a Dask worker's port)",
            (
                buckets(
                    "Own peaks",
                    "How many tasks had a peak in which range; the ranges grow by fours.",
                    "dwsr_task_alloc_peak_bytes_bucket",
                ),
                lines(
                    "Own peaks, quantiles",
                    "Estimated within ranges that grow by fours: good for a change, not for a"
                    " figure.",
                    "bytes",
                    *(
                        (
                            f"{q} %",
                            (
                                f"histogram_quantile({q / 100}, sum by (le)"
                                f" ({rate('dwsr_task_alloc_peak_bytes_bucket')}))"
                            ),
                        )
                        for q in (50, 90, 99)
                    ),
                ),
            ),
        ),
        (
            "Growth with the input",
            (
                lines(
                    "Mean bytes per task",
                    "Input, own peak and output of the tasks that ended lately.",
                    "bytes",
                    ("input", mean("dwsr_task_input_bytes_total")),
                    ("own peak", mean(OWN_PEAKS)),
                    ("output", mean("dwsr_task_output_bytes_total")),
                ),
                lines(
                    "Peak and output per input byte",
                    "Means over means. A steady line: peak grows in proportion to the input, and"
                    " the block that fits can be computed.",
                    "suffix:×",
                    ("own peak / input", PER_INPUT_BYTE),
                    (
                        "output / input",
                        (
                            f"sum({rate('dwsr_task_output_bytes_total')}) /"
                            f" sum({rate('dwsr_task_input_bytes_total')})"
                        ),
                    ),
                ),
                lines(
                    "Largest input and output",
                    "Of one task since the start.",
                    "bytes",
                    ("input", "max(dwsr_task_input_max_bytes)"),
                    ("output", "max(dwsr_task_output_max_bytes)"),
                ),
                lines(
                    "Duration",
                    "Mean of the tasks that ended lately, and the longest since the start.",
                    "s",
                    ("mean", mean("dwsr_task_duration_seconds_total")),
                    ("longest", "max(dwsr_task_duration_max_seconds)"),
                ),
                outcomes(span=24),
            ),
        ),
    ),
    variable=("task_name", "Task", "dwsr_tasks_total"),
)

BUSY = "* on (job, instance, pid, slot) group_left (task_name) dwsr_slot_busy"
SLOT = "slot {{slot}}: {{task_name}}"
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

DEVICE = "{{name}} {{uuid}}"
ON = "{{pid}} on device {{device}}"
gpu = dashboard(
    GPU,
    "GPU",
    "Device memory: what the driver says, what CuPy's pool holds, what each task needs.",
    (
        (
            "Is there room on the devices?",
            (
                number(
                    "Fullest device",
                    "Share of its memory in use by everybody, without what CuPy's pools only keep"
                    " for later.",
                    "percentunit",
                    f"max({NEEDED})",
                    USED_STEPS,
                ),
                number(
                    "Devices",
                    "On which a process has allocated.",
                    "short",
                    f"count({PER_DEVICE} (dwsr_device_info))",
                ),
                number(
                    "Kept by pools",
                    "Held by CuPy's pools and not in use: free for the same process only.",
                    "bytes",
                    f"sum({CACHED})",
                ),
                number(
                    "Largest peak of a task",
                    "On one device, of all names.",
                    "bytes",
                    'max(dwsr_task_peak_max_bytes{kind="cupy"})',
                ),
                number(
                    "Unseen",
                    "In use of the pools, but not allocated through the hook: belongs to no task.",
                    "bytes",
                    "sum(dwsr_device_unseen_bytes)",
                ),
                number(
                    "Pinned",
                    "Page-locked host memory that CuPy has given out.",
                    "bytes",
                    "sum(dwsr_process_pinned_bytes)",
                ),
                grid(
                    "Devices",
                    "Each device now, as the driver says.",
                    ("name", "uuid"),
                    ("Needed", "percentunit", NEEDED, USED_STEPS),
                    ("Used", "bytes", of_device("dwsr_device_used_bytes"), None),
                    ("Total", "bytes", of_device("dwsr_device_total_bytes"), None),
                    (
                        "Utilisation",
                        "percentunit",
                        of_device("dwsr_device_utilisation_ratio"),
                        None,
                    ),
                    height=6,
                ),
            ),
        ),
        (
            "Devices",
            (
                lines(
                    "Used",
                    "By everybody, as the driver says, and what the device has.",
                    "bytes",
                    (DEVICE, DEVICE_USED),
                    (f"total {DEVICE}", DEVICE_TOTAL),
                ),
                lines(
                    "By process",
                    "Used by each of our processes, as the driver says.",
                    "bytes",
                    (f"{{{{pid}}}}: {DEVICE}", of_device("dwsr_device_process_bytes")),
                ),
                lines(
                    "Utilisation",
                    "Share of time in which a kernel ran.",
                    "percentunit",
                    (DEVICE, f"{PER_DEVICE} ({of_device('dwsr_device_utilisation_ratio')})"),
                    top=1,
                ),
                lines(
                    "Pinned host memory",
                    "Page-locked, given out by CuPy.",
                    "bytes",
                    ("{{pid}} @ {{instance}}", "dwsr_process_pinned_bytes"),
                ),
            ),
        ),
        (
            "CuPy's allocators",
            (
                lines(
                    "Pool",
                    "In use of CuPy's pool, and what it holds of the device.",
                    "bytes",
                    (f"used {ON}", "dwsr_device_pool_used_bytes"),
                    (f"holds {ON}", "dwsr_device_pool_total_bytes"),
                ),
                lines(
                    "Live bytes",
                    "Of each process from CuPy's allocators, their peak, and what is in use of the"
                    " pool without having come through the hook.",
                    "bytes",
                    (f"live {ON}", "dwsr_device_live_bytes"),
                    (f"peak {ON}", "dwsr_device_peak_bytes"),
                    (f"unseen {ON}", "dwsr_device_unseen_bytes"),
                ),
            ),
        ),
        (
            "Tasks",
            (
                grid(
                    "Largest peaks by name",
                    "What one task of each name needed at most on a device, since the start.",
                    ("task_name", "device"),
                    ("Own peak", "bytes", 'dwsr_task_peak_max_bytes{kind="cupy"}', None),
                    links=[("task_name", "This task", link(TASK, task_name="task_name"))],
                    span=12,
                ),
                lines(
                    "Mean peak by name",
                    "Own bytes on a device, of the tasks that ended lately.",
                    "bytes",
                    (
                        "{{task_name}} on device {{device}}",
                        mean(
                            'dwsr_task_peak_bytes_total{kind="cupy"}',
                            "task_name, device",
                            per="task_name",
                        ),
                    ),
                ),
                lines(
                    "Running tasks: own bytes now",
                    "On a device, stacked.",
                    "bytes",
                    (f"{SLOT} on device {{{{device}}}}", f"dwsr_slot_device_live_bytes {BUSY}"),
                    stacked=True,
                ),
                lines(
                    "Running tasks: own peak so far",
                    "On a device.",
                    "bytes",
                    (f"{SLOT} on device {{{{device}}}}", f"dwsr_slot_device_peak_bytes {BUSY}"),
                ),
            ),
        ),
    ),
)

probe = dashboard(
    PROBE,
    "Probe health",
    "Whether the figures can be trusted, and what they cost.",
    (
        (
            "Can the figures be trusted?",
            (
                number(
                    "Probes not running",
                    "Processes whose probe has stopped.",
                    "short",
                    "count(dwsr_probe_up) - sum(dwsr_probe_up)",
                    NONE_STEPS,
                ),
                number(
                    "Fallbacks in use",
                    "Something works less well than it should; dwsr-probe doctor says why.",
                    "short",
                    "sum(dwsr_probe_fallback)",
                    NONE_STEPS,
                ),
                number(
                    "Records lost",
                    "In the time shown: overwritten before they were read. Sums and maxima miss"
                    " them.",
                    "short",
                    f"sum({happened('dwsr_probe_records_lost_total')})",
                    NONE_STEPS,
                ),
                number(
                    "Tasks not measured",
                    "In the time shown: no slot was free.",
                    "short",
                    f"sum({happened('dwsr_probe_tasks_dropped_total')})",
                    NONE_STEPS,
                ),
                number(
                    "Boards unreadable",
                    "Damaged, or of another version.",
                    "short",
                    "sum(dwsr_boards_unreadable)",
                    NONE_STEPS,
                ),
                number(
                    "Targets down",
                    "Scrapes that fail now.",
                    "short",
                    "count(up) - sum(up)",
                    NONE_STEPS,
                ),
                number(
                    "Names in other",
                    "Distinct task names beyond the most that have series of their own: counted as"
                    " other.",
                    "short",
                    "sum(dwsr_names_dropped)",
                ),
                number(
                    "Processes left out",
                    "Living processes beyond the most that have series of their own.",
                    "short",
                    "sum(dwsr_processes_dropped)",
                ),
                grid(
                    "Versions",
                    "Which dwsr-probe serves each instance.",
                    ("instance", "version", "board_version"),
                    (None, "short", "dwsr_build_info", None),
                    span=16,
                    height=4,
                ),
            ),
        ),
        (
            "What works",
            (
                grid(
                    "Fallbacks",
                    "By process and part. rss: peaks are sampled, not the kernel's; alloc:"
                    " allocations are not accounted; dask: some tasks are followed on the event loop;"
                    " cupy, nvml: device figures are missing or partial.",
                    ("instance", "pid", "program", "kind"),
                    ("State", "short", told("dwsr_probe_fallback", "program"), NONE_STEPS),
                    mapping={"0": "as it should", "1": "fallback"},
                    span=12,
                ),
                lines(
                    "Probe up",
                    "1: the probe of this process runs.",
                    "short",
                    (WHO, told("dwsr_probe_up")),
                    top=1,
                ),
            ),
        ),
        (
            "Sampler",
            (
                lines(
                    "Samples per second",
                    "Up to a thousand while memory moves, fewer when nothing happens.",
                    "ops",
                    (WHO, told(rate("dwsr_probe_samples_total"))),
                ),
                lines(
                    "Late samples",
                    "Share that came more than a period late: the machine is busy. Peaks do not"
                    " come from samples.",
                    "percentunit",
                    (
                        WHO,
                        told(
                            f"({rate('dwsr_probe_samples_late_total')} /"
                            f" ({rate('dwsr_probe_samples_total')} > 0))"
                        ),
                    ),
                    top=1,
                ),
            ),
        ),
        (
            "What it costs",
            (
                lines(
                    "CPU of the sampler",
                    "Share of one core.",
                    "percentunit",
                    (WHO, told(rate("dwsr_probe_cpu_seconds_total"))),
                ),
                lines(
                    "Memory of the probe",
                    "Inside each process: its board and the table of owners.",
                    "bytes",
                    (WHO, told("dwsr_probe_resident_bytes")),
                ),
                lines(
                    "Time of a scrape",
                    "As Prometheus sees it.",
                    "s",
                    ("{{instance}}", "scrape_duration_seconds"),
                ),
                lines(
                    "Samples of a scrape",
                    "How many series each instance has; names, processes and slots are bounded.",
                    "short",
                    ("{{instance}}", "scrape_samples_scraped"),
                ),
            ),
        ),
        (
            "Predictor (dwsr-probe predict serve)",
            (
                number(
                    "Targets up",
                    "Workers and exporters that it reads.",
                    "short",
                    'sum(dwsr_predictor_targets{state="up"})',
                ),
                number(
                    "Targets down",
                    "That do not answer, or not as they should.",
                    "short",
                    'sum(dwsr_predictor_targets{state="down"})',
                    NONE_STEPS,
                ),
                number("Task names", "With a model.", "short", "sum(dwsr_predictor_models)"),
                number(
                    "Records learned per second",
                    "Of tasks that have ended.",
                    "ops",
                    f"sum({rate('dwsr_predictor_records_learned_total')})",
                ),
                number(
                    "Records refused",
                    "In the time shown: not what a record should be.",
                    "short",
                    f"sum({happened('dwsr_predictor_records_refused_total')})",
                    NONE_STEPS,
                ),
                number(
                    "Records lost",
                    "In the time shown: targets had overwritten them before they were read.",
                    "short",
                    f"sum({happened('dwsr_predictor_records_lost_total')})",
                    NONE_STEPS,
                ),
                lines(
                    "Looks per second",
                    "At all targets together. failed: no answer, or none of ours.",
                    "ops",
                    ("{{outcome}}", f"sum by (outcome) ({rate('dwsr_predictor_looks_total')})"),
                    span=8,
                ),
                lines(
                    "Time of a turn",
                    "Looks that are due, and up to 0.4 s with their results: always at the most, it"
                    " does not keep up.",
                    "s",
                    ("{{instance}}", "dwsr_predictor_turn_seconds"),
                    span=8,
                ),
                lines(
                    "Records that wait",
                    "To be learned. Above 16 MiB the predictor does not keep up and asks its"
                    " targets less often; it never holds more than 64 MiB.",
                    "bytes",
                    ("{{instance}}", "dwsr_predictor_waiting_bytes"),
                    span=8,
                ),
            ),
        ),
    ),
)

DASHBOARDS = {"overview": overview, "task": task, "worker": worker, "gpu": gpu, "probe": probe}


def text_of(board):
    return json.dumps(board, cls=JSONEncoder, indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def main(directory=Path(__file__).parent):
    for name, board in DASHBOARDS.items():
        (Path(directory) / f"{name}.json").write_text(text_of(board), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
