"""The evaluation itself: baselines and protocols on tiny data whose answers are known. No figure
of the model is judged here."""

import hashlib
import json

import pytest

from tests.bench.predict import coldstart, protocol, rates, replay, speed
from tests.bench.predict.baselines import (
    METHODS,
    Baseline,
    Estimate,
    Gradient,
    Linear,
    MaxSeen,
    Percentile95,
    Thesis,
    Tovar,
    WittMax,
    WittSd,
)
from tests.bench.predict.data import Data
from tests.bench.predict.families import GROUPS as FAMILY_GROUPS
from tests.bench.predict.families import programs, synthetic
from tests.bench.predict.families import protocol as reservations
from tests.bench.predict.groups import FROZEN, GROUPS, NEW, SIMULATION_GROUPS, SMALL
from tests.bench.predict.operators import COUNT, OPERATORS, SIMULATIONS
from tests.bench.predict.operators import NEW as NEW_OPERATORS
from tests.bench.predict.parts import params
from tests.bench.predict.protocol import Score
from tests.bench.predict.unicamp import inputs_of, record_of


def records(*pairs, name="op"):
    """Records of (elements, peak bytes)."""
    return [record_of(name, (n,), peak) for n, peak in pairs]


def taught(make, rows):
    method = make()
    for row in rows:
        method.learn(row)
    return method


def test_groups_are_disjoint_and_complete():
    for groups, known in (
        (GROUPS, OPERATORS),
        (SIMULATION_GROUPS, SIMULATIONS),
        (FAMILY_GROUPS, [*synthetic.FAMILIES, *programs.PROGRAMS]),
    ):
        assert sorted(name for names in groups.values() for name in names) == sorted(known)
    assert {library: sorted(names.split()) for library, names in NEW.items()} == {
        library: sorted(operator.name for operator in operators)
        for library, operators in NEW_OPERATORS.items()
    }
    for operator in OPERATORS.values():
        assert len(operator.shapes) == COUNT >= 16 and COUNT > SMALL


def test_the_frozen_draw_has_not_changed():
    """An operator that is added goes to a new group, never into these draws."""
    frozen = [sorted(groups[FROZEN]) for groups in (GROUPS, SIMULATION_GROUPS, FAMILY_GROUPS)]
    assert [len(names) for names in frozen] == [42, 4, 17]
    assert hashlib.sha256(json.dumps(frozen).encode()).hexdigest()[:16] == "c1f71152bb138819"


def test_a_value_that_was_not_seen_is_forecast():
    rows = [
        {"key": f"value {value}, {shape}.0", "n": (value, shape)}
        for value in (3, 5, 7.5)
        for shape in (0, 3, 7)
    ]
    one, three = params.splits({"op": rows})
    assert [r["n"] for r in one.train] == [(3, 0), (5, 0)]
    assert [r["n"] for r in three.train] == [(v, s) for v in (3, 5) for s in (0, 3, 7)]
    assert (
        [r["n"] for r in one.test]
        == [r["n"] for r in three.test]
        == [
            (7.5, 0),
            (7.5, 3),
            (7.5, 7),
        ]
    )


def test_single_results_of_frozen_operators_are_not_printed():
    tuning, usual, final = Data(tuning_only=True), Data(), Data(final=True)
    for groups in (GROUPS, SIMULATION_GROUPS, FAMILY_GROUPS):
        for group, names in groups.items():
            assert {usual.may_be_named(name) for name in names} == {group != FROZEN}
            assert all(final.may_be_named(name) for name in names)
    for groups in (tuning.groups, tuning.simulation_groups, tuning.family_groups):
        assert FROZEN not in groups
    assert FROZEN in usual.groups and len(tuning.methods) == 2


def test_the_evaluation_says_what_it_does_not_know():
    from tests.bench.predict import __main__

    with pytest.raises(SystemExit, match=r"unknown: --tune, smal"):
        __main__.main(["--tune", "smal"])


def test_rates_have_an_interval():
    assert rates.wilson(0, 10) == pytest.approx((0.0, 0.2775), abs=1e-4)
    assert rates.wilson(5, 10) == pytest.approx((0.2366, 0.7634), abs=1e-4)
    assert rates.rate(12, 600) == "12 of 600: 2.0 % (1.1 – 3.5)" and rates.rate(0, 0) == "–"


def test_a_failed_attempt_costs_its_reservation():
    tasks = records((1, 2 << 30), (1, 5 << 30), (1, 1 << 30))
    # 1 GiB fails, 2: not counted; 2 fails, 4 fails, 8; 5
    assert reservations.run(tasks, reservations.LargestSeen()) == (19 << 30, 1)
    learned = Knows(0.5)
    reservations.run(records((1, 40), (1, 40)), learned)
    assert learned.learned == [("ok", 40), ("killed", 20), ("ok", 40)]
    equal = records((1, 2 << 30), (1, 2 << 30))
    found = reservations.cost(equal, reservations.LargestSeen, range(2))
    assert (found.reserved, found.used, found.failures, found.tasks) == (4 << 30, 4 << 30, 0, 2)


def test_synthetic_families_are_the_same_each_time():
    for name in synthetic.FAMILIES:
        tasks = synthetic.tasks(name)
        assert tasks == synthetic.tasks(name) and len(tasks) == synthetic.COUNT
        assert all(size > 0 and peak > 0 for size, peak in tasks)


def test_baselines_answer_what_they_say():
    # 4 bytes each: peak = 2 × bytes + 50
    linear = records((100, 2 * 400 + 50), (200, 2 * 800 + 50), (300, 2 * 1200 + 50))
    asked = inputs_of((1000,))
    assert taught(MaxSeen, linear).predict(asked, "op") == (2450, 2450)
    assert taught(Percentile95, linear).predict(asked, "op") == pytest.approx((2370, 2370))
    assert taught(Linear, linear).predict(asked, "op") == pytest.approx((8050, 8050 / 0.8))
    assert taught(Thesis, linear).predict(asked, "op") == pytest.approx((8050, 8050 / 0.8))
    assert taught(WittMax, linear).predict(asked, "op") == pytest.approx((8050, 8050))
    # one point: through the origin
    assert taught(Linear, linear[:1]).predict(asked, "op") == pytest.approx((8500, 8500 / 0.8))
    assert MaxSeen().predict(asked, "op") is None


def test_witt_adds_its_misses():
    # a line through 1100 and 2100, ±100
    rows = records((100, 1000), (100, 1200), (200, 2000), (200, 2200))
    assert taught(WittMax, rows).predict(inputs_of((300,)), "op") == pytest.approx((3100, 3200))
    assert taught(WittSd, rows).predict(inputs_of((300,)), "op") == pytest.approx(
        (3100, 3100 + 232.6)
    )


def test_tovar_takes_the_allocation_of_least_waste():
    # 10 + 1000 / 100 < 1000
    assert taught(Tovar, records(*[(1, 10)] * 99, (1, 1000))).predict(inputs_of((1,)), "op") == (
        10,
        10,
    )
    # 100 < 90 + 100 / 2
    assert taught(Tovar, records((1, 90), (1, 100))).predict(inputs_of((1,)), "op") == (100, 100)


def test_gradient_learns_a_ratio():
    method = taught(Gradient, records(*[(100, 1200), (1000, 12000)] * 100))
    mean, bound = method.predict(inputs_of((500,)), "op")
    assert abs(mean - 6000) / 6000 < 0.15 and bound >= mean


@pytest.mark.parametrize(
    "name", [name for name in METHODS if name in ("tree / 0.8", "boosting", "Gaussian process")]
)
def test_regressors_follow_what_they_saw(name):
    pytest.importorskip("sklearn")
    method = taught(METHODS[name], records(*[(n, 10 * n) for n in range(100, 200, 10)]))
    mean, bound = method.predict(inputs_of((150,)), "op")
    assert mean == pytest.approx(1500, rel=0.1) and bound >= mean


def test_a_kill_is_twice_its_limit_to_a_baseline():
    assert taught(MaxSeen, [{**records((1, 100))[0], "state": "killed"}]).predict(
        inputs_of((1,)), "op"
    ) == (200, 200)


def test_rolling_forecasts_before_it_learns():
    rows = records((1, 10), (2, 20), (4, 40)) + records((1, 7), (2, 9), name="other")
    scores = protocol.rolling(rows, MaxSeen, range(2), growing=True)
    assert [(s.seed, s.name, s.n, s.mean, s.truth) for s in scores[:3]] == [
        (0, "op", 1, 10, 20),
        (0, "other", 1, 7, 9),
        (0, "op", 2, 20, 40),
    ]
    assert len(scores) == 6 == len(protocol.rolling(rows, MaxSeen, range(2)))


def test_after_learns_only_what_is_given():
    assert [
        s.mean
        for s in protocol.train_and_test(
            records((1, 10), (2, 20)), records((9, 90), (10, 100)), MaxSeen
        )
    ] == [20, 20]


def test_shapes_of_outputs_are_compared():
    record, answer = {"output": {"shape": [3, 4]}}, type("Answer", (), {})()
    for answer.output, word in (
        ({"shape": (3, 4)}, "right"),
        ({"shape": [4, 3]}, "wrong"),
        (None, "unknown"),
    ):
        assert protocol.output_verdict(answer, record) == word
    assert protocol.output_verdict(answer, {"output": None}) is None


def test_figures():
    f = protocol.figures(
        [
            Score("a", 90, 120, 100),
            Score("a", 100, 100, 100),
            Score("a", 50, 80, 100),
            Score("a", 110, 130, 100),
        ]
    )
    assert (
        f["count"] == 4
        and f["failures"] == 0.25
        and f["error"] == pytest.approx(0.1)
        and f["slack"] == pytest.approx(1.1)
    )
    # the failed reservation is lost as a whole
    assert f["waste"] == pytest.approx((20 + 0 + 80 + 30) / 400)


def test_targets_are_reached_by_each_operator_or_not():
    scores = [
        Score("good", 100, 110, 100),
        Score("wrong", 150, 160, 100),
        Score("broken", 100, 99, 100),
        Score("loose", 100, 200, 100),
    ]
    assert protocol.operators_on_target(scores, 0.02) == "1 of 4"


def test_intervals_are_paired_over_operators():
    ours = [Score(name, 110, 120, 100) for name in "abcdefghij" for _ in range(5)]
    theirs = [Score(name, 130, 140, 100) for name in "abcdefghij" for _ in range(5)]
    assert protocol.difference(ours, theirs, lambda s: s.error) == pytest.approx((-0.2, -0.2, -0.2))
    mean, low, high = protocol.difference(
        ours,
        [Score(s.name, 120 if s.name == "a" else 112, 140, 100) for s in theirs],
        lambda s: s.error,
    )
    assert low < mean < high < 0
    few = [Score("a", 1.1 * n, n, n) for n in (10, 20, 30)]  # over shapes
    mean, low, high = protocol.difference(
        few,
        [Score("a", (1.2 if n == 10 else 1.1) * n, n, n) for n in (10, 20, 30)],
        lambda s: s.error,
    )
    assert (
        low == pytest.approx(-0.1) and mean == pytest.approx(-0.1 / 3) and high == pytest.approx(0)
    )


def test_regret_plot_has_a_row_for_each_method():
    lines = protocol.regret_plot(
        {
            "good": [Score("a", 100, 100, 100, n=1), Score("a", 100, 100, 100, n=2)],
            "bad": [Score("a", 300, 1, 100, n=1), Score("a", 200, 1, 100, n=2)],
        }
    ).splitlines()
    assert "|  |     0.00" in lines[1] and "|██|     2.00" in lines[2]


class Knows(Baseline):
    """A method that knows the truth, times a factor for its bound."""

    def __init__(self, factor=1.0):
        self.factor, self.learned = factor, []

    def learn(self, record):
        self.learned.append((record["state"], record["alloc_peak_bytes"]))

    def predict(self, inputs, name, params=None):
        return Estimate(10 * inputs[0]["nbytes"], self.factor * 10 * inputs[0]["nbytes"])


def test_cold_start_with_a_limit():
    rows = records(*[(n, 40 * n) for n in (10, 20, 40, 60, 80, 100)])
    blocks = coldstart.blocks_of(rows)
    assert [size for size, _ in blocks] == [40, 80, 160, 240, 320, 400] and coldstart.limits(
        blocks
    ) == [600, 1400, 2400, 3400]
    best = coldstart.start(blocks, 3400, Knows())
    assert (best.kills, best.reached) == (0, 1.0)
    careful = coldstart.start(blocks, 3400, Knows(1.5))  # 56 of 85 elements
    assert (careful.kills, careful.reached) == (0, 0.5)
    bold = Knows(0.5)
    found = coldstart.start(blocks, 3400, bold)
    assert (
        found.kills == coldstart.BLOCKS - 1
        and bold.learned[:2] == [("ok", 400), ("killed", 3400)]
        and found.reached == pytest.approx(40 / 320)
    )
    assert len(coldstart.starts({"op": rows}, Knows)) == 4


class Certain:
    """A model that knows that the peak will be 100."""

    def learn(self, record):
        assert record["state"] == "running"

    def predict(self, inputs, name, running):
        return self

    def exceeds(self, limit, above=0.0):
        return float(limit < 100)

    def forget_running(self, process=None):
        self.forgotten = process


def test_replay_says_how_long_before():
    samples, model = [(0.0, 20.0), (1.0, 50.0), (2.0, 90.0), (3.0, 100.0), (4.0, 30.0)], Certain()
    below, above = replay.replay(model, "op", (10,), samples, (0.8, 1.2))
    assert (
        (below.lead_seconds, below.lead_share, below.raised) == (2.0, 0.5, True)
        and not above.raised
        and model.forgotten == "replayed"
    )
    late, never = replay.threshold("op", samples, 0.6, (0.8, 1.7))
    assert (late.lead_seconds, late.raised, never.raised) == (1.0, True, False)


def test_speed_times_single_calls():
    learned, predicted = speed.call_times(MaxSeen, 10)
    assert len(learned) == len(predicted) >= speed.CALLS and min(learned) >= 0


def test_sections_of_the_book_keep_their_order(tmp_path, monkeypatch):
    from tests.bench import book

    monkeypatch.setattr(book, "FILE", tmp_path / "BENCHMARKS.md")
    book.write("predict", "## Prediction\n\nsome\n")
    book.write("peaks", "## Peaks\n\nother\n")
    book.write("predict", "## Prediction\n\nnewer\n")
    text = book.FILE.read_text()
    assert (
        list(book.sections(text)) == ["peaks", "predict"] and "some" not in text and "newer" in text
    )


def test_a_measured_record_is_one_of_the_probe(tmp_path):
    from tests.bench import in_fresh_python

    path = tmp_path / "records.jsonl"
    in_fresh_python(
        "from tests.bench.predict import measure, operators as o\nmeasure.KNOWN = {'astype':"
        " o.Operator('astype', o.OPERATORS['astype'].function, [(100, 1000), (200,"
        f" 1000)])}}\nmeasure.FILE = {str(path)!r}\nmeasure.main('ladder', 'astype')"
    )
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert [r["key"] for r in rows] == ["0.0", "0.1", "1.0", "1.1"] and all(
        r["inputs"][0]["dtype"] == "float32" and r["state"] == "ok" for r in rows
    )
    assert all(0 <= r["alloc_peak_bytes"] - 2 * r["input_bytes"] < 65536 for r in rows)
