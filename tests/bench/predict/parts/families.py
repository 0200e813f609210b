"""Tasks of which only the bytes of the input are known, each with a reservation."""

import sys

from tests.bench import Section
from tests.bench.predict.baselines import Ours
from tests.bench.predict.families import programs, protocol
from tests.bench.predict.groups import FROZEN
from tests.bench.predict.rates import rate

RATIO_MOST = 1.02


def run(data):
    section = Section(
        "Bytes alone: reservations, by family",
        f"bytes reserved ≤ {RATIO_MOST} of the method “largest seen” in every family, ≤ 0.75 in"
        " sum, failures ≤ 2 %",
        (
            "family",
            "group",
            "reserved, ours / largest seen",
            "reserved / used: ours",
            "largest seen",
            "failures, ours",
            "failures, largest seen",
        ),
    )
    sums = Section(
        "Bytes alone: the sum over families",
        "as above",
        (
            "group",
            "reserved in sum, ours / largest seen",
            "mean of the ratios",
            f"families ≤ {RATIO_MOST}",
            "largest ratio",
            "failures, ours",
            "failures, largest seen",
        ),
    )
    seeds = range(2 if data.tuning_only else 3 if data.quick else 10)
    for group, names in data.family_groups.items():
        print(f"... families, {group}", file=sys.stderr, flush=True)
        costs = [
            (
                protocol.cost(data.families[name], Ours, seeds),
                protocol.cost(data.families[name], protocol.LargestSeen, seeds),
            )
            for name in data.families
            if name in names
        ]
        section.rows += [
            row_of(group, ours, largest) for ours, largest in costs if data.may_be_named(ours.name)
        ]
        sums.rows.append(sum_of(group, costs))
    section.notes.append(
        f"{len(seeds)} random orders. A task whose peak is above its reservation fails: the attempt"
        " costs its reservation, ours learns the killed attempt, and the next attempt has twice as"
        f" much. The first task of every method has {protocol.INITIAL_BYTES >> 20} MiB, and is not"
        " counted. Of programs:"
        f" the peak resident set of {programs.COUNT} runs each. The frozen families"
        f" ({FROZEN}) are listed in a final evaluation only."
    )
    return [sums, section]


def row_of(group, ours, largest):
    return (
        ours.name,
        group,
        f"{ours.reserved / largest.reserved:.3f}",
        f"{ours.reserved / ours.used:.2f}",
        f"{largest.reserved / largest.used:.2f}",
        rate(ours.failures, ours.tasks),
        rate(largest.failures, largest.tasks),
    )


def sum_of(group, costs):
    ratios = [ours.reserved / largest.reserved for ours, largest in costs]
    reserved = [sum(cost.reserved for cost in method) for method in zip(*costs, strict=True)]
    return (
        group,
        f"{reserved[0] / reserved[1]:.3f}",
        f"{sum(ratios) / len(ratios):.3f}",
        f"{sum(ratio <= RATIO_MOST for ratio in ratios)} of {len(ratios)}",
        f"{max(ratios):.3f}",
        *(
            rate(sum(cost.failures for cost in method), sum(cost.tasks for cost in method))
            for method in zip(*costs, strict=True)
        ),
    )
