"""Which bound is taken: the one that would have cost least."""

import math

import numpy as np
import pytest

from dwsr_probe.predict import Model
from dwsr_probe.predict.experts import LARGEST_SEEN, POSTERIOR, SINGLE_SIZES, Bounds, Costs

MB = 1_000_000
SHAPELESS = (True, False, True)


def file_of(size):
    return [{"type": "file", "nbytes": int(size)}]


def record(size, peak):
    return {"task_name": "op", "inputs": file_of(size), "alloc_peak_bytes": int(peak)}


def learned(sizes, need):
    model = Model()
    for size in sizes:
        model.learn(record(size, need(size)))
    return model


def costs_of(model):
    return model._tasks["op"].learners["alloc"].scoring.costs


def test_the_cheapest_is_taken_and_the_first_of_equal_ones():
    costs = Costs()
    assert costs.expert((True, True, True)) == POSTERIOR
    costs.add(Bounds(300, None, 120), 100)
    assert (
        costs.expert(SHAPELESS) == LARGEST_SEEN and costs.expert((True, True, False)) == POSTERIOR
    )
    assert costs.by_expert == {POSTERIOR: 3.0, SINGLE_SIZES: 3.0, LARGEST_SEEN: 1.2}
    for _ in range(5):
        costs.add(Bounds(110, 105, 300), 100)
    assert costs.expert((True, True, True)) == SINGLE_SIZES


def test_a_failure_costs_all_its_attempts():
    """100 of 350 needed: 100 + 200 + 400, and the price."""
    costs = Costs()
    costs.add(Bounds(100, None, 400), 350)
    assert costs.by_expert[POSTERIOR] == pytest.approx(700 / 350 + 1)
    assert costs.by_expert[LARGEST_SEEN] == pytest.approx(400 / 350)
    assert costs.regret == pytest.approx(700 / 350 + 1 - 400 / 350)


def test_the_regret_is_small():
    """For each value, against the best expert, whichever that is."""
    chance = np.random.default_rng(0)
    for times in ((1.1, 1.5), (1.5, 1.1), (1.2, 1.2)):
        costs = Costs()
        for _ in range(300):
            bounds = [cost * chance.uniform(0.95, 1.05) for cost in times]
            costs.add(Bounds(bounds[0], None, bounds[1]), 1e0)
        assert costs.regret < 0.02


def test_costs_add_and_are_kept():
    one, other, both = Costs(), Costs(), Costs()
    for n in range(40):
        bounds = Bounds(100 + n, 120, 90 + 3 * n)
        (one if n % 2 else other).add(bounds, 110)
        both.add(bounds, 110)
    one.merge(other)
    assert one.by_expert == pytest.approx(both.by_expert) and one.n == both.n
    assert Costs.parse(one.to_list()).by_expert == one.by_expert and Costs.parse(None).n == 0
    with pytest.raises(ValueError, match="damaged"):
        Costs.parse([1, 2, 3, math.nan, 5])


def test_memory_that_does_not_grow_is_reserved_as_it_was():
    """After one file of 1 MB, the bound for 100 MB may be far too high; a reservation is not."""
    model = learned([MB], lambda size: 50 * MB)
    forecast = model.predict(file_of(100 * MB), "op")
    assert forecast.upper(0.99) > 1000 * MB and forecast.reserve() == 150 * MB


def test_memory_that_grows_is_reserved_as_the_line_says():
    sizes = np.random.default_rng(1).uniform(MB, 50 * MB, 40)
    model = learned(sizes, lambda size: 10 * MB + 4 * size)
    forecast = model.predict(file_of(200 * MB), "op")
    assert forecast.reserve() == forecast.upper(0.99) >= 810 * MB
    assert costs_of(model).expert(SHAPELESS) == POSTERIOR


def test_where_the_size_says_nothing_the_largest_is_cheaper():
    chance = np.random.default_rng(2)
    sizes = np.exp(chance.uniform(0, 5, 60)) * MB
    model = learned(sizes, lambda size: 100 * MB * chance.choice([1, 1.02, 1.5]))
    forecast = model.predict(file_of(300 * MB), "op")
    assert forecast.reserve() <= 1.25 * 150 * MB


def test_inputs_with_shapes_are_reserved_by_their_bound():
    model = Model()
    given = [{"dtype": "float64", "shape": [1000, 100]}]
    model.learn({"task_name": "op", "inputs": given, "alloc_peak_bytes": 50 * MB})
    forecast = model.predict([{"dtype": "float64", "shape": [100_000, 100]}], "op")
    assert forecast.reserve() == forecast.upper(0.99)


def test_a_killed_task_raises_the_reservation():
    model = learned([MB], lambda size: 50 * MB)
    before = model.predict(file_of(100 * MB), "op").reserve()
    model.learn({**record(100 * MB, before), "state": "killed"})
    assert model.predict(file_of(100 * MB), "op").reserve() >= 1.5 * before


def test_kept_with_the_model():
    sizes = np.random.default_rng(3).uniform(MB, 50 * MB, 30)
    model = learned(sizes, lambda size: 100 * MB)
    again = Model.from_dict(model.to_dict())
    question = file_of(80 * MB), "op"
    assert again.predict(*question).reserve() == model.predict(*question).reserve()
    old = model.to_dict()
    del old["tasks"]["op"]["learners"]["alloc"]["costs"]
    assert Model.from_dict(old).predict(*question).upper() == model.predict(*question).upper()
