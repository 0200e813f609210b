"""The posterior and the calibration beside what pooled compute: scikit-learn on exact values,
lifelines on lower bounds, crepes on scores."""

import math
import warnings

import numpy as np
import pandas as pd
import pytest

from dwsr_probe.predict.calibration import Calibrated, Scores
from dwsr_probe.predict.case import CaseTable
from dwsr_probe.predict.mixture import LowerBound, Predictive
from dwsr_probe.predict.posterior import posterior
from dwsr_probe.predict.sizes import FUNCTION_COUNT, SIZE_FUNCTIONS, Array, size_features

FLOOR = 64 << 10


def shapes(count, chance, low=40, high=300):
    return [tuple(int(side) for side in chance.integers(low, high, 3)) for _ in range(count)]


def features(shape, output_bytes=None):
    nbytes = 4 * math.prod(shape)
    return size_features(
        (Array(shape, nbytes, "float32"),), nbytes if output_bytes is None else output_bytes
    )


def cases_of(pairs):
    sizes, values = zip(*pairs, strict=True)
    ones = np.ones(len(values))
    return CaseTable(np.array(sizes), np.array(values), 0 * ones, ones, np.array(values))


def posterior_of(cases, bounds=()):
    return posterior(cases, FLOOR, bounds)


# -- exact values


@pytest.mark.parametrize(
    ("k", "c", "noise"), [(3.0, 5e6, 0.02), (55.0, 1e8, 0.05), (1.0, 0.0, 0.1)]
)
def test_as_scikit_learn_on_exact_values(k, c, noise):
    """BayesianRidge of the same regression, weights 1/y^2: mean and deviation of what comes
    next."""
    linear_model = pytest.importorskip("sklearn.linear_model")
    chance = np.random.default_rng(1)
    seen = [features(shape) for shape in shapes(80, chance)]
    y = np.array([c + k * size[0] * (1 + noise * chance.standard_normal()) for size in seen])
    s, unit = np.array([size[0] for size in seen]), y.mean()
    ridge = linear_model.BayesianRidge(fit_intercept=False, tol=1e-9, max_iter=1000)
    # relative: every value is one of itself
    ridge.fit(np.stack((unit / y, s / y), axis=1), np.ones_like(y))
    mixture = posterior_of(cases_of(zip(seen, y, strict=True)))
    for side in (100, 300, 600):
        size = features((side, side, side))
        ours = mixture.predict(size)
        mean = ridge.coef_ @ (unit, size[0])
        deviation = math.sqrt(
            (unit, size[0]) @ ridge.sigma_ @ (unit, size[0]) + (mean**2 + FLOOR**2) / ridge.alpha_
        )
        # ours adds what weights of 1/y^2 hide
        assert ours.mean == pytest.approx(mean * (1 + 2 * noise**2), rel=0.012)
        # ours also doubts the size function
        assert ours.deviation == pytest.approx(deviation, rel=0.5)


def test_exact_by_brute_force():
    """The same moments as summing over a fine grid of (c, k), for one function and one noise."""
    from dwsr_probe.predict import posterior as module

    chance = np.random.default_rng(2)
    seen = [features(shape) for shape in shapes(3, chance, 60, 120)]
    y = np.array([3e6 + 4 * size[0] * (1 + 0.03 * chance.standard_normal()) for size in seen])
    cases = cases_of(zip(seen, y, strict=True))
    weighted = module._weigh(cases, FLOOR)
    table, sigma_index = module._regressions(*weighted, FLOOR, all_functions=True), 6
    sigma = module.SIGMAS[sigma_index]
    part = 0 * len(module.SIGMAS) + sigma_index
    c, k = np.meshgrid(np.linspace(-4e7, 4e7, 1501), np.linspace(0.01, 9, 1501), indexing="ij")
    weight, s = 1 / (y**2 + FLOOR**2), np.array([size[0] for size in seen])
    y_unit, k_unit = math.sqrt(3 / weight.sum()), (weight * s * y).sum() / (weight * s * s).sum()
    variance_c = module._PRIOR_C_DEVIATION**2 + 0.25 * y_unit**2
    log = -0.5 * c**2 / variance_c - 0.5 * ((k - 0.7 * k_unit) / k_unit) ** 2
    for size, value in zip(seen, y, strict=True):
        log = log - 0.5 * ((value - c - k * size[0]) / sigma) ** 2 / (value**2 + FLOOR**2)
    weight = np.exp(log - log.max())
    weight /= weight.sum()
    assert table.mean[0, part] == pytest.approx((weight * c).sum(), abs=2e5)
    assert table.mean[1, part] == pytest.approx((weight * k).sum(), rel=2e-3)
    assert table.cov[2, part] == pytest.approx(
        (weight * k**2).sum() - (weight * k).sum() ** 2, rel=0.02
    )


@pytest.mark.parametrize(
    "function", [name for name, _ in SIZE_FUNCTIONS if name not in ("constant",)]
)
def test_each_size_function_is_recognised(function):
    """From a few dozen exact values the one that made them explains them, and what it says of a
    larger shape is right."""
    j = [name for name, _ in SIZE_FUNCTIONS].index(function)
    chance = np.random.default_rng(3)
    axes = 4 if "3" in function.split("axes")[-1] and function.startswith("axes") else 3
    seen = [tuple(int(side) for side in chance.integers(12, 80, axes)) for _ in range(30)]

    def size(shape):
        return features(shape, 8 * shape[0] * shape[-1] * 50)

    pairs = [
        (size(shape), 2e6 + 3 * size(shape)[j] * (1 + 1e-3 * chance.standard_normal()))
        for shape in seen
    ]
    mixture = posterior_of(cases_of(pairs))
    larger = size((100,) * axes)
    assert mixture.predict(larger).mean == pytest.approx(2e6 + 3 * larger[j], rel=0.02)


def test_noise_is_found():
    for noise in (0.001, 0.01, 0.1):
        chance = np.random.default_rng(4)
        seen = [features(shape) for shape in shapes(200, chance)]
        mixture = posterior_of(
            cases_of(
                [(size, 3 * size[0] * (1 + noise * chance.standard_normal())) for size in seen]
            )
        )
        assert mixture.sigma_mean == pytest.approx(noise, rel=0.4)


# -- lower bounds


@pytest.mark.parametrize("seed", range(3))
def test_as_lifelines_on_lower_bounds(seed):
    """A log-normal accelerated failure time regression on log bytes; 45 of 100 values are known
    as lower bounds only."""
    lifelines = pytest.importorskip("lifelines")
    chance = np.random.default_rng(seed)
    seen = [features(shape) for shape in shapes(100, chance, 100, 300)]
    s = np.array([size[0] for size in seen])
    y = 4 * s * np.exp(0.12 * chance.standard_normal(100))
    limit = y * np.where(chance.random(100) < 0.45, chance.uniform(0.7, 1.0, 100), 2)
    ended = y <= limit
    mixture = posterior_of(
        cases_of([(size, value) for size, value, end in zip(seen, y, ended, strict=True) if end]),
        [
            LowerBound(size, bound)
            for size, bound, end in zip(seen, limit, ended, strict=True)
            if not end
        ],
    )
    naive = posterior_of(cases_of(zip(seen, np.minimum(y, limit), strict=True)))
    frame = pd.DataFrame(
        {"duration": np.minimum(y, limit) / 1e6, "event": ended, "log_bytes": np.log(s / 1e6)}
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fitter = lifelines.LogNormalAFTFitter().fit(frame, "duration", "event")
        for side in (150, 250):
            size = features((side, side, side))
            oracle = (
                float(
                    fitter.predict_median(
                        pd.DataFrame({"log_bytes": [math.log(size[0] / 1e6)]})
                    ).iloc[0]
                )
                * 1e6
            )
            ours, exact = mixture.predict(size).mean, naive.predict(size).mean
            assert ours == pytest.approx(oracle, rel=0.05)
            # than bounds taken for values
            assert abs(math.log(ours / oracle)) < abs(math.log(exact / oracle))


def test_one_bound_by_brute_force():
    """Moments after one bound, against a sum over a grid."""
    chance = np.random.default_rng(5)
    cases = cases_of(
        [
            (features(shape), 3 * features(shape)[0] * (1 + 0.1 * chance.standard_normal()))
            for shape in shapes(5, chance, 60, 100)
        ]
    )
    before = posterior_of(cases)
    size = features((200, 200, 200))
    bound = before.predict(size).mean * 1.1
    after = posterior_of(cases, [LowerBound(size, bound)])
    draws = np.random.default_rng(6)
    part = draws.choice(len(before.function), 200_000, p=before.weight / before.weight.sum())
    cov = np.stack([[before.cov[0], before.cov[1]], [before.cov[1], before.cov[2]]])[:, :, part]
    low = np.sqrt(np.maximum(cov[0, 0], 0))
    one, two = draws.standard_normal((2, 200_000))
    c = before.mean[0, part] + low * one
    k = (
        before.mean[1, part]
        + cov[1, 0] / low * one
        + np.sqrt(np.maximum(cov[1, 1] - (cov[1, 0] / low) ** 2, 0)) * two
    )
    mean = c + k * size[before.function[part]]
    share = 1 - np.array(
        [
            0.5 * math.erfc(-x / math.sqrt(2))
            for x in (bound - mean) / (before.sigma[part] * np.abs(mean))
        ]
    )
    assert after.predict(size).mean == pytest.approx((share * mean).sum() / share.sum(), rel=0.02)


def test_a_bound_far_below_changes_nothing_and_one_far_above_does_not_break():
    chance = np.random.default_rng(7)
    cases = cases_of([(features(shape), 3 * features(shape)[0]) for shape in shapes(10, chance)])
    size = features((200, 200, 200))
    plain = posterior_of(cases).predict(size)
    assert posterior_of(cases, [LowerBound(size, 1e6)]).predict(size).mean == pytest.approx(
        plain.mean, rel=1e-9
    )
    for bound in (10 * plain.mean, 1e6 * plain.mean):
        far = posterior_of(cases, [LowerBound(size, bound)] * 5).predict(size)
        assert (
            np.isfinite([far.mean, far.deviation]).all()
            and np.isfinite(far.means).all()
            and (far.deviations > 0).all()
        )


def test_bounds_come_in_any_order():
    chance = np.random.default_rng(8)
    cases = cases_of(
        [
            (features(shape), 3 * features(shape)[0] * (1 + 0.1 * chance.standard_normal()))
            for shape in shapes(4, chance)
        ]
    )
    bounds = [LowerBound(features(shape), 3.3 * features(shape)[0]) for shape in shapes(6, chance)]
    size = features((300, 300, 300))
    assert (
        posterior_of(cases, bounds).predict(size).mean
        == posterior_of(cases, bounds[::-1]).predict(size).mean
    )


# -- calibration


@pytest.mark.parametrize("q", [0.8, 0.9, 0.95, 0.99])
def test_as_crepes_on_scores(q):
    """The same quantile of the same normalised residuals as a conformal predictive system, with
    tails far from normal."""
    crepes = pytest.importorskip("crepes")
    chance = np.random.default_rng(9)
    z = chance.standard_t(3, 500) * 1.5 + 0.3
    scores = Scores()
    for one in z:
        scores.add(one)
    system = crepes.ConformalPredictiveSystem().fit(residuals=z * 10.0, sigmas=np.full(500, 10.0))
    oracle = float(
        np.ravel(
            system.predict_percentiles(
                y_hat=np.array([1000.0]), sigmas=np.array([10.0]), higher_percentiles=[100 * q]
            )
        )[0]
    )
    ours = Calibrated(
        Predictive(np.ones(1), np.array([1000.0]), np.array([10.0])), scores, Scores()
    ).quantile(q)
    # the posterior counts for sixty of them, and it is normal here
    assert ours - 1000 == pytest.approx(oracle - 1000, rel=0.2)


def test_without_scores_it_is_the_posterior():
    predictive = Predictive(np.array([0.5, 0.5]), np.array([100.0, 120.0]), np.array([5.0, 9.0]))
    calibrated = Calibrated(predictive, Scores(), Scores())
    for q in (0.01, 0.1, 0.5, 0.9, 0.99, 0.999):
        assert float(predictive.cdf(calibrated.quantile(q))) == pytest.approx(q, abs=0.003)
    assert calibrated.survival(120.0) == pytest.approx(float(predictive.survival(120.0)))


def test_few_scores_of_its_own_lean_on_those_of_all():
    predictive = Predictive(np.ones(1), np.array([100.0]), np.array([1.0]))
    pooled, own = Scores(), Scores()
    for one in np.random.default_rng(0).standard_normal(500) * 4:
        pooled.add(one)
    alone, leaning = (
        Calibrated(predictive, own, Scores()).quantile(0.99),
        Calibrated(predictive, own, pooled).quantile(0.99),
    )
    assert alone < leaning  # wider: forecasts of pooled were worse than they said


@pytest.mark.parametrize(("tails", "seed"), [("normal", 0), ("student", 1), ("skewed", 2)])
def test_one_in_a_hundred_exceeds_the_bound(tails, seed):
    """Prequential, 3,000 values: whatever the noise, 0.3 to 2 %."""
    from dwsr_probe.predict import Model

    chance, model, exceeded, rounds = np.random.default_rng(seed), Model(), 0, 0
    draw = {
        "normal": lambda: chance.standard_normal(),
        "student": lambda: chance.standard_t(3),
        "skewed": lambda: chance.exponential() - 1,
    }[tails]
    for i, shape in enumerate(shapes(3000, chance)):
        nbytes = 4 * math.prod(shape)
        y = max(0, round(2e6 + 3 * nbytes * (1 + 0.05 * draw())))
        for done in model.learn(
            {
                "task_name": "filter",
                "inputs": [{"dtype": "float32", "shape": shape}],
                "alloc_peak_bytes": y,
                "start": i,
            }
        ):
            exceeded, rounds = exceeded + (done.actual > done.bound), rounds + 1
    assert rounds > 2900 and 0.003 <= exceeded / rounds <= 0.02
    assert model.predict([{"dtype": "float32", "shape": [100, 100, 100]}], "filter").promised(0.99)


def test_sizes_of_shapes_that_are_odd():
    for arrays in (
        (),
        (Array((), 8),),
        (Array((0, 5), 0),),
        (Array(None, 0),),
        (Array((1,) * 12, 4),),
        (Array((2, 3, 4, 5, 6, 7), 20160), Array(None, 7)),
    ):
        found = size_features(arrays, 0)
        assert found.shape == (FUNCTION_COUNT,) and np.isfinite(found).all() and (found >= 0).all()


@pytest.mark.parametrize("shape", [(2, 3, 5, 7), (11, 2, 3, 5, 7), (3, 5)])
def test_products_of_axes_are_those_of_their_names(shape):
    found = size_features((Array(shape, 8 * math.prod(shape)),), 0)
    folded = shape if len(shape) <= 4 else (math.prod(shape[:-3]), *shape[-3:])
    axes = (*folded, 1, 1, 1)
    names = [(n, name[5:]) for n, (name, _) in enumerate(SIZE_FUNCTIONS) if name[:5] == "axes "]
    assert len(names) == 14
    for number, name in names:
        assert found[number] == 8 * math.prod(axes[int(axis)] for axis in name.split("x"))
