"""The record: one finished, running or killed task, or one process. The contract of every program that reads us.

The dataclass is the one list of fields; the run store's columns and the JSON names come from it. Fields may be added, never renamed.
Absent is not zero: what was not measured is None.
"""
import json
from dataclasses import dataclass, field, fields

from dwsr_probe import _core

STATES = {1: "running", 2: "ok", 3: "error", 4: "cancelled", 5: "killed"}
SOURCES = {1: "kernel", 2: "sampled"}
ATTRIBUTIONS = {1: "exact", 2: "shared"}


@dataclass(slots=True)
class TaskRecord:
    """`kind` is "task", or "process" for a process's own row, which is not a task."""

    seq: int | None = None  # order of end in its process, from 1; None while it runs
    run: str | None = None
    host: str | None = None
    pid: int | None = None
    process: str | None = None  # pid and start time: pids recur
    worker: str | None = None
    thread: int | None = None
    key: str | None = None
    task_name: str = ""
    state: str = "running"
    start: float | None = None  # epoch seconds
    duration: float | None = None  # seconds
    inputs: list = field(default_factory=list)
    inputs_omitted: int = 0
    input_bytes: int | None = None
    output: dict | None = None
    output_bytes: int | None = None
    rss_before_bytes: int | None = None
    rss_peak_bytes: int | None = None
    rss_peak_source: str | None = None
    rss_error_bytes: int | None = None
    alloc_peak_bytes: int | None = None
    alloc_end_bytes: int | None = None
    alloc_count: int | None = None
    gc_freed_bytes: int | None = None
    gpu: list | None = None
    oom: dict | None = None
    overlap: int | None = None
    attribution: str | None = None
    kind: str = "task"

    @property
    def rss_growth_bytes(self):
        """Peak above the resident size at begin."""
        if self.rss_peak_bytes is None or self.rss_before_bytes is None:
            return None
        return max(0, self.rss_peak_bytes - self.rss_before_bytes)

    def to_dict(self):
        return {name: getattr(self, name) for name in FIELDS}

    def to_json(self):
        return json.dumps(self.to_dict(), separators=(",", ":"))


FIELDS = tuple(f.name for f in fields(TaskRecord))
NESTED = ("inputs", "output", "gpu", "oom")  # lists and dicts; JSON text in the run store


def text_of(raw):
    return raw.decode("utf-8", "replace")


def _json_of(raw, empty):
    try:
        return json.loads(raw) if raw else empty
    except ValueError:
        return empty


_INDEX = {name: i for i, name in enumerate(_core.TASK_FIELDS)}
(_SEQ, _THREAD, _STATE, _ATTRIBUTION, _START, _DURATION, _BEFORE, _PEAK, _SOURCE, _OVERLAP, _IN, _OMITTED, _OUT) = (
    _INDEX[name] for name in (
        "seq", "thread", "state", "attribution", "start_ns", "duration_ns", "rss_before_bytes", "rss_peak_bytes", "rss_source", "overlap",
        "input_bytes", "inputs_omitted", "output_bytes"))
SERIAL = _INDEX["serial"]


def record_of(board, raw):
    """A TaskRecord from the reader's tuple and the board it came from. A running task's duration is None."""
    words, name, key, inputs, output = raw
    running = words[_STATE] == 1
    return TaskRecord(
        seq=None if running else words[_SEQ], run=board.run, host=board.host, pid=board.pid, process=board.process,
        worker=board.worker, thread=words[_THREAD], key=text_of(key) if key else None, task_name=text_of(name),
        state=STATES.get(words[_STATE], "error"), start=board.epoch_of(words[_START]),
        duration=None if running else (words[_DURATION] or 0) / 1e9,
        inputs=_json_of(inputs, []), inputs_omitted=words[_OMITTED] or 0, input_bytes=words[_IN],
        output=_json_of(output, None), output_bytes=words[_OUT],
        rss_before_bytes=words[_BEFORE], rss_peak_bytes=words[_PEAK], rss_peak_source=SOURCES.get(words[_SOURCE]),
        rss_error_bytes=board.rss_error_bytes, overlap=words[_OVERLAP], attribution=ATTRIBUTIONS.get(words[_ATTRIBUTION]))
