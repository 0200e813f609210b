"""The model against what no honest worker would send, and what a slow or broken one does:
figures, order, files. Its contract is in test_predict_model.py."""

import errno
import json
import math
import os
import random
import subprocess
import sys

import numpy as np
import pytest

from dwsr_probe.predict import KINDS, Model
from dwsr_probe.predict.calibration import Calibrated, Scores
from dwsr_probe.predict.mixture import Predictive
from dwsr_probe.record import TaskRecord
from tests.unit.test_predict_model import answers, inputs, learned, many, record

EIB = 1 << 60
TOO_MANY_DIGITS = 10**400  # JSON may have it, a float cannot


def figures(nbytes, y, **fields):
    return {
        "task_name": "filter",
        "inputs": [{"dtype": "uint8", "shape": [nbytes], "nbytes": nbytes}],
        "alloc_peak_bytes": y,
        "output_bytes": y,
        "rss_before_bytes": 0,
        "rss_peak_bytes": y,
        "gpu": [{"peak_bytes": y}],
        **fields,
    }


def state_of(model):
    return model.to_dict(), dict(model._running), dict(model._ended)


# -- figures

EXTREMES = {
    "one byte": [(1, 1)] * 5,
    "an exbibyte": [(EIB, EIB)] * 5,
    "all scales": [(1, 1), (EIB, EIB), (1000, 5), (EIB, 1), (1, EIB)] * 3,
    "nothing": [(0, 0)] * 50,
    "no input": [(0, 10**6)] * 50,
    "no peak": [(10**6, 0)] * 50,
    "a constant peak": [(10**i, 10**7) for i in range(1, 18)],
    "a constant input": [(10**6, 10**i) for i in range(1, 18)],
    "the smaller the more": [(10**i, 10 ** (18 - i)) for i in range(1, 18)],
    "the very same": [(10**6, 3 * 10**6)] * 2000,
}


@pytest.mark.parametrize("name", EXTREMES)
@pytest.mark.filterwarnings("error")
def test_forecasts_are_numbers_and_in_order(name):
    model = learned([figures(*given) for given in EXTREMES[name]])
    for state in ("ok", "running", "killed", "error"):
        for i, (nbytes, bound) in enumerate(
            [(1, EIB), (EIB, 1), (10**6, 10**10), (0, 10**12)] if state != "ok" else []
        ):
            oom = {"where": "host", "requested_bytes": bound, "live_bytes": 7} if i % 2 else None
            model.learn(
                figures(nbytes, bound, state=state, process="1-1", thread=i, start=1.0, oom=oom)
            )
        for nbytes in (0, 1, 10**6, EIB):
            for kind in KINDS:
                forecast = model.predict([{"nbytes": nbytes}], "filter", kind)
                bounds = [forecast.upper(q) for q in (1e-6, 0.01, 0.5, 0.9, 0.99, 0.999, 0.999999)]
                assert (
                    0 <= forecast.mean < math.inf
                    and bounds == sorted(bounds)
                    and math.isfinite(bounds[-1]) != forecast.is_beyond
                    and forecast.upper(0.99) >= forecast.mean * (1 - 1e-9)
                )
                some = sorted(
                    (
                        1,
                        forecast.mean / 2,
                        forecast.mean,
                        1.5 * forecast.mean,
                        bounds[-2],
                        20 * forecast.mean,
                        1e17,
                        1e30,
                    )
                )
                for at in some:
                    falling, rising = (
                        [forecast.exceeds(limit, at) for limit in some],
                        [forecast.exceeds(at, above) for above in some],
                    )
                    assert (
                        falling == sorted(falling, reverse=True)
                        and rising == sorted(rising)
                        and min(falling + rising) >= 0
                        and max(falling + rising) <= 1
                    )


def test_beyond_all_that_is_believed_what_has_been_needed_is_the_measure():
    forecast = learned(many(30)).predict(inputs(100, 100, 100), "filter")
    peak = 50 * forecast.mean
    assert (
        forecast.exceeds(1.01 * peak, peak) > 0.95
        and forecast.exceeds(2 * peak, peak) == pytest.approx(0.5, abs=0.05)
        and forecast.exceeds(100 * peak, peak) < 0.02
    )
    assert (
        forecast.exceeds(peak) < 1e-3
        and forecast.exceeds(math.inf) == 0
        and forecast.exceeds(peak, peak) == 1
    )
    with pytest.raises(ValueError, match="bytes"):
        forecast.exceeds(math.nan)
    with pytest.raises(ValueError, match="quantile"):
        forecast.promised(1)


NUMBERS = ["x", -1, math.nan, math.inf, TOO_MANY_DIGITS, [], {}, True]
ODD = {
    **dict.fromkeys(
        ("alloc_peak_bytes", "output_bytes", "rss_peak_bytes", "rss_before_bytes", "input_bytes"),
        NUMBERS,
    ),
    "process": [[], {}, math.nan],
    "thread": [[1]],
    "start": [{}, math.nan],
    "state": [None, "waiting", 3, []],
    "oom": (
        [{"where": "host", "requested_bytes": value} for value in NUMBERS]
        + [
            {"where": "host", "requested_bytes": 5, "live_bytes": value}
            for value in ("x", -1, TOO_MANY_DIGITS)
        ]
    ),
    "inputs": [
        [{"shape": [TOO_MANY_DIGITS]}],
        [{"nbytes": TOO_MANY_DIGITS}],
        [{"shape": [1] * 65, "nbytes": 5}],
        [{"shape": [True]}],
        {"shape": [2]},
    ],
    "output": [
        "x",
        [1],
        {"shape": "x"},
        {"shape": [-1]},
        {"shape": [2], "dtype": "object", "nbytes": "x"},
        {"shape": [2], "dtype": "object", "nbytes": math.nan},
    ],
}


@pytest.mark.parametrize("field", ODD)
def test_what_is_refused_changes_nothing(field):
    """Not a name, not a running task, even where only the last field is wrong."""
    model = learned(many(5))
    model.learn(record([60, 60, 60], state="running"))
    before = state_of(model)
    for value in ODD[field]:
        with pytest.raises(ValueError, match=r"\w{4}"):
            model.learn(
                {
                    **record([50, 50, 50], name="new", state="error"),
                    "rss_before_bytes": 1,
                    "rss_peak_bytes": 2,
                    "inputs_omitted": 1,
                    "input_bytes": 10**6,
                    field: value,
                }
            )
        assert state_of(model) == before, value


@pytest.mark.parametrize(
    "inputs_given",
    [
        [{"dtype": "(2,", "shape": [3]}],
        [{"dtype": ["f4"], "shape": [3]}],
        [{"dtype": "x" * 10**5, "shape": [3]}],
        [{"shape": [EIB, EIB], "nbytes": 5, "dtype": "Sparse"}],
        [{"nbytes": 3}] * 1000,
        [{}],
        [{"shape": [0, EIB], "dtype": "f4"}],
        [{"type": "pandas.DataFrame", "shape": [0, 6], "nbytes": 132}],
    ],
)
def test_odd_inputs_are_learned_in_bounded_space(inputs_given):
    model = Model()
    for state in ("ok", "killed"):
        model.learn(
            {
                **record([50, 50, 50]),
                "state": state,
                "inputs": inputs_given,
                "output": inputs_given[0],
            }
        )
    assert not any(map(math.isnan, answers(model)))
    assert model.predict(inputs_given, "filter").n == 1
    assert len(repr(model.to_dict())) < 30_000


def test_any_field_may_be_missing():
    whole = {
        **record([50, 50, 50]),
        "rss_before_bytes": 1,
        "rss_peak_bytes": 5,
        "overlap": 0,
        "gpu": [],
        "oom": None,
        "inputs_omitted": 0,
        "input_bytes": 5,
        "attribution": "own",
        "later": [1],
    }
    for field in set(whole) - {"task_name"}:
        for state in ("ok", "running", "error"):
            learned(
                [
                    {
                        name: value
                        for name, value in {**whole, "state": state}.items()
                        if name != field
                    }
                ]
            )
    learned(
        [
            TaskRecord(task_name="filter", inputs=None),
            TaskRecord(task_name="filter", state="ok"),
            TaskRecord(task_name="filter", state="error", oom={}),
        ]
    )


def test_what_cannot_be_asked():
    for name in (None, 5, ["filter"]):
        with pytest.raises(ValueError, match="name"):
            Model().predict([], name)


# -- running tasks


def test_a_task_that_ended_does_not_run_again():
    """Two ways tell of one process, and the slower still says that it runs: nothing would close
    it."""
    running, model = record([300, 300, 300], k=9, state="running", start=7.0), learned(many(5))
    model.learn({**running, "state": "cancelled", "alloc_peak_bytes": 1})
    before = answers(model)
    model.learn(running)
    assert not model._running and answers(model) == before
    other = learned([running])
    model.merge(other)  # nor by a merge
    assert not model._running
    other.merge(model)
    assert not other._running
    for i in range(5000):  # and what is remembered is bounded
        model.learn(record([30, 30, 30], start=float(i)))
    assert len(model._ended) == 4096


def test_a_running_task_that_cannot_be_told_from_others_is_left_out():
    model = learned(many(5))
    before = state_of(model)
    for unknown in ("process", "start"):
        model.learn(record([300, 300, 300], k=9, name="new", state="running", **{unknown: None}))
    assert state_of(model) == before


def test_a_running_task_may_change_its_name():
    model = Model()
    for name in ("one", "other"):
        model.learn(record([300, 300, 300], name=name, state="running"))
    assert list(model._running.values()) == ["other"] and not model._tasks["one"].running
    itself = TaskRecord(**record([300, 300, 300], name="other", state="running"))
    assert (
        model.predict(inputs(300, 300, 300), "other", running=itself).mean
        == Model().predict(inputs(300, 300, 300), "other").mean
    )


def test_a_model_is_not_merged_with_itself():
    model = learned(many(5) + many(5, name="other"))
    with pytest.raises(ValueError, match="itself"):
        model.merge(model)


def test_a_merge_keeps_that_it_changed():
    changed, other = (
        learned(
            [record([n, n, n]) for n in range(100, 200, 10)]
            + [record([280, 280, 280], k=9, state="killed")]
        ),
        learned(many(30)),
    )
    assert "drifting" in changed.predict(inputs(50, 50, 50), "filter").notes
    other.merge(changed)
    assert "drifting" in other.predict(inputs(50, 50, 50), "filter").notes
    for given in many(20):
        other.learn(given)
    assert "drifting" not in other.predict(inputs(50, 50, 50), "filter").notes


def test_running_tasks_of_merged_models_are_bounded():
    one, other = (
        learned(
            [
                record([30, 30, 30], state="running", process=process, start=float(i))
                for i in range(3000)
            ]
        )
        for process in ("1-1", "2-2")
    )
    one.merge(other)
    assert len(one._running) == 4096 == len(one._tasks["filter"].running)


# -- files

VALUES = [
    None,
    True,
    -1,
    0,
    1.5,
    1e300,
    TOO_MANY_DIGITS,
    math.nan,
    math.inf,
    "x",
    "",
    [],
    {},
    [[]],
    [1, 2],
    {"a": 1},
    [["padded", [0, 0], TOO_MANY_DIGITS]],
    [["constant", -5]],
    [["scaled", [0, 0], 1, 0, "down"]],
    [["bogus"]],
]


def places(kept, path=()):
    yield path
    if isinstance(kept, (dict, list)):
        for key in (
            list(kept)[:3]
            if isinstance(kept, dict) and len(path) > 4
            else kept
            if isinstance(kept, dict)
            else range(min(3, len(kept)))
        ):
            yield from places(kept[key], (*path, key))


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # a model of no honest sums
def test_a_model_that_was_tampered_with_is_refused_or_works(seed):
    """Any value in any place: a ValueError, or forecasts that are numbers, a model that learns,
    merges and can be kept."""
    kept = json.dumps(
        learned(
            many(40)
            + [
                record([200 + n, 200, 200], k=4 - n / 10, state="killed", start=1000.0 + n)
                for n in range(5)
            ]
        ).to_dict()
    )
    chance, where = random.Random(seed), [path for path in places(json.loads(kept)) if path]
    refused = 0
    for path in where:
        broken = json.loads(kept)
        *way, last = path
        inner = broken
        for key in way:
            inner = inner[key]
        inner[last] = chance.choice(VALUES)
        try:
            model = Model.from_dict(broken)
        except ValueError:
            refused += 1
            continue
        model.seen("filter")
        for state in ("ok", "killed"):
            assert all(map(math.isfinite, answers(model))), path
            model.learn(record([50, 60, 70], state=state))
        merged = learned(many(5))
        merged.merge(model)
        assert all(map(math.isfinite, answers(merged))), path
        json.dumps(merged.to_dict(), allow_nan=False)
    assert refused > len(where) / 2


@pytest.mark.parametrize(
    "content",
    [
        "[" * 10**5,
        '{"format": "dwsr-probe model", "version": 1, "evicted": ' + "9" * 5000 + "}",
        "\udcff",
    ],
)
def test_files_that_json_cannot_read_are_refused(tmp_path, content):
    (tmp_path / "model.json").write_text(content, errors="surrogateescape")
    with pytest.raises(ValueError, match=r"model\.json"):
        Model.load(tmp_path / "model.json")


def test_a_link_stays_one(tmp_path):
    (tmp_path / "real.json").write_text("")
    (tmp_path / "link.json").symlink_to("real.json")
    learned(many(3)).save(tmp_path / "link.json")
    assert (
        (tmp_path / "link.json").is_symlink()
        and Model.load(tmp_path / "real.json").names() == ["filter"]
        and len(list(tmp_path.iterdir())) == 2
    )


def test_a_full_disk_leaves_the_old_one(tmp_path):
    """As far as a limit of the file size is one."""
    path = tmp_path / "model.json"
    learned(many(3)).save(path)
    before = path.read_bytes()
    code = (
        "import resource, signal, sys; signal.signal(signal.SIGXFSZ, signal.SIG_IGN);"
        " resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\nfrom dwsr_probe.predict import"
        " Model\ntry: Model.load(sys.argv[1]).save(sys.argv[1])\nexcept OSError as error:"
        " print(error.errno)"
    )
    done = subprocess.run(
        [sys.executable, "-B", "-c", code, path],
        capture_output=True,
        text=True,
        timeout=600,
        check=True,
    )
    assert (
        done.stdout.strip() == str(errno.EFBIG)
        and path.read_bytes() == before
        and os.listdir(tmp_path) == ["model.json"]
    )


def test_a_place_that_cannot_be_written_is_an_oserror(tmp_path):
    for path in (tmp_path / "no" / "model.json", tmp_path):
        with pytest.raises(OSError, match=r"\w{4}"):
            Model().save(path)
    assert os.listdir(tmp_path) == []


def test_the_hash_seed_does_not_matter():
    code = (
        "import json, sys; from tests.unit.test_predict_model import answers, learned, many,"
        " record\nmodel = learned(many(40) + [record([200 + n, 200, 200], k=3.1, state='error',"
        " start=1000.0 + n, oom={'where': 'gpu', 'requested_bytes': 10**9}) for n in"
        " range(5)])\nprint(json.dumps([model.to_dict(), answers(model)]))"
    )
    told = {
        subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            timeout=600,
            check=True,
            env={**os.environ, "PYTHONHASHSEED": seed},
        ).stdout
        for seed in ("1", "2", "3")
    }
    assert len(told) == 1


# -- what was concluded


def test_what_was_asked_before_does_not_matter():
    """Conclusions are kept until something changes: an output alone (of a record without a peak)
    changes what the bounds of other kinds mean."""
    chance, asked, silent = random.Random(4), Model(), Model()
    for i in range(150):
        n = chance.randrange(30, 200)
        given = record(
            [n, n, n],
            k=3 + chance.random(),
            state=chance.choice(["ok", "ok", "running", "killed", "error"]),
            start=float(i % 40),
            thread=i % 3,
        )
        if chance.random() < 0.3:
            given["alloc_peak_bytes"] = None
        if chance.random() < 0.1:
            given["output"] = (
                {"dtype": "float32", "shape": [n, n, 2 * n]} if given["state"] == "ok" else None
            )
        if chance.random() < 0.05:
            asked.forget_running("1-1")
            silent.forget_running("1-1")
        assert asked.learn(given) == silent.learn(given)
        before = state_of(asked)
        answers(asked)
        asked.predict(inputs(n, n, n), "filter", running=given)
        assert state_of(asked) == before
    assert state_of(asked) == state_of(silent) and answers(asked) == answers(silent)


def test_thousands_of_running_tasks_are_ranked_once():
    """Those that need most for their inputs are heard, whatever their number, and a task that
    asks leaves itself out."""
    model, loud = learned(many(5)), record([100, 100, 100], k=20, state="running", start=9e6)
    for i in range(3000):
        model.learn(record([100, 100, 100 + i % 50], k=2.5, state="running", start=1e6 + i))
    quiet = model.predict(inputs(100, 100, 100), "filter").mean
    model.learn(loud)
    bounds = model._tasks["filter"].running_bounds("alloc")
    assert len(bounds) == 16 and model.predict(inputs(100, 100, 100), "filter").mean > 3 * quiet
    assert model._tasks["filter"].running_bounds("alloc")[0] is bounds[0]
    assert model.predict(inputs(100, 100, 100), "filter", running=loud).mean == quiet


@pytest.mark.parametrize("seed", range(4))
def test_one_surprise_while_values_are_few_does_not_widen_the_bound_for_long(seed):
    """Some tasks need 5 times their input, most 3, and by chance the first few are all of one
    sort: the next is a hundred deviations off, of a deviation that was a guess."""
    chance, model = random.Random(seed), Model()
    for i in range(60):
        k = 3.0 if i < 5 or chance.random() < 0.7 else 5.0
        model.learn(
            record(
                [chance.randrange(40, 300) for _ in range(3)],
                k=5.0 if i == 5 else k,
                noise=chance.gauss(0, 0.002),
                start=float(i),
            )
        )
    truth = record([200, 200, 200], k=5.0)["alloc_peak_bytes"]
    assert 0.95 * truth < model.predict(inputs(200, 200, 200), "filter").upper(0.99) < 1.7 * truth


def test_what_a_task_was_off_is_not_counted_among_the_others_again():
    own, pooled = Scores(), Scores()
    for scores in (own, pooled):
        scores.add(50.0)
    predictive = Predictive(np.ones(1), np.array([100.0]), np.array([1.0]))
    assert Calibrated(predictive, own, pooled).quantile(0.9) == Calibrated(
        predictive, own, Scores()
    ).quantile(0.9)
    assert Calibrated(predictive, own, pooled).survival(140.0) == pytest.approx(1 / 61, rel=0.01)


def test_equal_blocks_a_thousand_times_say_nothing_about_larger_ones():
    """The usual job of Dask. What one shape leaves open stays open: rounding must not choose a
    size function."""
    few, often = (
        learned([record([100, 100, 100])] * count)
        .predict(inputs(400, 400, 400), "filter")
        .calibrated.predictive
        for count in (10, 1500)
    )
    assert often.mean == pytest.approx(few.mean, rel=0.01) and often.deviation == pytest.approx(
        few.deviation, rel=0.01
    )


def test_lower_bounds_of_many_large_inputs_are_bounded():
    """Each could not be dropped for another, and each has thousands of numbers."""
    model = Model()
    for n in range(200):
        many = [{"dtype": "uint8", "shape": [1] * 59 + [n + 1], "nbytes": (n + 1) << 20}] * 60
        model.learn(
            {
                **record([50, 50, 50]),
                "state": "killed",
                "inputs": many,
                "alloc_peak_bytes": (n + 1) << 30,
            }
        )
    kept = model._tasks["filter"].learners["alloc"].censored
    assert 1 <= len(kept) < 32 and len(json.dumps(model.to_dict())) < 100_000
    assert all(
        map(math.isfinite, answers(Model.from_dict(json.loads(json.dumps(model.to_dict())))))
    )
