"""Begin and end a task where it is executed: around distributed's and dask's own functions, in
their thread.

Covers distributed's workers (`distributed.worker`) and the local schedulers (`dask.local`:
threaded, synchronous, multiprocessing). The names are private, so each is wrapped only if its
parameters are the ones we know (distributed 2024.11 and later); if not, workers are followed by
their transitions instead, which happen on the event loop and cannot tell whose memory it is.
Every wrapped name can be put back.
"""

import functools
import inspect
import logging

from dwsr_probe import _core
from dwsr_probe.dask import workers

WRAPPED, TRANSITIONS = 1, 2  # the board's dask_hooks
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
LOCAL_PARAMETERS = ("key", "task_info", "dumps", "loads", "get_id", "pack_exception")
logger = logging.getLogger("dwsr_probe")

_replaced = []  # (owner, name, original, ours)
_hooked = set()
_kind = 0


def kind():
    """How workers of this process are followed: WRAPPED, TRANSITIONS, or 0: not (yet)."""
    return _kind


def unknown_names(module):
    """Of the functions we wrap, those that are missing or have other parameters in this release."""
    return [
        name
        for name, parameters in PARAMETERS.items()
        if _parameters_of(getattr(module, name, None)) != parameters
    ]


def _parameters_of(function):
    try:
        return tuple(inspect.signature(inspect.unwrap(function)).parameters)
    except (TypeError, ValueError):
        return None


def hook_worker(module, at_import=False):
    """distributed.worker. at_import: nothing has been submitted yet, so that what pools pickle
    by name may be wrapped, too, for good."""
    global _kind
    if "worker" in _hooked:
        return
    _hooked.add("worker")
    from dask.utils import key_split

    _core.use_key_split(key_split)
    _core.use_workers(workers.register, workers.sizes_of_inputs)
    unknown = unknown_names(module)
    if unknown:
        _kind = TRANSITIONS
        logger.warning(
            "dwsr-probe does not know distributed's %s in this release: tasks are followed by their"
            " transitions, with shared attribution",
            ", ".join(unknown),
        )
    else:
        _kind = WRAPPED
        for name, make in (
            ("_run_task", _around_run_task),
            ("_run_task_async", _around_run_task_async),
            ("_run_actor", _around_run_actor),
        ):
            _replace(module, name, make(getattr(module, name), module))
        if at_import:
            _replace(
                module, "_run_task_simple", _around_run_task_simple(module._run_task_simple, module)
            )
        _replace(module.Worker, "actor_execute", _around_actor_execute(module.Worker.actor_execute))
    _replace(module.Worker, "__init__", _around_worker_init(module.Worker.__init__))
    _core.note_hooks(_kind)


def hook_local(module):
    """dask.local, once it is imported."""
    if "local" in _hooked:
        return
    _hooked.add("local")
    from dask.utils import key_split

    _core.use_key_split(key_split)
    if _parameters_of(module.execute_task) == LOCAL_PARAMETERS:
        _replace(module, "execute_task", _around_execute_task(module.execute_task))
    else:
        logger.warning(
            "dwsr-probe does not know dask.local.execute_task in this release: tasks of the local"
            " schedulers are not measured"
        )


def unhook():
    """Put every name back that still is ours."""
    global _kind
    for owner, name, original, ours in reversed(_replaced):
        if owner.__dict__.get(name) is ours:
            setattr(owner, name, original)
    _replaced.clear()
    _hooked.clear()
    _kind = 0
    _core.note_hooks(0)


def _replace(owner, name, ours):
    _replaced.append((owner, name, owner.__dict__[name], ours))
    setattr(owner, name, ours)


# -- distributed


def _around_run_task(original, _):
    begin, end = _core.begin_graph_task, _core.end_with_message

    @functools.wraps(original)
    def _run_task(
        task, data, execution_state, key, active_threads, active_threads_lock, time_delay
    ):
        worker = execution_state.get("worker")
        entry = begin(key, task, data, worker)
        try:
            message = original(
                task, data, execution_state, key, active_threads, active_threads_lock, time_delay
            )
        except BaseException as error:
            _core.end_graph_task(entry, None, None, error)
            raise
        end(entry, message, worker, key)
        return message

    return _run_task


def _around_run_task_simple(original, module):
    """Called below _run_task, which has begun the task already, and alone in the processes of a
    ProcessPoolExecutor."""
    thread_state = module.thread_state

    @functools.wraps(original)
    def _run_task_simple(task, data, time_delay):
        if hasattr(thread_state, "key"):
            return original(task, data, time_delay)
        entry = _core.begin_graph_task(getattr(task, "key", None), task, data)
        try:
            message = original(task, data, time_delay)
        except BaseException as error:
            _core.end_graph_task(entry, None, None, error)
            raise
        _core.end_with_message(entry, message, None, None)
        return message

    return _run_task_simple


def _around_run_task_async(original, module):
    current_worker = getattr(module, "_worker_cvar", None)

    @functools.wraps(original)
    async def _run_task_async(task, data, time_delay):
        key, worker = (
            getattr(task, "key", None),
            (current_worker.get(None) if current_worker is not None else None),
        )
        entry = _core.begin_graph_task(key, task, data, worker, True)
        try:
            message = await original(task, data, time_delay)
        except BaseException as error:
            _core.end_graph_task(entry, None, None, error)
            raise
        _core.end_with_message(entry, message, worker, key)
        return message

    return _run_task_async


def _around_run_actor(original, _):
    @functools.wraps(original)
    def _run_actor(func, args, kwargs, execution_state, key, active_threads, active_threads_lock):
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


def _around_actor_execute(original):
    """Coroutine methods of actors run here, on the event loop; the others come by _run_actor."""
    from dask.utils import key_split

    @functools.wraps(original)
    async def actor_execute(self, *positional, **named):
        try:
            actor, function = named["actor"], named["function"]
            if not inspect.iscoroutinefunction(
                inspect.getattr_static(type(self.state.actors[actor]), function)
            ):
                raise LookupError
            values = [*(named.get("args") or ()), *(named.get("kwargs") or {}).values()]
        except Exception:
            return await original(self, *positional, **named)
        entry = _core.begin_graph_task(f"{key_split(actor)}.{function}", None, values, self, True)
        try:
            answer = await original(self, *positional, **named)
        except BaseException as error:
            _core.end_graph_task(entry, None, None, error)
            raise
        failed = type(answer) is dict and answer.get("status") == "error"
        _core.end_graph_task(entry, None, None, RuntimeError if failed else None)
        return answer

    return actor_execute


def _around_worker_init(original):
    @functools.wraps(original)
    def __init__(self, *args, **kwargs):
        original(self, *args, **kwargs)
        try:
            workers.follow(self)
        except Exception as error:
            logger.warning("dwsr-probe cannot follow this worker's facts: %r", error)

    return __init__


class Transitions:
    """A worker plugin for releases whose functions we do not know: begin and end as the event
    loop hears of them."""

    def __init__(self, worker):
        self.worker, self.entries = worker, {}

    def setup(self, worker):
        pass

    def teardown(self, worker):
        for entry in self.entries.values():
            _core.end_graph_task(entry, None, None, None, True)

    def transition(self, key, start, finish, **_):
        runs = ("executing", "long-running")
        if finish in runs and start not in runs:
            self.entries[key] = _core.begin_graph_task(key, None, None, self.worker, True)
        elif start in runs and finish not in runs:
            entry = self.entries.pop(key, None)
            _core.end_graph_task(
                entry,
                None,
                None,
                RuntimeError if finish == "error" else None,
                finish in ("cancelled", "released", "forgotten"),
            )


# -- the local schedulers


def _around_execute_task(original):
    """The task is begun when it has been unpacked and ended before its result is packed: between
    processes that is not the task's work."""

    @functools.wraps(original)
    def execute_task(key, task_info, dumps, loads, get_id, pack_exception):
        if not _core.active():
            return original(key, task_info, dumps, loads, get_id, pack_exception)
        entry = None

        def end(output, error):
            nonlocal entry
            begun, entry = entry, None
            _core.end_graph_task(begun, output, None, error)

        def unpack_and_begin(info):
            nonlocal entry
            task, data = pair = loads(info)
            entry = _core.begin_graph_task(key, task, data)
            return pair

        def end_and_pack(value):
            if entry is not None:
                end(value[0], None)
            return dumps(value)

        def end_and_pack_exception(error, _):
            if entry is not None:
                end(None, error)
            return pack_exception(error, dumps)

        return original(
            key, task_info, end_and_pack, unpack_and_begin, get_id, end_and_pack_exception
        )

    return execute_task
