"""`client.register_plugin(dwsr_probe.dask.Probe())`: the probe on a running cluster, and on
workers that join later."""

from distributed import WorkerPlugin

from dwsr_probe.dask import preload


class Probe(WorkerPlugin):
    """Measures every task of the cluster's workers; `dwsr_probe.dask.records(client)` has the
    result.

    Options are those of dwsr_probe.start(): period_ms, keep_peak, board_dir, alloc, alloc_from,
    gc. `client.unregister_worker_plugin("dwsr-probe")` removes it; what was measured stays in
    the workers, for `records`.
    """

    name = "dwsr-probe"

    def __init__(self, **options):
        self.options = options

    def setup(self, worker):
        preload.dask_setup(worker, "plugin", **self.options)

    def teardown(self, worker):
        preload.dask_teardown(worker, "plugin")
