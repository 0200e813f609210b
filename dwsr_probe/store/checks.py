"""The types that readers of a store rely on. Called by store/reader.py.

SQLite keeps any value in any column, so types are checked when a value is read. A value of a wrong
type is a ValueError that names it. None means "not measured" and is allowed everywhere except in a
task's name.
"""

from __future__ import annotations

from dwsr_probe.record import FIELDS, TYPES, TaskRecord, parse_json, parse_nested

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from dwsr_probe.record import Row

    Types = tuple[type, ...]

_NUMBER = (int, float)
_NAMES_OF_TYPES: dict[Types, str] = {
    (int,): "a whole number",
    _NUMBER: "a number",
    (str,): "a text",
    (list,): "a list",
    (dict,): "an object",
    (bytes,): "bytes",
    (bool, int, float): "a number",
}
_SCALARS: dict[str, Types] = {
    name: _NUMBER if kind is float else (kind,)
    for name, kind in TYPES.items()
    if kind is not object
}
_RECORD = _SCALARS | {
    "inputs": (list,),
    "output": (dict,),
    "gpu": (list,),
    "oom": (dict,),
    "chain": (list,),
    "params": (dict,),
}
_ROW = tuple(_SCALARS.get(name, (str,)) for name in FIELDS)  # nested fields are JSON text there
_META: dict[str, Types] = {
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
# The views calculate with these, and with all names that end in _bytes or _ns.
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
_ROW_TYPES_MOST = 4096
_GPU, _TASK_NAME = FIELDS.index("gpu"), FIELDS.index("task_name")
# The types of rows that were checked already. A run has few different ones.
_good_row_types: set[Types] = set()


def checked_row(found: Row) -> Row:
    """A row of the table of tasks, unchanged; ValueError if a value has a wrong type."""
    row_types = tuple(map(type, found))
    if row_types not in _good_row_types:
        for name, value, types in zip(FIELDS, found, _ROW, strict=True):
            _check(f"{name} of a task", value, types)
        if found[_TASK_NAME] is None:
            raise ValueError("task_name of a task is missing")
        if len(_good_row_types) >= _ROW_TYPES_MOST:
            _good_row_types.clear()
        _good_row_types.add(row_types)
    if found[_GPU] is not None:
        _check_devices("gpu of a task", parse_json(found[_GPU], []), ("peak_bytes",))
    return found


class NestedParser:
    """Parses the nested fields of many rows, for record.from_row.

    Most texts recur. So each text is parsed and checked once, and records share its value.
    """

    _MOST = 10_000

    def __init__(self) -> None:
        self._parsed: dict[tuple[str, str | None], Any] = {}

    def __call__(self, name: str, text: str | None) -> Any:
        try:
            return self._parsed[name, text]
        except KeyError:
            pass
        value = parse_nested(name, text)
        if name == "inputs":  # parse_nested returned [] for a text that cannot be parsed
            for given in _checked_objects("inputs of a task", value):
                _check("shape of an input", given.get("shape"), (list,))
                _check("nbytes of an input", given.get("nbytes"), _NUMBER)
        elif name == "chain":
            _check("chain of a task", value, (list,))
            for function in value or ():
                _check("a function in the chain of a task", function, (str,))
        elif name == "gpu" and value is not None:
            _check_devices("gpu of a task", value, ("peak_bytes",))
        else:
            _check(f"{name} of a task", value, (dict,))
            if name == "params":
                for number in (value or {}).values():
                    _check("a parameter of a task", number, (bool, *_NUMBER))
        if len(self._parsed) >= self._MOST:
            self._parsed.clear()
        self._parsed[name, text] = value
        return value


def checked_process(
    record: dict[str, Any], health: dict[str, Any]
) -> tuple[TaskRecord, dict[str, Any]]:
    """The record of a process, without fields that this version does not know, and its health."""
    for what, found in (("record", record), ("health", health)):
        if type(found) is not dict:
            raise ValueError(f"{what} of a process is {repr(found)[:60]}, not an object")
    for name, types in _RECORD.items():
        _check(f"{name} of a process", record.get(name), types)
    _check_figures("of a process", health)
    for worker in _checked_objects("workers of a process", health.get("workers") or []):
        _check_figures("of a worker", worker)
    _check_devices("devices of a process", health.get("devices") or [])
    return TaskRecord(**{name: value for name, value in record.items() if name in _RECORD}), health


def checked_meta(found: dict[str, Any]) -> dict[str, Any]:
    for name, types in _META.items():
        _check(name, found.get(name), types)
    return found


def check_numbers(what: str, found: Iterable[object]) -> None:
    for value in found:
        _check(what, value, _NUMBER)


def check_packed(what: str, epoch: object, packed: bytes, piece_bytes: int) -> None:
    _check(f"epoch of {what}", epoch, _NUMBER)
    _check(what, packed, (bytes,))
    if len(packed) % piece_bytes:
        raise ValueError(f"{what} are cut short")


def _check(what: str, value: object, types: Types) -> None:
    if value is not None and type(value) not in types:
        raise ValueError(f"{what} is {repr(value)[:60]}, not {_NAMES_OF_TYPES[types]}")


def _checked_objects(what: str, found: Any) -> list[dict[str, Any]]:
    _check(what, found, (list,))
    for one in found:
        if type(one) is not dict:
            raise ValueError(f"{what} have {repr(one)[:60]} in them, not an object")
    return found


def _check_devices(what: str, found: Any, needed: tuple[str, ...] = ()) -> None:
    for device in _checked_objects(what, found):
        if type(device.get("device")) is not int or any(
            type(device.get(name)) not in _NUMBER for name in needed
        ):
            raise ValueError(
                f"{what} have {repr(device)[:60]} in them, without a number that they need"
            )
        _check_figures("of a device", device)


def _check_figures(whose: str, found: dict[str, Any]) -> None:
    """Check those values that the views calculate with (_HEALTH_COUNTS)."""
    for name, value in found.items():
        if name.endswith(("_bytes", "_ns")) or name in _HEALTH_COUNTS:
            _check(f"{name} {whose}", value, _NUMBER)
