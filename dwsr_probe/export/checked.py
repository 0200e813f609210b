"""A record that another machine wrote, before it is kept: its known fields, with types, lengths
and ranges that can be.

Called by programs that read ports: the predictor and `top`. Fields that neither uses are left
out, so that a record in memory is never much larger than its line.
"""

_NAME_MOST, _TEXT_MOST = 10_000, 256  # characters
_INPUTS_MOST, _AXES_MOST, _DEVICES_MOST = 256, 64, 64
_NUMBERS_MOST = 1_024  # lengths of axes, in all inputs: a board has room for fewer
_NUMBER_MOST = 1 << 62  # also of bytes: no machine has more

_TEXTS = ("host", "process", "state", "kind", "attribution")
_COUNTS = (
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
)


def checked(record):
    """The record with what is relied on; ValueError if it cannot be one."""
    name, inputs, process = record.get("task_name"), record.get("inputs"), record.get("process")
    if (
        not isinstance(name, str)
        or len(name) > _NAME_MOST
        or not isinstance(process, str)
        or not isinstance(inputs, list)
        or len(inputs) > _INPUTS_MOST
    ):
        raise ValueError("not a record")
    found = {field: _text(record[field]) for field in _TEXTS if field in record}
    found |= {field: _number(record[field]) for field in _COUNTS if field in record}
    if (
        sum(
            len(shape)
            for given in inputs
            if isinstance(given, dict) and isinstance(shape := given.get("shape"), list)
        )
        > _NUMBERS_MOST
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


def _text(value):
    if value is not None and (not isinstance(value, str) or len(value) > _TEXT_MOST):
        raise ValueError("not a short text")
    return value


def _number(value):
    if value is not None and (type(value) not in (int, float) or not 0 <= value < _NUMBER_MOST):
        raise ValueError("not a number in its range")
    return value


def _thread(value):
    """A number of the kernel's, or of Python's, which may be any word."""
    if value is not None and (type(value) is not int or not -1 << 64 < value < 1 << 64):
        raise ValueError("not a thread")
    return value


def _array(given):
    """An input, or the output."""
    if not isinstance(given, dict):
        raise ValueError("not an array")
    found, shape = _figures(given, ("nbytes",)), given.get("shape")
    if shape is not None:
        if (
            not isinstance(shape, list)
            or len(shape) > _AXES_MOST
            or not all(type(n) is int and 0 <= n < _NUMBER_MOST for n in shape)
        ):
            raise ValueError("not a shape")
        found["shape"] = shape
    for field in ("type", "dtype"):
        if (text := given.get(field)) is not None:
            # a dataframe's may be many words
            found[field] = text[:_TEXT_MOST] if isinstance(text, str) else _text(text)
    return found


def _figures(given, fields):
    if not isinstance(given, dict):
        raise ValueError("not an object")
    return {field: _number(given[field]) for field in fields if field in given}
