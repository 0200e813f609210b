"""The model's contract: two verbs, order, keeping, bounds, refusals. What it concludes is in
test_predict_posterior.py, shapes in test_predict_shapes.py."""

import json
import math
import random
import sys

import numpy as np
import pytest

from dwsr_probe.predict import KINDS, Model
from dwsr_probe.record import TaskRecord

MIB = 1 << 20


def inputs(*shape, dtype="float32"):
    return [
        {
            "type": "numpy.ndarray",
            "dtype": dtype,
            "shape": list(shape),
            "nbytes": math.prod(shape) * np.dtype(dtype).itemsize,
        }
    ]


def record(shape, k=3.0, c=2e6, name="filter", state="ok", noise=0.0, **fields):
    given = inputs(*shape)
    return {
        "task_name": name,
        "state": state,
        "inputs": given,
        "alloc_peak_bytes": round(c + k * given[0]["nbytes"] * (1 + noise)),
        "output": given[0] if state == "ok" else None,
        "output_bytes": given[0]["nbytes"] if state == "ok" else None,
        "process": "1-1",
        "thread": 1,
        "start": 1.0,
        **fields,
    }


def many(count, seed=0, noise=0.02, name="filter"):
    chance = random.Random(seed)
    return [
        record(
            [chance.randrange(40, 300) for _ in range(3)],
            noise=chance.gauss(0, noise),
            name=name,
            start=float(i),
        )
        for i in range(count)
    ]


def learned(records):
    model = Model()
    for given in records:
        model.learn(given)
    return model


def answers(model, name="filter"):
    return [
        figure
        for n in (50, 200, 500)
        for f in [model.predict(inputs(n, n, n), name)]
        for figure in (f.mean, f.upper(0.9), f.upper(0.99), f.exceeds(1e9))
    ]


# -- the first values


def test_nothing_seen_is_a_wide_guess_that_says_so():
    forecast = Model().predict(inputs(100, 100, 100), "never")
    assert (forecast.n, forecast.trust, forecast.output) == (
        0,
        "none",
        None,
    ) and not forecast.promised(0.9)
    assert 4e6 < forecast.mean < 1e8 < forecast.upper(0.99)


def test_each_value_makes_the_bound_tighter():
    model, widths = Model(), []
    for n in (60, 100, 160, 200, 220):
        model.learn(record([n, n, n]))
        forecast = model.predict(inputs(400, 400, 400), "filter")
        widths.append(forecast.upper(0.99) / forecast.mean)
    truth = record([400, 400, 400])["alloc_peak_bytes"]
    assert widths == sorted(widths, reverse=True) and widths[0] > 1.5 and widths[2] < 1.15
    assert (
        abs(forecast.mean / truth - 1) < 0.005
        and truth < forecast.upper(0.99)
        and "extrapolating" in forecast.notes
    )


def test_a_record_of_the_store_and_its_json_are_the_same():
    given = record([100, 100, 100])
    of_dict, of_record = learned([given]), Model()
    of_record.learn(TaskRecord(**given))
    assert answers(of_dict) == answers(of_record)


def test_kinds():
    given = record(
        [100, 100, 100],
        rss_before_bytes=50 * MIB,
        rss_peak_bytes=70 * MIB,
        gpu=[{"device": 0, "peak_bytes": 5 * MIB}, {"device": 1, "peak_bytes": 9 * MIB}],
        overlap=0,
    )
    model = learned([given] * 5)
    assert model.kinds("filter") == list(KINDS)
    for kind, truth in (("rss", 20 * MIB), ("gpu", 9 * MIB), ("output", 4e6), ("alloc", 14e6)):
        assert model.predict(inputs(100, 100, 100), "filter", kind).mean == pytest.approx(
            truth, rel=0.01
        ), kind
    beside = learned([{**given, "overlap": 2}])  # the process's growth is not this task's alone
    assert beside.kinds("filter") == ["alloc", "gpu", "output"]


def test_a_process_row_is_not_a_task():
    assert learned([record([100, 100, 100], kind="process")]).names() == []


# -- lower bounds


def test_a_running_task_raises_the_forecast_and_is_swapped_for_its_end():
    model = learned([record([n, n, n], start=float(n)) for n in (50, 60)])
    before = model.predict(inputs(300, 300, 300), "filter")
    low = record([300, 300, 300], state="running", start=9.0)
    model.learn({**low, "alloc_peak_bytes": round(before.mean / 3)})
    # it says little that was not known
    assert model.predict(inputs(300, 300, 300), "filter").mean == pytest.approx(
        before.mean, rel=0.02
    )
    model.learn({**low, "alloc_peak_bytes": round(1.3 * before.mean)})
    risen = model.predict(inputs(300, 300, 300), "filter")
    assert risen.mean > 1.25 * before.mean and risen.upper(0.5) >= 1.25 * before.mean
    model.learn({**low, "alloc_peak_bytes": round(1.8 * before.mean)})  # it replaces the last one
    assert model.predict(inputs(300, 300, 300), "filter").mean > 1.3 * risen.mean
    model.learn({**low, "state": "ok", "alloc_peak_bytes": round(2 * before.mean)})
    assert not model._running and model.predict(inputs(300, 300, 300), "filter").n == 3
    assert model.predict(inputs(300, 300, 300), "filter").mean == pytest.approx(
        2 * before.mean, rel=0.05
    )


def test_running_tasks_of_a_process_that_went_away_are_forgotten():
    model = learned(many(3))
    before = answers(model)
    for process in ("1-1", "2-2"):
        model.learn(record([300, 300, 300], k=9, state="running", process=process, start=99.0))
    raised = answers(model)
    model.forget_running("1-1")
    assert before != answers(model) and before != raised
    model.forget_running()
    assert answers(model) == before


def test_a_running_task_leaves_itself_out():
    model = learned(many(4))
    alone = model.predict(inputs(300, 300, 300), "filter")
    itself = record([300, 300, 300], k=6, state="running", start=99.0)
    model.learn(itself)
    assert model.predict(inputs(300, 300, 300), "filter", running=itself).mean == alone.mean
    assert alone.exceeds(7e8) < 0.01 < alone.exceeds(7e8, above=itself["alloc_peak_bytes"])


def test_killed_is_a_bound_that_stays():
    few = [record([50, 50, 50]), record([60, 60, 60], start=2.0)]
    killed = record([300, 300, 300], k=5, state="killed", start=3.0)
    without, bounded = learned(few), learned([*few, killed])
    bound, again = killed["alloc_peak_bytes"], bounded.predict(inputs(300, 300, 300), "filter")
    assert (
        without.predict(inputs(300, 300, 300), "filter").mean < bound < again.upper(0.6)
        and again.n == 2
    )
    exact = learned([*few, {**killed, "state": "ok"}])
    # it may need far more
    assert again.upper(0.99) > exact.predict(inputs(300, 300, 300), "filter").upper(0.99)


def test_a_memory_error_that_names_its_request_is_nearly_exact():
    failed = record(
        [300, 300, 300],
        state="error",
        alloc_peak_bytes=10**8,
        oom={"where": "host", "requested_bytes": 2 * 10**8, "live_bytes": 10**8},
    )
    nearly, killed = (
        learned([failed]),
        learned([{**failed, "state": "killed", "alloc_peak_bytes": 3 * 10**8, "oom": None}]),
    )
    nearly, killed = (model.predict(inputs(300, 300, 300), "filter") for model in (nearly, killed))
    assert 3e8 < nearly.mean < 4.5e8 < killed.mean and nearly.upper(0.99) < killed.upper(0.99)


def test_a_kill_that_contradicts_everything_widens_the_bound():
    model = learned([record([n, n, n], start=float(n)) for n in range(100, 300, 10)])
    before = model.predict(inputs(280, 280, 280), "filter")
    model.learn(record([280, 280, 280], k=6, state="killed", start=9.0))
    after = model.predict(inputs(280, 280, 280), "filter")
    assert after.upper(0.99) > 1.9 * before.upper(0.99) and "drifting" in after.notes


def test_an_error_early_in_a_task_says_nothing():
    model = learned(many(10))
    before = answers(model)
    model.learn(record([200, 200, 200], k=0.1, state="error"))
    assert answers(model) == pytest.approx(before, rel=1e-6)


# -- what does not matter


def test_predict_changes_nothing():
    asked, silent = learned(many(30)), learned(many(30))
    for given in many(30, seed=1):
        asked.learn(given)
        answers(asked)
        silent.learn(given)
    assert asked.to_dict() == silent.to_dict() and answers(asked) == answers(silent)


@pytest.mark.parametrize("seed", range(5))
def test_order_does_not_matter(seed):
    """Sums, bounds and shapes: to rounding. The calibration compares each value with the
    forecast before it: its part of a bound may move by 10 %."""
    records = many(60) + [
        record([200 + n, 200, 200], k=2.95, state="killed", start=1000.0 + n) for n in range(5)
    ]
    one = learned(records)
    random.Random(seed).shuffle(records)
    other = learned(records)
    for n in (50, 200, 500):
        mine, yours = (model.predict(inputs(n, n, n), "filter") for model in (one, other))
        assert (
            mine.mean == pytest.approx(yours.mean, rel=1e-6)
            and mine.output == yours.output
            and mine.n == yours.n
        )
        assert mine.upper(0.99) == pytest.approx(yours.upper(0.99), rel=0.1)


def test_it_is_deterministic():
    assert learned(many(50)).to_dict() == learned(many(50)).to_dict()


# -- keeping


def test_saved_and_loaded_it_is_the_same(tmp_path):
    model = learned(
        many(200) + many(20, name="other") + [record([400, 400, 400], k=5, state="killed")]
    )
    model.save(tmp_path / "model.json")
    again = Model.load(tmp_path / "model.json")
    assert (
        again.to_dict() == model.to_dict()
        and answers(again) == answers(model)
        and again.seen("filter") == model.seen("filter")
    )
    for given in many(40, seed=3):  # and it goes on as if it had never been away
        again.learn(given)
        model.learn(given)
    assert answers(again) == pytest.approx(answers(model), rel=0.01)
    assert [p.name for p in tmp_path.iterdir()] == ["model.json"]


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        "{}",
        '{"format": "dwsr-probe model", "version": 99}',
        "\x00\x01",
        '{"format": "dwsr-probe model"',
    ],
)
def test_what_is_no_model_is_refused(tmp_path, content):
    path = tmp_path / "model.json"
    path.write_text(content)
    with pytest.raises(ValueError, match=r"model\.json"):
        Model.load(path)


def test_a_damaged_model_is_refused(tmp_path):
    kept = learned(many(10)).to_dict()
    for damage in (
        lambda k: k["tasks"]["filter"]["learners"]["alloc"].pop("cases"),
        lambda k: k["tasks"]["filter"]["learners"]["alloc"]["cases"].update(
            by_key=[[2, 2, 1, 1, 1, [[1], 1, None], 0, {}]]
        ),
        lambda k: k["tasks"]["filter"]["learners"]["alloc"]["cases"]["by_key"][0].pop(0),
        lambda k: k["scores"].pop("gpu"),
        lambda k: k["tasks"]["filter"].pop("output"),
        lambda k: k["tasks"].update(filter=3),
    ):
        broken = json.loads(json.dumps(kept))
        damage(broken)
        with pytest.raises(ValueError, match="damaged"):
            Model.from_dict(broken)


def test_models_of_several_workers_merge():
    records = (
        many(90) + many(30, seed=5, name="other") + [record([300, 300, 300], k=2.9, state="killed")]
    )
    whole, merged = learned(records), Model()
    for part in range(3):
        merged.merge(learned(records[part::3]))
    assert merged.names() == whole.names() and np.allclose(
        merged.seen("filter"), whole.seen("filter")
    )
    for name in merged.names():
        mine, yours = (model.predict(inputs(400, 400, 400), name) for model in (merged, whole))
        assert (
            mine.mean == pytest.approx(yours.mean, rel=1e-6)
            and mine.n == yours.n
            and mine.output == yours.output
        )


# -- bounded


def test_it_does_not_grow():
    """After many records and shapes, whatever came."""
    model, sizes = Model(), []
    chance = random.Random(0)
    for part in range(4):
        for i in range(2000):
            state = "ok" if i % 10 else chance.choice(["killed", "error", "running"])
            model.learn(
                record(
                    [chance.randrange(20, 200) for _ in range(3)],
                    noise=chance.gauss(0, 0.05),
                    state=state,
                    start=float(part * 2000 + i),
                    thread=i % 7,
                )
            )
        sizes.append(len(json.dumps(model.to_dict())))
    assert max(sizes[1:]) < 1.2 * sizes[1] and max(sizes) < 100_000
    assert len(model._running) <= 4096


def test_ten_thousand_names_are_bounded():
    model = Model()
    for i in range(10_000):
        model.learn(record([30, 30, 30], name=f"task-{i}"))
    assert (
        len(model.names()) == 1024
        and model.evicted == 10_000 - 1024
        and "task-9999" in model.names()
    )
    assert sys.getsizeof(json.dumps(model.to_dict())) < 24 * MIB


def test_ten_thousand_running_tasks_are_bounded():
    model = learned(many(5))
    for i in range(10_000):
        model.learn(record([100, 100, 100], state="running", start=1e6 + i))
    assert len(model._running) == 4096
    answers(model)


# -- refusals


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("alloc_peak_bytes", float("nan")),
        ("alloc_peak_bytes", -1),
        ("alloc_peak_bytes", 1e30),
        ("alloc_peak_bytes", "many"),
        ("alloc_peak_bytes", True),
        ("alloc_peak_bytes", [1]),
        ("output_bytes", -5),
        ("rss_peak_bytes", float("inf")),
        ("task_name", ""),
        ("task_name", None),
        ("task_name", 7),
        ("task_name", "x" * 10_001),
        ("gpu", [{"peak_bytes": -3}]),
        ("gpu", "all"),
        ("inputs", [{"shape": [10, -1], "dtype": "float32"}]),
        ("inputs", [{"shape": [10, float("nan")]}]),
        ("inputs", [{"nbytes": -4}]),
        ("inputs", "array"),
        ("inputs", [3]),
        ("inputs", [{"shape": [2**40, 2**40], "dtype": "float64"}]),
        ("inputs", [{"shape": 3, "dtype": "float64"}]),
        ("output", 3),
    ],
)
def test_figures_that_cannot_be_are_refused_and_nothing_is_learned(field, value):
    model = learned(many(5))
    before = model.to_dict()
    with pytest.raises(ValueError, match=r"\w{4}"):
        model.learn({**record([100, 100, 100]), "rss_before_bytes": 1, "overlap": 0, field: value})
    assert model.to_dict() == before


def test_what_cannot_be_asked():
    model = learned(many(5))
    with pytest.raises(ValueError, match="kind"):
        model.predict(inputs(10, 10), "filter", "disk")
    with pytest.raises(ValueError, match="below zero"):
        model.predict([{"shape": [-1], "dtype": "float32"}], "filter")
    for q in (0, 1, 1.5, -1, float("nan")):
        with pytest.raises(ValueError, match="quantile"):
            model.predict(inputs(10, 10), "filter").upper(q)


# -- inputs of all sorts


def test_bytes_alone_are_enough():
    model = learned(
        [
            {
                "task_name": "parse",
                "inputs": [{"type": "bytes", "nbytes": n}],
                "alloc_peak_bytes": 5 * n + MIB,
            }
            for n in (10**6, 3 * 10**6, 8 * 10**6)
        ]
    )
    assert model.predict([{"nbytes": 10**8}], "parse").mean == pytest.approx(5e8, rel=0.02)


def test_bytes_alone_of_a_task_that_was_seen_with_shapes():
    """What looks at axes cannot tell; what looks at bytes can. The word says that it is less
    sure."""
    model = learned([record([48, 48, n]) for n in (64, 96, 128, 192, 256)])
    told, alone = (
        model.predict(inputs(48, 48, 512), "filter"),
        model.predict([{"nbytes": 48 * 48 * 512 * 4}], "filter"),
    )
    assert alone.mean == pytest.approx(told.mean, rel=0.1) and alone.upper(0.99) < 1.5 * told.mean
    assert "no-shape" in alone.notes and alone.trust != "good" and "no-shape" not in told.notes


def test_a_table_of_one_column():
    model = learned(
        [
            {
                "task_name": "group",
                "inputs": [{"dtype": "float64", "shape": [rows, 3]}],
                "alloc_peak_bytes": 40 * rows + MIB,
            }
            for rows in (10**4, 3 * 10**4, 10**5, 2 * 10**5)
        ]
    )
    assert (
        model.predict([{"dtype": "float64", "shape": [2 * 10**5, 1]}], "group").upper(0.99)
        < 100 * MIB
    )


def test_another_number_of_axes_goes_by_bytes():
    model = learned(many(12))
    for shape in ([8_000_000], [2000, 4000], [20, 20, 100, 200]):
        forecast = model.predict(inputs(*shape), "filter")
        assert (
            forecast.mean == pytest.approx(9.8e7, rel=0.35)
            and forecast.upper(0.99) > 9.8e7
            and "no-shape" in forecast.notes
            and forecast.trust != "good"
        )
    assert "no-shape" not in model.predict(inputs(200, 200, 200), "filter").notes


def test_tables():
    model = learned(
        [
            {
                "task_name": "sort",
                "inputs": [
                    {
                        "type": "pandas.DataFrame",
                        "dtype": None,
                        "shape": [rows, 6],
                        "nbytes": 48 * rows,
                    }
                ],
                "alloc_peak_bytes": 120 * rows + MIB,
            }
            for rows in (10**4, 10**5, 3 * 10**5)
        ]
    )
    assert model.predict(
        [{"shape": [10**6, 6], "nbytes": 48 * 10**6}], "sort"
    ).mean == pytest.approx(1.2e8, rel=0.02)


def test_several_inputs_and_those_that_were_omitted():
    def stack(n, told=3):
        nbytes = 4 * n**3
        return {
            "task_name": "stack",
            "inputs": inputs(n, n, n) * told,
            "inputs_omitted": 5 - told,
            "input_bytes": 5 * nbytes,
            "alloc_peak_bytes": 10 * nbytes,
        }

    model = learned([stack(n) for n in (40, 60, 80, 100)])
    assert model.predict(inputs(200, 200, 200) * 5, "stack").mean == pytest.approx(
        10 * 4 * 200**3, rel=0.1
    )


def test_no_inputs_at_all():
    model = learned(
        [
            {"task_name": "load", "inputs": [], "alloc_peak_bytes": 50 * MIB + i * 1000}
            for i in range(8)
        ]
    )
    forecast = model.predict([], "load")
    assert forecast.mean == pytest.approx(50 * MIB, rel=0.01) and "no-inputs" in forecast.notes


def test_empty_arrays_and_zero_peaks():
    model = learned(
        [{"task_name": "nothing", "inputs": inputs(0, 5), "alloc_peak_bytes": 0} for _ in range(5)]
    )
    assert 0 <= model.predict(inputs(0, 5), "nothing").mean < MIB


# -- words


def test_value_dependent_memory_is_named_and_widens_the_bound():
    chance = random.Random(0)
    steady, varying = (
        learned(many(40, noise=0.001)),
        learned(
            [
                record([n, n, n], noise=chance.uniform(-0.5, 0.5))
                for n in (60, 90, 120)
                for _ in range(12)
            ]
        ),
    )
    for model, word, width in ((steady, False, 1.1), (varying, True, 5)):
        forecast = model.predict(inputs(120, 120, 120), "filter")
        assert ("value-dependent" in forecast.notes) == word and forecast.upper(
            0.99
        ) < width * forecast.mean
    assert forecast.upper(0.99) > 1.4 * forecast.mean and forecast.trust != "good"


def test_memory_that_is_not_a_line_is_named():
    def cubic(n):
        given = [{"shape": [n], "dtype": "float32", "nbytes": 4 * n}]
        return {"task_name": "cubic", "inputs": given, "alloc_peak_bytes": round(n**3 / 20)}

    model = learned([cubic(n) for n in range(400, 3000, 100)])
    forecast = model.predict(cubic(2500)["inputs"], "cubic")
    assert "non-linear" in forecast.notes and forecast.upper(0.99) > 1.1 * forecast.mean


def test_a_task_that_changes_is_followed():
    model = learned([record([n, n, n], k=3) for n in range(100, 200, 2)])
    for n in range(100, 160, 2):
        model.learn(record([n, n, n], k=6))
    forecast = model.predict(inputs(150, 150, 150), "filter")
    assert forecast.mean == pytest.approx(
        record([150, 150, 150], k=6)["alloc_peak_bytes"], rel=0.05
    )


def test_a_change_does_not_widen_the_bound_for_long():
    chance = random.Random(0)
    model = learned(many(60, noise=0.01))
    for _ in range(20):
        model.learn(
            record(
                [chance.randrange(40, 150) for _ in range(3)], k=6.0, noise=chance.gauss(0, 0.01)
            )
        )
    forecast = model.predict(inputs(150, 150, 150), "filter")
    assert (
        forecast.mean == pytest.approx(6 * 4 * 150**3 + 2e6, rel=0.15)
        and forecast.upper(0.99) < 2 * forecast.mean
    )


def test_rounds_compare_each_value_with_what_was_forecast():
    model, rounds = Model(), []
    for given in many(100):
        rounds += [done for done in model.learn(given) if done.kind == "alloc"]
    assert len(rounds) == 97 and all(done.n == 3 + i for i, done in enumerate(rounds))
    assert np.median([abs(done.predicted / done.actual - 1) for done in rounds]) < 0.03
    # of the log score
    assert np.mean([done.reward for done in rounds[50:]]) > np.mean(
        [done.reward for done in rounds[:10]]
    )
    (killed,) = model.learn(record([300, 300, 300], k=5, state="killed"))
    assert killed.censored and killed.reward < 0


# -- honest with little


def test_one_size_seen_says_that_a_second_would_tell():
    model = learned([record([100, 100, 100])] * 50)
    same, larger, far = (model.predict(inputs(n, n, n), "filter") for n in (100, 150, 300))
    assert (same.trust, larger.trust, far.trust) == ("fair", "fair", "low")
    assert all("one-size" in forecast.notes for forecast in (same, larger, far))
    for n in range(120, 170, 3):
        model.learn(record([n, n, n]))
    same, larger = (model.predict(inputs(n, n, n), "filter") for n in (100, 150))
    assert same.trust == larger.trust == "good" and "one-size" not in same.notes + larger.notes


def test_trust_falls_with_the_distance_beyond_what_was_seen():
    model = learned([record([n, n, n]) for n in range(40, 100)])
    found = [model.predict(inputs(n, n, n), "filter").trust for n in (99, 150, 300, 900)]
    assert found == ["good", "good", "fair", "low"]


def test_trust_is_never_good_while_the_bound_is_twice_the_mean():
    chance = random.Random(0)
    model = learned([record([n, n, n], noise=chance.gauss(0, 0.04)) for n in range(40, 90)])
    for side in (50, 89, 120, 180):
        forecast = model.predict(inputs(side, side, side), "filter")
        assert forecast.trust != "good" or forecast.upper(0.99) <= 2 * forecast.mean


def test_nothing_seen_is_answered_by_the_median():
    """The mean of the prior is that of a few tasks that need very much."""
    forecast = Model().predict(inputs(100, 100, 100), "never")
    assert forecast.mean == pytest.approx(forecast.upper(0.5))
    assert forecast.mean < forecast.calibrated.predictive.mean


def test_a_question_that_is_asked_again_is_answered_anew_after_anything_was_learned():
    model, question = learned(many(30)), inputs(100, 100, 100)
    first = model.predict(question, "filter")
    assert model.predict(inputs(100, 100, 100), "filter") is first
    question[0]["shape"] = [100, 100, 101]  # the list itself is not what is remembered
    assert model.predict(question, "filter") is not first
    model.learn(record([90, 90, 90], k=7))
    assert model.predict(inputs(100, 100, 100), "filter") is not first
    before = model.predict(inputs(100, 100, 100), "filter")
    running = record([100, 100, 100], state="running", process="1-1", thread=1, start=1e9)
    model.learn({**running, "alloc_peak_bytes": 10**9})
    assert model.predict(inputs(100, 100, 100), "filter").mean > 2 * before.mean
    model.forget_running()
    assert model.predict(inputs(100, 100, 100), "filter").mean == before.mean
    model.merge(learned(many(10)))
    assert model.predict(inputs(100, 100, 100), "filter").n == before.n + 10
