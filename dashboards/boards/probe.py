"""The dashboard `probe`. Does the measurement itself work?"""

from panels import (
    NONE_STEPS,
    dashboard,
    increase_within,
    rate,
    stat_panel,
    table_panel,
    time_series_panel,
    with_process_labels,
)
from queries import PROBE_UID, PROCESS_LEGEND

probe = dashboard(
    PROBE_UID,
    "Probe health",
    "Whether the figures can be trusted, and what they cost.",
    (
        (
            "Can the figures be trusted?",
            (
                stat_panel(
                    "Probes not running",
                    "Processes whose probe has stopped.",
                    "short",
                    "count(dwsr_probe_up) - sum(dwsr_probe_up)",
                    NONE_STEPS,
                ),
                stat_panel(
                    "Fallbacks in use",
                    "Something works less well than it should; dwsr-probe doctor says why.",
                    "short",
                    "sum(dwsr_probe_fallback)",
                    NONE_STEPS,
                ),
                stat_panel(
                    "Records lost",
                    "In the time shown: overwritten before they were read. Sums and maxima miss"
                    " them.",
                    "short",
                    f"sum({increase_within('dwsr_probe_records_lost_total')})",
                    NONE_STEPS,
                ),
                stat_panel(
                    "Tasks not measured",
                    "In the time shown: no slot was free.",
                    "short",
                    f"sum({increase_within('dwsr_probe_tasks_dropped_total')})",
                    NONE_STEPS,
                ),
                stat_panel(
                    "Boards unreadable",
                    "Damaged, or of another version.",
                    "short",
                    "sum(dwsr_boards_unreadable)",
                    NONE_STEPS,
                ),
                stat_panel(
                    "Targets down",
                    "Scrapes that fail now.",
                    "short",
                    "count(up) - sum(up)",
                    NONE_STEPS,
                ),
                stat_panel(
                    "Pairs in other",
                    "Distinct pairs of task name and operation beyond the most that have series of"
                    " their own: counted as other.",
                    "short",
                    "sum(dwsr_names_dropped)",
                ),
                stat_panel(
                    "Processes left out",
                    "Living processes beyond the most that have series of their own.",
                    "short",
                    "sum(dwsr_processes_dropped)",
                ),
                table_panel(
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
                table_panel(
                    "Fallbacks",
                    "By process and part. rss: peaks are sampled, not the kernel's; alloc:"
                    " allocations are not accounted; dask: some tasks are followed on the event"
                    " loop; cupy, nvml: device figures are missing or partial; worker_model: the"
                    " model in the worker has ended.",
                    ("instance", "pid", "program", "kind"),
                    (
                        "State",
                        "short",
                        with_process_labels("dwsr_probe_fallback", "program"),
                        NONE_STEPS,
                    ),
                    mapping={"0": "as it should", "1": "fallback"},
                    span=12,
                ),
                time_series_panel(
                    "Probe up",
                    "1: the probe of this process runs.",
                    "short",
                    (PROCESS_LEGEND, with_process_labels("dwsr_probe_up")),
                    top=1,
                ),
            ),
        ),
        (
            "Sampler",
            (
                time_series_panel(
                    "Samples per second",
                    "Up to a thousand while memory moves, fewer when nothing happens.",
                    "ops",
                    (PROCESS_LEGEND, with_process_labels(rate("dwsr_probe_samples_total"))),
                ),
                time_series_panel(
                    "Late samples",
                    "Share that came more than a period late: the machine is busy. Peaks do not"
                    " come from samples.",
                    "percentunit",
                    (
                        PROCESS_LEGEND,
                        with_process_labels(
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
                time_series_panel(
                    "CPU of the sampler",
                    "Share of one core.",
                    "percentunit",
                    (PROCESS_LEGEND, with_process_labels(rate("dwsr_probe_cpu_seconds_total"))),
                ),
                time_series_panel(
                    "Memory of the probe",
                    "Inside each process: its board and the table of owners.",
                    "bytes",
                    (PROCESS_LEGEND, with_process_labels("dwsr_probe_resident_bytes")),
                ),
                time_series_panel(
                    "Time of a scrape",
                    "As Prometheus sees it.",
                    "s",
                    ("{{instance}}", "scrape_duration_seconds"),
                ),
                time_series_panel(
                    "Samples of a scrape",
                    "How many series each instance has. Pairs of task name and operation, processes"
                    " and slots are bounded.",
                    "short",
                    ("{{instance}}", "scrape_samples_scraped"),
                ),
            ),
        ),
        (
            "Model in the worker (DWSR_PROBE_WORKER_MODEL)",
            (
                time_series_panel(
                    "Records per second",
                    "learned; expected: a repeat that said nothing new; skipped: for want of CPU"
                    " time; lost: overwritten before they were read; refused: impossible figures.",
                    "ops",
                    (
                        "{{outcome}}",
                        f"sum by (outcome) ({rate('dwsr_worker_model_records_total')})",
                    ),
                    span=8,
                ),
                time_series_panel(
                    "Forecasts requested per second",
                    "unanswered: the answer was not in memory yet.",
                    "ops",
                    ("requested", f"sum({rate('dwsr_worker_model_questions_total')})"),
                    ("unanswered", f"sum({rate('dwsr_worker_model_unanswered_total')})"),
                    span=8,
                ),
                time_series_panel(
                    "CPU of the model",
                    "Share of one core; 1 % at most, after the first 0.25 s.",
                    "percentunit",
                    (
                        PROCESS_LEGEND,
                        with_process_labels(rate("dwsr_worker_model_cpu_seconds_total")),
                    ),
                    span=8,
                ),
            ),
        ),
        (
            "Predictor (dwsr-probe predict serve)",
            (
                stat_panel(
                    "Targets up",
                    "Workers and exporters that it reads.",
                    "short",
                    'sum(dwsr_predictor_targets{state="up"})',
                ),
                stat_panel(
                    "Targets down",
                    "That do not answer, or not as they should.",
                    "short",
                    'sum(dwsr_predictor_targets{state="down"})',
                    NONE_STEPS,
                ),
                stat_panel("Task names", "With a model.", "short", "sum(dwsr_predictor_models)"),
                stat_panel(
                    "Records learned per second",
                    "Of tasks that have ended.",
                    "ops",
                    f"sum({rate('dwsr_predictor_records_learned_total')})",
                ),
                stat_panel(
                    "Records refused",
                    "In the time shown: not what a record should be.",
                    "short",
                    f"sum({increase_within('dwsr_predictor_records_refused_total')})",
                    NONE_STEPS,
                ),
                stat_panel(
                    "Records lost",
                    "In the time shown: targets had overwritten them before they were read.",
                    "short",
                    f"sum({increase_within('dwsr_predictor_records_lost_total')})",
                    NONE_STEPS,
                ),
                time_series_panel(
                    "Looks per second",
                    "At all targets together. failed: no answer, or none of ours.",
                    "ops",
                    ("{{outcome}}", f"sum by (outcome) ({rate('dwsr_predictor_looks_total')})"),
                    span=8,
                ),
                time_series_panel(
                    "Time of a turn",
                    "Looks that are due, and up to 0.4 s with their results: always at the most, it"
                    " does not keep up.",
                    "s",
                    ("{{instance}}", "dwsr_predictor_turn_seconds"),
                    span=8,
                ),
                time_series_panel(
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
