"""Dask: every task measured, in every scheduler, with no change to the job.

Under `dwsr-probe run` all of this is automatic. On a cluster: `dask worker --preload
dwsr_probe.dask.preload`, or on a running one `client.register_plugin(dwsr_probe.dask.Probe())`;
then `dwsr_probe.dask.records(client)`. See docs/dask.md.

hooks.py begins and ends tasks, workers.py publishes the workers' facts, dead.py finds what a
killed worker left behind.
"""


def __getattr__(name):
    if name == "Probe":
        from dwsr_probe.dask.plugin import Probe

        return Probe
    if name == "records":
        from dwsr_probe.dask.gather import records

        return records
    raise AttributeError(f"module 'dwsr_probe.dask' has no attribute {name!r}")
