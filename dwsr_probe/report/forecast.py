"""A forecast for the terminal: in words, as a small plot of peak against input bytes, and as a
table of all task names. Called by cli/predict.py."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

from dwsr_probe.report.lines import Column, Lines
from dwsr_probe.report.reasons import reason_lines, reasons_text
from dwsr_probe.words import AtLeast, bytes_text, count_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import TextIO

    from dwsr_probe.predict import Forecast

WIDTH, ROWS = 60, 12  # of the plot, without its labels: it fits into 80 columns
TRUST_TEXT = {
    "none": "none: nothing of this name was seen, this is the prior alone",
    "low": "low: too few tasks were seen, they differ too much, or their inputs were far smaller",
    "fair": "fair: its error is known roughly",
    "good": "good: its error is known",
}
NOTE_TEXT = {
    "non-linear": "the peak is not proportional to the input: the bound is wider",
    "value-dependent": "tasks with the same shapes differ: the bound is wider",
    "drifting": "newer tasks differ from older ones: older ones are forgotten",
    "bounds-only": "no task has ended well: only lower bounds are known",
    "extrapolating": "no input of this size was seen",
    "uncalibrated": "too few forecasts were scored to confirm the bound",
    "shared": "figures of several tasks at once that cannot be separated",
    "unseen": "own peaks may miss memory",
    "first-calls": "the first task in a process or thread may take more",
    "one-size": "all tasks seen had inputs of one size; a second size would tell more",
    "params": "the peak depends on a parameter whose value is not given, or was never seen",
    "beyond": "these inputs are like none seen (a thousand times larger, or of another kind): the"
    " forecast is not extrapolated",
    "mixture": "tasks of this name do different work and need different amounts of memory; the"
    " bound covers all of them",
    "no-inputs": "the task has no inputs of known size",
    "no-shape": "no input with this number of axes was seen: the forecast uses bytes only",
}
KIND_TEXT = {
    "alloc": "own peak",
    "rss": "growth of the process",
    "gpu": "peak on the device",
    "output": "output",
}


class CurvePoint(NamedTuple):
    """The forecast at one size of the inputs. bound: at the quantile asked for."""

    input_bytes: float
    mean: float
    bound: float


class ForecastRow(NamedTuple):
    """A row of the table: a task name at its largest inputs."""

    task_name: str
    kind: str
    input_bytes: int | None
    forecast: Forecast


def input_text(given: dict[str, Any]) -> str:
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


def answer_lines(found: dict[str, Any], limit: str | None = None) -> Iterator[str]:
    """Lines of text from an answer (serve/question.py). limit: as the user wrote it."""
    yield f"{KIND_TEXT[found['kind']]}: {_need_text(found)}"
    if "worker" in found:
        yield from _worker_lines(found["worker"], found["q"], limit)
    elif "limit_bytes" in found:
        limit = limit or bytes_text(found["limit_bytes"])
        at_least = "at least " if found["at_least"] and (found["exceeds"] or 1) < 0.9995 else ""
        probability = _probability_text(found["exceeds"])
        yield (
            f"more than {limit}: {at_least}{probability} for one task alone;"
            " --threads N answers for a worker"
        )
    if found["kind"] != "output":
        yield f"output: {_output_text(found['output'])}"
    if not found["at_least"]:
        yield (
            f"learned from {count_text(found['n'], 'task', 'tasks', '1')}; trust"
            f" {TRUST_TEXT.get(found['trust'], found['trust'])}"
        )
    for note in found["notes"]:
        if note == "unseen" and found["unseen"]:
            yield from _unseen_lines(found)
        elif note == "params":
            missing = [name for name in found["depends_on"] if name not in found["params"]]
            words = " and ".join(f"--param {name}=VALUE" for name in missing)
            yield f"note: params: {NOTE_TEXT['params']}: {words}"
        elif note == "first-calls":
            more = bytes_text(found["first_call_bytes"])
            yield f"note: first-calls: {NOTE_TEXT['first-calls']}: up to {more} more so far"
        else:
            yield f"note: {note}" + (f": {NOTE_TEXT[note]}" if note in NOTE_TEXT else "")


def _worker_lines(worker: dict[str, Any], q: float, limit: str | None) -> Iterator[str]:
    at_once = count_text(worker["threads"], "such task", "such tasks", "one")
    upper = worker["upper_bytes"]
    most = "no bound" if upper is None else f"{bytes_text(upper)} at most"
    yield (
        f"a worker with {at_once} at once: {bytes_text(worker['mean_bytes'])} expected, {most} with"
        f" {100 * q:g} % probability, {bytes_text(worker['base_bytes'])} of it for the process"
    )
    if "limit_bytes" in worker:
        limit = limit or bytes_text(worker["limit_bytes"])
        yield f"more than {limit} in this worker: {_probability_text(worker['exceeds'])}"


def _need_text(found: dict[str, Any]) -> str:
    if found["at_least"]:
        return (
            "not known"
            if found["mean_bytes"] is None
            else f"at least {bytes_text(found['mean_bytes'])}; how much more is not known"
        )
    promised = (
        ""
        if found["promised"]
        else " (not promised)"
        if "mixture" in found["notes"] or (found["unseen"] and "uncalibrated" not in found["notes"])
        else " (not yet calibrated)"
    )
    return (
        f"{_bound_text(found['mean_bytes'])} expected, {_bound_text(found['upper_bytes'])} at most"
        f" with {100 * found['q']:g} % probability{promised}"
    )


def _unseen_lines(found: dict[str, Any]) -> Iterator[str]:
    """What the own peaks may miss, why, and what the forecast was made from instead."""
    unseen = found["unseen"]
    count = unseen["tasks"]
    tasks = count_text(round(count / unseen["share"]), "task", "tasks", "1")
    yield (
        f"note: unseen: {NOTE_TEXT['unseen']} in {count:,} of {tasks}"
        f" ({reasons_text(unseen['reasons'])})"
    )
    for line in reason_lines(unseen["reasons"]):
        yield f"  {line}"
    if not found["at_least"]:
        yield "  The forecast uses the other tasks. These may need more."
    elif found["mean_bytes"] is None:
        yield "  None of them ran alone, so the growth of the process does not show what one task"
        yield "  took. Nothing can be promised. A run with one thread per process would show more."
    elif not found["n"]:
        yield "  None of them ran alone, so the growth of the process does not show what one task"
        yield "  took. Known is the highest peak of a task that did not end well (killed, failed or"
        yield "  cancelled). A task may need more than that."
    else:
        alone = count_text(found["n"], "task", "tasks", "1")
        yield f"  The forecast uses the growth of the process in {alone} that ran alone. A task may"
        yield "  need more: memory that the process already had does not make it grow."


def _probability_text(probability: float | None) -> str:
    if probability is None:
        return "not known"
    if probability < 0.001:
        return "less than 0.1 % probable"
    return f"{100 * probability:.1f} % probable" if probability < 0.9995 else "as good as certain"


def _mean_text(forecast: Forecast) -> str:
    if forecast.is_unknown:
        return "not known"
    return bytes_text(AtLeast(forecast.mean) if forecast.is_lower_bound else forecast.mean)


def _bound_text(value: float | None) -> str:
    return "no bound" if value is None else bytes_text(value)


def _output_text(output: dict[str, Any] | None) -> str:
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


class _Canvas:
    """The cells of the plot, and its scale: 0 to `right` and 0 to `top`, in bytes."""

    def __init__(self, right: float, top: float) -> None:
        self.right, self.top = right, top
        self.cells = [[" "] * WIDTH for _ in range(ROWS)]

    def x_of(self, column: int) -> float:
        return column / (WIDTH - 1) * self.right

    def height_of(self, y: float) -> int:
        """Rows above the lowest."""
        return round(y / self.top * (ROWS - 1))

    def put(self, x: float, y: float, mark: str, over: str) -> None:
        """Draw a mark unless the cell has one that is not in `over`."""
        column = min(WIDTH - 1, round(x / self.right * (WIDTH - 1)))
        row = ROWS - 1 - min(ROWS - 1, max(0, self.height_of(y)))
        if self.cells[row][column] in over:
            self.cells[row][column] = mark


def plot(
    curve: Sequence[CurvePoint],
    seen: Sequence[tuple[int, float, int]],
    asked: tuple[float, float] | None = None,
    limit: float | None = None,
) -> Iterator[str]:
    """Lines of a picture. curve: by size. seen: input bytes, mean peak and count, as Model.seen
    gives them. asked: input bytes and mean of the forecast in question."""
    points = [(x, y) for x, y, *_ in seen] + ([asked] if asked else [])
    right = max([x for x, *_ in curve] + [x for x, _ in points] + [1])
    tops = [y for _, y in points] + [mean for _, mean, _ in curve]
    tops += [bound for *_, bound in curve if math.isfinite(bound)]
    top = max([*tops, 1])
    if limit is not None and limit <= 2 * top:
        top = max(top, limit)
    canvas = _Canvas(right, top)
    for column in range(WIDTH):
        x = canvas.x_of(column)
        mean, bound = _interpolated(curve, x)
        low, high = (
            canvas.height_of(min(y, top)) for y in (mean, bound if math.isfinite(bound) else top)
        )
        for row in range(low, high + 1):
            canvas.put(x, row / (ROWS - 1) * top, "░", " ")
        canvas.put(x, mean, "─", " ░")
    shows_limit = limit is not None and limit <= top
    if limit is not None and shows_limit:
        for column in range(0, WIDTH, 2):
            canvas.put(canvas.x_of(column), limit, "┄", " ")
    for x, y, *_ in seen:
        canvas.put(x, y, "●", " ░─┄")
    if asked:
        canvas.put(*asked, "◆", " ░─┄●")
    labels = {
        0: bytes_text(top),
        ROWS // 2: bytes_text(top * (ROWS - 1 - ROWS // 2) / (ROWS - 1)),
        ROWS - 1: "0 B",
    }
    for row, line in enumerate(canvas.cells):
        yield f"{labels.get(row, ''):>10} ┤{''.join(line).rstrip()}"
    yield " " * 11 + "└" + "─" * WIDTH
    left, end = "0 B", f"{bytes_text(right)} of input"
    yield " " * 12 + left + end.rjust(WIDTH - len(left))
    yield (
        " " * 12
        + "● seen  ─ expected  ░ up to the bound"
        + ("  ◆ asked for" if asked else "")
        + ("  ┄ limit" if shows_limit else "")
    )


def _interpolated(curve: Sequence[CurvePoint], x: float) -> tuple[float, float]:
    """Mean and bound between the nearest points of the curve."""
    after = next((i for i, point in enumerate(curve) if point[0] >= x), len(curve) - 1)
    (x0, mean0, bound0), (x1, mean1, bound1) = curve[max(0, after - 1)], curve[after]
    share = min(1.0, (x - x0) / (x1 - x0)) if x1 > x0 else 1.0

    def between(a: float, b: float) -> float:
        return b if math.isinf(b) else a + share * (b - a)

    return between(mean0, mean1), between(bound0, bound1)


def print_names(rows: Sequence[ForecastRow], q: float, file: TextIO) -> None:
    """A table of forecasts, each with its mean and its bound at the quantile q."""
    names, kinds, sizes, forecasts = zip(*rows, strict=True)
    notes = [", ".join(forecast.notes) for forecast in forecasts]
    bounds = [
        _bound_text(bound if math.isfinite(bound) else None)
        for bound in (forecast.upper(q) for forecast in forecasts)
    ]
    columns = [
        Column("kind", 1 if len(set(kinds)) > 1 else 6, kinds, True),
        Column("tasks", 5, [f"{forecast.n:,}" for forecast in forecasts]),
        Column("largest input", 4, [bytes_text(size) for size in sizes]),
        Column("expected", 3, [_mean_text(forecast) for forecast in forecasts]),
        Column(f"{100 * q:g} % bound", 0, bounds),
        Column("trust", 2, [forecast.trust for forecast in forecasts], True),
    ]
    if any(notes):
        columns.append(Column("notes", 7, notes, True))
    out = Lines(file)
    shown = out.print_task_table(names, columns)
    if any(notes) and columns[-1] not in shown:
        out.print_omitted_column(names, [note and f"notes: {note}" for note in notes])
