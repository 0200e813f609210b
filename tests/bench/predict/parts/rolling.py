"""Rolling: every record forecast before it is learned."""

import json
from pathlib import Path

import numpy as np

from tests.bench import Section
from tests.bench.predict import protocol
from tests.bench.predict.baselines import Ours
from tests.bench.predict.rates import percent, rate

ROUNDS = Path("build/rounds.jsonl")


def run(data):
    sections = []
    seeds = range(1 if data.tuning_only else 3 if data.quick else 10)
    sets = {"own operators": [r for rows in data.own.values() for r in rows]}
    if data.unicamp and not data.tuning_only:
        sets["UNICAMP"] = [r for rows in data.unicamp.values() for r in rows]
    for dataset, records in sets.items():
        groups = data.groups if dataset == "own operators" else {}
        for growing in (False,) if data.tuning_only else (False, True):
            found = protocol.rolling_all(
                records, seeds[:1] if growing else seeds, growing, data.methods
            )
            first = [s for s in found.get("ours", ()) if s.n == 0]
            found = {name: [s for s in scores if s.n] for name, scores in found.items()}
            how = "from small to large" if growing else f"random orders: {len(seeds)}"
            section = methods_section(f"Rolling, {dataset}, {how}", found)
            sections.append(section)
            if "ours" in found:
                section.notes += [
                    figures_by_trust(found["ours"], first),
                    worst(found["ours"], data.may_be_named),
                ]
                if groups:
                    sections.append(groups_section(section.title, found["ours"], groups))
            if not growing and dataset == "own operators" and not data.tuning_only:
                section.notes.append(
                    "Mean error by how many of that name were seen, logarithmic from 0.1 % (empty)"
                    " to 100 % (full), and its sum: the regret of the reward −|predicted − actual|"
                    " / actual.\n\n```\n" + protocol.regret_plot(found) + "\n```"
                )
    sections[0].notes.append(
        "Intervals: 95 %, paired bootstrap over operators (UNICAMP: over shapes). The regressors of"
        " scikit-learn see two of the orders: they take long. Cost of a round: log of bytes"
        " reserved by bytes used, a second run after a failure. Errors above 1,000 % count as that."
    )
    if "ours" in data.methods and not data.tuning_only:
        log_rounds([r for r in sets["own operators"] if data.may_be_named(r["task_name"])])
    return sections


def methods_section(title, found):
    section = Section(
        title,
        "99 % bound exceeded by 0.3 to 1.3 % of the truths, over at least 1,000 forecasts; waste ≤"
        " 12 % of bytes used",
        (
            "method",
            "median error",
            "failures",
            "of shapes not seen before: median error",
            "failures",
            "slack: bound / truth, median",
            "95 %",
            "waste, of bytes used",
            "error, ours minus this",
            "log cost, ours minus this",
        ),
    )
    for name, scores in found.items():
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
        section.rows.append((name, *figures_of(scores), *differences))
    return section


def figures_of(scores):
    f, fresh = protocol.figures(scores), protocol.figures([s for s in scores if s.fresh])
    return (
        percent(f["error"]),
        rate(f["failed"], f["count"]),
        percent(fresh["error"]),
        rate(fresh["failed"], fresh["count"]),
        f"{fresh['slack']:.2f}",
        f"{fresh['slack_95']:.2f}",
        percent(f["waste"]),
    )


def groups_section(title, scores, groups):
    """Ours, each group of operators by itself. All names are in one model."""
    section = Section(
        f"{title}: ours, by group",
        "failures 0.3 to 1.3 %, waste ≤ 12 %",
        (
            "group",
            "median error",
            "failures",
            "of shapes not seen before: median error",
            "failures",
            "slack: bound / truth, median",
            "95 %",
            "waste, of bytes used",
        ),
    )
    for group, names in groups.items():
        if chosen := [s for s in scores if s.name in names]:
            section.rows.append((group, *figures_of(chosen)))
    return section


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


def worst(scores, may_be_named):
    """The operators with the most failures of shapes not seen before, those with the most waste,
    and how far above the bound the truths were."""
    named = [s for s in scores if may_be_named(s.name)]
    failures = most(
        {n: protocol.figures(f)["failures"] for n, f in by_fresh_name(named).items()}, percent
    )
    used = sum(s.truth for s in named)
    wasted = {
        name: protocol.figures(found)["waste"] * sum(s.truth for s in found) / used
        for name, found in protocol.by_name(named).items()
    }
    above = [s.truth / s.bound - 1 for s in scores if s.truth > s.bound] or [0.0]
    return (
        f"Ours, failures of shapes not seen before: {failures or 'none'}. A truth above its bound"
        f" is so by {percent(np.median(above))} (median), {percent(max(above), 0)} at most. Waste,"
        f" of all bytes used: {most(wasted, percent)}."
    )


def by_fresh_name(scores):
    return protocol.by_name([s for s in scores if s.fresh])


def most(values, text, count=8):
    chosen = sorted(((value, name) for name, value in values.items() if value > 0), reverse=True)
    return ", ".join(f"`{name}` {text(value)}" for value, name in chosen[:count])


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
