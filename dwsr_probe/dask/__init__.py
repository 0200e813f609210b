"""Dask: every task measured, in every scheduler, with no change to the job.

Under `dwsr-probe run` all of this is automatic. On a cluster: `dask worker --preload
dwsr_probe.dask.preload`, or on a running one `client.register_plugin(dwsr_probe.dask.Probe())`;
then `dwsr_probe.dask.records(client)`. See docs/dask.md.

Measuring: `functions` lists Dask's private functions, `hooks` wraps them, `transitions` follows the
tasks of unknown ones, `workers` publishes the workers' facts. Clusters: `preload` and `plugin` call
`attach`. Results: `dead` takes over the boards of killed workers, `held` packs what one worker has,
`roll` lists the measured workers, `gather` makes the DataFrame; `http` serves metrics.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def __getattr__(name: str) -> Any:
    if name == "Probe":
        from dwsr_probe.dask.plugin import Probe

        return Probe
    if name == "records":
        from dwsr_probe.dask.gather import records

        return records
    raise AttributeError(f"module 'dwsr_probe.dask' has no attribute {name!r}")
