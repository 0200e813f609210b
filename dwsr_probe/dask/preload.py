"""`dask worker ADDRESS --preload dwsr_probe.dask.preload`, or DASK_DISTRIBUTED__WORKER__PRELOAD=dwsr_probe.dask.preload.

Options come from the environment (DWSR_PROBE_PERIOD_MS, DWSR_PROBE_ALLOC, ...: docs/dask.md). Plain functions: some tools pass a preload arguments
that a click command would refuse.
"""
from dwsr_probe.dask.attach import attach, detach


def dask_setup(worker):
    attach(worker)


def dask_teardown(worker):
    detach(worker)
