"""The page's tables as HTML. Everything that came from the job is escaped here. page.js sorts by
a cell's data-v and searches its row's text."""

from html import escape

from dwsr_probe.board import process_limit
from dwsr_probe.report.processes import (
    process_notes,
    process_outcome,
    sampler_health,
    worker_facts,
)
from dwsr_probe.report.words import (
    AtLeast,
    bytes_text,
    count_text,
    inputs_text,
    line_of,
    percent_text,
    process_title,
    seconds_text,
)

NAMES_MOST, PROCESSES_MOST = 2_000, 200
_SHOWN_MOST = 300  # characters of a name


def code(text, most=_SHOWN_MOST):
    """A name as it is, on one line."""
    return f"<code>{escape(line_of(text, most))}</code>"


def _cell(text, value=None, kind="n"):
    """value: what it is sorted by, if that is not its text."""
    sort = "" if value is None else f' data-v="{float(value):.10g}"'
    return f'<td class="{kind}"{sort}>{text}</td>'


def _bytes(n, bar_of=None):
    text = bytes_text(n)
    if bar_of and n:
        text = f'<span class="bar" style="--share:{min(1.0, n / bar_of):.3f}"></span>{text}'
    return _cell(text, -1 if n is None else n)


def _seconds(s):
    return _cell(seconds_text(s), -1 if s is None else s)


def _table(element, heads, rows, foot="", sortable=True):
    def head(text):
        kind, text = ("t", text[1:]) if text.startswith("<") else ("n", text)
        return (
            f'<th class="{kind}" scope="col">'
            + (f'<button type="button">{text}</button>' if sortable else text)
            + "</th>"
        )

    return (
        '<div class="scroll"><table'
        f' id="{element}"{" class=sortable" if sortable else ""}>'
        f"<thead><tr>{''.join(map(head, heads))}</tr></thead>"
        f"<tbody>{''.join(rows)}</tbody></table></div>"
        + (f'<p class="note">{foot}</p>' if foot else "")
    )


def _failed(s):
    parts = [
        f"{n:,} {word}"
        for n, word in ((s.killed, "killed"), (s.errors, "failed"), (s.cancelled, "cancelled"))
        if n
    ]
    return _cell(
        f'<span class="bad">{", ".join(parts)}</span>' if parts else "–",
        s.killed + s.errors + s.cancelled,
    )


def names_table(summaries, chip, missing):
    """One row per task name, in the order given. chip(name): a square of its colour in the
    plots. missing: summary.Missing."""
    absent = missing.lost + missing.dropped
    devices, accounted = any(s.gpu_peaks for s in summaries), any(s.alloc_peaks for s in summaries)
    most = (
        max((s.alloc_peak_max_bytes or 0 for s in summaries), default=0)
        if accounted
        else max((s.growth_max_bytes or 0 for s in summaries), default=0)
    )
    heads = [
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
            + _cell(chip(s.task_name) + code(s.task_name), kind="t")
            + _cell(f"{s.count:,}", s.count)
            + _failed(s)
            + (
                _bytes(s.alloc_peak_max_bytes, most) + _bytes(s.alloc_peak_median_bytes)
                if accounted
                else ""
            )
            + (
                _bytes(s.gpu_peak_max_bytes)
                + _cell(limited_by, max(s.device_ratio or 0, s.host_ratio or 0))
                if devices
                else ""
            )
            + _bytes(s.growth_max_bytes, None if accounted else most)
            + _bytes(s.growth_median_bytes)
            + _bytes(s.rss_peak_bytes)
            + _seconds(s.duration_max)
            + _seconds(s.duration_median)
            + _cell(f"{s.overlap + 1}", s.overlap)
            + "</tr>"
        )
    notes = (
        (
            [
                f'<span class="bad">Not in the table: {count_text(absent, "task", "tasks", "one")}'
                " without a record.</span>"
            ]
            if absent
            else []
        )
        + (
            ["≈ within 5 %: from a histogram, because not all tasks have a record."]
            if missing.counted
            else []
        )
        + (
            ["≥ at least: a task was killed, and may have needed more."]
            if any(s.killed for s in summaries)
            else []
        )
        + (
            [
                f"{count_text(len(summaries) - NAMES_MOST, 'more name', 'more names', '1')}, with"
                " smaller peaks: --format json has all."
            ]
            if len(summaries) > NAMES_MOST
            else []
        )
        + (
            ["Some peaks were sampled: short ones may be higher."]
            if any(s.sampled for s in summaries)
            else []
        )
        + (
            [
                "Some own peaks are not one task's alone: native threads or coroutines of several"
                " tasks allocated together."
            ]
            if any(s.shared for s in summaries)
            else []
        )
    )
    return _table("names", heads, rows, " ".join(notes))


def largest_table(records, begin):
    """The largest single tasks; a click shows one in the plots."""
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

        def peak(n, killed=record.state == "killed"):
            return _bytes(AtLeast(n) if killed and n is not None else n)

        rows.append(
            f"<tr{place}>"
            + _cell(
                code(record.task_name, 80)
                + (
                    f'<div class="key">{escape(line_of(record.key, 120))}</div>'
                    if record.key
                    else ""
                ),
                kind="t",
            )
            + _cell(escape(inputs_text(record.inputs, record.inputs_omitted)) or "–", kind="t")
            + _bytes(record.input_bytes)
            + peak(record.alloc_peak_bytes)
            + (peak(devices) if any(r.gpu for r in records) else "")
            + peak(record.rss_peak_bytes)
            + _seconds(record.duration)
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


def devices_table(processes):
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
                + _bytes(peak, limit)
                + _bytes(limit)
                + _cell(
                    percent_text(peak / limit if limit else None), peak / limit if limit else -1
                )
                + "".join(
                    _bytes(device.get(name))
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


def processes_table(processes, exit_code):
    """Each process against its limit, and how well it could be measured. Those with something to
    say first."""
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
            + _bytes(peak, limit)
            + _bytes(limit)
            + _cell(
                percent_text(peak / limit if peak and limit else None),
                peak / limit if peak and limit else -1,
            )
            + _seconds(record.duration)
            + _cell(escape(sampler_health(record, health) or "–"), kind="t")
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
