"""What forecasts are compared with. One interface: learn(record), predict(inputs, name) → (mean,
99 % bound) in bytes, or None while nothing of that name was seen. METHODS has them all, ours
first.

A killed task is learned as twice the limit it met, the doubling that schedulers retry with: none
of these knows a lower bound.
"""

from math import prod

import numpy as np

LEVEL = 0.99
NORMAL_99 = 2.326


def bytes_of(inputs):
    return float(sum(i["nbytes"] or 0 for i in inputs))


def largest(inputs):
    return max(inputs, key=lambda i: i["nbytes"] or 0)


def volume_of(inputs):
    return float(prod(largest(inputs)["shape"]))


class Baseline:
    def __init__(self):
        self.seen = {}  # name → (inputs, peak bytes)s

    def learn(self, record):
        peak = record["alloc_peak_bytes"] * (1 if record["state"] == "ok" else 2)
        self.seen.setdefault(record["task_name"], []).append((record["inputs"], float(peak)))

    def predict(self, inputs, name):
        rows = self.seen.get(name)
        return rows and self.estimate(rows, inputs)

    def bound(self, inputs, name, level):
        """They have one, whatever the level."""
        return self.predict(inputs, name)[1]


class MaxSeen(Baseline):
    def estimate(self, rows, inputs):
        return (max(y for _, y in rows),) * 2


class Percentile95(Baseline):
    def estimate(self, rows, inputs):
        return (float(np.percentile([y for _, y in rows], 95)),) * 2


class Tovar(Baseline):
    """First allocation of least expected waste: a for all, and the largest seen once more for
    those above a (Tovar et al. 2018)."""

    def estimate(self, rows, inputs):
        peaks = np.sort([y for _, y in rows])
        above = 1 - np.arange(1, len(peaks) + 1) / len(peaks)
        return (float(peaks[np.argmin(peaks + peaks[-1] * above)]),) * 2


class Linear(Baseline):
    """Least squares on the bytes of all inputs, with an intercept once two sizes were seen. The
    bound: a fixed share of it, as large as 0.8 leaves free."""

    @staticmethod
    def size(inputs):
        return bytes_of(inputs)

    def estimate(self, rows, inputs):
        x, y = np.array([self.size(i) for i, _ in rows]), np.array([y for _, y in rows])
        if np.ptp(x) == 0:
            slope, offset = y.mean() / max(x.mean(), 1.0), 0.0
        else:
            centred = x - x.mean()
            slope = centred @ y / (centred @ centred)
            offset = y.mean() - slope * x.mean()
        mean = max(slope * self.size(inputs) + offset, 1.0)
        return float(mean), float(mean + self.margin(mean, y - slope * x - offset))

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
        self.fits = {}  # name → (rows it was fitted to, fitted)

    @staticmethod
    def features(inputs):
        axes = (largest(inputs)["shape"] or [])[:3]
        return [bytes_of(inputs), *axes, *[1] * (3 - len(axes))]

    def predict(self, inputs, name):
        rows = self.seen.get(name)
        if not rows:
            return None
        count, fitted = self.fits.get(name, (0, None))
        if count * 1.5 < len(rows) or count < len(rows) < 4:
            # comes with scikit-learn; two threads take four times as long for so few rows
            from threadpoolctl import threadpool_limits

            with threadpool_limits(1):
                fitted = self.fit(
                    np.array([self.features(i) for i, _ in rows]), np.array([y for _, y in rows])
                )
            self.fits[name] = len(rows), fitted
        return self.apply(fitted, np.array([self.features(inputs)]))


class Tree(Fitted):
    def fit(self, x, y):
        from sklearn.tree import DecisionTreeRegressor

        return DecisionTreeRegressor(random_state=0).fit(x, y)

    def apply(self, fitted, x):
        mean = float(fitted.predict(x)[0])
        return mean, mean / 0.8


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
        return mean, max(mean, bound)


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
            ).fit(np.log(x), y)

    def apply(self, fitted, x):
        mean, sd = fitted.predict(np.log(x), return_std=True)
        return max(float(mean[0]), 1.0), max(float(mean[0] + NORMAL_99 * sd[0]), 1.0)


class Gradient(Baseline):
    """Reinforcement learning, as small as it gets: the action is κ = peak / bytes of inputs, the
    reward -|predicted - actual| / actual. One chance in ten it tries a κ nearby (ε-greedy); each
    round follows the gradient of the reward in log κ, with steps that shrink. The bound follows
    the 99 % quantile of actual / predicted in the same way.
    """

    # of five steps from 0.02 to 0.5 the one with the best reward on the tuning operators
    EPSILON, STEP = 0.1, 0.2

    def __init__(self):
        super().__init__()
        # name → [log κ, log of bound / predicted, rounds]
        self.chance, self.policy = np.random.default_rng(0), {}

    def learn(self, record):
        size, name = max(bytes_of(record["inputs"]), 1.0), record["task_name"]
        actual = np.log(
            max(record["alloc_peak_bytes"], 1) * (1 if record["state"] == "ok" else 2) / size
        )
        state = self.policy.setdefault(name, [actual, np.log(1.25), 0])
        state[2] += 1
        step = self.STEP / np.sqrt(state[2])
        tried = state[0] + (
            self.chance.normal(0, step) if self.chance.random() < self.EPSILON else 0.0
        )
        # of the reward; where it predicts too much, no steeper than 1, or one round could undo all
        # others
        slope = -np.sign(tried - actual) * np.exp(min(tried - actual, 0.0))
        state[1] = max(0.0, state[1] + step * (LEVEL if actual > tried + state[1] else LEVEL - 1))
        state[0] = tried + step * slope

    def predict(self, inputs, name):
        if name not in self.policy:
            return None
        log_kappa, above, _ = self.policy[name]
        mean = float(np.exp(log_kappa) * max(bytes_of(inputs), 1.0))
        return mean, mean * float(np.exp(above))


class Ours:
    """dwsr_probe.predict.Model behind the same interface; `forecast` is the last one made, with
    its trust."""

    def __init__(self):
        from dwsr_probe.predict import Model

        self.model, self.forecast = Model(), None

    def learn(self, record):
        return self.model.learn(record)

    def predict(self, inputs, name):
        self.forecast = self.model.predict(inputs, name)
        return self.forecast.mean, self.forecast.upper(LEVEL)

    def bound(self, inputs, name, level):
        return self.model.predict(inputs, name).upper(level)


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
