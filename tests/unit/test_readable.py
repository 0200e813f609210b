"""summary() of notebooks."""

import pandas as pd
import pytest

from dwsr_probe.report.distribution import Distribution
from dwsr_probe.report.readable import summary_of
from dwsr_probe.words import bytes_text

MIB = 1 << 20


def tasks(**names):
    """A frame of tasks: (own peak in MiB, state) of each by name."""
    rows = [
        {
            "task_name": name,
            "alloc_peak_bytes": peak * MIB,
            "state": state,
            "duration": 1.0,
            "rss_before_bytes": 0,
            "rss_peak_bytes": peak * MIB,
            "gpu": None,
            "input_bytes": None,
            "output_bytes": None,
        }
        for name, ended in names.items()
        for peak, state in ended
    ]
    frame = pd.DataFrame(rows)
    return frame.astype({name: "Int64" for name in frame if name.endswith("_bytes")})


KNOWN = [(5, "ok"), (7, "ok"), (7, "ok"), (8, "ok"), (9, "killed")]
RAISED = [(5, "ok"), (7, "killed"), (9, "ok")]


@pytest.mark.parametrize("ended", [KNOWN, RAISED, KNOWN[:4], [(7, "killed")]])
def test_lower_bounds_are_those_of_the_terminal(ended):
    summary = summary_of(tasks(x=ended, other=[(1, "ok")]))
    values = Distribution()
    for peak, state in ended:
        values.add(peak * MIB, state == "killed")
    for made in (summary, summary.head(5), summary.sort_values("count"), summary.loc[["x"]]):
        row = made.readable().loc["x"]
        for kind in ("own peak", "rss growth"):
            assert row[kind, "median"] == bytes_text(values.median)
            assert row[kind, "max"] == bytes_text(values.max)


def test_rows_are_by_operation_and_chain():
    frame = tasks(**{"store-map": [(n, "ok") for n in (1, 2, 3, 4, 5)], "other": [(6, "killed")]})
    frame["operation"] = pd.Categorical(["Rms", "Gst", "Gst", "Gst", None, "Rms"])
    frame["chain"] = [None, ["Gst"], ["a", "Gst"], ["a", "Gst"], None, None]
    summary = summary_of(frame)
    assert summary.index.tolist() == ["Rms", "store-map", "Gst (2 of 2)", "Gst (1 of 2)"]
    assert summary.loc["Gst (2 of 2)", ["count", "task_name", "operation", "chain"]].tolist() == [
        2,
        "store-map",
        "Gst",
        ["a", "Gst"],
    ]
    assert summary.loc["store-map", ["operation", "chain"]].tolist() == [None, None]
    shown = summary.readable()
    assert ("chain", "") not in shown and shown.loc["Rms", ("own peak", "max")] == "≥ 6.0 MiB"
    names = summary[["task_name", "operation", "chain"]].readable()
    assert names.loc["Gst (2 of 2)"].tolist() == ["store-map", "Gst", "a → Gst"]
    assert len(summary_of(frame[:0])) == 0


def test_without_its_names_a_summary_promises_nothing():
    """Which medians are known is kept by name: numbered rows have the mark rather than not."""
    summary = summary_of(tasks(x=KNOWN))
    assert summary.readable()["own peak", "median"].tolist() == ["7.0 MiB"]
    assert summary.reset_index(drop=True).readable()["own peak", "median"].tolist() == ["≥ 7.0 MiB"]
