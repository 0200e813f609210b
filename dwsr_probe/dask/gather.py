"""`dwsr_probe.dask.records(client)`: the records of all workers of a cluster, as a DataFrame.

Runs in the client. held.py answers in the workers.
"""

from __future__ import annotations

import asyncio
import json
import time
import warnings
from typing import TYPE_CHECKING, Any, NamedTuple

from dask.utils import parse_timedelta

from dwsr_probe.dask import roll
from dwsr_probe.dask.held import of_this_worker, unpack
from dwsr_probe.record import FIELDS, NESTED, TYPES, from_row

try:
    import pandas as pd
    from pandas.plotting import PlotAccessor
except ImportError as error:
    raise ImportError(
        f"dwsr_probe.dask.records needs pandas: pip install 'dwsr-probe[dask]' ({error})"
    ) from error

if TYPE_CHECKING:
    from collections.abc import Collection

    from distributed import Client

    from dwsr_probe.store import Store

_PROCESS, _SEQ, _START, _RSS_BEFORE = (
    FIELDS.index(name) for name in ("process", "seq", "start", "rss_before_bytes")
)
_POLL_S = 0.1


class _Plot(PlotAccessor):
    """`frame.plot()` is memory over time, by Bokeh. With pandas' own arguments (x, y, kind) and as
    `frame.plot.hist()` it is pandas' plot."""

    def __call__(self, *args: Any, **options: Any) -> Any:
        if args or {"x", "y", "kind"} & set(options):
            return super().__call__(*args, **options)
        from dwsr_probe.report.memory_plot import figure_of

        return figure_of(self._parent._store(), **options)


class Records(pd.DataFrame):
    """One row per task, named as in the record (docs/figures.md).

    `lost`: number of tasks whose records were overwritten before this call; `unmeasured`: addresses
    of workers without a probe; `missing`: addresses of killed workers whose tasks are not here."""

    _metadata = ["lost", "unmeasured", "missing", "_boards"]
    plot = property(_Plot)

    @property
    def _constructor(self) -> type[Records]:
        return Records

    def summary(self) -> Any:
        """One row per task name, the largest own peak first. Numbers are shown with units."""
        from dwsr_probe.report.readable import summary_of

        return summary_of(self)

    def to_page(self, path: str = "report.html") -> str:
        """Write the page of `dwsr-probe report --format html`, with the tasks of this frame, to a
        file. Returns its path."""
        from dwsr_probe.report.html import write_page

        write_page(self._store(), path, lambda *_: None)
        return path

    def _store(self) -> Store:
        """A store in memory: all processes and samples, and the tasks that are in this frame."""
        boards = getattr(self, "_boards", None) or Boards()
        if {"process", "seq"} <= set(self.columns):
            return boards.store(set(zip(self["process"], self["seq"], strict=True)))
        return boards.store(boards.rows)


class Boards:
    """What the workers sent. Several workers may share a process, so everything is kept by key. It
    is pickled with its frame."""

    def __init__(self, origin: str | None = None) -> None:
        self.origin, self.gathered = origin, time.time()
        self.rows: dict[tuple[str, int], Any] = {}  # by process and seq
        self.processes: dict[str, tuple[Any, dict[str, Any]]] = {}  # row and health
        self.samples: dict[tuple[str, int], tuple[bytes, float]] = {}  # packed samples and epoch

    def add(self, packed: bytes) -> None:
        rows, processes, samples = unpack(packed)
        self.rows.update(((row[_PROCESS], row[_SEQ]), row) for row in rows)
        self.processes.update((row[_PROCESS], (row, health)) for row, health in processes)
        self.samples.update(
            ((process, first), (packed, epoch)) for process, first, packed, epoch in samples
        )

    def lost(self) -> int:
        return sum(health.get("records_lost") or 0 for _, health in self.processes.values())

    def store(self, wanted: Collection[tuple[str, int]]) -> Store:
        """A store in memory. wanted: (process, seq) of the tasks to put in."""
        from dwsr_probe.store import Store

        store = Store.in_memory()
        first_sample: dict[str, float] = {}
        store.begin()
        if self.origin:
            store.set_meta(run=self.origin, gathered=self.gathered)
        for (process, first), (packed, epoch) in sorted(self.samples.items()):
            store.add_samples(process, first, packed, epoch)
            first_sample.setdefault(process, epoch + int.from_bytes(packed[:8], "little") / 1e9)
        store.add_merged(self._samples_from_tasks(first_sample))
        store.add_rows(row for key, row in self.rows.items() if key in wanted)
        for row, health in self.processes.values():
            store.put_process(from_row(row), health)
        store.commit()
        return store

    def _samples_from_tasks(
        self, first_sample: dict[str, float]
    ) -> list[tuple[str, int, int, int, int, int]]:
        """Samples for the time before the first sample: a board holds some 16,000 samples, and its
        tasks go further back. The resident size at the begin of each earlier task is used as a
        sample: (process, second, least, largest, peak, number)."""
        seconds: dict[tuple[str, int], list[int]] = {}
        for row in self.rows.values():
            process, start, size = row[_PROCESS], row[_START], row[_RSS_BEFORE]
            if size is not None and start < first_sample.get(process, float("inf")) - 1:
                known = seconds.setdefault((process, int(start)), [size, size, 0])
                known[:] = min(known[0], size), max(known[1], size), known[2] + 1
        return [
            (process, second, low, high, high, count)
            for (process, second), (low, high, count) in seconds.items()
        ]


class Gathered(NamedTuple):
    answers: dict[str, Any]  # by the worker's address: held.of_this_worker, or an exception
    missing: list[roll.Gone]
    scheduler: str


def records(client: Client, timeout: str = "30s") -> Any:
    """Finished tasks that the workers' boards still hold (at least 8,192 of the newest per
    process), those of killed workers that were restarted, and those from before the probe was
    switched off: a Records, or an awaitable of one with an asynchronous client.

    The tasks of a worker that was just killed are there once its nanny has started another worker.
    The call waits for that worker until `timeout` after the kill. A warning and `.missing` name the
    workers whose tasks are still missing then."""
    found = client.sync(_gather, client, parse_timedelta(timeout))
    if client.asynchronous:

        async def later() -> Records:
            return _frame(await found)

        return later()
    return _frame(found)


async def _gather(client: Client, timeout: float) -> Gathered:
    """Runs on the client's event loop, where the client's methods are awaitables."""
    began = time.time()
    answers = await client.run(of_this_worker, on_error="return")
    missing, waits = await _find_missing(client, answers, began, timeout)
    if waits:
        while waits:
            await asyncio.sleep(_POLL_S)
            missing, waits = await _find_missing(client, answers, began, timeout)
        answers = await client.run(of_this_worker, on_error="return")
        missing, _ = await _find_missing(client, answers, began, timeout)
    return Gathered(answers, missing, client.scheduler.address)


async def _find_missing(
    client: Client, answers: dict[str, Any], began: float, timeout: float
) -> tuple[list[roll.Gone], bool]:
    """Killed workers without a successor, and whether one of them may still be restarted in
    time."""
    present = {address for address, answer in answers.items() if not isinstance(answer, Exception)}
    missing, waits = [], False
    for one in roll.gone(await client.get_events(roll.TOPIC), present):
        events = [
            (at, event.get("action"))
            for at, event in await client.get_events(one.address)
            if isinstance(event, dict)
        ]
        if any(action == "closing-worker" for _, action in events):  # cleanly, under `run`
            continue
        at, action = next(
            (found for found in reversed(events) if found[1] in ("add-worker", "remove-worker")),
            (0, None),
        )
        if action == "add-worker":
            if one.address not in answers:  # the worker joined after the request
                continue
            at = began  # the worker could not answer; the scheduler will notice
        missing.append(one)
        waits = waits or (one.will_restart and time.time() - at < timeout)
    return missing, waits


def _frame(gathered: Gathered) -> Records:
    boards = Boards(f"Dask cluster {gathered.scheduler}")
    dropped: dict[str, int] = {}
    unmeasured = []
    for address, answer in gathered.answers.items():
        if not isinstance(answer, dict) or not answer["measured"]:  # no probe, or no answer
            unmeasured.append(address)
        if isinstance(answer, dict):
            dropped.update(answer["dropped"])
            for packed in answer["boards"]:
                boards.add(packed)
    nested = {FIELDS.index(name) for name in NESTED}
    frame = Records(
        [
            [
                json.loads(value) if i in nested and value is not None else value
                for i, value in enumerate(row)
            ]
            for row in boards.rows.values()
        ],
        columns=list(FIELDS),
    )
    numbers = [name for name in FIELDS if TYPES[name] in (int, float)]
    frame[numbers] = frame[numbers].apply(pd.to_numeric)
    frame.lost, frame.unmeasured = boards.lost() + sum(dropped.values()), unmeasured
    frame.missing, frame._boards = [one.address for one in gathered.missing], boards
    _warn(gathered, frame)
    return frame


def _warn(gathered: Gathered, frame: Records) -> None:
    answers, texts = gathered.answers, []
    for one in gathered.missing:
        if one.run:
            why = ": `dwsr-probe run` collects them in the run directory"
        elif one.will_restart:
            why = " until its nanny has restarted it: call records(client) again"
        else:
            why = ": no nanny restarts it"
        texts.append(
            f"worker {one.address} was killed; its tasks are missing here{why}"
            f" (its board: {one.host}:{one.board})"
        )
    if not len(frame) and not texts:
        if not answers:
            texts.append("the cluster has no workers now")
        elif all(isinstance(answer, Exception) for answer in answers.values()):
            texts.append(f"no worker could answer: {next(iter(answers.values()))!r}")
        elif len(frame.unmeasured) == len(answers):
            texts.append(
                "no worker is measured: client.register_plugin(dwsr_probe.dask.Probe()),"
                " or see the workers' logs"
            )
    if texts:
        warnings.warn("dwsr-probe: " + "; ".join(texts), stacklevel=3)
