"""A forecast for the terminal: in words, as a small plot of peak against input bytes, and as a
table of all task names. Called by cli/predict.py."""

import math

from dwsr_probe.report.lines import Column, Lines
from dwsr_probe.report.words import bytes_text, count_text

WIDTH, ROWS = 60, 12  # of the plot, without its labels: it fits into 80 columns
TRUST = {
    "none": "none: nothing of this name was seen, this is the prior alone",
    "low": "low: too few tasks were seen, or they tell too little",
    "fair": "fair: its error is known roughly",
    "good": "good: its error is known",
}
NOTES = {
    "non-linear": "the peak is not proportional to the input: the bound is wider",
    "value-dependent": "tasks with the same shapes differ: the bound is wider",
    "drifting": "newer tasks differ from older ones: older ones are forgotten",
    "bounds-only": "no task has ended well: only lower bounds are known",
    "extrapolating": "no input of this size was seen",
    "uncalibrated": "too few forecasts were scored to promise the bound",
    "shared": "figures of several tasks at once that cannot be told apart",
    "no-inputs": "it has no inputs whose size could tell",
    "no-shape": "no input with so many axes was seen, or here are bytes alone: by bytes only",
}
KINDS = {
    "alloc": "own peak",
    "rss": "growth of the process",
    "gpu": "peak on the device",
    "output": "output",
}


def input_text(given):
    """ "512×512 float32", "1,000 bytes", "Dataset of unknown size": one of the record's inputs."""
    if given.get("shape") is not None:
        return " ".join(
            filter(
                None, ["×".join(map(str, given["shape"])), given.get("dtype") or given.get("type")]
            )
        )
    return (
        f"{given.get('type') or 'an input'} of unknown size"
        if given.get("nbytes") is None
        else count_text(given["nbytes"], "byte", "bytes", "1")
    )


def words(found, limit=None):
    """Lines of text from an answer (serve/question.py). limit: as it was given."""
    yield (
        f"{KINDS[found['kind']]}: {_bytes(found['mean_bytes'])} expected,"
        f" {_bytes(found['upper_bytes'])} at most with {100 * found['q']:g} % probability"
        + ("" if found["promised"] else " (not promised yet)")
    )
    if "limit_bytes" in found:
        yield f"more than {limit or bytes_text(found['limit_bytes'])}: {_chance(found['exceeds'])}"
    if found["kind"] != "output":
        yield f"output: {_output(found['output'])}"
    yield (
        f"learned from {count_text(found['n'], 'task', 'tasks', '1')}; trust"
        f" {TRUST.get(found['trust'], found['trust'])}"
    )
    for note in found["notes"]:
        yield f"note: {note}" + (f": {NOTES[note]}" if note in NOTES else "")


def _chance(chance):
    if chance is None:
        return "not known"
    return (
        "less than 0.1 % probable"
        if chance < 0.001
        else f"{100 * chance:.1f} % probable"
        if chance < 0.9995
        else "as good as certain"
    )


def _bytes(value):
    return "no bound" if value is None else bytes_text(value)


def _output(output):
    if not output:
        return "its shape is not known"
    shape = output.get("shape")
    text = "" if shape is None else "×".join(map(str, shape)) or "a scalar"
    return " ".join(
        filter(
            None,
            [
                text,
                output.get("dtype"),
                f"({bytes_text(output['nbytes'])})" if output.get("nbytes") is not None else "",
            ],
        )
    )


def plot(curve, seen, asked=None, limit=None):
    """Lines of a picture. curve: (input bytes, mean, bound) by size; seen: (input bytes, peak,
    count); asked: (input bytes, mean)."""
    points = [(x, y) for x, y, *_ in seen] + ([asked] if asked else [])
    right = max([x for x, *_ in curve] + [x for x, _ in points] + [1])
    tops = (
        [y for _, y in points]
        + [bound for *_, bound in curve if math.isfinite(bound)]
        + [mean for _, mean, _ in curve]
    )
    top = max([*tops, 1])
    if limit is not None and limit <= 2 * top:
        top = max(top, limit)
    cells = [[" "] * WIDTH for _ in range(ROWS)]

    def put(x, y, mark, over=" ░"):
        column, row = (
            min(WIDTH - 1, round(x / right * (WIDTH - 1))),
            ROWS - 1 - min(ROWS - 1, max(0, round(y / top * (ROWS - 1)))),
        )
        if cells[row][column] in over:
            cells[row][column] = mark

    for column in range(WIDTH):
        x, mean, bound = _at(curve, column / (WIDTH - 1) * right)
        low, high = (
            round(min(y, top) / top * (ROWS - 1))
            for y in (mean, bound if math.isfinite(bound) else top)
        )
        for row in range(low, high + 1):
            put(x, row / (ROWS - 1) * top, "░", " ")
        put(x, mean, "─")
    if limit is not None and limit <= top:
        for column in range(0, WIDTH, 2):
            put(column / (WIDTH - 1) * right, limit, "┄", " ")
    for x, y, *_ in seen:
        put(x, y, "●", " ░─┄")
    if asked:
        put(*asked, "◆", " ░─┄●")
    labels = {
        0: bytes_text(top),
        ROWS // 2: bytes_text(top * (ROWS - 1 - ROWS // 2) / (ROWS - 1)),
        ROWS - 1: "0 B",
    }
    for row, line in enumerate(cells):
        yield f"{labels.get(row, ''):>10} ┤{''.join(line).rstrip()}"
    yield " " * 11 + "└" + "─" * WIDTH
    left, end = "0 B", f"{bytes_text(right)} of input"
    yield " " * 12 + left + end.rjust(WIDTH - len(left))
    yield (
        " " * 12
        + "● seen  ─ expected  ░ up to the bound"
        + ("  ◆ asked for" if asked else "")
        + ("  ┄ limit" if limit is not None and limit <= top else "")
    )


def _at(curve, x):
    """Between the nearest points of the curve."""
    after = next((i for i, point in enumerate(curve) if point[0] >= x), len(curve) - 1)
    (x0, *low), (x1, *high) = curve[max(0, after - 1)], curve[after]
    share = min(1.0, (x - x0) / (x1 - x0)) if x1 > x0 else 1.0
    return x, *(b if math.isinf(b) else a + share * (b - a) for a, b in zip(low, high, strict=True))


def print_names(rows, q, file):
    """rows: (name, kind, input bytes, Forecast)."""
    names, kinds, sizes, forecasts = zip(*rows, strict=True)
    notes = [", ".join(f.notes) for f in forecasts]
    bounds = [
        _bytes(bound if math.isfinite(bound) else None) for bound in (f.upper(q) for f in forecasts)
    ]
    columns = [
        Column("kind", 1 if len(set(kinds)) > 1 else 6, kinds, True),
        Column("tasks", 5, [f"{f.n:,}" for f in forecasts]),
        Column("largest input", 4, [bytes_text(size) for size in sizes]),
        Column("expected", 3, [bytes_text(f.mean) for f in forecasts]),
        Column(f"{100 * q:g} % bound", 0, bounds),
        Column("trust", 2, [f.trust for f in forecasts], True),
    ]
    if any(notes):
        columns.append(Column("notes", 7, notes, True))
    out = Lines(file)
    shown = out.tasks(names, columns)
    if any(notes) and columns[-1] not in shown:
        out.below(names, [note and f"notes: {note}" for note in notes])
