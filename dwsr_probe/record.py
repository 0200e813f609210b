"""The record of one finished, running or killed task, or of one process. It is the contract with
every program that reads what dwsr-probe measures.

The class TaskRecord is the one list of fields. JSON names, the store's columns, the types of Arrow
and pandas, and the place of a figure on the board are derived from it. A new figure of the board
is one line here, under its name in csrc/board_layout.h. Fields may be added at the end, never
renamed. None means "not measured"; it does not mean zero.

A task has three forms on its way from the board to a reader:
- raw: the tuple of words and texts that _core unpacks from a frame or a slot;
- row: a tuple in the order of FIELDS, nested fields as JSON text, as the store keeps it;
- record: a TaskRecord, nested fields parsed.

Annotations are evaluated here, because TYPES is derived from those of TaskRecord.
"""

import json
from functools import cache
from json.encoder import encode_basestring_ascii as quote

from dwsr_probe import _core
from dwsr_probe.dataclass import MISSING, dataclass, field, fields

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    Row = tuple[Any, ...]
    Words = tuple[int | None, ...]
    # words by TASK_FIELDS; name, key, inputs, output; devices; failed allocation; detail of the
    # attribution's reason, operation, chain, parameters
    Raw = tuple[
        Words,
        str,
        str,
        str,
        str,
        tuple[Words, ...] | str | None,
        Words | str | None,
        str,
        str,
        str,
        str,
    ]

STATES = {
    _core.TASK_RUNNING: "running",
    _core.TASK_OK: "ok",
    _core.TASK_ERROR: "error",
    _core.TASK_CANCELLED: "cancelled",
    _core.TASK_KILLED: "killed",
}
RSS_PEAK_SOURCES = {_core.RSS_KERNEL: "kernel", _core.RSS_SAMPLED: "sampled"}
ATTRIBUTIONS = {_core.ATTRIBUTION_EXACT: "exact", _core.ATTRIBUTION_SHARED: "shared"}
# A thread or library that is known follows the word: "unowned-thread zarr_io".
ATTRIBUTION_REASONS = {
    _core.REASON_COROUTINE: "coroutine",
    _core.REASON_EVENT_LOOP: "event-loop",
    _core.REASON_NATIVE_THREADS: "native-threads",
    _core.REASON_UNOWNED_THREAD: "unowned-thread",
    _core.REASON_FOREIGN_ALLOCATOR: "foreign-allocator",
    _core.REASON_INNER_TASKS: "inner-tasks",
}
# For these reasons the own peak may miss memory that the task took: it promises nothing.
_UNSEEN_REASONS = frozenset(
    ATTRIBUTION_REASONS[reason]
    for reason in (
        _core.REASON_COROUTINE,
        _core.REASON_EVENT_LOOP,
        _core.REASON_NATIVE_THREADS,
        _core.REASON_UNOWNED_THREAD,
        _core.REASON_FOREIGN_ALLOCATOR,
    )
)


def _computed(expression: str, default: "Any" = None, **options: "Any") -> "Any":
    """A field that is not simply the word of the same name on the board.

    expression: the source text that row_of computes the field with. It may use `board`
    (origin.Origin), the words of the board as {name}, `running`, the texts name, key, inputs,
    output, operation, chain and params, gpu and oom, and detail. Nested fields are JSON text.
    """
    return field(**options or {"default": default}, metadata={"expression": expression})


@dataclass(slots=True)
class TaskRecord:
    """`kind` is "task", or "process" for a process's own row, which is not a task."""

    # order of end in its process, from 1; None while it runs
    seq: int | None = _computed("None if running else {seq}")
    run: str | None = _computed("board.run")
    host: str | None = _computed("board.host")
    pid: int | None = _computed("board.pid")
    process: str | None = _computed("board.process")  # pid and start time: pids recur
    worker: str | None = _computed("board.worker_of({worker})")
    thread: int | None = None
    key: str | None = _computed("key or None")
    task_name: str = _computed("name", "")
    state: str = _computed("STATES.get({state}, 'error')", "running")
    start: float | None = _computed("board.epoch_of({start_ns} or 0)")  # epoch seconds
    duration: float | None = _computed("None if running else ({duration_ns} or 0) / 1e9")  # seconds
    inputs: list = _computed("inputs or '[]'", default_factory=list)
    inputs_omitted: int = _computed("{inputs_omitted} or 0", 0)
    input_bytes: int | None = None
    output: dict | None = _computed("output or None")
    output_bytes: int | None = None
    rss_before_bytes: int | None = None
    rss_peak_bytes: int | None = None
    rss_peak_source: str | None = _computed("RSS_PEAK_SOURCES.get({rss_source})")
    rss_error_bytes: int | None = _computed("board.rss_error_bytes")
    alloc_peak_bytes: int | None = None
    alloc_end_bytes: int | None = None
    alloc_count: int | None = None
    gc_freed_bytes: int | None = None
    # per device; [] if it allocated on none
    gpu: list | None = _computed("gpu and devices_text(gpu) if gpu != () else '[]'")
    oom: dict | None = _computed("oom and oom_text(oom)")
    overlap: int | None = None
    attribution: str | None = _computed("ATTRIBUTIONS.get({attribution})")
    kind: str = _computed("'task'", "task")
    pinned_peak_bytes: int | None = None  # page-locked host memory from CuPy
    pinned_end_bytes: int | None = None
    page_faults: int | None = None  # minor and major, of the task's own thread
    major_page_faults: int | None = None  # of these: those that read a disk
    # why it is shared; None if it is exact
    attribution_reason: str | None = _computed("reason_text({attribution_reason}, detail)")
    # of a graph's task: the job's own function in it; None if there is none
    operation: str | None = _computed("operation or None")
    # names of the functions inside it, in the order of their execution; None: there is only one
    chain: list | None = _computed("chain or None")
    # numbers and booleans among the arguments, by name or position; {} if there are none
    params: dict | None = _computed("params or None")

    @property
    def rss_growth_bytes(self) -> int | None:
        """How far the peak was above the resident size at begin."""
        return growth_of(self.rss_peak_bytes, self.rss_before_bytes)

    @property
    def own_peak_bytes(self) -> int | None:
        """The host memory that the task needed: see needed_bytes. For a killed task: up to its
        end."""
        return needed_bytes(
            self.alloc_peak_bytes, self.rss_growth_bytes, self.attribution_reason, self.overlap
        )

    @property
    def gpu_peak_bytes(self) -> int | None:
        """The task's peak on the device where it is largest; None if devices were not followed."""
        return largest_device_peak(self.gpu)

    @property
    def known_input_bytes(self) -> int | None:
        """input_bytes, or the sum of the inputs whose size is known, as the model counts. None if
        no size is known."""
        if self.input_bytes is not None:
            return self.input_bytes
        known = [
            given["nbytes"] * (given.get("count") or 1)
            for given in self.inputs
            if isinstance(given, dict) and isinstance(given.get("nbytes"), int)
        ]
        return sum(known) if known else None

    def to_dict(self) -> "dict[str, Any]":
        return {name: getattr(self, name) for name in FIELDS}

    def to_json(self) -> str:
        return json_of_row(to_row(self))


def growth_of(rss_peak: int | None, rss_before: int | None) -> int | None:
    return None if rss_peak is None or rss_before is None else max(0, rss_peak - rss_before)


def misses_memory(attribution_reason: str | None) -> bool:
    """Whether a task whose record has this reason may have taken memory that its own peak does not
    include."""
    return (attribution_reason or "").split(" ", 1)[0] in _UNSEEN_REASONS


def needed_bytes(
    alloc_peak: int | None, growth: int | None, attribution_reason: str | None, overlap: int | None
) -> int | None:
    """The host memory that a task needed: the peak of its own allocations, or growth of the
    resident size where allocations are not accounted. Where the own peak may miss memory: the
    larger one of both, if the task ran alone."""
    if alloc_peak is None:
        return growth
    if growth is not None and not overlap and misses_memory(attribution_reason):
        return max(alloc_peak, growth)
    return alloc_peak


def largest_device_peak(devices: "list[dict[str, Any]] | None") -> int | None:
    """The peak on the device where it is largest. devices: the field `gpu` of a record."""
    return max((d["peak_bytes"] for d in devices), default=0) if isinstance(devices, list) else None


def _type_of(annotation: "Any") -> type:
    kinds = getattr(annotation, "__args__", (annotation,))
    kind = next(one for one in kinds if one is not type(None))
    return object if kind in (list, dict) else kind


FIELDS = tuple(f.name for f in fields(TaskRecord))
# The type of a field where it is not None: int, float, str, or object for lists and dicts
TYPES: dict[str, type] = {f.name: _type_of(f.type) for f in fields(TaskRecord)}
NESTED = tuple(name for name, kind in TYPES.items() if kind is object)  # JSON text in the run store
# The value of a field that a stored run of an earlier version lacks
DEFAULTS: "dict[str, Any]" = {
    f.name: json.dumps(f.default_factory())  # type: ignore[operator]  # present, if no default is
    if f.default is MISSING
    else f.default
    for f in fields(TaskRecord)
}
_WORD_INDEXES = {name: i for i, name in enumerate(_core.TASK_FIELDS)}
SERIAL_INDEX = _WORD_INDEXES["serial"]  # in the words of a raw tuple


def reason_text(reason: int | None, detail: str) -> str | None:
    word = ATTRIBUTION_REASONS.get(reason or _core.REASON_NONE)
    return f"{word} {detail}" if word and detail else word


def devices_text(found: "Sequence[Words] | str") -> str:
    """JSON of a task's devices, from words by TASK_DEVICE_FIELDS. Boards before version 6 have
    the JSON text itself."""
    if isinstance(found, str):
        return found
    devices: list[dict[str, Any]] = [
        dict(zip(_core.TASK_DEVICE_FIELDS, words, strict=True)) for words in found
    ]
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


def oom_text(found: "Words | str") -> str:
    """JSON of a failed allocation, from words by OOM_FIELDS or, as above, from the text itself."""
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


def _compact(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))


def _compiled(name: str, body: str, **namespace: "Any") -> "Callable[..., Any]":
    """A function whose source names every field. At 50,000 records a second a loop over the
    fields would take three times as long."""
    exec(f"def {name}{body}", namespace)
    return namespace[name]


@cache
def compiled_row_of() -> "Callable[[Any, Raw], Row]":
    """row_of(board, raw): a raw tuple as a row. A running task has neither seq nor duration.

    board: an origin.Origin.
    """
    expressions = (f.metadata.get("expression", f"{{{f.name}}}") for f in fields(TaskRecord))
    words = {name: f"words[{index}]" for name, index in _WORD_INDEXES.items()}
    values = (expression.format_map(words) for expression in expressions)
    return _compiled(
        "row_of",
        "(board, raw):\n"
        "    words, name, key, inputs, output, gpu, oom, detail, operation, chain, params = raw\n"
        f"    running = words[{_WORD_INDEXES['state']}] == {_core.TASK_RUNNING}\n"
        f"    return ({', '.join(values)})",
        devices_text=devices_text,
        oom_text=oom_text,
        reason_text=reason_text,
        STATES=STATES,
        RSS_PEAK_SOURCES=RSS_PEAK_SOURCES,
        ATTRIBUTIONS=ATTRIBUTIONS,
    )


def to_row(record: TaskRecord) -> "Row":
    return tuple(
        (
            json.dumps(getattr(record, n))
            if n in NESTED and getattr(record, n) is not None
            else getattr(record, n)
        )
        for n in FIELDS
    )


def _compile_json_of_row() -> "Callable[[Row], str]":
    # nested fields are JSON already
    texts = (f"quote({name})" if TYPES[name] is str else name for name in FIELDS)
    values = (
        f"'null' if {name} is None else {text}" for name, text in zip(FIELDS, texts, strict=True)
    )
    line = "{" + ",".join(f'"{name}":%s' for name in FIELDS) + "}"
    return _compiled(
        "json_of_row",
        f"(row):\n    {', '.join(FIELDS)} = row\n    return {line!r} % ({', '.join(values)})",
        quote=quote,
    )


json_of_row = _compile_json_of_row()
json_of_row.__doc__ = "A row as one line of JSON."


def parse_json(text: str, otherwise: "Any") -> "Any":
    """The parsed text, or `otherwise` if it is not JSON. Slots carry no checksum, and a damaged
    slot must not stop its reader."""
    try:
        return json.loads(text)
    except ValueError:
        return otherwise


def parse_nested(name: str, text: str | None) -> "Any":
    """A nested field of a row, parsed. A text that is not JSON counts as absent."""
    if text is None:
        return [] if name == "inputs" else None
    return parse_json(text, [] if name == "inputs" else None)


@cache
def compiled_from_row() -> "Callable[..., TaskRecord]":
    """from_row(row, nested=parse_nested): a row as a record. nested(field, JSON text) parses the
    nested fields."""
    values = (f"nested({name!r}, {name})" if name in NESTED else name for name in FIELDS)
    return _compiled(
        "from_row",
        f"(row, nested=parse_nested):\n    {', '.join(FIELDS)} = row\n    return"
        f" TaskRecord({', '.join(values)})",
        TaskRecord=TaskRecord,
        parse_nested=parse_nested,
    )


if TYPE_CHECKING:
    row_of = compiled_row_of()
    from_row = compiled_from_row()
else:

    def __getattr__(name):
        """row_of and from_row are compiled when they are first used: the parent of a run needs
        neither, and compiling them takes half a millisecond."""
        if name == "row_of":
            return compiled_row_of()
        if name == "from_row":
            return compiled_from_row()
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def record_of(board: "Any", raw: "Raw") -> TaskRecord:
    """board: an origin.Origin."""
    return compiled_from_row()(compiled_row_of()(board, raw))
