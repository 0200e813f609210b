"""The fields of a record that the model uses, checked. ValueError for impossible figures: records
may come from anywhere. Called by model.py and lines.py."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from dwsr_probe.predict.group import Group
from dwsr_probe.predict.params import Given, parse_params
from dwsr_probe.predict.sizes import Array, non_negative_int, parse_inputs, short_text
from dwsr_probe.predict.unseen import REASONS
from dwsr_probe.predict.variant import output_kind_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from dwsr_probe.predict.sizes import Arrays

    Get = Callable[..., Any]  # a field of a record by its name, or a default

Identity = tuple[Any, Any, Any]  # process, thread and start of a task
Peaks = dict[str, int]  # bytes by kind
NAME_CHARS_MOST = 10_000  # of a task name, an operation, or all names of a chain together
ENDED_EARLY = ("error", "cancelled", "killed")
_STATES = ("ok", "running", *ENDED_EARLY)
_CHAIN_MOST = 256  # functions


class TaskNames(NamedTuple):
    """What a record says about whose memory it is."""

    task_name: str
    operation: str | None
    chain: tuple[str, ...]

    @property
    def group(self) -> Group:
        return Group(self.operation or self.task_name, self.chain)


class Kept(NamedTuple):
    """Bytes of the task that are live at its end beyond its output. Without a known output, they
    are between nothing and all that is live. 0 if nothing is known."""

    least_bytes: int
    most_bytes: int


class ParsedRecord(NamedTuple):
    """A record of a task, checked: a model that has it can refuse nothing."""

    names: TaskNames
    state: str
    given: Given
    late: Arrays  # of the inputs: those that only the end of the task tells
    peaks: Peaks  # where the own peak may miss memory: with the growth of the process
    output: dict[str, Any] | None
    output_kind: str  # see variant.py
    logical_bytes: int  # of an output that is a view; else 0
    oom_peaks: Peaks
    identity: Identity | None
    kept: Kept
    unseen: str | None  # the reason why the own peak may miss memory
    is_shared: bool  # the own peak may include memory of other tasks


def parse_record(record: Any) -> ParsedRecord | None:
    """A TaskRecord, or a dict with the same fields; None if it is not of a task. ValueError for
    impossible figures."""
    get = field_getter(record)
    names, state = parse_names(get), get("state", "ok")
    if state not in _STATES:
        raise ValueError(f"state is {str(state)[:60]!r}, not one of {', '.join(_STATES)}")
    if get("kind", "task") != "task":
        return None
    inputs = get("inputs") or []
    arrays = with_omitted(
        parse_inputs(inputs), inputs, get("input_bytes"), get("inputs_omitted") or 0
    )
    peaks, output, unseen = parse_peaks(get), parse_output(get("output")), parse_unseen(get)
    return ParsedRecord(
        names,
        state,
        Given(arrays, parse_params(get("params"))),
        parse_late(inputs),
        peaks if unseen is None else with_growth(peaks),
        output,
        output_kind_of(get("output")),
        output["nbytes"] if output and "logical_bytes" in get("output") else 0,
        parse_oom_peaks(get("oom")) if state == "error" else {},
        parse_identity(get),
        parse_kept(get),
        unseen,
        unseen is None and get("attribution") == "shared",
    )


def field_getter(record: Any) -> Get:
    return (
        record.get
        if isinstance(record, dict)
        else lambda name, default=None: getattr(record, name, default)
    )


def parse_names(get: Get) -> TaskNames:
    name, operation, chain = get("task_name"), get("operation"), get("chain")
    return TaskNames(
        _parse_name(name, "task name"),
        _parse_name(operation, "operation") if operation is not None else None,
        parse_chain(chain),
    )


def _parse_name(name: Any, what: str) -> str:
    if not isinstance(name, str) or not 0 < len(name) <= NAME_CHARS_MOST:
        raise ValueError(
            f"{what} is {str(name)[:60]!r}, not a text of 1 to {NAME_CHARS_MOST:,} characters"
        )
    return name


def parse_chain(chain: Any) -> tuple[str, ...]:
    """() if there is none."""
    if chain is None:
        return ()
    if (
        not isinstance(chain, (list, tuple))
        or len(chain) > _CHAIN_MOST
        or not all(isinstance(name, str) for name in chain)
        or sum(map(len, chain)) > NAME_CHARS_MOST
    ):
        raise ValueError(f"chain is {str(chain)[:60]!r}, not a list of at most {_CHAIN_MOST} names")
    return tuple(chain)


def parse_late(inputs: Any) -> Arrays:
    """The inputs that only the end of a task tells: what it read from a source inside it."""
    late = [given for given in inputs if isinstance(given, dict) and given.get("late")]
    return parse_inputs(late) if late else ()


def parse_identity(get: Get) -> Identity | None:
    """(process, thread, start), the same while a task runs and when it ends; None if the record
    does not have it."""
    identity = get("process"), get("thread"), get("start")
    for part in identity:
        if part is not None and (not isinstance(part, (str, int, float)) or part != part):
            raise ValueError(
                f"process, thread or start is {str(part)[:60]!r}, not a text or a number"
            )
    return None if identity[0] is None or identity[2] is None else identity


def parse_output(given: Any) -> dict[str, Any] | None:
    """As in the record, checked as an input is; None if there is none. The bytes of a view are
    logical ones: those that its shape tells."""
    if not given:
        return None
    if isinstance(given, dict) and given.get("logical_bytes") is not None:
        given = {**given, "nbytes": given["logical_bytes"]}  # a view may keep fewer or more
    (array,) = parse_inputs([given]) or (Array(None, 0),)
    return {
        "type": short_text(given.get("type")),
        "dtype": array.dtype,
        "shape": array.shape,
        "nbytes": array.nbytes,
    }


def parse_kept(get: Get) -> Kept:
    end, output = get("alloc_end_bytes"), get("output_bytes")
    if end is None:
        return Kept(0, 0)
    end = non_negative_int(end, "alloc_end_bytes")
    if output is None:
        return Kept(0, end)
    kept = max(0, end - non_negative_int(output, "output_bytes"))
    return Kept(kept, kept)


def with_omitted(arrays: Arrays, inputs: Any, input_bytes: Any, omitted: int) -> Arrays:
    """Inputs for which the record had no room become one more, of bytes alone. arrays: parsed from
    `inputs`."""
    if not omitted or input_bytes is None:
        return arrays
    # input_bytes does not contain the logical bytes of arrays that repeat their memory.
    listed = sum((given.get("nbytes") or 0) * (given.get("count") or 1) for given in inputs)
    rest = non_negative_int(input_bytes, "input_bytes") - listed
    return (*arrays, Array(None, rest)) if rest > 0 else arrays


def parse_peaks(get: Get) -> Peaks:
    """Bytes by kind, of what the record has."""
    found = {"alloc": get("alloc_peak_bytes"), "output": get("output_bytes")}
    if get("overlap") in (0, None):  # else the growth of the process is not this task's alone
        before, peak = get("rss_before_bytes"), get("rss_peak_bytes")
        if before is not None and peak is not None:
            found["rss"] = max(
                0,
                non_negative_int(peak, "rss_peak_bytes")
                - non_negative_int(before, "rss_before_bytes"),
            )
    if devices := get("gpu"):
        if not isinstance(devices, list) or not all(isinstance(device, dict) for device in devices):
            raise ValueError(f"gpu is {devices!r}, not a list of devices")
        found["gpu"] = max(
            non_negative_int(device.get("peak_bytes") or 0, "gpu.peak_bytes") for device in devices
        )
    return {
        kind: non_negative_int(value, f"{kind} peak")
        for kind, value in found.items()
        if value is not None
    }


def parse_unseen(get: Get) -> str | None:
    """The reason why the own peak may miss memory; None if it includes everything."""
    reason = get("attribution_reason")
    return reason if isinstance(reason, str) and reason.split(" ", 1)[0] in REASONS else None


def with_growth(peaks: Peaks) -> Peaks:
    """Where the own peak may miss memory, the growth of the process counts, if it is larger."""
    if "rss" not in peaks:  # the task did not run alone
        return peaks
    return {**peaks, "alloc": max(peaks.get("alloc", 0), peaks["rss"])}


def parse_oom_peaks(oom: Any) -> Peaks:
    """Bytes by kind that were live and requested when an allocation failed; {} if none did."""
    if not isinstance(oom, dict) or oom.get("requested_bytes") is None:
        return {}
    where = str(oom.get("where", ""))
    kind = "gpu" if where.startswith("gpu") else "alloc" if where == "host" else None
    if kind is None:
        return {}
    requested = non_negative_int(oom["requested_bytes"], "oom.requested_bytes")
    return {kind: requested + non_negative_int(oom.get("live_bytes") or 0, "oom.live_bytes")}
