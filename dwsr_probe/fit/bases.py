"""What a worker has without tasks: resident sizes of the processes of a run before their first
tasks. Used by fit/run.py and by `dwsr-probe predict`."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dwsr_probe.record import TaskRecord


class Bases:
    def __init__(self) -> None:
        self._least: dict[str | None, int] = {}  # by process

    def add(self, record: TaskRecord) -> None:
        before = record.rss_before_bytes
        if before is not None and before < self._least.get(record.process, before + 1):
            self._least[record.process] = before

    def __contains__(self, process: str | None) -> bool:
        return process in self._least

    @property
    def typical_bytes(self) -> float | None:
        """The median of all processes; None if nothing is known."""
        return float(median(self._least.values())) if self._least else None
