"""The page as text: what the other modules found, put into page.html. Called by write_page.

Styles and scripts are inline. A Content-Security-Policy names the scripts by their hashes, so that
nothing else can run and nothing can be fetched.
"""

from __future__ import annotations

import base64
import datetime
import hashlib
import shlex
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from html import escape
from importlib.resources import files
from string import Template
from typing import TYPE_CHECKING, Any

import numpy as np
from bokeh.resources import Resources

from dwsr_probe.board import process_limit
from dwsr_probe.report.html.figures import NAME_COLOURS, PROCESS_COLOURS, FigureSet
from dwsr_probe.report.html.memory import memory_lines
from dwsr_probe.report.html.packed import pack
from dwsr_probe.report.html.plots import add_scatter, has_scatter, time_span, timeline_data
from dwsr_probe.report.html.tables import (
    code,
    devices_table,
    largest_table,
    names_table,
    processes_table,
)
from dwsr_probe.report.html.tasks import collect_tasks
from dwsr_probe.report.outlook import Outlook
from dwsr_probe.report.summary import limiting_memory, missing_records
from dwsr_probe.report.verdict import make_verdict
from dwsr_probe.words import (
    Name,
    bytes_text,
    count_text,
    line_of,
    percent_text,
    seconds_text,
)

if TYPE_CHECKING:
    from dwsr_probe.report.html import Progress
    from dwsr_probe.report.html.memory import MemoryLine
    from dwsr_probe.report.html.plots import TimeSpan
    from dwsr_probe.report.html.tasks import CollectedTasks
    from dwsr_probe.report.summary import MissingRecords, NameSummary, ProcessRow
    from dwsr_probe.store import Store
    from dwsr_probe.words import Sentence

DATA_MOST = 6_000_000  # bytes; with Bokeh and the tables the file stays below 8 MB
SCATTERS_MOST = 9  # names with a scatter plot of their own
_NO_MODEL = "The line and its band need the model: pip install 'dwsr-probe[predict]'."
_DIRECTORY = files("dwsr_probe.report.html")


def page_of(store: Store, progress: Progress, task: str | None = None) -> str:
    """task: only tasks that a user means by this name are shown; the verdict is of the whole run.
    NoSuchTask if there are none."""
    meta, processes = store.meta(), store.processes()
    tasks = collect_tasks(store, processes, progress, task)
    lines = memory_lines(store, processes, progress)
    names = tasks.summaries
    on_device = limiting_memory(names) == "device"
    panels = [s for s in names if has_scatter(tasks, s)][:SCATTERS_MOST]
    outlook = Outlook.from_sample(
        tasks.sample,
        partial(progress, "learning"),
        store,
    )
    progress("writing the page", 0, 1)
    missing = missing_records(processes, store.totals())
    found = make_verdict(tasks.all_summaries, processes, outlook, meta.get("exit_code"), missing)
    span = time_span(tasks, lines, processes)
    groups = {s.group: i for i, s in enumerate(names[:NAME_COLOURS])}
    plots = timeline_data(tasks, lines, processes, span, groups, on_device)
    figures = FigureSet("panels")
    scatters = [add_scatter(i, s, tasks, outlook, figures) for i, s in enumerate(panels)]
    data = pack({**plots.head, "scatters": scatters, "panels": figures.json()}, plots.arrays)

    def chip(s: NameSummary) -> str:
        return f'<i class="chip g{groups.get(s.group, NAME_COLOURS)}"></i>'

    devices = devices_table(processes)
    return _fill_template(
        title=escape(line_of(str(meta.get("run") or "a run"), 120)),
        facts=_facts(meta, processes, span, task),
        level=found.level,
        headline=_markup(found.headline),
        sentences="".join(f"<li>{_markup(s)}</li>" for s in found.troubles + found.sentences),
        advice="".join(f"<p>{_markup(s)}</p>" for s in found.advice),
        figures=_cards(processes, tasks.all_summaries, missing),
        legend=_names_legend(names, chip),
        lines=_lines_legend(
            [plots.head["processes"][line.process] for line in lines], plots.head["limit"]
        ),
        timeline_hidden="hidden" if plots.is_empty else "",
        timeline_note=_timeline_note(tasks, processes, lines),
        tasks_hidden="" if tasks.count else "hidden",
        scatters="".join(
            f"<figure><figcaption>{chip(s)}{code(s.label, 60)}"
            f"<small>{escape(panel.get('trust', ''))}</small></figcaption>"
            f'<div id="scatter{i}"></div></figure>'
            for i, (s, panel) in enumerate(zip(panels, scatters, strict=True))
        ),
        scatter_hidden="" if panels else "hidden",
        scatter_note=_scatter_note(panels, outlook),
        stack_title=f"{'Device' if on_device else 'Own'} peaks of the tasks under way",
        names=names_table(names, chip, missing),
        largest=largest_table(tasks.largest, span.begin, tasks.label_of),
        devices=devices,
        devices_hidden="" if devices else "hidden",
        processes=processes_table(processes, meta.get("exit_code")),
        data=data,
        keys=_packed_keys(tasks, DATA_MOST - len(data)),
    )


def _packed_keys(tasks: CollectedTasks, most: int) -> str:
    """The keys of the tasks, packed into at most `most` bytes. Keys do not compress well, so those
    of the smallest tasks are left out first. Keys are packed apart from the other data, because
    plots can be drawn without them."""
    by_size = np.argsort(-np.nan_to_num(tasks.columns["own"]), kind="stable")
    kept, keys = len(tasks.keys), tasks.keys
    while len(packed := pack({"keys": keys}, {})) > most and kept:
        kept //= 4
        keys = [""] * len(tasks.keys)
        for i in by_size[:kept]:
            keys[i] = tasks.keys[i]
    return packed


def _fill_template(**parts: str) -> str:
    """page.html with its parts, and with the policy for exactly the scripts in it."""
    scripts = {
        "bokeh": "\n".join(Resources(mode="inline", components=["bokeh"], minified=True).js_raw),
        "page_js": (_DIRECTORY / "page.js").read_text(),
        "timeline_js": (_DIRECTORY / "timeline.js").read_text(),
    }
    hashes = " ".join(
        f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
        for text in scripts.values()
    )
    return Template((_DIRECTORY / "page.html").read_text()).substitute(
        parts, css=(_DIRECTORY / "page.css").read_text(), script_hashes=hashes, **scripts
    )


def _markup(sentence: Sentence) -> str:
    return "".join(
        f"<b>{escape(part)}</b>" if isinstance(part, Name) else escape(part) for part in sentence
    )


def _names_legend(names: Sequence[NameSummary], chip: Callable[[NameSummary], str]) -> str:
    found = [f"<span>{chip(s)}{code(s.label, 40)}</span>" for s in names[:NAME_COLOURS]]
    if len(names) > NAME_COLOURS:
        found.append(f'<span><i class="chip g{NAME_COLOURS}"></i>others</span>')
    return "".join(found)


def _lines_legend(names: Sequence[str], limit: bool) -> str:
    """Which line is which process: the largest have a colour of their own."""
    found = [
        f'<span><i class="stroke p{i}"></i>{code(name, 60)}</span>'
        for i, name in enumerate(names[:PROCESS_COLOURS])
    ]
    if len(names) > PROCESS_COLOURS:
        others = count_text(len(names) - PROCESS_COLOURS, "other process", "other processes", "1")
        found.append(f'<span><i class="stroke"></i>{others}</span>')
    if limit and names:
        found.append('<span><i class="stroke limit"></i>limit</span>')
    return "".join(found)


def _scatter_note(panels: Sequence[NameSummary], outlook: Outlook | None) -> str:
    early = any(s.killed or s.errors for s in panels)
    note = "Red ones ended early, and might have needed more. " if early else ""
    return note + ("" if outlook else _NO_MODEL)


def _facts(
    meta: Mapping[str, Any], processes: Sequence[ProcessRow], span: TimeSpan, task: str | None
) -> str:
    command = meta.get("command")
    command = shlex.join(map(str, command)) if isinstance(command, list) else str(command or "")
    began = datetime.datetime.fromtimestamp(span.begin).astimezone() if span.begin else None
    hosts = sorted({record.host for record, _ in processes if record.host})
    hosts_text = ", ".join(hosts[:3])
    if len(hosts) > 3:
        hosts_text += f" and {count_text(len(hosts) - 3, 'more host', 'more hosts', '1')}"
    parts = [
        code(command, 200) if command else "",
        escape(began.strftime("%Y-%m-%d %H:%M:%S %Z")) if began else "",
        escape(line_of(hosts_text, 120)),
        seconds_text(span.seconds) if began else "",
        _outcome(meta),
        "" if task is None else f"only tasks of {code(task, 80)} are shown",
    ]
    return "".join(f"<span>{part}</span>" for part in parts if part)


def _outcome(meta: Mapping[str, Any]) -> str:
    if meta.get("gathered"):  # dwsr_probe.dask.records(client)
        gathered = datetime.datetime.fromtimestamp(meta["gathered"]).astimezone()
        return f"tasks that its workers held at {gathered:%H:%M:%S}"
    if not meta:
        return ""
    exit_code = meta.get("exit_code")
    if exit_code is None:
        return "exit code not known: still running, or its parent was killed"
    return f"exit code {escape(str(exit_code))}"


def _cards(
    processes: Sequence[ProcessRow], names: Sequence[NameSummary], missing: MissingRecords
) -> str:
    """The few numbers that people look for first."""

    def card(value: str, label: str, more: str = "") -> str:
        return f"<div><strong>{value}</strong><span>{label}</span><small>{more}</small></div>"

    cards = []
    if names:
        s = names[0] if names[0].killed else max(names, key=lambda s: s.need_bytes or 0)
        own = s.alloc_peak_max_bytes is not None
        label = "largest task's own peak" if own else "largest task's growth"
        if s.misses_memory:
            label = "largest task's need, as far as seen"
        cards.append(card(bytes_text(s.need_bytes), label, code(s.label, 40)))
    largest = max(processes, key=lambda row: row[0].rss_peak_bytes or 0, default=None)
    if largest is not None and (peak := largest[0].rss_peak_bytes):
        limit = process_limit(largest[1])
        share = f"{percent_text(peak / limit)} of {bytes_text(limit)}" if limit else ""
        cards.append(card(bytes_text(peak), "largest process", share))
    on_devices = [s for s in names if s.gpu_peaks]
    device = max(on_devices, key=lambda s: s.gpu_peak_max_bytes or 0, default=None)
    if device is not None and device.gpu_peak_max_bytes:
        peak_text = bytes_text(device.gpu_peak_max_bytes)
        cards.append(card(peak_text, "largest task on a device", code(device.label, 40)))
    cards.append(_tasks_card(names, missing, card))
    cards.append(card(f"{len(processes):,}", "processes" if len(processes) != 1 else "process"))
    return "".join(cards)


def _tasks_card(
    names: Sequence[NameSummary], missing: MissingRecords, card: Callable[[str, str, str], str]
) -> str:
    count = sum(s.count for s in names)
    failed = sum(s.killed + s.errors + s.cancelled for s in names)
    notes = []
    if failed:
        notes.append(f'<span class="bad">{failed:,} failed</span>')
    if missing.not_in_table:
        notes.append(f'<span class="bad">{missing.not_in_table:,} more without a record</span>')
    if missing.counted:
        notes.append(f"{missing.counted:,} of them without a record")
    note = ", ".join(notes) or ("none failed" if count else "")
    return card(f"{count:,}", "tasks" if count != 1 else "task", note)


def _timeline_note(
    tasks: CollectedTasks, processes: Sequence[ProcessRow], lines: Sequence[MemoryLine]
) -> str:
    notes = []
    if tasks.columns["start"].size < tasks.count:
        notes.append(
            f"The plots have the {tasks.columns['start'].size:,} largest and longest of"
            f" {tasks.count:,} tasks; the table has all."
        )
    if len(processes) > len(lines) > 0:
        notes.append(f"Memory of the {len(lines)} largest of {len(processes):,} processes.")
    return " ".join(notes)
