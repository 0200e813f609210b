"""One moment of everything behind a port, as metrics.py reads it: totals of what has ended, and
each living process now. Made by a source at each scrape."""

from __future__ import annotations

from dataclasses import dataclass, field

from dwsr_probe import __version__, _core
from dwsr_probe.export.totals import NAMES_MOST, SERIES_PER_PAIR, Totals, checked_devices
from dwsr_probe.live.process import LivingProcess, LivingProcesses, RunningTask

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

SLOTS_MOST = 32
SLOTS_DEDICATED_PORT_MOST = 256
SERIES_MOST = 999  # on a Dask worker's port. Pairs come first, then devices, then slots
NAMES_SERIES_MOST = NAMES_MOST * SERIES_PER_PAIR
_SERIES_FIXED = 54  # series that do not depend on names, devices and slots
_SERIES_PER_DEVICE, _SERIES_PER_SLOT, _SERIES_PER_SLOT_DEVICE = 10, 4, 2


@dataclass
class MeasuredView:
    """running: the tasks that have series of their own."""

    totals: Totals
    processes: list[LivingProcess] = field(default_factory=list)
    records_lost: int = 0
    processes_dropped: int = 0
    boards_unreadable: int = 0
    dedicated_port: bool = True
    version: str = __version__
    board_version: str = str(_core.BOARD_VERSION)
    running: list[RunningTask] = field(init=False)

    def __post_init__(self) -> None:
        self.running = [task for process in self.processes for task in process.running][
            : SLOTS_DEDICATED_PORT_MOST if self.dedicated_port else SLOTS_MOST
        ]
        if not self.dedicated_port:
            self._limit_series()

    @classmethod
    def of(cls, totals: Totals, living: LivingProcesses, records_lost: int) -> MeasuredView:
        """On a port of our own."""
        return cls(totals, living.processes, records_lost, living.dropped, living.unreadable)

    def _limit_series(self) -> None:
        """Leaves out devices, then running tasks, that would be more series than SERIES_MOST."""
        room = SERIES_MOST - _SERIES_FIXED - self.totals.series_count
        for process in self.processes:
            process.devices = process.devices[
                : max(1, (room - 4 * _SERIES_PER_SLOT) // _SERIES_PER_DEVICE)
            ]
            room -= _SERIES_PER_DEVICE * len(process.devices)
        fitting = []
        for task in self.running:
            room -= _SERIES_PER_SLOT + _SERIES_PER_SLOT_DEVICE * len(self.devices_of(task))
            if room < 0:
                break
            fitting.append(task)
        self.running = fitting

    def devices_of(self, task: RunningTask) -> list[dict[str, Any]]:
        """Devices on which the task has allocated and which have series."""
        return [
            d
            for d in checked_devices(task.record.gpu)
            if self.dedicated_port
            or any(d["device"] == shown["device"] for p in self.processes for shown in p.devices)
        ]
