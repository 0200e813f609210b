"""A run for the terminal: the verdict, a table by operation or task name, a line per process.

`print_report` is called at the end of `run`, and by `report`.
"""

from __future__ import annotations

from collections import Counter

from dwsr_probe.board import process_limit
from dwsr_probe.predict.history import RunSample
from dwsr_probe.report.evidence import Evidence
from dwsr_probe.report.groups import Grouping, chain_lines
from dwsr_probe.report.lines import Column, Lines, Styled
from dwsr_probe.report.outlook import Outlook
from dwsr_probe.report.processes import (
    process_notes,
    process_outcome,
    sampler_text,
    worker_facts,
)
from dwsr_probe.report.summary import missing_records, summarise
from dwsr_probe.report.verdict import make_verdict
from dwsr_probe.words import bytes_text, count_text, line_of, percent_text, seconds_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from typing import Any, TextIO

    from dwsr_probe.record import TaskRecord
    from dwsr_probe.report.summary import MissingRecords, NameSummary, ProcessRow
    from dwsr_probe.store import Store

_NAMES_MOST = 10  # all of them with -v
_LARGEST_PROCESSES = 20  # that are shown whatever their state
_PROCESSES_MOST = 200
_LEVEL_STYLES = {"bad": "bold red", "near": "bold yellow"}
_FOOTNOTES = (
    ("≥", "≥ at least: a task was killed, and may have needed more"),
    ("≈", "≈ within 5 %: from a histogram, because not all tasks have a record"),
    ("*", "* sampled: short peaks may be higher"),
)
_DEVICE_FIGURES = (
    ("pool_total_bytes", "pool {}"),
    ("unseen_bytes", "{} unseen"),
    ("rmm_peak_bytes", "RMM's peak {}"),
    ("used_max_bytes", "driver: {} used at most"),
    ("process_max_bytes", "{} by this process"),
)


def print_report(
    store: Store,
    file: TextIO,
    verbose: bool = False,
    task: str | None = None,
    heading: str | None = None,
    is_end_of_run: bool = False,
) -> None:
    """The whole report of one run. verbose: all rows, and the sampler's statistics. task: only the
    rows that a user means by this name; NoSuchTask if there are none, before anything is printed.
    heading: the first line. is_end_of_run: the job waits for this, so only a run that was killed
    is learned."""
    out = Lines(file)
    processes, totals = store.processes(), store.totals()
    grouping = Grouping(processes, totals)
    exit_code = store.meta().get("exit_code")
    sample = RunSample()

    def read_tasks() -> Iterator[TaskRecord]:
        for record in store.tasks():
            sample.add(record)
            yield record

    names = summarise(read_tasks(), processes, totals, grouping)
    asked = None if task is None else grouping.asked(task)
    missing = missing_records(processes, totals)
    # A model takes a second to load and learn: only where somebody must know which block fits.
    learns = any(s.killed for s in names[:1]) or (
        names and not is_end_of_run and Evidence(names, processes).overhead is not None
    )
    outlook = Outlook.from_sample(sample, store=store) if learns else None
    found = make_verdict(names, processes, outlook, exit_code, missing)
    if heading is not None:
        out.print(heading)
    headline, *others = found.lines()
    out.print(Styled(headline, _LEVEL_STYLES.get(found.level, "bold")))
    for line in others:
        out.print(line)
    if names and asked is None:
        _print_names(out, names if verbose else names[:_NAMES_MOST], names, missing)
    elif asked is not None:
        chosen = [s for s in names if s.group in asked]
        _print_names(out, chosen, chosen, missing)
        if hidden := len(names) - len(chosen):
            more = count_text(hidden, "other task name is", "other task names are", "one")
            out.print(Styled(f"{more} not shown (--task)", "dim"))
    shown = _processes_to_show(processes)
    for record, health in sorted(shown, key=lambda row: row[0].start or 0):
        out.print(*_process_line(record, health, exit_code, verbose))
    if hidden := len(processes) - len(shown):
        more = count_text(hidden, "more process", "more processes", "1")
        out.print(Styled(f"and {more} (all of them: --format json)", "dim"))
    if not names:
        out.print(
            'Mark tasks to see each one\'s peak: `with dwsr_probe.task("name"):` around the work.'
        )


def _processes_to_show(processes: Sequence[ProcessRow]) -> list[ProcessRow]:
    """The largest, and every one that failed or whose measurement is limited."""
    by_size = sorted(processes, key=lambda row: -(row[0].rss_peak_bytes or 0))
    return [
        (record, health)
        for i, (record, health) in enumerate(by_size)
        if i < _LARGEST_PROCESSES or record.state not in ("ok", None) or process_notes(health)
    ][:_PROCESSES_MOST]


def _columns(names: Sequence[NameSummary], shown: Sequence[NameSummary]) -> list[Column]:
    """Of the names shown: the columns that this run has figures for, in the page's order. A median
    follows its maximum and is left out before it."""
    columns = []

    def add(title: str, rank: int, text: Callable[[NameSummary], str]) -> None:
        columns.append(Column(title, rank, [text(summary) for summary in shown]))

    accounted = any(s.alloc_peaks for s in names)
    failed = any(s.errors or s.killed or s.cancelled for s in names)
    add("count", 2, lambda s: f"{s.count:,}")
    add("failed", 1 if failed else 11, _failed_text)
    if accounted:
        add(
            "own peak, max",
            0,
            lambda s: bytes_text(s.alloc_peak_max_bytes) + ("†" if s.shared else ""),
        )
        add("median", 3, lambda s: bytes_text(s.alloc_peak_median_bytes))
    if any(s.gpu_peaks for s in names):
        add("gpu peak, max", 0, lambda s: bytes_text(s.gpu_peak_max_bytes))
        add("median", 3, lambda s: bytes_text(s.gpu_peak_median_bytes))
        add("limited by", 4, _shares_of_limits)
    add("rss growth, max", 7 if accounted else 0, lambda s: bytes_text(s.growth_max_bytes))
    add("median", 9, lambda s: bytes_text(s.growth_median_bytes))
    add("rss peak, max", 5, lambda s: bytes_text(s.rss_peak_bytes) + ("*" if s.sampled else ""))
    add("duration, max", 6, lambda s: seconds_text(s.duration_max))
    add("median", 8, lambda s: seconds_text(s.duration_median))
    add("overlap", 10, lambda s: str(s.overlap_max))
    return columns


def _failed_text(summary: NameSummary) -> Styled:
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


def _shares_of_limits(summary: NameSummary) -> str:
    """ "gpu 62 %, host 3 %": first the memory that would be exhausted first."""
    gpu = f"gpu {percent_text(summary.device_ratio)}"
    host = f"host {percent_text(summary.host_ratio)}"
    return f"{gpu}, {host}" if summary.limiting_memory == "device" else f"{host}, {gpu}"


def _print_names(
    out: Lines,
    shown: Sequence[NameSummary],
    names: Sequence[NameSummary],
    missing: MissingRecords,
) -> None:
    columns = out.print_task_table([s.label for s in shown], _columns(names, shown))
    text = "\n".join(cell for column in columns for cell in column.cells)
    for line in chain_lines((s.group, s.label) for s in shown):
        out.print(Styled(line, "dim"))
    for mark, note in _FOOTNOTES:
        if mark in text:
            out.print(Styled(note, "dim"))
    if "†" in text:
        for line in _shared_lines(names):
            out.print(Styled(line, "dim"))
    if len(names) > len(shown):
        more = count_text(len(names) - len(shown), "more task name", "more task names", "one")
        out.print(Styled(f"and {more}, with smaller needs (all of them: -v)", "dim"))
    for s in shown:
        if missing.counted and s.gpu_peaks and len(s.gpu_peaks) < s.count:
            out.print(
                Styled(
                    f"median of the gpu peak of {line_of(s.label)}: of {len(s.gpu_peaks):,} of"
                    f" {s.count:,} tasks, which have a record",
                    "dim",
                )
            )
    if missing.not_in_table:
        tasks = count_text(missing.not_in_table, "task", "tasks", "one")
        out.print(Styled(f"not in the table: {tasks} without a record", "bold yellow"))


def _shared_lines(names: Sequence[NameSummary]) -> Iterator[str]:
    """The footnote of own peaks that are not exact: of how many tasks, and why."""
    from dwsr_probe.report.reasons import reason_lines, shared_text

    reasons = sum((s.reasons for s in names), Counter())
    shared, tasks = sum(s.shared for s in names), sum(s.count for s in names)
    missed = "memory is missing, or of other work" if reasons else "memory may be of other work"
    yield f"† not exact {shared_text(shared, tasks, reasons)}: {missed}"
    for line in reason_lines(reasons):
        yield f"  {line}"


def _process_line(
    record: TaskRecord, health: Mapping[str, Any], exit_code: int | None, verbose: bool
) -> tuple[str, ...]:
    limit, peak_bytes = process_limit(health), record.rss_peak_bytes
    below = health.get("peak_below_bytes")
    peak = f"below {bytes_text(below)}" if below else bytes_text(peak_bytes)
    share = f" ({100 * peak_bytes / limit:.1f} %)" if limit and peak_bytes else ""
    parts = [f"max rss {peak} of {bytes_text(limit)}{share}", seconds_text(record.duration)]
    parts += worker_facts(health)
    parts += map(_device_text, health.get("devices") or ())
    if health.get("pinned_peak_bytes"):
        parts.append(f"page-locked for CuPy {bytes_text(health['pinned_peak_bytes'])}")
    if verbose and (sampling := sampler_text(record, health)):
        parts.append(sampling)
    parts += process_notes(health)
    return (
        Styled("process ", "dim"),
        f"{line_of(record.task_name)} (pid {record.pid}): ",
        Styled(
            process_outcome(record, health, exit_code),
            "red" if record.state in ("killed", "error") else "green",
        ),
        "; " + "; ".join(parts),
    )


def _device_text(device: Mapping[str, Any]) -> str:
    """ "gpu 0 (A100): own peak 30.1 GiB of 40.0 GiB (75.2 %), pool 31.0 GiB, driver: 33.0 GiB
    used at most, 32.1 GiB by this process"."""
    pool_limit, peak = device.get("pool_limit_bytes"), device.get("peak_bytes")
    limit = pool_limit or device.get("total_bytes")
    name = f" ({device['name']})" if device.get("name") else ""
    text = f"gpu {device['device']}{name}: own peak {bytes_text(peak)}"
    if limit and peak is not None:
        of = f" of {bytes_text(limit)}{' (the pool)' if pool_limit else ''}"
        text += f"{of} ({100 * peak / limit:.1f} %)"
    for field, words in _DEVICE_FIGURES:
        if device.get(field):
            text += ", " + words.format(bytes_text(device[field]))
    return text
