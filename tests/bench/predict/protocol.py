"""Forecasts before truths: three small shapes and all larger ones, and rolling over random
orders. Figures of what came out, and paired intervals between methods. Called by __main__."""

import sys
from dataclasses import dataclass

import numpy as np

from tests.bench.predict.baselines import METHODS, Fitted


@dataclass(slots=True)
class Score:
    """One round: what was forecast, and what it was."""

    name: str
    mean: float
    bound: float
    truth: float
    seed: int = 0
    n: int = 0  # seen of this name before
    fresh: bool = True  # nothing of these shapes seen before
    trust: str | None = None
    # its shape was forecast "right", "wrong", "unknown"; None where it has none
    output: str | None = None

    @property
    def error(self):
        return abs(self.mean - self.truth) / self.truth

    @property
    def reward(self):
        return -self.error


def score_of(method, record, **others):
    """None where a method has no forecast: nothing of that name seen."""
    answer = method.predict(record["inputs"], record["task_name"])
    if answer is None:
        return None
    forecast = getattr(method, "forecast", None)
    return Score(
        record["task_name"],
        *map(float, answer),
        float(record["alloc_peak_bytes"]),
        trust=forecast and forecast.trust,
        output=forecast and output_of(forecast, record),
        **others,
    )


def output_of(forecast, record):
    true, said = ((output or {}).get("shape") for output in (record.get("output"), forecast.output))
    return (
        None
        if true is None
        else "unknown"
        if said is None
        else "right"
        if list(said) == list(true)
        else "wrong"
    )


def after(train, test, make):
    """Scores of `test` by one model that has learned `train`. Records by name, all names in one
    model."""
    method = make()
    for record in train:
        method.learn(record)
    return [score_of(method, record) for record in test]


def rolling(records, make, seeds, growing=False):
    """Every record is forecast before it is learned, all names mixed. Of the first of each name
    only ours has a forecast. Growing: by size, as a careful user would go on."""
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
    """method → scores, the same rounds for all; those that take long see the first two orders
    only."""
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
    """Errors, failures, slack, waste of scores. Failure: the truth was above the bound. Slack:
    bound / truth. Waste: bytes reserved and not used, the whole reservation of a failure among
    them, by bytes used."""
    mean, bound, truth = (
        np.array([getattr(s, part) for s in scores]) for part in ("mean", "bound", "truth")
    )
    failed = truth > bound
    return {
        "count": len(scores),
        "error": float(np.median(np.abs(mean - truth) / truth)),
        "error_mean": float(np.mean(np.abs(mean - truth) / truth)),
        "failures": float(failed.mean()),
        "slack": float(np.median(bound / truth)),
        "slack_95": float(np.percentile(bound / truth, 95)),
        "waste": float(np.where(failed, bound, bound - truth).sum() / truth.sum()),
    }


def reached(scores, error, failures=0.01, slack=1.15):
    """How many operators reach all three, each by itself: a median over all of them hides those
    that do not."""
    each = [figures(found) for found in by_name(scores).values()]
    limits = {"error": error, "failures": failures, "slack": slack}
    reach = sum(all(found[name] <= limits[name] for name in limits) for found in each)
    return f"{reach} of {len(each)}"


def by_name(scores):
    found = {}
    for score in scores:
        found.setdefault(score.name, []).append(score)
    return found


def difference(ours, theirs, of, draws=2000):
    """(mean, low, high) of ours minus theirs in `of(score)`: 95 % interval of a paired bootstrap
    over operators, because rounds of one operator are not independent; over shapes where
    operators are few. Of the orders that both saw."""
    pairs, seeds, few = (
        {},
        {score.seed for score in theirs},
        len({score.name for score in theirs}) < 10,
    )
    for a, b in zip([score for score in ours if score.seed in seeds], theirs, strict=True):
        assert (a.name, a.seed, a.truth) == (b.name, b.seed, b.truth)
        pairs.setdefault((a.name, a.truth if few else None), []).append(of(a) - of(b))
    means = np.array([np.mean(values) for values in pairs.values()])
    drawn = means[np.random.default_rng(0).integers(0, len(means), (draws, len(means)))].mean(
        axis=1
    )
    return float(means.mean()), *map(float, np.percentile(drawn, [2.5, 97.5]))


def cost(score):
    """Log of what a round reserves by what it uses: a failure pays its reservation and a second
    run. Comparable from bytes to gigabytes."""
    return float(
        np.log((score.bound + (score.truth if score.truth > score.bound else 0.0)) / score.truth)
    )


def regret_plot(found, columns=39):
    """Rows of blocks: mean error (the regret of the reward -|predicted - actual| / actual, whose
    best is 0) by how many of that name were seen, all operators and orders together.
    Logarithmic, from 0.1 % (empty) to 100 % (full)."""
    blocks, lines = " ▁▂▃▄▅▆▇█", []
    for method, scores in found.items():
        totals = [[] for _ in range(columns + 1)]
        for score in scores:
            if score.n <= columns:
                totals[score.n].append(min(score.error, 1.0))
        heights = [
            np.clip((np.log10(max(np.mean(t), 1e-9)) + 3) / 3, 0, 1) for t in totals[1:] if t
        ]
        lines.append(
            f"{method:>22} |{''.join(blocks[round(h * 8)] for h in heights)}|"
            f" {sum(np.mean(t) for t in totals[1:] if t):8.2f}"
        )
    return "\n".join([f"{'seen before':>22}  1{' ' * (columns - 3)}{columns}   summed", *lines])
