"""A run in numbers: one row per task name, one line per process. Every view shows these."""
from dataclasses import dataclass, field
from statistics import median


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
    shared: int = 0  # tasks whose figures cannot be theirs alone
    rss_peak_bytes: int | None = None
    overlap: int = 0
    sampled: int = 0  # tasks whose peak was sampled, not the kernel's

    def add(self, record):
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
    def duration_median(self):
        return median(self.durations) if self.durations else None

    @property
    def duration_max(self):
        return max(self.durations, default=None)


def summarise(records):
    """NameSummary per task name, the largest growth first."""
    names = {}
    for record in records:
        summary = names.get(record.task_name)
        if summary is None:
            summary = names[record.task_name] = NameSummary(record.task_name)
        summary.add(record)
    return sorted(names.values(), key=lambda s: (-(s.growth_max_bytes or 0), s.task_name))


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
