"""Dask's private functions that execute tasks, and which of them this release has as we know them.

`hooks` wraps the functions that are known, `transitions` follows the tasks of the others, `workers`
publishes the kind on the board, and `dwsr-probe doctor` lists the unknown ones. This module imports
none of them.
"""

from __future__ import annotations

import inspect

from dwsr_probe import _core

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection
    from types import ModuleType
    from typing import Any

# dask_hooks on the board: every function of PARAMETERS is known, or at least one is not
WRAPPED, TRANSITIONS = _core.DASK_HOOKS_WRAPPED, _core.DASK_HOOKS_TRANSITIONS

# Functions of distributed.worker with the parameters they have had since 2024.11
PARAMETERS = {
    "_run_task": (
        "task",
        "data",
        "execution_state",
        "key",
        "active_threads",
        "active_threads_lock",
        "time_delay",
    ),
    "_run_task_simple": ("task", "data", "time_delay"),
    "_run_task_async": ("task", "data", "time_delay"),
    "_run_actor": (
        "func",
        "args",
        "kwargs",
        "execution_state",
        "key",
        "active_threads",
        "active_threads_lock",
    ),
}
TASKS_EXECUTED_BY = {
    "_run_task": "tasks in the worker's threads",
    "_run_task_simple": "tasks in process pools",
    "_run_task_async": "async tasks",
    "_run_actor": "methods of actors",
}
LOCAL_PARAMETERS = ("key", "task_info", "dumps", "loads", "get_id", "pack_exception")

_hooks_kind = _core.DASK_HOOKS_NONE
_unknown: frozenset[str] = frozenset()


def hooks_kind() -> int:
    """How the workers of this process are measured: WRAPPED, TRANSITIONS, or 0 (not hooked)."""
    return _hooks_kind


def is_unknown(name: str | None) -> bool:
    """Whether tasks that this function executes are followed by their transitions. None: it is not
    known which function executes the task."""
    return name is None or name in _unknown


def set_unknown(unknown: Collection[str]) -> None:
    """Records that the hooks are in place, except on these functions."""
    global _hooks_kind, _unknown
    _hooks_kind, _unknown = TRANSITIONS if unknown else WRAPPED, frozenset(unknown)


def reset() -> None:
    """Records that the hooks are removed."""
    global _hooks_kind, _unknown
    _hooks_kind, _unknown = _core.DASK_HOOKS_NONE, frozenset()


def unknown_names(module: ModuleType) -> list[str]:
    """The names in PARAMETERS that are missing in distributed.worker or have other parameters."""
    return [
        name
        for name, parameters in PARAMETERS.items()
        if parameters_of(getattr(module, name, None)) != parameters
    ]


def parameters_of(function: Any) -> tuple[str, ...] | None:
    """The names of a function's parameters; None for what is not a function."""
    try:
        return tuple(inspect.signature(inspect.unwrap(function)).parameters)
    except (TypeError, ValueError):
        return None


def describe_unknown(unknown: Collection[str]) -> str:
    """What a user loses while these functions are unknown, as a sentence without a full stop."""
    tasks = ", ".join(TASKS_EXECUTED_BY[name] for name in TASKS_EXECUTED_BY if name in unknown)
    others = "" if len(unknown) == len(PARAMETERS) else "; all other tasks are measured as usual"
    return f"{tasks} are followed on the event loop, without own peaks (`shared`){others}"
