"""Identifiers of the dashboards, and the PromQL expressions that several of them use."""

from panels import OUTCOMES, lines, rate, with_device_labels

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
BUSY = "* on (job, instance, pid, slot) group_left (task_name) dwsr_slot_busy"
SLOT = "slot {{slot}}: {{task_name}}"
PER_DEVICE = "max by (uuid, name)"
CACHED = with_device_labels("(dwsr_device_pool_total_bytes - dwsr_device_pool_used_bytes)")
DEVICE_USED = f"{PER_DEVICE} ({with_device_labels('dwsr_device_used_bytes')})"
DEVICE_TOTAL = f"{PER_DEVICE} ({with_device_labels('dwsr_device_total_bytes')})"
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
