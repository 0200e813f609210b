"""Models of several workers that are merged, beside one model that learned all records: the same
sums, nearly the same bounds, which hold as often."""

import math
import random

import pytest

from dwsr_probe.predict import Model

MIB = 1 << 20
RECORDS = 900  # of each operator
FRESH = 500
# (bytes by the length of a side, relative standard deviation)
OPERATORS = {
    "linear": (lambda n: 3 * 8 * n * n, 0.03),
    "constant and linear": (lambda n: 30 * MIB + 2 * 8 * n * n, 0.01),
    "noisy": (lambda n: 4 * 8 * n * n, 0.10),
    "very noisy": (lambda n: 4 * 8 * n * n, 0.15),
    "exact": (lambda n: 2 * 8 * n * n, 0.0),
    "bent": (lambda n: 5 * 8 * min(n, 1200) ** 2 + 2 * 8 * max(0, n * n - 1200**2), 0.02),
}
SIDES = (300, 600, 900, 1200, 1500, 2000, 2500, 3000)
ASKED = (300, 1200, 2000, 3000, 4500)


def inputs(n):
    return [{"dtype": "float64", "shape": [n, n], "nbytes": 8 * n * n}]


def records(name, count, chance):
    need, noise = OPERATORS[name]
    for _ in range(count):
        n = chance.choice(SIDES)
        yield {
            "task_name": name,
            "inputs": inputs(n),
            "input_bytes": 8 * n * n,
            "output": inputs(n)[0],
            "output_bytes": 8 * n * n,
            "alloc_peak_bytes": max(1, round(need(n) * max(0.1, chance.gauss(1, noise)))),
        }


def learned(all_records):
    model = Model()
    for record in all_records:
        model.learn(record)
    return model


@pytest.fixture(scope="module")
def given():
    chance = random.Random(18)
    found = [record for name in OPERATORS for record in records(name, RECORDS, chance)]
    chance.shuffle(found)
    return found


@pytest.fixture(scope="module")
def one(given):
    return learned(given)


# How far bounds may be apart, by the number of models. A model that has learned few values makes
# forecasts that are further off, and their scores are kept: eight models of 112 values each have
# eight times as many of them, so that their bounds are up to 6 % wider.
APART = {2: 0.05, 4: 0.05, 8: 0.08}


@pytest.fixture(scope="module", params=APART)
def merged(request, given):
    """Each worker learned a part, in the order of the records."""
    first, *others = (learned(given[k :: request.param]) for k in range(request.param))
    for other in others:
        first.merge(other)
    return first


def test_sums_are_equal_within_rounding(one, merged):
    for name in OPERATORS:
        ours, theirs = (model.to_dict()["tasks"][name]["learners"] for model in (merged, one))
        assert ours.keys() == theirs.keys()
        for kind in ours:
            assert ours[kind]["n"] == theirs[kind]["n"] == RECORDS
            for mine, yours in zip(
                ours[kind]["cases"]["by_key"], theirs[kind]["cases"]["by_key"], strict=True
            ):
                assert mine[3:] == yours[3:]  # sizes
                assert mine[:3] == pytest.approx(yours[:3], rel=1e-12)  # moments


def test_means_are_equal_and_bounds_within_five_per_cent(one, merged, request):
    apart = APART[request.node.callspec.params["merged"]]
    for name in OPERATORS:
        for n in ASKED:
            ours, theirs = (model.predict(inputs(n), name) for model in (merged, one))
            assert ours.mean == pytest.approx(theirs.mean, rel=1e-6)
            assert ours.upper(0.99) == pytest.approx(theirs.upper(0.99), rel=apart), (name, n)


def test_bounds_hold_as_often(one, merged):
    """Of fresh tasks that exceed the bound of one model only, as many exceed the one as the other:
    a sign test at 1 %, one-sided. And both bounds hold as often as they promise."""
    chance = random.Random(19)
    only_merged = only_one = exceeded = count = 0
    for name in OPERATORS:
        bounds = {
            n: [model.predict(inputs(n), name).upper(0.99) for model in (merged, one)]
            for n in SIDES
        }
        for record in records(name, FRESH, chance):
            peak = record["alloc_peak_bytes"]
            ours, theirs = (peak > bound for bound in bounds[record["inputs"][0]["shape"][0]])
            only_merged, only_one = only_merged + (ours > theirs), only_one + (theirs > ours)
            exceeded, count = exceeded + ours, count + 1
    assert at_least(only_merged, only_merged + only_one, 0.5) > 0.01, (only_merged, only_one)
    assert at_least(exceeded, count, 0.01) > 0.01, (exceeded, count)


def test_tasks_that_all_have_a_size_of_their_own():
    """Of 4,000 such tasks 72 cases are kept: the same ones."""
    chance = random.Random(20)

    def record():
        size = round(math.exp(chance.uniform(math.log(1e6), math.log(1e9))))
        peak = round((20 * MIB + 3 * size) * chance.gauss(1, 0.05))
        return {"task_name": "t", "inputs": [{"nbytes": size}], "alloc_peak_bytes": peak}

    given = [record() for _ in range(4_000)]
    one, (first, *others) = learned(given), [learned(given[k::4]) for k in range(4)]
    for other in others:
        first.merge(other)
    for size in (1e6, 1e7, 1e8, 1e9, 4e9):
        ours, theirs = (model.predict([{"nbytes": size}], "t") for model in (first, one))
        assert ours.mean == pytest.approx(theirs.mean, rel=1e-6)
        assert ours.upper(0.99) == pytest.approx(theirs.upper(0.99), rel=0.05)


def at_least(found, n, p):
    """P(at least `found` of n), each with probability p."""

    def probability(k):
        ways = math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)
        return math.exp(ways + k * math.log(p) + (n - k) * math.log1p(-p))

    return sum(map(probability, range(found, n + 1)))
