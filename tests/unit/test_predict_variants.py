"""Tasks of one name that need different memory: several groups under one task name, and variants
within a group, by number of axes and kind of output."""

import json
import math

import numpy as np
import pytest

from dwsr_probe.predict import Model

MIB = 1 << 20


def array(*shape, **others):
    nbytes = 8 * math.prod(shape)
    return {
        "type": "numpy.ndarray",
        "dtype": "float64",
        "shape": list(shape),
        "nbytes": nbytes,
        **others,
    }


def record(number, inputs, output, peak, name="getitem", **others):
    return {
        "task_name": name,
        "inputs": [inputs],
        "output": output,
        "output_bytes": output["nbytes"] if output else None,
        "alloc_peak_bytes": round(peak),
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


def views_and_copies(count=60, seed=0):
    """Of equal inputs: two of three tasks return a view, the third copies half of its block."""
    chance = np.random.default_rng(seed)
    for number in range(count):
        side = int(chance.integers(300, 1500))
        block, half = array(side, side), array(side // 2, side)
        if number % 3:
            view = {**half, "nbytes": 0, "logical_bytes": half["nbytes"], "view": True}
            yield record(number, block, view, 0)
        else:
            yield record(number, block, half, half["nbytes"])


def sums(count=40, seed=1):
    """Of two axes: the input once. Of three: seven times."""
    chance = np.random.default_rng(seed)
    for number in range(count):
        side = int(chance.integers(40, 110))
        block = array(side, side, side) if number % 2 else array(side, side * side)
        factor = 7 if number % 2 else 1
        yield record(number, block, array(side), factor * block["nbytes"], "sum-aggregate")


def test_numbers_of_axes_that_need_different_memory():
    model = learned(sums())
    for block, factor in ((array(200, 40_000), 1), (array(200, 200, 200), 7)):
        forecast = model.predict([block], "sum-aggregate")
        assert forecast.mean == pytest.approx(factor * block["nbytes"], rel=0.02)
        assert forecast.upper(0.99) < 1.3 * forecast.mean and "mixture" not in forecast.notes


def test_kinds_of_output_that_need_different_memory():
    """What a task returns is not known before: the answer is for a mixture, and says so."""
    model, side = learned(views_and_copies()), 1000
    question = [array(side, side)]
    copied = 8 * side * side / 2
    forecast = model.predict(question, "getitem")
    assert "mixture" in forecast.notes and forecast.trust == "low"
    assert forecast.mean == pytest.approx(copied / 3, rel=0.1)
    assert copied <= forecast.upper(0.99) < 1.5 * copied
    assert forecast.exceeds(copied / 2) == pytest.approx(1 / 3, abs=0.05)
    copy = model.predict(question, "getitem", output=array(side // 2, side))
    assert copy.mean == pytest.approx(copied, rel=0.05) and "mixture" not in copy.notes


def test_a_mixture_is_not_promised():
    """Whatever the coverage of its bounds was so far."""
    model = learned(views_and_copies(400))
    forecast = model.predict([array(1000, 1000)], "getitem")
    assert "mixture" in forecast.notes and not forecast.promised(0.5)
    assert not forecast.is_trusted


def test_one_operation_has_no_variants():
    """Where one fit explains the tasks, axes and kinds of output make no difference."""
    chance = np.random.default_rng(2)
    records = []
    for number in range(60):
        side = int(chance.integers(40, 110))
        block = array(side, side, side) if number % 2 else array(side, side * side)
        output = array(side) if number % 3 else array(side, side)
        records.append(record(number, block, output, 3 * block["nbytes"] * chance.normal(1, 0.01)))
    model = learned(records)
    forecast = model.predict([array(100, 100, 100)], "getitem")
    assert model._tasks["getitem"].learners["alloc"].posterior().variants is None
    assert forecast.trust == "good" and forecast.mean == pytest.approx(24 * 10**6, rel=0.02)


def test_a_new_variant_shares_what_others_know():
    """Two copies of three axes beside many of two axes: the bound covers both."""
    records = [*sums(40)]
    records += [record(90 + n, array(30, 30, 10, 10), array(30), 5 * MIB) for n in range(2)]
    forecast = learned(records).predict([array(60, 60, 10, 10)], "sum-aggregate")
    assert forecast.trust in ("low", "fair")
    assert 5 * MIB < forecast.mean < forecast.upper(0.99) < 400 * MIB


def test_order_and_merging_change_nothing():
    records = [*views_and_copies(30)]
    model, parts = learned(records), learned(records[::2])
    parts.merge(learned(records[1::2]))
    question = [array(1000, 1000)]
    for other in (parts, learned(reversed(records)), Model.from_dict(saved(model))):
        found, expected = other.predict(question, "getitem"), model.predict(question, "getitem")
        assert found.mean == pytest.approx(expected.mean, rel=1e-6)
        assert found.notes == expected.notes


def saved(model):
    return json.loads(json.dumps(model.to_dict()))


def test_a_killed_task_counts_for_the_variant_that_takes_most():
    records = [*views_and_copies()]
    killed = record(99, array(1200, 1200), None, 60 * MIB, state="killed")
    model = learned([*records, killed])
    copy = model.predict([array(1200, 1200)], "getitem", output=array(600, 1200))
    before = learned(records).predict([array(1200, 1200)], "getitem", output=array(600, 1200))
    assert copy.upper(0.99) > 1.5 * before.upper(0.99)


# -- one task name, several groups

FACTORS = {"semblance": 110, "gst": 60, "chaos": 38, "rms": 12, "gaussian": 4}


def operators(count=16):
    """Five operators under one task name, in blocks of 32 and 64."""
    for number in range(count):
        block = array(*[32 + 32 * (number % 2)] * 3)
        for operation, factor in FACTORS.items():
            names = {"operation": operation, "chain": ["load", operation, "store"]}
            peak = factor * block["nbytes"]
            yield record(number, block, block, peak, "store-map", **names)


def test_a_task_name_of_several_groups_is_answered_for_the_mixture():
    model, block = learned(operators()), array(128, 128, 128)
    forecast = model.predict([block], "store-map")
    largest = model.predict([block], "semblance")
    mean = sum(FACTORS.values()) / len(FACTORS) * block["nbytes"]
    assert forecast.mean == pytest.approx(mean, rel=0.05)
    assert forecast.upper(0.99) == largest.upper(0.99) > 110 * block["nbytes"]
    assert "mixture" in forecast.notes and forecast.trust == "low" and not forecast.promised()
    assert forecast.n == 80 and list(forecast.output["shape"]) == [128, 128, 128]
    assert forecast.exceeds(50 * block["nbytes"]) == pytest.approx(0.4, abs=0.02)
    # The median is that of the mixture.
    assert forecast.upper(0.5) == pytest.approx(38 * block["nbytes"], rel=0.05)
    levels = [forecast.upper(q) for q in (0.05, 0.3, 0.5, 0.7, 0.89, 0.9, 0.95, 0.99, 0.999)]
    assert levels == sorted(levels)


def test_a_mixture_with_a_lower_bound_is_one():
    """Of one group the own peaks miss memory."""
    records = [*operators()]
    for one in records:
        if one["operation"] == "rms":
            one["attribution_reason"] = "foreign-allocator"
    forecast = learned(records).predict([array(64, 64, 64)], "store-map")
    assert forecast.is_lower_bound and math.isinf(forecast.upper(0.99))


def test_several_tasks_of_a_mixture_at_once():
    model, question = learned(operators()), ([array(64, 64, 64)], "store-map")
    alone = model.predict(*question)
    assert model.together([question]).upper(0.99) == alone.upper(0.99)
    joint = model.together([question] * 3 + [([array(64, 64, 64)], "rms")])
    assert joint.upper(0.99) > alone.upper(0.99) and joint.mean > 3 * alone.mean


def test_records_without_operations_have_wide_bounds_for_larger_blocks():
    """Five operators under one name, and nothing in the records tells them apart."""
    records = [{**one, "operation": None, "chain": None} for one in operators(48)]
    block = array(128, 128, 128)
    forecast = learned(records).predict([block], "store-map")
    assert forecast.upper(0.99) > 110 * block["nbytes"] and not forecast.promised(0.99)
    assert forecast.trust == "low"


def lists(count, begin=1000):
    """A third kind of output, eight bytes for each 80 kB of memory and more."""
    chance = np.random.default_rng(7)
    for number in range(begin, begin + count):
        side = int(chance.integers(300, 1500))
        output = {"type": "list", "nbytes": 8}
        yield record(number, array(side, side), output, 80_000 * side)


def test_a_new_kind_does_not_destroy_the_others():
    """However often it comes in a row, and in any order."""
    before, question = [*views_and_copies(90)], [array(1000, 1000)]
    copied = array(500, 1000)
    for count in (1, 3, 4, 6, 12):
        model = learned([*before, *lists(count)])
        copy = model.predict(question, "getitem", output=copied)
        assert copy.mean == pytest.approx(copied["nbytes"], rel=0.05), count
        assert "drifting" not in model.predict(question, "getitem").notes
        of_lists = model.predict(question, "getitem", output={"type": "list", "nbytes": 8})
        assert of_lists.mean == pytest.approx(80_000_000, rel=0.5), count
    records = [*before, *lists(30)]
    means = []
    for seed in range(4):
        mixed = [records[n] for n in np.random.default_rng(seed).permutation(len(records))]
        means.append(learned(mixed).predict(question, "getitem").mean)
    assert max(means) < 1.15 * min(means)  # another task is the first of the thread


def test_more_kinds_than_are_told_apart():
    records = []
    for number in range(120):
        side = 300 + number
        output = {"type": f"kind {number % 12}", "nbytes": 8}
        records.append(record(number, array(side, side), output, 2_000 * side))
    records += [*views_and_copies(240)]
    model, question = learned(records), [array(1000, 1000)]
    copy = model.predict(question, "getitem", output=array(500, 1000))
    assert copy.mean == pytest.approx(4_000_000, rel=0.05)
    assert "mixture" in model.predict(question, "getitem").notes


@pytest.mark.parametrize("noise", [0.05, 0.2])
def test_noise_makes_no_variants(noise):
    found = []
    for seed in range(6):
        chance = np.random.default_rng(seed)
        records = []
        for number in range(40):
            side = int(chance.integers(100, 2000))
            output = {"type": f"kind {chance.integers(3)}", "nbytes": 8}
            peak = max(0, 16_000 * side * chance.normal(1, noise))
            records.append(record(number, array(side, 1000), output, peak))
        found.append("mixture" in learned(records).predict([array(500, 1000)], "getitem").notes)
    assert sum(found) <= 1


def test_tasks_of_a_mixture_are_of_independent_kinds():
    """Of thirty tasks, about ten copy: not all of them, and not none."""
    model = learned(views_and_copies(300))
    joint = model.together([([array(1000, 1000)], "getitem")] * 30)
    assert 13 * 4_000_000 < joint.upper(0.99) < 22 * 4_000_000
    assert joint.exceeds(20 * 4_000_000) < 0.02


def test_groups_of_which_nothing_is_known_say_nothing():
    """One that only runs, one that had other inputs, and one that needs the same."""
    block = array(64, 64, 64)
    names = {"operation": "rms", "chain": ["load", "rms"]}
    known = [record(n, block, block, 12 * block["nbytes"], "op", **names) for n in range(40)]
    plain = learned(known).predict([block], "op")
    other = {"operation": "gst", "chain": ["load", "gst"]}
    running = record(99, block, None, MIB, "op", state="running", **other)
    tiny = [record(100 + n, array(4), array(4), MIB // 2, "op", **other) for n in range(5)]
    for more in ([running], tiny):
        forecast = learned([*known, *more]).predict([block], "op")
        assert forecast.upper(0.99) == pytest.approx(plain.upper(0.99), rel=0.01)
        assert "mixture" not in forecast.notes
    same = [record(200 + n, block, block, 12 * block["nbytes"], "op", **other) for n in range(40)]
    forecast = learned([*known, *same]).predict([block], "op")
    assert "mixture" not in forecast.notes and forecast.n == 80 and not forecast.is_mixed
