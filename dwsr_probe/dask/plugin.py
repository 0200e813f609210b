"""`client.register_plugin(dwsr_probe.dask.Probe())`: the probe on a running cluster, and on
workers that join later.

Dask pickles the plugin, sends it to every worker and calls its methods there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from distributed import WorkerPlugin

from dwsr_probe.dask import preload

if TYPE_CHECKING:
    from distributed import Worker


class Probe(WorkerPlugin):
    """Measures every task of the cluster's workers; `dwsr_probe.dask.records(client)` has the
    result.

    Options are those of dwsr_probe.start(): period_ms, keep_peak, board_dir, alloc, alloc_from,
    gc, params, worker_model. `client.unregister_worker_plugin("dwsr-probe")` removes the plugin;
    the workers keep their records for `records`.
    """

    name = "dwsr-probe"

    def __init__(self, **options: Any) -> None:
        self.options = options

    def setup(self, worker: Worker) -> None:
        preload.dask_setup(worker, "plugin", **self.options)

    def teardown(self, worker: Worker) -> None:
        preload.dask_teardown(worker, "plugin")
