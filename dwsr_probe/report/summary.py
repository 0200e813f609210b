"""A run in numbers: one row per task name, one line per process. Every view shows these."""
from dataclasses import dataclass, field
from statistics import median

from dwsr_probe.board import process_limit


class Limits:
    """What a task's memory is held against: its Dask worker's limit or its process's, whichever is less; of a device its pool's limit, or all of it."""

    def __init__(self, processes=()):
        self._host, self._devices = {}, {}
        for record, health in processes:
            self._host[record.process, None] = process_limit(health)
            for worker in health.get("workers") or ():
                self._host[record.process, worker.get("address")] = process_limit({**health, "workers": [worker]})
            for device in health.get("devices") or ():
                self._devices[record.process, device["device"]] = device.get("pool_limit_bytes") or device.get("total_bytes")

    def host(self, record):
        return self._host.get((record.process, record.worker)) or self._host.get((record.process, None))

    def device(self, record, number):
        return self._devices.get((record.process, number))


def _ratio(part, whole):
    return part / whole if part is not None and whole else None


def _largest(*values):
    return max((v for v in values if v is not None), default=None)


@dataclass
class NameSummary:
    task_name: str
    count: int = 0
    errors: int = 0
    cancelled: int = 0
    killed: int = 0
    growths: list = field(default_factory=list)  # rss peak minus rss before, bytes
    durations: list = field(default_factory=list)  # seconds
    alloc_peaks: list = field(default_factory=list)  # bytes
    gpu_peaks: list = field(default_factory=list)  # bytes, on the device where it is largest
    host_ratio: float | None = None  # largest own peak (without accounting: growth) of the host's limit
    device_ratio: float | None = None  # the same of a device's
    ooms: int = 0  # tasks of which an allocation failed for lack of memory
    oom: dict | None = None  # of the largest request
    shared: int = 0  # tasks whose figures cannot be theirs alone
    rss_peak_bytes: int | None = None
    overlap: int = 0
    sampled: int = 0  # tasks whose peak was sampled, not the kernel's

    def add(self, record, limits):
        self.count += 1
        self.errors += record.state == "error"
        self.cancelled += record.state == "cancelled"
        self.killed += record.state == "killed"
        self.sampled += record.rss_peak_source == "sampled"
        if record.rss_growth_bytes is not None:
            self.growths.append(record.rss_growth_bytes)
            self.rss_peak_bytes = max(self.rss_peak_bytes or 0, record.rss_peak_bytes)
        self.shared += record.attribution == "shared"
        if record.alloc_peak_bytes is not None:
            self.alloc_peaks.append(record.alloc_peak_bytes)
        host = record.rss_growth_bytes if record.alloc_peak_bytes is None else record.alloc_peak_bytes
        self.host_ratio = _largest(self.host_ratio, _ratio(host, limits.host(record)))
        if record.gpu is not None:
            self.gpu_peaks.append(max((d["peak_bytes"] for d in record.gpu), default=0))
            self.device_ratio = _largest(self.device_ratio, None if record.gpu else 0.0, *(_ratio(d["peak_bytes"], limits.device(record, d["device"])) for d in record.gpu))
        if record.oom:
            self.ooms += 1
            self.oom = max(filter(None, (self.oom, record.oom)), key=lambda oom: oom.get("requested_bytes") or 0)
        if record.duration is not None:
            self.durations.append(record.duration)
        self.overlap = max(self.overlap, record.overlap or 0)

    @property
    def growth_median_bytes(self):
        return median(self.growths) if self.growths else None

    @property
    def growth_max_bytes(self):
        return max(self.growths, default=None)

    @property
    def alloc_peak_median_bytes(self):
        return median(self.alloc_peaks) if self.alloc_peaks else None

    @property
    def alloc_peak_max_bytes(self):
        return max(self.alloc_peaks, default=None)

    @property
    def need_bytes(self):
        """The most that one task needed on the host: own bytes, without accounting growth."""
        return self.growth_max_bytes if self.alloc_peak_max_bytes is None else self.alloc_peak_max_bytes

    @property
    def gpu_peak_median_bytes(self):
        return median(self.gpu_peaks) if self.gpu_peaks else None

    @property
    def gpu_peak_max_bytes(self):
        return max(self.gpu_peaks, default=None)

    @property
    def binds(self):
        """Which memory a larger block would exhaust first, "host" or "device"; None if neither limit is known."""
        if self.host_ratio is None and self.device_ratio is None:
            return None
        return "device" if (self.device_ratio or 0) > (self.host_ratio or 0) else "host"

    @property
    def duration_median(self):
        return median(self.durations) if self.durations else None

    @property
    def duration_max(self):
        return max(self.durations, default=None)


def summarise(records, processes=()):
    """NameSummary per task name, the largest growth first. processes: (record, health) of each, for its limits."""
    names, limits = {}, Limits(processes)
    for record in records:
        summary = names.get(record.task_name)
        if summary is None:
            summary = names[record.task_name] = NameSummary(record.task_name)
        summary.add(record, limits)
    return sorted(names.values(), key=lambda s: (-(s.growth_max_bytes or 0), s.task_name))


def binding(names):
    """Which memory the run as a whole would exhaust first, "host" or "device"."""
    return "device" if max((s.device_ratio or 0 for s in names), default=0) > max((s.host_ratio or 0 for s in names), default=0) else "host"


_NVML_NOTES = {  # by the board's nvml_state
    2: "nvidia-ml-py is not installed: what the driver says of the devices is missing", 3: "NVML found no driver",
    4: "NVML may not tell which process holds what", 5: "the driver was lost", 6: "reading NVML failed"}


def process_notes(record, health):
    """What a person should know about one process's measurement, in words; empty when all is well."""
    notes = []

    def note(number, text, plural=None):
        if number:
            notes.append(f"{number:,} {text if number == 1 or not plural else plural}")

    if health.get("unprobed"):
        return ["ran without the probe: peak from wait4, of it or of a child it waited for"]
    if health.get("alloc_state") == 2:
        notes.append("allocations could not be accounted: another tool holds the hooks")
    if health.get("dask_hooks") == 2:
        notes.append("tasks were followed by Dask's transitions: this release of distributed is not known, whose memory it was cannot be told")
    if health.get("untracked_bytes"):
        notes.append(f"{health['untracked_bytes']:,} bytes found the owner table full: frees from other threads are not followed there")
    if health.get("gpu_hook") == 2:
        notes.append("the hook on CuPy's memory failed: device memory was measured up to then only")
    if health.get("devices") and health.get("nvml_state") in _NVML_NOTES:
        notes.append(_NVML_NOTES[health["nvml_state"]])
    note(health.get("gpu_ooms"), "device allocation failed for lack of memory", "device allocations failed for lack of memory")
    note(health.get("gpu_unfollowed"), "device allocation was not followed: one device too many, or a pointer of the job's own class",
         "device allocations were not followed: devices too many, or pointers of the job's own class")
    if health.get("rss_peak_source") == "sampled":
        notes.append("peaks are sampled")
    note(health.get("records_lost"), "record lost", "records lost")
    note(health.get("samples_lost"), "sample lost", "samples lost")
    note(health.get("tasks_dropped"), "task not measured: too many at once", "tasks not measured: too many at once")
    note(health.get("ends_unmatched"), "end without begin", "ends without begin")
    note(health.get("ends_elsewhere"), "end in another thread", "ends in another thread")
    note(health.get("ends_missing"), "task left open by its thread", "tasks left open by their threads")
    note(health.get("reset_gaps"), "slow reset of the kernel's mark", "slow resets of the kernel's mark")
    note(health.get("children_unprobed"), "Python child ran without the probe (-I, -S, -E or a bare environment)",
         "Python children ran without the probe (-I, -S, -E or a bare environment)")
    return notes


def worker_facts(health):
    """"worker tcp://…, 2 threads, limit 4.0 GiB" for each of Dask's workers in the process."""
    facts = []
    for worker in health.get("workers") or ():
        if not worker.get("address"):
            continue
        limit = worker.get("memory_limit_bytes")
        spilled = worker.get("spilled_bytes")
        facts.append(f"worker {worker['address']}, {worker.get('nthreads')} threads" + (f", limit {limit / 2**30:.1f} GiB" if limit else "")
                     + (f", {spilled / 2**20:.1f} MiB spilled" if spilled else ""))
    return facts


def sampler_health(record, health):
    """"1,234 samples, 0.1 % late, 0.3 % of a core", or None without a sampler."""
    written = health.get("samples_written")
    if not written:
        return None
    late = 100 * (health.get("samples_late") or 0) / written
    text = f"{written:,} samples, {late:.1f} % late"
    if record.duration:
        text += f", {100 * (health.get('sampler_cpu_ns') or 0) / 1e9 / record.duration:.2f} % of a core"
    return text
