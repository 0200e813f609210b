"""Cold start with a limit: a method that knows nothing runs, block after block, the largest one
whose bound fits. Blocks are the measured shapes; a block with a peak above the limit is killed.
Called by __main__."""

from dataclasses import dataclass
from typing import NamedTuple

BLOCKS = 10
# Quantile of the bound for the second block, the third, and all later ones. While little is known,
# a kill teaches more than another small block.
LEVELS = (0.8, 0.9, 0.99)
SHARES = (0.15, 0.35, 0.6, 0.85)  # limits, as shares of the largest peak measured


class Block(NamedTuple):
    input_bytes: int
    records: list  # repetitions of this shape


@dataclass(slots=True)
class Start:
    """reached: the largest block that ran among the first three, divided by the largest that fits.
    reached_last: the same among all."""

    name: str
    limit: float
    kills: int
    reached: float
    reached_last: float


def blocks_of(records):
    """A Block for each shape, from small to large."""
    found = {}
    for record in records:
        found.setdefault(
            str(record["key"]).partition(".")[0] if record.get("key") else str(record["inputs"]), []
        ).append(record)
    return sorted(
        (Block(rows[0]["input_bytes"], rows) for rows in found.values()),
        key=lambda block: block.input_bytes,
    )


def start(blocks, limit, method):
    """First the smallest block, then the largest whose bound fits, or the smallest if none fits.
    Repetitions of a shape are used in turn, each forecast with its own inputs."""
    sizes_run, kills = [], 0
    for number in range(BLOCKS):
        offered = [block.records[number % len(block.records)] for block in blocks]
        record = offered[0]
        if number:
            level = LEVELS[min(number, len(LEVELS)) - 1]
            record = next(
                (
                    r
                    for r in reversed(offered)
                    if method.bound(r["inputs"], r["task_name"], level) <= limit
                ),
                record,
            )
        if record["alloc_peak_bytes"] > limit:
            kills += 1
            sizes_run.append(0)
            method.learn(killed(record, limit))
        else:
            sizes_run.append(record["input_bytes"])
            method.learn(record)
    best = max(block.input_bytes for block in blocks if peak_of(block) <= limit)
    return Start(
        record["task_name"], limit, kills, max(sizes_run[:3]) / best, max(sizes_run) / best
    )


def peak_of(block):
    return max(record["alloc_peak_bytes"] for record in block.records)


def killed(record, limit):
    """The record of a task that was killed at the limit."""
    return {
        **record,
        "state": "killed",
        "alloc_peak_bytes": int(limit),
        **dict.fromkeys(
            ("alloc_end_bytes", "output", "output_bytes", "rss_peak_bytes", "rss_before_bytes")
        ),
    }


def limits(blocks):
    """The limits under which the smallest block fits, and the largest does not."""
    peaks = [peak_of(block) for block in blocks]
    return [share * max(peaks) for share in SHARES if peaks[0] <= share * max(peaks)]


def starts(records, make):
    """A Start for each operator and limit, each with a new method."""
    return [
        start(blocks, limit, make())
        for rows in records.values()
        for blocks in [blocks_of(rows)]
        for limit in limits(blocks)
    ]
