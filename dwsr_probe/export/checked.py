"""Records, processes and forecasts that another machine wrote, checked before they are kept:
known fields with valid types, lengths and ranges. ValueError: not valid.

Called by programs that read ports: the predictor and `top`. Fields that neither uses are left
out, so that a record in memory is never much larger than its line.
"""

from __future__ import annotations

import json
import math
from typing import Any

from dwsr_probe.live.wire import DEVICE_FIELDS, RUNNING_FIELDS

_NAME_MOST, _TEXT_MOST = 10_000, 256  # characters
_INPUTS_MOST, _AXES_MOST, _DEVICES_MOST = 256, 64, 64
_AXES_TOTAL_MOST = 1_024  # of all inputs together: a board has room for fewer
_CHAIN_MOST, _COUNT_MOST = 256, 1 << 20  # functions; equal inputs in succession
_PARAMS_MOST = 16
_VALUE_MOST = 1 << 62  # of any number, bytes included: no machine has more

_TEXTS = ("host", "process", "state", "kind", "attribution")
_NUMBERS = (
    "seq",
    "pid",
    "inputs_omitted",
    "input_bytes",
    "output_bytes",
    "rss_before_bytes",
    "rss_peak_bytes",
    "alloc_peak_bytes",
    "alloc_end_bytes",
    "start",
    "overlap",
    *RUNNING_FIELDS,
)
_PROCESSES_MOST, _FORECASTS_MOST = 10_000, 10_000
_PROCESS_TEXTS = ("process", "pid", "program", "worker", "worker_name", "run")
_PROCESS_NUMBERS = (
    "resident_bytes",
    "resident_max_bytes",
    "limit_bytes",
    "headroom_bytes",
    "running_tasks",
    "samples",
    "samples_late",
    "sampler_cpu_seconds",
    "tasks_dropped",
)
_DEVICE_NUMBERS = tuple(name for name in DEVICE_FIELDS if name not in ("name", "uuid"))


def checked_record(record: dict[str, Any]) -> dict[str, Any]:
    """A record of a finished or running task: the fields that readers use."""
    name, inputs, process = record.get("task_name"), record.get("inputs"), record.get("process")
    if (
        not isinstance(name, str)
        or len(name) > _NAME_MOST
        or not isinstance(process, str)
        or not isinstance(inputs, list)
        or len(inputs) > _INPUTS_MOST
    ):
        raise ValueError("not a record")
    found: dict[str, Any] = {field: _text(record[field]) for field in _TEXTS if field in record}
    found |= {field: _number(record[field]) for field in _NUMBERS if field in record}
    if reason := _cut_text(record.get("attribution_reason")):  # may end in a thread's long name
        found["attribution_reason"] = reason
    if (operation := record.get("operation")) is not None:
        if not isinstance(operation, str) or not 0 < len(operation) <= _NAME_MOST:
            raise ValueError("not an operation")
        found["operation"] = operation
    if (chain := record.get("chain")) is not None:
        found["chain"] = _chain(chain)
    if (params := record.get("params")) is not None:
        found["params"] = _params(params)
    if (
        sum(
            len(shape)
            for given in inputs
            if isinstance(given, dict) and isinstance(shape := given.get("shape"), list)
        )
        > _AXES_TOTAL_MOST
    ):
        raise ValueError("more axes than a record has room for")
    found |= {
        "task_name": name,
        "thread": _thread(record.get("thread")),
        "inputs": [_array(given) for given in inputs],
    }
    if (output := record.get("output")) is not None:
        found["output"] = _array(output)
    if (devices := record.get("gpu")) is not None:
        if not isinstance(devices, list) or len(devices) > _DEVICES_MOST:
            raise ValueError("not a list of devices")
        found["gpu"] = [
            _figures(device, ("device", "peak_bytes", "end_bytes")) for device in devices
        ]
    if (oom := record.get("oom")) is not None:
        found["oom"] = _figures(oom, ("requested_bytes", "live_bytes")) | {
            "where": _text(oom.get("where"))
        }
    return found


def checked_processes(text: str) -> dict[str, Any]:
    """The answer of /dwsr/processes, parsed. Of a process only the invalid figures are left out:
    an honest exporter serves boards of users who may write anything into them."""
    found = _object(json.loads(text))
    processes = found.get("processes")
    if not isinstance(processes, list) or len(processes) > _PROCESSES_MOST:
        raise ValueError("not a list of processes")
    return {
        "processes": [_process(process) for process in processes if isinstance(process, dict)],
        "processes_dropped": _number(found.get("processes_dropped")) or 0,
        "boards_unreadable": _number(found.get("boards_unreadable")) or 0,
    }


def _process(process: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {name: _cut_text(process.get(name)) for name in _PROCESS_TEXTS}
    found |= {name: _number_or_none(process.get(name)) for name in _PROCESS_NUMBERS}
    found["fallbacks"] = [_cut_text(name) for name in _cut_list(process.get("fallbacks"))]
    found["devices"] = [
        {name: _number_or_none(device.get(name)) for name in _DEVICE_NUMBERS}
        | {"name": _cut_text(device.get("name"))}
        for device in _cut_list(process.get("devices"))
        if isinstance(device, dict)
    ]
    return found


def checked_forecasts(
    text: str,
) -> dict[tuple[str | None, int | None, float | None], float]:
    """{(process, thread, start): probability of an overrun} of the predictor's /running."""
    forecasts = _object(json.loads(text)).get("running")
    if not isinstance(forecasts, list) or len(forecasts) > _FORECASTS_MOST:
        raise ValueError("not a list of running tasks")
    found = {}
    for forecast in map(_object, forecasts):
        ratio = _number(forecast.get("overrun_ratio"))
        if ratio is not None and ratio <= 1:
            task = (
                _text(forecast.get("process")),
                _thread(forecast.get("thread")),
                _number(forecast.get("start")),
            )
            found[task] = ratio
    return found


def _cut_text(value: Any) -> str:
    return value[:_TEXT_MOST] if isinstance(value, str) else ""


def _cut_list(value: Any) -> list[Any]:
    return value[:_DEVICES_MOST] if isinstance(value, list) else []


def _number_or_none(value: Any) -> float | None:
    try:
        return _number(value)
    except ValueError:
        return None


def _object(given: Any) -> dict[str, Any]:
    if not isinstance(given, dict):
        raise ValueError("not an object")
    return given


def _text(value: Any) -> str | None:
    if value is not None and (not isinstance(value, str) or len(value) > _TEXT_MOST):
        raise ValueError("not a short text")
    return value


def _number(value: Any) -> float | None:
    if value is not None and (type(value) not in (int, float) or not 0 <= value < _VALUE_MOST):
        raise ValueError("not a number in its range")
    return value


def _thread(value: Any) -> int | None:
    """A thread number of the kernel, or of Python, which may be any word of the machine."""
    if value is not None and (type(value) is not int or not -1 << 64 < value < 1 << 64):
        raise ValueError("not a thread")
    return value


def _chain(given: Any) -> list[str]:
    """Names of functions; of all of them together, as many characters as a name may have."""
    if (
        not isinstance(given, list)
        or len(given) > _CHAIN_MOST
        or not all(isinstance(name, str) for name in given)
        or sum(map(len, given)) > _NAME_MOST
    ):
        raise ValueError("not a chain")
    return given


def _params(given: Any) -> dict[str, float]:
    """Numbers and booleans by name."""
    if (
        not isinstance(given, dict)
        or len(given) > _PARAMS_MOST
        or sum(map(len, given)) > _NAME_MOST
        or not all(map(_is_finite, given.values()))
    ):
        raise ValueError("not parameters")
    return given


def _is_finite(value: Any) -> bool:
    """Whether this is a boolean, or a number that a float can hold."""
    try:
        return type(value) in (bool, int, float) and math.isfinite(value)
    except OverflowError:
        return False


def _array(given: Any) -> dict[str, Any]:
    """An input, or the output."""
    if not isinstance(given, dict):
        raise ValueError("not an array")
    found: dict[str, Any] = _figures(given, ("nbytes", "logical_bytes"))
    if (count := given.get("count")) is not None:
        if type(count) is not int or not 0 < count <= _COUNT_MOST:
            raise ValueError("not a count")
        found["count"] = count
    for flag in ("lazy", "late", "view"):
        if given.get(flag) is True:
            found[flag] = True
    shape = given.get("shape")
    if shape is not None:
        if (
            not isinstance(shape, list)
            or len(shape) > _AXES_MOST
            # null: a length that only the contents of a mask tell
            or not all(n is None or (type(n) is int and 0 <= n < _VALUE_MOST) for n in shape)
        ):
            raise ValueError("not a shape")
        found["shape"] = shape
    for field in ("type", "dtype"):
        if (text := given.get(field)) is not None:
            # a dataframe's may be many words
            found[field] = text[:_TEXT_MOST] if isinstance(text, str) else _text(text)
    return found


def _figures(given: Any, fields: tuple[str, ...]) -> dict[str, Any]:
    return {field: _number(given[field]) for field in fields if field in _object(given)}
