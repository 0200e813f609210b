"""The cases that a learner keeps, and what follows from keeping cases instead of sums: outliers do
not outweigh the rest, merged models are equal, thresholds and sums of two sizes are found."""

import gc
import json
import math
import random
import zlib

import numpy as np
import pytest

from dwsr_probe.predict import Model
from dwsr_probe.predict.case import CaseKey
from dwsr_probe.predict.cases import CaseSample
from dwsr_probe.predict.sizes import Array, InputSizes, sizes_of

MB = 1_000_000


def file_of(size):
    return [{"nbytes": size}]


def task(size, peak, name="program", **others):
    return {"task_name": name, "inputs": file_of(size), "alloc_peak_bytes": round(peak), **others}


def learned(records):
    model = Model()
    for record in records:
        model.learn(record)
    return model


def key(length):
    return CaseKey(sizes_of((Array((length,), 4 * length, "float32"),)), 0)


# -- the sample


def test_the_sample_is_bounded_and_does_not_depend_on_the_order():
    lengths = [random.Random(0).randrange(1, 1 << 40) for _ in range(5_000)]
    samples = []
    for seed in range(3):
        sample = CaseSample()
        for length in random.Random(seed).sample(lengths, len(lengths)):
            sample.add(key(length), 3.0 * length)
        samples.append(sample)
    one, *others = (sample.to_dict() for sample in samples)
    assert all(other == one for other in others)
    assert len(samples[0]) <= 72 and samples[0].n == len(lengths)
    assert max(lengths) * 4 in [total for total, *_ in samples[0].seen()]


def test_merged_samples_are_the_sample_of_all():
    chance = random.Random(1)
    values = [(chance.randrange(1, 300), chance.uniform(1, 2)) for _ in range(3_000)]
    parts, whole = [CaseSample() for _ in range(3)], CaseSample()
    for i, (length, y) in enumerate(values):
        parts[i % 3].add(key(length), y)
        whole.add(key(length), y)
    first, *rest = parts
    for part in rest:
        first.merge(part)
    assert first.n == whole.n
    for ours, theirs in zip(first.to_dict()["by_key"], whole.to_dict()["by_key"], strict=True):
        assert ours[3:] == theirs[3:]
        assert ours[:3] == pytest.approx(theirs[:3], rel=1e-12)


def test_merged_models_have_the_bounds_of_one_that_learned_everything():
    chance = random.Random(2)
    records = [
        task(size := chance.randrange(MB, 200 * MB), (5 * MB + 4 * size) * chance.gauss(1, 0.03))
        for _ in range(400)
    ]
    one = learned(records)
    merged = learned(records[0::2])
    merged.merge(learned(records[1::2]))
    for size in (10 * MB, 100 * MB, 1000 * MB):
        ours, theirs = (model.predict(file_of(size), "program") for model in (merged, one))
        assert ours.mean == pytest.approx(theirs.mean, rel=1e-9)
        assert ours.upper(0.99) == pytest.approx(theirs.upper(0.99), rel=0.05)


def test_a_model_that_was_forgotten_and_learned_anew_is_saved_and_loaded():
    model = learned(task(n * MB, 3 * n * MB) for n in range(1, 100))
    for n in range(1, 60):
        model.learn(task(n * MB, 9 * n * MB))
    kept = Model.from_dict(json.loads(json.dumps(model.to_dict())))
    question = file_of(50 * MB)
    assert kept.predict(question, "program").mean == model.predict(question, "program").mean
    assert kept.predict(question, "program").mean == pytest.approx(450 * MB, rel=0.05)


# -- outliers


@pytest.mark.parametrize("sizes", [1, 2, 5, 9, 20])
@pytest.mark.parametrize("place", [0.5, 1.01, 1.5])
def test_one_tiny_value_beside_few_sizes_changes_little(sizes, place):
    chance = random.Random(4)
    records = [
        task(
            round((900 + n % sizes * 50) * MB),
            (5000 + n % sizes * 278) * MB * chance.gauss(1, 0.01),
        )
        for n in range(107)
    ]
    plain = learned(records)
    disturbed = learned([*records, task(round(place * 900 * MB), 3 * MB)])
    for factor in (1, 2, 5):
        question = file_of(factor * 900 * MB)
        ours, theirs = (model.predict(question, "program") for model in (disturbed, plain))
        assert ours.upper(0.99) == pytest.approx(theirs.upper(0.99), rel=0.2)
        assert ours.mean == pytest.approx(theirs.mean, rel=0.1)


@pytest.mark.parametrize(("size", "factors"), [(905 * MB, (1, 1.5)), (MB, (1, 2, 10))])
def test_one_tiny_value_among_many_large_ones_changes_little(size, factors):
    """With weights of 1/y^2 it would count a million times as much as any other."""
    chance = random.Random(3)
    records = [
        task(round(chance.gauss(900, 5) * MB), chance.gauss(5000, 50) * MB) for _ in range(107)
    ]
    plain = learned(records)
    records.insert(50, task(size, 3 * MB))
    disturbed = learned(records)
    for factor in factors:
        ours, theirs = (
            model.predict(file_of(round(factor * 900 * MB)), "program")
            for model in (disturbed, plain)
        )
        assert ours.upper(0.99) == pytest.approx(theirs.upper(0.99), rel=0.2)
        assert ours.mean == pytest.approx(theirs.mean, rel=0.15)


# -- more than one line


def spread(count, low=1, high=200):
    """In random order: growing sizes could also be a task that changes."""
    found = [int(size * MB) for size in np.geomspace(low, high, count)]
    return random.Random(0).sample(found, count)


@pytest.mark.parametrize(
    "peak",
    [
        lambda size: 15 * MB + 4 * min(size, 30 * MB),  # a buffer of limited size
        lambda size: max(90 * MB + size / 2, 3 * size),  # the larger of two needs
        lambda size: (3 if size < 10 * MB else 2) * size,  # temporary arrays that are reused
    ],
    ids=["saturation", "two regimes", "a step"],
)
def test_tasks_that_behave_in_another_way_from_a_size_on(peak):
    chance = random.Random(4)
    model = learned(task(size, peak(size) * chance.gauss(1, 0.002)) for size in spread(60))
    for size in (2 * MB, 150 * MB, 400 * MB):
        forecast = model.predict(file_of(size), "program")
        assert forecast.mean == pytest.approx(peak(size), rel=0.08)
        assert peak(size) < forecast.upper(0.99) < 1.5 * peak(size)


def test_two_unrelated_sizes_are_added():
    """Three bytes for each of the input's, and seven for each of the output's."""
    chance = random.Random(5)

    def resample(rows, kept, peak=None):
        given = [{"dtype": "float64", "shape": [rows, 10]}]
        output = {"type": "ndarray", "dtype": "float64", "shape": [kept], "nbytes": 8 * kept}
        return {
            "task_name": "resample",
            "inputs": given,
            "output": output,
            "output_bytes": output["nbytes"],
            "alloc_peak_bytes": 3 * 80 * rows + 7 * output["nbytes"],
        }

    records = [
        resample(chance.randrange(100_000, 2_000_000), chance.randrange(100_000, 9_000_000))
        for _ in range(40)
    ]
    model = learned(records)
    asked = resample(1_234_567, 7_654_321)
    forecast = model.predict(asked["inputs"], "resample", output=asked["output"])
    assert forecast.mean == pytest.approx(asked["alloc_peak_bytes"], rel=0.02)
    assert math.isfinite(forecast.upper(0.99))


def test_a_task_that_makes_its_output_takes_that_much():
    """Reads of parts of one stored chunk cost the same, whatever they return."""

    def read(side):
        output = {"type": "ndarray", "dtype": "float32", "shape": [side] * 3, "nbytes": 4 * side**3}
        given = [{"dtype": "float32", "shape": [side] * 3, "nbytes": 4 * side**3}]
        own = max(3 * MB, round(2.2 * output["nbytes"]))
        return {
            "task_name": "read",
            "inputs": given,
            "output": output,
            "output_bytes": output["nbytes"],
            "alloc_peak_bytes": own,
        }

    model = learned(read(side) for side in (24, 32, 48, 56, 64, 40, 44))
    asked = read(128)
    forecast = model.predict(asked["inputs"], "read")
    assert forecast.mean >= asked["output_bytes"] and forecast.upper(0.99) >= forecast.mean


def test_samples_that_an_earlier_version_saved():
    """They had the moments of a case behind its sizes, and no parameters."""
    sample = CaseSample()
    for length in (1, 2, 3, 3):
        sample.add(key(length), 5.0 * length)
    saved = sample.to_dict()
    rows = [[*row[3:7], *row[:3]] for row in saved.pop("by_key")]
    assert CaseSample.from_dict({**saved, "cases": rows}).to_dict() == sample.to_dict()


@pytest.mark.parametrize("params", [(), (("sigma", 3.0),), (("a", 1.0), ("it's", 1e300))])
@pytest.mark.parametrize(
    "largest", [Array(None, 0), Array((), 8), Array((5,), 40, "f8"), Array((5, 6), 9, 'it\'s "x"')]
)
def test_hashes_are_those_of_saved_models(largest, params):
    """A sample has the cases with the smallest hashes: of two versions, too."""
    key = CaseKey(InputSizes(7, 8, largest), 9, params)
    assert key.hash == zlib.crc32(repr((key.sizes, key.output_bytes, *params)).encode())


@pytest.mark.parametrize("is_enabled", [True, False])
def test_loading_leaves_the_collector_as_it_was(tmp_path, is_enabled):
    good, bad = tmp_path / "good", tmp_path / "bad"
    learned(task(MB * n, 3 * MB * n) for n in range(1, 9)).save(good)
    bad.write_text(good.read_text()[:-1])
    was_enabled = gc.isenabled()
    try:
        (gc.enable if is_enabled else gc.disable)()
        Model.load(good)
        with pytest.raises(ValueError, match="not a model"):
            Model.load(bad)
        assert gc.isenabled() == is_enabled
    finally:
        (gc.enable if was_enabled else gc.disable)()


def test_a_file_without_the_largest_peaks():
    """Of a model that an earlier version saved: cases that leave the sample are no extremes."""
    model = Model()
    for n in range(60):
        model.learn(task(1_000_000 + 10_000 * n, 20_000_000 + 200_000 * n))
    saved = json.loads(json.dumps(model.to_dict()))
    for learner in saved["tasks"]["program"]["learners"].values():
        del learner["cases"]["largest"], learner["cases"]["extremes"], learner["cases"]["variants"]
    loaded = Model.from_dict(saved)
    for n in range(200):
        loaded.learn(task(2_000_000 + 10_000 * n, 40_000_000 + 200_000 * n))
    forecast = loaded.predict(file_of(2_500_000), "program")
    assert forecast.upper(0.99) < 1.5 * forecast.mean
