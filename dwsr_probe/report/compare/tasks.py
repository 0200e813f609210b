"""What a comparison reads of one run: the tasks of each row, with their peaks, inputs and outputs.

Called by compare/comparison.py. Only tasks that ended well are kept: of all others only a part of
the peak is known.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from dwsr_probe.predict.group import Group, group_of
from dwsr_probe.record import FIELDS, misses_memory
from dwsr_probe.words import input_count

if TYPE_CHECKING:
    from dwsr_probe.store import Store

OWN_PEAK, RSS_GROWTH, GPU_PEAK = QUANTITIES = ("own peak", "rss growth", "gpu peak")
# Tasks that create data are compared by their output: the output is more than so many times the
# input, and explains the peak.
_SOURCE_RATIO = 64
# An output explains the peak if it is at least this share of it. A task that reads data of unknown
# size and returns a sum also has an output larger than its inputs, but its peak is far larger.
_EXPLAINING_SHARE = 1 / 8

Part = tuple[str, str, bool, bool, int | None, int]  # see Described


@dataclass(slots=True)
class Described:
    """What a task reads, or what it returns.

    parts: bytes of each, None if they are not known. A part is type, shape or else bytes, whether
    it is read from a file, whether it is known only at the end, its logical bytes if they differ
    from its own, and how many of it there are. is_complete: each part has a shape or bytes.
    """

    parts: dict[Part, int | None]
    key: str  # of all parts, in any order; "": there are none
    is_complete: bool = True

    def nbytes(self, without: Collection[Part] = ()) -> int | None:
        """Logical bytes of the parts whose size is known, except some; None if no size is
        known."""
        known = [
            size for part, size in self.parts.items() if size is not None and part not in without
        ]
        return sum(known) if known else None

    def is_sized(self) -> bool:
        return all(size is not None for size in self.parts.values())


@dataclass(slots=True)
class ComparedTask:
    inputs: Described
    inputs_key: str | None  # "": there are none; None: the size of one is not known
    input_bytes: int | None
    omitted: int  # inputs that the record leaves out
    output: Described
    output_bytes: int | None
    is_source: bool  # creates data
    is_part: bool  # returns a part of its inputs, and needs fewer bytes than they have
    in_graph: bool  # a task of a Dask graph
    peaks: dict[str, int]  # of QUANTITIES those that are known
    duration: float | None

    def key(self, by_output: bool) -> str | None:
        """The same for tasks that may be compared with each other. None: it is not known what the
        task reads."""
        if not by_output:
            return self.inputs_key
        return (self.output.key or f"+{self.output_bytes}") if self.output.is_complete else None

    def size_bytes(self, by_output: bool, without: Collection[Part] = ()) -> int | None:
        """Of what the task reads, or returns. without: inputs that do not count."""
        if by_output:
            return self.output_bytes
        if self.inputs.is_sized() and not self.omitted:
            size = self.inputs.nbytes(without)
            return self.input_bytes if size is None and not without else size
        constant = (self.inputs.parts.get(part) or 0 for part in without)
        return None if self.input_bytes is None else max(0, self.input_bytes - sum(constant))


@dataclass
class NameInRun:
    """One row in one run."""

    count: int = 0
    errors: int = 0
    killed: int = 0
    cancelled: int = 0
    tasks: list[ComparedTask] = field(default_factory=list)  # those that ended well
    task_names: Counter[str] = field(default_factory=Counter)  # Dask's prefixes of the keys
    groups: set[Group] = field(default_factory=set)  # more than one: chains differ
    operation: str | None = None

    def failed(self) -> dict[str, int]:
        counts = {"error": self.errors, "killed": self.killed, "cancelled": self.cancelled}
        return {state: n for state, n in counts.items() if n}

    def add(self, other: NameInRun) -> None:
        for name in ("count", "errors", "killed", "cancelled"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.tasks += other.tasks
        self.task_names += other.task_names
        self.groups |= other.groups
        self.operation = self.operation or other.operation


class Kind(NamedTuple):
    """What tasks are grouped by."""

    task_name: str
    operation: str | None
    chain: tuple[str, ...]


class _StoredTask(NamedTuple):
    """The fields of a stored task that are used here; nested ones are JSON text."""

    task_name: str
    state: str
    key: str | None
    inputs: str | None
    inputs_omitted: int | None
    input_bytes: int | None
    output: str | None
    output_bytes: int | None
    alloc_peak_bytes: int | None
    rss_before_bytes: int | None
    rss_peak_bytes: int | None
    overlap: int | None
    gpu: str | None
    duration: float | None
    attribution_reason: str | None
    operation: str | None
    chain: str | None


_used_values = itemgetter(*map(FIELDS.index, _StoredTask._fields))


def read_kinds(store: Store) -> dict[Kind, NameInRun]:
    """Kind → its tasks in this run."""
    kinds: dict[Kind, NameInRun] = {}
    described: dict[str | None, Described] = {}  # by JSON text: most tasks share their inputs' text
    chains: dict[str | None, tuple[str, ...]] = {}
    for values in store.rows():
        row = _StoredTask._make(_used_values(values))
        if row.chain not in chains:
            chains[row.chain] = _chain_of(row.chain)
        kind = Kind(row.task_name, row.operation, chains[row.chain])
        found = kinds.get(kind)
        if found is None:
            found = kinds[kind] = NameInRun(groups={group_of(*kind)}, operation=row.operation)
        found.count += 1
        found.task_names[row.task_name] += 1
        found.errors += row.state == "error"
        found.killed += row.state == "killed"
        found.cancelled += row.state == "cancelled"
        if row.state == "ok":
            found.tasks.append(_compared_task(row, described))
    return kinds


def has_graph_names(kinds: Iterable[Kind]) -> bool:
    """Whether any task has an operation or a chain: runs of earlier versions have none."""
    return any(kind.operation or kind.chain for kind in kinds)


def rows_of(kinds: dict[Kind, NameInRun], by_task_name: bool) -> dict[Group, NameInRun]:
    """The rows of a run. by_task_name: the other run has neither operations nor chains."""
    rows: dict[Group, NameInRun] = {}
    for kind, found in kinds.items():
        group = Group(kind.task_name) if by_task_name else group_of(*kind)
        rows.setdefault(group, NameInRun()).add(found)
    return rows


def merged(rows: Iterable[NameInRun]) -> NameInRun:
    whole = NameInRun()
    for row in rows:
        whole.add(row)
    return whole


def _compared_task(row: _StoredTask, cache: dict[str | None, Described]) -> ComparedTask:
    inputs = _described(row.inputs, cache)
    output = _described(f"[{row.output}]" if row.output else None, cache)
    omitted, peaks = row.inputs_omitted or 0, _peaks(row)
    size = inputs.nbytes() if inputs.is_sized() and not omitted else None
    if size is None:
        size = row.input_bytes if row.input_bytes is not None else inputs.nbytes()
    output_bytes = output.nbytes() if output.parts else None
    if output_bytes is None:
        output_bytes = row.output_bytes
    key: str | None = inputs.key
    if not inputs.is_complete:
        key = None
    elif size and (omitted or not key):
        key = f"{key}+{size}"  # shapes are incomplete, so the size must be the same as well
    need = max(peaks.get(OWN_PEAK, peaks.get(RSS_GROWTH, 0)), peaks.get(GPU_PEAK, 0))
    returned, read = output_bytes or 0, size or 0
    is_explained = returned > 0 and returned >= _EXPLAINING_SHARE * need
    return ComparedTask(
        inputs,
        key,
        size,
        omitted,
        output,
        output_bytes,
        is_explained and returned > _SOURCE_RATIO * read,
        is_explained and need < read,
        row.key is not None,
        peaks,
        row.duration,
    )


def _peaks(row: _StoredTask) -> dict[str, int]:
    peaks = {}
    # An own peak that may miss memory is not compared: growth is, if the task ran alone.
    if row.alloc_peak_bytes is not None and not misses_memory(row.attribution_reason):
        peaks[OWN_PEAK] = row.alloc_peak_bytes
    # Where tasks overlap, growth may be another task's.
    if row.rss_peak_bytes is not None and row.rss_before_bytes is not None and not row.overlap:
        peaks[RSS_GROWTH] = max(0, row.rss_peak_bytes - row.rss_before_bytes)
    if (device := _device_peak(row.gpu)) is not None:
        peaks[GPU_PEAK] = device
    return peaks


def _described(text: str | None, cache: dict[str | None, Described]) -> Described:
    found = cache.get(text)
    if found is None:
        found = cache[text] = _parsed(text)
    return found


def _parsed(text: str | None) -> Described:
    """A damaged text is its own key."""
    counts: Counter[tuple[str, str, bool, bool, int | None]] = Counter()
    sizes: dict[tuple[str, str, bool, bool, int | None], int | None] = {}
    is_complete = True
    try:
        for one in json.loads(text or "[]"):
            shape, nbytes, logical = (one.get(n) for n in ("shape", "nbytes", "logical_bytes"))
            part = (
                str(one.get("dtype") or one.get("type")),
                str(nbytes if shape is None else shape),
                bool(one.get("lazy")),
                bool(one.get("late")),
                None if logical is None or logical == nbytes else int(logical),
            )
            size = nbytes if logical is None else logical
            sizes[part] = None if size is None else int(size)
            counts[part] += input_count(one)
            is_complete &= shape is not None or size is not None
    except (ValueError, TypeError, AttributeError):
        return Described({}, text or "")
    parts: dict[Part, int | None] = {}
    for part, count in counts.items():
        size = sizes[part]
        counted: Part = (*part, count)
        parts[counted] = None if size is None else size * count
    key = json.dumps(sorted(parts, key=repr)) if parts else ""
    return Described(parts, key, is_complete)


def _chain_of(text: str | None) -> tuple[str, ...]:
    """A damaged text counts as none."""
    try:
        found: Any = json.loads(text or "[]")
    except ValueError:
        return ()
    return tuple(map(str, found)) if isinstance(found, list) else ()


def _device_peak(text: str | None) -> int | None:
    """Peak on the device where it is largest; None if devices were not followed."""
    if not text:
        return None
    try:
        return max((int(device["peak_bytes"]) for device in json.loads(text)), default=0)
    except (ValueError, TypeError, KeyError):
        return None
