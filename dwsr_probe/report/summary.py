"""A run in numbers: one NameSummary per row (report/groups.py). Every view shows these.

A killed task's figures are lower bounds of what the task needed, so figures that include such a
task are AtLeast. Where single records are missing, the totals of their process stand in for all
of its records: counts, sums and maxima are exact, medians come from histograms and are About.
"""

from __future__ import annotations

from collections import Counter
from math import inf

from dwsr_probe.board import process_limit
from dwsr_probe.dataclass import dataclass, field
from dwsr_probe.record import misses_memory
from dwsr_probe.report.distribution import Distribution, median
from dwsr_probe.report.groups import Grouping
from dwsr_probe.words import AtLeast, input_count

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from typing import Any, Literal, TypeVar

    from dwsr_probe.predict.group import Group
    from dwsr_probe.record import TaskRecord
    from dwsr_probe.report.groups import ProcessRow, Totals
    from dwsr_probe.total import Total

    Memory = Literal["host", "device"]
    T = TypeVar("T")

_BYSTANDER_SHARE = 0.1


class Limits:
    """The limits that a task's memory is compared with.

    Host: the lower one of its Dask worker's limit and its process's. Device: the pool's limit, or
    the device's total memory where the pool has none."""

    def __init__(self, processes: Iterable[ProcessRow] = ()) -> None:
        self._host: dict[tuple[str | None, str | None], int | None] = {}
        self._devices: dict[tuple[str | None, int], int | None] = {}
        for record, health in processes:
            self._host[record.process, None] = process_limit(health)
            for worker in health.get("workers") or ():
                self._host[record.process, worker.get("address")] = process_limit(
                    {**health, "workers": [worker]}
                )
            for device in health.get("devices") or ():
                self._devices[record.process, device["device"]] = device.get(
                    "pool_limit_bytes"
                ) or device.get("total_bytes")

    def host(self, record: TaskRecord) -> int | None:
        return self._host.get((record.process, record.worker)) or self._host.get(
            (record.process, None)
        )

    def device(self, record: TaskRecord, number: int) -> int | None:
        return self._devices.get((record.process, number))


@dataclass
class NameSummary:
    """All tasks of one row. label: what views call it. learned_as: the group that the model knows
    its tasks by."""

    group: Group
    label: str = ""
    task_names: tuple[str, ...] = ()  # Dask's prefixes of the keys
    learned_as: Group | None = None
    count: int = 0
    errors: int = 0
    cancelled: int = 0
    killed_in: Counter[str | None] = field(default_factory=Counter)  # process → killed tasks
    largest_killed: TaskRecord | None = None  # the killed task with the largest peak so far
    growths: Distribution = field(default_factory=Distribution)  # rss peak minus rss before
    durations: Distribution = field(default_factory=Distribution)  # seconds
    began: float = inf  # the earliest of its tasks, epoch seconds
    ended: float = -inf  # the latest
    alloc_peaks: Distribution = field(default_factory=Distribution)
    gpu_peaks: Distribution = field(default_factory=Distribution)  # each on its largest device
    rss_peaks: Distribution = field(default_factory=Distribution)
    baselines: list[float] = field(default_factory=list)  # rss at begin without the inputs, bytes
    _host_ratio: float | None = None
    _device_ratio: float | None = None
    ooms: int = 0  # tasks in which an allocation failed for lack of memory
    largest_oom: dict[str, Any] | None = None  # the failed allocation with the largest request
    shared: int = 0  # tasks whose own peak is not exact
    reasons: Counter[str] = field(default_factory=Counter)  # attribution_reason → tasks
    _unseen_need: float | None = None  # of tasks whose own peak may miss memory, the most
    overlap_max: int = 0  # largest number of other tasks at the same time
    sampled: int = 0  # tasks whose peak was sampled, not read from the kernel's high-water mark

    def add(self, record: TaskRecord, limits: Limits) -> None:
        state, growth, alloc = record.state, record.rss_growth_bytes, record.alloc_peak_bytes
        rss_peak = record.rss_peak_bytes
        killed = state == "killed"
        self.count += 1
        if state != "ok":
            self._count_failure(record, state)
        self.add_details(record)
        if growth is not None and rss_peak is not None:
            self.growths.add(growth, killed)
            self.rss_peaks.add(rss_peak, killed)
        if alloc is not None:
            self.alloc_peaks.add(alloc, killed)
        self.sampled += record.rss_peak_source == "sampled"
        self.shared += record.attribution == "shared"
        own = growth if alloc is None else alloc
        if record.attribution_reason:
            own = record.own_peak_bytes
        self._raise_host_ratio(own, limits.host(record))
        if record.gpu is not None:
            for device in record.gpu:
                self._raise_device_ratio(
                    device["peak_bytes"], limits.device(record, device["device"])
                )
            if not record.gpu:  # devices were followed, and the task used none
                self._raise_device_ratio(0, 1)
        self.ooms += record.oom is not None
        duration, start = record.duration, record.start
        if duration is not None:
            self.durations.append(duration)
            if start is not None:
                if start < self.began:
                    self.began = start
                if start + duration > self.ended:
                    self.ended = start + duration
        if record.overlap and record.overlap > self.overlap_max:
            self.overlap_max = record.overlap

    def _count_failure(self, record: TaskRecord, state: str) -> None:
        self.errors += state == "error"
        self.cancelled += state == "cancelled"
        if state == "killed":
            self.killed_in[record.process] += 1
            self.largest_killed = max(
                filter(None, (self.largest_killed, record)),
                key=lambda one: max(one.own_peak_bytes or 0, one.gpu_peak_bytes or 0),
            )

    def _raise_host_ratio(self, own: float | None, limit: int | None) -> None:
        if own is None or not limit:
            return
        if self._host_ratio is None or own / limit > self._host_ratio:
            self._host_ratio = own / limit

    def _raise_device_ratio(self, peak: float, limit: int | None) -> None:
        if limit:
            self._device_ratio = max(peak / limit, self._device_ratio or 0.0)

    @property
    def host_ratio(self) -> float | None:
        """Largest own peak (without accounting: growth) as a share of the host's limit."""
        return self._at_least(self._host_ratio)

    @property
    def device_ratio(self) -> float | None:
        """Largest peak on a device as a share of the device's limit."""
        return self._at_least(self._device_ratio)

    def _at_least(self, ratio: float | None) -> float | None:
        return AtLeast(ratio) if ratio is not None and self.killed_in else ratio

    def add_details(self, record: TaskRecord) -> None:
        """Add the figures that single records have and totals do not."""
        if record.attribution_reason:
            self.reasons[record.attribution_reason] += 1
            if misses_memory(record.attribution_reason):
                self._unseen_need = max(self._unseen_need or 0, record.own_peak_bytes or 0)
        if record.rss_before_bytes is not None:
            baseline = record.rss_before_bytes - _held_input_bytes(record)
            self.baselines.append(baseline if baseline > 0 else 0)
        gpu_peak = record.gpu_peak_bytes
        if gpu_peak is not None:
            self.gpu_peaks.add(gpu_peak, record.state == "killed")
        if record.oom:
            self.largest_oom = max(
                filter(None, (self.largest_oom, record.oom)),
                key=lambda oom: oom.get("requested_bytes") or 0,
            )

    def add_total(self, total: Total, process: TaskRecord, limits: Limits) -> None:
        """Add all tasks of this row that have ended in a process, by the process's totals."""
        self.count += total.count
        self.errors += total.error
        self.cancelled += total.cancelled
        self.shared += total.shared
        self.sampled += total.sampled
        self.ooms += total.oom
        self.overlap_max = max(self.overlap_max, total.overlap_max)
        self.growths.add_histogram(total.growth_cells, total.growth_max_bytes)
        self.alloc_peaks.add_histogram(total.alloc_cells, total.alloc_max_bytes)
        self.durations.add_histogram(total.duration_cells, total.duration_max_ns, 1e-9)
        if total.growth_count:
            self.rss_peaks.add(total.rss_peak_max_bytes)
        self._raise_host_ratio(total.own_max_bytes, limits.host(process))
        for number, (_, largest) in total.devices.items():
            self._raise_device_ratio(largest, limits.device(process, number))
            self.gpu_peaks.add_maximum(largest)

    @property
    def model_name(self) -> str:
        """What the model calls its tasks."""
        return (self.learned_as or self.group).text

    @property
    def killed(self) -> int:
        return self.killed_in.total()

    @property
    def growth_median_bytes(self) -> float | None:
        return self.growths.median

    @property
    def growth_max_bytes(self) -> float | None:
        return self.growths.max

    @property
    def alloc_peak_median_bytes(self) -> float | None:
        return self.alloc_peaks.median

    @property
    def alloc_peak_max_bytes(self) -> float | None:
        return self.alloc_peaks.max

    @property
    def rss_peak_bytes(self) -> float | None:
        return self.rss_peaks.max

    @property
    def baseline_bytes(self) -> float | None:
        """Median resident size at begin without the task's inputs: what the process holds
        whether the task runs or not."""
        return median(self.baselines) if self.baselines else None

    @property
    def need_bytes(self) -> float | None:
        """The most that one task needed on the host: own peak, without accounting growth. Where
        own peaks may miss memory, also growth of tasks that ran alone; it is a lower bound."""
        most = self.alloc_peaks.max if self.alloc_peaks else self.growths.max
        return most if self._unseen_need is None else AtLeast(max(self._unseen_need, most or 0))

    @property
    def misses_memory(self) -> bool:
        """Whether tasks may have taken memory that their own peaks do not include."""
        return self._unseen_need is not None

    @property
    def gpu_peak_median_bytes(self) -> float | None:
        return self.gpu_peaks.median

    @property
    def gpu_peak_max_bytes(self) -> float | None:
        return self.gpu_peaks.max

    @property
    def limiting_memory(self) -> Memory | None:
        """The memory that a larger block would exhaust first; None if neither limit is known."""
        if self.host_ratio is None and self.device_ratio is None:
            return None
        return "device" if (self.device_ratio or 0) > (self.host_ratio or 0) else "host"

    @property
    def duration_median(self) -> float | None:
        return self.durations.median

    @property
    def duration_max(self) -> float | None:
        return self.durations.max


def summarise(
    records: Iterable[TaskRecord],
    processes: Sequence[ProcessRow] = (),
    totals: Totals | None = None,
    grouping: Grouping | None = None,
) -> list[NameSummary]:
    """One NameSummary per row, in the order of every view (rank_by_need).

    processes: their limits are used. totals: used for processes that have lost single records.
    grouping: of the same run; None: a new one.
    """
    names: dict[Group, NameSummary] = {}
    grouping = grouping or Grouping(processes, totals)
    limits, counted, group_of = Limits(processes), grouping.counted, grouping.of
    for record in records:
        summary = names.get(group := group_of(record)) or _add(names, group)
        if counted and record.process in counted and record.state != "killed":
            summary.add_details(record)
        else:
            summary.add(record, limits)
    for process, _ in processes:
        for total in counted.get(process.process, ()):
            group = grouping.of_total(total)
            (names.get(group) or _add(names, group)).add_total(total, process, limits)
    found_labels = grouping.labels()
    for group, summary in names.items():
        summary.label = found_labels.get(group, group.name)
        summary.task_names = tuple(sorted(grouping.task_names(group)))
        summary.learned_as = grouping.learned_as(group)
    by_name = sorted(names.values(), key=lambda s: s.group)
    on_device = limiting_memory(by_name) == "device"

    def need(summary: NameSummary) -> float | None:
        return summary.gpu_peak_max_bytes if on_device else summary.need_bytes

    def killed_need(summary: NameSummary) -> float | None:
        record = summary.largest_killed
        if record is None:
            return None
        return record.gpu_peak_bytes if on_device else record.own_peak_bytes

    return rank_by_need(by_name, need, killed_need)


def _held_input_bytes(record: TaskRecord) -> int:
    """Bytes of the inputs that are in memory when the task begins: not of those that it reads."""
    held = record.known_input_bytes or 0
    for given in record.inputs:
        if isinstance(given, dict) and ("lazy" in given or "late" in given):
            held -= (given.get("nbytes") or 0) * input_count(given)
    return max(0, held)


def _add(names: dict[Group, NameSummary], group: Group) -> NameSummary:
    summary = names[group] = NameSummary(group)
    return summary


def rank_by_need(
    items: Iterable[T],
    need: Callable[[T], float | None],
    killed_need: Callable[[T], float | None],
) -> list[T]:
    """Names or tasks, the largest need first.

    Killed ones come before all others, because the true need of a killed task is unknown and may
    be the largest. A killed one is ranked as the others if its need was less than a tenth of the
    largest killed one's: it only ran beside the task that exhausted the memory.

    killed_need: what a killed item had needed so far; None for items that were not killed.
    """
    items = list(items)
    killed = [killed_need(item) or 0 for item in items]
    first_from = _BYSTANDER_SHARE * max(killed, default=0)

    def place(index: int) -> tuple[bool, float]:
        ranked_first = killed[index] > 0 and killed[index] >= first_from
        return not ranked_first, -(need(items[index]) or 0)

    return [items[index] for index in sorted(range(len(items)), key=place)]


def limiting_memory(names: Sequence[NameSummary]) -> Memory:
    """The memory that the run as a whole would exhaust first."""
    device = max((s.device_ratio or 0 for s in names), default=0)
    host = max((s.host_ratio or 0 for s in names), default=0)
    return "device" if device > host else "host"


@dataclass
class MissingRecords:
    """Numbers of tasks that have no record of their own."""

    counted: int = 0  # included in the totals of their process
    lost: int = 0  # in no totals: a board before version 6
    dropped: int = 0  # never measured

    @property
    def not_in_table(self) -> int:
        return self.lost + self.dropped


def missing_records(
    processes: Iterable[ProcessRow], totals: Totals | None = None
) -> MissingRecords:
    missing = MissingRecords()
    for record, health in processes:
        lost = health.get("records_lost") or 0
        if record.process in (totals or {}):
            missing.counted += lost
        else:
            missing.lost += lost
        missing.dropped += health.get("tasks_dropped") or 0
    return missing
