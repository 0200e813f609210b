"""What `top` looks at: all boards of this machine, one run, or a port. Each look gives a Moment; boards are read by export's sources, ports through its client.

Called by loop.py in a thread of its own: a port or a network filesystem may be slow, keys may not. What others wrote is checked before it is used.
"""
import json
import math
import os
import sqlite3
import time
from dataclasses import dataclass, field
from functools import partial

from dwsr_probe.board import process_exists
from dwsr_probe.export.client import Stream, StreamError
from dwsr_probe.export.sources import Machine, Run
from dwsr_probe.export.totals import devices_of
from dwsr_probe.report.words import line_of
from dwsr_probe.store import FILE, Store, StoreError

FOLLOW_S, META_S, HEALTH_S = 0.5, 0.5, 5.0
FIRST = "0"  # cursor of the stream
RECORDS_MOST = 5_000  # of one look: a long run is taken in bit by bit, and the view stays live
ASK_S = 5.0


class WatchError(Exception):
    """There is nothing to look at, or not now; the text says why."""


@dataclass
class Process:
    pid: str
    name: str
    run: str = ""
    rss: float | None = None
    rss_max: float | None = None
    limit: float | None = None
    headroom: float | None = None
    running: int = 0
    samples: float = 0
    late: float = 0
    cpu_s: float = 0.0
    dropped: float = 0
    fallbacks: tuple = ()
    devices: list = field(default_factory=list)  # dicts with the board's names: device, name, live_bytes, ...
    state: str = "running"  # or killed, died (without a task), failed, ended


@dataclass
class Task:
    who: tuple  # process, thread, start: as long as it runs
    pid: str
    name: str
    seconds: float
    live: float | None
    peak: float | None
    limit: float | None = None  # of its process
    gpu_peak: float | None = None
    rate: float | None = None  # of live bytes, per second
    chance: float | None = None  # to exceed what its process has left


@dataclass
class Moment:
    processes: list = field(default_factory=list)
    tasks: list = field(default_factory=list)
    records: list = field(default_factory=list)  # that have ended since the last look: dicts
    lost: int = 0
    more_processes: int = 0
    unreadable: int = 0
    behind: bool = False  # there are more records to read at once
    gone: dict = field(default_factory=dict)  # pid → how its process ended: ok, error, killed; None: without a word
    ended: str = ""  # the job has, and how
    stale: bool = False  # later looks have failed
    trouble: str = ""  # why, or what else does not work


def number(value):
    """A figure that can be one; else None."""
    return value if type(value) in (int, float) and 0 <= value < 1 << 63 else None


def _pid(value):
    """Shown as it is: of a port it may be anything."""
    return line_of(str(value), 32)


def _task(get, pid, seconds, limit):
    """get: a field of its record."""
    peak, live = number(get("alloc_peak_bytes")), number(get("alloc_end_bytes"))
    if peak is None:  # not accounted: by the growth of its process
        high, before = number(get("rss_peak_bytes")), number(get("rss_before_bytes"))
        peak = None if high is None or before is None else max(0, high - before)
    devices = devices_of(get("gpu"))
    return Task((str(get("process")), str(get("thread")), str(get("start"))), pid, str(get("task_name")), seconds, live, peak, limit,
                sum(d["peak_bytes"] for d in devices) if devices else None)


class Boards:
    """Of this machine, all or those of one run's name."""

    title, interval_s = "this machine", 0.25

    def __init__(self, directories=None, run=None, say=lambda text: None):
        self._directories, self._run, self._say = directories, run, say
        self._source, self._cursor, self._followed, self._lost = None, FIRST, 0.0, 0
        self._here, self._missing = set(), set()  # pids of the last look; those of whom it is not known yet how they ended
        if run:
            self.title = f"run {run}"

    def look(self):
        self._source = self._source or self._opened()
        self._follow()
        batch = self._source.read(self._cursor, RECORDS_MOST)
        if self._cursor != FIRST:  # what was overwritten before we came is not lost to us
            self._lost += batch.lost
        self._cursor = batch.cursor
        view = self._source.view()
        moment = Moment(lost=self._lost, more_processes=view.processes_dropped, unreadable=view.boards_unreadable, behind=batch.more)
        moment.records = [r for r in map(json.loads, batch.lines) if self._run in (None, r["run"])]
        headrooms = dict(view.headrooms())
        for p in view.processes:
            if self._run in (None, p.run):
                moment.processes.append(_process(p, headrooms.get(p.pid)))
                moment.tasks += [_task(partial(getattr, slot.record), p.pid, slot.seconds, p.limit_bytes) for slot in p.slots]
        here = {p.pid for p in moment.processes}
        self._missing = (self._missing | self._here) - here
        self._here = here
        if self._missing:
            states = self._states()
            moment.gone = {pid: states[pid] for pid in self._missing & states.keys()}
            self._missing -= moment.gone.keys()
        return moment

    def _states(self):
        """pid → how it ended, as far as that is known by now."""
        return {str(pid): state for pid, state in self._source.ended().items()}

    def _opened(self):
        return Machine(self._directories, say=self._say)

    def _follow(self):
        if time.monotonic() >= self._followed + FOLLOW_S:
            self._source.follow()
            self._followed = time.monotonic()


def _process(p, headroom):
    live = p.live
    worker = p.of_workers("name") or p.of_workers("address")
    return Process(
        p.pid, f"{worker} ({p.program})" if worker else p.program, p.run, live["rss_bytes"], live["rss_max_bytes"], p.limit_bytes, headroom, len(p.slots),
        live["samples_written"] or 0, live["samples_late"] or 0, (live["sampler_cpu_ns"] or 0) / 1e9, live["tasks_dropped"] or 0,
        tuple(kind for kind, value in p.fallbacks.items() if value), p.devices)


class RunDirectory(Boards):
    """A run of this machine by its directory: what has ended from its store, also while that is written; what runs from its boards."""

    def __init__(self, directory):
        """WatchError: there is no run, or it is elsewhere."""
        super().__init__()
        self._directory, self._asked, self._ended, self._health = os.path.abspath(directory), 0.0, "", 0.0
        try:
            store = Store.open(self._directory)
            try:
                self._meta = store.meta()
            finally:
                store.close()
            self.title = f"run {os.path.basename(self._directory)}"
            if "exit_code" not in self._meta and self._meta["host"] != os.uname().nodename:
                raise WatchError(f"the run {directory} is on {self._meta['host']}; look at it there, or name its port: dwsr-probe top http://{self._meta['host']}:PORT")
        except (StoreError, sqlite3.Error, KeyError, ValueError) as error:
            raise WatchError(str(error) if isinstance(error, StoreError) else f"cannot read {self._directory}: {error!r}") from error

    def look(self):
        try:
            ended = self._how_it_ended()  # asked before the last records are read
            moment = super().look()
        except (sqlite3.Error, StoreError) as error:
            raise WatchError(f"cannot read {self._directory}: {error}") from error
        if ended and not moment.behind:
            moment.ended = ended
        return moment

    def _opened(self):
        return Run(lambda: Store.open(self._directory), self._meta["run"], self._meta["board_dir"])

    def _follow(self):
        """Its parent does."""

    def _states(self):
        store = Store.open(self._directory)
        try:
            return {str(record.pid): record.state for record, _ in store.processes() if record.state != "running"}
        finally:
            store.close()

    def _how_it_ended(self):
        if not self._ended and time.monotonic() >= self._asked + META_S:
            self._asked = time.monotonic()
            store = Store.open(self._directory)
            try:
                meta = store.meta()
                if "exit_code" in meta or self._asked >= self._health + HEALTH_S:
                    self._health, self._lost = self._asked, sum(health.get("records_lost") or 0 for _, health in store.processes())
            finally:
                store.close()
            if "exit_code" in meta:
                self._ended = f"the job has ended with exit code {meta['exit_code']} at {time.strftime('%H:%M:%S', time.localtime(meta.get('end')))}"
            elif not process_exists(meta.get("parent", 0), meta.get("parent_ticks", 0)):
                self._ended = "the job's parent has gone; dwsr-probe report collects what is left"
        return self._ended


class Port:
    """A Dask worker's, an exporter's or a run's: /dwsr/tasks and /metrics."""

    interval_s = 1.0  # a page of metrics takes the worker some milliseconds

    def __init__(self, url, token=None, basic=None, ca_file=None):
        """ValueError: not a URL. OSError: of the CA's file."""
        self._stream = Stream(url, token, basic, ca_file=ca_file, timeout_s=ASK_S)
        self.host, self.title = self._stream.host, self._stream.host
        self._lost_before = None

    def look(self):
        try:
            found = self._stream.poll(limit=RECORDS_MOST, running=True)
            series = series_of(self._stream.page("/metrics"))
        except StreamError as error:
            raise WatchError(str(error)) from error
        moment = Moment(records=found.records, behind=len(found.records) >= RECORDS_MOST, processes=_processes(series))
        if self._lost_before is None and not moment.behind:
            self._lost_before = self._stream.lost  # overwritten before we came
        moment.lost = self._stream.lost - (self._stream.lost if self._lost_before is None else self._lost_before)
        moment.more_processes, moment.unreadable = (int(sum(series.get(f"dwsr_{name}", {}).values())) for name in ("processes_dropped", "boards_unreadable"))
        limits = {p.pid: p.limit for p in moment.processes}
        starts = [r["start"] for r in found.running if number(r.get("start")) is not None]
        seconds = series.get("dwsr_slot_running_seconds", {}).values()
        now = time.time()
        if starts and len(seconds) == len(found.running):
            now = min(starts) + max(seconds)  # by its clock, which may not be ours
        for record in found.running:
            pid = _pid(record.get("pid"))
            moment.tasks.append(_task(record.get, pid, max(0.0, now - (number(record.get("start")) or now)), limits.get(pid)))
        return moment


def series_of(page):
    """{metric: {labels as a sorted tuple of pairs: value}} of a page of metrics; of ours only."""
    from prometheus_client.parser import text_string_to_metric_families
    found = {}
    try:
        for family in text_string_to_metric_families("".join(f"{line}\n" for line in page.splitlines() if line.startswith(_PREFIXES))):
            for sample in family.samples:
                if math.isfinite(sample.value):
                    found.setdefault(sample.name, {})[tuple(sorted(sample.labels.items()))] = sample.value
    except (ValueError, KeyError, IndexError) as error:  # of the parser, on what is no such page
        raise StreamError(f"/metrics: {error}") from error
    return found


_PREFIXES = ("dwsr_process", "dwsr_probe", "dwsr_device", "dwsr_slot_running_seconds", "dwsr_boards", "dwsr_forecast_overrun_ratio", "dwsr_forecast_room_bytes")
_OF_PROCESS = {"resident_bytes": "rss", "resident_max_bytes": "rss_max", "limit_bytes": "limit", "headroom_bytes": "headroom"}
_OF_PROBE = {"samples_total": "samples", "samples_late_total": "late", "cpu_seconds_total": "cpu_s", "tasks_dropped_total": "dropped"}
_OF_DEVICE = ("live_bytes", "peak_bytes", "pool_used_bytes", "pool_total_bytes", "total_bytes", "used_bytes", "process_bytes")


def _processes(series):
    found = {}
    for labels in map(dict, series.get("dwsr_process_info", {})):
        worker = labels.get("worker_name") or labels.get("worker")
        pid, program = labels.get("pid", ""), labels.get("program", "")
        found[pid] = Process(_pid(pid), f"{worker} ({program})" if worker else program, labels.get("run", ""))
    for name, attribute in [(f"dwsr_process_{n}", a) for n, a in _OF_PROCESS.items()] + [(f"dwsr_probe_{n}", a) for n, a in _OF_PROBE.items()]:
        for labels, value in series.get(name, {}).items():
            if (pid := dict(labels).get("pid")) in found:
                setattr(found[pid], attribute, value)
    for labels, value in series.get("dwsr_process_running_tasks", {}).items():
        if (pid := dict(labels).get("pid")) in found:
            found[pid].running = int(value)
    for labels, value in series.get("dwsr_probe_fallback", {}).items():
        if value and (labels := dict(labels)).get("pid") in found:
            found[labels["pid"]].fallbacks += (labels.get("kind", ""),)
    for labels in map(dict, series.get("dwsr_device_info", {})):
        if labels.get("pid") in found:
            key = (("device", labels.get("device", "")), ("pid", labels["pid"]))
            figures = {name: series.get(f"dwsr_device_{name}", {}).get(key) for name in _OF_DEVICE}
            busy = series.get("dwsr_device_utilisation_ratio", {}).get(key)
            found[labels["pid"]].devices.append({"device": labels.get("device"), "name": labels.get("name"), "utilisation_percent": None if busy is None else 100 * busy, **figures})
    return list(found.values())


class Predictor:
    """A `dwsr-probe predict serve`: for each running task that it knows, the probability to exceed what its process has left."""

    def __init__(self, url, token=None, basic=None, ca_file=None, of=None):
        """of: only what it knows of this host:port, if it knows that at all."""
        self._stream, self._target = Stream(url, token, basic, ca_file=ca_file, timeout_s=ASK_S), of

    def look(self):
        """{(pid, task name): [(room, probability), ...]}, least room first: it numbers slots in its own way, but room is a task's live bytes and what all of a process share."""
        series, found = series_of(self._stream.page("/metrics")), {}
        ratios, rooms = series.get("dwsr_forecast_overrun_ratio", {}), series.get("dwsr_forecast_room_bytes", {})
        mine = {labels: value for labels, value in ratios.items() if dict(labels).get("target") == self._target} or ratios
        for labels, chance in mine.items():
            of = dict(labels)
            found.setdefault((of.get("pid"), of.get("task_name")), []).append((rooms.get(labels, 0.0), chance))
        return {key: sorted(values) for key, values in found.items()}


def is_url(word):
    """http://host:port, or host:port that is no directory."""
    host, _, port = word.rpartition(":")
    return "://" in word or bool(host and port.rstrip("/").isdecimal() and "/" not in host and not os.path.exists(word))


def named(word, directories=None):
    """The run that a person means: its directory, the directory's name below dwsr-runs, or the run's name on boards that are there. WatchError."""
    for directory in (word, os.path.join("dwsr-runs", word)):
        if os.path.isfile(os.path.join(directory, FILE)):
            return RunDirectory(directory)
    here = {p.run for p in Boards(directories).look().processes if p.run == word or p.run.rpartition("-")[0] == word}
    if len(here) == 1:
        return Boards(directories, here.pop())
    raise WatchError(f"there is no run {word!r} here: neither a run directory nor a running job of this name; without a name, top shows all boards of this machine")
