"""Evaluation protocols: learn three small shapes and forecast all larger ones; and prequential
("rolling"), where every record is forecast before it is learned. Figures of the scores, and paired
confidence intervals between methods. Called by __main__."""

import sys
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from tests.bench.predict.baselines import METHODS, Fitted


@dataclass(slots=True)
class Score:
    """One forecast and the measured value (truth), in bytes."""

    name: str
    mean: float
    bound: float
    truth: float
    seed: int = 0
    n: int = 0  # records of this name seen before
    fresh: bool = True  # no record with these shapes was seen before
    trust: str | None = None
    # the output's shape was forecast "right", "wrong", "unknown"; None: the output has no shape
    output: str | None = None

    @property
    def error(self):
        return abs(self.mean - self.truth) / self.truth

    @property
    def reward(self):
        return -self.error


class Interval(NamedTuple):
    """A mean with its 95 % confidence interval."""

    mean: float
    low: float
    high: float


def score_of(method, record, **others):
    """None where a method has no forecast, because nothing of that name was seen."""
    estimate = method.predict(record["inputs"], record["task_name"], record.get("params"))
    if estimate is None:
        return None
    forecast = getattr(method, "forecast", None)
    return Score(
        record["task_name"],
        float(estimate.mean),
        float(estimate.bound),
        float(record["alloc_peak_bytes"]),
        trust=forecast and forecast.trust,
        output=forecast and output_verdict(forecast, record),
        **others,
    )


def output_verdict(forecast, record):
    """Was the shape of the output forecast "right", "wrong" or "unknown"? None: it has no shape."""
    true, predicted = (
        (output or {}).get("shape") for output in (record.get("output"), forecast.output)
    )
    if true is None:
        return None
    if predicted is None:
        return "unknown"
    return "right" if list(predicted) == list(true) else "wrong"


def train_and_test(train, test, make):
    """Scores of the records `test` by one method that has learned the records `train`, all names
    together."""
    method = make()
    for record in train:
        method.learn(record)
    return [score_of(method, record) for record in test]


def rolling(records, make, seeds, growing=False):
    """Every record is forecast before it is learned, all names mixed, one random order per seed.
    Only our method has a forecast for the first record of a name. growing: in the order of size, as
    a careful user would proceed."""
    scores = []
    for seed in seeds:
        method, seen = make(), {}
        order = (
            sorted(records, key=lambda r: r["input_bytes"])
            if growing
            else [records[i] for i in np.random.default_rng(seed).permutation(len(records))]
        )
        for record in order:
            shapes = seen.setdefault(record["task_name"], [])
            scores.append(
                score_of(
                    method, record, seed=seed, n=len(shapes), fresh=record["inputs"] not in shapes
                )
            )
            method.learn(record)
            shapes.append(record["inputs"])
    return [score for score in scores if score is not None]


def rolling_all(records, seeds, growing=False, methods=METHODS):
    """Scores by method. All methods see the same orders; slow methods see the first two only."""
    found = {}
    for name in methods:
        print(
            f"... {'growing' if growing else f'rolling, {len(seeds)} orders'}: {name}",
            file=sys.stderr,
            flush=True,
        )
        found[name] = rolling(
            records,
            methods[name],
            seeds[:2] if issubclass(methods[name], Fitted) else seeds,
            growing,
        )
    return found


def figures(scores):
    """Errors, failures, slack and waste. Failure: the truth was above the bound. Slack: bound /
    truth. Waste: bytes reserved and not used, divided by bytes used; the reservation of a failure
    is wasted as a whole. failed: how many; failures: the share."""
    mean, bound, truth = (
        np.array([getattr(s, part) for s in scores]) for part in ("mean", "bound", "truth")
    )
    failed = truth > bound
    return {
        "count": len(scores),
        "error": float(np.median(np.abs(mean - truth) / truth)),
        "error_mean": float(np.mean(np.abs(mean - truth) / truth)),
        "failures": float(failed.mean()),
        "failed": int(failed.sum()),
        "slack": float(np.median(bound / truth)),
        "slack_95": float(np.percentile(bound / truth, 95)),
        "waste": float(np.where(failed, bound, bound - truth).sum() / truth.sum()),
    }


TARGETS = {"error": 0.02, "failures": 0.01, "slack": 1.15, "slack_95": 2.0}


def missed(scores, error=TARGETS["error"]):
    """The names in TARGETS that these scores do not meet."""
    found, targets = figures(scores), {**TARGETS, "error": error}
    return [name for name in targets if found[name] > targets[name]]


def operators_on_target(scores, error=TARGETS["error"]):
    """How many operators meet all targets, each by itself: a median over all operators hides those
    that do not."""
    by_operator = by_name(scores).values()
    on_target = sum(not missed(found, error) for found in by_operator)
    return f"{on_target} of {len(by_operator)}"


def by_name(scores):
    found = {}
    for score in scores:
        found.setdefault(score.name, []).append(score)
    return found


def difference(ours, theirs, quantity, draws=2000):
    """An Interval of quantity(score), ours minus theirs, by a paired bootstrap over operators,
    because scores of one operator are not independent; over shapes where operators are few. Only
    the orders that both methods saw."""
    pairs, seeds, few = (
        {},
        {score.seed for score in theirs},
        len({score.name for score in theirs}) < 10,
    )
    for a, b in zip([score for score in ours if score.seed in seeds], theirs, strict=True):
        assert (a.name, a.seed, a.truth) == (b.name, b.seed, b.truth)
        pairs.setdefault((a.name, a.truth if few else None), []).append(quantity(a) - quantity(b))
    means = np.array([np.mean(values) for values in pairs.values()])
    drawn = means[np.random.default_rng(0).integers(0, len(means), (draws, len(means)))].mean(
        axis=1
    )
    return Interval(float(means.mean()), *map(float, np.percentile(drawn, [2.5, 97.5])))


def cost(score):
    """Logarithm of bytes reserved divided by bytes used. A failure pays its reservation and a
    second run. Comparable from bytes to gigabytes."""
    return float(
        np.log((score.bound + (score.truth if score.truth > score.bound else 0.0)) / score.truth)
    )


def regret_plot(found, columns=39):
    """A row of bars for each method: mean error (the regret of the reward -|predicted - actual| /
    actual, whose best value is 0) by the number of records of that name seen before, over all
    operators and orders. Logarithmic, from 0.1 % (empty) to 100 % (full)."""
    bars, lines = " ▁▂▃▄▅▆▇█", []
    for method, scores in found.items():
        errors = [[] for _ in range(columns + 1)]  # by n
        for score in scores:
            if score.n <= columns:
                errors[score.n].append(min(score.error, 1.0))
        heights = [
            np.clip((np.log10(max(np.mean(t), 1e-9)) + 3) / 3, 0, 1) for t in errors[1:] if t
        ]
        lines.append(
            f"{method:>22} |{''.join(bars[round(h * 8)] for h in heights)}|"
            f" {sum(np.mean(t) for t in errors[1:] if t):8.2f}"
        )
    return "\n".join([f"{'seen before':>22}  1{' ' * (columns - 3)}{columns}   summed", *lines])
