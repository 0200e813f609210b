"""What looks add up to: growth of running tasks, the course of each process's resident size,
totals by task name, who has gone and how."""

import time
from collections import deque
from copy import copy
from dataclasses import dataclass, field
from statistics import median

from dwsr_probe.report.top.moment import Moment, own_peak, pid_text

COURSE_MOST = 240  # points of a sparkline
PEAKS_MOST = 500  # of a name: the median is of the newest
NAMES_MOST, GONE_MOST, LIMITS_MOST = 2_000, 32, 4_096
KILLED_MOST = 512  # tasks of a process: as many as can run
RATE_S = 2.0
OTHER = "(other names)"


@dataclass
class Name:
    name: str
    done: int = 0
    failed: int = 0
    killed: int = 0
    running: int = 0
    most: float | None = None
    share: float | None = None  # the largest, of the limit of the process that the task was in
    peaks: deque = field(default_factory=lambda: deque(maxlen=PEAKS_MOST))
    shares: deque = field(default_factory=lambda: deque(maxlen=PEAKS_MOST))
    _medians: tuple = (0, None, None)  # of peaks and shares, when so many were done

    @property
    def median(self):
        return self._both()[1]

    @property
    def share_median(self):
        return self._both()[2]

    def _both(self):
        if self._medians[0] != self.done:
            self._medians = (
                self.done,
                *(median(found) if found else None for found in (self.peaks, self.shares)),
            )
        return self._medians

    def frozen(self):
        copied = copy(self)
        copied._medians = self._both()  # before its peaks go on
        return copied

    def add(self, record, limit):
        self.done += 1
        self.failed += record.get("state") != "ok"
        self.killed += record.get("state") == "killed"
        own = own_peak(record.get)
        if own is not None:
            self.peaks.append(own)
            self.most = max(own, self.most or 0)
            if limit:
                self.shares.append(own / limit)
                self.share = max(own / limit, self.share or 0.0)


class Picture:
    def __init__(self, title):
        self.title, self.moment, self.at = title, Moment(), time.time()
        self.names, self.processes = {}, []
        self.course, self._courses = deque(maxlen=COURSE_MOST), {}  # resident sizes: of all, by pid
        self._tracks, self._gone, self._killed = {}, {}, {}
        self._limits = {}  # pid → (run, limit), of all processes that were seen, the newest last
        self._run_limits = {}  # run → its processes' limits
        self._cpu, self.sampler_cpu = deque(maxlen=9), None  # share of a core
        self.done = self.failed = 0

    def take(self, moment, chances=None):
        """One look. chances: of port.Predictor.read(), or None."""
        now = time.monotonic()
        self.at, before, self.moment = time.time(), self.moment, moment
        self._learn_limits(moment.processes)
        for record in moment.records:
            self._ended(record)
        self._follow_tasks(moment.tasks, now)
        for task in moment.tasks if chances else ():
            task.chance = chances.get(task.key)
        self._follow_processes(before, moment, now)
        for name in self.names.values():
            name.running = 0
        for task in moment.tasks:
            self._name(task.name).running += 1

    def frozen(self):
        """A picture like this one that stays as it is."""
        copied = copy(self)
        copied.moment, copied.processes = copy(self.moment), list(map(copy, self.processes))
        copied.names = {name: found.frozen() for name, found in self.names.items()}
        copied.course, copied._courses = (
            tuple(self.course),
            {pid: tuple(course) for pid, course in self._courses.items()},
        )
        return copied

    def _name(self, name):
        if name not in self.names and len(self.names) >= NAMES_MOST:
            name = OTHER
        return self.names.setdefault(name, Name(name))

    def _learn_limits(self, processes):
        for process in processes:
            self._limits.pop(process.pid, None)
            self._limits[process.pid] = process.run, process.limit
        while len(self._limits) > LIMITS_MOST:
            self._limits.pop(next(iter(self._limits)))
        self._run_limits = {}
        for run, limit in self._limits.values():
            self._run_limits.setdefault(run, set()).add(limit)

    def _limit_of(self, record):
        """Of the process that ran a task. Of one that came and went between two looks, that of
        its run if its processes have only one."""
        pid, run = pid_text(record.get("pid")), record.get("run")
        of_run = self._run_limits.get(run, ()) if run and isinstance(run, str) else ()
        return (
            self._limits[pid][1]
            if pid in self._limits
            else next(iter(of_run))
            if len(of_run) == 1
            else None
        )

    def _ended(self, record):
        name = self._name(str(record.get("task_name")))
        name.add(record, self._limit_of(record))
        self.done += 1
        self.failed += record.get("state") != "ok"
        if record.get("state") == "killed":
            names = self._killed.setdefault(str(record.get("pid")), [])
            if len(names) < KILLED_MOST:
                names.append(name.name)
            while len(self._killed) > 4 * GONE_MOST:
                self._killed.pop(next(iter(self._killed)))

    def _follow_tasks(self, tasks, now):
        tracks = {}
        for task in tasks:
            if task.live is not None:
                track = tracks[task.key] = self._tracks.get(task.key) or deque()
                track.append((now, task.live))
                while len(track) > 2 and track[1][0] <= now - RATE_S:
                    track.popleft()
                (first, low), (last, high) = track[0], track[-1]
                task.rate = (high - low) / (last - first) if last > first else None
        self._tracks = tracks

    def _follow_processes(self, before, moment, now):
        here = {p.pid for p in moment.processes}
        for process in before.processes:
            if process.pid not in here:
                process.state, process.running, process.headroom = "ended", 0, None
                self._gone[process.pid] = process
        for pid, how in moment.gone.items():
            if pid in self._gone:
                self._gone[pid].state = {"ok": "ended", "error": "failed", "killed": "killed"}.get(
                    how, "died"
                )
        for pid, process in self._gone.items():
            if pid.partition(":")[0] in self._killed:
                process.state = "killed"
        for pid in here & self._gone.keys():  # its probe has started again
            del self._gone[pid]
        while len(self._gone) > GONE_MOST:
            self._courses.pop(next(iter(self._gone)), None)
            self._gone.pop(next(iter(self._gone)))
        for process in moment.processes:
            self._courses.setdefault(process.pid, deque(maxlen=COURSE_MOST)).append(
                process.rss or 0
            )
        self._courses = {
            pid: course for pid, course in self._courses.items() if pid in here or pid in self._gone
        }
        self.course.append(sum(p.rss or 0 for p in moment.processes))
        self.processes = [*moment.processes, *self._gone.values()]
        if self._cpu and {p.pid for p in before.processes} != here:
            self._cpu.clear()
        self._cpu.append((now, sum(p.cpu_s for p in moment.processes)))
        (first, low), (last, high) = self._cpu[0], self._cpu[-1]
        self.sampler_cpu = (high - low) / (last - first) if last > first else None

    def course_of(self, process):
        return self._courses.get(process.pid, ())

    def killed_with(self, process):
        """Names of the tasks that died with a process."""
        return (
            self._killed.get(process.pid.partition(":")[0], []) if process.state == "killed" else []
        )

    @property
    def rss(self):
        return self.course[-1] if self.course else 0

    @property
    def headroom(self):
        return min(
            (p.headroom for p in self.moment.processes if p.headroom is not None), default=None
        )

    @property
    def late(self):
        """Share of the samples."""
        samples = sum(p.samples for p in self.moment.processes)
        return sum(p.late for p in self.moment.processes) / samples if samples else None
