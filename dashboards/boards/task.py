"""The dashboard `task`. What does one operation of a task name need?"""

from panels import (
    NONE_STEPS,
    OVERRUN_STEPS,
    USED_STEPS,
    dashboard,
    heatmap_panel,
    increase_within,
    rate,
    stat_panel,
    time_series_panel,
)
from queries import (
    EXCEEDED,
    FORECAST_BOUND,
    KILLED,
    LIMIT_OF_BUSY_PROCESSES,
    OWN_PEAK_MAX,
    OWN_PEAK_TOTAL,
    PEAK_OF_LIMIT,
    PEAK_PER_INPUT_BYTE,
    RUNNING_TASK_LEGEND,
    SCORED,
    TASK_UID,
    mean_per_task,
    outcomes_panel,
)

task = dashboard(
    TASK_UID,
    "Task",
    "One kind of task: its peak, how it grows with the input, how it is distributed.",
    (
        (
            "How much does one task need: $operation in $task_name?",
            (
                stat_panel(
                    "Own peak, most",
                    "The largest number of live bytes that one task itself had allocated.",
                    "bytes",
                    f"max({OWN_PEAK_MAX})",
                ),
                stat_panel(
                    "Of the limit",
                    "The largest share that one task took of the limit of its own process.",
                    "percentunit",
                    f"max({PEAK_OF_LIMIT})",
                    USED_STEPS,
                ),
                stat_panel(
                    "Own peak, mean",
                    "Of the tasks that ended lately.",
                    "bytes",
                    mean_per_task(OWN_PEAK_TOTAL),
                ),
                stat_panel(
                    "Peak per input byte",
                    "Mean own peak over mean input of the tasks that ended lately. Where it is"
                    " steady, a block twice as large needs twice as much.",
                    "suffix:×",
                    PEAK_PER_INPUT_BYTE,
                ),
                stat_panel(
                    "Tasks per second",
                    "That ended, with any outcome.",
                    "ops",
                    f"sum({rate('dwsr_tasks_total')})",
                ),
                stat_panel(
                    "Killed",
                    "In the time shown: their process died while they ran.",
                    "short",
                    f"sum({increase_within(KILLED)})",
                    NONE_STEPS,
                ),
            ),
        ),
        (
            "Peak",
            (
                time_series_panel(
                    "Mean peak",
                    "Of the tasks that ended lately. alloc: the task's own bytes; rss_growth: how"
                    " much the process grew meanwhile, neighbours included; cupy: own bytes on a"
                    " device.",
                    "bytes",
                    (
                        "{{kind}} {{device}}",
                        mean_per_task("dwsr_task_peak_bytes_total", "kind, device"),
                    ),
                ),
                time_series_panel(
                    "Largest peak",
                    "Of one task since the start, by kind, and the limits of the processes that run"
                    " such a task now.",
                    "bytes",
                    ("{{kind}} {{device}}", "max by (kind, device) (dwsr_task_peak_max_bytes)"),
                    ("limit of {{pid}} @ {{instance}}", LIMIT_OF_BUSY_PROCESSES),
                ),
                time_series_panel(
                    "Mean own peak by operation",
                    "Of the tasks that ended lately, for each chosen operation.",
                    "bytes",
                    ("{{operation}}", mean_per_task(OWN_PEAK_TOTAL, "operation", "operation")),
                ),
                time_series_panel(
                    "Largest own peak by operation",
                    "Of one task since the start, for each chosen operation.",
                    "bytes",
                    ("{{operation}}", f"max by (operation) ({OWN_PEAK_MAX})"),
                ),
            ),
        ),
        (
            "Forecast (of dwsr-probe predict serve)",
            (
                stat_panel(
                    "99 % bound",
                    "Of one task with the largest inputs seen: own peak that is exceeded once in a"
                    " hundred times.",
                    "bytes",
                    f"max({FORECAST_BOUND})",
                ),
                stat_panel(
                    "Of the limit",
                    "The same, as a share of the limit of the process that runs such a task now; of"
                    " several the smallest.",
                    "percentunit",
                    f"max({FORECAST_BOUND}) / min({LIMIT_OF_BUSY_PROCESSES})",
                    USED_STEPS,
                ),
                stat_panel(
                    "Error",
                    "Of the expected own peak, relative; the newest tasks weigh most.",
                    "percentunit",
                    'max(dwsr_forecast_error_ratio{kind="alloc"})',
                ),
                stat_panel(
                    "Bound exceeded",
                    "In the time shown: share of tasks whose own peak was above its 99 % bound."
                    " About 1 % is right.",
                    "percentunit",
                    f"sum({increase_within(EXCEEDED)}) / sum({increase_within(SCORED)})",
                ),
                stat_panel(
                    "Trust",
                    "0: nothing was seen, 1: low, 2: fair, 3: good.",
                    "short",
                    'min(dwsr_forecast_trust{kind="alloc"})',
                ),
                stat_panel(
                    "Overrun, most probable",
                    "Of the running tasks: the largest probability that one exceeds what its"
                    " process has left for it.",
                    "percentunit",
                    "max(dwsr_forecast_overrun_ratio)",
                    OVERRUN_STEPS,
                ),
                time_series_panel(
                    "Expected peak and bound",
                    "Own peak of one task with the largest inputs seen, the largest measured so"
                    " far, and the limits of the processes that run such a task now.",
                    "bytes",
                    ("expected", 'max(dwsr_forecast_mean_bytes{kind="alloc"})'),
                    ("99 % bound", f"max({FORECAST_BOUND})"),
                    ("largest so far", f"max({OWN_PEAK_MAX})"),
                    ("limit of {{pid}} @ {{instance}}", LIMIT_OF_BUSY_PROCESSES),
                ),
                time_series_panel(
                    "Running tasks: probability of an overrun",
                    "That a running task exceeds what its process has left for it, given what it"
                    " has taken already.",
                    "percentunit",
                    (RUNNING_TASK_LEGEND, "dwsr_forecast_overrun_ratio"),
                    steps=OVERRUN_STEPS,
                    top=1,
                ),
                time_series_panel(
                    "Running tasks: room",
                    "What the process has left for each: its own live bytes and the headroom.",
                    "bytes",
                    (RUNNING_TASK_LEGEND, "dwsr_forecast_room_bytes"),
                ),
                time_series_panel(
                    "Running tasks: time until the room is gone",
                    "At the pace of the last half minute. No line: it does not grow.",
                    "s",
                    (RUNNING_TASK_LEGEND, "dwsr_forecast_overrun_seconds"),
                ),
                time_series_panel(
                    "Error",
                    "Of what was expected, relative; the newest tasks weigh most. alloc: own peak;"
                    " rss: growth of the process; gpu: on a device; output: what it returns.",
                    "percentunit",
                    ("{{kind}}", "max by (kind) (dwsr_forecast_error_ratio)"),
                ),
                time_series_panel(
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
                time_series_panel(
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
                time_series_panel(
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
                heatmap_panel(
                    "Own peaks",
                    "How many tasks had a peak in which range; the ranges grow by fours.",
                    "dwsr_task_alloc_peak_bytes_bucket",
                ),
                time_series_panel(
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
                time_series_panel(
                    "Mean bytes per task",
                    "Input, own peak and output of the tasks that ended lately.",
                    "bytes",
                    ("input", mean_per_task("dwsr_task_input_bytes_total")),
                    ("own peak", mean_per_task(OWN_PEAK_TOTAL)),
                    ("output", mean_per_task("dwsr_task_output_bytes_total")),
                ),
                time_series_panel(
                    "Peak and output per input byte",
                    "Means over means. A steady line: peak grows in proportion to the input, and"
                    " the block that fits can be computed.",
                    "suffix:×",
                    ("own peak / input", PEAK_PER_INPUT_BYTE),
                    (
                        "output / input",
                        (
                            f"sum({rate('dwsr_task_output_bytes_total')}) /"
                            f" sum({rate('dwsr_task_input_bytes_total')})"
                        ),
                    ),
                ),
                time_series_panel(
                    "Largest input and output",
                    "Of one task since the start.",
                    "bytes",
                    ("input", "max(dwsr_task_input_max_bytes)"),
                    ("output", "max(dwsr_task_output_max_bytes)"),
                ),
                time_series_panel(
                    "Duration",
                    "Mean of the tasks that ended lately, and the longest since the start.",
                    "s",
                    ("mean", mean_per_task("dwsr_task_duration_seconds_total")),
                    ("longest", "max(dwsr_task_duration_max_seconds)"),
                ),
                outcomes_panel(span=24),
            ),
        ),
    ),
    variables=(
        ("task_name", "Task name", "dwsr_tasks_total", False),
        ("operation", "Operation", "dwsr_tasks_total", True),
    ),
)
