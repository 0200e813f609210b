"""The quantile of a calibrated forecast is the first point whose level is high enough, wherever the
search begins."""

import json
from itertools import pairwise

import numpy as np
import pytest

from dwsr_probe.predict.calibration import EDGES, POINTS, Calibrated, Scores
from dwsr_probe.predict.mixture import Predictive

LEVELS = (1e-6, 0.01, 0.3, 0.5, 0.9, 0.99, 0.999, 1 - 1e-9)


def scores(chance, count, width):
    found = Scores()
    for score in chance.standard_t(3, count) * width:
        found.add(score)
    return found


@pytest.mark.parametrize("components", [1, 2, 12])
@pytest.mark.parametrize("count", [0, 5, 600])
@pytest.mark.parametrize("width", [0.1, 1.0, 30.0])
def test_the_first_point_with_this_level(components, count, width):
    chance = np.random.default_rng(components * 1000 + count)
    own, pooled = scores(chance, count, width), scores(chance, 2 * count, width)
    for _ in range(20):
        weight = chance.dirichlet(np.full(components, 0.3))
        means = 1e9 * chance.lognormal(0, 0.5, components)
        predictive = Predictive(weight, means, 1e7 * chance.lognormal(0, 1.5, components))
        calibrated = Calibrated(predictive, own, pooled)
        levels = np.maximum.accumulate(calibrated.level(POINTS))
        for q in LEVELS:
            place = max(1, min(int(np.searchsorted(levels, q)), len(POINTS) - 1))
            z = max(0.0, POINTS[place]) if q >= 0.95 else POINTS[place]
            assert calibrated.quantile(q) == predictive.mean + z * predictive.deviation


def test_points_are_in_bins():
    assert set(EDGES) <= set(POINTS) and (np.diff(POINTS) > 0).all()
    assert len(POINTS) == 8 * (len(EDGES) - 1) + 1


def test_bounds_follow_all_that_changes_scores():
    """What is kept of scores between two forecasts is made again."""
    chance = np.random.default_rng(0)
    predictive = Predictive(np.ones(1), np.array([1e9]), np.array([1e7]))

    def bound():
        found = Calibrated(predictive, own, pooled).quantile(0.99)
        copies = Scores(own.counts.copy()), Scores(pooled.counts.copy())
        assert found == Calibrated(predictive, *copies).quantile(0.99)
        return found

    own, pooled = scores(chance, 100, 1), scores(chance, 100, 1)
    found = [bound()]
    for _ in range(10):
        own.add(50.0)
        pooled.add(50.0)
    found.append(bound())
    own.forget_outliers(pooled)
    found.append(bound())
    pooled.merge(scores(chance, 300, 20))
    found.append(bound())
    own.forget(pooled)
    found.append(bound())
    assert all(one != other for one, other in pairwise(found))
    pooled = Scores()
    bound()


def test_scores_are_saved_without_empty_bins():
    found = scores(np.random.default_rng(0), 30, 1)
    saved = json.loads(json.dumps(found.to_lists()))
    assert len(saved[0]) == len(saved[1]) == np.count_nonzero(found.counts)
    assert (Scores.parse(saved).counts == found.counts).all()
    assert Scores.parse(Scores().to_lists()).n == 0


def test_scores_of_earlier_versions_are_read():
    found = scores(np.random.default_rng(0), 30, 1)
    assert (Scores.parse(found.counts.tolist()).counts == found.counts).all()


@pytest.mark.parametrize(
    "saved",
    [
        [],
        [[]],
        [[1], []],
        [[1], [-1.0]],
        [[1], [float("nan")]],
        [[1], [float("inf")]],
        [[1, 1], [1.0, 1.0]],
        [[2, 1], [1.0, 1.0]],
        [[-1], [1.0]],
        [[162], [1.0]],
        [[1.0], [1.0]],
        [[True], [1.0]],
        [0.0] * 161,
        [-1.0] * 162,
        "xy",
    ],
)
def test_damaged_scores_are_refused(saved):
    with pytest.raises(ValueError):
        Scores.parse(saved)
