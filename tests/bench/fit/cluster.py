"""One Dask worker in a process of its own, under its nanny, and what a job took there.

The high-water mark of the worker's resident size is the kernel's own, read from /proc. Nothing of
the probe is loaded in the worker.
"""

import contextlib
import time
from dataclasses import dataclass
from pathlib import Path

import dask
import dask.array as da
import numpy as np
import zarr
from distributed import Client, LocalCluster

KILL_SHARE = 0.95  # of the limit: Dask's nanny ends a worker that exceeds it
_TIMEOUT_S = 20
_SETTINGS = {
    "distributed.scheduler.allowed-failures": 0,  # a kill ends the job at once
    "distributed.comm.timeouts.connect": "30s",
}


@dataclass
class Ran:
    """seconds: of the job alone. peak_bytes: of the worker's process. Both are None if the job did
    not end. failure: what ended it; "slow" if it took longer than the time allowed."""

    seconds: float | None = None
    peak_bytes: int | None = None
    failure: str = ""

    @property
    def is_fast_enough(self):
        return not self.failure


class Cluster:
    """A worker that is started when it is first needed, and anew after a job that failed."""

    def __init__(self, threads, limit_bytes):
        self.threads, self.limit_bytes = threads, limit_bytes
        self._open = contextlib.ExitStack()
        self._client = None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        self._open.close()
        self._client = None

    def run(self, job, is_fresh=False):
        """is_fresh: in a worker that has done nothing before."""
        if is_fresh:
            self.close()
        if self._client is None:
            self._start()
        (pid,) = self._client.run(_pid).values()
        Path(f"/proc/{pid}/clear_refs").write_text("5")  # resets the high-water mark
        future = None
        began = time.perf_counter()
        try:
            future = self._client.compute(job)
            future.result(timeout=_TIMEOUT_S)
            seconds = time.perf_counter() - began
            peak = _peak_bytes(pid)
        except TimeoutError:
            self.close()
            return Ran(failure="slow")
        except Exception as error:  # KilledWorker, or the function's MemoryError
            del future
            self.close()
            return Ran(failure=type(error).__name__)
        future.release()
        if peak > KILL_SHARE * self.limit_bytes:
            return Ran(seconds, peak, "above 95 %")  # the nanny looks only now and then
        return Ran(seconds, peak)

    def _start(self):
        self._open.enter_context(dask.config.set(_SETTINGS))
        cluster = self._open.enter_context(
            LocalCluster(
                processes=True,
                n_workers=1,
                threads_per_worker=self.threads,
                memory_limit=self.limit_bytes,
                dashboard_address=None,
                silence_logs=50,
            )
        )
        # Not as default: `fit_blocks` would ask this cluster for its limits
        self._client = self._open.enter_context(Client(cluster, set_as_default=False))
        self._client.wait_for_workers(1, timeout=30)


def _pid():
    import os

    return os.getpid()


def _peak_bytes(pid):
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) << 10
    raise ProcessLookupError(f"process {pid} has ended")


def job_of(operator, source, block, target):
    """The job as a graph that is not computed yet. source, target: paths."""
    x = da.from_zarr(source, chunks=block)
    meta = np.empty((0,) * x.ndim, np.float32)
    if operator.depth is None:
        y = x.map_blocks(operator.function, dtype=x.dtype, meta=meta)
    else:
        y = x.map_overlap(
            operator.function, depth=operator.depth, boundary="none", dtype=x.dtype, meta=meta
        )
    written = zarr.create_array(
        target, shape=x.shape, chunks=_written(operator, block), dtype=x.dtype, overwrite=True
    )
    return y.store(written, lock=False, compute=False)


def _written(operator, block):
    """Lengths of the chunks of the result. No two blocks write into the same chunk."""
    if operator.written_as_blocks:
        return block
    return tuple(
        stored if length % stored == 0 or length == n else length
        for length, stored, n in zip(block, operator.stored, operator.shape, strict=True)
    )
