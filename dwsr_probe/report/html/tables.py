"""The page's tables as HTML. Everything that came from the job is escaped here. page.js sorts rows
by the data-v of their cells and searches their text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from html import escape
from typing import TYPE_CHECKING

from dwsr_probe.board import process_limit
from dwsr_probe.report.groups import OTHER, row_chain_text
from dwsr_probe.report.processes import (
    process_notes,
    process_outcome,
    sampler_text,
    worker_facts,
)
from dwsr_probe.report.reasons import reason_lines, shared_text
from dwsr_probe.words import (
    AtLeast,
    bytes_text,
    count_text,
    inputs_text,
    line_of,
    percent_text,
    process_title,
    seconds_text,
)

if TYPE_CHECKING:
    from dwsr_probe.record import TaskRecord
    from dwsr_probe.report.summary import MissingRecords, NameSummary, ProcessRow

NAMES_MOST, PROCESSES_MOST = 2_000, 200
_NAME_LENGTH_MOST = 300


def code(text: str, most: int = _NAME_LENGTH_MOST) -> str:
    """A name on one line, in the font for code. most: characters."""
    return f"<code>{escape(line_of(text, most))}</code>"


def _cell(text: str, value: float | None = None, kind: str = "n") -> str:
    """value: the sort key, if that is not the text. kind: "n" for numbers, "t" for texts."""
    sort = "" if value is None else f' data-v="{float(value):.10g}"'
    return f'<td class="{kind}"{sort}>{text}</td>'


def _bytes_cell(n: float | None, bar_of: float | None = None, mark: str = "") -> str:
    """bar_of: the bytes of a full bar behind the number. mark: follows the number, as HTML."""
    text = bytes_text(n) + mark
    if bar_of and n:
        text = f'<span class="bar" style="--share:{min(1.0, n / bar_of):.3f}"></span>{text}'
    return _cell(text, -1 if n is None else n)


def _seconds_cell(s: float | None) -> str:
    return _cell(seconds_text(s), -1 if s is None else s)


def _table(element: str, headings: Iterable[str], rows: Iterable[str], foot: str = "") -> str:
    """headings: those that begin with "<" are aligned on the left."""

    def heading(text: str) -> str:
        kind, text = ("t", text[1:]) if text.startswith("<") else ("n", text)
        return f'<th class="{kind}" scope="col"><button type="button">{text}</button></th>'

    return (
        f'<div class="scroll"><table id="{element}" class=sortable>'
        f"<thead><tr>{''.join(map(heading, headings))}</tr></thead>"
        f"<tbody>{''.join(rows)}</tbody></table></div>"
        + (f'<p class="note">{foot}</p>' if foot else "")
    )


def _failed_cell(s: NameSummary) -> str:
    parts = [
        f"{n:,} {word}"
        for n, word in ((s.killed, "killed"), (s.errors, "failed"), (s.cancelled, "cancelled"))
        if n
    ]
    return _cell(
        f'<span class="bad">{", ".join(parts)}</span>' if parts else "–",
        s.killed + s.errors + s.cancelled,
    )


def names_table(
    summaries: Sequence[NameSummary],
    chip: Callable[[NameSummary], str],
    missing: MissingRecords,
) -> str:
    """One row per operation or task name, in the order given. chip: a square of its colour in the
    plots."""
    devices, accounted = any(s.gpu_peaks for s in summaries), any(s.alloc_peaks for s in summaries)
    most = (
        max((s.alloc_peak_max_bytes or 0 for s in summaries), default=0)
        if accounted
        else max((s.growth_max_bytes or 0 for s in summaries), default=0)
    )
    headings = [
        "<task",
        "count",
        "failed",
        *(["own peak, max", "median"] if accounted else []),
        *(["device peak, max", "limited by"] if devices else []),
        "rss growth, max",
        "median",
        "rss peak, max",
        "duration, max",
        "median",
        "at once",
    ]
    rows = []
    for s in summaries[:NAMES_MOST]:
        ratio = s.device_ratio if s.limiting_memory == "device" else s.host_ratio
        limited_by = f"{s.limiting_memory} {percent_text(ratio)}" if s.limiting_memory else "–"
        rows.append(
            "<tr>"
            + _cell(chip(s) + code(s.label) + _row_detail(s), kind="t")
            + _cell(f"{s.count:,}", s.count)
            + _failed_cell(s)
            + (
                _bytes_cell(s.alloc_peak_max_bytes, most, "†" if s.shared else "")
                + _bytes_cell(s.alloc_peak_median_bytes)
                if accounted
                else ""
            )
            + (
                _bytes_cell(s.gpu_peak_max_bytes)
                + _cell(limited_by, max(s.device_ratio or 0, s.host_ratio or 0))
                if devices
                else ""
            )
            + _bytes_cell(s.growth_max_bytes, None if accounted else most)
            + _bytes_cell(s.growth_median_bytes)
            + _bytes_cell(s.rss_peak_bytes)
            + _seconds_cell(s.duration_max)
            + _seconds_cell(s.duration_median)
            + _cell(f"{s.overlap_max + 1}", s.overlap_max)
            + "</tr>"
        )
    notes = _names_notes(summaries, missing)
    return _table("names", headings, rows, " ".join(notes))


def _row_detail(s: NameSummary) -> str:
    """What is below the name of a row: the functions inside its tasks, and the prefixes of its keys
    if the row has another name. A search finds both."""
    parts = [row_chain_text(s.group)] if s.group.chain else []
    prefixes = [line_of(name) for name in s.task_names if name != s.group.name]
    if prefixes and s.group.name != OTHER:
        more = f" and {len(prefixes) - 3:,} more" if len(prefixes) > 3 else ""
        parts.append(f"key {', '.join(prefixes[:3])}{more}")
    return f'<div class="key">{escape("; ".join(parts))}</div>' if parts else ""


def _names_notes(summaries: Sequence[NameSummary], missing: MissingRecords) -> list[str]:
    notes = []
    if missing.not_in_table:
        tasks = count_text(missing.not_in_table, "task", "tasks", "one")
        notes.append(f'<span class="bad">Not in the table: {tasks} without a record.</span>')
    if missing.counted:
        notes.append("≈ within 5 %: from a histogram, because not all tasks have a record.")
    if any(s.killed for s in summaries):
        notes.append("≥ at least: a task was killed, and may have needed more.")
    if len(summaries) > NAMES_MOST:
        more = count_text(len(summaries) - NAMES_MOST, "more name", "more names", "1")
        notes.append(f"{more}, with smaller peaks: --format json has all.")
    if any(s.sampled for s in summaries):
        notes.append("Some peaks were sampled: short ones may be higher.")
    if any(s.shared for s in summaries):
        reasons = sum((s.reasons for s in summaries), Counter[str]())
        shared, count = sum(s.shared for s in summaries), sum(s.count for s in summaries)
        text = f"† Own peaks are not exact {shared_text(shared, count, reasons)}: memory may be"
        meanings = "; ".join(reason_lines(reasons))
        text += f" missing, or of other work. {meanings[:1].upper()}{meanings[1:]}"
        notes.append(escape(text.rstrip() + ("." if meanings else "")))
    return notes


def _shared_mark(record: TaskRecord) -> str:
    """A mark on an own peak that is not exact; the reason appears under the pointer."""
    if record.attribution != "shared":
        return ""
    reason = line_of(record.attribution_reason or "the reason was not recorded")
    return f'<abbr title="not exact: {escape(reason)}">†</abbr>'


def largest_table(
    records: Sequence[TaskRecord], begin: float, label_of: Callable[[TaskRecord], str]
) -> str:
    """The largest single tasks; a click shows one in the plots. begin: of the run, epoch seconds.
    label_of: what a task's row is called."""
    rows = []
    for record in records:
        start = (record.start or begin) - begin
        place = (
            f' data-from="{start * 1e3:.4f}" data-to="{(start + (record.duration or 0)) * 1e3:.4f}"'
            ' tabindex="0"'
            if record.start
            else ""
        )
        devices = record.gpu_peak_bytes if record.gpu else None
        state = escape(record.state or "–")

        def peak_cell(
            n: float | None, mark: str = "", killed: bool = record.state == "killed"
        ) -> str:
            return _bytes_cell(AtLeast(n) if killed and n is not None else n, mark=mark)

        rows.append(
            f"<tr{place}>"
            + _cell(
                code(label_of(record), 80)
                + (
                    f'<div class="key">{escape(line_of(record.key, 120))}</div>'
                    if record.key
                    else ""
                ),
                kind="t",
            )
            + _cell(escape(inputs_text(record.inputs, record.inputs_omitted)) or "–", kind="t")
            + _bytes_cell(record.input_bytes)
            + peak_cell(record.alloc_peak_bytes, _shared_mark(record))
            + (peak_cell(devices) if any(r.gpu for r in records) else "")
            + peak_cell(record.rss_peak_bytes)
            + _seconds_cell(record.duration)
            + _cell(f"{seconds_text(start)}", start)
            + _cell(
                f'<span class="{"bad" if state in ("killed", "error") else ""}">{state}</span>',
                kind="t",
            )
            + "</tr>"
        )
    return _table(
        "largest",
        [
            "<task",
            "<inputs",
            "input bytes",
            "own peak",
            *(["device peak"] if any(r.gpu for r in records) else []),
            "rss peak",
            "duration",
            "begin",
            "<state",
        ],
        rows,
    )


def devices_table(processes: Sequence[ProcessRow]) -> str:
    """Empty if no device was used."""
    rows = []
    for record, health in processes:
        for device in health.get("devices") or ():
            limit, peak = (
                device.get("pool_limit_bytes") or device.get("total_bytes"),
                device.get("peak_bytes") or 0,
            )
            rows.append(
                "<tr>"
                + _cell(code(process_title(record), 80), kind="t")
                + _cell(f"{device['device']} {escape(line_of(device.get('name') or ''))}", kind="t")
                + _bytes_cell(peak, limit)
                + _bytes_cell(limit)
                + _cell(
                    percent_text(peak / limit if limit else None), peak / limit if limit else -1
                )
                + "".join(
                    _bytes_cell(device.get(name))
                    for name in (
                        "pool_total_bytes",
                        "unseen_bytes",
                        "used_max_bytes",
                        "process_max_bytes",
                    )
                )
                + "</tr>"
            )
    return (
        _table(
            "devices",
            [
                "<process",
                "<device",
                "tasks' peak",
                "limit",
                "share",
                "pool",
                "unseen",
                "driver: used",
                "by this process",
            ],
            rows[:PROCESSES_MOST],
        )
        if rows
        else ""
    )


def processes_table(processes: Sequence[ProcessRow], exit_code: int | None) -> str:
    """Each process against its limit, and how well it could be measured. First those that failed
    or whose measurement is limited. exit_code: of the job."""
    rows = []
    for record, health in sorted(
        processes,
        key=lambda row: (
            row[0].state in ("ok", None) and not process_notes(row[1]),
            -(row[0].rss_peak_bytes or 0),
        ),
    )[:PROCESSES_MOST]:
        limit, peak = process_limit(health), record.rss_peak_bytes
        bad = "bad" if record.state in ("killed", "error") else ""
        notes = "; ".join([*worker_facts(health), *process_notes(health)])
        rows.append(
            "<tr>"
            + _cell(
                code(process_title(record), 80)
                + (f'<div class="key">{escape(line_of(record.host))}</div>' if record.host else ""),
                kind="t",
            )
            + _cell(
                f'<span class="{bad}">{escape(process_outcome(record, health, exit_code))}</span>',
                kind="t",
            )
            + _bytes_cell(peak, limit)
            + _bytes_cell(limit)
            + _cell(
                percent_text(peak / limit if peak and limit else None),
                peak / limit if peak and limit else -1,
            )
            + _seconds_cell(record.duration)
            + _cell(escape(sampler_text(record, health) or "–"), kind="t")
            + _cell(escape(line_of(notes, 600)) or "–", kind="t")
            + "</tr>"
        )
    foot = (
        f"And {count_text(len(processes) - PROCESSES_MOST, 'more process', 'more processes', '1')}."
        if len(processes) > PROCESSES_MOST
        else ""
    )
    return _table(
        "processes",
        ["<process", "<end", "rss peak", "limit", "share", "lived", "<sampling", "<notes"],
        rows,
        foot,
    )
