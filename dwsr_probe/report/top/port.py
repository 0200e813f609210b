"""Looks through a port: of a Dask worker, an exporter or `run --metrics`, and of a predictor.
What it answers is checked before it is used."""

import os
import time

from dwsr_probe.export.checked import checked
from dwsr_probe.export.client import Stream, StreamError, samples_of
from dwsr_probe.report.top.moment import (
    RECORDS_MOST,
    Moment,
    Process,
    WatchError,
    name_of,
    number,
    pid_text,
    task_of,
)

ASK_S = 5.0  # for a whole answer: somebody looks at the screen
RECORDS_LEAST = 250  # that a busy machine can send meanwhile


class Port:
    """A Dask worker's, an exporter's or a run's: /dwsr/tasks and /metrics."""

    interval_s = 1.0  # a page of metrics takes the worker some milliseconds

    def __init__(self, url, token=None, basic=None, ca_file=None):
        """ValueError: not a URL. OSError: of the CA's file."""
        self._stream = Stream(url, token, basic, ca_file=ca_file, timeout_s=ASK_S, record_s=0.0)
        self.waits_for, self._fits = self._stream.url, RECORDS_LEAST
        self.host, self.title = self._stream.host, self._stream.host
        self._lost_before = None
        self._clocks = {}  # pid → date of its clock, less our monotonic one

    def look(self):
        most, self._fits = self._fits, RECORDS_LEAST  # so many if this look fails
        try:
            found = self._stream.poll(limit=most, running=True, keep=checked)
            series = series_of(self._stream.page("/metrics"))
        except StreamError as error:
            raise WatchError(str(error)) from error
        self._fits = min(RECORDS_MOST, 2 * most)
        moment = Moment(
            records=found.records, behind=len(found.records) >= most, processes=_processes(series)
        )
        if self._lost_before is None and not moment.behind:
            self._lost_before = self._stream.lost  # overwritten before we came
        moment.lost = self._stream.lost - (
            self._stream.lost if self._lost_before is None else self._lost_before
        )
        moment.more_processes, moment.unreadable = (
            int(sum(series.get(f"dwsr_{name}", {}).values()))
            for name in ("processes_dropped", "boards_unreadable")
        )
        limits = {p.pid: p.limit for p in moment.processes}
        now = time.monotonic()
        self._follow_clocks(found.running, series.get("dwsr_slot_running_seconds", {}), now)
        for record in found.running:
            pid, start = pid_text(record.get("pid")), number(record.get("start"))
            seconds = (
                None
                if start is None or pid not in self._clocks
                else max(0.0, self._clocks[pid] + now - start)
            )
            moment.tasks.append(task_of(record.get, pid, seconds, limits.get(pid)))
        return moment

    def _follow_clocks(self, running, seconds, now):
        """What the date of each process's clock is: neither its host's clock nor ours need be
        right, and both may be set.

        The earliest start and the longest running time give it if they are of one task; else
        less, because the oldest has just ended or has no series.
        """
        starts, longest = {}, {}
        for record in running:
            if (start := number(record.get("start"))) is not None:
                pid = pid_text(record.get("pid"))
                starts[pid] = min(start, starts.get(pid, start))
        for labels, value in seconds.items():
            pid = pid_text(dict(labels).get("pid"))
            longest[pid] = max(value, longest.get(pid, value))
        self._clocks = {
            pid: max(start + longest[pid] - now, self._clocks.get(pid, 0.0))
            for pid, start in starts.items()
            if pid in longest
        }


def series_of(page):
    """{metric: {labels as a sorted tuple of pairs: value}} of a page of metrics; of ours only."""
    found = {}
    try:
        for name, labels, value in samples_of(page, _PREFIXES):
            if number(value) is not None:
                found.setdefault(name, {})[tuple(sorted(labels.items()))] = value
    except ValueError as error:
        raise StreamError(f"/metrics: {error}") from error
    return found


_PREFIXES = (
    "dwsr_process",
    "dwsr_probe",
    "dwsr_device",
    "dwsr_slot_running_seconds",
    "dwsr_boards",
    "dwsr_forecast_overrun_ratio",
    "dwsr_forecast_room_bytes",
)
_OF_PROCESS = {
    "resident_bytes": "rss",
    "resident_max_bytes": "rss_max",
    "limit_bytes": "limit",
    "headroom_bytes": "headroom",
}
_OF_PROBE = {
    "samples_total": "samples",
    "samples_late_total": "late",
    "cpu_seconds_total": "cpu_s",
    "tasks_dropped_total": "dropped",
}
_OF_DEVICE = (
    "live_bytes",
    "peak_bytes",
    "pool_used_bytes",
    "pool_total_bytes",
    "total_bytes",
    "used_bytes",
    "process_bytes",
)


def _processes(series):
    found = {}
    for labels in map(dict, series.get("dwsr_process_info", {})):
        worker = labels.get("worker_name") or labels.get("worker")
        pid, program = labels.get("pid", ""), labels.get("program", "")
        found[pid] = Process(pid_text(pid), name_of(program, worker), labels.get("run", ""))
    for name, attribute in [(f"dwsr_process_{n}", a) for n, a in _OF_PROCESS.items()] + [
        (f"dwsr_probe_{n}", a) for n, a in _OF_PROBE.items()
    ]:
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
            found[labels["pid"]].devices.append(
                {
                    "device": labels.get("device"),
                    "name": labels.get("name"),
                    "utilisation_percent": None if busy is None else 100 * busy,
                    **figures,
                }
            )
    return list(found.values())


class Predictor:
    """A `dwsr-probe predict serve`: for each running task that it knows, the probability to
    exceed what its process has left."""

    def __init__(self, url, token=None, basic=None, ca_file=None, of=None):
        """of: only what it knows of this host:port, if it knows that at all."""
        self._stream, self._target = Stream(url, token, basic, ca_file=ca_file, timeout_s=ASK_S), of

    def look(self):
        """{(pid, task name): [(room, probability), ...]}, least room first: it numbers slots in
        its own way, but room is a task's live bytes and what all of a process share."""
        series, found = series_of(self._stream.page("/metrics")), {}
        ratios, rooms = (
            series.get("dwsr_forecast_overrun_ratio", {}),
            series.get("dwsr_forecast_room_bytes", {}),
        )
        mine = {
            labels: value
            for labels, value in ratios.items()
            if dict(labels).get("target") == self._target
        } or ratios
        for labels, chance in mine.items():
            of = dict(labels)
            found.setdefault((of.get("pid"), of.get("task_name")), []).append(
                (rooms.get(labels, 0.0), chance)
            )
        return {key: sorted(values) for key, values in found.items()}


def is_url(word):
    """http://host:port, or host:port that is no directory."""
    host, _, port = word.rpartition(":")
    return "://" in word or bool(
        host and port.rstrip("/").isdecimal() and "/" not in host and not os.path.exists(word)
    )
