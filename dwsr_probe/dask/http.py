"""Metrics and the task stream on a Dask worker's own port: /metrics through prometheus_client's
registry, which Dask serves, and /dwsr/tasks beside it.

Called on the worker's event loop, which is the worker's: what is read here is read in small
pieces.
"""

import logging
import threading

from dwsr_probe.dask import dead

logger = logging.getLogger("dwsr_probe")
_lock = threading.Lock()
_source = _exposition = None  # one per process: several workers may share it


def serve(worker):
    """Idempotent, as soon as the worker has its port. False: it has none (yet)."""
    global _source, _exposition
    application = getattr(worker, "http_application", None)
    if application is None or getattr(worker, "_dwsr_probe_served", False):
        return application is not None
    worker._dwsr_probe_served = True
    try:
        from prometheus_client import REGISTRY

        from dwsr_probe.export.exposition import Exposition
        from dwsr_probe.export.handlers import ProcessesHandler, TasksHandler
        from dwsr_probe.export.hosts import Hosts
        from dwsr_probe.export.sources.own_process import OwnProcessSource

        with _lock:
            if _source is None:
                _source = OwnProcessSource(dead)
                _exposition = Exposition(_source.view, own_port=False)
                REGISTRY.register(_exposition)
        given = {"source": _source, "hosts": Hosts(_own_names(worker))}
        application.add_handlers(
            ".*",
            [("/dwsr/tasks", TasksHandler, given), ("/dwsr/processes", ProcessesHandler, given)],
        )
    except Exception as error:
        logger.warning("dwsr-probe could not add its metrics to this worker's port: %r", error)
    return True


def _own_names(worker):
    """How others reach this worker, as it was told: `--host`, `--contact-address`."""
    from dwsr_probe.export.hosts import name_of

    return [
        name_of(address.rpartition("//")[2]) or ""
        for address in (worker.address, worker.contact_address)
        if address
    ]


def stop():
    """Nothing of ours in /metrics any more; /dwsr/tasks answers with nothing."""
    global _source, _exposition
    with _lock:
        if _exposition is not None:
            from prometheus_client import REGISTRY

            REGISTRY.unregister(_exposition)
            _source.totals.names.clear()
        _source = _exposition = None
