"""Exact sums of a board: the same as the sums of all its records, whatever the ring still holds."""

import json
import random

import pytest

from dwsr_probe import _core
from dwsr_probe.board import Board
from dwsr_probe.export.totals import Totals
from dwsr_probe.record import TaskRecord, to_row
from dwsr_probe.report.summary import summarise
from dwsr_probe.total import (
    Total,
    add_last_record,
    cell_bounds,
    cell_of,
    cell_value,
    from_json,
    from_words,
)
from dwsr_probe.words import About, AtLeast

MIB = 1 << 20


def empty(name="a", operation=None):
    total = from_words((None,) * len(_core.TOTAL_FIELDS), (), ({}, {}, {}, {}), ())
    total.name, total.operation = name, operation
    return total


def record(chance, seq, name="a"):
    alloc = None if chance.random() < 0.2 else chance.randrange(1 << chance.randrange(1, 42))
    devices = (
        None
        if chance.random() < 0.5
        else [
            {"device": n, "peak_bytes": chance.randrange(1 << 30), "end_bytes": 0}
            for n in range(chance.randrange(3))
        ]
    )
    before = None if chance.random() < 0.1 else chance.randrange(MIB)
    return TaskRecord(
        seq=seq,
        process="1-1",
        task_name=name,
        state=chance.choice(["ok", "ok", "error", "cancelled"]),
        duration=chance.randrange(1 << chance.randrange(1, 40)) / 1e9,
        rss_before_bytes=before,
        rss_peak_bytes=chance.randrange(1 << chance.randrange(1, 42)),
        alloc_peak_bytes=alloc,
        gpu=devices,
        input_bytes=chance.choice([None, 7, 1 << 30]),
        output_bytes=chance.choice([None, 9]),
        attribution=chance.choice(["exact", "shared"]),
        overlap=chance.randrange(4),
        rss_peak_source=chance.choice(["kernel", "sampled"]),
        oom=chance.choice([None, {"where": "host"}]),
    )


def test_cells_are_within_five_per_cent():
    chance, last = random.Random(1), 0
    for value in sorted(
        chance.randrange(1025, 1 << chance.randrange(11, 41)) for _ in range(20_000)
    ):
        low, high = cell_bounds(cell_of(value))
        assert low - 1 <= value <= high + 1 and cell_of(value) >= last
        assert abs(cell_value(cell_of(value)) - value) <= 0.05 * value
        last = cell_of(value)
    assert (
        cell_of(0) == cell_of(1024) == 0
        and cell_of(1 << 50) == 301
        and cell_bounds(301) == (1 << 40, None)
        and cell_value(0) == 1024
    )


def test_the_boards_cells_are_ours(probe):
    """csrc/totals.c and total.py have the same arithmetic."""
    for n in range(40):
        with probe.task("sizes"):
            bytearray(n * n * 5000)
    (total,) = (t for t in Board(_core.board_path()).totals() if t.name == "sizes")
    mine = empty("sizes")
    for one in probe.records():
        mine.add(one)
    assert {name: getattr(total, name) for name in Total.__slots__} == {
        name: getattr(mine, name) for name in Total.__slots__
    }
    assert from_json(total.to_json()).to_json() == total.to_json()


def test_totals_of_boards_and_of_rows_are_the_same():
    """Added bit by bit, as looks at a living board find them."""
    chance = random.Random(2)
    of_rows, of_totals = Totals(histograms_most=40), Totals(histograms_most=40)
    boards = {
        "1-1": {pair: empty(*pair) for pair in (("a", None), ("a", "f"), ("b", "f"))},
        "2-2": {pair: empty(*pair) for pair in (("a", "f"), ("b", None), (None, None))},
    }
    for seq in range(1, 2001):
        process = chance.choice(list(boards))
        pair = chance.choice(list(boards[process]))
        one = record(chance, seq, pair[0] or "other")
        one.operation = pair[1]
        of_rows.add_rows([to_row(one)])
        boards[process][pair].add(one)
        if seq % 97 == 0 or seq == 2000:
            for number, totals in boards.items():
                of_totals.add_totals(
                    number, [from_json(total.to_json()) for total in totals.values()]
                )
    assert (
        set(of_rows.pairs)
        == set(of_totals.pairs)
        == {("a", "a"), ("a", "f"), ("b", "b"), ("b", "f"), ("other", "other")}
        and of_rows.series_count == of_totals.series_count
    )
    for pair, rows in of_rows.pairs.items():
        totals = of_totals.pairs[pair]
        assert (
            rows.outcomes == totals.outcomes
            and rows.histogram.counts == totals.histogram.counts
            and rows.histogram.total == totals.histogram.total
        )
        assert {key: (sum_.total, sum_.largest) for key, sum_ in rows.peaks.items()} == {
            key: (sum_.total, sum_.largest) for key, sum_ in totals.peaks.items()
        }
        for sums in ("input", "output"):
            assert (getattr(rows, sums).total, getattr(rows, sums).largest) == (
                getattr(totals, sums).total,
                getattr(totals, sums).largest,
            )
        assert (
            rows.duration.total == pytest.approx(totals.duration.total)
            and rows.duration.largest == totals.duration.largest
        )
    assert (
        of_rows.own_peaks.counts == of_totals.own_peaks.counts
        and of_rows.own_peaks.total == of_totals.own_peaks.total
    )


def test_a_record_that_was_published_and_not_counted():
    chance = random.Random(3)
    totals, last = [empty("a"), empty("b")], record(chance, 9, "a")
    totals[1].add(record(chance, 8, "b"))
    add_last_record(totals, last)
    add_last_record(totals, last)  # it is counted now
    assert [t.count for t in totals] == [1, 1] and totals[0].last_seq == 9
    add_last_record(totals, record(chance, 10, "new"))
    assert [(t.name, t.count) for t in totals] == [("a", 1), ("b", 1), ("new", 1)]


def summary_of(kept, missing, killed=(), **health):
    """Of a process that has lost the records of `missing`."""
    total, process = empty("a"), TaskRecord(kind="process", process="1-1", state="ok")
    for one in [*kept, *missing]:
        total.add(one)
    processes = [(process, {"records_lost": len(missing), "limit_bytes": 1 << 40, **health})]
    (found,) = summarise([*kept, *killed], processes, {"1-1": [total]})
    return found


def test_a_table_without_all_records_is_exact_but_for_its_medians():
    chance = random.Random(4)
    every = [record(chance, seq) for seq in range(1, 1001)]
    (true,) = summarise(
        every, [(TaskRecord(kind="process", process="1-1", state="ok"), {"limit_bytes": 1 << 40})]
    )
    found = summary_of(every[900:], every[:900])
    for name in (
        "count",
        "errors",
        "cancelled",
        "killed",
        "shared",
        "sampled",
        "ooms",
        "overlap_max",
        "growth_max_bytes",
        "alloc_peak_max_bytes",
        "rss_peak_bytes",
        "gpu_peak_max_bytes",
        "host_ratio",
        "need_bytes",
    ):
        assert getattr(found, name) == getattr(true, name), name
    assert found.duration_max == pytest.approx(true.duration_max)
    for name in ("growth_median_bytes", "alloc_peak_median_bytes", "duration_median"):
        about = getattr(found, name)
        assert isinstance(about, About) and about == pytest.approx(
            max(getattr(true, name), 1024 * (1e-9 if "duration" in name else 1)), rel=0.06
        ), name
    assert len(found.gpu_peaks) == len([r for r in every[900:] if r.gpu is not None])


def test_why_is_said_of_those_that_have_a_record():
    """Totals count how many are shared; only records say why."""
    chance = random.Random(7)
    every = [record(chance, seq) for seq in range(1, 101)]
    for one in every:
        one.attribution, one.attribution_reason = "shared", "native-threads"
    found = summary_of(every[90:], every[:90])
    assert (found.shared, dict(found.reasons)) == (100, {"native-threads": 10})
    assert found.misses_memory and isinstance(found.need_bytes, AtLeast)


def test_a_killed_task_is_counted_once_beside_totals():
    chance = random.Random(5)
    every = [record(chance, seq) for seq in range(1, 101)]
    killed = TaskRecord(
        seq=101,
        process="1-1",
        task_name="a",
        state="killed",
        rss_before_bytes=0,
        rss_peak_bytes=1 << 45,
        alloc_peak_bytes=1 << 45,
    )
    found = summary_of(every[90:], every[:90], [killed])
    assert (
        (found.count, found.killed) == (101, 1)
        and isinstance(found.alloc_peak_max_bytes, AtLeast)
        and found.alloc_peak_max_bytes == 1 << 45
    )


def test_a_total_of_an_earlier_version_has_the_name_as_operation():
    total, totals = empty("a"), Totals()
    total.add(record(random.Random(8), 1))
    kept = json.loads(total.to_json())
    del kept["operation"]
    totals.add_totals("1-1", [from_json(json.dumps(kept))])
    assert list(totals.pairs) == [("a", "a")]


def test_names_beyond_the_most_are_other_in_the_table():
    chance = random.Random(6)
    kept = [record(chance, seq, "without an entry") for seq in range(1, 11)]
    total, process = empty(None), TaskRecord(kind="process", process="1-1", state="ok")
    for one in kept:
        total.add(one)
    (found,) = summarise(kept, [(process, {"records_lost": 1})], {"1-1": [total]})
    assert (found.label, found.count) == ("other", 10)


def test_an_empty_name_is_a_name(probe):
    with probe.task(""):
        pass
    assert [(t.name, t.count) for t in Board(_core.board_path()).totals() if t.count] == [("", 1)]
    assert [r.task_name for r in probe.records()] == [""]
