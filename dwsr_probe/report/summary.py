"""A run in numbers: one row per task name, one line per process. Every view shows these.

What a killed task had is a lower bound of what it needed: figures that it may have raised are
AtLeast. Where single records are missing,
the totals of their process stand in for all of its records: counts, sums and maxima are exact,
medians come from histograms and are About.
"""

from collections import Counter
from math import inf

from dwsr_probe import _core
from dwsr_probe.board import process_limit
from dwsr_probe.dataclass import dataclass, field
from dwsr_probe.report.words import About, AtLeast, count_text
from dwsr_probe.total import cell_value


def median(values):
    """As in statistics, whose import costs a run several milliseconds."""
    ordered, half = sorted(values), len(values) // 2
    return ordered[half] if len(values) % 2 else (ordered[half - 1] + ordered[half]) / 2


class Limits:
    """What a task's memory is held against: its Dask worker's limit or its process's, whichever
    is less; of a device its pool's limit, or all of it."""

    def __init__(self, processes=()):
        self._host, self._devices = {}, {}
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

    def host(self, record):
        return self._host.get((record.process, record.worker)) or self._host.get(
            (record.process, None)
        )

    def device(self, record, number):
        return self._devices.get((record.process, number))


class Figures(list):
    """One figure of all tasks of a name. Those of killed tasks are lower bounds."""

    def __init__(self):
        super().__init__()
        self._bounds = set()  # places of those that are lower bounds
        # of totals: value that stands for a cell → count; the largest
        self._cells, self._most = {}, None

    def add(self, value, is_bound=False):
        if is_bound:
            self._bounds.add(len(self))
        self.append(value)

    def add_cells(self, cells, most, scale=1.0):
        """A histogram of a process whose single records are not all there, and its largest
        value."""
        for cell, count in cells.items():
            value = min(cell_value(cell), most) * scale
            self._cells[value] = self._cells.get(value, 0) + count
        if cells:
            self._most = max(most * scale, self._most or 0)

    def raise_max(self, most):
        """The largest value of a process whose single records are not all there, where there is
        no histogram."""
        self._most = max(most, self._most or 0)

    def __bool__(self):
        return bool(len(self) or self._cells)

    @property
    def bounds(self):
        return len(self._bounds)

    @property
    def median(self):
        if not self:
            return None
        if self._cells:
            return AtLeast(self._weighted()) if self.bounds else About(self._weighted())
        # It is known if it stays the same however much the killed ones would have needed.
        low, high = (
            median(self),
            median([inf if i in self._bounds else value for i, value in enumerate(self)]),
        )
        return low if low == high else AtLeast(low)

    def _weighted(self):
        """The middle of all, by their number."""
        values = sorted([*self._cells.items(), *((value, 1) for value in self)])
        left = sum(count for _, count in values) / 2
        for value, count in values:
            left -= count
            if left <= 0:
                return value
        return value

    @property
    def max(self):
        most = max(self, default=None)
        if self._most is not None:
            most = max(self._most, most or 0)
        return AtLeast(most) if self.bounds else most


@dataclass
class NameSummary:
    task_name: str
    count: int = 0
    errors: int = 0
    cancelled: int = 0
    killed_in: Counter = field(default_factory=Counter)  # process → killed tasks
    worst: object = None  # of the killed tasks, the record of the one that had most
    growths: Figures = field(default_factory=Figures)  # rss peak minus rss before
    durations: Figures = field(default_factory=Figures)  # seconds
    alloc_peaks: Figures = field(default_factory=Figures)
    gpu_peaks: Figures = field(default_factory=Figures)  # on the device where it is largest
    rss_peaks: Figures = field(default_factory=Figures)
    held: list = field(default_factory=list)  # resident size at begin without the inputs, bytes
    _host_ratio: float | None = None
    _device_ratio: float | None = None
    ooms: int = 0  # tasks of which an allocation failed for lack of memory
    oom: dict | None = None  # of the largest request
    shared: int = 0  # tasks whose figures cannot be theirs alone
    overlap: int = 0
    sampled: int = 0  # tasks whose peak was sampled, not the kernel's

    def add(self, record, limits):
        state, growth, alloc = record.state, record.rss_growth_bytes, record.alloc_peak_bytes
        killed = state == "killed"
        self.count += 1
        if state != "ok":
            self._note_failure(record, state)
        self.add_single(record)
        if growth is not None:
            self.growths.add(growth, killed)
            self.rss_peaks.add(record.rss_peak_bytes, killed)
        if alloc is not None:
            self.alloc_peaks.add(alloc, killed)
        self.sampled += record.rss_peak_source == "sampled"
        self.shared += record.attribution == "shared"
        self._raise_host(growth if alloc is None else alloc, limits.host(record))
        if record.gpu is not None:
            self._raise_device(
                *(
                    [(d["peak_bytes"], limits.device(record, d["device"])) for d in record.gpu]
                    or [(0, 1)]
                )
            )
        self.ooms += record.oom is not None
        if record.duration is not None:
            self.durations.append(record.duration)
        if record.overlap and record.overlap > self.overlap:
            self.overlap = record.overlap

    def _note_failure(self, record, state):
        self.errors += state == "error"
        self.cancelled += state == "cancelled"
        if state == "killed":
            self.killed_in[record.process] += 1
            self.worst = max(
                filter(None, (self.worst, record)),
                key=lambda one: max(one.own_peak_bytes or 0, one.gpu_peak_bytes or 0),
            )

    def _raise_host(self, own, limit):
        if (
            own is not None
            and limit
            and (self._host_ratio is None or own / limit > self._host_ratio)
        ):
            self._host_ratio = own / limit

    def _raise_device(self, *uses):
        """(peak, limit) of each device."""
        known = [peak / limit for peak, limit in uses if limit]
        if known:
            self._device_ratio = max(*known, self._device_ratio or 0.0)

    @property
    def host_ratio(self):
        """Largest own peak (without accounting: growth) of the host's limit."""
        return self._at_least(self._host_ratio)

    @property
    def device_ratio(self):
        """The same of a device's."""
        return self._at_least(self._device_ratio)

    def _at_least(self, ratio):
        return AtLeast(ratio) if ratio is not None and self.killed_in else ratio

    def add_single(self, record):
        """What only single records tell, and no totals."""
        if record.rss_before_bytes is not None:
            held = record.rss_before_bytes - (record.known_input_bytes or 0)
            self.held.append(held if held > 0 else 0)
        if record.gpu is not None:
            self.gpu_peaks.add(record.gpu_peak_bytes, record.state == "killed")
        if record.oom:
            self.oom = max(
                filter(None, (self.oom, record.oom)),
                key=lambda oom: oom.get("requested_bytes") or 0,
            )

    def add_total(self, total, process, limits):
        """All tasks of this name that have ended in a process, by its totals; process: its
        record."""
        self.count += total.count
        self.errors += total.error
        self.cancelled += total.cancelled
        self.shared += total.shared
        self.sampled += total.sampled
        self.ooms += total.oom
        self.overlap = max(self.overlap, total.overlap_max)
        self.growths.add_cells(total.growth_cells, total.growth_max_bytes)
        self.alloc_peaks.add_cells(total.alloc_cells, total.alloc_max_bytes)
        self.durations.add_cells(total.duration_cells, total.duration_max_ns, 1e-9)
        if total.growth_count:
            self.rss_peaks.add(total.rss_peak_max_bytes)
        self._raise_host(total.own_max_bytes, limits.host(process))
        self._raise_device(
            *((most, limits.device(process, number)) for number, (_, most) in total.devices.items())
        )
        for _, most in total.devices.values():
            self.gpu_peaks.raise_max(most)

    @property
    def killed(self):
        return self.killed_in.total()

    @property
    def growth_median_bytes(self):
        return self.growths.median

    @property
    def growth_max_bytes(self):
        return self.growths.max

    @property
    def alloc_peak_median_bytes(self):
        return self.alloc_peaks.median

    @property
    def alloc_peak_max_bytes(self):
        return self.alloc_peaks.max

    @property
    def rss_peak_bytes(self):
        return self.rss_peaks.max

    @property
    def held_bytes(self):
        """What the process had beside the inputs when the typical task began."""
        return median(self.held) if self.held else None

    @property
    def need_bytes(self):
        """The most that one task needed on the host: own bytes, without accounting growth."""
        return self.alloc_peaks.max if self.alloc_peaks else self.growths.max

    @property
    def gpu_peak_median_bytes(self):
        return self.gpu_peaks.median

    @property
    def gpu_peak_max_bytes(self):
        return self.gpu_peaks.max

    @property
    def binds(self):
        """Which memory a larger block would exhaust first, "host" or "device"; None if neither
        limit is known."""
        if self.host_ratio is None and self.device_ratio is None:
            return None
        return "device" if (self.device_ratio or 0) > (self.host_ratio or 0) else "host"

    @property
    def duration_median(self):
        return self.durations.median

    @property
    def duration_max(self):
        return self.durations.max


def summarise(records, processes=(), totals=None):
    """NameSummary per task name, in every view's order: `ranked`.

    processes: (record, health) of each, for its limits. totals: {process: list of total.Total};
    used of those that have lost single records."""
    names, limits, counted = {}, Limits(processes), _counted(processes, totals or {})
    known = {process: {total.name for total in found} for process, found in counted.items()}
    for record in records:
        if record.process in counted and record.state != "killed":
            name = record.task_name if record.task_name in known[record.process] else OTHER
            _named(names, name).add_single(record)
        else:
            _named(names, record.task_name).add(record, limits)
    for process, _ in processes:
        for total in counted.get(process.process, ()):
            _named(names, OTHER if total.name is None else total.name).add_total(
                total, process, limits
            )
    by_name = sorted(names.values(), key=lambda s: s.task_name)
    on_device = binding(by_name) == "device"
    return ranked(
        by_name,
        lambda s: s.gpu_peak_max_bytes if on_device else s.need_bytes,
        lambda s: s.worst and (s.worst.gpu_peak_bytes if on_device else s.worst.own_peak_bytes),
    )


OTHER = "other"  # names beyond the most that a board tells apart


def _named(names, name):
    summary = names.get(name)
    if summary is None:
        summary = names[name] = NameSummary(name)
    return summary


def _counted(processes, totals):
    """The totals of the processes whose single records are not all there."""
    return {
        record.process: totals[record.process]
        for record, health in processes
        if health.get("records_lost") and record.process in totals
    }


_BYSTANDER = 0.1


def ranked(things, need, killed_need):
    """Names or tasks, the largest need first. Killed ones may have needed any more than they
    had, so they come before all others.

    Not those that were only beside: they had less than a tenth of the largest killed one.
    killed_need: None of what was not killed.
    """
    found = [(killed_need(one), need(one) or 0, one) for one in things]
    most = max((killed or 0 for killed, *_ in found), default=0)
    return [
        one
        for *_, one in sorted(
            found, key=lambda row: (not row[0] or row[0] < _BYSTANDER * most, -row[1])
        )
    ]


def binding(names):
    """Which memory the run as a whole would exhaust first, "host" or "device"."""
    return (
        "device"
        if max((s.device_ratio or 0 for s in names), default=0)
        > max((s.host_ratio or 0 for s in names), default=0)
        else "host"
    )


@dataclass
class Missing:
    """Tasks of a run that have no record of their own. counted: their process's totals have
    them; lost: nothing has, for a board before version 6; dropped: they were not measured."""

    counted: int = 0
    lost: int = 0
    dropped: int = 0


def missing_tasks(processes, totals=None):
    found = Missing()
    for record, health in processes:
        lost = health.get("records_lost") or 0
        if record.process in (totals or {}):
            found.counted += lost
        else:
            found.lost += lost
        found.dropped += health.get("tasks_dropped") or 0
    return found


_NVML_NOTES = {  # by the board's nvml_state
    _core.NVML_NO_MODULE: (
        "nvidia-ml-py is not installed: what the driver says of the devices is missing"
    ),
    _core.NVML_NO_DRIVER: "NVML found no driver",
    _core.NVML_DENIED: "NVML may not tell which process holds what",
    _core.NVML_LOST: "the driver was lost",
    _core.NVML_FAILED: "reading NVML failed",
}


def process_notes(record, health):
    """What a person should know about one process's measurement, in words; empty when all is
    well."""
    notes = []

    def note(number, text, plural=None):
        if number:
            notes.append(f"{number:,} {text if number == 1 or not plural else plural}")

    if health.get("unprobed"):
        return ["not probed; the peak is of this process or of one of its children"]
    if health.get("alloc_state") == _core.ALLOC_UNAVAILABLE:
        notes.append("allocations could not be accounted: another tool holds the hooks")
    if health.get("dask_hooks") == _core.DASK_HOOKS_TRANSITIONS:
        notes.append(
            "tasks of some kinds were followed on Dask's event loop (`shared`): this release of"
            " distributed has functions that are not known; the worker's log names them"
        )
    if health.get("untracked_bytes"):
        notes.append(
            f"{count_text(health['untracked_bytes'], 'byte', 'bytes', '1')} found the owner table"
            " full: frees from other threads are not followed there"
        )
    if health.get("gpu_hook") == _core.GPU_HOOK_OFF:
        notes.append("the hook on CuPy's memory failed: device memory was measured up to then only")
    if health.get("devices") and health.get("nvml_state") in _NVML_NOTES:
        notes.append(_NVML_NOTES[health["nvml_state"]])
    note(
        health.get("gpu_ooms"),
        "device allocation failed for lack of memory",
        "device allocations failed for lack of memory",
    )
    note(
        health.get("gpu_unfollowed"),
        "device allocation was not followed: one device too many, or a pointer of the job's own"
        " class",
        "device allocations were not followed: devices too many, or pointers of the job's own"
        " class",
    )
    if health.get("rss_peak_source") == "sampled":
        notes.append("peaks are sampled")
    note(health.get("records_lost"), "record lost", "records lost")
    note(health.get("samples_lost"), "sample lost", "samples lost")
    why = "its board could not grow" if health.get("room_for_tasks") == 0 else "too many at once"
    note(health.get("tasks_dropped"), f"task not measured: {why}", f"tasks not measured: {why}")
    note(health.get("ends_unmatched"), "end without begin", "ends without begin")
    note(health.get("ends_elsewhere"), "end in another thread", "ends in another thread")
    note(
        health.get("ends_missing"),
        "task left open by its thread",
        "tasks left open by their threads",
    )
    note(
        health.get("children_unprobed"),
        "Python child ran without the probe (-I, -S, -E or a bare environment)",
        "Python children ran without the probe (-I, -S, -E or a bare environment)",
    )
    return notes


NANNY = 0.90  # Dask ends a worker at 95 % of its limit, looking every 100 ms


def was_killed(record, health):
    """Killed for certain, or as good as: a process may also leave tasks behind because it ended
    early."""
    limit, peak = process_limit(health), record.rss_peak_bytes
    return record.state == "killed" and (
        health.get("signal") is not None or not limit or not peak or peak >= NANNY * limit
    )


def process_outcome(record, health, exit_code):
    """How a process ended, in words. exit_code: of the job.

    A pool ends its workers by a signal, and many programs leave by os._exit: in a job that
    succeeded, such an end is no news."""
    if record.state == "killed" and not was_killed(record, health):
        return "ended with tasks under way"
    return record.state or ("ended" if exit_code == 0 else "ended, how is not known")


def worker_facts(health):
    """ "worker tcp://…, 2 threads, limit 4.0 GiB" for each of Dask's workers in the process."""
    facts = []
    for worker in health.get("workers") or ():
        if not worker.get("address"):
            continue
        limit = worker.get("memory_limit_bytes")
        spilled = worker.get("spilled_bytes")
        facts.append(
            f"worker {worker['address']},"
            f" {count_text(worker.get('nthreads') or 0, 'thread', 'threads', '1')}"
            + (f", limit {limit / 2**30:.1f} GiB" if limit else "")
            + (f", {spilled / 2**20:.1f} MiB spilled" if spilled else "")
        )
    return facts


def sampler_health(record, health):
    """ "1,234 samples, 0.1 % late, 0.3 % of a core, 1 slow reset of the kernel's mark", or None
    without a sampler."""
    written = health.get("samples_written")
    if not written:
        return None
    late = 100 * (health.get("samples_late") or 0) / written
    text = f"{count_text(written, 'sample', 'samples', '1')}, {late:.1f} % late"
    if record.duration:
        text += (
            f", {100 * (health.get('sampler_cpu_ns') or 0) / 1e9 / record.duration:.2f} % of a core"
        )
    if gaps := health.get("reset_gaps"):
        text += f", {count_text(gaps, 'slow reset', 'slow resets', '1')} of the kernel's mark"
    return text
