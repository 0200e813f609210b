"""Totals by task name: bounded, and only ever growing."""

import random

from dwsr_probe.export.totals import (
    BUCKETS,
    NAMES_MOST,
    OTHER,
    OUTCOMES,
    SERIES_PER_NAME,
    Histogram,
    Totals,
    escape_unprintable,
)
from dwsr_probe.record import FIELDS, TaskRecord, to_row

MIB = 1 << 20


def row(name="a", **fields):
    given = {
        "state": "ok",
        "duration": 0.5,
        "input_bytes": 10,
        "output_bytes": 20,
        "rss_before_bytes": 100,
        "rss_peak_bytes": 140,
        "alloc_peak_bytes": 30,
        "gpu": [],
    }
    return to_row(TaskRecord(seq=1, process="1-1", task_name=name, **{**given, **fields}))


def figures(totals):
    """Every counter of the totals, by what it is."""
    found = {}
    for name, t in totals.names.items():
        found |= {(name, outcome): count for outcome, count in t.outcomes.items()}
        found |= {(name, kind): peak.total for kind, peak in t.peaks.items()}
        found |= {
            (name, "in"): t.input.total,
            (name, "out"): t.output.total,
            (name, "s"): t.duration.total,
        }
    return found


def test_sums_and_maxima():
    totals = Totals()
    totals.add_rows(
        [
            row(),
            row(alloc_peak_bytes=50, state="error", duration=1.5),
            row("b", rss_peak_bytes=90, input_bytes=None),
        ]
    )
    a, b = totals.names["a"], totals.names["b"]
    assert (
        a.outcomes == {"ok": 1, "error": 1}
        and (a.duration.total, a.duration.largest) == (2.0, 1.5)
        and (a.input.total, a.output.largest) == (20, 20)
    )
    assert (a.peaks["alloc", ""].total, a.peaks["alloc", ""].largest) == (80, 50) and a.peaks[
        "rss_growth", ""
    ].total == 80
    assert b.peaks["rss_growth", ""].largest == 0  # a peak below where it began is no growth
    assert b.input.total == 0 and totals.names_dropped == 0


def test_what_is_not_known_is_not_counted():
    totals = Totals(histograms_most=1)
    totals.add_rows([row(alloc_peak_bytes=None, rss_before_bytes=None, duration=None, gpu=None)])
    assert (
        totals.names["a"].peaks == {}
        and sum(totals.own_peaks.counts) == 0
        and sum(totals.names["a"].histogram.counts) == 0
    )
    totals.add_rows([row(alloc_peak_bytes=None)])
    assert totals.own_peaks.total == 40  # growth where allocations are not accounted
    assert list(totals.names["a"].peaks) == [("rss_growth", "")]


def test_devices_have_peaks_of_their_own():
    totals = Totals()
    totals.add_rows(
        [
            row(
                gpu=[
                    {"device": 0, "peak_bytes": 7, "end_bytes": 0},
                    {"device": 3, "peak_bytes": 9, "end_bytes": 0},
                ]
            )
        ]
    )
    assert {
        key: peak.total for key, peak in totals.names["a"].peaks.items() if key[0] == "cupy"
    } == {("cupy", "0"): 7, ("cupy", "3"): 9}


def test_devices_that_are_none():
    totals = Totals()
    good = list(row())
    for text in (
        "5",
        "{}",
        "[5]",
        '[{"device": "x"}]',
        '[{"device": 1, "peak_bytes": "9", "end_bytes": 0}]',
        "[",
        "null",
        '"x"',
    ):
        good[FIELDS.index("gpu")] = text
        totals.add_rows([tuple(good)])
    assert totals.names["a"].outcomes == {"ok": 8} and not [
        key for key in totals.names["a"].peaks if key[0] == "cupy"
    ]


def test_buckets():
    histogram = Histogram()
    for value in (0, MIB, MIB + 1, BUCKETS[-1], BUCKETS[-1] + 1):
        histogram.add(value)
    found = list(histogram.cumulative())
    assert (
        found[0] == (MIB, 2)
        and found[1] == (4 * MIB, 3)
        and found[-2] == (1 << 40, 4)
        and found[-1] == (float("inf"), 5)
    )
    assert len(BUCKETS) == 11 and histogram.total == sum(
        (0, MIB, MIB + 1, BUCKETS[-1], BUCKETS[-1] + 1)
    )


def test_names_beyond_the_most_go_to_other():
    totals = Totals(histograms_most=2)
    totals.add_rows([row(f"n{i}") for i in range(5000)] * 2)
    assert len(totals.names) == NAMES_MOST + 1 and totals.names_dropped == 5000 - NAMES_MOST
    assert (
        totals.names[OTHER].outcomes["ok"] == 2 * (5000 - NAMES_MOST)
        and totals.names["n0"].outcomes["ok"] == 2
    )
    assert [name for name, t in totals.names.items() if t.histogram] == ["n0", "n1"]


def test_a_task_that_is_called_other():
    totals = Totals(names_most=2)
    totals.add_rows([row(OTHER), row("a"), row("b"), row("c")])
    assert (
        list(totals.names) == [OTHER, "a", "b"]
        and totals.names[OTHER].outcomes["ok"] == 2
        and totals.names_dropped == 1
    )


def test_series_never_exceed_their_most_and_nothing_is_lost():
    """Whatever comes in whatever order: names, outcomes, devices. What has no room is in
    `other`, and sums over all names are exact."""
    for seed in range(5):
        rng = random.Random(seed)
        totals, all_of_them, most = Totals(series_most=200), Totals(names_most=10**6), 200
        rows = [
            row(
                f"n{rng.randrange(60)}",
                state=rng.choice(OUTCOMES),
                alloc_peak_bytes=rng.choice((None, 5)),
                gpu=(
                    [{"device": rng.randrange(16), "peak_bytes": 3, "end_bytes": 0}]
                    if rng.random() < 0.3
                    else []
                ),
            )
            for _ in range(3000)
        ]
        totals.add_rows(rows)
        all_of_them.add_rows(rows)
        assert totals.series_count == sum(t.series_count() for t in totals.names.values())
        assert totals.series_count - totals.names[OTHER].series_count() <= most and len(
            totals.names
        ) >= most // (SERIES_PER_NAME + 40)

        def over_names(t):
            sums = {}
            for (_, what), value in figures(t).items():
                sums[what] = sums.get(what, 0) + value
            return sums

        assert over_names(totals) == over_names(all_of_them)


def test_no_figure_ever_goes_back():
    rng = random.Random(7)
    totals, before = Totals(names_most=5, series_most=80), {}
    for _ in range(300):
        totals.add_rows(
            [
                row(
                    f"n{rng.randrange(12)}",
                    state=rng.choice(OUTCOMES),
                    gpu=[{"device": rng.randrange(4), "peak_bytes": 1, "end_bytes": 0}],
                )
            ]
        )
        now = figures(totals)
        assert all(now[key] >= value for key, value in before.items())
        before = now


def test_names_that_look_the_same_are_one():
    """Two series with the same labels would make the whole scrape invalid."""
    totals = Totals()
    totals.add_rows([row("a\nb"), row("a\\nb"), row("\ud800"), row("\\ud800"), row("")])
    assert {name: t.outcomes["ok"] for name, t in totals.names.items()} == {
        "a\\nb": 2,
        "\\ud800": 2,
        "": 1,
    }
    assert (
        escape_unprintable("déjà 🛢") == "déjà 🛢"
        and escape_unprintable("a\0\x7f\u2028") == "a\\x00\\x7f\\u2028"
    )


def test_a_share_is_of_the_tasks_own_process():
    totals = Totals()
    own = {"1-1": 25 * 10**9, "2-1": 600 << 20, "3-1": None}
    there = FIELDS.index("process")
    rows = [
        row("large", alloc_peak_bytes=1 << 30),
        row("small", alloc_peak_bytes=60 << 20),
        row("free", alloc_peak_bytes=5),
        row("grown", alloc_peak_bytes=None),
    ]
    totals.add_rows(
        [
            tuple(process if i == there else value for i, value in enumerate(found))
            for found, process in zip(rows, ("1-1", "2-1", "3-1", "1-1"), strict=True)
        ],
        own,
    )
    assert {name: t.peak_max_ratio for name, t in totals.names.items()} == {
        "large": (1 << 30) / 25e9,
        "small": 0.1,
        "free": None,
        "grown": 40 / 25e9,
    }
