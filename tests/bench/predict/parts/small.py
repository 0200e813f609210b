"""Three small shapes seen, all larger ones forecast."""

from collections import Counter
from typing import NamedTuple

from tests.bench import Section
from tests.bench.predict import protocol, unicamp
from tests.bench.predict.groups import SMALL
from tests.bench.predict.rates import percent, rate

UNICAMP_ERROR = 0.04


class Split(NamedTuple):
    """Records to learn, and records to forecast."""

    train: list
    test: list


def shape_index(record):
    return int(record["key"].partition(".")[0])


def splits(data):
    """A Split by dataset. Of our own operators the first repetition of the three small shapes is
    learned."""
    own = [r for rows in data.own.values() for r in rows]
    train, test = (
        [r for r in own if shape_index(r) < SMALL and r["key"].endswith(".0")],
        [r for r in own if shape_index(r) >= SMALL],
    )
    found = {
        f"own, {group}": Split(train, [r for r in test if r["task_name"] in names])
        for group, names in data.groups.items()
    }
    if data.unicamp:
        rows = data.unicamp.values()
        cubes = [
            r
            for found in rows
            for r in found
            if unicamp.is_cube(r) and r["inputs"][0]["shape"][0] <= 300
        ]
        found["UNICAMP, cubes of 100, 200, 300"] = Split(
            cubes, [r for found in rows for r in found if r["input_bytes"] > 4 * 300**3]
        )
        found["UNICAMP, three smallest"] = Split(
            [r for found in rows for r in found[:3]], [r for found in rows for r in found[3:]]
        )
    return {dataset: split for dataset, split in found.items() if split.test}


def run(data):
    section = Section(
        "Three small shapes seen, all larger ones forecast",
        "median error ≤ 2 % (UNICAMP 4 %), truth above the 99 % bound ≤ 1 %, bound / truth ≤ 1.15"
        " (median) and ≤ 2 (95 %); 80 % of the operators reach all three",
        (
            "data",
            "method",
            "median error",
            "truth above the bound",
            "bound / truth, median",
            "95 %",
            "operators that reach all three",
        ),
    )
    by_operator = Section(
        "The same, by operator: ours",
        "as above",
        (
            "operator",
            "group",
            "median error",
            "truth above the bound",
            "bound / truth, median",
            "95 %",
            "trust",
            "output's shape",
            "best baseline's error",
        ),
    )
    for dataset, split in splits(data).items():
        error = protocol.TARGETS["error"] if dataset.startswith("own") else UNICAMP_ERROR
        scores = {
            name: protocol.train_and_test(*split, make) for name, make in data.methods.items()
        }
        section.rows += [
            (
                dataset,
                name,
                *figures_of(found, rate),
                protocol.operators_on_target(found, error),
            )
            for name, found in scores.items()
        ]
        baselines = {
            name: protocol.by_name(found) for name, found in scores.items() if name != "ours"
        }
        for operator, found in protocol.by_name(scores.get("ours", [])).items():
            named = data.may_be_named(operator)
            if named and not (data.tuning_only and not protocol.missed(found, error)):
                by_operator.rows.append(operator_row(operator, dataset, found, baselines))
    if data.tuning_only:
        by_operator.title = "The same, by operator: ours, those that miss a target"
    section.notes.append(
        "Rates: k of n, and the 95 % interval (Wilson), as if forecasts were independent."
    )
    return [section, by_operator]


def figures_of(scores, rate_of):
    f = protocol.figures(scores)
    return (
        percent(f["error"]),
        rate_of(f["failed"], f["count"]),
        f"{f['slack']:.2f}",
        f"{f['slack_95']:.2f}",
    )


def operator_row(operator, dataset, scores, baselines):
    errors = {name: protocol.figures(found[operator])["error"] for name, found in baselines.items()}
    best = min(errors, key=errors.get, default=None)
    return (
        operator,
        dataset,
        *figures_of(scores, lambda k, n: f"{k} of {n}"),
        scores[-1].trust,
        output_verdicts(scores),
        best and f"{percent(errors[best])} ({best})",
    )


def output_verdicts(scores):
    """How often the output's shape was forecast right, wrong, or not at all."""
    counts = Counter(s.output for s in scores if s.output)
    return (
        ", ".join(
            f"{word} {percent(count / len(scores), 0)}" for word, count in counts.most_common()
        )
        or "–"
    )
