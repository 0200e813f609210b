"""`dask worker ADDRESS --preload dwsr_probe.dask.preload`, or
DASK_DISTRIBUTED__WORKER__PRELOAD=dwsr_probe.dask.preload.

Options come from the environment (DWSR_PROBE_PERIOD_MS, DWSR_PROBE_ALLOC, ...: docs/dask.md).
Plain functions: some tools pass a preload arguments that a click command would refuse. What we
import comes late and guarded: a worker starts even where we cannot be loaded.
"""

import logging

from dwsr_probe.settings import switched_off


def dask_setup(worker, owner="preload", **options):
    if switched_off():
        return
    try:
        from dwsr_probe.dask.attach import attach
    except Exception as error:
        logging.getLogger("dwsr_probe").warning(
            "dwsr-probe cannot be loaded in this worker: %r. Its tasks are not measured", error
        )
    else:
        attach(worker, owner, **options)


def dask_teardown(worker, owner="preload"):
    try:
        from dwsr_probe.dask.attach import detach
    except Exception:
        return
    detach(worker, owner)
