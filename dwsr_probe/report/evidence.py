"""What a verdict is drawn from: the run's summaries, and how near each process came to its limits.

Evidence is made by report/verdict.py; report/troubles.py and report/recommendations.py write
sentences from it.
"""

from __future__ import annotations

from dwsr_probe.board import process_limit
from dwsr_probe.dataclass import dataclass
from dwsr_probe.report.processes import NANNY_SHARE, was_killed
from dwsr_probe.report.summary import limiting_memory, missing_records
from dwsr_probe.words import (
    Name,
    bytes_text,
    line_of,
    name_of,
    percent_text,
    process_title,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from typing import Any

    from dwsr_probe.record import TaskRecord
    from dwsr_probe.report.summary import MissingRecords, NameSummary, ProcessRow

TIGHT_SHARE = 0.80  # of the limit: Dask pauses a worker there
# Many tasks that are short on average, and more than so much of the time between them: overhead
_SHORT_TASKS_LEAST, _SHORT_TASK_S, _OVERHEAD_SHARE = 1_000, 0.01, 0.5


@dataclass
class MemoryUse:
    """What one process used of the host's memory, or of one device's memory."""

    record: TaskRecord  # of the process
    peak_bytes: int | None
    limit_bytes: int | None
    worker: str | None = None  # its Dask worker's name, or address
    device: str | None = None  # "device 0 (A100)"; None: the host's memory
    signal: int | None = None  # that ended the process, where that is known
    was_killed: bool = False

    @property
    def share(self) -> float | None:
        """Peak as a share of the limit."""
        return self.peak_bytes / self.limit_bytes if self.limit_bytes and self.peak_bytes else None

    @property
    def limit_name(self) -> str:
        return "the device" if self.device else "the limit"

    def name(self) -> Name:
        return name_of(f"worker {self.worker}" if self.worker else process_title(self.record))

    def peak_text(self) -> str:
        """ "3.9 GiB of 4.0 GiB, 97 %"."""
        return (
            f"{bytes_text(self.peak_bytes)} of {bytes_text(self.limit_bytes)},"
            f" {percent_text(self.share)}"
        )


@dataclass
class Overhead:
    """busy_s: duration of all tasks. available_s: of all threads, from the first task to the
    last."""

    tasks: int
    busy_s: float
    available_s: float
    threads: int

    @property
    def share(self) -> float:
        return 1 - self.busy_s / self.available_s


class Evidence:
    def __init__(
        self,
        names: Sequence[NameSummary],
        processes: Sequence[ProcessRow],
        exit_code: int | None = None,
        missing: MissingRecords | None = None,
    ) -> None:
        """names: of summarise. exit_code: the job's; None: not known."""
        self.names, self.processes, self.exit_code = names, processes, exit_code
        self.missing = missing or missing_records(processes)
        self.host_uses = [_host_use(*row) for row in processes]
        # Whether device memory would be exhausted before the host's
        self.on_device = limiting_memory(names) == "device"
        # Uses of the memory that would be exhausted first
        self.limiting_uses = (
            [use for row in processes for use in _device_uses(*row)]
            if self.on_device
            else self.host_uses
        )
        # The use that came nearest to its limit; None: no limit is known
        self.nearest = max(
            (use for use in self.limiting_uses if use.share is not None),
            key=lambda use: use.share or 0,
            default=None,
        )
        # Processes that ended with tasks under way: killed ones, and those that ended early by
        # themselves
        self.stopped = [use for use in self.host_uses if use.record.state == "killed"]
        # Processes whose end is not known, and so near to their limit that they may have been
        # killed
        self.suspects = [
            use
            for use in self.host_uses
            if use.record.state is None and (use.share or 0) >= NANNY_SHARE
        ]

    @property
    def overhead(self) -> Overhead | None:
        """Of a run in which Dask's workers were busy with short tasks for less than half of their
        time; None for all others."""
        if not self.names:
            return None
        count = sum(s.count for s in self.names)
        busy = sum(sum(s.durations) for s in self.names)
        began, ended = min(s.began for s in self.names), max(s.ended for s in self.names)
        threads = _threads_of(health for _, health in self.processes)
        if count < _SHORT_TASKS_LEAST or not threads or ended <= began:
            return None
        found = Overhead(count, busy, (ended - began) * threads, threads)
        is_short = busy / count < _SHORT_TASK_S
        return found if is_short and found.share > _OVERHEAD_SHARE else None

    @property
    def largest(self) -> NameSummary | None:
        """The name that needed most of the memory that would be exhausted first."""
        return next((s for s in self.names if self._need(s) is not None), None)

    def _need(self, summary: NameSummary) -> float | None:
        return summary.gpu_peak_max_bytes if self.on_device else summary.need_bytes

    @property
    def has_troubles(self) -> bool:
        """Whether report/troubles.py may have anything to say."""
        missing = self.missing
        return bool(
            any(s.killed or s.ooms for s in self.names)
            or missing.counted
            or missing.not_in_table
            or self.stopped
            or self.suspects
        )

    def tasks_killed_in(self, uses: Sequence[MemoryUse]) -> int:
        """Number of tasks that were under way when these processes ended."""
        return sum(s.killed_in[use.record.process] for use in uses for s in self.names)


def _threads_of(healths: Iterable[Mapping[str, Any]]) -> int:
    """Of all Dask workers. One that was restarted counts once."""
    threads: dict[Any, int] = {}
    for health in healths:
        for worker in health.get("workers") or ():
            if worker.get("address"):
                place = worker.get("nanny") or worker["address"]
                threads[place] = int(worker.get("nthreads") or 1)
    return sum(threads.values())


def _host_use(record: TaskRecord, health: Mapping[str, Any]) -> MemoryUse:
    return MemoryUse(
        record,
        record.rss_peak_bytes,
        process_limit(health),
        worker=_worker_name(health),
        signal=health.get("signal"),
        was_killed=was_killed(record, health),
    )


def _device_uses(record: TaskRecord, health: Mapping[str, Any]) -> Iterator[MemoryUse]:
    for device in health.get("devices") or ():
        name = f"device {device['device']}"
        if device.get("name"):
            name += f" ({line_of(device['name'])})"
        yield MemoryUse(
            record,
            device.get("peak_bytes"),
            device.get("pool_limit_bytes") or device.get("total_bytes"),
            worker=_worker_name(health),
            device=name,
        )


def _worker_name(health: Mapping[str, Any]) -> str | None:
    workers = health.get("workers") or ()
    return next((w.get("name") or w["address"] for w in workers if w.get("address")), None)


def share_text(uses: Sequence[MemoryUse]) -> str:
    """ " at 97 % of its limit", " at 96 % to 99 % of their limits"; empty if none is known."""
    shares = sorted(use.share for use in uses if use.share is not None)
    if not shares:
        return ""
    low, high = percent_text(shares[0]), percent_text(shares[-1])
    return (
        f" at {low if low == high else f'{low} to {high}'} of"
        f" {'its limit' if len(uses) == 1 else 'their limits'}"
    )
