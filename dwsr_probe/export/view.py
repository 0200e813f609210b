"""One moment of everything behind a port, as metrics.py reads it: totals of what has ended, and each living process now."""
import time
from dataclasses import dataclass, field

from dwsr_probe import __version__, _core
from dwsr_probe.export.totals import Totals

PROCESSES_MOST, SLOTS_MOST, SERIES_MOST = 64, 32, 1000
_NVML = {number: state for state, number in _core.NVML_STATES.items()}


@dataclass
class Slot:
    pid: str
    number: str
    record: object
    seconds: float


@dataclass
class Process:
    """A living process, by its board."""

    pid: str
    program: str
    run: str
    user: str
    python: str
    live: dict
    header: dict
    devices: list
    workers: list
    slots: list

    @property
    def own_limit_bytes(self):
        """Dask's limit of the one worker in it; None if it has none of its own."""
        return self.workers[0].get("memory_limit_bytes") if len(self.workers) == 1 else None

    @property
    def limit_bytes(self):
        """The tightest: its own, or the cgroup's."""
        return min((limit for limit in (self.own_limit_bytes, self.header["limit_bytes"]) if limit), default=None)

    def of_workers(self, field):
        return ",".join(str(w.get(field) or "") for w in self.workers[:4])

    @property
    def fallbacks(self):
        """What does not work as it should, by name; 1 if so."""
        live = self.live
        state = {"rss": live["rss_source"] == 2, "alloc": live["alloc_state"] == 2, "dask": live["dask_hooks"] == 2}
        if live["gpu_hook"]:
            state |= {"cupy": live["gpu_hook"] == 2, "nvml": _NVML.get(live["nvml_state"]) not in ("ok", "none")}
        return {name: int(bool(value)) for name, value in state.items()}


@dataclass
class View:
    totals: Totals
    processes: list = field(default_factory=list)
    records_lost: int = 0
    processes_dropped: int = 0
    boards_unreadable: int = 0
    version: str = __version__
    board_version: str = str(_core.BOARD_VERSION)

    def headrooms(self):
        """(pid, bytes): what a process may still take. A cgroup's or the machine's memory is shared by all that have no limit of their own."""
        together = sum(p.live["rss_bytes"] or 0 for p in self.processes if not p.own_limit_bytes)
        for p in self.processes:
            if p.limit_bytes is not None and p.live["rss_bytes"] is not None:
                yield p.pid, max(0, p.limit_bytes - (p.live["rss_bytes"] if p.own_limit_bytes else together))

    def slots(self):
        """Of all processes, as many as there is room for below SERIES_MOST: the names come first."""
        per_slot = 4 + 2 * any(p.devices for p in self.processes)
        room = SERIES_MOST - 60 - sum(2 * len(n.peaks) + len(n.outcomes) + 6 for n in self.totals.names.values()) - sum(
            20 + 11 * len(p.devices) for p in self.processes)
        most = max(4, min(SLOTS_MOST, room // per_slot))
        return [slot for process in self.processes for slot in process.slots][:most]


def look_at(board, live, pid=None, user="", now=None):
    """A Process, from its board; _core.BoardError if it cannot be read any more. pid: its name, where its number is not one."""
    facts = board.facts()
    pid = pid or str(board.pid)
    now = time.time() if now is None else now
    slots = [Slot(pid, str(number), record, max(0.0, now - record.start)) for _, number, record in sorted(board.running(live), key=lambda found: found[1])]
    workers = [w for w in facts.get("workers") or () if isinstance(w, dict)]
    return Process(pid, board.task_name, board.run or "", user, board.python, live, board.header, board.devices(), workers, slots)
