"""A run for the terminal: the verdict, a table by task name, a line per process."""

from dwsr_probe.predict.history import RunSample
from dwsr_probe.report.lines import Column, Lines, Styled
from dwsr_probe.report.outlook import VIEW_SAMPLE_MOST, Outlook
from dwsr_probe.report.summary import (
    missing_tasks,
    process_limit,
    process_notes,
    process_outcome,
    sampler_health,
    summarise,
    worker_facts,
)
from dwsr_probe.report.verdict import verdict
from dwsr_probe.report.words import bytes_text, count_text, line_of, percent_text, seconds_text

_NAMES_MOST = 10  # the rest with -v
_PROCESSES_MOST, _PROCESSES_AT_ALL = 20, 200


def _outcome(summary):
    parts = [
        f"{n:,} {word}"
        for n, word in (
            (summary.errors, "error" if summary.errors == 1 else "errors"),
            (summary.killed, "killed"),
            (summary.cancelled, "cancelled"),
        )
        if n
    ]
    return Styled(", ".join(parts) or "–", "red" if summary.killed or summary.errors else "")


def _binding(summary):
    """ "gpu 62 %, host 3 %": the one that binds first."""

    def share(word, ratio):
        return f"{word} {percent_text(ratio)}"

    parts = [share("gpu", summary.device_ratio), share("host", summary.host_ratio)]
    return ", ".join(parts if summary.binds == "device" else parts[::-1])


def _device_text(device):
    """ "gpu 0 (A100): own peak 30.1 GiB of 40.0 GiB (75.2 %), pool 31.0 GiB, driver: 33.0 GiB
    used at most, 32.1 GiB by this process"."""
    limit, peak = (
        device.get("pool_limit_bytes") or device.get("total_bytes"),
        device.get("peak_bytes"),
    )
    text = (
        f"gpu {device['device']}"
        + (f" ({device['name']})" if device.get("name") else "")
        + f": own peak {bytes_text(peak)}"
    )
    if limit:
        text += (
            f" of {bytes_text(limit)}{' (the pool)' if device.get('pool_limit_bytes') else ''}"
            f" ({100 * peak / limit:.1f} %)"
        )
    for name, words in (
        ("pool_total_bytes", "pool {}"),
        ("unseen_bytes", "{} unseen"),
        ("rmm_peak_bytes", "RMM's peak {}"),
        ("used_max_bytes", "driver: {} used at most"),
        ("process_max_bytes", "{} by this process"),
    ):
        if device.get(name):
            text += ", " + words.format(bytes_text(device[name]))
    return text


def print_report(store, file, verbose=False):
    """The whole report of one run. verbose: all task names, and the sampler's statistics."""
    out = Lines(file)
    processes, totals, exit_code = (
        store.processes(),
        store.totals(),
        store.meta().get("exit_code"),
    )
    sample = RunSample(VIEW_SAMPLE_MOST)

    def noted():
        for record in store.tasks():
            sample.add(record)
            yield record

    names = summarise(noted(), processes, totals)
    missing = missing_tasks(processes, totals)
    # A model takes a second to load and learn: only where somebody must know which block fits.
    outlook = Outlook.of(sample, [names[0].task_name]) if names and names[0].killed else None
    found = verdict(names, processes, outlook, exit_code, missing)
    for i, line in enumerate(found.lines()):
        out.print(Styled(line, _STYLES.get(found.level, "bold") if i == 0 else ""))
    if names:
        _print_names(out, names if verbose else names[:_NAMES_MOST], names, missing)
    # The largest, and every one that a person should know about.
    by_size = sorted(processes, key=lambda row: -(row[0].rss_peak_bytes or 0))
    shown = [
        row
        for i, row in enumerate(by_size)
        if i < _PROCESSES_MOST or row[0].state not in ("ok", None) or process_notes(*row)
    ]
    for record, health in sorted(shown[:_PROCESSES_AT_ALL], key=lambda row: row[0].start or 0):
        out.print(*_process_line(record, health, exit_code, verbose))
    if hidden := len(processes) - len(shown[:_PROCESSES_AT_ALL]):
        out.print(
            Styled(
                f"and {count_text(hidden, 'more process', 'more processes', '1')}"
                " (all of them: --format json)",
                "dim",
            )
        )
    if not names:
        out.print(
            'Mark tasks to see each one\'s peak: `with dwsr_probe.task("name"):` around the work.'
        )


_STYLES = {"bad": "bold red", "near": "bold yellow"}


def _columns(names):
    """(title, rank, function of a NameSummary) of what this run has figures for, in the page's
    order: a median stands behind its maximum and goes before it."""
    accounted, on_devices = any(s.alloc_peaks for s in names), any(s.gpu_peaks for s in names)
    failed = any(s.errors or s.killed or s.cancelled for s in names)
    columns = [("count", 2, lambda s: f"{s.count:,}"), ("failed", 1 if failed else 11, _outcome)]
    if accounted:
        columns += [
            (
                "own peak, max",
                0,
                lambda s: bytes_text(s.alloc_peak_max_bytes) + ("†" if s.shared else ""),
            ),
            ("median", 3, lambda s: bytes_text(s.alloc_peak_median_bytes)),
        ]
    if on_devices:
        columns += [
            ("gpu peak, max", 0, lambda s: bytes_text(s.gpu_peak_max_bytes)),
            ("median", 3, lambda s: bytes_text(s.gpu_peak_median_bytes)),
            ("binds", 4, _binding),
        ]
    return columns + [
        ("rss growth, max", 7 if accounted else 0, lambda s: bytes_text(s.growth_max_bytes)),
        ("median", 9, lambda s: bytes_text(s.growth_median_bytes)),
        ("rss peak, max", 5, lambda s: bytes_text(s.rss_peak_bytes) + ("*" if s.sampled else "")),
        ("duration, max", 6, lambda s: seconds_text(s.duration_max)),
        ("median", 8, lambda s: seconds_text(s.duration_median)),
        ("overlap", 10, lambda s: str(s.overlap)),
    ]


def _print_names(out, shown, names, missing):
    columns = out.tasks(
        [s.task_name for s in shown],
        [Column(title, rank, [cell(s) for s in shown]) for title, rank, cell in _columns(names)],
    )
    text = "\n".join(cell for column in columns for cell in column.cells)
    for mark, note in (
        ("≥", "≥ at least: a task was killed, and may have needed more"),
        ("≈", "≈ within 5 %: from a histogram, because not all tasks have a record"),
        ("*", "* sampled: short peaks may be higher"),
        ("†", "† not this task's alone: native threads or coroutines of several tasks"),
    ):
        if mark in text:
            out.print(Styled(note, "dim"))
    if len(names) > len(shown):
        rest = names[len(shown) :]
        out.print(
            Styled(
                f"and {count_text(len(rest), 'more task name', 'more task names', 'one')}, with"
                " smaller needs (all of them: -v)",
                "dim",
            )
        )
    for s in shown:
        if missing.counted and s.gpu_peaks and len(s.gpu_peaks) < s.count:
            out.print(
                Styled(
                    f"median of the gpu peak of {line_of(s.task_name)}: of {len(s.gpu_peaks):,} of"
                    f" {s.count:,} tasks, which have a record",
                    "dim",
                )
            )
    if absent := missing.lost + missing.dropped:
        out.print(
            Styled(
                f"not in the table: {count_text(absent, 'task', 'tasks', 'one')} without a record",
                "bold yellow",
            )
        )


def _process_line(record, health, exit_code, verbose):
    limit = process_limit(health)
    below = health.get("peak_below_bytes")
    peak = f"below {bytes_text(below)}" if below else bytes_text(record.rss_peak_bytes)
    share = (
        f" ({100 * record.rss_peak_bytes / limit:.1f} %)" if limit and record.rss_peak_bytes else ""
    )
    parts = [f"max rss {peak} of {bytes_text(limit)}{share}", seconds_text(record.duration)]
    parts += worker_facts(health)
    parts += map(_device_text, health.get("devices") or ())
    if health.get("pinned_peak_bytes"):
        parts.append(f"page-locked for CuPy {bytes_text(health['pinned_peak_bytes'])}")
    if verbose:
        parts += filter(None, [sampler_health(record, health)])
    parts += process_notes(record, health)
    return (
        Styled("process ", "dim"),
        f"{line_of(record.task_name)} (pid {record.pid}): ",
        Styled(
            process_outcome(record, health, exit_code),
            "red" if record.state in ("killed", "error") else "green",
        ),
        "; " + "; ".join(parts),
    )
