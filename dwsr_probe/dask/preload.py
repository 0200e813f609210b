"""`dask worker ADDRESS --preload dwsr_probe.dask.preload`, or
DASK_DISTRIBUTED__WORKER__PRELOAD=dwsr_probe.dask.preload.

Dask calls `dask_setup` and `dask_teardown`; the plugin calls them, too. Options come from the
environment (DWSR_PROBE_PERIOD_MS, DWSR_PROBE_ALLOC, ...: docs/dask.md). These are plain functions,
because some tools pass arguments to a preload that a click command would refuse. Imports are late
and guarded: a worker starts even where we cannot be loaded.
"""

from __future__ import annotations

import logging

from dwsr_probe.settings import switched_off

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from distributed import Worker


def dask_setup(worker: Worker, owner: str = "preload", **options: Any) -> None:
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


def dask_teardown(worker: Worker, owner: str = "preload") -> None:
    try:
        from dwsr_probe.dask.attach import detach
    except Exception:
        return
    detach(worker, owner)
