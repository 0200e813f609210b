"""What is compared with what: each task name's figures in two runs, like with like, and a
verdict. A is the reference, B the new run.

Peaks depend on the inputs, so tasks are compared with those that had inputs of the same types
and shapes; where the runs have few in common (other block sizes), by peak per byte of input, at
the size of A's inputs; where no inputs are known, all with all. Of a source, which makes much
from next to nothing, it is the output. `basis` says which. Only tasks that ended well are
compared: others have a part of a peak.
"""

import json
from collections import defaultdict
from dataclasses import asdict, dataclass, field
from statistics import median

from dwsr_probe.record import FIELDS
from dwsr_probe.report.compare.noise import are_too_few, exceedance_test, holm, rank_test
from dwsr_probe.report.words import bytes_text

ALPHA = 0.05
SAME, SAME_OUTPUT, PER_BYTE, PER_OUTPUT_BYTE, ALL = (
    "same inputs",
    "same output",
    "per input byte",
    "per output byte",
    "all tasks",
)
_SOURCE = 64  # so many times its inputs: what a source returns
# The least difference that is one: a share, and bytes (figures below that count as that much).
# Resident size moves by itself.
LEAST = {"own peak": (0.01, 64 << 10), "gpu peak": (0.01, 64 << 10), "rss growth": (0.05, 1 << 20)}
_PLACE = {
    name: FIELDS.index(name)
    for name in (
        "task_name",
        "state",
        "inputs",
        "inputs_omitted",
        "input_bytes",
        "output",
        "output_bytes",
        "alloc_peak_bytes",
        "rss_before_bytes",
        "rss_peak_bytes",
        "overlap",
        "gpu",
        "duration",
    )
}
_ORDER = (
    "grew",
    "largest grew",
    "shrank",
    "cannot tell",
    "within noise",
    "no difference",
    "new",
    "vanished",
)


@dataclass(slots=True)
class Task:
    """What is compared of one task."""

    inputs: str  # their types and shapes; "" if none are known
    size: int | None  # their bytes
    source: bool  # inputs and size are those of its output
    figures: dict  # of LEAST's quantities those that are known
    duration: float | None


@dataclass
class Side:
    """One task name in one run."""

    count: int = 0
    errors: int = 0
    killed: int = 0
    cancelled: int = 0
    tasks: list = field(default_factory=list)  # those that ended well

    def failed(self):
        return {
            state: n
            for state, n in (
                ("error", self.errors),
                ("killed", self.killed),
                ("cancelled", self.cancelled),
            )
            if n
        }


@dataclass
class Difference:
    """One quantity of one task name. change and largest_change are shares: 0.2 is 20 % more, of
    tasks that may be compared."""

    quantity: str
    basis: str
    a_tasks: int  # that were compared
    b_tasks: int
    a_median_bytes: float  # of all tasks that ended well
    b_median_bytes: float
    a_max_bytes: float
    b_max_bytes: float
    change: float
    change_bytes: float
    largest_change: float
    largest_change_bytes: float
    # the medians that `change` compares: of the typical group of same inputs; per byte: at the size
    # of A's
    a_like_bytes: float
    b_like_bytes: float
    # adjusted for all names; None: these figures could not have been more than noise, whoever had
    # them
    p: float | None = None
    largest_p: float | None = None
    verdict: str = ""
    note: str = ""

    @property
    def sizes_differ(self):
        """The runs had other block sizes: figures are per byte."""
        return self.basis in (PER_BYTE, PER_OUTPUT_BYTE)

    def above(self, limit):
        """By how much it grew, beyond noise, if that is more than `limit`; else None. With other
        block sizes a task that needs no more than before did not grow."""
        if self.sizes_differ and self.b_median_bytes <= self.a_median_bytes:
            return None
        grew = (
            self.change
            if self.verdict == "grew"
            else self.largest_change
            if self.verdict == "largest grew"
            else 0.0
        )
        if self.verdict == "grew" and self.largest_p is not None and self.largest_p <= ALPHA:
            grew = max(grew, self.largest_change)
        return grew if grew > limit else None


@dataclass
class NameComparison:
    task_name: str
    a: Side
    b: Side
    differences: list = field(default_factory=list)
    duration_a: float | None = None
    duration_b: float | None = None
    # like with like; never judged: tasks of one run share the machine's load
    duration_change: float | None = None
    note: str = ""

    @property
    def verdict(self):
        """The gravest of its quantities'; of a name that one run alone has "new" or "vanished"."""
        if not self.a.count or not self.b.count:
            return "vanished" if self.a.count else "new"
        return min((d.verdict for d in self.differences), key=_ORDER.index, default="cannot tell")

    def _rank(self):
        """The gravest first; where nothing is to be said, the largest."""
        said = self.verdict in ("grew", "largest grew", "shrank", "cannot tell")
        weight = max(
            (
                max(d.change, d.largest_change, -d.change) if said else d.b_median_bytes
                for d in self.differences
            ),
            default=0.0,
        )
        return (
            not (self.b.killed and not self.a.killed),
            _ORDER.index(self.verdict),
            -weight,
            self.task_name,
        )


class Comparison:
    """Two stores. `names`, the gravest first; `runs`: what each is."""

    def __init__(self, a, b):
        self.runs = [_facts(a), _facts(b)]
        sides = [_sides(a), _sides(b)]
        self.names = [
            _compared(name, sides[0].get(name) or Side(), sides[1].get(name) or Side())
            for name in sides[0].keys() | sides[1].keys()
        ]
        for quantities in (("own peak", "rss growth"), ("gpu peak",)):
            _judge(
                [d for name in self.names for d, _ in name.differences if d.quantity in quantities],
                [
                    tests
                    for name in self.names
                    for d, tests in name.differences
                    if d.quantity in quantities
                ],
            )
        for name in self.names:
            name.differences = [d for d, _ in name.differences]
        self.names.sort(key=NameComparison._rank)

    def failures(self, limit):
        """(name, why) of what --fail-above objects to: growth beyond it and beyond noise; tasks
        that were killed, of a name that had none in the reference."""
        found = []
        for name in self.names:
            found += [
                (
                    name.task_name,
                    (
                        f"{d.quantity}"
                        f" {'of the largest ' if d.verdict == 'largest grew' else ''}grew by"
                        f" {100 * grew:.1f} %{'' if d.basis == ALL else f' ({d.basis})'}"
                    ),
                )
                for d in name.differences
                if (grew := d.above(limit)) is not None
            ]
            if name.b.killed and not name.a.killed:
                found.append((name.task_name, f"{name.b.killed:,} killed, none in the reference"))
        return found

    def to_json(self, limit=None):
        def row(name):
            sides = {
                side: {
                    "count": s.count,
                    "errors": s.errors,
                    "killed": s.killed,
                    "cancelled": s.cancelled,
                }
                for side, s in (("a", name.a), ("b", name.b))
            }
            return {
                "task_name": name.task_name,
                "verdict": name.verdict,
                **sides,
                "differences": [asdict(d) for d in name.differences],
                "duration_a": name.duration_a,
                "duration_b": name.duration_b,
                "duration_change": name.duration_change,
                "note": name.note,
            }

        gate = (
            {}
            if limit is None
            else {
                "fail_above": limit,
                "failures": [{"task_name": name, "why": why} for name, why in self.failures(limit)],
            }
        )
        return json.dumps(
            {
                "a": self.runs[0],
                "b": self.runs[1],
                "alpha": ALPHA,
                **gate,
                "names": [row(name) for name in self.names],
            }
        )


def _facts(store):
    meta, processes = store.meta(), store.processes()
    return {
        "run": meta.get("run"),
        "directory": store.directory,
        "exit_code": meta.get("exit_code"),
        "processes": len(processes),
        "max_rss_bytes": max(
            (record.rss_peak_bytes for record, _ in processes if record.rss_peak_bytes is not None),
            default=None,
        ),
    }


def _sides(store):
    """{task name: Side}"""
    sides, known = defaultdict(Side), {}
    for row in store.rows():
        (
            name,
            state,
            inputs,
            omitted,
            size,
            output,
            output_bytes,
            alloc,
            before,
            peak,
            overlap,
            gpu,
            duration,
        ) = (row[place] for place in _PLACE.values())
        side = sides[name]
        side.count += 1
        side.errors += state == "error"
        side.killed += state == "killed"
        side.cancelled += state == "cancelled"
        if state != "ok":
            continue
        source = bool(output_bytes) and output_bytes > _SOURCE * (size or 0)
        given = f"[{output}]" if source and output else inputs
        found = known.get(given)
        if found is None:
            found = known[given] = _shapes(given)
        shapes, known_bytes = found
        size = output_bytes if source else known_bytes if size is None else size
        if (omitted and not source) or not shapes:
            shapes = f"{shapes}+{size}" if size else shapes
        figures = {}
        if alloc is not None:
            figures["own peak"] = alloc
        # beside others, the growth is not its own
        if peak is not None and before is not None and not overlap:
            figures["rss growth"] = max(0, peak - before)
        if (on_device := _device_peak(gpu)) is not None:
            figures["gpu peak"] = on_device
        side.tasks.append(Task(shapes, size, source, figures, duration))
    return sides


def _shapes(text):
    """(types and shapes of inputs in any order, of those without a shape the size; the bytes
    that are known, or None). A damaged text stands for itself."""
    try:
        inputs = json.loads(text or "[]")
        found = [
            (
                str(one.get("dtype") or one.get("type")),
                str(one["shape"] if one.get("shape") is not None else one.get("nbytes")),
            )
            for one in inputs
        ]
        known = [int(one["nbytes"]) for one in inputs if one.get("nbytes") is not None]
    except (ValueError, TypeError, AttributeError):
        return text, None
    return json.dumps(sorted(found)) if found else "", sum(known) if known else None


def _device_peak(text):
    try:
        return (
            max((int(device["peak_bytes"]) for device in json.loads(text)), default=0)
            if text
            else None
        )
    except (ValueError, TypeError, KeyError):
        return None


def _compared(task_name, a, b):
    """differences are (Difference, (rank test, exceedance test, too few)) until they are judged."""
    compared = NameComparison(task_name, a, b)
    if not a.count or not b.count:
        return compared
    if not a.tasks or not b.tasks:
        compared.note = f"none of its tasks ended well in {'A' if not a.tasks else 'B'}"
        return compared
    both = set.intersection(
        *(set().union(*(task.figures for task in side.tasks)) for side in (a, b))
    )
    host = "own peak" if "own peak" in both else "rss growth" if "rss growth" in both else None
    compared.differences = [
        _difference(quantity, a, b) for quantity in (host, "gpu peak") if quantity in both
    ]
    compared.differences = [
        d
        for d in compared.differences
        if d[0].quantity != "gpu peak" or d[0].a_max_bytes or d[0].b_max_bytes
    ]
    if host is None:
        compared.note = (
            "its memory is not known in both runs: allocations were not accounted, and its tasks"
            " ran beside others"
        )
    times = [
        [(task, task.duration) for task in side.tasks if task.duration is not None]
        for side in (a, b)
    ]
    if all(times):
        compared.duration_a, compared.duration_b = (
            median(value for _, value in side) for side in times
        )
        _, strata, _ = _strata(*times)
        compared.duration_change = _weighted_median(
            [
                (
                    (median(y) - median(x)) / max(median(x), 1e-9),
                    len(x) * len(y) / (len(x) + len(y)),
                )
                for x, y in strata
            ]
        )
    return compared


def _strata(a, b):
    """(basis, [(A's figures, B's figures)], what figures were divided by) of (task, figure)
    pairs."""
    groups, sources = defaultdict(lambda: ([], [])), all(task.source for task, _ in a)
    for side, pairs in enumerate((a, b)):
        for task, value in pairs:
            groups[task.inputs][side].append(value)
    shared = [group for group in groups.values() if group[0] and group[1]]
    if (
        max(
            sum(len(group[side]) for group in shared) / len(pairs)
            for side, pairs in enumerate((a, b))
        )
        >= 0.5
    ):
        return (
            (ALL if len(groups) == 1 and "" in groups else SAME_OUTPUT if sources else SAME),
            shared,
            1.0,
        )
    sized = [[(task.size, value) for task, value in pairs if task.size] for pairs in (a, b)]
    if all(len(part) >= 0.9 * len(pairs) for part, pairs in zip(sized, (a, b), strict=True)):
        size = median(size for size, _ in sized[0])
        return (
            (PER_OUTPUT_BYTE if sources else PER_BYTE),
            [tuple([value / of * size for of, value in part] for part in sized)],
            size,
        )
    return ALL, [tuple([value for _, value in pairs] for pairs in (a, b))], 1.0


def _difference(quantity, side_a, side_b):
    a, b = (
        [(task, task.figures[quantity]) for task in side.tasks if quantity in task.figures]
        for side in (side_a, side_b)
    )
    basis, strata, size = _strata(a, b)
    floor = LEAST[quantity][1]
    changes, changes_bytes, scales, ratios, likes = [], [], [], [], []
    for x, y in strata:
        low, high, weight = median(x), median(y), len(x) * len(y) / (len(x) + len(y))
        changes.append(((high - low) / max(low, floor), weight))
        changes_bytes.append((high - low, weight))
        likes.append((changes[-1][0], weight, low, high))
        # of both, or the test of the largest would not be fair
        scales.append(max(median(x + y), floor))
        ratios.append(tuple([value / scales[-1] for value in values] for values in (x, y)))
    most_a = max(max(x) for x, _ in ratios)
    most_b, scale = max((max(y), scale) for (_, y), scale in zip(ratios, scales, strict=True))
    tests = rank_test(strata), exceedance_test(ratios), are_too_few(strata, ALPHA)
    found = Difference(
        quantity,
        basis,
        sum(len(x) for x, _ in strata),
        sum(len(y) for _, y in strata),
        *(median(value for _, value in pairs) for pairs in (a, b)),
        *(max(value for _, value in pairs) for pairs in (a, b)),
        _weighted_median(changes),
        _weighted_median(changes_bytes),
        (most_b - most_a) / max(most_a, floor / scale),
        (most_b - most_a) * scale,
        *_typical(likes),
    )
    if found.sizes_differ:
        b_size = median(task.size for task, _ in b if task.size)
        found.note = (
            f"blocks: {bytes_text(size)} in A, {bytes_text(b_size)} in B;"
            f" B's tasks needed {bytes_text(found.b_median_bytes)} in the median"
        )
    elif basis == ALL and {task.inputs for task, _ in a} != {task.inputs for task, _ in b}:
        found.note = "inputs differ, and their sizes are not known"
    return found, tests


def _typical(likes):
    """A's and B's median in the group whose change is the weighted median: what is shown beside
    that change has its direction."""
    change = _weighted_median([(change, weight) for change, weight, *_ in likes])
    return min(likes, key=lambda like: abs(like[0] - change))[2:]


def _weighted_median(pairs):
    """The value at half of the weight; between two values if half falls between them."""
    pairs = sorted(pairs)
    half, seen = sum(weight for _, weight in pairs) / 2, 0.0
    for i, (value, weight) in enumerate(pairs):
        seen += weight
        if abs(seen - half) < 1e-9 * half and i + 1 < len(pairs):
            return (value + pairs[i + 1][0]) / 2
        if seen > half:
            return value
    return pairs[-1][0]


def _judge(differences, tests):
    """Verdicts of one family of questions: all names' typical and largest figures."""
    adjusted = holm([test for typical, largest, _ in tests for test in (typical, largest)], ALPHA)
    for i, (d, (_, _, too_few)) in enumerate(zip(differences, tests, strict=True)):
        d.p, d.largest_p = adjusted[2 * i : 2 * i + 2]
        share, floor = LEAST[d.quantity]
        differs = abs(d.change) >= share and abs(d.change_bytes) >= floor
        grew_largest = d.largest_change >= share and d.largest_change_bytes >= floor
        beyond = differs and d.p is not None and d.p <= ALPHA
        if beyond and d.change > 0:
            d.verdict = "grew"
        elif grew_largest and d.largest_p is not None and d.largest_p <= ALPHA:
            d.verdict = "largest grew"
        elif beyond:
            d.verdict = "shrank"
        elif not differs and not grew_largest:
            d.verdict = "no difference"
        elif too_few:
            d.verdict, few = (
                "cannot tell",
                (
                    "one each"
                    if d.a_tasks == d.b_tasks == 1
                    else f"{d.a_tasks:,} and {d.b_tasks:,} tasks are too few"
                ),
            )
            d.note = "; ".join(filter(None, [few, d.note]))
        else:
            d.verdict = "within noise"
