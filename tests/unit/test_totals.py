"""Totals by task name and operation: bounded, and only ever growing."""

import random

from dwsr_probe.export.totals import (
    BUCKETS,
    NAMES_MOST,
    OTHER,
    OUTCOMES,
    SERIES_PER_PAIR,
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
    """Every counter of the totals, by pair and what it is."""
    found = {}
    for pair, t in totals.pairs.items():
        found |= {(pair, outcome): count for outcome, count in t.outcomes.items()}
        found |= {(pair, kind): peak.total for kind, peak in t.peaks.items()}
        found |= {
            (pair, "in"): t.input.total,
            (pair, "out"): t.output.total,
            (pair, "s"): t.duration.total,
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
    a, b = totals.pairs["a", "a"], totals.pairs["b", "b"]
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
        totals.pairs["a", "a"].peaks == {}
        and sum(totals.own_peaks.counts) == 0
        and sum(totals.pairs["a", "a"].histogram.counts) == 0
    )
    totals.add_rows([row(alloc_peak_bytes=None)])
    assert totals.own_peaks.total == 40  # growth where allocations are not accounted
    assert list(totals.pairs["a", "a"].peaks) == [("rss_growth", "")]


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
        key: peak.total for key, peak in totals.pairs["a", "a"].peaks.items() if key[0] == "cupy"
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
    assert totals.pairs["a", "a"].outcomes == {"ok": 8} and not [
        key for key in totals.pairs["a", "a"].peaks if key[0] == "cupy"
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
    assert len(totals.pairs) == NAMES_MOST + 1 and totals.names_dropped == 5000 - NAMES_MOST
    assert (
        totals.pairs[OTHER, OTHER].outcomes["ok"] == 2 * (5000 - NAMES_MOST)
        and totals.pairs["n0", "n0"].outcomes["ok"] == 2
    )
    assert [name for (name, _), t in totals.pairs.items() if t.histogram] == ["n0", "n1"]


def test_limits_count_pairs():
    """One key prefix with many operations: each pair counts, and `other` has both labels."""
    totals = Totals(histograms_most=2)
    totals.add_rows([row("store-map", operation=f"op{i}") for i in range(5000)] * 2)
    assert len(totals.pairs) == NAMES_MOST + 1 and totals.names_dropped == 5000 - NAMES_MOST
    assert totals.pairs[OTHER, OTHER].outcomes["ok"] == 2 * (5000 - NAMES_MOST)
    assert [pair for pair, t in totals.pairs.items() if t.histogram] == [
        ("store-map", "op0"),
        ("store-map", "op1"),
    ]


def test_a_task_without_an_operation_has_its_name():
    totals = Totals()
    totals.add_rows([row("a"), row("a", operation="a"), row("a", operation="f"), row("b")])
    assert {pair: t.outcomes["ok"] for pair, t in totals.pairs.items()} == {
        ("a", "a"): 2,
        ("a", "f"): 1,
        ("b", "b"): 1,
    }


def test_sums_over_operations_are_those_of_the_name():
    """What a query that sums or takes the maximum by task name gets, is what it was."""
    rng = random.Random(3)
    rows = [
        row(
            f"n{rng.randrange(4)}",
            operation=rng.choice((None, "f", "g")),
            state=rng.choice(OUTCOMES),
            duration=rng.randrange(8),
            alloc_peak_bytes=rng.randrange(1 << 30),
            gpu=[{"device": rng.randrange(2), "peak_bytes": rng.randrange(99), "end_bytes": 0}],
        )
        for _ in range(500)
    ]
    there = FIELDS.index("operation")
    by_pair, by_name = Totals(histograms_most=40), Totals(histograms_most=40)
    by_pair.add_rows(rows, {"1-1": 1 << 31})
    by_name.add_rows([(*one[:there], None, *one[there + 1 :]) for one in rows], {"1-1": 1 << 31})
    sums = {}
    for ((name, _), what), value in figures(by_pair).items():
        sums[(name, name), what] = sums.get(((name, name), what), 0) + value
    assert sums == figures(by_name) and len(by_pair.pairs) == 12 and len(by_name.pairs) == 4
    for (name, _), whole in by_name.pairs.items():
        parts = [t for pair, t in by_pair.pairs.items() if pair[0] == name]
        assert [sum(cells) for cells in zip(*(t.histogram.counts for t in parts), strict=True)] == (
            whole.histogram.counts
        )
        assert max(t.peak_max_ratio for t in parts) == whole.peak_max_ratio
        assert max(t.duration.largest for t in parts) == whole.duration.largest
        for key, peak in whole.peaks.items():
            assert max(t.peaks[key].largest for t in parts if key in t.peaks) == peak.largest
    assert by_pair.own_peaks.counts == by_name.own_peaks.counts


def test_a_task_that_is_called_other():
    totals = Totals(names_most=2)
    totals.add_rows([row(OTHER), row("a"), row("b"), row("c")])
    assert (
        list(totals.pairs) == [(OTHER, OTHER), ("a", "a"), ("b", "b")]
        and totals.pairs[OTHER, OTHER].outcomes["ok"] == 2
        and totals.names_dropped == 1
    )


def test_series_never_exceed_their_most_and_nothing_is_lost():
    """Whatever comes in whatever order: names, operations, outcomes, devices. What has no room is
    in `other`, and sums over all pairs are exact."""
    for seed in range(5):
        rng = random.Random(seed)
        totals, all_of_them, most = Totals(series_most=200), Totals(names_most=10**6), 200
        rows = [
            row(
                f"n{rng.randrange(20)}",
                operation=rng.choice((None, "f", "g")),
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
        assert totals.series_count == sum(t.series_count() for t in totals.pairs.values())
        assert totals.series_count - totals.pairs[OTHER, OTHER].series_count() <= most and len(
            totals.pairs
        ) >= most // (SERIES_PER_PAIR + 40)

        def over_pairs(t):
            sums = {}
            for (_, what), value in figures(t).items():
                sums[what] = sums.get(what, 0) + value
            return sums

        assert over_pairs(totals) == over_pairs(all_of_them)


def test_no_figure_ever_goes_back():
    rng = random.Random(7)
    totals, before = Totals(names_most=5, series_most=80), {}
    for _ in range(300):
        totals.add_rows(
            [
                row(
                    f"n{rng.randrange(6)}",
                    operation=rng.choice((None, "f")),
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
    totals.add_rows([row("a", operation="f\n"), row("a", operation="f\\n")])
    assert {pair: t.outcomes["ok"] for pair, t in totals.pairs.items()} == {
        ("a\\nb", "a\\nb"): 2,
        ("\\ud800", "\\ud800"): 2,
        ("", ""): 1,
        ("a", "f\\n"): 2,
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
    assert {name: t.peak_max_ratio for (name, _), t in totals.pairs.items()} == {
        "large": (1 << 30) / 25e9,
        "small": 0.1,
        "free": None,
        "grown": 40 / 25e9,
    }
