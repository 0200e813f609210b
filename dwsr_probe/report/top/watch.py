"""What `top` looks at on this machine: all boards, or those of one run. Boards are read by
export's sources alone; port.py looks elsewhere.

Called by loop.py in a thread of its own: a port or a network filesystem may be slow, keys may
not.
"""

import json
import os
import sqlite3
import time
from functools import partial

from dwsr_probe.process import process_exists
from dwsr_probe.export.sources.machine import MachineSource
from dwsr_probe.export.sources.run import RunSource
from dwsr_probe.report.top.moment import (
    RECORDS_MOST,
    Moment,
    ProcessRow,
    WatchError,
    name_of,
    task_of,
)
from dwsr_probe.runs import find_run
from dwsr_probe.store import Store, StoreError

FOLLOW_S, META_S, HEALTH_S = 0.5, 0.5, 5.0
FIRST = "0"  # cursor of the stream


class Boards:
    """Of this machine, all or those of one run's name."""

    title, interval_s = "this machine", 0.25

    def __init__(self, directories=None, run=None, say=lambda text: None):
        self._directories, self._run, self._say = directories, run, say
        self._source, self._cursor, self._followed, self._lost = None, FIRST, 0.0, 0
        # pids of the last look; those of whom it is not known yet how they ended
        self._here, self._missing = set(), set()
        if run:
            self.title = f"run {run}"

    def read(self):
        self._source = self._source or self._opened()
        self._follow()
        batch = self._source.read(self._cursor, RECORDS_MOST)
        if self._cursor != FIRST:  # what was overwritten before we came is not lost to us
            self._lost += batch.lost
        self._cursor = batch.cursor
        living = self._source.living()
        moment = Moment(
            lost=self._lost,
            more_processes=living.dropped,
            unreadable=living.unreadable,
            behind=batch.more,
        )
        moment.records = [record for record in _records(batch.lines) if self._counts(record)]
        for process in living.processes:
            if self._run in (None, process.run):
                moment.processes.append(_process_row(process))
                moment.tasks += [
                    task_of(
                        partial(getattr, task.record),
                        process.pid,
                        task.seconds,
                        process.limit_bytes,
                    )
                    for task in process.running
                ]
        here = {p.pid for p in moment.processes}
        self._missing = (self._missing | self._here) - here
        self._here = here
        if self._missing:
            states = self._states()
            moment.gone = {pid: states[pid] for pid in self._missing & states.keys()}
            self._missing -= moment.gone.keys()
        return moment

    def _counts(self, record):
        """Of a run all do. Of a machine not what processes left that were dead before we came:
        that job is over."""
        return (
            record.get("run") == self._run
            if self._run
            else record.get("process") not in self._source.ended_before
        )

    def _states(self):
        """pid → how it ended, as far as that is known by now."""
        return {str(pid): state for pid, state in self._source.ended().items()}

    def _opened(self):
        return MachineSource(self._directories, say=self._say)

    def _follow(self):
        if time.monotonic() >= self._followed + FOLLOW_S:
            self._source.collect()
            self._followed = time.monotonic()


def _records(lines):
    """As dicts; one that is damaged is left out: who reads all users' boards reads what they
    wrote."""
    for line in lines:
        try:
            yield json.loads(line)
        except (ValueError, RecursionError):
            continue


def _process_row(process):
    live = process.live
    return ProcessRow(
        pid=process.pid,
        name=name_of(
            process.program, process.workers_text("name") or process.workers_text("address")
        ),
        run=process.run,
        rss=live["rss_bytes"],
        rss_max=live["rss_max_bytes"],
        limit=process.limit_bytes,
        headroom=process.headroom_bytes,
        running=len(process.running),
        samples=live["samples_written"] or 0,
        late=live["samples_late"] or 0,
        cpu_s=(live["sampler_cpu_ns"] or 0) / 1e9,
        dropped=live["tasks_dropped"] or 0,
        fallbacks=tuple(kind for kind, value in process.fallbacks.items() if value),
        devices=process.devices,
    )


class RunDirectory(Boards):
    """A run of this machine by its directory: what has ended from its store, also while that is
    written; what runs from its boards."""

    def __init__(self, directory):
        """WatchError: there is no run, or it is elsewhere."""
        super().__init__()
        self._directory, self._asked, self._ended, self._health = (
            os.path.abspath(directory),
            0.0,
            "",
            0.0,
        )
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

    def read(self):
        try:
            ended = self._how_it_ended()  # asked before the last records are read
            moment = super().read()
        except StoreError as error:
            raise WatchError(str(error)) from error
        except sqlite3.Error as error:
            raise WatchError(f"cannot read {self._directory}: {error}") from error
        if ended and not moment.behind:
            moment.ended = ended
        return moment

    def _opened(self):
        return RunSource(
            lambda: Store.open(self._directory), self._meta["run"], self._meta["board_dir"]
        )

    def _follow(self):
        """Its parent does."""

    def _counts(self, record):
        return True

    def _states(self):
        store = Store.open(self._directory)
        try:
            return {
                str(record.pid): record.state
                for record, _ in store.processes()
                if record.state != "running"
            }
        finally:
            store.close()

    def _how_it_ended(self):
        if not self._ended and time.monotonic() >= self._asked + META_S:
            self._asked = time.monotonic()
            store = Store.open(self._directory)
            try:
                meta = store.meta()
                if "exit_code" in meta or self._asked >= self._health + HEALTH_S:
                    self._health, self._lost = (
                        self._asked,
                        sum(health.get("records_lost") or 0 for _, health in store.processes()),
                    )
            finally:
                store.close()
            if "exit_code" in meta:
                self._ended = (
                    f"the job has ended with exit code {meta['exit_code']} at"
                    f" {time.strftime('%H:%M:%S', time.localtime(meta.get('end')))}"
                )
            elif not process_exists(meta.get("parent", 0), meta.get("parent_ticks", 0)):
                self._ended = "the job's parent has gone; dwsr-probe report collects what is left"
        return self._ended


def named(word, directories=None):
    """The run that a person means: by directory or name (see find_run), or by its name on boards
    that are there. WatchError."""
    try:
        return RunDirectory(find_run(word, lambda _: None))  # the title says which one
    except StoreError:
        pass
    here = {
        p.run
        for p in Boards(directories).read().processes
        if p.run == word or p.run.rpartition("-")[0] == word
    }
    if len(here) == 1:
        return Boards(directories, here.pop())
    raise WatchError(
        f"there is no run {word!r} here: neither a run directory nor a running job of this name;"
        " without a name, top shows all boards of this machine"
    )
