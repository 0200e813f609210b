"""Cold start with a limit: nothing known, the largest block that is believed to fit is run next.
Blocks are the measured shapes, a block over the limit is a kill. Called by __main__."""

from dataclasses import dataclass

BLOCKS = 10
# of the bound of the second block, the third, and all later ones: while little is known, a kill
# teaches more than another small block
LEVELS = (0.8, 0.9, 0.99)
SHARES = (0.15, 0.35, 0.6, 0.85)  # of the largest peak measured: the limits


@dataclass(slots=True)
class Start:
    name: str
    limit: float
    kills: int
    reached: float  # largest block that ran among the first three, by the largest that fits
    reached_last: float  # among all


def shapes_of(records):
    """Blocks from small to large: [(input bytes, records of this shape)]."""
    found = {}
    for record in records:
        found.setdefault(
            str(record["key"]).partition(".")[0] if record.get("key") else str(record["inputs"]), []
        ).append(record)
    return sorted(
        ((rows[0]["input_bytes"], rows) for rows in found.values()), key=lambda block: block[0]
    )


def start(blocks, limit, method):
    """First the smallest block, then the largest whose bound fits, boldly at first; none fits:
    the smallest. Repetitions of a shape take turns, each asked for with its own inputs."""
    done, kills = [], 0
    for turn in range(BLOCKS):
        offered = [rows[turn % len(rows)] for _, rows in blocks]
        record = offered[0]
        if turn:
            level = LEVELS[min(turn, len(LEVELS)) - 1]
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
            done.append(0)
            method.learn(killed(record, limit))
        else:
            done.append(record["input_bytes"])
            method.learn(record)
    best = max(size for size, rows in blocks if max(r["alloc_peak_bytes"] for r in rows) <= limit)
    return Start(record["task_name"], limit, kills, max(done[:3]) / best, max(done) / best)


def killed(record, limit):
    """What is left of a task that met the limit."""
    return {
        **record,
        "state": "killed",
        "alloc_peak_bytes": int(limit),
        **dict.fromkeys(
            ("alloc_end_bytes", "output", "output_bytes", "rss_peak_bytes", "rss_before_bytes")
        ),
    }


def limits(blocks):
    """Those under which the smallest block runs, and not all do."""
    peaks = [max(r["alloc_peak_bytes"] for r in rows) for _, rows in blocks]
    return [share * max(peaks) for share in SHARES if peaks[0] <= share * max(peaks)]


def starts(records, make):
    """One for each operator and limit, each with a model that knows nothing."""
    return [
        start(blocks, limit, make())
        for rows in records.values()
        for blocks in [shapes_of(rows)]
        for limit in limits(blocks)
    ]
