"""The dashboard `task`. What does one task name need?"""

from panels import (
    CHANCE_STEPS,
    NONE_STEPS,
    USED_STEPS,
    buckets,
    dashboard,
    increase_within,
    lines,
    number,
    rate,
)
from queries import (
    BOUND,
    EXCEEDED,
    KILLED,
    LIMIT_WHERE_IT_RUNS,
    OWN_PEAK,
    OWN_PEAKS,
    PEAK_OF_LIMIT,
    PER_INPUT_BYTE,
    RUNNING,
    SCORED,
    TASK,
    mean,
    outcomes,
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
                    f"sum({increase_within(KILLED)})",
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
                    f"sum({increase_within(EXCEEDED)}) / sum({increase_within(SCORED)})",
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
