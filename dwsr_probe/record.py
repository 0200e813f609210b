"""The record: one finished, running or killed task, or one process. The contract of every
program that reads us.

The dataclass is the one list of fields: JSON names, the store's columns, the types of Arrow and
pandas, and where a figure stands on the board come from it. A new figure of the board is one
line here, under its name in csrc/board_layout.h. Fields may be added at the end, never renamed.
Absent is not zero: what was not measured is None.
"""

import json
import re
from json.encoder import encode_basestring_ascii as quote

from dwsr_probe import _core
from dwsr_probe.dataclass import MISSING, dataclass, field, fields

STATES = {1: "running", 2: "ok", 3: "error", 4: "cancelled", 5: "killed"}
SOURCES = {1: "kernel", 2: "sampled"}
ATTRIBUTIONS = {1: "exact", 2: "shared"}


def _of(source, default=None, **options):
    """A field that is not a word of the board under the same name.

    source: an expression of `board` (origin.Origin), of the words in braces by their names on
    the board, of `running`, and of what follows
    them: the texts name, key, inputs and output, and gpu and oom. Nested fields are JSON text,
    as in the store.
    """
    return field(**options or {"default": default}, metadata={"source": source})


@dataclass(slots=True)
class TaskRecord:
    """`kind` is "task", or "process" for a process's own row, which is not a task."""

    # order of end in its process, from 1; None while it runs
    seq: int | None = _of("None if running else {seq}")
    run: str | None = _of("board.run")
    host: str | None = _of("board.host")
    pid: int | None = _of("board.pid")
    process: str | None = _of("board.process")  # pid and start time: pids recur
    worker: str | None = _of("board.worker_of({worker})")
    thread: int | None = None
    key: str | None = _of("key or None")
    task_name: str = _of("name", "")
    state: str = _of("STATES.get({state}, 'error')", "running")
    start: float | None = _of("board.epoch_of({start_ns} or 0)")  # epoch seconds
    duration: float | None = _of("None if running else ({duration_ns} or 0) / 1e9")  # seconds
    inputs: list = _of("inputs or '[]'", default_factory=list)
    inputs_omitted: int = _of("{inputs_omitted} or 0", 0)
    input_bytes: int | None = None
    output: dict | None = _of("output or None")
    output_bytes: int | None = None
    rss_before_bytes: int | None = None
    rss_peak_bytes: int | None = None
    rss_peak_source: str | None = _of("SOURCES.get({rss_source})")
    rss_error_bytes: int | None = _of("board.rss_error_bytes")
    alloc_peak_bytes: int | None = None
    alloc_end_bytes: int | None = None
    alloc_count: int | None = None
    gc_freed_bytes: int | None = None
    # per device; [] if it allocated on none
    gpu: list | None = _of("gpu and devices_text(gpu) if gpu != () else '[]'")
    oom: dict | None = _of("oom and oom_text(oom)")
    overlap: int | None = None
    attribution: str | None = _of("ATTRIBUTIONS.get({attribution})")
    kind: str = _of("'task'", "task")
    pinned_peak_bytes: int | None = None  # page-locked host memory from CuPy
    pinned_end_bytes: int | None = None
    page_faults: int | None = None  # minor and major, of the task's own thread
    major_page_faults: int | None = None  # of these: those that read a disk

    @property
    def rss_growth_bytes(self):
        """Peak above the resident size at begin."""
        return growth_of(self.rss_peak_bytes, self.rss_before_bytes)

    @property
    def own_peak_bytes(self):
        """What the task needed on the host: its own peak, or, where allocations are not
        accounted, growth. Of a killed task what it had so far."""
        return self.rss_growth_bytes if self.alloc_peak_bytes is None else self.alloc_peak_bytes

    @property
    def gpu_peak_bytes(self):
        """The same of the device where it is largest; None where devices were not followed."""
        return largest_device(self.gpu)

    @property
    def known_input_bytes(self):
        """input_bytes; where the size of some input is not known, the sum of the others, as the
        model counts. None: none is known."""
        if self.input_bytes is not None:
            return self.input_bytes
        known = [
            given["nbytes"]
            for given in self.inputs
            if isinstance(given, dict) and isinstance(given.get("nbytes"), int)
        ]
        return sum(known) if known else None

    def to_dict(self):
        return {name: getattr(self, name) for name in FIELDS}

    def to_json(self):
        return json_of_row(to_row(self))


def growth_of(rss_peak, rss_before):
    return None if rss_peak is None or rss_before is None else max(0, rss_peak - rss_before)


def largest_device(devices):
    """Peak on the device where it is largest, of a record's `gpu`."""
    return max((d["peak_bytes"] for d in devices), default=0) if isinstance(devices, list) else None


FIELDS = tuple(f.name for f in fields(TaskRecord))
# int, float or str, or object for lists and dicts: what a field is, without None
TYPES = {
    f.name: object if kind in (list, dict) else kind
    for f in fields(TaskRecord)
    for kind in [
        next(one for one in getattr(f.type, "__args__", (f.type,)) if one is not type(None))
    ]
}
NESTED = tuple(name for name, kind in TYPES.items() if kind is object)  # JSON text in the run store
# What a stored run of an earlier version has where it lacks the field
DEFAULTS = {
    f.name: f.default if f.default is not MISSING else json.dumps(f.default_factory())
    for f in fields(TaskRecord)
}
_WORDS = {name: i for i, name in enumerate(_core.TASK_FIELDS)}
SERIAL = _WORDS["serial"]


def devices_text(found):
    """JSON of a task's devices, from words by TASK_DEVICE_FIELDS. Boards before version 6 have
    the text itself."""
    if isinstance(found, str):
        return found
    devices = (dict(zip(_core.TASK_DEVICE_FIELDS, words, strict=True)) for words in found)
    return _compact(
        [
            {
                "device": d["device"] - 1,
                "peak_bytes": d["peak_bytes"],
                "end_bytes": d["live_bytes"],
                "pool_used_bytes": d["pool_used_bytes"],
                "pool_total_bytes": d["pool_total_bytes"],
            }
            for d in devices
        ]
    )


def oom_text(found):
    """JSON of a failed allocation, in the same way from words by OOM_FIELDS."""
    if isinstance(found, str):
        return found
    oom = dict(zip(_core.OOM_FIELDS, found, strict=True))
    count, device = oom.pop("count"), oom.pop("device")
    where = (
        "host"
        if device == _core.OOM_ON_HOST
        else "pinned"
        if device == _core.PINNED
        else f"gpu:{device}"
    )
    return _compact({"where": where, **oom, "count": count})


def _compact(value):
    return json.dumps(value, separators=(",", ":"))


def _made(name, body, **used):
    """A function over all fields, written out from their list: there are 50,000 records a
    second, and a loop over the fields takes three times as long."""
    exec(f"def {name}{body}", used)
    return used[name]


def _row_maker():
    sources = (f.metadata.get("source", f"{{{f.name}}}") for f in fields(TaskRecord))
    values = (
        re.sub(r"{(\w+)}", lambda word: f"words[{_WORDS[word[1]]}]", source) for source in sources
    )
    return _made(
        "row_of",
        "(board, raw):\n"
        "    words, name, key, inputs, output, gpu, oom = raw\n"
        f"    running = words[{_WORDS['state']}] == 1\n"
        f"    return ({', '.join(values)})",
        devices_text=devices_text,
        oom_text=oom_text,
        STATES=STATES,
        SOURCES=SOURCES,
        ATTRIBUTIONS=ATTRIBUTIONS,
    )


row_of = _row_maker()
row_of.__doc__ = """The reader's tuple as a row in the order of FIELDS, nested fields as JSON text:
the form that the store keeps.

A running task has neither seq nor duration."""


def to_row(record):
    return tuple(
        (
            json.dumps(getattr(record, n))
            if n in NESTED and getattr(record, n) is not None
            else getattr(record, n)
        )
        for n in FIELDS
    )


def _line_maker():
    def value(name):
        plain = TYPES[name] is not str  # nested fields are JSON already
        return f'"{name}":{{"null" if {name} is None else {name if plain else f"quote({name})"}}}'

    return _made(
        "json_of_row",
        f"(row):\n    {', '.join(FIELDS)} = row\n    return"
        f" f'''{{{{{','.join(map(value, FIELDS))}}}}}'''",
        quote=quote,
    )


json_of_row = _line_maker()
json_of_row.__doc__ = "A row as one line of JSON."


def json_of(text, otherwise):
    """Slots carry no checksum: a damaged one must not stop its reader."""
    try:
        return json.loads(text)
    except ValueError:
        return otherwise


def nested_of(name, text):
    """A nested field of a row, parsed; what is broken is absent."""
    if text is None:
        return [] if name == "inputs" else None
    return json_of(text, [] if name == "inputs" else None)


def _record_maker():
    values = (f"nested({name!r}, {name})" if name in NESTED else name for name in FIELDS)
    return _made(
        "from_row",
        f"(row, nested=nested_of):\n    {', '.join(FIELDS)} = row\n    return"
        f" TaskRecord({', '.join(values)})",
        TaskRecord=TaskRecord,
        nested_of=nested_of,
    )


from_row = _record_maker()
from_row.__doc__ = """A row as a record. nested(field, JSON text): parses the nested fields."""


def record_of(board, raw):
    return from_row(row_of(board, raw))
