"""One moment of everything behind a port, as metrics.py reads it: totals of what has ended, and
each living process now."""

from dataclasses import dataclass, field

from dwsr_probe import __version__, _core
from dwsr_probe.export.totals import NAMES_MOST, SERIES_OF_A_NAME, Totals, devices_of

PROCESSES_MOST, SLOTS_MOST = 64, 32
SLOTS_OWN_PORT_MOST = 256
SERIES_MOST = 999  # on a Dask worker's port. Names come first, then devices, then slots
NAMES_SERIES_MOST = NAMES_MOST * SERIES_OF_A_NAME
_FIXED = 42  # series that are always there
_PER_DEVICE, _PER_SLOT, _PER_SLOT_DEVICE = 10, 4, 2
_WORKER = {
    "address": str,
    "name": str,
    "http": str,
    "memory_limit_bytes": int,
    "managed_bytes": int,
    "spilled_bytes": int,
}


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
        return min(
            (limit for limit in (self.own_limit_bytes, self.header["limit_bytes"]) if limit),
            default=None,
        )

    @property
    def headroom_bytes(self):
        """What it may still take: of its cgroup and machine, as its board says, and of its
        worker's limit, whichever is less."""
        left, own, rss = self.live["headroom_bytes"], self.own_limit_bytes, self.live["rss_bytes"]
        return min(
            (
                bytes_
                for bytes_ in (left, max(0, own - rss) if own and rss is not None else None)
                if bytes_ is not None
            ),
            default=None,
        )

    def of_workers(self, field):
        return ",".join(str(w.get(field) or "") for w in self.workers[:4])

    @property
    def fallbacks(self):
        """What does not work as it should, by name; 1 if so."""
        live = self.live
        state = {
            "rss": live["rss_source"] == _core.RSS_SAMPLED,
            "alloc": live["alloc_state"] == _core.ALLOC_UNAVAILABLE,
            "dask": live["dask_hooks"] == _core.DASK_HOOKS_TRANSITIONS,
        }
        if live["gpu_hook"] in (_core.GPU_HOOK_ON, _core.GPU_HOOK_OFF):
            state |= {
                "cupy": live["gpu_hook"] == _core.GPU_HOOK_OFF,
                "nvml": live["nvml_state"] not in (_core.NVML_OK, _core.NVML_NONE),
            }
        return {name: int(bool(value)) for name, value in state.items()}


@dataclass
class View:
    totals: Totals
    processes: list = field(default_factory=list)
    records_lost: int = 0
    processes_dropped: int = 0
    boards_unreadable: int = 0
    own_port: bool = True
    version: str = __version__
    board_version: str = str(_core.BOARD_VERSION)

    def __post_init__(self):
        self._slots = [slot for process in self.processes for slot in process.slots][
            : SLOTS_OWN_PORT_MOST if self.own_port else SLOTS_MOST
        ]
        if not self.own_port:
            self._make_fit()

    def _make_fit(self):
        room = SERIES_MOST - _FIXED - self.totals.series
        for process in self.processes:
            process.devices = process.devices[: max(1, (room - 4 * _PER_SLOT) // _PER_DEVICE)]
            room -= _PER_DEVICE * len(process.devices)
        shown = []
        for slot in self._slots:
            room -= _PER_SLOT + _PER_SLOT_DEVICE * len(self.devices_of(slot))
            if room < 0:
                break
            shown.append(slot)
        self._slots = shown

    def headrooms(self):
        """(pid, bytes) of each process of which it is known."""
        return ((p.pid, p.headroom_bytes) for p in self.processes if p.headroom_bytes is not None)

    def slots(self):
        """Of all processes, as many as are shown."""
        return self._slots

    def devices_of(self, slot):
        """On which its task has allocated, if they are shown."""
        return [
            d
            for d in devices_of(slot.record.gpu)
            if self.own_port
            or any(d["device"] == shown["device"] for p in self.processes for shown in p.devices)
        ]


def look_at(board, live, pid=None, user="", tasks=True):
    """A Process, from its board; _core.BoardError if it cannot be read any more. pid: its name,
    where its number is not one. tasks: with what it runs, which is most of the work."""
    facts = board.facts()
    pid = pid or str(board.pid)
    now = board.epoch_of(board.now_ns(live))  # by the board's clock, which nobody sets
    slots = [
        Slot(pid, str(number), record, max(0.0, now - record.start))
        for _, number, record in sorted(
            board.running(live) if tasks else (), key=lambda found: found[1]
        )
    ]
    return Process(
        pid,
        board.name(facts),
        board.run or "",
        user,
        board.python,
        live,
        board.header,
        board.devices(),
        _workers(facts),
        slots,
    )


def _workers(facts):
    """What a board says of its workers, as far as it is what it should be: who reads all users'
    boards reads what they wrote."""
    found = facts.get("workers")
    return (
        [
            {
                name: w[name]
                for name, kind in _WORKER.items()
                if isinstance(w.get(name), kind) and (kind is str or 0 <= w[name] < 1 << 63)
            }
            for w in found
            if isinstance(w, dict)
        ]
        if isinstance(found, list)
        else []
    )
