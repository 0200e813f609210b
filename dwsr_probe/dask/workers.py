"""The workers of this process: their facts for readers of the board, and what the hooks want to
know of them.

Facts are JSON on a page of the board: {"workers": [{address, name, nthreads, memory_limit_bytes,
managed_bytes, spilled_bytes, scheduler, nanny, http}]}. A task says which of these ran it by its
index, so the list only grows while the board lives. Published once a second on the worker's
event loop, if anything has changed.
"""

import json
import threading
import weakref

from dwsr_probe import _core
from dwsr_probe.dask import functions, transitions

PERIOD_MS = 1000
_MOST = 64
_lock = threading.Lock()
_facts = []  # by index
_known = []  # weak references, by index
_published = None


def register(worker):
    """The worker's index in the facts, given at first sight and noted on it; None: one too many."""
    with _lock:
        try:
            return worker._dwsr_probe_index
        except AttributeError:
            pass
        worker._dwsr_probe_index = index = len(_facts) if len(_facts) < _MOST else None
        if index is None:
            return None
        _facts.append({})
        _known.append(weakref.ref(worker))
    publish(worker)
    return index


def follow(worker):
    """Publish this worker's facts while it lives; from its own event loop, or before that has
    started."""
    from tornado.ioloop import PeriodicCallback

    if "dwsr-probe" not in worker.periodic_callbacks:
        worker.periodic_callbacks["dwsr-probe"] = callback = PeriodicCallback(
            lambda: publish(worker), PERIOD_MS
        )
        if worker.status.name in ("running", "paused"):
            callback.start()
    transitions.follow(worker)
    handlers = getattr(worker, "handlers", {})
    if "actor_execute" in handlers:  # bound when the worker was made
        handlers["actor_execute"] = worker.actor_execute


def forget(worker):
    """Before the hooks are taken away; a worker that closes empties its own lists."""
    if worker.status.name not in ("running", "paused"):
        return
    callback = worker.periodic_callbacks.pop("dwsr-probe", None)
    if callback is not None:
        callback.stop()
    transitions.forget(worker)


def forget_all():
    """After the hooks are gone: nothing of ours stays on the workers."""
    global _published
    with _lock:
        for reference in _known:
            worker = reference()
            if worker is not None:
                del worker._dwsr_probe_index
                worker.__dict__.pop("_dwsr_probe_served", None)
                if "actor_execute" in getattr(worker, "handlers", {}):
                    worker.handlers["actor_execute"] = worker.actor_execute
        _facts.clear()
        _known.clear()
        _published = None
    from dwsr_probe.dask import http

    http.stop()


def publish(worker):
    """Never raises: it runs on the worker's event loop."""
    global _published
    from dwsr_probe.dask import http, roll

    try:
        index = register(worker)
        if index is None:
            return
        _facts[index] = facts_of(worker)
        state = json.dumps(_facts), _core.board_path()
        if state != _published and (
            _core.set_facts(_text(_facts))
            or _core.set_facts(_text([{"address": f.get("address")} for f in _facts]))
        ):
            _published = state  # all of it, or the addresses if that is too much for the page
        _core.note_hooks(functions.kind())
        http.serve(worker)
        roll.announce(worker)
    except Exception:
        pass


def _text(facts):
    return json.dumps({"workers": facts}, separators=(",", ":")).encode()


def facts_of(worker):
    try:
        _, on_disk = worker.data.spilled_total
    except AttributeError:  # spilling is off
        on_disk = 0
    return {
        "address": worker.address,
        "name": str(worker.name)[:64],
        "id": worker.id,
        "nthreads": worker.state.nthreads,
        "memory_limit_bytes": worker.memory_manager.memory_limit or None,
        "managed_bytes": int(worker.state.nbytes),
        "spilled_bytes": int(on_disk),
        "http": _http_of(worker),
        "scheduler": worker.scheduler.address,
        "nanny": worker.nanny if isinstance(worker.nanny, str) else None,
    }


def _http_of(worker):
    """host:port of the worker's own HTTP server, where Prometheus finds it; None without one."""
    try:
        return f"{worker.ip}:{worker.http_server.port}"
    except Exception:
        return None


def sizes_of_inputs(worker, key):
    """Dask's own sizes of what a task depends on, by key; None if they cannot be had."""
    try:
        return {
            dependency.key: dependency.nbytes
            for dependency in list(worker.state.tasks[key].dependencies)
        }
    except Exception:  # the event loop may be changing it just now
        return None
