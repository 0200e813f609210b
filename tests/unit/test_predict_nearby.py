"""Bounds are not below what tasks of about the same size have needed."""

import numpy as np
import pytest

from dwsr_probe.predict import Model

MB = 1_000_000


def file_of(size):
    return [{"type": "file", "nbytes": int(size)}]


def record(size, peak, **others):
    return {"task_name": "op", "inputs": file_of(size), "alloc_peak_bytes": int(peak), **others}


def learned(records):
    model = Model()
    for one in records:
        model.learn(one)
    return model


def test_a_range_of_sizes_that_the_line_does_not_fit():
    """Small tasks need 2 % more than the line of the large ones says."""
    chance = np.random.default_rng(0)
    sizes = np.exp(chance.uniform(np.log(MB), np.log(200 * MB), 150))
    peaks = (10 * MB + 3 * sizes) * np.where(sizes < 3 * MB, 1.05, 1.0)
    model = learned(record(*one) for one in zip(sizes, peaks, strict=True))
    for size in (1.2 * MB, 2 * MB):
        assert model.predict(file_of(size), "op").upper(0.99) >= (10 * MB + 3 * size) * 1.05


def test_one_of_several_amounts():
    """Every eighth task needs three times as much: no bound is below that where it was seen."""
    sizes = np.linspace(MB, 20 * MB, 80)
    model = learned(record(s, (6 if n % 8 == 3 else 2) * s) for n, s in enumerate(sizes))
    for size in (5 * MB, 12 * MB, 19 * MB):
        forecast = model.predict(file_of(size), "op")
        assert forecast.upper(0.99) >= 5.5 * size
        assert forecast.exceeds(5 * size) > 0.05
    assert forecast.trust != "good"


def test_what_was_seen_at_other_sizes_says_nothing():
    sizes = np.linspace(MB, 2 * MB, 50)
    model = learned([*(record(s, 2 * s) for s in sizes), record(40 * MB, 240 * MB)])
    assert model.predict(file_of(1.5 * MB), "op").upper(0.99) < 1.2 * 3 * MB


def test_the_median_is_not_touched():
    sizes = np.linspace(MB, 20 * MB, 80)
    model = learned(record(s, (6 if n % 8 == 3 else 2) * s) for n, s in enumerate(sizes))
    assert model.predict(file_of(10 * MB), "op").upper(0.5) < 3.5 * 10 * MB


def test_several_tasks_together_have_the_bound_of_one_beside_the_means():
    sizes = np.linspace(MB, 20 * MB, 80)
    model = learned(record(s, (6 if n % 8 == 3 else 2) * s) for n, s in enumerate(sizes))
    question = file_of(10 * MB), "op"
    alone, joint = model.predict(*question), model.together([question] * 3)
    assert joint.upper(0.99) >= alone.upper(0.99) + 2 * alone.mean - 1


@pytest.mark.parametrize("kept", [2.0, 0.5])
def test_outputs_that_keep_other_bytes_than_their_shape_tells(kept):
    """Views of something larger or smaller: the peak is proportional to what is kept. Which axis
    is cut differs, so that no rule of the shape holds."""
    chance = np.random.default_rng(1)

    def task(rows, part):
        inputs = [{"dtype": "float64", "shape": [int(rows), 1000]}]
        shape = [int(rows * part), 1000]
        nbytes = 8 * shape[0] * 1000
        output = {"type": "ndarray", "dtype": "float64", "shape": shape, "view": True}
        output |= {"nbytes": int(kept * nbytes), "logical_bytes": nbytes}
        return {
            "task_name": "op",
            "inputs": inputs,
            "output": output,
            "output_bytes": output["nbytes"],
            "alloc_peak_bytes": output["nbytes"] + 100,
        }

    model = learned(
        task(rows, part)
        for rows, part in zip(
            chance.integers(500, 5000, 60), chance.uniform(0.4, 0.6, 60), strict=True
        )
    )
    forecast = model.predict([{"dtype": "float64", "shape": [4000, 1000]}], "op")
    assert forecast.mean == pytest.approx(kept * 0.5 * 8 * 4000 * 1000, rel=0.2)


@pytest.mark.parametrize("sizes", [1, 2, 200])
def test_the_probability_of_more_where_sizes_repeat(sizes):
    """As that of the noise: half of the tasks need more than the mean."""
    chance = np.random.default_rng(3)
    model = Model()
    for n in range(200):
        size = (50 + n % sizes) * MB
        model.learn(record(size, 10 * size * chance.normal(1, 0.1)))
    forecast = model.predict(file_of(50 * MB), "op")
    for deviations, expected in ((0, 0.5), (1, 0.16), (2, 0.023)):
        found = forecast.exceeds(500 * MB * (1 + 0.1 * deviations))
        assert found == pytest.approx(expected, abs=0.1 if deviations < 2 else 0.05)


@pytest.mark.parametrize("share", [0.05, 0.2])
def test_tasks_that_mostly_take_nothing(share):
    """A ratio to nothing says nothing: the bound is what others took."""
    chance = np.random.default_rng(4)
    model, exceeded = Model(), 0
    for n in range(300):
        size = float(chance.uniform(MB, 20 * MB))
        peak = 3 * size if chance.random() < share else 0
        exceeded += n > 100 and model.predict(file_of(size), "op").upper(0.99) < peak
        model.learn(record(size, peak))
    assert exceeded <= 8  # 4 % of 200


def test_no_bound_is_absurd_where_the_fit_is_near_zero():
    """Nothing up to 20 MB, then ten bytes for each byte beyond."""
    chance = np.random.default_rng(5)
    sizes = chance.uniform(5 * MB, 30 * MB, 60)
    model = learned(record(size, max(0, 10 * (size - 20 * MB))) for size in sizes)
    for size in (10 * MB, 25 * MB, 30 * MB, 45 * MB):
        assert model.predict(file_of(size), "op").upper(0.99) < 20 * 100 * MB


def test_bounds_narrow_after_a_change():
    """The peaks fall to a third: what was seen before is soon forgotten."""
    chance = np.random.default_rng(6)
    model = Model()
    for n in range(350):
        size = float(chance.uniform(MB, 20 * MB))
        model.learn(record(size, (9 if n < 200 else 3) * size * chance.normal(1, 0.02)))
    forecast = model.predict(file_of(10 * MB), "op")
    assert forecast.mean == pytest.approx(30 * MB, rel=0.05)
    assert forecast.upper(0.99) < 1.3 * 30 * MB


@pytest.mark.parametrize("share", [0.05, 0.5])
def test_selections_whose_size_depends_on_values(share):
    """All or nothing is kept, and four times that is taken: the output is only an estimate."""
    chance, exceeded = np.random.default_rng(8), 0
    model = Model()
    for n in range(300):
        size = int(chance.integers(MB, 20 * MB)) // 8 * 8
        kept = size if chance.random() < share else 0
        peak = (size + 4 * kept) * chance.normal(1, 0.01)
        exceeded += n >= 50 and model.predict(file_of(size), "op").upper(0.99) < peak
        model.learn(record(size, peak, output_bytes=kept))
    assert exceeded <= 8  # of 250


def test_exceeds_falls_to_zero():
    chance = np.random.default_rng(9)
    model = Model()
    for _ in range(300):
        size = float(chance.uniform(MB, 20 * MB))
        model.learn(record(size, 3 * size if chance.random() < 0.1 else 0))
    forecast = model.predict(file_of(10 * MB), "op")
    assert forecast.exceeds(10**18) < 1e-6
    assert forecast.exceeds(1.01 * forecast.upper(0.99)) < 0.05


def test_nothing_absurd_for_sizes_that_were_seen():
    """A fit of tiny outputs says a gigabyte for each byte of them."""
    records = []
    for n in range(100):
        size = (1 + n % 10) * MB
        records.append(record(size, (0, 0, 80 * MB)[n % 3], output_bytes=(0, 0, 40 * MB)[n % 3]))
    records += [record((1 + n) * MB, 80 * (1 + n) * MB, output_bytes=8) for n in range(8)]
    model = Model()
    for n, one in enumerate(records):
        model.learn(one)
        if n > 3:
            assert model.predict(file_of(5 * MB), "op").mean <= 11 * 640 * MB
