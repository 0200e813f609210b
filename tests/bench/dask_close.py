"""How long a Dask worker takes to close: from the nanny's request to the end of the process,
bare and probed."""

import json
import os
import subprocess
import tempfile

from tests.bench import PY, Section

# Bare and probed workers of one cluster, closed one by one in turn: both meet the same load of the
# machine.
CLUSTER = """
import asyncio, json, resource, sys, time
import numpy as np
from distributed import Client, Nanny, Scheduler

def work(i):
    return float(np.ones(100_000).sum()) + i

def ended():  # CPU seconds of all children that have ended
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime

async def main(pairs, tasks):
    times = {"bare": [], "probed": []}
    async with Scheduler(port=0, dashboard_address=None) as scheduler:

        def nanny(kind):
            return Nanny(
                scheduler.address,
                nthreads=2,
                memory_limit=0,
                dashboard_address=None,
                preload=["dwsr_probe.dask.preload"] if kind == "probed" else [],
            )

        kinds = ["bare", "probed"] * pairs
        nannies = await asyncio.gather(*map(nanny, kinds))
        async with Client(scheduler.address, asynchronous=True) as client:
            await client.gather(
                [
                    client.submit(work, i, workers=[n.worker_address], pure=False)
                    for n in nannies
                    for i in range(tasks)
                ]
            )
            order = list(zip(kinds, nannies))
            if int(sys.argv[3]) % 2:  # who is first takes turns
                order.reverse()
            for kind, one in order:
                # the CPU clock of that process
                used = time.clock_gettime((~one.pid << 3) | 2) + ended()
                begin = time.perf_counter()
                await one.kill(timeout=60, reason="bench")
                times[kind].append((time.perf_counter() - begin, ended() - used))
        await asyncio.gather(*(one.close() for one in nannies))
    print(json.dumps(times))

if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), int(sys.argv[2])))
"""


def close_round(pairs, tasks, number):
    """(wall seconds, CPU seconds) of each worker by kind, "bare" and "probed"."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        path = os.path.join(folder, "cluster.py")
        with open(path, "w") as file:
            file.write(CLUSTER)
        environ = dict(os.environ, DWSR_PROBE_BOARD_DIR=os.path.join(folder, "boards"))
        out = subprocess.run(
            [PY, path, str(pairs), str(tasks), str(number)],
            capture_output=True,
            text=True,
            check=True,
            env=environ,
        ).stdout
    return json.loads(out.splitlines()[-1])


def quantile(values, share):
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def run(quick=False):
    found = {"bare": [], "probed": []}
    for number in range(2 if quick else 40):
        for kind, closed in close_round(5, 20, number).items():
            found[kind] += closed
    count = len(found["bare"])
    section = Section(
        "Closing a Dask worker",
        "99th percentile of the time with the probe ≤ 1.1 of that without",
        (f"ms, {count} workers of each kind", "bare", "probed", "**ratio**"),
    )
    for name, column, share in (
        ("wall, median", 0, 0.5),
        ("wall, 90th percentile", 0, 0.9),
        ("wall, 99th percentile", 0, 0.99),
        ("CPU, median", 1, 0.5),
    ):
        bare, probed = (
            1e3 * quantile([row[column] for row in found[kind]], share)
            for kind in ("bare", "probed")
        )
        section.rows.append((name, f"{bare:.0f}", f"{probed:.0f}", f"{probed / bare:.3f}"))
    section.notes.append(
        "From the nanny's request to the end of the process. Bare and probed workers (preload) of"
        " one cluster are closed one by one in turn. Load of the machine at the end:"
        f" {os.getloadavg()[0]:.0f}."
    )
    return section
