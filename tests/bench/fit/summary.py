"""The section "Fit" of BENCHMARKS.md, from the cells that were measured."""

import random
from statistics import median

from tests.bench.fit.cluster import KILL_SHARE
from tests.bench.predict.rates import rate

MIB = 1 << 20
_RESAMPLES = 2000
_TRIALS_MOST, _TRIAL_S_MOST, _JOB_SHARE = 3, 2.0, 0.02
_HEADS = {
    "summary": ("what", "target", "found", "**verdict**"),
    "cells": (
        "operator",
        "limit",
        "threads",
        "block",
        "peak / bound / allowed, MiB",
        "s",
        "ours / best",
        "ours / published",
        "ours / auto",
        "ours / even",
        "best block",
        "published block",
        "fit, s",
    ),
    "largest": (
        "operator",
        "limit",
        "threads",
        "largest block",
        "peak / bound / allowed, MiB",
        "peak / allowed",
    ),
}


def section(cells, failures=()):
    """failures: texts of cells that could not be measured."""
    lines = ["## Fit", "", _INTRO, "", *_table("summary", _summary(cells))]
    lines += ["", "### Fastest block, by cell", "", *_table("cells", map(cell_row, cells))]
    known = [cell for cell in cells if cell.largest]
    lines += ["", "### Largest block, by cell", "", *_table("largest", map(_largest_row, known))]
    lines += ["", *(f"Not measured: {text}\n" for text in failures)]
    return "\n".join([*lines, _NOTES, ""])


_INTRO = (
    "The block that `fit_blocks` chooses for a function, on a Dask LocalCluster of one worker in a"
    " process of its own: peak of the worker and time of the job, beside the blocks of others."
    " `make bench-fit`."
)
_NOTES = f"""Each job reads a float32 zarr array, maps one function over its blocks and writes a
zarr array. Peak: the kernel's high-water mark of the worker's process, without the probe in it, in
a fresh worker. Killed: the worker was ended, or its peak exceeded {100 * KILL_SHARE:.0f} % of its
limit. Seconds are wall times of the job alone, without the start of the cluster: medians of 5 runs
of ours and the best block and 3 of the others, which took turns. Least seconds: of these runs; they
are freer of the machine's noise.

- best: the fastest of at most 12 blocks of the fit's own grid that were run once, one of each range
  of sizes, eight of them of whole stored chunks. The choice is by one run, the ratio by five new
  ones.
- auto: Dask's `chunks="auto"` with 128 MiB. even: a piece of the first axis for each thread.
- published: the largest cube whose edge divides all axes and whose peak, as our model expects it,
  is below 80 % of the limit. Blocks of which there are more than 2,000 are not run: "slow".

Axes that must stay whole are whole in all blocks. Intervals of shares are Wilson's at 95 %, those
of medians are from {_RESAMPLES:,} resamples of the cells."""


def _table(name, rows):
    header = _HEADS[name]
    yield "| " + " | ".join(header) + " |"
    yield "|" + "---|" * len(header)
    for row in rows:
        yield "| " + " | ".join(map(str, row)) + " |"


def _summary(cells):
    fastest = [cell.fastest for cell in cells if cell.fastest]
    largest = [cell.largest for cell in cells if cell.largest]
    yield _count("killed with the fastest block", fastest, _is_killed)
    yield _count("killed with the largest block", largest, _is_killed)
    for name in ("published", "auto", "even"):
        ran = [cell.rivals[name] for cell in cells if cell.rivals.get(name)]
        yield (
            f"killed or too slow with the {name} block",
            "–",
            _rate_of(ran, lambda r: r.failure),
            "",
        )
    yield _count("peak above the 99 % bound, fastest", fastest, _is_above)
    yield _count("peak above the 99 % bound, largest", largest, _is_above)
    yield from _ratios(cells, "best", 1.05, 1.15)
    yield from _ratios(cells, "best", of=min)
    yield from _ratios(cells, "published", 0.75)
    yield from _ratios(cells, "auto")
    yield from _ratios(cells, "even")
    yield from _of_trials(cells, [*fastest, *largest])
    yield from _of_shares(largest)


def _is_killed(choice):
    return bool(choice.ran.failure)


def _is_above(choice):
    return choice.ran.peak_bytes is None or choice.ran.peak_bytes > choice.bound_bytes


def _rate_of(found, is_so):
    return rate(sum(map(bool, map(is_so, found))), len(found))


def _count(what, choices, is_so):
    k = sum(map(is_so, choices))
    return what, "0", _rate_of(choices, is_so), _verdict(k == 0)


def _verdict(is_met):
    return "met" if is_met else "**missed**"


def _ratios(cells, rival, median_most=None, worst_most=None, of=median):
    found = [ratio for cell in cells if (ratio := cell.ratio(rival, of)) is not None]
    what = f"{'least seconds' if of is min else 'seconds'}, ours / {rival}"
    if not found:
        yield what, "–", "none: it never ran to its end", ""
        return
    middle = median(found)
    low, high = interval(found)
    text = f"{middle:.2f} ({low:.2f} – {high:.2f}), {len(found)} cells"
    yield (
        f"{what}: median",
        f"≤ {median_most:.2f}" if median_most else "–",
        text,
        _verdict(middle <= median_most) if median_most else "",
    )
    yield (
        f"{what}: worst",
        f"≤ {worst_most:.2f}" if worst_most else "–",
        f"{max(found):.2f}",
        _verdict(max(found) <= worst_most) if worst_most else "",
    )


def interval(values, share=0.95):
    """Of the median, from resamples of the values with replacement."""
    chance = random.Random(0)
    medians = sorted(median(chance.choices(values, k=len(values))) for _ in range(_RESAMPLES))
    cut = int(_RESAMPLES * (1 - share) / 2)
    return medians[cut], medians[-1 - cut]


def _of_trials(cells, choices):
    if not choices:
        return
    trials = [choice.trials for choice in choices]
    yield (
        "trials: median, most",
        f"≤ {_TRIALS_MOST}",
        f"{median(trials):g}, {max(trials)}",
        _verdict(max(trials) <= _TRIALS_MOST),
    )
    seconds = [
        (choice.trial_s, max(_TRIAL_S_MOST, _JOB_SHARE * (choice.ran.seconds or 0)))
        for choice in choices
    ]
    within = sum(s <= most for s, most in seconds)
    yield (
        "seconds of trials with the check of the axes: median, most",
        f"≤ {_TRIAL_S_MOST:g} or {100 * _JOB_SHARE:g} % of the job",
        f"{median(s for s, _ in seconds):.1f}, {max(s for s, _ in seconds):.1f};"
        f" {within} of {len(seconds)} within",
        _verdict(within == len(seconds)),
    )
    walls = [choice.wall_s for choice in choices]
    yield "seconds of `fit_blocks`: median, most", "–", f"{median(walls):.1f}, {max(walls):.1f}", ""


def _of_shares(largest):
    shares = [c.ran.peak_bytes / c.allowed_bytes for c in largest if c.ran.peak_bytes]
    if not shares:
        return
    low, high = interval(shares)
    text = f"{median(shares):.2f} ({low:.2f} – {high:.2f}), least {min(shares):.2f}"
    reached = sum(share >= 0.7 for share in shares)
    yield (
        "largest block: peak / allowed, median and least",
        "≥ 0.70",
        f"{text}; {reached} of {len(shares)} reach it",
        _verdict(min(shares) >= 0.7),
    )


def cell_row(cell):
    ours = cell.fastest
    if ours is None:
        return cell.operator, *_limits(cell), cell.error, *["–"] * 9
    return (
        cell.operator,
        *_limits(cell),
        _shape(ours.block),
        _peak(ours),
        f"{seconds:.2f}" if (seconds := cell.seconds("ours")) else "–",
        _ratio(cell, "best"),
        _ratio(cell, "published"),
        _ratio(cell, "auto"),
        _ratio(cell, "even"),
        _shape(cell.blocks.get("best")),
        _shape(cell.blocks.get("published")),
        f"{ours.wall_s:.1f}",
    )


def _largest_row(cell):
    chosen = cell.largest
    share = f"{chosen.ran.peak_bytes / chosen.allowed_bytes:.2f}" if chosen.ran.peak_bytes else "–"
    return cell.operator, *_limits(cell), _shape(chosen.block), _peak(chosen), share


def _limits(cell):
    return f"{cell.limit_bytes / 1e6:.0f} MB", cell.threads


def _shape(block):
    return "×".join(map(str, block)) if block else "–"


def _peak(choice):
    peak = choice.ran.peak_bytes
    measured = f"{peak / MIB:.0f}" if peak else choice.ran.failure
    mark = " **above**" if _is_above(choice) else ""
    failed = f" ({choice.ran.failure})" if choice.ran.failure and peak else ""
    bounds = f"{choice.bound_bytes / MIB:.0f} / {choice.allowed_bytes / MIB:.0f}"
    return f"{measured} / {bounds}{mark}{failed}"


def _ratio(cell, rival):
    ratio = cell.ratio(rival)
    if ratio is not None:
        return f"{ratio:.2f}"
    ran = cell.rivals.get(rival)
    return ran.failure if ran and ran.failure else "–"
