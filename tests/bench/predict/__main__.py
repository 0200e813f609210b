"""python -m tests.bench.predict [--quick] [--measure] [PART...]: evaluate the forecasts, all
parts or those named. --measure: measure the operators again. --quick: fewer orders and records.
BENCHMARKS.md is written only by a full run."""

import json
import sys
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import numpy as np

from tests.bench import Section, book
from tests.bench.predict import coldstart, measure, protocol, replay, speed, unicamp
from tests.bench.predict.baselines import METHODS, Ours
from tests.bench.predict.operators import GROUPS, OPERATORS, SMALL

ROUNDS = Path("build/rounds.jsonl")


def percent(value, digits=1):
    return f"{100 * value:.{digits}f} %"


def shape_index(record):
    return int(record["key"].partition(".")[0])


class Split(NamedTuple):
    """Records to learn, and records to forecast."""

    train: list
    test: list


def small_and_larger(data):
    """Split by dataset. Of our own operators the first repetition of the three small shapes is
    learned."""
    own = [r for rows in data.own.values() for r in rows]
    train, test = (
        [r for r in own if shape_index(r) < SMALL and r["key"].endswith(".0")],
        [r for r in own if shape_index(r) >= SMALL],
    )
    found = {
        f"own, {group}": Split(train, [r for r in test if r["task_name"] in names])
        for group, names in GROUPS.items()
    }
    if data.unicamp:
        cubes = [
            r
            for rows in data.unicamp.values()
            for r in rows
            if unicamp.is_cube(r) and r["inputs"][0]["shape"][0] <= 300
        ]
        found["UNICAMP, cubes of 100, 200, 300"] = Split(
            cubes,
            [r for rows in data.unicamp.values() for r in rows if r["input_bytes"] > 4 * 300**3],
        )
        found["UNICAMP, three smallest"] = Split(
            [r for rows in data.unicamp.values() for r in rows[:3]],
            [r for rows in data.unicamp.values() for r in rows[3:]],
        )
    return found


def small(data):
    """Three small shapes seen, all larger ones forecast."""
    section = Section(
        "Three small shapes seen, all larger ones forecast",
        "median error ≤ 4 % (own measurements 2 %), truth above the 99 % bound ≤ 1 %, bound / truth"
        " ≤ 1.15",
        (
            "data",
            "method",
            "forecasts",
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
    for dataset, (train, test) in small_and_larger(data).items():
        scores = {
            name: protocol.train_and_test(train, test, make) for name, make in data.methods.items()
        }
        for name, found in scores.items():
            f = protocol.figures(found)
            section.rows.append(
                (
                    dataset,
                    name,
                    f["count"],
                    percent(f["error"]),
                    percent(f["failures"]),
                    f"{f['slack']:.2f}",
                    f"{f['slack_95']:.2f}",
                    protocol.operators_on_target(
                        found, 0.02 if dataset.startswith("own") else 0.04
                    ),
                )
            )
        baselines = {
            name: protocol.by_name(found) for name, found in scores.items() if name != "ours"
        }
        for operator, found in protocol.by_name(scores.get("ours", [])).items():
            f = protocol.figures(found)
            best = min(
                baselines,
                key=lambda name: protocol.figures(baselines[name][operator])["error"],
                default=None,
            )
            by_operator.rows.append(
                (
                    operator,
                    dataset,
                    percent(f["error"]),
                    percent(f["failures"]),
                    f"{f['slack']:.2f}",
                    f"{f['slack_95']:.2f}",
                    found[-1].trust,
                    output_verdicts(found),
                    best
                    and f"{percent(protocol.figures(baselines[best][operator])['error'])} ({best})",
                )
            )
    return [section, by_operator]


def output_verdicts(scores):
    """How often the output's shape was forecast right, wrong, or not at all."""
    counts = Counter(s.output for s in scores if s.output)
    return (
        ", ".join(
            f"{word} {percent(count / len(scores), 0)}" for word, count in counts.most_common()
        )
        or "–"
    )


def rolling(data):
    """Rolling: every record forecast before it is learned."""
    sections, seeds = [], range(3 if data.quick else 10)
    sets = {"own operators": [r for rows in data.own.values() for r in rows]}
    if data.unicamp:
        sets["UNICAMP"] = [r for rows in data.unicamp.values() for r in rows]
    for dataset, records in sets.items():
        for growing in (False, True):
            found = protocol.rolling_all(
                records, seeds[:1] if growing else seeds, growing, data.methods
            )
            first = [s for s in found.get("ours", ()) if s.n == 0]
            found = {name: [s for s in scores if s.n] for name, scores in found.items()}
            how = "from small to large" if growing else f"{len(seeds)} random orders"
            section = Section(
                f"Rolling, {dataset}, {how}",
                "99 % bound exceeded by 0.3 to 2 % of the truths, over at least 1,000 forecasts",
                (
                    "method",
                    "forecasts",
                    "median error",
                    "failures",
                    "of shapes not seen before: forecasts",
                    "median error",
                    "failures",
                    "slack: bound / truth, median",
                    "95 %",
                    "waste, of bytes used",
                    "error, ours minus this",
                    "log cost, ours minus this",
                ),
            )
            for name, scores in found.items():
                f, fresh = (
                    protocol.figures(scores),
                    protocol.figures([s for s in scores if s.fresh]),
                )
                differences = (
                    ("–", "–")
                    if name == "ours" or "ours" not in found
                    else (
                        "{:+.3f} ({:+.3f} to {:+.3f})".format(
                            *protocol.difference(found["ours"], scores, quantity)
                        )
                        for quantity in (lambda s: min(s.error, 10.0), protocol.cost)
                    )
                )
                section.rows.append(
                    (
                        name,
                        f["count"],
                        percent(f["error"]),
                        percent(f["failures"], 2),
                        fresh["count"],
                        percent(fresh["error"]),
                        percent(fresh["failures"], 2),
                        f"{fresh['slack']:.2f}",
                        f"{fresh['slack_95']:.2f}",
                        percent(f["waste"], 0),
                        *differences,
                    )
                )
            if "ours" in found:
                section.notes += [
                    figures_by_trust(found["ours"], first),
                    failures_by_group(found["ours"], GROUPS if dataset == "own operators" else {}),
                ]
            if not growing and dataset == "own operators":
                section.notes.append(
                    "Mean error by how many of that name were seen, logarithmic from 0.1 % (empty)"
                    " to 100 % (full), and its sum: the regret of the reward −|predicted − actual|"
                    " / actual.\n\n```\n" + protocol.regret_plot(found) + "\n```"
                )
            sections.append(section)
    sections[0].notes.append(
        "Intervals: 95 %, paired bootstrap over operators (UNICAMP: over shapes). The regressors of"
        " scikit-learn see two of the orders: they take long. Cost of a round: log of bytes"
        " reserved by bytes used, a second run after a failure. Errors above 1,000 % count as that."
    )
    if "ours" in data.methods:
        log_rounds(sets["own operators"])
    return sections


def figures_by_trust(scores, first):
    """first: scores of the first record of each name."""
    f = protocol.figures(first)
    parts = [
        f"nothing of that name seen: {f['count']} forecasts, error {percent(f['error'])}, failures"
        f" {percent(f['failures'], 2)}, slack {f['slack']:.2f}"
    ]
    for trust in ("none", "low", "fair", "good"):
        chosen = [s for s in scores if s.trust == trust]
        if chosen:
            f = protocol.figures(chosen)
            parts.append(
                f"{trust}: {len(chosen)} forecasts, error {percent(f['error'])}, failures"
                f" {percent(f['failures'], 2)}, slack {f['slack']:.2f}"
            )
    return "Ours, by the forecast's trust: " + "; ".join(parts) + "."


def failures_by_group(scores, groups):
    """Failures of shapes not seen before, by group and by operator, and how far above the bound the
    truths were."""
    fresh = [s for s in scores if s.fresh]
    parts = [
        f"{group} {percent(protocol.figures(chosen)['failures'], 2)}"
        for group, names in groups.items()
        if (chosen := [s for s in fresh if s.name in names])
    ]
    worst = sorted(
        (
            (protocol.figures(found)["failures"], name)
            for name, found in protocol.by_name(fresh).items()
        ),
        reverse=True,
    )
    named = (f"`{name}` {percent(share)}" for share, name in worst[:8] if share > 0)
    above = [s.truth / s.bound - 1 for s in scores if s.truth > s.bound] or [0.0]
    return (
        "Ours, failures of shapes not seen before:"
        f" {', '.join([*parts, *named]) or 'none'}."
        f" A truth above its bound is so by {percent(np.median(above))} (median),"
        f" {percent(max(above), 0)} at most."
    )


def log_rounds(records):
    """The model's own rounds over one random order, its reward the censored log score."""
    method = Ours()
    order = np.random.default_rng(0).permutation(len(records))
    with open(ROUNDS, "w") as file:
        for i in order:
            for r in method.learn(records[i]):
                file.write(
                    json.dumps(
                        {
                            "task_name": r.task_name,
                            "kind": r.kind,
                            "predicted": r.predicted,
                            "bound": r.bound,
                            "actual": r.actual,
                            "reward": r.reward,
                            "n": r.n,
                        }
                    )
                    + "\n"
                )


def cold(data):
    """Cold start with a limit."""
    section = Section(
        "Cold start with a limit, choosing the largest block whose bound fits",
        "at most 1 kill per operator, ≥ 75 % of the best feasible volume by the third block",
        (
            "data",
            "method",
            "starts",
            "kills, mean",
            "most",
            "starts with more than 1",
            "reached by the third block, median",
            "starts with ≥ 75 %",
            "by the tenth, median",
        ),
    )
    missed = []
    for dataset, records in (
        *(
            (f"own, {group}", {n: data.own[n] for n in data.own if n in names})
            for group, names in GROUPS.items()
        ),
        ("UNICAMP", data.unicamp),
    ):
        for name, make in data.methods.items() if records else ():
            print(f"... cold start, {dataset}: {name}", file=sys.stderr, flush=True)
            found = coldstart.starts(records, make)
            kills, reached = [s.kills for s in found], [s.reached for s in found]
            section.rows.append(
                (
                    dataset,
                    name,
                    len(found),
                    f"{np.mean(kills):.2f}",
                    max(kills),
                    sum(k > 1 for k in kills),
                    percent(np.median(reached), 0),
                    percent(np.mean(np.array(reached) >= 0.75), 0),
                    percent(np.median([s.reached_last for s in found]), 0),
                )
            )
            if name == "ours":
                missed += [s for s in found if s.kills > 1 or s.reached < 0.75]
    section.notes += [
        (
            f"Limits: {', '.join(percent(s, 0) for s in coldstart.SHARES)} of each operator's"
            f" largest peak; {coldstart.BLOCKS} blocks each, the first the smallest. Kills among"
            " all ten. Ours chooses the second block by its 80 % bound, the third by 90 %, later"
            " ones by 99 %; baselines have one bound."
        ),
        f"Ours, {len(missed)} starts miss the target. Operators with the most: "
        + ", ".join(
            f"`{name}` {count}" for name, count in Counter(s.name for s in missed).most_common(12)
        )
        + ".",
    ]
    return [section]


def replayed(data):
    """Runs of UNICAMP's operators, replayed sample by sample."""
    if not data.unicamp or "ours" not in data.methods:
        return []
    section = Section(
        "Partial runs of UNICAMP's operators, replayed",
        "lead time before an overshoot, and no false alarms",
        (
            "alarm",
            "limit / true peak",
            "runs",
            "known before",
            "lead, median, of the run",
            "seconds",
            "raised",
        ),
    )
    model = Ours().model
    for rows in data.unicamp.values():
        for record in rows:
            if unicamp.is_cube(record) and record["inputs"][0]["shape"][0] <= 300:
                model.learn(record)
    runs = [run for run in unicamp.histories() if np.prod(run.shape) > 300**3]
    found = {
        "ours: P(exceeds) > 0.5": [],
        "80 % of the limit in use": [],
        "95 % of the limit in use": [],
    }
    for name, shape, samples in runs[:: 5 if data.quick else 1]:
        found["ours: P(exceeds) > 0.5"] += replay.replay(model, name, shape, samples)
        found["80 % of the limit in use"] += replay.threshold(name, samples, 0.8)
        found["95 % of the limit in use"] += replay.threshold(name, samples, 0.95)
    for alarm, alarms in found.items():
        for share in replay.BELOW + replay.ABOVE:
            chosen = [a for a in alarms if a.share == share]
            lead_share = np.median([a.lead_share or 0.0 for a in chosen])
            seconds = np.median([a.lead_seconds or 0.0 for a in chosen])
            if share < 1:
                section.rows.append(
                    (
                        alarm,
                        share,
                        len(chosen),
                        percent(np.mean([a.lead_seconds is not None for a in chosen]), 0),
                        percent(lead_share, 0),
                        f"{seconds:.2f}",
                        "–",
                    )
                )
            else:
                section.rows.append(
                    (
                        alarm,
                        share,
                        len(chosen),
                        "–",
                        "–",
                        "–",
                        f"{percent(np.mean([a.raised for a in chosen]), 0)} (false)",
                    )
                )
    section.notes.append(
        "Models learned the cubes of 100, 200 and 300; every run of a larger volume is replayed,"
        " sampled each 10 ms. The true peak is that run's own. A run that passes the limit in its"
        " first sample cannot be known before."
    )
    return [section]


def call_times(data):
    """CPU time of single calls."""
    section = Section(
        "CPU time of single calls",
        "learn and predict < 1 ms, p99",
        ("records learned", "learn, ms: p50", "p99", "predict and its bound, ms: p50", "p99"),
    )
    for count in (10, 1000) if data.quick else (10, 1000, 100_000):
        print(f"... time of calls after {count:,} records", file=sys.stderr, flush=True)
        row = [
            f"{value:.3f}"
            for calls in speed.call_times(Ours, count)
            for value in np.percentile(calls, [50, 99])
        ]
        section.rows.append((f"{count:,}", *row))
    section.notes.append(
        f"{speed.CALLS} calls each, CPU time of the process, garbage collector off; one operator,"
        " shapes at random, an output with each record."
    )
    return [section] if "ours" in data.methods else []


PARTS = {"small": small, "rolling": rolling, "cold": cold, "replay": replayed, "speed": call_times}


class Data:
    def __init__(self, quick, again):
        self.quick, self.own = quick, measure.records(again)
        self.unicamp = unicamp.records() if unicamp.present() else {}
        self.methods = METHODS


def main():
    arguments = sys.argv[1:]
    quick = "--quick" in arguments
    data = Data(quick, "--measure" in arguments)
    chosen = [word for word in arguments if not word.startswith("-")] or list(PARTS)
    text = (
        f"## Prediction\n\n{len(OPERATORS)} operators measured here by the probe,"
        f" {sum(map(len, data.own.values())):,} tasks:"
        f" {', '.join(f'{len(names)} {group}' for group, names in GROUPS.items())}. `python -m"
        " tests.bench.predict`.\n"
    )
    text += "" if data.unicamp else f"\n{unicamp.SKIPPED}\n"
    for part in chosen:
        text += "\n" + "\n".join("#" + section.markdown() for section in PARTS[part](data))
    print(text)
    if not quick and chosen == list(PARTS):
        book.write("predict", text)


if __name__ == "__main__":
    main()
