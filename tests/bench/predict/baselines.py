"""The methods that are compared, ours first (METHODS). One interface: learn(record), and
predict(inputs, name, params) → Estimate, or None while nothing of that name was seen. params:
arguments of the call, by name; the baselines do not use them.

The baselines know no lower bounds: they learn a killed task as twice the limit that it met, as
schedulers double the memory of a retry.
"""

from dataclasses import dataclass
from inspect import signature
from math import prod
from typing import NamedTuple

import numpy as np

LEVEL = 0.99
NORMAL_99 = 2.326


class Estimate(NamedTuple):
    """Bytes; bound: 99 %."""

    mean: float
    bound: float


def bytes_of(inputs):
    return float(sum(i["nbytes"] or 0 for i in inputs))


def largest(inputs):
    """A simulation may have none."""
    return max(inputs, key=lambda i: i["nbytes"] or 0, default={"nbytes": 0, "shape": ()})


def volume_of(inputs):
    return float(prod(largest(inputs)["shape"]))


class Seen(NamedTuple):
    inputs: list
    peak: float


class Baseline:
    def __init__(self):
        self.seen = {}  # lists of Seen, by name

    def learn(self, record):
        peak = record["alloc_peak_bytes"] * (1 if record["state"] == "ok" else 2)
        self.seen.setdefault(record["task_name"], []).append(Seen(record["inputs"], float(peak)))

    def predict(self, inputs, name, params=None):
        rows = self.seen.get(name)
        return rows and self.estimate(rows, inputs)

    def bound(self, inputs, name, level):
        """Baselines have one bound for all levels."""
        return self.predict(inputs, name).bound


class MaxSeen(Baseline):
    def estimate(self, rows, inputs):
        largest_peak = max(seen.peak for seen in rows)
        return Estimate(largest_peak, largest_peak)


class Percentile95(Baseline):
    def estimate(self, rows, inputs):
        percentile = float(np.percentile([seen.peak for seen in rows], 95))
        return Estimate(percentile, percentile)


class Tovar(Baseline):
    """The first allocation of least expected waste (Tovar et al. 2018): every task gets `a` bytes,
    and a task that needs more gets the largest peak seen in a second run."""

    def estimate(self, rows, inputs):
        peaks = np.sort([seen.peak for seen in rows])
        retried = 1 - np.arange(1, len(peaks) + 1) / len(peaks)
        allocation = float(peaks[np.argmin(peaks + peaks[-1] * retried)])
        return Estimate(allocation, allocation)


class Linear(Baseline):
    """Least squares on the bytes of all inputs, with an intercept once two sizes were seen. The
    bound is the mean divided by 0.8."""

    @staticmethod
    def size(inputs):
        return bytes_of(inputs)

    def estimate(self, rows, inputs):
        x = np.array([self.size(seen.inputs) for seen in rows])
        y = np.array([seen.peak for seen in rows])
        if np.ptp(x) == 0:
            slope, offset = y.mean() / max(x.mean(), 1.0), 0.0
        else:
            centred = x - x.mean()
            slope = centred @ y / (centred @ centred)
            offset = y.mean() - slope * x.mean()
        mean = max(slope * self.size(inputs) + offset, 1.0)
        return Estimate(float(mean), float(mean + self.margin(mean, y - slope * x - offset)))

    def margin(self, mean, residuals):
        return mean / 0.8 - mean


class Thesis(Linear):
    """The rule of the thesis: peak by volume, in elements of the largest input, and 0.8 of the
    memory may be used."""

    @staticmethod
    def size(inputs):
        return volume_of(inputs)


class WittMax(Linear):
    """Least squares, raised by the largest underprediction so far (Witt et al. 2019)."""

    def margin(self, mean, residuals):
        return max(residuals.max(), 0.0)


class WittSd(Linear):
    """Least squares, raised by the standard deviation of its errors, times what the normal
    distribution asks for 99 %."""

    def margin(self, mean, residuals):
        return NORMAL_99 * residuals.std()


class Fitted(Baseline):
    """A regressor of scikit-learn for each name, on bytes and the axes of the largest input.
    Fitted again when half as many more were seen: a fit takes up to 200 ms."""

    def __init__(self):
        super().__init__()
        self.fits = {}  # by name: the number of records, and the regressor fitted to them

    @staticmethod
    def features(inputs):
        axes = (largest(inputs)["shape"] or [])[:3]
        return [bytes_of(inputs), *axes, *[1] * (3 - len(axes))]

    def predict(self, inputs, name, params=None):
        rows = self.seen.get(name)
        if not rows:
            return None
        count, fitted = self.fits.get(name, (0, None))
        if count * 1.5 < len(rows) or count < len(rows) < 4:
            # It comes with scikit-learn. Two threads take four times as long for so few rows.
            from threadpoolctl import threadpool_limits

            with threadpool_limits(1):
                fitted = self.fit(
                    np.array([self.features(seen.inputs) for seen in rows]),
                    np.array([seen.peak for seen in rows]),
                )
            self.fits[name] = len(rows), fitted
        return self.apply(fitted, np.array([self.features(inputs)]))


class Tree(Fitted):
    def fit(self, x, y):
        from sklearn.tree import DecisionTreeRegressor

        return DecisionTreeRegressor(random_state=0).fit(x, y)

    def apply(self, fitted, x):
        mean = float(fitted.predict(x)[0])
        return Estimate(mean, mean / 0.8)


class Boosting(Fitted):
    """Gradient boosting, the bound by its quantile loss."""

    def fit(self, x, y):
        from sklearn.ensemble import GradientBoostingRegressor

        return [
            GradientBoostingRegressor(n_estimators=50, random_state=0, **loss).fit(x, y)
            for loss in ({}, {"loss": "quantile", "alpha": LEVEL})
        ]

    def apply(self, fitted, x):
        mean, bound = (float(part.predict(x)[0]) for part in fitted)
        return Estimate(mean, max(mean, bound))


class GaussianProcess(Fitted):
    """RBF and noise, on logarithms of the features, peaks standardised."""

    def fit(self, x, y):
        import warnings

        from sklearn.exceptions import ConvergenceWarning
        from sklearn.gaussian_process import GaussianProcessRegressor
        from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel

        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # of bounds that few points reach
            return GaussianProcessRegressor(
                ConstantKernel() * RBF() + WhiteKernel(1e-4), normalize_y=True, random_state=0
            ).fit(np.log(np.maximum(x, 1)), y)

    def apply(self, fitted, x):
        mean, sd = fitted.predict(np.log(np.maximum(x, 1)), return_std=True)
        return Estimate(max(float(mean[0]), 1.0), max(float(mean[0] + NORMAL_99 * sd[0]), 1.0))


@dataclass(slots=True)
class Policy:
    """Of one name. kappa = peak / bytes of inputs."""

    log_kappa: float
    log_margin: float  # of bound / predicted
    rounds: int = 0


class Gradient(Baseline):
    """A minimal reinforcement learner. The action is κ = peak / bytes of inputs, the reward
    -|predicted - actual| / actual. With probability 0.1 it tries a κ nearby (ε-greedy). Each round
    follows the gradient of the reward in log κ, with shrinking steps. The bound follows the 99 %
    quantile of actual / predicted in the same way.
    """

    # Of five steps from 0.02 to 0.5 this one has the best reward on the tuning operators.
    EPSILON, STEP = 0.1, 0.2

    def __init__(self):
        super().__init__()
        self.random, self.policies = np.random.default_rng(0), {}

    def learn(self, record):
        size, name = max(bytes_of(record["inputs"]), 1.0), record["task_name"]
        actual = np.log(
            max(record["alloc_peak_bytes"], 1) * (1 if record["state"] == "ok" else 2) / size
        )
        policy = self.policies.setdefault(name, Policy(actual, np.log(1.25)))
        policy.rounds += 1
        step = self.STEP / np.sqrt(policy.rounds)
        explores = self.random.random() < self.EPSILON
        tried = policy.log_kappa + (self.random.normal(0, step) if explores else 0.0)
        # The slope of the reward. Where the prediction is too high it is limited to 1, or one round
        # could undo all others.
        slope = -np.sign(tried - actual) * np.exp(min(tried - actual, 0.0))
        exceeded = actual > tried + policy.log_margin
        margin = policy.log_margin + step * (LEVEL if exceeded else LEVEL - 1)
        policy.log_margin = max(0.0, margin)
        policy.log_kappa = tried + step * slope

    def predict(self, inputs, name, params=None):
        policy = self.policies.get(name)
        if policy is None:
            return None
        mean = float(np.exp(policy.log_kappa) * max(bytes_of(inputs), 1.0))
        return Estimate(mean, mean * float(np.exp(policy.log_margin)))


class Ours:
    """dwsr_probe.predict.Model behind the same interface. forecast: the last one made."""

    def __init__(self):
        from dwsr_probe.predict import Model

        self.model, self.forecast = Model(), None
        self.takes_params = "params" in signature(Model.predict).parameters

    def learn(self, record):
        return self.model.learn(record)

    def predict(self, inputs, name, params=None):
        others = {"params": params} if params and self.takes_params else {}
        self.forecast = self.model.predict(inputs, name, **others)
        return Estimate(self.forecast.mean, self.forecast.upper(LEVEL))

    def bound(self, inputs, name, level):
        return self.model.predict(inputs, name).reserve(level)


METHODS = {
    "ours": Ours,
    "max seen": MaxSeen,
    "percentile 95": Percentile95,
    "OLS / 0.8": Linear,
    "thesis (volume, 0.8)": Thesis,
    "Witt, largest miss": WittMax,
    "Witt, sd": WittSd,
    "Tovar": Tovar,
    "tree / 0.8": Tree,
    "boosting": Boosting,
    "Gaussian process": GaussianProcess,
    "ε-greedy gradient": Gradient,
}
