"""A run for notebooks: `dwsr_probe.load(run)`. It has DataFrames, a readable summary, a plot, and a
model that has learned from the run.

Everything is read when it is first used, and kept. While the job still runs, that is what has been
stored until then: load the run again for more.
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, wraps
from html import escape
from typing import TYPE_CHECKING, Any, TypeVar

from dwsr_probe.record import FIELDS, NESTED, TYPES, largest_device_peak, parse_json
from dwsr_probe.report.html import write_page
from dwsr_probe.runs import open_run
from dwsr_probe.sample import SAMPLE_BYTES
from dwsr_probe.say import say
from dwsr_probe.store import StoreError
from dwsr_probe.words import bytes_text, count_text, line_of, seconds_text

try:
    import numpy as np
    import pandas as pd
except ImportError as error:
    raise ImportError(
        f"dwsr_probe.load needs pandas: pip install 'dwsr-probe[report]' ({error})"
    ) from error

from dwsr_probe.report.readable import Summary, summary_of

if TYPE_CHECKING:
    from dwsr_probe.predict import Model
    from dwsr_probe.store import Store

T = TypeVar("T")
_UNIQUE_TEXT_COLUMNS = ("key",)  # other texts repeat, and become categories
_NAMES_MOST = 10  # in the table that a notebook shows for a run
_SHOWN_COLUMNS = (
    "count",
    "failed",
    "alloc_peak_median_bytes",
    "alloc_peak_max_bytes",
    "gpu_peak_max_bytes",
    "rss_growth_max_bytes",
    "duration_median",
)
_UNREADABLE = np.uint64(1 << 63)  # sizes from here on mean that the size could not be read


def load(run: str | os.PathLike[str] | None = None) -> Run:
    """The run in a directory, of that name, or of a single board file; None: the last one. Prints
    which run it is, if it was not named by its directory."""
    return Run(open_run(None if run is None else os.fspath(run), say))


def _reports_damage(method: Callable[[Run], T]) -> Callable[[Run], T]:
    """A decorator for methods that read the store. A damaged store raises StoreError with one line,
    not SQLite's exception."""

    @wraps(method)
    def read(self: Run) -> T:
        try:
            return method(self)
        except (sqlite3.Error, UnicodeDecodeError) as error:
            raise StoreError(
                f"cannot read {self.directory or 'the run'}: {error}; it is damaged, or being"
                " written on another machine"
            ) from error

    return read


class Run:
    """One run. `tasks`, `samples` and `processes` are DataFrames. Bytes are integers (Int64; <NA>:
    not measured), durations are seconds, points in time are UTC."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.directory = store.directory
        self.meta  # noqa: B018  a damaged run must fail here, not later

    @cached_property
    @_reports_damage
    def meta(self) -> dict[str, Any]:
        """What was run, where, and its exit code."""
        return self._store.meta()

    @cached_property
    @_reports_damage
    def tasks(self) -> Any:
        """One row per task, named as in the record (docs/figures.md), with inputs, output, gpu,
        oom and chain as Python objects, and rss_growth_bytes and gpu_peak_bytes beside them."""
        rows = list(self._store.rows())
        columns = dict(
            zip(FIELDS, zip(*rows, strict=True) if rows else [()] * len(FIELDS), strict=True)
        )
        frame = pd.DataFrame({name: _column(name, columns[name]) for name in FIELDS})
        frame["rss_growth_bytes"] = (frame["rss_peak_bytes"] - frame["rss_before_bytes"]).clip(
            lower=0
        )
        frame["gpu_peak_bytes"] = pd.array(frame["gpu"].map(largest_device_peak), dtype="Int64")
        return frame

    @cached_property
    @_reports_damage
    def processes(self) -> Any:
        """One row per process, in order of start. `health` has everything that its board said."""
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
        ).assign(start=_utc_times(frame["start"]))

    @cached_property
    @_reports_damage
    def samples(self) -> Any:
        """time, process, rss_bytes, rss_min_bytes, peak_bytes (the kernel's high-water mark) and
        samples. Up to a thousand rows a second; of what is older than ten minutes one row a
        second, which stands for `samples` samples."""
        names = [record.process or "" for record, _ in self._store.processes()]
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

    def _samples_of(self, number: int, process: str) -> Iterator[tuple[np.ndarray, ...]]:
        """Columns of one process, in pieces: time, number of the process, smallest and largest
        resident size, high-water mark, samples."""
        merged = np.array(list(self._store.merged_samples(process)), np.float64).reshape(-1, 5)
        yield (
            (merged[:, 0] * 1e9).astype(np.int64),
            np.full(len(merged), number),
            *(merged[:, i].astype(np.int64) for i in range(1, 5)),
        )
        for epoch, packed in self._store.packed_samples(process):
            values = np.frombuffer(packed, np.uint64).reshape(-1, SAMPLE_BYTES // 8)
            values = values[values[:, 1] < _UNREADABLE]
            rss, peak = (
                values[:, 1].astype(np.int64),
                np.where(values[:, 2] < _UNREADABLE, values[:, 2], values[:, 1]).astype(np.int64),
            )
            yield (
                int(epoch * 1e9) + values[:, 0].astype(np.int64),
                np.full(len(values), number),
                rss,
                rss,
                peak,
                np.ones(len(values), np.int64),
            )

    def summary(self) -> Summary:
        """One row per operation or task name, the largest own peak first. Values are bytes and
        seconds, and are shown with units."""
        return summary_of(self.tasks)

    def model(self, most: int = 500) -> Model:
        """A predict.Model learned from `most` finished tasks of each name, evenly spread over the
        run, and from some that ended early (predict/history.py). Needs the predict extra."""
        from dwsr_probe.predict.history import learn_run

        return learn_run(self._store.tasks(), most).model

    def plot(self, **options: Any) -> Any:
        """Memory over time of the largest processes, as a Bokeh figure that a notebook shows.
        options: of bokeh.plotting.figure."""
        from dwsr_probe.report.memory_plot import figure_of

        return figure_of(self._store, **options)

    def to_page(self, path: str | None = None) -> str:
        """Write the page of `dwsr-probe report --format html` to `path`; None: report.html in the
        run's directory. Returns its path."""
        path = path or os.path.join(self.directory or "", "report.html")
        write_page(self._store, path, lambda *_: None)
        return path

    def _counts(self) -> str:
        return ", ".join(
            count_text(n, word, words, "1")
            for n, word, words in (
                (len(self.tasks), "task", "tasks"),
                (len(self.processes), "process", "processes"),
            )
        )

    def __repr__(self) -> str:
        return (
            f"<dwsr_probe run {line_of(str(self.meta.get('run') or 'of a board'), 120)}:"
            f" {self._counts()}>"
        )

    def _repr_html_(self) -> str:
        """Small; names from the job are escaped."""
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
        shown = table[list(_SHOWN_COLUMNS)].head(_NAMES_MOST).readable()
        more = (
            f"<br>and {len(table) - _NAMES_MOST:,} more task names: .summary()"
            if len(table) > _NAMES_MOST
            else ""
        )
        return f"<div>{head}{shown.to_html(escape=True, border=0)}{more}</div>"


def _column(name: str, values: Sequence[Any]) -> Any:
    if name in NESTED:
        try:
            # Parsing all values at once takes half the time.
            return pd.Series(
                json.loads(f"[{','.join('null' if value is None else value for value in values)}]"),
                dtype=object,
            )
        except ValueError:
            return pd.Series(
                [
                    parse_json(value, [] if name == "inputs" else None)
                    if value is not None
                    else None
                    for value in values
                ],
                dtype=object,
            )
    if name == "start":
        return _utc_times(values)
    if TYPES[name] is float:
        return np.array(values, float)
    if TYPES[name] is int:
        return pd.array(values, dtype="Int64")
    return (
        pd.array(values, dtype="string") if name in _UNIQUE_TEXT_COLUMNS else pd.Categorical(values)
    )


def _utc_times(seconds: Any) -> Any:
    return pd.to_datetime(pd.Series(seconds, dtype=float), unit="s", utc=True)
