"""Begin and end each Dask task where it is executed, in its thread, around Dask's own functions.

Covers distributed's workers (`distributed.worker`) and the local schedulers (`dask.local`:
threaded, synchronous, multiprocessing). The functions are private, so each is wrapped only if its
parameters are the ones we know (functions.py). The tasks of an unknown function are followed by
their transitions instead (transitions.py), and methods of actors around `Worker.actor_execute`.
Called by the boot module under `dwsr-probe run` and by attach.py on a cluster. `unhook` restores
every name.
"""

from __future__ import annotations

import functools
import inspect
import logging

from dwsr_probe import _core
from dwsr_probe.dask import functions, threads, transitions, workers
from dwsr_probe.follow.threads import ignore
from dwsr_probe.imports import Replacement

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any

logger = logging.getLogger("dwsr_probe")


_replacements: list[Replacement] = []
_hooked: set[str] = set()  # "worker", "local"


def hook_worker(module: ModuleType, at_import: bool = False) -> None:
    """Wrap the functions of distributed.worker.

    at_import: nothing has been submitted yet. Only then may _run_task_simple be wrapped: pools
    pickle it by name, so the name must mean the same function from the first submission on.
    """
    if "worker" in _hooked:
        return
    _hooked.add("worker")
    from dask.utils import key_split

    _core.use_key_split(key_split)
    _core.use_workers(workers.register, workers.sizes_of_inputs)
    ignore(threads.is_dasks)
    unknown = functions.unknown_names(module)
    functions.set_unknown(unknown)
    if unknown:
        logger.warning(
            "dwsr-probe does not know distributed's %s in this release: %s",
            ", ".join(unknown),
            functions.describe_unknown(unknown),
        )
    begin = _begin_unless_followed if unknown else _core.begin_graph_task
    for name, wrap in (
        ("_run_task", _around_run_task),
        ("_run_task_async", _around_run_task_async),
        ("_run_actor", _around_run_actor),
        ("_run_task_simple", _around_run_task_simple),
    ):
        if name not in unknown and (at_import or name != "_run_task_simple"):
            _replace(module, name, wrap(getattr(module, name), module, begin))
    if "actor_execute" in vars(module.Worker):
        wrapper = _around_actor_execute(module.Worker.actor_execute, "_run_actor" in unknown)
        _replace(module.Worker, "actor_execute", wrapper)
    _replace(module.Worker, "__init__", _around_worker_init(module.Worker.__init__))
    _core.note_dask_hooks(functions.hooks_kind())


def hook_local(module: ModuleType) -> None:
    """Wrap the function of dask.local that executes tasks."""
    if "local" in _hooked:
        return
    _hooked.add("local")
    from dask.utils import key_split

    _core.use_key_split(key_split)
    if functions.parameters_of(module.execute_task) == functions.LOCAL_PARAMETERS:
        _replace(module, "execute_task", _around_execute_task(module.execute_task))
    else:
        logger.warning(
            "dwsr-probe does not know dask.local.execute_task in this release: tasks of the local"
            " schedulers are not measured"
        )


def unhook() -> None:
    """Restore every name that still holds our wrapper."""
    for replacement in reversed(_replacements):
        replacement.undo()
    _replacements.clear()
    _hooked.clear()
    functions.reset()
    _core.note_dask_hooks(_core.DASK_HOOKS_NONE)


def _replace(owner: Any, name: str, ours: Any) -> None:
    _replacements.append(Replacement(owner, name, ours))


def _begin_unless_followed(
    key: Any, node: Any, data: Any, worker: Any = None, reason: int = 0
) -> Any:
    """begin_graph_task, for workers with unknown functions: a task that is followed by its
    transitions already is not measured again."""
    if transitions.is_followed(key):
        return None
    return _core.begin_graph_task(key, node, data, worker, reason)


# -- distributed


def _around_run_task(
    original: Callable[..., Any], module: ModuleType, begin: Callable[..., Any]
) -> Callable[..., Any]:
    end = _core.end_with_message

    @functools.wraps(original)
    def _run_task(
        task: Any,
        data: Any,
        execution_state: Any,
        key: Any,
        active_threads: Any,
        active_threads_lock: Any,
        time_delay: Any,
    ) -> Any:
        worker = execution_state.get("worker")
        entry = begin(key, task, data, worker)
        try:
            message = original(
                task if entry is None else entry.node or task,
                data,
                execution_state,
                key,
                active_threads,
                active_threads_lock,
                time_delay,
            )
        except BaseException as error:
            _core.end_graph_task(entry, None, None, error)
            raise
        end(entry, message, worker, key)
        return message

    return _run_task


def _around_run_task_simple(
    original: Callable[..., Any], module: ModuleType, begin: Callable[..., Any]
) -> Callable[..., Any]:
    """_run_task calls it, and has begun the task already. The processes of a ProcessPoolExecutor
    call it directly."""
    thread_state = module.thread_state

    @functools.wraps(original)
    def _run_task_simple(task: Any, data: Any, time_delay: Any) -> Any:
        if hasattr(thread_state, "key"):
            return original(task, data, time_delay)
        entry = begin(getattr(task, "key", None), task, data)
        try:
            message = original(task if entry is None else entry.node or task, data, time_delay)
        except BaseException as error:
            _core.end_graph_task(entry, None, None, error)
            raise
        _core.end_with_message(entry, message, None, None)
        return message

    return _run_task_simple


def _around_run_task_async(
    original: Callable[..., Any], module: ModuleType, begin: Callable[..., Any]
) -> Callable[..., Any]:
    current_worker = getattr(module, "_worker_cvar", None)

    @functools.wraps(original)
    async def _run_task_async(task: Any, data: Any, time_delay: Any) -> Any:
        key = getattr(task, "key", None)
        worker = current_worker.get(None) if current_worker is not None else None
        entry = begin(key, task, data, worker, True)
        try:
            message = await original(task, data, time_delay)
        except BaseException as error:
            _core.end_graph_task(entry, None, None, error)
            raise
        _core.end_with_message(entry, message, worker, key)
        return message

    return _run_task_async


def _around_run_actor(
    original: Callable[..., Any], module: ModuleType, begin: Callable[..., Any]
) -> Callable[..., Any]:
    """The key of an actor's method is its name, as in "Counter.add": it has no transitions."""

    @functools.wraps(original)
    def _run_actor(
        func: Any,
        args: Any,
        kwargs: Any,
        execution_state: Any,
        key: Any,
        active_threads: Any,
        active_threads_lock: Any,
    ) -> Any:
        worker = execution_state.get("worker")
        entry = _core.begin_graph_task(key, None, [*args, *kwargs.values()], worker)
        try:
            result = original(
                func, args, kwargs, execution_state, key, active_threads, active_threads_lock
            )
        except BaseException as error:
            _core.end_graph_task(entry, None, None, error)
            raise
        _core.end_graph_task(entry, result, None, None)
        return result

    return _run_actor


def _around_actor_execute(original: Callable[..., Any], with_threads: bool) -> Callable[..., Any]:
    """Coroutine methods of actors run here, on the event loop. Other methods are sent to a thread,
    where _run_actor executes them. with_threads: they are followed here, too, because _run_actor
    is unknown."""
    from dask.utils import key_split

    def is_measured_here(worker: Any, named: dict[str, Any]) -> bool:
        actor = type(worker.state.actors[named["actor"]])
        if inspect.iscoroutinefunction(inspect.getattr_static(actor, named["function"])):
            return True
        return with_threads and (named.get("kwargs") or {}).get("separate_thread", True)

    @functools.wraps(original)
    async def actor_execute(self: Any, *positional: Any, **named: Any) -> Any:
        entry = None
        try:
            if is_measured_here(self, named):
                values = [*(named.get("args") or ()), *(named.get("kwargs") or {}).values()]
                name = f"{key_split(named['actor'])}.{named['function']}"
                entry = _core.begin_graph_task(name, None, values, self, _core.REASON_COROUTINE)
        except Exception:  # Dask's own call below reports what is wrong with the request
            pass
        try:
            answer = await original(self, *positional, **named)
        except BaseException as error:
            _core.end_graph_task(entry, None, None, error)
            raise
        failed = type(answer) is dict and answer.get("status") == "error"
        _core.end_graph_task(entry, None, None, RuntimeError if failed else None)
        return answer

    return actor_execute


def _around_worker_init(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        try:
            workers.follow(self)
        except Exception as error:
            logger.warning("dwsr-probe cannot follow this worker's facts: %r", error)

    return __init__


# -- the local schedulers


def _around_execute_task(original: Callable[..., Any]) -> Callable[..., Any]:
    """A task begins after it was unpacked and ends before its result is packed. Packing, which
    happens between processes, is not the task's work."""

    @functools.wraps(original)
    def execute_task(
        key: Any, task_info: Any, dumps: Any, loads: Any, get_id: Any, pack_exception: Any
    ) -> Any:
        if not _core.active():
            return original(key, task_info, dumps, loads, get_id, pack_exception)
        entry = None

        def end(output: Any, error: BaseException | None) -> None:
            nonlocal entry
            begun, entry = entry, None
            _core.end_graph_task(begun, output, None, error)

        def unpack_and_begin(info: Any) -> Any:
            nonlocal entry
            task, data = loads(info)
            entry = _core.begin_graph_task(key, task, data)
            return (task if entry is None else entry.node or task), data

        def end_and_pack(value: Any) -> Any:
            if entry is not None:
                end(value[0], None)
            return dumps(value)

        def end_and_pack_exception(error: BaseException, _: Any) -> Any:
            if entry is not None:
                end(None, error)
            return pack_exception(error, dumps)

        return original(
            key, task_info, end_and_pack, unpack_and_begin, get_id, end_and_pack_exception
        )

    return execute_task
