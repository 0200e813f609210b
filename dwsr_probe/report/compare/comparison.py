"""All rows of two runs, compared: the order in which views show them, the objections of
--fail-above, and JSON.

Rows of the two runs belong together if they have the same group (operation or task name, and
chain). Rows that are left over belong together by name alone: another release of Dask may fuse
other tasks. Their figures are shown and never judged.

Called by `report --compare`. compare/tasks.py reads the runs, compare/difference.py compares one
quantity of one row.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

from dwsr_probe.predict.group import Group, chain_text, is_asked, labels
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
    has_graph_names,
    merged,
    read_kinds,
    rows_of,
)
from dwsr_probe.report.groups import NoSuchTask
from dwsr_probe.words import line_of

if TYPE_CHECKING:
    from collections.abc import Iterator

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
_CHAIN_CHARS_MOST = 120


class Objection(NamedTuple):
    """What --fail-above objects to. label: of the row."""

    label: str
    why: str


@dataclass
class NameComparison:
    """One row of both runs. group: B's, if B has the row."""

    group: Group
    a: NameInRun
    b: NameInRun
    label: str = ""
    doubt: str = ""  # why the row is not judged; empty: it is
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
    def task_names(self) -> list[str]:
        """Dask's prefixes of the keys, the most frequent first."""
        counts = self.a.task_names + self.b.task_names
        return sorted(counts, key=lambda name: (-counts[name], name))

    def is_asked(self, name: str) -> bool:
        """Whether a user means this row by a name."""
        groups = {self.group, *self.a.groups, *self.b.groups}
        return any(is_asked(name, group, self.label, self.task_names) for group in groups)

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
            self.label,
        )


class Comparison:
    """The comparison of two stores. names: the gravest verdict first. runs: facts about A and B.
    task: only rows that a user means by this name; NoSuchTask if there are none."""

    def __init__(self, a: Store, b: Store, task: str | None = None) -> None:
        self.runs = [_run_facts(a), _run_facts(b)]
        self.names = _joined_rows(a, b)
        found_labels = labels(name.group for name in self.names)
        for name in self.names:
            name.label = found_labels[name.group]
        if task is not None:
            asked = [name for name in self.names if name.is_asked(task)]
            if not asked:
                raise NoSuchTask(task, found_labels.values())
            self.names = asked
        tested: list[TestedDifference] = []
        for name in self.names:
            found = _compare_name(name)
            name.differences = [one.difference for one in found]
            tested += found
        for family in _FAMILIES:
            set_verdicts([one for one in tested if one.difference.quantity in family])
        self.names.sort(key=NameComparison.sort_key)

    def objections(self, limit: float) -> list[Objection]:
        """Significant growth beyond the limit, and killed tasks of a row that had none in the
        reference."""
        return [Objection(name.label, why) for name, why in self._objections(limit)]

    def _objections(self, limit: float) -> Iterator[tuple[NameComparison, str]]:
        for name in self.names:
            for d in name.differences:
                grew = d.growth_above(limit)
                if grew is not None:
                    largest = "of the largest " if d.verdict == "largest grew" else ""
                    basis = "" if d.basis == ALL else f" ({d.basis})"
                    yield name, f"{d.quantity} {largest}grew by {100 * grew:.1f} %{basis}"
            if name.has_killed_only_in_b:
                yield name, f"{name.b.killed:,} killed, none in the reference"

    def to_json(self, limit: float | None = None) -> str:
        gate: dict[str, Any] = {}
        if limit is not None:
            failures = [{**_json_names(name), "why": why} for name, why in self._objections(limit)]
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


def _joined_rows(a: Store, b: Store) -> list[NameComparison]:
    kinds_a, kinds_b = read_kinds(a), read_kinds(b)
    by_task_name = not (has_graph_names(kinds_a) and has_graph_names(kinds_b))
    rows_a, rows_b = rows_of(kinds_a, by_task_name), rows_of(kinds_b, by_task_name)
    found = [
        NameComparison(group, rows_a.pop(group), rows_b.pop(group))
        for group in rows_a.keys() & rows_b.keys()
    ]
    for name in {group.name for group in rows_a} & {group.name for group in rows_b}:
        here_a, here_b = (
            sorted(group for group in rows if group.name == name) for rows in (rows_a, rows_b)
        )
        found.append(
            NameComparison(
                here_b[0],
                merged(rows_a.pop(group) for group in here_a),
                merged(rows_b.pop(group) for group in here_b),
                doubt=f"other chains: {_chains_text(here_a)} in A, {_chains_text(here_b)} in B",
            )
        )
    found += [NameComparison(group, row, NameInRun()) for group, row in rows_a.items()]
    found += [NameComparison(group, NameInRun(), row) for group, row in rows_b.items()]
    return found


def _chains_text(groups: list[Group]) -> str:
    if len(groups) > 1:
        return f"{len(groups)} chains"
    return line_of(chain_text(groups[0].chain) or f"{groups[0].name} alone", _CHAIN_CHARS_MOST)


def _json_names(name: NameComparison) -> dict[str, Any]:
    """What a row is called, as its tasks' records say it."""
    return {
        "task_name": name.task_names[0],
        "task_names": name.task_names,
        "operation": name.b.operation or name.a.operation,
        "chain": list(name.group.chain) or None,
        "label": name.label,
    }


def _json_row(name: NameComparison) -> dict[str, Any]:
    def counts(side: NameInRun) -> dict[str, int]:
        return {field: getattr(side, field) for field in ("count", "errors", "killed", "cancelled")}

    return {
        **_json_names(name),
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
    """Compare the quantities of one row; return the differences, which have no verdict yet. Sets
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
        found.append(find_difference(host, a, b, name.doubt))
    else:
        name.note = (
            "its memory is not known in both runs: allocations were not accounted, or not all of"
            " them (attribution_reason), and its tasks ran beside others"
        )
    if GPU_PEAK in known:
        device = find_difference(GPU_PEAK, a, b, name.doubt)
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
