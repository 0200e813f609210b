"""All task names of two runs, compared: the order in which views show them, the objections of
--fail-above, and JSON.

Called by `report --compare`. compare/tasks.py reads the runs, compare/difference.py compares one
quantity of one name.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

from dwsr_probe.report.compare.difference import (
    ALL,
    ALPHA,
    Difference,
    TaskValue,
    TestedDifference,
    find_difference,
    make_strata,
    set_verdicts,
    typical_change,
)
from dwsr_probe.report.compare.tasks import (
    GPU_PEAK,
    OWN_PEAK,
    RSS_GROWTH,
    NameInRun,
    read_names,
)

if TYPE_CHECKING:
    from dwsr_probe.store import Store

# Host and device memory are two families of questions, each with its own correction.
_FAMILIES = ((OWN_PEAK, RSS_GROWTH), (GPU_PEAK,))
_BY_GRAVITY = (
    "grew",
    "largest grew",
    "shrank",
    "cannot tell",
    "within noise",
    "no difference",
    "new",
    "vanished",
)
_SECONDS_FLOOR = 1e-9


class Objection(NamedTuple):
    """What --fail-above objects to."""

    task_name: str
    why: str


@dataclass
class NameComparison:
    task_name: str
    a: NameInRun
    b: NameInRun
    differences: list[Difference] = field(default_factory=list)
    # Durations are shown and never judged: all tasks of one run share the machine's load.
    duration_a: float | None = None
    duration_b: float | None = None
    duration_change: float | None = None  # of tasks with like inputs
    note: str = ""

    @property
    def verdict(self) -> str:
        """The gravest verdict on one of its quantities; "new" or "vanished" if only one run has the
        name."""
        if not self.a.count or not self.b.count:
            return "vanished" if self.a.count else "new"
        verdicts = (d.verdict for d in self.differences)
        return min(verdicts, key=_BY_GRAVITY.index, default="cannot tell")

    @property
    def has_killed_only_in_b(self) -> bool:
        return bool(self.b.killed and not self.a.killed)

    def sort_key(self) -> tuple[bool, int, float, str]:
        """Names with tasks killed only in B come first, then the gravest verdicts. Names with the
        same verdict are sorted by their change, or by B's median if there is none."""
        if self.verdict in ("grew", "largest grew", "shrank", "cannot tell"):
            weights = [max(d.change, d.largest_change, -d.change) for d in self.differences]
        else:
            weights = [d.b_median_bytes for d in self.differences]
        return (
            not self.has_killed_only_in_b,
            _BY_GRAVITY.index(self.verdict),
            -max(weights, default=0.0),
            self.task_name,
        )


class Comparison:
    """The comparison of two stores. names: the gravest verdict first. runs: facts about A and B."""

    def __init__(self, a: Store, b: Store) -> None:
        self.runs = [_run_facts(a), _run_facts(b)]
        names_a, names_b = read_names(a), read_names(b)
        self.names: list[NameComparison] = []
        tested: list[TestedDifference] = []
        for task_name in names_a.keys() | names_b.keys():
            name = NameComparison(
                task_name,
                names_a.get(task_name) or NameInRun(),
                names_b.get(task_name) or NameInRun(),
            )
            found = _compare_name(name)
            name.differences = [one.difference for one in found]
            tested += found
            self.names.append(name)
        for family in _FAMILIES:
            set_verdicts([one for one in tested if one.difference.quantity in family])
        self.names.sort(key=NameComparison.sort_key)

    def objections(self, limit: float) -> list[Objection]:
        """Significant growth beyond the limit, and killed tasks of a name that had none in the
        reference."""
        found = []
        for name in self.names:
            for d in name.differences:
                grew = d.growth_above(limit)
                if grew is not None:
                    largest = "of the largest " if d.verdict == "largest grew" else ""
                    basis = "" if d.basis == ALL else f" ({d.basis})"
                    why = f"{d.quantity} {largest}grew by {100 * grew:.1f} %{basis}"
                    found.append(Objection(name.task_name, why))
            if name.has_killed_only_in_b:
                why = f"{name.b.killed:,} killed, none in the reference"
                found.append(Objection(name.task_name, why))
        return found

    def to_json(self, limit: float | None = None) -> str:
        gate: dict[str, Any] = {}
        if limit is not None:
            failures = [one._asdict() for one in self.objections(limit)]
            gate = {"fail_above": limit, "failures": failures}
        return json.dumps(
            {
                "a": self.runs[0],
                "b": self.runs[1],
                "alpha": ALPHA,
                **gate,
                "names": [_json_row(name) for name in self.names],
            }
        )


def _json_row(name: NameComparison) -> dict[str, Any]:
    def counts(side: NameInRun) -> dict[str, int]:
        return {field: getattr(side, field) for field in ("count", "errors", "killed", "cancelled")}

    return {
        "task_name": name.task_name,
        "verdict": name.verdict,
        "a": counts(name.a),
        "b": counts(name.b),
        "differences": [asdict(d) for d in name.differences],
        "duration_a": name.duration_a,
        "duration_b": name.duration_b,
        "duration_change": name.duration_change,
        "note": name.note,
    }


def _run_facts(store: Store) -> dict[str, Any]:
    meta, processes = store.meta(), store.processes()
    peaks = [record.rss_peak_bytes for record, _ in processes]
    return {
        "run": meta.get("run"),
        "directory": store.directory,
        "exit_code": meta.get("exit_code"),
        "processes": len(processes),
        "max_rss_bytes": max((peak for peak in peaks if peak is not None), default=None),
    }


def _compare_name(name: NameComparison) -> list[TestedDifference]:
    """Compare the quantities of one name; return the differences, which have no verdict yet. Sets
    the durations and the note of `name`."""
    a, b = name.a, name.b
    if not a.count or not b.count:
        return []
    if not a.tasks or not b.tasks:
        name.note = f"none of its tasks ended well in {'A' if not a.tasks else 'B'}"
        return []
    _set_durations(name)
    in_a, in_b = ({key for task in side.tasks for key in task.peaks} for side in (a, b))
    known = in_a & in_b
    found = []
    host = next((quantity for quantity in (OWN_PEAK, RSS_GROWTH) if quantity in known), None)
    if host is not None:
        found.append(find_difference(host, a, b))
    else:
        name.note = (
            "its memory is not known in both runs: allocations were not accounted, or not all of"
            " them (attribution_reason), and its tasks ran beside others"
        )
    if GPU_PEAK in known:
        device = find_difference(GPU_PEAK, a, b)
        if device.difference.a_max_bytes or device.difference.b_max_bytes:
            found.append(device)
    return found


def _set_durations(name: NameComparison) -> None:
    a, b = (
        [TaskValue(task, task.duration) for task in side.tasks if task.duration is not None]
        for side in (name.a, name.b)
    )
    if a and b:
        name.duration_a = median(one.value for one in a)
        name.duration_b = median(one.value for one in b)
        name.duration_change = typical_change(make_strata(a, b).groups, _SECONDS_FLOOR)
