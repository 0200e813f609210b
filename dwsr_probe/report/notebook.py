"""A run for notebooks: `dwsr_probe.load(run)`. DataFrames of what it holds, a summary that shows
itself, a plot, and the model learned from it.

Everything is read when it is first asked for, and kept. Of a job that still runs: what is stored
by then; load it again for more.
"""

import json
import os
import sqlite3
from functools import cached_property, wraps
from html import escape

from dwsr_probe.record import FIELDS, NESTED, TYPES, json_of, largest_device
from dwsr_probe.report.html import write_page
from dwsr_probe.report.words import bytes_text, count_text, line_of, seconds_text
from dwsr_probe.runs import open_run
from dwsr_probe.sample import SAMPLE_BYTES
from dwsr_probe.say import say
from dwsr_probe.store import StoreError

try:
    import numpy as np
    import pandas as pd
except ImportError as error:
    raise ImportError(
        f"dwsr_probe.load needs pandas: pip install 'dwsr-probe[report]' ({error})"
    ) from error

from dwsr_probe.report.readable import summary_of

_KEPT_TEXT = ("key",)  # others repeat: categories
_SHOWN_MOST = 10
_SHOWN = (
    "count",
    "failed",
    "alloc_peak_median_bytes",
    "alloc_peak_max_bytes",
    "gpu_peak_max_bytes",
    "rss_growth_max_bytes",
    "duration_median",
)
_UNREAD = np.uint64(1 << 63)


def load(run=None):
    """The run in a directory, of that name, of a single board file, or the last one; says which
    one, if it was not named by its directory."""
    return Run(open_run(run, say))


def _reading(method):
    """A damaged store is said in one line, not by SQLite."""

    @wraps(method)
    def read(self):
        try:
            return method(self)
        except (sqlite3.Error, UnicodeDecodeError) as error:
            raise StoreError(
                f"cannot read {self.directory or 'the run'}: {error}; it is damaged, or being"
                " written on another machine"
            ) from error

    return read


class Run:
    """One run. `tasks`, `samples` and `processes` are DataFrames; bytes are integers (Int64:
    what was not measured is <NA>), durations seconds, moments UTC."""

    def __init__(self, store):
        self._store = store
        self.directory = store.directory
        self.meta  # noqa: B018  a damaged run is said here, not later

    @cached_property
    @_reading
    def meta(self):
        """What was run, where, and its exit code."""
        return self._store.meta()

    @cached_property
    @_reading
    def tasks(self):
        """One row per task, named as in the record (docs/figures.md), with inputs, output, gpu
        and oom as Python objects, and rss_growth_bytes and gpu_peak_bytes beside them."""
        rows = list(self._store.rows())
        columns = dict(
            zip(FIELDS, zip(*rows, strict=True) if rows else [()] * len(FIELDS), strict=True)
        )
        frame = pd.DataFrame({name: _column(name, columns[name]) for name in FIELDS})
        frame["rss_growth_bytes"] = (frame["rss_peak_bytes"] - frame["rss_before_bytes"]).clip(
            lower=0
        )
        frame["gpu_peak_bytes"] = pd.array(frame["gpu"].map(largest_device), dtype="Int64")
        return frame

    @cached_property
    @_reading
    def processes(self):
        """One row per process, in order of start; `health` has all that its board said."""
        rows = [
            {
                "process": r.process,
                "name": r.task_name,
                "state": r.state,
                "host": r.host,
                "pid": r.pid,
                "start": r.start,
                "duration": r.duration,
                "rss_peak_bytes": r.rss_peak_bytes,
                "limit_bytes": h.get("limit_bytes"),
                "health": h,
            }
            for r, h in self._store.processes()
        ]
        frame = pd.DataFrame(
            rows,
            columns=[
                "process",
                "name",
                "state",
                "host",
                "pid",
                "start",
                "duration",
                "rss_peak_bytes",
                "limit_bytes",
                "health",
            ],
        )
        return frame.astype(
            {"pid": "Int64", "duration": float, "rss_peak_bytes": "Int64", "limit_bytes": "Int64"}
        ).assign(start=_moments(frame["start"]))

    @cached_property
    @_reading
    def samples(self):
        """time, process, rss_bytes, rss_min_bytes, peak_bytes (the kernel's mark), samples: up
        to a thousand a second; older than ten minutes one row a second, of `samples` samples."""
        names = [record.process for record, _ in self._store.processes()]
        parts = [part for i, name in enumerate(names) for part in self._samples_of(i, name)] or [
            (np.empty(0, np.int64),) * 6
        ]
        at, process, low, high, peak, count = (
            np.concatenate(column) for column in zip(*parts, strict=True)
        )
        return pd.DataFrame(
            {
                "time": pd.to_datetime(at, utc=True),
                "process": pd.Categorical.from_codes(process, pd.Index(names, dtype=object)),
                "rss_bytes": high,
                "rss_min_bytes": low,
                "peak_bytes": peak,
                "samples": count,
            }
        )

    def _samples_of(self, number, process):
        """Columns of one process, in pieces."""
        merged = np.array(list(self._store.merged_samples(process)), float).reshape(-1, 5)
        yield (
            (merged[:, 0] * 1e9).astype(np.int64),
            np.full(len(merged), number),
            *(merged[:, i].astype(np.int64) for i in range(1, 5)),
        )
        for epoch, packed in self._store.packed_samples(process):
            values = np.frombuffer(packed, np.uint64).reshape(-1, SAMPLE_BYTES // 8)
            values = values[values[:, 1] < _UNREAD]
            rss, peak = (
                values[:, 1].astype(np.int64),
                np.where(values[:, 2] < _UNREAD, values[:, 2], values[:, 1]).astype(np.int64),
            )
            yield (
                int(epoch * 1e9) + values[:, 0].astype(np.int64),
                np.full(len(values), number),
                rss,
                rss,
                peak,
                np.ones(len(values), np.int64),
            )

    def summary(self):
        """One row per task name, the largest own peak first. Numbers are bytes and seconds;
        shown with units."""
        return summary_of(self.tasks)

    def model(self, most=500):
        """A predict.Model learned from `most` finished tasks of each name, evenly spread over the
        run, and from some that ended early (predict/history.py). Needs the predict extra."""
        from dwsr_probe.predict.history import learn_run

        return learn_run(self._store.tasks(), most).model

    def plot(self, **options):
        """Memory over time as a Bokeh figure, the largest processes; it shows itself in a
        notebook. options: of bokeh.plotting.figure."""
        from dwsr_probe.report.memory_plot import figure_of

        return figure_of(self._store, **options)

    def to_page(self, path=None):
        """Write the page of `dwsr-probe report --format html` to a file: report.html in the
        run's directory, or `path`. Returns its path."""
        path = path or os.path.join(self.directory or "", "report.html")
        write_page(self._store, path, lambda *_: None)
        return path

    def _counts(self):
        return ", ".join(
            count_text(n, word, words, "1")
            for n, word, words in (
                (len(self.tasks), "task", "tasks"),
                (len(self.processes), "process", "processes"),
            )
        )

    def __repr__(self):
        return (
            f"<dwsr_probe run {line_of(str(self.meta.get('run') or 'of a board'), 120)}:"
            f" {self._counts()}>"
        )

    def _repr_html_(self):
        """Small, and nothing that the job named is markup."""
        code = self.meta.get("exit_code")
        peak, seconds = self.processes["rss_peak_bytes"].max(), self.processes["duration"].max()
        facts = [
            "still running, or its parent was killed" if code is None else f"exit code {code}",
            self._counts(),
            f"max rss {bytes_text(None if pd.isna(peak) else peak)}",
            seconds_text(None if pd.isna(seconds) else seconds),
        ]
        head = (
            f"<b>{escape(line_of(str(self.meta.get('run') or 'a board'), 120))}</b>:"
            f" {escape('; '.join(facts))}"
        )
        table = self.summary()
        if not len(table):
            return f"<div>{head}<br>No task was marked.</div>"
        shown = table[list(_SHOWN)].head(_SHOWN_MOST).readable()
        more = (
            f"<br>and {len(table) - _SHOWN_MOST:,} more task names: .summary()"
            if len(table) > _SHOWN_MOST
            else ""
        )
        return f"<div>{head}{shown.to_html(escape=True, border=0)}{more}</div>"


def _column(name, values):
    if name in NESTED:
        try:
            # at once: half the time
            return pd.Series(
                json.loads(f"[{','.join('null' if value is None else value for value in values)}]"),
                dtype=object,
            )
        except ValueError:
            return pd.Series(
                [
                    json_of(value, [] if name == "inputs" else None) if value is not None else None
                    for value in values
                ],
                dtype=object,
            )
    if name == "start":
        return _moments(values)
    if TYPES[name] is float:
        return np.array(values, float)
    if TYPES[name] is int:
        return pd.array(values, dtype="Int64")
    return pd.array(values, dtype="string") if name in _KEPT_TEXT else pd.Categorical(values)


def _moments(seconds):
    return pd.to_datetime(pd.Series(seconds, dtype=float), unit="s", utc=True)
