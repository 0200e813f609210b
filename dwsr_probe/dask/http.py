"""Metrics, the task stream and the process on a Dask worker's own port: /metrics through
prometheus_client's registry, which Dask serves, and /dwsr/tasks and /dwsr/processes beside it.

Called on the worker's event loop, so everything is read in small pieces.
"""

from __future__ import annotations

import logging
import threading

from dwsr_probe.dask import dead

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from dwsr_probe.export.exposition import PrometheusCollector
    from dwsr_probe.export.sources.own_process import OwnProcessSource

logger = logging.getLogger("dwsr_probe")
_lock = threading.Lock()
# one per process: several workers may share it
_source: OwnProcessSource | None = None
_collector: PrometheusCollector | None = None


def serve(worker: Any) -> bool:
    """Adds our paths to the worker's port, once. False: the worker has no port (yet)."""
    global _source, _collector
    application = getattr(worker, "http_application", None)
    if application is None or getattr(worker, "_dwsr_probe_served", False):
        return application is not None
    worker._dwsr_probe_served = True
    try:
        from prometheus_client import REGISTRY

        from dwsr_probe.export.exposition import PrometheusCollector
        from dwsr_probe.export.handlers import ProcessesHandler, TasksHandler
        from dwsr_probe.export.hosts import Hosts
        from dwsr_probe.export.sources.own_process import OwnProcessSource

        with _lock:
            if _source is None:
                _source = OwnProcessSource(dead)
                _collector = PrometheusCollector(_source.view, dedicated_port=False)
                REGISTRY.register(_collector)
        given = {"source": _source, "hosts": Hosts(_host_names(worker))}
        application.add_handlers(
            ".*",
            [("/dwsr/tasks", TasksHandler, given), ("/dwsr/processes", ProcessesHandler, given)],
        )
    except Exception as error:
        logger.warning("dwsr-probe could not add its metrics to this worker's port: %r", error)
    return True


def _host_names(worker: Any) -> list[str]:
    """Host names by which others reach this worker: `--host`, `--contact-address`."""
    from dwsr_probe.export.hosts import name_of

    return [
        name_of(address.rpartition("//")[2]) or ""
        for address in (worker.address, worker.contact_address)
        if address
    ]


def stop() -> None:
    """Removes our metrics from /metrics. The path /dwsr/tasks stays, without records."""
    global _source, _collector
    with _lock:
        if _collector is not None:
            from prometheus_client import REGISTRY

            REGISTRY.unregister(_collector)
            assert _source is not None
            _source.totals.pairs.clear()
        _source = _collector = None
