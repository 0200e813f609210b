"""The types that readers of a store rely on. SQLite keeps any value in any column, so that they
are checked where they are read. Called by store.py.

A value of a wrong type is a ValueError that names it. None is "not measured" everywhere but in a
task's name.
"""

from dwsr_probe.record import FIELDS, TYPES, TaskRecord, json_of, nested_of

_NUMBER = (int, float)
_WORDS = {
    (int,): "a whole number",
    _NUMBER: "a number",
    (str,): "a text",
    (list,): "a list",
    (dict,): "an object",
    (bytes,): "bytes",
}


_SCALARS = {
    name: _NUMBER if kind is float else (kind,)
    for name, kind in TYPES.items()
    if kind is not object
}
_OBJECT = _SCALARS | {"inputs": (list,), "output": (dict,), "gpu": (list,), "oom": (dict,)}
_ROW = tuple(_SCALARS.get(name, (str,)) for name in FIELDS)  # nested fields are JSON text there
_META = {
    "run": (str,),
    "command": (list,),
    "start": _NUMBER,
    "end": _NUMBER,
    "host": (str,),
    "parent": (int,),
    "parent_ticks": (int,),
    "board_dir": (str,),
    "exit_code": (int,),
}
# beside those that end in _bytes and _ns: what the views calculate with
_HEALTH_COUNTS = frozenset(
    (
        "records_lost",
        "samples_lost",
        "samples_written",
        "samples_late",
        "tasks_dropped",
        "ends_unmatched",
        "ends_elsewhere",
        "ends_missing",
        "reset_gaps",
        "children_unprobed",
        "gpu_ooms",
        "gpu_unfollowed",
    )
)
_KINDS_MOST = 4096
_GPU, _TASK_NAME = FIELDS.index("gpu"), FIELDS.index("task_name")
_good_kinds = set()  # types of whole rows that were found good: a run has few


def row(found):
    """A row of the tasks' table, as it is."""
    kinds = tuple(map(type, found))
    if kinds not in _good_kinds:
        for name, value, types in zip(FIELDS, found, _ROW, strict=True):
            _check(f"{name} of a task", value, types)
        if found[_TASK_NAME] is None:
            raise ValueError("task_name of a task is missing")
        if len(_good_kinds) >= _KINDS_MOST:
            _good_kinds.clear()
        _good_kinds.add(kinds)
    if found[_GPU] is not None:
        _devices("gpu of a task", json_of(found[_GPU], []), ("peak_bytes",))
    return found


class Nested:
    """Parses the nested fields of many rows for record.from_row. Most texts recur: each is
    parsed and checked once, and its value is shared."""

    _MOST = 10_000

    def __init__(self):
        self._known = {}

    def __call__(self, name, text):
        try:
            return self._known[name, text]
        except KeyError:
            pass
        value = nested_of(name, text)
        if name == "inputs":  # broken texts are none already: of slots that were damaged
            for given in _objects("inputs of a task", value):
                _check("shape of an input", given.get("shape"), (list,))
                _check("nbytes of an input", given.get("nbytes"), _NUMBER)
        elif name == "gpu" and value is not None:
            _devices("gpu of a task", value, ("peak_bytes",))
        else:
            _check(f"{name} of a task", value, (dict,))
        if len(self._known) >= self._MOST:
            self._known.clear()
        self._known[name, text] = value
        return value


def process(record, health):
    """A process's record, of the fields that are known here, and its health."""
    for what, found in (("record", record), ("health", health)):
        if type(found) is not dict:
            raise ValueError(f"{what} of a process is {repr(found)[:60]}, not an object")
    for name, types in _OBJECT.items():
        _check(f"{name} of a process", record.get(name), types)
    _numbers("of a process", health)
    for worker in _objects("workers of a process", health.get("workers") or []):
        _numbers("of a worker", worker)
    _devices("devices of a process", health.get("devices") or [])
    return TaskRecord(**{name: value for name, value in record.items() if name in _OBJECT}), health


def meta(found):
    for name, types in _META.items():
        _check(name, found.get(name), types)
    return found


def numbers(what, found):
    """A row of numbers."""
    for value in found:
        _check(what, value, _NUMBER)
    return found


def blob(what, epoch, packed, piece):
    _check(f"epoch of {what}", epoch, _NUMBER)
    _check(what, packed, (bytes,))
    if len(packed) % piece:
        raise ValueError(f"{what} are cut short")
    return epoch, packed


def _check(what, value, types):
    if value is not None and type(value) not in types:
        raise ValueError(f"{what} is {repr(value)[:60]}, not {_WORDS[types]}")


def _objects(what, found):
    _check(what, found, (list,))
    for one in found:
        if type(one) is not dict:
            raise ValueError(f"{what} have {repr(one)[:60]} in them, not an object")
    return found


def _devices(what, found, needed=()):
    for device in _objects(what, found):
        if type(device.get("device")) is not int or any(
            type(device.get(name)) not in _NUMBER for name in needed
        ):
            raise ValueError(
                f"{what} have {repr(device)[:60]} in them, without a number that they need"
            )
        _numbers("of a device", device)


def _numbers(whose, found):
    for name, value in found.items():
        if name.endswith(("_bytes", "_ns")) or name in _HEALTH_COUNTS:
            _check(f"{name} {whose}", value, _NUMBER)
