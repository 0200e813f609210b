"""The page as text: everything that the other modules found, put into page.html. Styles and
scripts are inline, and a policy names the scripts by their hashes: nothing else can run, nothing
can be fetched."""

import base64
import datetime
import hashlib
import shlex
from html import escape
from importlib.resources import files
from string import Template

import numpy as np
from bokeh.resources import Resources

from dwsr_probe.board import process_limit
from dwsr_probe.report.html.figures import GROUPS, LINES, Frames, Timeline, scatter, unit_of
from dwsr_probe.report.html.memory import memory_lines
from dwsr_probe.report.html.packed import pack, short
from dwsr_probe.report.html.tables import (
    code,
    devices_table,
    largest_table,
    names_table,
    processes_table,
)
from dwsr_probe.report.html.tasks import STATES, collect
from dwsr_probe.report.outlook import Outlook
from dwsr_probe.report.summary import limiting_memory, missing_records
from dwsr_probe.report.verdict import verdict
from dwsr_probe.report.words import (
    Name,
    bytes_text,
    count_text,
    line_of,
    percent_text,
    seconds_text,
)

DATA_MOST = 6_000_000  # bytes; with Bokeh and the tables the file stays below 8 MB
SCATTERS = 9  # names with a panel of their own
_PLOTTED_FROM = 1 << 16
_NO_MODEL = "The line and its band need the model: pip install 'dwsr-probe[predict]'."
_HERE = files("dwsr_probe.report.html")


def page_of(store, progress):
    meta, processes = store.meta(), store.processes()
    tasks = collect(store, processes, progress)
    lines = memory_lines(store, processes, progress)
    on_device = limiting_memory(tasks.summaries) == "device"
    by_need = tasks.summaries
    panels = [s for s in by_need if _grows(tasks, s)][:SCATTERS]
    done = iter(range(1, len(panels) + 1))
    outlook = Outlook.of(
        {s.task_name: tasks.examples[s.task_name] for s in panels},
        lambda: progress("learning", next(done), len(panels)),
    )
    progress("writing the page", 0, 1)
    missing = missing_records(processes, store.totals())
    words = verdict(by_need, processes, outlook, meta.get("exit_code"), missing)
    begin, seconds = _span(tasks, lines, processes)
    groups = {s.task_name: i for i, s in enumerate(by_need[:GROUPS])}
    head, arrays, frames = _timeline(tasks, lines, processes, begin, seconds, groups, on_device)
    panel_frames = Frames("panels")
    head["scatters"] = [_scatter(i, s, tasks, outlook, panel_frames) for i, s in enumerate(panels)]
    head |= {"figures": frames.json(), "panels": panel_frames.json()}
    data = pack(head, arrays)

    def chip(name):
        return f'<i class="chip g{groups.get(name, GROUPS)}"></i>'

    shown = sum(a.size for a in arrays.values()) > 0
    return _filled(
        title=escape(line_of(str(meta.get("run") or "a run"), 120)),
        facts=_facts(meta, processes, tasks, begin, seconds),
        level=words.level,
        headline=_sentence(words.headline),
        sentences="".join(f"<li>{_sentence(s)}</li>" for s in words.troubles + words.sentences),
        advice="".join(f"<p>{_sentence(s)}</p>" for s in words.advice),
        figures=_figures(processes, by_need, missing),
        legend="".join(
            f"<span>{chip(s.task_name)}{code(s.task_name, 40)}</span>" for s in by_need[:GROUPS]
        )
        + ('<span><i class="chip g6"></i>others</span>' if len(by_need) > GROUPS else ""),
        lines=_lines_legend([head["processes"][line.process] for line in lines], head["limit"]),
        timeline_hidden="" if shown else "hidden",
        timeline_note=_timeline_note(tasks, processes, lines),
        tasks_hidden="" if tasks.count else "hidden",
        scatters="".join(
            f"<figure><figcaption>{chip(s.task_name)}{code(s.task_name, 60)}"
            f"<small>{escape(_trust(head['scatters'][i]))}</small></figcaption><div"
            f' id="scatter{i}"></div></figure>'
            for i, s in enumerate(panels)
        ),
        scatter_hidden="" if panels else "hidden",
        scatter_note=(
            "Red ones ended early, and might have needed more. "
            if any(s.killed or s.errors for s in panels)
            else ""
        )
        + ("" if outlook else _NO_MODEL),
        stack_title=(
            "Device peaks of the tasks under way"
            if on_device
            else "Own peaks of the tasks under way"
        ),
        names=names_table(by_need, chip, missing),
        largest=largest_table(tasks.largest, begin),
        devices=(found := devices_table(processes)),
        devices_hidden="" if found else "hidden",
        processes=processes_table(processes, meta.get("exit_code")),
        data=data,
        keys=_packed_keys(tasks, DATA_MOST - len(data)),
    )


def _packed_keys(tasks, most):
    """Within so many bytes: keys are what does not compress, so those of the smaller tasks go
    first. Apart from the rest, because plots can be drawn without."""
    order, kept, keys = (
        np.argsort(-np.nan_to_num(tasks.columns["own"]), kind="stable"),
        len(tasks.keys),
        tasks.keys,
    )
    while len(found := pack({"keys": keys}, {})) > most and kept:
        kept //= 4
        keys = [""] * len(tasks.keys)
        for i in order[:kept]:
            keys[i] = tasks.keys[i]
    return found


def _filled(**parts):
    """The template with its parts, and with the policy for exactly the scripts in it."""
    scripts = {
        "bokeh": "\n".join(Resources(mode="inline", components=["bokeh"], minified=True).js_raw),
        "page_js": (_HERE / "page.js").read_text(),
        "timeline_js": (_HERE / "timeline.js").read_text(),
    }
    hashes = " ".join(
        f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
        for text in scripts.values()
    )
    return Template((_HERE / "page.html").read_text()).substitute(
        parts, css=(_HERE / "page.css").read_text(), script_hashes=hashes, **scripts
    )


def _sentence(parts):
    return "".join(
        f"<b>{escape(part)}</b>" if isinstance(part, Name) else escape(part) for part in parts
    )


def _span(tasks, lines, processes):
    """Begin and length of what there is to see."""
    begins = [record.start for record, _ in processes if record.start] + tasks.columns["start"][
        :1
    ].tolist() or [line.time[0] for line in lines]
    ends = (
        [record.start + (record.duration or 0) for record, _ in processes if record.start]
        + [line.time[-1] for line in lines]
        + [tasks.columns["end"].max(initial=0)]
    )
    begin = min(begins, default=0.0)
    return begin, max(1e-3, max(ends) - begin)


def _grows(tasks, summary):
    """Has it inputs of known size, and a peak worth a plot?"""
    largest = tasks.examples[summary.task_name].largest
    return (
        largest is not None
        and largest.known_input_bytes
        and max(summary.alloc_peak_max_bytes or 0, summary.gpu_peak_max_bytes or 0) >= _PLOTTED_FROM
    )


def _timeline(tasks, lines, processes, begin, seconds, groups, on_device):
    """Head and arrays for page.js, and the frames."""
    need = tasks.columns["gpu" if on_device else "own"]
    c, limits = (
        tasks.columns,
        list(filter(None, (process_limit(health) for _, health in processes))),
    )
    group_of = np.full(len(tasks.names) + 1, GROUPS, "u1")
    for name, group in groups.items():
        group_of[tasks.number_of[name]] = group
    arrays = {
        "start": np.round((c["start"] - begin) * 1e6),
        "duration": short(np.nan_to_num(c["duration"])),
        "name": c["name"].astype("u2"),
        "state": c["state"],
        "lane": c["lane"],
        "depth": c["depth"],
        "inputs": c["inputs"].astype("u4"),
        "process": c["process"].astype("u2"),
        "group": group_of[: len(tasks.names)],
        **{name: short(c[name]) for name in ("own", "rss", "gpu", "input")},
    }
    for i, line in enumerate(lines):
        arrays |= {
            f"time{i}": ((line.time - begin) * 1e3).astype("f8" if seconds > 3600 else "f4"),
            f"low{i}": short(line.low),
            f"high{i}": short(line.high),
        }
    top = max(
        [
            *(line.high.max() for line in lines),
            np.nanmax(c["rss"], initial=0),
            *(r.rss_peak_bytes or 0 for r, _ in processes),
            1,
        ]
    )
    # one far above would press what there is to see to the ground
    limit = min((n for n in limits if n <= 1.8 * top), default=None)
    top, stack = max(top, limit or 0), _stack_top(c, need)
    labels, counts = {}, {}
    for lane, thread in enumerate(tasks.lanes):
        if thread is not None:
            whose = processes[thread[0]][0] if 0 <= thread[0] < len(processes) else None
            counts[thread[0]] = number = counts.get(thread[0], 0) + 1
            labels[lane] = (
                f"{line_of(whose.task_name, 10) if whose else '?'} · {number}"
                if len(processes) > 1
                else f"thread {number}"
            )
    frames = Frames("timeline")
    timeline = Timeline(
        seconds,
        max(1, len(tasks.lanes)),
        labels,
        len(lines),
        float(top),
        float(stack),
        limit,
        "device" if on_device else "own",
    )
    for name in ("memory", "stack", "spans"):
        frames.add(getattr(timeline, name), name)
    head = {
        "names": tasks.names,
        "inputs": tasks.inputs,
        "states": STATES,
        "processes": _process_names(processes),
        "seconds": seconds,
        "lanes": len(tasks.lanes),
        "on_device": on_device,
        "limit": limit is not None,
        "lines": [line.process for line in lines],
        "memory_unit": unit_of(top)[0],
        "stack_unit": unit_of(stack)[0],
    }
    return head, arrays, frames


def _lines_legend(names, limit):
    """Which line is which process: the largest have a colour of their own."""
    found = [
        f'<span><i class="stroke p{i}"></i>{code(name, 60)}</span>'
        for i, name in enumerate(names[:LINES])
    ]
    if len(names) > LINES:
        found.append(
            "<span><i"
            f' class="stroke"></i>'
            f"{count_text(len(names) - LINES, 'other process', 'other processes', '1')}</span>"
        )
    if limit and names:
        found.append('<span><i class="stroke limit"></i>limit</span>')
    return "".join(found)


def _stack_top(c, need):
    """The largest sum of what tasks under way at once needed."""
    outer = (c["depth"] == 0) & ~np.isnan(need)
    if not outer.any():
        return 1.0
    own = need[outer]
    moments, change = (
        np.concatenate([c["start"][outer], c["end"][outer]]),
        np.concatenate([own, -own]),
    )
    return max(1.0, float(np.cumsum(change[np.lexsort((change, moments))]).max()), float(own.max()))


def _process_names(processes):
    """With the host where there are several."""
    several = len({record.host for record, _ in processes if record.host}) > 1
    return [
        line_of(
            f"{record.worker or record.task_name} (pid {record.pid})"
            + (f" on {record.host}" if several and record.host else ""),
            120,
        )
        for record, _ in processes
    ]


def _scatter(number, summary, tasks, outlook, frames):
    """One panel: what page.js needs to fill it."""
    kind = "gpu" if summary.limiting_memory == "device" and summary.gpu_peaks else "alloc"
    curve = outlook.curve(summary.task_name, kind) if outlook else None
    number_of = tasks.number_of[summary.task_name]
    here = tasks.columns["name"] == number_of
    peaks, sizes = (
        tasks.columns["gpu" if kind == "gpu" else "own"][here],
        tasks.columns["input"][here],
    )
    top, right = float(np.nanmax(peaks, initial=1)), float(np.nanmax(sizes, initial=1))
    # twice the largest volume is what people ask for, if it does not squeeze what was seen
    if curve:
        top, right = max(top, min(curve.high[-1], 3 * top)), 2 * right
    (size, unit), (input_size, input_unit) = unit_of(top), unit_of(right)
    frames.add(scatter(number, unit, input_unit), f"scatter{number}")
    found = {
        "name": number_of,
        "kind": kind,
        "unit": size,
        "input_unit": input_size,
        "top": top / size * 1.08,
        "right": right / input_size * 1.03,
    }
    if curve:
        found["curve"] = {
            "x": [n / input_size for n in curve.input_bytes],
            **{row: [n / size for n in getattr(curve, row)] for row in ("low", "mean", "high")},
        }
        found["trust"] = (
            f"{'device memory, ' if kind == 'gpu' else ''}model from"
            f" {count_text(curve.learned, 'task', 'tasks', '1')}, trust {curve.trust}"
        )
    return found


def _trust(panel):
    return panel.get("trust", "")


def _facts(meta, processes, tasks, begin, seconds):
    command = meta.get("command")
    command = shlex.join(map(str, command)) if isinstance(command, list) else str(command or "")
    when = (
        datetime.datetime.fromtimestamp(begin).astimezone().strftime("%Y-%m-%d %H:%M:%S %Z")
        if begin
        else ""
    )
    hosts = sorted({record.host for record, _ in processes if record.host})
    parts = [
        code(command, 200) if command else "",
        escape(when),
        escape(
            line_of(
                ", ".join(hosts[:3])
                + (
                    f" and {count_text(len(hosts) - 3, 'more host', 'more hosts', '1')}"
                    if len(hosts) > 3
                    else ""
                ),
                120,
            )
        ),
        seconds_text(seconds) if begin else "",
        _outcome(meta),
    ]
    return "".join(f"<span>{part}</span>" for part in parts if part)


def _outcome(meta):
    if meta.get("gathered"):  # dwsr_probe.dask.records(client)
        return (
            "tasks that its workers held at"
            f" {datetime.datetime.fromtimestamp(meta['gathered']).astimezone():%H:%M:%S}"
        )
    if not meta:
        return ""
    code_ = meta.get("exit_code")
    return (
        "exit code not known: still running, or its parent was killed"
        if code_ is None
        else f"exit code {escape(str(code_))}"
    )


def _figures(processes, by_need, missing):
    """The few numbers that people look for first."""

    def card(value, label, more=""):
        return f"<div><strong>{value}</strong><span>{label}</span><small>{more}</small></div>"

    cards = []
    if by_need:
        s = by_need[0] if by_need[0].killed else max(by_need, key=lambda s: s.need_bytes or 0)
        own = s.alloc_peak_max_bytes is not None
        cards.append(
            card(
                bytes_text(s.need_bytes),
                "largest task's own peak" if own else "largest task's growth",
                code(s.task_name, 40),
            )
        )
    record, health = max(processes, key=lambda row: row[0].rss_peak_bytes or 0, default=(None, {}))
    if record is not None and record.rss_peak_bytes:
        limit = process_limit(health)
        cards.append(
            card(
                bytes_text(record.rss_peak_bytes),
                "largest process",
                (
                    f"{percent_text(record.rss_peak_bytes / limit)} of {bytes_text(limit)}"
                    if limit
                    else ""
                ),
            )
        )
    device = max(
        (s for s in by_need if s.gpu_peaks), key=lambda s: s.gpu_peak_max_bytes, default=None
    )
    if device is not None and device.gpu_peak_max_bytes:
        cards.append(
            card(
                bytes_text(device.gpu_peak_max_bytes),
                "largest task on a device",
                code(device.task_name, 40),
            )
        )
    failed = sum(s.killed + s.errors + s.cancelled for s in by_need)
    absent, count = missing.lost + missing.dropped, sum(s.count for s in by_need)
    notes = [
        f'<span class="bad">{text}</span>'
        for n, text in (
            (failed, f"{failed:,} failed"),
            (absent, f"{absent:,} more without a record"),
        )
        if n
    ]
    notes += [f"{missing.counted:,} of them without a record"] if missing.counted else []
    cards.append(
        card(
            f"{count:,}",
            "tasks" if count != 1 else "task",
            ", ".join(notes) or ("none failed" if count else ""),
        )
    )
    cards.append(card(f"{len(processes):,}", "processes" if len(processes) != 1 else "process", ""))
    return "".join(cards)


def _timeline_note(tasks, processes, lines):
    notes = []
    if tasks.columns["start"].size < tasks.count:
        notes.append(
            f"The plots have the {tasks.columns['start'].size:,} largest and longest of"
            f" {tasks.count:,} tasks; the table has all."
        )
    if len(processes) > len(lines) > 0:
        notes.append(f"Memory of the {len(lines)} largest of {len(processes):,} processes.")
    return " ".join(notes)
