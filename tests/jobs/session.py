"""What the jobs of this folder share: the arguments, the scheduler, and a witness of what is read.

The jobs are programs as users write them. They know nothing of dwsr-probe.
`tests/integration/test_real_graphs.py` and `tests/bench/graphs.py` run them.
"""

import argparse
import json
import os
from contextlib import contextmanager

import dask
from distributed import Client, LocalCluster
from distributed.diagnostics.plugin import WorkerPlugin

THREADS = 2


def arguments(description, block):
    """FOLDER holds the data (made there if it is missing) and receives the results."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("folder")
    parser.add_argument("--block", type=int, default=block, help="length of a block")
    parser.add_argument("--scheduler", choices=("cluster", "threads"), default="cluster")
    parser.add_argument("--times", type=int, default=1, help="repeat the work")
    parser.add_argument("--witness", help="write what each task reads from zarr to this file")
    return parser.parse_args()


@contextmanager
def session(chosen):
    """A LocalCluster of one process with two threads, or Dask's threaded scheduler."""
    if chosen.scheduler == "threads":
        with dask.config.set(scheduler="threads", num_workers=THREADS):
            yield
        return
    with (
        LocalCluster(
            n_workers=1, threads_per_worker=THREADS, dashboard_address=None, memory_limit=0
        ) as cluster,
        Client(cluster) as client,
    ):
        if chosen.witness:
            client.register_plugin(Witness(os.path.abspath(chosen.witness)))
        yield


class Witness(WorkerPlugin):
    """Writes a line for each selection that a task reads from a zarr array: the task's key, the
    shape and the bytes of what was read. The probe's own records are compared with these lines."""

    name = "witness"

    def __init__(self, path):
        self.path = path

    def setup(self, worker):
        import zarr
        from distributed.worker import thread_state

        def watched(read):
            def get(array, *words, **options):
                found = read(array, *words, **options)
                key = getattr(thread_state, "key", None)
                if key is not None and getattr(found, "nbytes", 0):
                    line = {"key": str(key), "shape": found.shape, "nbytes": found.nbytes}
                    with open(self.path, "a") as file:
                        file.write(json.dumps(line) + "\n")
                return found

            return get

        for way in ("get_basic_selection", "get_orthogonal_selection", "get_coordinate_selection"):
            setattr(zarr.Array, way, watched(getattr(zarr.Array, way)))
