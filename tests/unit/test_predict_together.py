"""Bounds of several tasks together."""

import math
import random

import numpy as np
import pytest

from dwsr_probe.predict import Model

MB = 1_000_000


def file_of(size):
    return [{"nbytes": size}]


def task(name, size, peak, **others):
    return {"task_name": name, "inputs": file_of(size), "alloc_peak_bytes": round(peak), **others}


def learned(noise=0.1, names=("smooth", "load"), count=40, seed=0):
    chance, model = random.Random(seed), Model()
    for _ in range(count):
        for factor, name in enumerate(names, 2):
            size = chance.randrange(10 * MB, 100 * MB)
            model.learn(task(name, size, factor * size * chance.gauss(1, noise)))
    return model


def test_one_task_together_is_the_task():
    model, question = learned(), (file_of(50 * MB), "smooth")
    alone, joint = model.predict(*question), model.together([question])
    assert joint.mean == alone.mean
    for q in (0.5, 0.9, 0.99):
        assert joint.upper(q) == alone.upper(q)
    assert 0.002 < joint.exceeds(alone.upper(0.99)) < 0.015


def test_nothing_needs_nothing():
    joint = Model().together([])
    assert (joint.mean, joint.upper(0.99), joint.exceeds(1)) == (0, 0, 0)


def test_independent_noise_averages_out_and_the_common_part_does_not():
    """With noise alone the bound of sixteen tasks is far below sixteen bounds; far beyond what was
    seen, where the line itself is uncertain, it is not."""
    model = learned(noise=0.1, count=200)
    for size, low, high in ((50 * MB, 1.0, 1.13), (5_000 * MB, 1.15, 3.0)):
        question = file_of(size), "smooth"
        alone, joint = model.predict(*question), model.together([question] * 16)
        assert joint.mean == pytest.approx(16 * alone.mean)
        assert 16 * alone.mean < joint.upper(0.99) <= 16 * alone.upper(0.99) * (1 + 1e-9)
        assert low < joint.upper(0.99) / joint.mean < high


def test_the_bound_of_a_sum_holds_as_often_as_it_says():
    """Each time a new model of few values, so that the line is uncertain, and four tasks of each
    of two groups."""
    exceeded, rounds = 0, 300
    for seed in range(rounds):
        chance = random.Random(1000 + seed)
        model = learned(noise=0.05, count=12, seed=seed)
        sizes = [chance.randrange(100 * MB, 200 * MB) for _ in range(8)]
        names = ["smooth", "load"] * 4
        truth = sum(
            (2 if name == "smooth" else 3) * size * chance.gauss(1, 0.05)
            for size, name in zip(sizes, names, strict=True)
        )
        joint = model.together(
            (file_of(size), name) for size, name in zip(sizes, names, strict=True)
        )
        exceeded += truth > joint.upper(0.95)
    assert exceeded <= 0.08 * rounds


def test_quantiles_rise_and_probabilities_fall():
    model = learned()
    joint = model.together([(file_of(50 * MB), "smooth"), (file_of(20 * MB), "load")] * 3)
    levels = (0.01, 0.5, 0.9, 0.99, 0.999)
    uppers = [joint.upper(q) for q in levels]
    assert uppers == sorted(uppers) and all(map(math.isfinite, uppers))
    for q, upper in zip(levels[1:], uppers[1:], strict=True):
        assert joint.exceeds(upper) == pytest.approx(1 - q, abs=0.01)
    assert joint.exceeds(0) == 1.0
    again = model.together([(file_of(50 * MB), "smooth"), (file_of(20 * MB), "load")] * 3)
    assert [again.upper(q) for q in levels] == uppers


def test_of_tasks_that_were_never_seen():
    joint = Model().together([(file_of(MB), "never")] * 3)
    assert np.isfinite(joint.upper(0.99)) and joint.upper(0.99) > joint.mean > 0
    alone = Model().predict(file_of(MB), "never")
    assert joint.upper(0.99) == pytest.approx(3 * alone.upper(0.99), rel=0.3)


def test_a_lower_bound_has_no_upper_bound():
    model = learned()
    for n in range(20):
        model.learn(
            task(
                "foreign",
                MB,
                MB,
                attribution="shared",
                attribution_reason="foreign-allocator (polars)",
                rss_before_bytes=0,
                rss_peak_bytes=5 * MB,
                overlap=0,
                start=float(n),
            )
        )
    joint = model.together([(file_of(MB), "foreign"), (file_of(MB), "smooth")])
    assert joint.is_lower_bound and joint.upper(0.99) == math.inf


@pytest.mark.parametrize("q", [0, 1, -1, math.nan])
def test_a_quantile_is_between_zero_and_one(q):
    with pytest.raises(ValueError, match="quantile"):
        learned().together([(file_of(MB), "smooth")]).upper(q)
