"""The workers of this process: their facts for readers of the board, and sizes for the hooks.

Facts are JSON on a page of the board: {"workers": [{address, name, nthreads, memory_limit_bytes,
managed_bytes, spilled_bytes, scheduler, nanny, http}]}, and under "worker_model" the figures of the
model in this process, if it is on. A task names the worker that ran it by its index in this list,
so the list only grows while the board lives. Facts are published once a second on the worker's
event loop, if they have changed. Called by hooks, attach and Dask's event loop.
"""

from __future__ import annotations

import json
import sys
import threading
import weakref

from dwsr_probe import _core, probe
from dwsr_probe.dask import functions, transitions

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Hashable
    from typing import Any

    from distributed import Worker

    Facts = dict[str, Any]

PUBLISH_PERIOD_MS = 1000
WORKERS_MOST = 64
_lock = threading.Lock()
_facts: list[Facts] = []  # by index
_registered: list[weakref.ref[Worker]] = []  # by index
_published: tuple[str, str | None] | None = None  # the facts, and the board that has them


def register(worker: Worker) -> int | None:
    """The worker's index in the facts. It is given at the first call and noted on the worker; None
    beyond WORKERS_MOST."""
    with _lock:
        try:
            return worker._dwsr_probe_index
        except AttributeError:
            pass
        worker._dwsr_probe_index = index = len(_facts) if len(_facts) < WORKERS_MOST else None
        if index is None:
            return None
        _facts.append({})
        _registered.append(weakref.ref(worker))
    publish(worker)
    return index


def follow(worker: Worker) -> None:
    """Publish this worker's facts while it lives. Called on the worker's event loop, or before the
    loop has started."""
    from tornado.ioloop import PeriodicCallback

    if "dwsr-probe" not in worker.periodic_callbacks:
        worker.periodic_callbacks["dwsr-probe"] = callback = PeriodicCallback(
            lambda: publish(worker), PUBLISH_PERIOD_MS
        )
        if worker.status.name in ("running", "paused"):
            callback.start()
    transitions.follow(worker)
    handlers = getattr(worker, "handlers", {})
    if "actor_execute" in handlers:  # bound when the worker was made
        handlers["actor_execute"] = worker.actor_execute
    if probe.wants_worker_model():
        from dwsr_probe import worker_model
        from dwsr_probe.dask import dead

        worker_model.start(dead)


def unfollow(worker: Worker) -> None:
    """Undo `follow`, before the hooks are removed. A worker that closes empties its own lists."""
    if worker.status.name not in ("running", "paused"):
        return
    callback = worker.periodic_callbacks.pop("dwsr-probe", None)
    if callback is not None:
        callback.stop()
    transitions.unfollow(worker)


def unregister_all() -> None:
    """Remove our attributes from all workers, after the hooks are removed."""
    global _published
    with _lock:
        for reference in _registered:
            worker = reference()
            if worker is not None:
                del worker._dwsr_probe_index
                worker.__dict__.pop("_dwsr_probe_served", None)
                if "actor_execute" in getattr(worker, "handlers", {}):
                    worker.handlers["actor_execute"] = worker.actor_execute
        _facts.clear()
        _registered.clear()
        _published = None
    from dwsr_probe.dask import http

    http.stop()
    if "dwsr_probe.worker_model" in sys.modules:
        sys.modules["dwsr_probe.worker_model"].stop()


def publish(worker: Worker) -> None:
    """Put the worker's facts on the board, serve its metrics and announce it to the scheduler. It
    never raises, because it runs on the worker's event loop."""
    global _published
    from dwsr_probe.dask import http, roll

    try:
        index = register(worker)
        if index is None:
            return
        _facts[index] = facts_of(worker)
        model = _model_figures()
        state = json.dumps([_facts, model]), _core.board_path()
        if state != _published and (
            _core.set_facts(_facts_json(_facts, model))
            or _core.set_facts(_facts_json([{"address": f.get("address")} for f in _facts], model))
        ):
            _published = state  # in full, or the addresses alone if the page is too small
        _core.note_dask_hooks(functions.hooks_kind())
        http.serve(worker)
        roll.announce(worker)
    except Exception:
        pass


def _facts_json(facts: list[Facts], model: dict[str, float] | None) -> bytes:
    found = {"workers": facts, **({"worker_model": model} if model is not None else {})}
    return json.dumps(found, separators=(",", ":")).encode()


def _model_figures() -> dict[str, float] | None:
    """Of the model in this process; None without one."""
    module = sys.modules.get("dwsr_probe.worker_model")
    return module.figures() if module is not None else None


def facts_of(worker: Worker) -> Facts:
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


def _http_of(worker: Worker) -> str | None:
    """host:port of the worker's own HTTP server, for Prometheus; None without one."""
    try:
        return f"{worker.ip}:{worker.http_server.port}"
    except Exception:
        return None


def sizes_of_inputs(worker: Worker, key: Hashable) -> dict[Hashable, int] | None:
    """Dask's own sizes of a task's inputs, by key; None if they cannot be read."""
    try:
        return {
            dependency.key: dependency.nbytes
            for dependency in list(worker.state.tasks[key].dependencies)
        }
    except Exception:  # the event loop may be changing the task at this moment
        return None
