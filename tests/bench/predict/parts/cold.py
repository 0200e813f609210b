"""Cold start with a limit."""

import sys
from collections import Counter

import numpy as np

from tests.bench import Section
from tests.bench.predict import coldstart
from tests.bench.predict.rates import percent


def run(data):
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
            for group, names in data.groups.items()
        ),
        ("UNICAMP", {} if data.tuning_only else data.unicamp),
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
            f"`{name}` {count}"
            for name, count in Counter(
                s.name for s in missed if data.may_be_named(s.name)
            ).most_common(12)
        )
        + ".",
    ]
    return [section]
