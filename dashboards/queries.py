"""What several dashboards use: UIDs of dashboards (*_UID), formats of legends (*_LEGEND), links of
tables (*_LINK), and PromQL expressions (all others)."""

from panels import OUTCOMES, dashboard_link, rate, time_series_panel, with_device_labels

OVERVIEW_UID, TASK_UID, WORKER_UID, GPU_UID, PROBE_UID = (
    "dwsr-overview",
    "dwsr-task",
    "dwsr-worker",
    "dwsr-gpu",
    "dwsr-probe-health",
)

# In a table with the columns `operation` and `task_name`
TASK_LINK = (
    "operation",
    "This operation",
    dashboard_link(TASK_UID, task_name="task_name", operation="operation"),
)
PROCESS_LEGEND = "{{program}} {{pid}} @ {{instance}}"
SLOT_LEGEND = "slot {{slot}}: {{operation}}"
RUNNING_TASK_LEGEND = "{{operation}} {{slot}}: {{pid}} @ {{target}}"
USED_SHARE = "1 - dwsr_process_headroom_bytes / dwsr_process_limit_bytes"
HEADROOM_SHARE = "dwsr_process_headroom_bytes / dwsr_process_limit_bytes"
OWN_PEAK_MAX, OWN_PEAK_TOTAL = (
    'dwsr_task_peak_max_bytes{kind="alloc"}',
    'dwsr_task_peak_bytes_total{kind="alloc"}',
)
PEAK_PER_INPUT_BYTE = f"sum({rate(OWN_PEAK_TOTAL)}) / sum({rate('dwsr_task_input_bytes_total')})"
# The peak of each operation as a share of the limit of its process. A Dask worker's port does not
# serve the ratio. It serves one process, so the peak is divided by that process's limit.
PEAK_OF_LIMIT = (
    "(max by (job, instance, task_name, operation) (dwsr_task_peak_max_ratio) or max by (job,"
    f" instance, task_name, operation) ({OWN_PEAK_MAX}) / on (job, instance) group_left () max by"
    " (job, instance) (dwsr_process_limit_bytes unless on (job, instance)"
    " dwsr_task_peak_max_ratio))"
)
LIMIT_OF_BUSY_PROCESSES = "(dwsr_process_limit_bytes and on (job, instance, pid) dwsr_slot_busy)"
FORECAST_BOUND = 'dwsr_forecast_bound_bytes{kind="alloc"}'
SCORED, EXCEEDED = (
    'dwsr_forecasts_scored_total{kind="alloc"}',
    'dwsr_forecasts_exceeded_total{kind="alloc"}',
)
KILLED, FAILED = 'dwsr_tasks_total{outcome="killed"}', 'dwsr_tasks_total{outcome="error"}'
# Behind a figure of a slot: adds operation and name of the task that the slot runs
JOIN_TASK = "* on (job, instance, pid, slot) group_left (task_name, operation) dwsr_slot_busy"
PER_DEVICE = "max by (uuid, name)"
POOL_CACHED = with_device_labels("(dwsr_device_pool_total_bytes - dwsr_device_pool_used_bytes)")
DEVICE_USED = f"{PER_DEVICE} ({with_device_labels('dwsr_device_used_bytes')})"
DEVICE_TOTAL = f"{PER_DEVICE} ({with_device_labels('dwsr_device_total_bytes')})"
DEVICE_NEEDED_SHARE = (
    f"({DEVICE_USED} - (sum by (uuid, name) ({POOL_CACHED}) or 0 * {DEVICE_USED})) / {DEVICE_TOTAL}"
)


def mean_per_task(total, by="", per=""):
    """The counter `total` divided by the number of tasks that have ended. by: labels of the result.
    per: those of them that dwsr_tasks_total has as well."""
    return (
        f"sum by ({by}) ({rate(total)}) / on ({per}) group_left () sum by ({per})"
        f" ({rate('dwsr_tasks_total')})"
    )


def outcomes_panel(title="Tasks per second, by outcome", span=12):
    return time_series_panel(
        title,
        "Tasks that ended, stacked. Killed: their process died while they ran.",
        "ops",
        ("{{outcome}}", f"sum by (outcome) ({rate('dwsr_tasks_total')})"),
        stacked=True,
        colors=OUTCOMES,
        span=span,
    )
