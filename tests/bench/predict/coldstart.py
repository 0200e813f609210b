"""Cold start with a limit: nothing known, the largest block that is believed to fit is run next. Blocks are the measured shapes, a block over the limit is a kill. Called by __main__."""
from dataclasses import dataclass

BLOCKS = 10
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
        found.setdefault(str(record["key"]).partition(".")[0] if record.get("key") else str(record["inputs"]), []).append(record)
    return sorted(((rows[0]["input_bytes"], rows) for rows in found.values()), key=lambda block: block[0])


def start(blocks, limit, method):
    """First the smallest block, then the largest whose bound fits; none fits: the smallest. Repetitions of a shape take turns."""
    name, done, kills, chosen = blocks[0][1][0]["task_name"], [], 0, blocks[0]
    for turn in range(BLOCKS):
        record = chosen[1][turn % len(chosen[1])]
        if record["alloc_peak_bytes"] > limit:
            kills += 1
            done.append(0)
            method.learn({**record, "state": "killed", "alloc_peak_bytes": int(limit), "alloc_end_bytes": None, "output": None, "output_bytes": None, "rss_peak_bytes": None, "rss_before_bytes": None})
        else:
            done.append(chosen[0])
            method.learn(record)
        chosen = next((block for block in reversed(blocks) if method.predict(block[1][0]["inputs"], name)[1] <= limit), blocks[0])
    best = max(size for size, rows in blocks if max(r["alloc_peak_bytes"] for r in rows) <= limit)
    return Start(name, limit, kills, max(done[:3]) / best, max(done) / best)


def limits(blocks):
    """Those under which the smallest block runs, and not all do."""
    peaks = [max(r["alloc_peak_bytes"] for r in rows) for _, rows in blocks]
    return [share * max(peaks) for share in SHARES if peaks[0] <= share * max(peaks)]


def starts(records, make):
    """One for each operator and limit, each with a model that knows nothing."""
    return [start(blocks, limit, make()) for rows in records.values() for blocks in [shapes_of(rows)] for limit in limits(blocks)]
