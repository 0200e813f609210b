"""What `top` reads on this machine: all boards, or those of one run, through export's sources.
port.py reads ports.

Called by loop.py in a thread of its own: a network filesystem may be slow, keys may not.
"""

from __future__ import annotations

import json
import os
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from dwsr_probe.export.sources.machine import MachineSource
from dwsr_probe.export.sources.run import RunSource
from dwsr_probe.process import process_exists
from dwsr_probe.report.top.moment import (
    RECORDS_MOST,
    Moment,
    ProcessRow,
    WatchError,
    process_title,
    task_row,
)
from dwsr_probe.runs import find_run
from dwsr_probe.store import Store, StoreError

if TYPE_CHECKING:
    from dwsr_probe.export.sources.source import Source
    from dwsr_probe.live.process import LivingProcess

COLLECT_S, META_S, HEALTH_S = 0.5, 0.5, 5.0
CURSOR_START = "0"  # cursor of the whole stream


class BoardsWatch:
    """What the watches of this machine have in common. Subclasses open a source, and say which
    records count and how processes have ended."""

    title, interval_s = "this machine", 0.25

    def __init__(self, run: str | None = None) -> None:
        """run: show only processes of this run."""
        self._run, self._cursor, self._lost = run, CURSOR_START, 0
        self._pids: set[str] = set()  # of the last moment
        self._missing: set[str] = set()  # pids of processes that have gone, not known yet how

    def _current_source(self) -> Source:
        """Opened by the thread that reads; up to date."""
        raise NotImplementedError

    def _is_shown(self, record: dict[str, Any]) -> bool:
        """Whether a finished task is shown."""
        raise NotImplementedError

    def _end_states(self) -> dict[str, str | None]:
        """pid → state of processes that have ended, as far as known."""
        raise NotImplementedError

    def read(self) -> Moment:
        source = self._current_source()
        batch = source.read(self._cursor, RECORDS_MOST)
        if (
            self._cursor != CURSOR_START
        ):  # what was overwritten before top was started is not counted
            self._lost += batch.lost
        self._cursor = batch.cursor
        living = source.living()
        moment = Moment(
            records_lost=self._lost,
            processes_dropped=living.dropped,
            boards_unreadable=living.unreadable,
            behind=batch.more,
        )
        moment.records = [record for record in _records(batch.lines) if self._is_shown(record)]
        for process in living.processes:
            if self._run in (None, process.run):
                moment.processes.append(_process_row(process))
                moment.tasks += [
                    task_row(
                        partial(getattr, task.record),
                        process.pid,
                        task.seconds,
                        process.limit_bytes,
                    )
                    for task in process.running
                ]
        pids = {p.pid for p in moment.processes}
        self._missing = (self._missing | self._pids) - pids
        self._pids = pids
        if self._missing:
            states = self._end_states()
            moment.end_states = {pid: states[pid] for pid in self._missing & states.keys()}
            self._missing -= moment.end_states.keys()
        return moment


class MachineWatch(BoardsWatch):
    """All boards of this machine, or those of one run's name."""

    def __init__(
        self,
        directories: list[str] | None = None,
        run: str | None = None,
        say: Callable[[str], None] = lambda text: None,
    ) -> None:
        super().__init__(run)
        self._directories, self._say = directories, say
        self._source: MachineSource | None = None
        self._collected = 0.0  # when
        if run:
            self.title = f"run {run}"

    def _current_source(self) -> MachineSource:
        if self._source is None:
            self._source = MachineSource(self._directories, say=self._say)
        if time.monotonic() >= self._collected + COLLECT_S:
            self._source.collect()
            self._collected = time.monotonic()
        return self._source

    def _is_shown(self, record: dict[str, Any]) -> bool:
        """All records of a run are shown. Of a machine, records of processes that had ended before
        top was started are not: that job is over."""
        if self._run:
            return record.get("run") == self._run
        assert self._source is not None
        return record.get("process") not in self._source.ended_before_start

    def _end_states(self) -> dict[str, str | None]:
        assert self._source is not None
        return {str(pid): state for pid, state in self._source.end_states().items()}


def _records(lines: Iterable[str]) -> Iterator[dict[str, Any]]:
    """As dicts. A damaged record is left out: boards of other users may say anything."""
    for line in lines:
        try:
            yield json.loads(line)
        except (ValueError, RecursionError):
            continue


def _process_row(process: LivingProcess) -> ProcessRow:
    live = process.live
    return ProcessRow(
        pid=process.pid,
        name=process_title(
            process.program, process.workers_text("name") or process.workers_text("address")
        ),
        run=process.run,
        rss=live["rss_bytes"],
        rss_max=live["rss_max_bytes"],
        limit=process.limit_bytes,
        headroom=process.headroom_bytes,
        running=len(process.running),
        samples=live["samples_written"] or 0,
        samples_late=live["samples_late"] or 0,
        sampler_cpu_s=(live["sampler_cpu_ns"] or 0) / 1e9,
        tasks_dropped=live["tasks_dropped"] or 0,
        fallbacks=tuple(kind for kind, value in process.fallbacks.items() if value),
        devices=process.devices,
    )


class RunWatch(BoardsWatch):
    """A run of this machine by its directory: what has ended from its store, also while it is
    being written; what runs from its boards."""

    def __init__(self, directory: str) -> None:
        """WatchError: there is no run, or it is elsewhere."""
        super().__init__()
        self._directory, self._job_end = os.path.abspath(directory), ""
        self._meta_read = self._health_read = 0.0  # when
        self._source: RunSource | None = None
        try:
            store = Store.open(self._directory)
            try:
                self._meta = store.meta()
            finally:
                store.close()
            self.title = f"run {os.path.basename(self._directory)}"
            if "exit_code" not in self._meta and self._meta["host"] != os.uname().nodename:
                raise WatchError(
                    f"the run {directory} is on {self._meta['host']}; look at it there, or name its"
                    f" port: dwsr-probe top http://{self._meta['host']}:PORT"
                )
        except (StoreError, sqlite3.Error, KeyError, ValueError) as error:
            raise WatchError(
                str(error)
                if isinstance(error, StoreError)
                else f"cannot read {self._directory}: {error!r}"
            ) from error

    def read(self) -> Moment:
        try:
            ended = self._read_job_end()  # before the last records are read
            moment = super().read()
        except StoreError as error:
            raise WatchError(str(error)) from error
        except sqlite3.Error as error:
            raise WatchError(f"cannot read {self._directory}: {error}") from error
        if ended and not moment.behind:
            moment.job_end = ended
        return moment

    def _current_source(self) -> RunSource:
        if self._source is None:
            self._source = RunSource(
                lambda: Store.open(self._directory), self._meta["run"], self._meta["board_dir"]
            )
        return self._source

    def _is_shown(self, record: dict[str, Any]) -> bool:
        return True

    def _end_states(self) -> dict[str, str | None]:
        store = Store.open(self._directory)
        try:
            return {
                str(record.pid): record.state
                for record, _ in store.processes()
                if record.state != "running"
            }
        finally:
            store.close()

    def _read_job_end(self) -> str:
        """How the job has ended, as a text; empty: it has not. Also reads how many records were
        lost."""
        if not self._job_end and time.monotonic() >= self._meta_read + META_S:
            self._meta_read = time.monotonic()
            store = Store.open(self._directory)
            try:
                meta = store.meta()
                if "exit_code" in meta or self._meta_read >= self._health_read + HEALTH_S:
                    self._health_read = self._meta_read
                    self._lost = sum(
                        health.get("records_lost") or 0 for _, health in store.processes()
                    )
            finally:
                store.close()
            if "exit_code" in meta:
                self._job_end = (
                    f"the job has ended with exit code {meta['exit_code']} at"
                    f" {time.strftime('%H:%M:%S', time.localtime(meta.get('end')))}"
                )
            elif not process_exists(meta.get("parent", 0), meta.get("parent_ticks", 0)):
                self._job_end = "the job's parent has gone; dwsr-probe report collects what is left"
        return self._job_end


def watch_run(word: str, directories: list[str] | None = None) -> RunWatch | MachineWatch:
    """The run that a person means: by its directory or name (find_run), or by its name on living
    boards. WatchError."""
    try:
        return RunWatch(find_run(word, lambda _: None))  # the title says which one
    except StoreError:
        pass
    here = {
        p.run
        for p in MachineWatch(directories).read().processes
        if p.run == word or p.run.rpartition("-")[0] == word
    }
    if len(here) == 1:
        return MachineWatch(directories, here.pop())
    raise WatchError(
        f"there is no run {word!r} here: neither a run directory nor a running job of this name;"
        " without a name, top shows all boards of this machine"
    )
