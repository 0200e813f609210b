"""What `top` reads through ports: of a Dask worker, an exporter or `run --metrics`, and of a
predictor. What a port answers is checked before it is used."""

from __future__ import annotations

import os
from typing import Any

from dwsr_probe.export.checked import checked_forecasts, checked_processes, checked_record
from dwsr_probe.export.client import Stream, StreamError, StreamRefused
from dwsr_probe.live.wire import TaskIdentity
from dwsr_probe.report.top.moment import (
    RECORDS_MOST,
    Moment,
    ProcessRow,
    WatchError,
    pid_text,
    process_title,
    task_row,
    valid_number,
)

ANSWER_S = 5.0  # for a whole answer: somebody sits in front of the screen
RECORDS_LEAST = 250  # that a busy machine can send meanwhile


class PortWatch:
    """A Dask worker's, an exporter's or a run's: /dwsr/tasks and /dwsr/processes."""

    interval_s = 1.0  # an answer takes a worker some milliseconds

    def __init__(
        self,
        url: str,
        token: str | None = None,
        basic: str | None = None,
        ca_file: str | None = None,
    ) -> None:
        """ValueError: not a URL. OSError: of the CA's file."""
        self._stream = Stream(url, token, basic, ca_file=ca_file, timeout_s=ANSWER_S, record_s=0.0)
        self.waits_for, self._records_limit = self._stream.url, RECORDS_LEAST
        self.title = self._stream.host
        self._lost_before: int | None = None

    def read(self) -> Moment:
        most, self._records_limit = self._records_limit, RECORDS_LEAST  # so many if this read fails
        try:
            found = self._stream.poll(limit=most, running=True, keep=checked_record)
            living = self._processes()
        except StreamError as error:
            raise WatchError(str(error)) from error
        self._records_limit = min(RECORDS_MOST, 2 * most)
        moment = Moment(
            records=found.records,
            behind=len(found.records) >= most,
            processes=[_process_row(process) for process in living["processes"]],
            processes_dropped=int(living["processes_dropped"]),
            boards_unreadable=int(living["boards_unreadable"]),
        )
        if self._lost_before is None and not moment.behind:
            self._lost_before = self._stream.lost  # overwritten before top was started
        moment.records_lost = self._stream.lost - (
            self._stream.lost if self._lost_before is None else self._lost_before
        )
        pids = {process["process"]: pid_text(process["pid"]) for process in living["processes"]}
        for record in found.running:
            pid = pids.get(record["process"]) or pid_text(record.get("pid"))
            moment.tasks.append(
                task_row(
                    record.get,
                    pid,
                    valid_number(record.get("running_seconds")),
                    valid_number(record.get("process_limit_bytes")),
                )
            )
        return moment

    def _processes(self) -> dict[str, Any]:
        try:
            return checked_processes(self._stream.page("/dwsr/processes"))
        except StreamRefused as error:
            if error.status != 404:
                raise
            raise StreamError(
                f"{self.title} has no /dwsr/processes: it runs an older dwsr-probe; use its own top"
            ) from error
        except (ValueError, RecursionError) as error:
            raise StreamError(f"{self.title}: /dwsr/processes: {error}") from error


def _process_row(process: dict[str, Any]) -> ProcessRow:
    """Of checked_processes()."""
    return ProcessRow(
        pid=pid_text(process["pid"]),
        name=process_title(process["program"], process["worker_name"] or process["worker"]),
        run=process["run"],
        rss=process["resident_bytes"],
        rss_max=process["resident_max_bytes"],
        limit=process["limit_bytes"],
        headroom=process["headroom_bytes"],
        running=int(process["running_tasks"] or 0),
        samples=process["samples"] or 0,
        samples_late=process["samples_late"] or 0,
        sampler_cpu_s=process["sampler_cpu_seconds"] or 0.0,
        tasks_dropped=process["tasks_dropped"] or 0,
        fallbacks=tuple(process["fallbacks"]),
        devices=process["devices"],
    )


class PredictorPort:
    """A `dwsr-probe predict serve`."""

    def __init__(
        self,
        url: str,
        token: str | None = None,
        basic: str | None = None,
        ca_file: str | None = None,
    ) -> None:
        self._stream = Stream(url, token, basic, ca_file=ca_file, timeout_s=ANSWER_S)

    def read(self) -> dict[TaskIdentity, float]:
        """For each running task that the predictor knows, the probability that it exceeds what
        its process has left. StreamError."""
        try:
            found = checked_forecasts(self._stream.page("/running"))
        except (ValueError, RecursionError) as error:
            raise StreamError(f"/running: {error}") from error
        return {TaskIdentity(*task): ratio for task, ratio in found.items()}


def is_url(word: str) -> bool:
    """http://host:port, or host:port that is no directory."""
    host, _, port = word.rpartition(":")
    return "://" in word or bool(
        host and port.rstrip("/").isdecimal() and "/" not in host and not os.path.exists(word)
    )
