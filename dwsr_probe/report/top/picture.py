"""What moments add up to: growth of running tasks, the resident sizes of each process over time,
totals by row (operation or task name), which processes have gone and how. Drawn by screen.py."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Mapping
from copy import copy
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from dwsr_probe.live.wire import TaskIdentity
from dwsr_probe.predict.group import Group, labels
from dwsr_probe.report.groups import row_chain_text
from dwsr_probe.report.top.moment import (
    Moment,
    ProcessRow,
    TaskRow,
    own_peak,
    pid_text,
    row_group,
)

HISTORY_MOST = 240  # points of a sparkline
PEAKS_MOST = 500  # of a name: the median is of the newest
NAMES_MOST, GONE_MOST, LIMITS_MOST = 2_000, 32, 4_096
TASK_NAMES_MOST = 16  # of a row: prefixes of keys that the filter finds it by
KILLED_MOST = 512  # tasks of a process: as many as can run
RATE_S = 2.0  # over which growth is measured
OTHER = "(other names)"
_STATE_WORDS: dict[str | None, str] = {
    "ok": "ended",
    "error": "failed",
    "killed": "killed",
}  # of a record's state


@dataclass
class NameRow:
    """The tasks of one group. name: its label beside the other rows."""

    group: Group
    name: str
    task_names: set[str] = field(default_factory=set)  # the first few
    done: int = 0
    failed: int = 0
    killed: int = 0
    running: int = 0
    peak_max: float | None = None
    share_max: float | None = None  # largest peak as a share of the limit of the task's process
    peaks: deque[float] = field(default_factory=lambda: deque(maxlen=PEAKS_MOST))
    shares: deque[float] = field(default_factory=lambda: deque(maxlen=PEAKS_MOST))
    # of peaks and of shares, and `done` when they were computed
    _medians: tuple[float | None, float | None] = (None, None)
    _medians_at: int = 0

    @property
    def chain(self) -> str:
        """The functions inside its tasks; empty if the name alone tells which row it is."""
        return row_chain_text(self.group) if self.name != self.group.name else ""

    @property
    def words(self) -> tuple[str, ...]:
        """What the filter finds it by."""
        return (self.name, *self.group.chain, *self.task_names)

    @property
    def peak_median(self) -> float | None:
        return self._current_medians()[0]

    @property
    def share_median(self) -> float | None:
        return self._current_medians()[1]

    def _current_medians(self) -> tuple[float | None, float | None]:
        if self._medians_at != self.done:
            self._medians_at = self.done
            self._medians = (
                median(self.peaks) if self.peaks else None,
                median(self.shares) if self.shares else None,
            )
        return self._medians

    def frozen(self) -> NameRow:
        # Computed now: the copy shares the deques of peaks and shares, and they still change.
        self._current_medians()
        return copy(self)

    def note_task_name(self, name: str) -> None:
        if len(self.task_names) < TASK_NAMES_MOST:
            self.task_names.add(name)

    def add(self, record: Mapping[str, Any], limit: float | None) -> None:
        self.done += 1
        self.note_task_name(str(record.get("task_name")))
        self.failed += record.get("state") != "ok"
        self.killed += record.get("state") == "killed"
        own = own_peak(record.get)
        if own is not None:
            self.peaks.append(own)
            self.peak_max = max(own, self.peak_max or 0)
            if limit:
                self.shares.append(own / limit)
                self.share_max = max(own / limit, self.share_max or 0.0)


class Picture:
    def __init__(self, title: str) -> None:
        self.title, self.moment, self.date = title, Moment(), time.time()
        self.names: dict[Group, NameRow] = {}
        self.processes: list[ProcessRow] = []
        # resident sizes: the sum over all processes, and by pid
        self.rss_history: deque[float] = deque(maxlen=HISTORY_MOST)
        self._rss_histories: dict[str, deque[float]] = {}
        self._live_tracks: dict[TaskIdentity, deque[tuple[float, float]]] = {}  # when, live bytes
        self._gone: dict[str, ProcessRow] = {}  # by pid
        self._killed: dict[str, list[NameRow]] = {}  # pid → rows of the tasks that died with it
        # pid → (run, limit), of all processes that were seen, the newest last
        self._limits: dict[str, tuple[str, float | None]] = {}
        self._run_limits: dict[str, set[float | None]] = {}  # run → its processes' limits
        self._sampler_cpu_track: deque[tuple[float, float]] = deque(
            maxlen=9
        )  # when, seconds of all samplers
        self.sampler_cpu: float | None = None  # share of a core
        self.done = self.failed = 0
        self._labelled = 0  # rows that have their labels

    def add(
        self, moment: Moment, overrun_ratios: Mapping[TaskIdentity, float] | None = None
    ) -> None:
        """overrun_ratios: what port.PredictorPort.read() returned; None without a predictor."""
        now = time.monotonic()
        self.date, before, self.moment = time.time(), self.moment, moment
        self._note_limits(moment.processes)
        for record in moment.records:
            self._add_record(record)
        self._update_rates(moment.tasks, now)
        if overrun_ratios:
            for task in moment.tasks:
                task.overrun_ratio = overrun_ratios.get(task.identity)
        self._update_processes(before, moment, now)
        for name in self.names.values():
            name.running = 0
        for task in moment.tasks:
            row = self._name_row(task.group or Group(task.name))
            row.running += 1
            row.note_task_name(task.task_name or task.name)
        self._set_labels()
        for task in moment.tasks:
            group = task.group or Group(task.name)
            if group in self.names:  # else it is among the others
                task.name = self.names[group].name

    def frozen(self) -> Picture:
        """A copy of this picture that stays as it is."""
        copied = copy(self)
        copied.moment, copied.processes = copy(self.moment), list(map(copy, self.processes))
        copied.names = {name: found.frozen() for name, found in self.names.items()}
        copied.rss_history = copy(self.rss_history)
        copied._rss_histories = {pid: copy(sizes) for pid, sizes in self._rss_histories.items()}
        return copied

    def _name_row(self, group: Group) -> NameRow:
        if group not in self.names and len(self.names) >= NAMES_MOST:
            group = Group(OTHER)
        row = self.names.get(group)
        if row is None:
            row = self.names[group] = NameRow(group, group.name)
        return row

    def _set_labels(self) -> None:
        if len(self.names) != self._labelled:
            self._labelled = len(self.names)
            for group, label in labels(self.names).items():
                self.names[group].name = label

    def _note_limits(self, processes: list[ProcessRow]) -> None:
        for process in processes:
            self._limits.pop(process.pid, None)
            self._limits[process.pid] = process.run, process.limit
        while len(self._limits) > LIMITS_MOST:
            self._limits.pop(next(iter(self._limits)))
        self._run_limits = {}
        for run, limit in self._limits.values():
            self._run_limits.setdefault(run, set()).add(limit)

    def _limit_of(self, record: Mapping[str, Any]) -> float | None:
        """Limit of the process that ran a task. For a process that came and went between two
        moments: the limit that all processes of its run have in common."""
        pid, run = pid_text(record.get("pid")), record.get("run")
        if pid in self._limits:
            return self._limits[pid][1]
        limits = self._run_limits.get(run, set()) if run and isinstance(run, str) else set()
        return next(iter(limits)) if len(limits) == 1 else None

    def _add_record(self, record: Mapping[str, Any]) -> None:
        name = self._name_row(row_group(record.get))
        name.add(record, self._limit_of(record))
        self.done += 1
        self.failed += record.get("state") != "ok"
        if record.get("state") == "killed":
            names = self._killed.setdefault(str(record.get("pid")), [])
            if len(names) < KILLED_MOST:
                names.append(name)
            while len(self._killed) > 4 * GONE_MOST:
                self._killed.pop(next(iter(self._killed)))

    def _update_rates(self, tasks: list[TaskRow], now: float) -> None:
        tracks: dict[TaskIdentity, deque[tuple[float, float]]] = {}
        for task in tasks:
            if task.live is not None:
                track = tracks[task.identity] = self._live_tracks.get(task.identity) or deque()
                track.append((now, task.live))
                while len(track) > 2 and track[1][0] <= now - RATE_S:
                    track.popleft()
                (first, low), (last, high) = track[0], track[-1]
                task.rate = (high - low) / (last - first) if last > first else None
        self._live_tracks = tracks

    def _update_processes(self, before: Moment, moment: Moment, now: float) -> None:
        self._update_gone(before, moment)
        self._update_rss_histories(moment)
        self._update_sampler_cpu(before, moment, now)

    def _update_gone(self, before: Moment, moment: Moment) -> None:
        here = {p.pid for p in moment.processes}
        for process in before.processes:
            if process.pid not in here:
                process.state, process.running, process.headroom = "ended", 0, None
                self._gone[process.pid] = process
        for pid, state in moment.end_states.items():
            if pid in self._gone:
                self._gone[pid].state = _STATE_WORDS.get(state, "died")
        for pid, process in self._gone.items():
            if pid.partition(":")[0] in self._killed:
                process.state = "killed"
        for pid in here & self._gone.keys():  # its probe has started again
            del self._gone[pid]
        while len(self._gone) > GONE_MOST:
            self._gone.pop(next(iter(self._gone)))
        self.processes = [*moment.processes, *self._gone.values()]

    def _update_rss_histories(self, moment: Moment) -> None:
        for process in moment.processes:
            self._rss_histories.setdefault(process.pid, deque(maxlen=HISTORY_MOST)).append(
                process.rss or 0
            )
        shown = {process.pid for process in self.processes}
        self._rss_histories = {
            pid: sizes for pid, sizes in self._rss_histories.items() if pid in shown
        }
        self.rss_history.append(sum(p.rss or 0 for p in moment.processes))

    def _update_sampler_cpu(self, before: Moment, moment: Moment, now: float) -> None:
        if {p.pid for p in before.processes} != {p.pid for p in moment.processes}:
            self._sampler_cpu_track.clear()
        self._sampler_cpu_track.append((now, sum(p.sampler_cpu_s for p in moment.processes)))
        (first, low), (last, high) = self._sampler_cpu_track[0], self._sampler_cpu_track[-1]
        self.sampler_cpu = (high - low) / (last - first) if last > first else None

    def rss_history_of(self, process: ProcessRow) -> Iterable[float]:
        return self._rss_histories.get(process.pid, ())

    def killed_with(self, process: ProcessRow) -> list[str]:
        """Names of the tasks that died with a process."""
        if process.state != "killed":
            return []
        return [row.name for row in self._killed.get(process.pid.partition(":")[0], ())]

    @property
    def rss(self) -> float:
        return self.rss_history[-1] if self.rss_history else 0

    @property
    def headroom(self) -> float | None:
        return min(
            (p.headroom for p in self.moment.processes if p.headroom is not None), default=None
        )

    @property
    def late_share(self) -> float | None:
        """Share of the samples that came late."""
        samples = sum(p.samples for p in self.moment.processes)
        return sum(p.samples_late for p in self.moment.processes) / samples if samples else None
