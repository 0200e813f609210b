"""One row per operation or task name as a DataFrame of bytes and seconds, which a notebook shows
with units.

For Run.summary and dask.records(client).summary.
"""

from __future__ import annotations

import shutil
from typing import Any

import pandas as pd

from dwsr_probe.predict.group import Group, chain_text, group_of, labels
from dwsr_probe.record import largest_device_peak
from dwsr_probe.report.distribution import Distribution
from dwsr_probe.words import AtLeast, bytes_text, line_of, seconds_text

_TITLES = {  # as in the other views
    "alloc_peak_median_bytes": ("own peak", "median"),
    "alloc_peak_max_bytes": ("own peak", "max"),
    "gpu_peak_median_bytes": ("gpu peak", "median"),
    "gpu_peak_max_bytes": ("gpu peak", "max"),
    "rss_growth_median_bytes": ("rss growth", "median"),
    "rss_growth_max_bytes": ("rss growth", "max"),
    "input_median_bytes": ("input", "median"),
    "output_median_bytes": ("output", "median"),
    "duration_median": ("duration", "median"),
    "duration_max": ("duration", "max"),
}
_NAMES = ("task_name", "operation", "chain")  # not shown beside figures: the index has labels
_CENSORED = ("alloc_peak", "gpu_peak", "rss_growth")  # lower bounds where a task was killed


class Summary(pd.DataFrame):
    """Values stay numbers: `summary["alloc_peak_max_bytes"] / 2**30`. Units and titles appear only
    where the frame is shown. A column without any value is not shown."""

    _metadata = ["_exact"]  # pandas copies it to frames that are made from this one
    # (column, label) of figures that are exact although a task was killed
    _exact: set[tuple[str, str]] | None = None

    @property
    def _constructor(self) -> type[Summary]:
        return Summary

    def readable(self) -> Any:
        """The frame as it is shown: a plain DataFrame of texts."""
        hidden = _NAMES if set(self.columns) - set(_NAMES) else ()
        shown = [name for name in self.columns if name not in hidden and self[name].notna().any()]
        if "killed" in shown and not self["killed"].any():
            shown.remove("killed")
        texts = pd.DataFrame({name: self._texts(name) for name in shown}, index=self.index)
        if shown:
            texts.columns = pd.MultiIndex.from_tuples(
                [_TITLES.get(name, (name, "")) for name in shown]
            )
        texts.index = pd.Index(
            [line_of(name) if isinstance(name, str) else name for name in self.index]
        )
        return texts

    def _texts(self, name: str) -> list[str]:
        values = [
            value if isinstance(value, list) or not pd.isna(value) else None for value in self[name]
        ]
        if name.startswith(_CENSORED) and "killed" in self.columns:
            exact = self._exact or ()
            values = [
                (
                    AtLeast(value)
                    if killed and value is not None and (name, label) not in exact
                    else value
                )
                for value, killed, label in zip(values, self["killed"], self.index, strict=True)
            ]
        if name in _NAMES:
            return [
                line_of(chain_text(value) if isinstance(value, list) else value or "–", 200)
                for value in values
            ]
        if name.endswith("_bytes"):
            return [bytes_text(value) for value in values]
        if name.startswith("duration"):
            return [seconds_text(value) for value in values]
        return [f"{value:,}" for value in values]

    def __repr__(self) -> str:
        width = max(80, shutil.get_terminal_size().columns)
        most = pd.get_option("display.max_rows")
        return str(self.readable().to_string(line_width=width, max_rows=most))

    def _repr_html_(self) -> str:
        return str(self.readable()._repr_html_())


def summary_of(tasks: Any) -> Summary:
    """The largest own peak first. tasks: a DataFrame with the record's columns. The index has what
    the other views call a row, such as "smooth (1 of 2)"; task_name is the most frequent one."""
    groups = [
        group_of(*names)
        for names in zip(
            tasks["task_name"], _texts_or_none(tasks, "operation"), _chains(tasks), strict=True
        )
    ]
    found_labels = labels(groups)
    growth = (tasks["rss_peak_bytes"] - tasks["rss_before_bytes"]).clip(lower=0)
    device = [largest_device_peak(devices) for devices in tasks["gpu"]]
    tasks = tasks.assign(
        rss_growth_bytes=growth,
        gpu_peak_bytes=pd.array(device, dtype="Int64"),
        failed=tasks["state"] != "ok",
        killed=tasks["state"] == "killed",
        task=pd.Categorical([found_labels[group] for group in groups]),
    )
    table = tasks.groupby("task", observed=True).agg(
        count=("task", "size"),
        failed=("failed", "sum"),
        killed=("killed", "sum"),
        alloc_peak_median_bytes=("alloc_peak_bytes", "median"),
        alloc_peak_max_bytes=("alloc_peak_bytes", "max"),
        gpu_peak_median_bytes=("gpu_peak_bytes", "median"),
        gpu_peak_max_bytes=("gpu_peak_bytes", "max"),
        rss_growth_median_bytes=("rss_growth_bytes", "median"),
        rss_growth_max_bytes=("rss_growth_bytes", "max"),
        input_median_bytes=("input_bytes", "median"),
        output_median_bytes=("output_bytes", "median"),
        duration_median=("duration", "median"),
        duration_max=("duration", "max"),
    )
    found = Summary(
        table.sort_values(["alloc_peak_max_bytes", "rss_growth_max_bytes"], ascending=False)
    )
    _add_names(found, tasks, {found_labels[group]: group for group in groups})
    found._exact = _exact_figures(tasks[tasks["task"].isin(table.index[table["killed"] > 0])])
    return found


def _texts_or_none(tasks: Any, column: str) -> list[str | None]:
    """A column that frames of earlier versions do not have."""
    if column not in tasks:
        return [None] * len(tasks)
    return [text if isinstance(text, str) else None for text in tasks[column]]


def _chains(tasks: Any) -> list[list[str] | None]:
    if "chain" not in tasks:
        return [None] * len(tasks)
    return [chain if isinstance(chain, list) else None for chain in tasks["chain"]]


def _add_names(found: Summary, tasks: Any, group_of_label: dict[str, Group]) -> None:
    """The columns of _NAMES."""
    most_frequent: dict[str, str] = {}
    for label, name in (
        tasks.groupby(["task", "task_name"], observed=True).size().sort_values().index
    ):
        most_frequent[label] = name  # the most frequent one is the last
    operations = {
        label: operation
        for label, operation in zip(tasks["task"], _texts_or_none(tasks, "operation"), strict=True)
        if operation is not None
    }
    found["task_name"] = [most_frequent[label] for label in found.index]
    found["operation"] = [operations.get(label) for label in found.index]
    found["chain"] = [list(group_of_label[label].chain) or None for label in found.index]


def _exact_figures(tasks: Any) -> set[tuple[str, str]]:
    """(column, label) of figures that no true need of the killed tasks could change."""
    found = set()
    for name, group in tasks.groupby("task", observed=True):
        for kind in _CENSORED:
            values, measured = Distribution(), group[group[f"{kind}_bytes"].notna()]
            for value, killed in zip(measured[f"{kind}_bytes"], measured["killed"], strict=True):
                values.add(value, killed)
            found |= {
                (f"{kind}_{word}_bytes", name)
                for word in ("median", "max")
                if not isinstance(getattr(values, word), AtLeast)
            }
    return found
