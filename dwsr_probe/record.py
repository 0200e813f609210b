"""The record: one finished, running or killed task, or one process. The contract of every program that reads us.

The dataclass is the one list of fields; the run store's columns and the JSON names come from it. Fields may be added, never renamed.
Absent is not zero: what was not measured is None.
"""
import json
from json.encoder import encode_basestring_ascii as quote

from dwsr_probe import _core
from dwsr_probe.dataclass import dataclass, field, fields

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
    gpu: list | None = None  # per device; [] if it allocated on none
    oom: dict | None = None
    overlap: int | None = None
    attribution: str | None = None
    kind: str = "task"
    pinned_peak_bytes: int | None = None  # page-locked host memory from CuPy
    pinned_end_bytes: int | None = None

    @property
    def rss_growth_bytes(self):
        """Peak above the resident size at begin."""
        if self.rss_peak_bytes is None or self.rss_before_bytes is None:
            return None
        return max(0, self.rss_peak_bytes - self.rss_before_bytes)

    @property
    def known_input_bytes(self):
        """input_bytes; where the size of some input is not known, the sum of the others, as the model counts. None: none is known."""
        if self.input_bytes is not None:
            return self.input_bytes
        known = [given["nbytes"] for given in self.inputs if isinstance(given, dict) and isinstance(given.get("nbytes"), int)]
        return sum(known) if known else None

    def to_dict(self):
        return {name: getattr(self, name) for name in FIELDS}

    def to_json(self):
        return json_of_row(to_row(self))


FIELDS = tuple(f.name for f in fields(TaskRecord))
NESTED = ("inputs", "output", "gpu", "oom")  # lists and dicts; JSON text in the run store


_INDEX = {name: i for i, name in enumerate(_core.TASK_FIELDS)}
(_SEQ, _THREAD, _STATE, _ATTRIBUTION, _START, _DURATION, _BEFORE, _PEAK, _SOURCE, _OVERLAP, _IN, _OMITTED, _OUT, _ALLOC_PEAK, _ALLOC_END, _ALLOC_COUNT, _GC_FREED, _PINNED_PEAK, _PINNED_END, _WORKER) = (
    _INDEX[name] for name in (
        "seq", "thread", "state", "attribution", "start_ns", "duration_ns", "rss_before_bytes", "rss_peak_bytes", "rss_source", "overlap",
        "input_bytes", "inputs_omitted", "output_bytes", "alloc_peak_bytes", "alloc_end_bytes", "alloc_count", "gc_freed_bytes", "pinned_peak_bytes", "pinned_end_bytes", "worker"))
SERIAL = _INDEX["serial"]


def text_of(raw):
    return raw.decode("utf-8", "replace")


def row_of(board, raw):
    """The reader's tuple as a row in the order of FIELDS, nested fields as JSON text: the form that the store keeps.

    A running task has neither seq nor duration.
    """
    words, name, key, inputs, output, gpu, oom = raw
    running = words[_STATE] == 1
    return (
        None if running else words[_SEQ], board.run, board.host, board.pid, board.process, board.worker_of(words[_WORKER]), words[_THREAD],
        text_of(key) if key else None, text_of(name), STATES.get(words[_STATE], "error"), board.epoch_of(words[_START] or 0),
        None if running else (words[_DURATION] or 0) / 1e9,
        text_of(inputs) if inputs else "[]", words[_OMITTED] or 0, words[_IN], text_of(output) if output else None, words[_OUT],
        words[_BEFORE], words[_PEAK], SOURCES.get(words[_SOURCE]), board.rss_error_bytes,
        words[_ALLOC_PEAK], words[_ALLOC_END], words[_ALLOC_COUNT], words[_GC_FREED], text_of(gpu) if gpu else None,
        text_of(oom) if oom else None, words[_OVERLAP], ATTRIBUTIONS.get(words[_ATTRIBUTION]), "task", words[_PINNED_PEAK], words[_PINNED_END])


def to_row(record):
    return tuple(json.dumps(getattr(record, n)) if n in NESTED and getattr(record, n) is not None else getattr(record, n) for n in FIELDS)


def _line_maker():
    """json_of_row as one expression over all fields, written out from their list: a stream has 50,000 lines a second, and a loop over 32 fields takes three times as long."""
    def value(f):
        plain = f.name in NESTED or f.type in (int, int | None, float | None)  # nested fields are JSON already
        return f'"{f.name}":{{"null" if {f.name} is None else {f.name if plain else f"quote({f.name})"}}}'
    code = f"def json_of_row(row):\n    {', '.join(FIELDS)} = row\n    return f'''{{{{{','.join(map(value, fields(TaskRecord)))}}}}}'''"
    made = {"quote": quote}
    exec(code, made)
    made["json_of_row"].__doc__ = "A row as one line of JSON."
    return made["json_of_row"]


json_of_row = _line_maker()


def json_of(text, otherwise):
    """Slots carry no checksum: a damaged one must not stop its reader."""
    try:
        return json.loads(text)
    except ValueError:
        return otherwise


def from_row(row):
    values = dict(zip(FIELDS, row, strict=True))
    values["inputs"] = values["inputs"] or "[]"
    for name in NESTED:
        if values[name] is not None:
            values[name] = json_of(values[name], [] if name == "inputs" else None)
    return TaskRecord(**values)


def record_of(board, raw):
    return from_row(row_of(board, raw))
