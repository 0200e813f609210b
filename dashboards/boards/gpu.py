"""The dashboard `gpu`. Device memory: tasks, pools and the driver."""

from panels import (
    USED_STEPS,
    dashboard,
    stat_panel,
    table_panel,
    time_series_panel,
    with_device_labels,
)
from queries import (
    DEVICE_NEEDED_SHARE,
    DEVICE_TOTAL,
    DEVICE_USED,
    GPU_UID,
    JOIN_TASK,
    PER_DEVICE,
    POOL_CACHED,
    SLOT_LEGEND,
    TASK_LINK,
    mean_per_task,
)

DEVICE_LEGEND = "{{name}} {{uuid}}"
PROCESS_ON_DEVICE_LEGEND = "{{pid}} on device {{device}}"
gpu = dashboard(
    GPU_UID,
    "GPU",
    "Device memory: what the driver says, what CuPy's pool holds, what each task needs.",
    (
        (
            "Is there room on the devices?",
            (
                stat_panel(
                    "Fullest device",
                    "Share of its memory in use by everybody, without what CuPy's pools only keep"
                    " for later.",
                    "percentunit",
                    f"max({DEVICE_NEEDED_SHARE})",
                    USED_STEPS,
                ),
                stat_panel(
                    "Devices",
                    "On which a process has allocated.",
                    "short",
                    f"count({PER_DEVICE} (dwsr_device_info))",
                ),
                stat_panel(
                    "Kept by pools",
                    "Held by CuPy's pools and not in use: free for the same process only.",
                    "bytes",
                    f"sum({POOL_CACHED})",
                ),
                stat_panel(
                    "Largest peak of a task",
                    "On one device, of all operations.",
                    "bytes",
                    'max(dwsr_task_peak_max_bytes{kind="cupy"})',
                ),
                stat_panel(
                    "Unseen",
                    "In use of the pools, but not allocated through the hook: belongs to no task.",
                    "bytes",
                    "sum(dwsr_device_unseen_bytes)",
                ),
                stat_panel(
                    "Pinned",
                    "Page-locked host memory that CuPy has given out.",
                    "bytes",
                    "sum(dwsr_process_pinned_bytes)",
                ),
                table_panel(
                    "Devices",
                    "Each device now, as the driver says.",
                    ("name", "uuid"),
                    ("Needed", "percentunit", DEVICE_NEEDED_SHARE, USED_STEPS),
                    ("Used", "bytes", with_device_labels("dwsr_device_used_bytes"), None),
                    ("Total", "bytes", with_device_labels("dwsr_device_total_bytes"), None),
                    (
                        "Utilisation",
                        "percentunit",
                        with_device_labels("dwsr_device_utilisation_ratio"),
                        None,
                    ),
                    height=6,
                ),
            ),
        ),
        (
            "Devices",
            (
                time_series_panel(
                    "Used",
                    "By everybody, as the driver says, and what the device has.",
                    "bytes",
                    (DEVICE_LEGEND, DEVICE_USED),
                    (f"total {DEVICE_LEGEND}", DEVICE_TOTAL),
                ),
                time_series_panel(
                    "By process",
                    "Used by each of our processes, as the driver says.",
                    "bytes",
                    (
                        f"{{{{pid}}}}: {DEVICE_LEGEND}",
                        with_device_labels("dwsr_device_process_bytes"),
                    ),
                ),
                time_series_panel(
                    "Utilisation",
                    "Share of time in which a kernel ran.",
                    "percentunit",
                    (
                        DEVICE_LEGEND,
                        f"{PER_DEVICE} ({with_device_labels('dwsr_device_utilisation_ratio')})",
                    ),
                    top=1,
                ),
                time_series_panel(
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
                time_series_panel(
                    "Pool",
                    "In use of CuPy's pool, and what it holds of the device.",
                    "bytes",
                    (f"used {PROCESS_ON_DEVICE_LEGEND}", "dwsr_device_pool_used_bytes"),
                    (f"holds {PROCESS_ON_DEVICE_LEGEND}", "dwsr_device_pool_total_bytes"),
                ),
                time_series_panel(
                    "Live bytes",
                    "Of each process from CuPy's allocators, their peak, and what is in use of the"
                    " pool without having come through the hook.",
                    "bytes",
                    (f"live {PROCESS_ON_DEVICE_LEGEND}", "dwsr_device_live_bytes"),
                    (f"peak {PROCESS_ON_DEVICE_LEGEND}", "dwsr_device_peak_bytes"),
                    (f"unseen {PROCESS_ON_DEVICE_LEGEND}", "dwsr_device_unseen_bytes"),
                ),
            ),
        ),
        (
            "Tasks",
            (
                table_panel(
                    "Largest peaks by operation",
                    "What one task of each operation needed at most on a device, since the start.",
                    ("operation", "task_name", "device"),
                    ("Own peak", "bytes", 'dwsr_task_peak_max_bytes{kind="cupy"}', None),
                    links=[TASK_LINK],
                    span=12,
                ),
                time_series_panel(
                    "Mean peak by operation",
                    "Own bytes on a device, of the tasks that ended lately.",
                    "bytes",
                    (
                        "{{operation}} on device {{device}}",
                        mean_per_task(
                            'dwsr_task_peak_bytes_total{kind="cupy"}',
                            "operation, device",
                            per="operation",
                        ),
                    ),
                ),
                time_series_panel(
                    "Running tasks: own bytes now",
                    "On a device, stacked.",
                    "bytes",
                    (
                        f"{SLOT_LEGEND} on device {{{{device}}}}",
                        f"dwsr_slot_device_live_bytes {JOIN_TASK}",
                    ),
                    stacked=True,
                ),
                time_series_panel(
                    "Running tasks: own peak so far",
                    "On a device.",
                    "bytes",
                    (
                        f"{SLOT_LEGEND} on device {{{{device}}}}",
                        f"dwsr_slot_device_peak_bytes {JOIN_TASK}",
                    ),
                ),
            ),
        ),
    ),
)
