"""Parameters in the model: sizes of their own, levels, and none where they do not matter."""

import math

import numpy as np
import pytest

from dwsr_probe.predict import Model

MIB = 1 << 20


def record(number, shape, peak, params=None, name="op", **others):
    inputs = [{"type": "ndarray", "dtype": "float64", "shape": list(shape)}] if shape else []
    return {
        "task_name": name,
        "state": "ok",
        "inputs": inputs,
        "alloc_peak_bytes": int(peak),
        "params": params,
        "process": "1-1",
        "thread": 1,
        "start": float(number),
        **others,
    }


def learned(records):
    model = Model()
    for one in records:
        model.learn(one)
    return model


def block(*shape):
    return [{"dtype": "float64", "shape": list(shape)}]


def windows(sizes, repetitions=1, side=300):
    """Patches of a window: each block is copied once for each place in the window."""
    return [
        record(n, (side, side), side * side * 8 * (w * w + 1), {"size": w, "seed": n})
        for n, w in enumerate(w for w in sizes for _ in range(repetitions))
    ]


def test_a_larger_window():
    model = learned(windows((3, 5, 7)))
    forecast = model.predict(block(300, 300), "op", params={"size": 9, "seed": 0})
    assert forecast.mean == pytest.approx(300 * 300 * 8 * 82, rel=0.05)
    assert forecast.upper(0.99) < 1.15 * forecast.mean and forecast.params == ("size",)


def test_a_larger_window_of_a_larger_block():
    seen = [
        record(n, (side, 500), side * 500 * 8 * (2 + w), {"size": w})
        for n, (side, w) in enumerate((s, w) for s in (200, 300, 450) for w in (3, 5, 7))
    ]
    forecast = learned(seen).predict(block(1000, 500), "op", params={"size": 9})
    assert forecast.mean == pytest.approx(1000 * 500 * 8 * 11, rel=0.05)


@pytest.mark.parametrize("power", [1, 2, 3])
def test_a_simulation_without_inputs(power):
    seen = [
        record(n, None, MIB + 8 * size**power, {"n": size})
        for n, size in enumerate((150, 300, 450))
    ]
    forecast = learned(seen).predict([], "op", params={"n": 900})
    assert forecast.mean == pytest.approx(MIB + 8 * 900**power, rel=0.05 if power < 3 else 0.1)
    assert forecast.upper(0.99) >= 0.99 * (MIB + 8 * 900**power)


@pytest.mark.parametrize("noise", [0.0, 0.01, 0.1])
def test_a_parameter_that_does_not_matter_widens_no_bound(noise):
    chance = np.random.default_rng(1)
    seen = [
        record(n, (rows, 500), (2 * rows * 500 * 8 + MIB) * (1 + noise * chance.standard_normal()))
        for n, rows in enumerate(chance.integers(100, 1000, 40))
    ]
    without = learned(seen).predict(block(1500, 500), "op")
    beside = [{**one, "params": {"seed": n, "mode": n % 3}} for n, one in enumerate(seen)]
    forecast = learned(beside).predict(block(1500, 500), "op", params={"seed": 77, "mode": 1})
    assert forecast.upper(0.99) <= 1.01 * without.upper(0.99) and forecast.params == ()
    assert forecast.mean == pytest.approx(without.mean, rel=0.01)


def test_levels():
    """Each value has a factor of its own, which no power of it explains; a boolean, too."""
    factor = {0: 2.0, 1: 7.0, 2: 3.0}
    seen = [
        record(n, (rows, 500), rows * 500 * 8 * factor[mode], {"mode": mode})
        for n, (rows, mode) in enumerate((r, m) for r in (200, 300, 500) for m in factor)
    ]
    model = learned(seen)
    for mode, times in factor.items():
        forecast = model.predict(block(800, 500), "op", params={"mode": mode})
        assert forecast.mean == pytest.approx(800 * 500 * 8 * times, rel=0.05)
    switch = [{**one, "params": {"copy": bool(one["params"]["mode"] == 1)}} for one in seen]
    switch = [one for n, one in enumerate(switch) if n % 3 < 2]
    model = learned(switch)
    for copy, times in ((False, 2.0), (True, 7.0)):
        forecast = model.predict(block(800, 500), "op", params={"copy": copy})
        assert forecast.mean == pytest.approx(800 * 500 * 8 * times, rel=0.05)


def test_a_question_that_does_not_give_the_parameter():
    model = learned(windows((3, 5, 7), 3))
    forecast = model.predict(block(300, 300), "op")
    assert "params" in forecast.notes and forecast.trust != "good"
    assert forecast.upper(0.99) >= 300 * 300 * 8 * 50  # covers the largest value seen


def test_the_order_does_not_matter():
    seen = windows((3, 5, 7, 4), 3)
    question = block(300, 300), "op"
    one = learned(seen).predict(*question, params={"size": 9})
    other = learned(seen[::-1]).predict(*question, params={"size": 9})
    assert one.mean == pytest.approx(other.mean, rel=1e-9)


def test_merged_and_saved(tmp_path):
    seen = windows((3, 5, 7), 2)
    whole, first, second = learned(seen), learned(seen[::2]), learned(seen[1::2])
    first.merge(second)
    first.save(tmp_path / "model")
    for model in (first, Model.load(tmp_path / "model")):
        forecast = model.predict(block(300, 300), "op", params={"size": 9})
        expected = whole.predict(block(300, 300), "op", params={"size": 9})
        assert forecast.mean == pytest.approx(expected.mean, rel=1e-6)
        assert model.params("op") == ["seed", "size"]


def test_killed_tasks_have_parameters_too():
    """A kill with a large window says nothing about a small one."""
    seen = windows((3, 5, 7), 2)
    killed = record(50, (300, 300), 300 * 300 * 8 * 200, {"size": 15, "seed": 1}, state="killed")
    model = learned([*seen, killed])
    small = model.predict(block(300, 300), "op", params={"size": 5})
    assert small.upper(0.99) < 1.2 * 300 * 300 * 8 * 26
    large = model.predict(block(300, 300), "op", params={"size": 15})
    assert large.upper(0.99) > 300 * 300 * 8 * 200


def test_features_of_the_data():
    """What a program knows of its data beyond the shape: the number of non-zeros."""
    chance = np.random.default_rng(2)
    seen = [
        record(n, (1000, 1000), MIB + 24 * int(nnz), {"nnz": int(nnz)})
        for n, nnz in enumerate(chance.integers(20_000, 200_000, 12))
    ]
    forecast = learned(seen).predict(block(1000, 1000), "op", params={"nnz": 500_000})
    assert forecast.mean == pytest.approx(MIB + 24 * 500_000, rel=0.05)


@pytest.mark.parametrize(
    "params",
    [{"x": math.nan}, {"x": math.inf}, {"x": None}, {"x": 10**400}, {str(i): i for i in range(99)}],
)
def test_values_that_say_nothing(params):
    model = learned([record(n, (100, 100), MIB, params) for n in range(4)])
    assert model.predict(block(100, 100), "op", params=params).mean == pytest.approx(MIB, rel=0.1)


@pytest.mark.parametrize("params", [[1], "sigma", {"x": "3"}, {1: 2}])
def test_what_is_no_parameters(params):
    with pytest.raises(ValueError, match="param"):
        Model().learn(record(0, (10, 10), MIB, params))
    with pytest.raises(ValueError, match="param"):
        Model().predict(block(10, 10), "op", params=params)


def test_a_switch():
    """Two values of a parameter, and one size."""
    seen = [record(n, (500, 500), (4 + 8 * (n % 2)) * MIB, {"copy": n % 2}) for n in range(20)]
    model = learned(seen)
    for copy, peak in ((0, 4), (1, 12)):
        forecast = model.predict(block(500, 500), "op", params={"copy": copy})
        assert forecast.mean == pytest.approx(peak * MIB, rel=0.02)
        assert forecast.upper(0.99) < 1.1 * forecast.mean and forecast.params == ("copy",)


def test_a_call_that_leaves_the_parameter_at_its_default():
    seen = [record(n, (300, 300), (2 + n % 7) * MIB, {"n": n % 7, "seed": n}) for n in range(21)]
    seen.append(record(99, (300, 300), 3 * MIB, {"seed": 99}))
    forecast = learned(seen).predict(block(300, 300), "op", params={"n": 12})
    assert forecast.mean == pytest.approx(14 * MIB, rel=0.05)


def test_many_parameters_that_do_not_matter():
    """Ten constants whose names stand before it, and four seeds."""
    chance = np.random.default_rng(1)
    seen = []
    for number in range(24):
        params = {f"a{k}": 5 for k in range(10)} | {"n": number % 4 + 1}
        params |= {f"seed{k}": int(chance.integers(1 << 30)) for k in range(4)}
        seen.append(record(number, (300, 300), 2 * params["n"] * MIB, params))
    forecast = learned(seen).predict(block(300, 300), "op", params={"n": 3})
    assert forecast.mean == pytest.approx(6 * MIB, rel=0.02) and forecast.params == ("n",)


@pytest.mark.parametrize("noise", [0.02, 0.05])
def test_a_noisy_simulation_at_three_sizes(noise):
    found = []
    for seed in range(20):
        chance = np.random.default_rng(seed)
        model = learned(
            record(n, (), 80 * size**2 * chance.normal(1, noise), {"n": size})
            for n, size in enumerate((250, 500, 1000))
        )
        found.append(model.predict([], "op", params={"n": 2000}))
    assert sum(one.params == ("n",) for one in found) >= 18
    assert np.median([one.mean for one in found]) == pytest.approx(80 * 2000**2, rel=0.15)


def test_a_value_below_zero_is_not_known():
    seen = [record(n, (300, 300), (2 + n % 3) * MIB, {"k": n % 3}) for n in range(15)]
    forecast = learned(seen).predict(block(300, 300), "op", params={"k": -10})
    assert forecast.mean > MIB and "params" in forecast.notes and forecast.trust != "good"


def test_a_seed_that_grows_with_the_window():
    """Of two parameters that explain the same, the one that numbers the records counts less."""
    seen = [
        record(n, (300, 300), (1 + w) * MIB, {"size": w, "seed": n})
        for n, w in zip(range(3), (3, 5, 7), strict=True)
    ]
    forecast = learned(seen).predict(block(300, 300), "op", params={"size": 9, "seed": 99})
    assert forecast.mean == pytest.approx(10 * MIB, rel=0.1)


def test_extreme_values_make_no_warnings(recwarn):
    values = (1e15, 1e-300, 3.0, 5e14, 0.0)
    model = learned(
        record(n, (300, 300), (2 + n % 3) * MIB, {"x": values[n % 5]}) for n in range(20)
    )
    for value in (1e15, -1e15, 1e-300, 0, 7):
        forecast = model.predict(block(300, 300), "op", params={"x": value})
        assert forecast.mean >= 0 and forecast.exceeds(3 * MIB) >= 0
    assert not recwarn.list
