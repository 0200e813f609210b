"""The workers of this process: their facts for readers of the board, and what the hooks want to know of them.

Facts are JSON on a page of the board: {"workers": [{address, name, nthreads, memory_limit, managed_bytes, spilled_bytes, scheduler, nanny}]}. A task says
which of these ran it by its index, so the list only grows. Published once a second on the worker's event loop, if anything has changed.
"""
import json

from dwsr_probe import _core

PERIOD_MS = 1000
_MOST = 12  # that fit the page
_facts = []  # by index
_published = None


def register(worker):
    """The worker's index in the facts, given at first sight and noted on it; None: one too many."""
    try:
        return worker._dwsr_probe_index
    except AttributeError:
        pass
    worker._dwsr_probe_index = index = len(_facts) if len(_facts) < _MOST else None
    if index is not None:
        _facts.append({})
        publish(worker)
    return index


def follow(worker):
    """Publish this worker's facts while it lives; from its own event loop, or before that has started."""
    from tornado.ioloop import PeriodicCallback

    from dwsr_probe.dask import hooks
    if "dwsr-probe" in worker.periodic_callbacks:
        return
    worker.periodic_callbacks["dwsr-probe"] = callback = PeriodicCallback(lambda: publish(worker), PERIOD_MS)
    if worker.status.name == "running":
        callback.start()
    if hooks.kind() == hooks.TRANSITIONS and "dwsr-probe-transitions" not in worker.plugins:
        worker.plugins["dwsr-probe-transitions"] = hooks.Transitions(worker)


def forget(worker):
    callback = worker.periodic_callbacks.pop("dwsr-probe", None)
    if callback is not None:
        callback.stop()
    plugin = worker.plugins.pop("dwsr-probe-transitions", None)
    if plugin is not None:
        plugin.teardown(worker)


def publish(worker):
    """Never raises: it runs on the worker's event loop."""
    global _published
    from dwsr_probe.dask import hooks
    try:
        index = register(worker)
        if index is None:
            return
        _facts[index] = facts_of(worker)
        text = json.dumps({"workers": _facts}, separators=(",", ":")).encode()
        state = text, _core.board_path()
        if state != _published and _core.set_facts(text):
            _published = state
        _core.note_hooks(hooks.kind())
    except Exception:
        pass


def facts_of(worker):
    try:
        _, on_disk = worker.data.spilled_total
    except AttributeError:  # spilling is off
        on_disk = 0
    return {
        "address": worker.address, "name": str(worker.name)[:64], "id": worker.id, "nthreads": worker.state.nthreads,
        "memory_limit_bytes": worker.memory_manager.memory_limit or None, "managed_bytes": int(worker.state.nbytes),
        "spilled_bytes": int(on_disk), "scheduler": worker.scheduler.address, "nanny": worker.nanny if isinstance(worker.nanny, str) else None,
    }


def sizes_of_inputs(worker, key):
    """Dask's own sizes of what a task depends on, by key; None if they cannot be had."""
    try:
        return {dependency.key: dependency.nbytes for dependency in list(worker.state.tasks[key].dependencies)}
    except Exception:  # the event loop may be changing it just now
        return None
