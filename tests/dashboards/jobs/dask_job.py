"""A Dask job in all the states that dashboards show, until its input ends: tasks that end well,
fail, are killed, and run. Argument: a FIFO to wait at."""

import os
import select
import sys
import time

import dask
import numpy as np
from distributed import Client, KilledWorker, LocalCluster


def smooth(block):
    return (block[:-2] + block[1:-1] + block[2:]) / 3


def halve(block):
    return block / 2


def double(block):
    return block * 2


def fail(block):
    raise ValueError("as it should")


def doomed():
    os.kill(os.getpid(), 9)


def hold(fifo):
    kept = np.ones(4_000_000)
    with open(fifo) as wait:  # until somebody opens its other end
        wait.read()
    return kept.size


def climb(stop):
    """Grows by and by, until it is told to stop."""
    kept = []
    while not os.path.exists(stop):
        kept.append(np.ones(10_000))
        time.sleep(0.1)
    return len(kept)


def main(fifo):
    with (
        LocalCluster(
            n_workers=2, threads_per_worker=2, memory_limit="2 GB", dashboard_address=None
        ) as cluster,
        Client(cluster) as client,
    ):
        try:
            client.submit(doomed, retries=0).result()
        except KilledWorker:
            pass
        client.wait_for_workers(2)
        client.submit(climb, fifo).result()  # one that has ended
        held, climbing = client.submit(hold, fifo), client.submit(climb, f"{fifo}.stop")
        blocks = client.map(np.ones, [1_000_000, 2_000_000])
        client.submit(fail, blocks[0]).exception()
        # two operations under one prefix, as fused tasks of a graph have it
        client.gather(
            [
                client.submit(function, blocks[0], key=f"pipeline-{number:032x}")
                for number, function in enumerate((halve, double))
            ]
        )
        while not select.select([sys.stdin], [], [], 0.1)[0]:
            client.gather(
                [
                    client.submit(np.size, client.submit(smooth, block, pure=False))
                    for block in blocks
                ]
            )
        open(fifo, "w").close()
        open(f"{fifo}.stop", "w").close()
        client.gather([held, climbing])


if __name__ == "__main__":
    dask.config.set({"distributed.scheduler.allowed-failures": 0})
    main(sys.argv[1])
