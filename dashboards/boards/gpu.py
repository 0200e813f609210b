"""The dashboard `gpu`. Device memory: tasks, pools and the driver."""

from panels import USED_STEPS, dashboard, grid, lines, link, number, with_device_labels
from queries import (
    BUSY,
    CACHED,
    DEVICE_TOTAL,
    DEVICE_USED,
    GPU,
    NEEDED,
    PER_DEVICE,
    SLOT,
    TASK,
    mean,
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
                    (f"{{{{pid}}}}: {DEVICE}", with_device_labels("dwsr_device_process_bytes")),
                ),
                lines(
                    "Utilisation",
                    "Share of time in which a kernel ran.",
                    "percentunit",
                    (
                        DEVICE,
                        f"{PER_DEVICE} ({with_device_labels('dwsr_device_utilisation_ratio')})",
                    ),
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
