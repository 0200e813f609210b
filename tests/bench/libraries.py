"""The libraries that people run inside tasks, followed: `make bench-libraries`.

What a step of an event loop and an allocation by Arrow cost more (library_parts.py), and two jobs
of whole stacks, Dask on zarr 3 and a Dask DataFrame: their CPU under `run` beside bare, and how
much of their records is `exact`. `--quick`: a short trial that writes nothing.
"""

import argparse
import math
import os
import subprocess
from collections import Counter
from functools import cache

from tests.bench import PY, median
from tests.bench import budget_runs as runs
from tests.bench import library_parts as parts
from tests.bench.budgets import Row, publish, table
from tests.bench.figure import Figure, NotMeasured, difference
from tests.bench.jobs import under_run
from tests.bench.numpy_job import cpu_of

ZARR = "Dask on zarr 3, LocalCluster of one process with 2 threads"
CHUNK = 32, 256, 512  # of float32, 16 MiB
FRAME = "Dask DataFrame, LocalCluster of one process with 2 threads"

# Each makes its data in the folder that it is called with; its second argument is the share of the
# full size.
DATA = {
    # 1 GB of float32: a slow wave and noise, rounded as instruments do. zarr's default compressors.
    ZARR: f"chunks = {CHUNK}"
    """
import sys
import numpy as np
import zarr

folder, scale = sys.argv[1], float(sys.argv[2])
traces = round(512 * scale)
volume = zarr.create_array(
    f"{folder}/volume.zarr", shape=(traces, 512, 1024), chunks=chunks, dtype="float32"
)
random, wave = np.random.default_rng(1), np.sin(np.arange(1024) / 40, dtype=np.float32)
for first in range(0, traces, 32):
    noise = random.standard_normal((32, 512, 1024), dtype=np.float32)
    volume[first : first + 32] = np.round((wave + noise / 20) * 200) / 200
""",
    FRAME: """
import sys
import numpy as np
import pandas as pd

folder, scale = sys.argv[1], float(sys.argv[2])
random = np.random.default_rng(1)
for part in range(8):
    rows = round(500_000 * scale)
    station = random.integers(0, 5_000, rows)
    pd.DataFrame(
        {
            "station": [f"station {number:05}" for number in station],
            "kind": random.choice(["surface", "borehole", "marine"], rows),
            "value": random.random(rows),
        }
    ).to_parquet(f"{folder}/records.{part}.parquet")
pd.DataFrame(
    {
        "station": [f"station {number:05}" for number in range(5_000)],
        "region": [f"region {number % 97}" for number in range(5_000)],
    }
).to_parquet(f"{folder}/stations.parquet")
""",
}
CLUSTER = """
import os
import sys
from distributed import Client, LocalCluster

folder = os.path.dirname(os.path.abspath(__file__))

if __name__ == "__main__":
    with (
        LocalCluster(n_workers=1, threads_per_worker=2, dashboard_address=None) as cluster,
        Client(cluster) as client,
    ):
        for _ in range(int(sys.argv[1])):
            work()
"""
WORK = {
    ZARR: """
import dask.array as da

def work():
    volume = da.from_zarr(f"{folder}/volume.zarr")
    volume.sum().compute()
""",
    FRAME: """
import dask.dataframe as dd

def work():
    records = dd.read_parquet(f"{folder}/records.*.parquet")
    stations = dd.read_parquet(f"{folder}/stations.parquet")
    records["name"] = records.station.str.upper()
    both = records[records.name.str.endswith("7") | (records.value > 0.25)].merge(
        stations, on="station"
    )
    both.groupby(["region", "kind"]).value.agg(["mean", "std"]).compute()
""",
}
JOBS = {name: work + CLUSTER for name, work in WORK.items()}
NEEDS = {ZARR: "zarr", FRAME: "dask.dataframe"}


@cache
def _measured(found, name):
    """The ratio of a job; its runs stay in the folder."""
    if subprocess.run([PY, "-c", f"import {NEEDS[name]}"], capture_output=True).returncode:
        raise NotMeasured(f"{NEEDS[name]} is missing: pip install 'dwsr-probe[bench]'")
    subprocess.run([PY, "-c", DATA[name], found.folder, "0.25" if found.quick else "1"], check=True)
    return runs.real_job(name, JOBS)(found)


def without_work(found):
    """Seconds of CPU that the cluster alone takes more."""
    command, bare, ours = [PY, found.job("cluster", CLUSTER), "0"], [], []
    for n in range(found.rounds(5, 2)):
        bare.append(cpu_of(command))
        ours.append(under_run(found.folder, f"cluster-{n}", command))
    return difference(bare, ours, said=f"bare {median(bare):.1f} s")


def job_ratio(name):
    return lambda found: _measured(found, name)


def _records(found, name):
    """The tasks of each run of a job."""
    _measured(found, name)
    job = f"job{list(JOBS).index(name)}"
    return [runs.report_lines(f"{found.folder}/{job}-{n}") for n in range(runs.real_rounds(found))]


def not_exact(name):
    """Percent of the tasks whose record is not `exact`, in each run."""

    def share(found):
        tasks = _records(found, name)
        said = f"{len(tasks[0]):,} tasks; {reasons(tasks[0])}"
        return Figure([percent_not_exact(run) for run in tasks], said=said)

    return share


def bytes_not_exact(name):
    """Percent of the bytes of all own peaks, in each run."""

    def share(found):
        return Figure([percent_of_bytes_not_exact(run) for run in _records(found, name)])

    return share


def below_their_chunk(found):
    """Percent of the tasks that load and sum a chunk, and whose own peak is less than the chunk."""
    return Figure([percent_below_chunk(run) for run in _records(found, ZARR)])


def percent_below_chunk(tasks):
    chunk = 4 * math.prod(CHUNK)
    peaks = [task["alloc_peak_bytes"] or 0 for task in tasks if task["task_name"] == "sum"]
    if not peaks:
        raise NotMeasured("this release of Dask has another name for the tasks that load")
    return 100 * sum(peak < chunk for peak in peaks) / len(peaks)


def is_exact(task):
    return task["attribution"] == "exact" and task["alloc_peak_bytes"] is not None


def percent_not_exact(tasks):
    return 100 * sum(not is_exact(task) for task in tasks) / len(tasks)


def percent_of_bytes_not_exact(tasks):
    """A record without an own peak counts with the growth of its process."""

    def own(task):
        if task["alloc_peak_bytes"] is not None:
            return task["alloc_peak_bytes"]
        return task["rss_peak_bytes"] - task["rss_before_bytes"]

    missing = sum(own(task) for task in tasks if not is_exact(task))
    return 100 * missing / sum(map(own, tasks))


def reasons(tasks):
    """The commonest reasons of the records that are not exact, with their counts."""
    counts = Counter(
        task["attribution_reason"] or "no own peak" for task in tasks if not is_exact(task)
    )
    return ", ".join(f"{count} {reason}" for reason, count in counts.most_common(3)) or "all exact"


ROWS = (
    Row(
        "pair",
        "an asyncio step in a loop that works for a task",
        0.3,
        "µs",
        parts.asyncio_step_for_task,
        3,
    ),
    Row(
        "pair",
        "an asyncio step in a process without tasks",
        0.05,
        "µs",
        parts.asyncio_step_without_tasks,
        3,
    ),
    Row("pair", "Arrow allocates and frees 64 bytes", 20, "ns", parts.arrow_pair(64), 1),
    Row("pair", "Arrow allocates and frees 1 MiB", 20, "ns", parts.arrow_pair(1 << 20), 1),
    Row("job", "a LocalCluster without work", None, "s of CPU", without_work, 3),
    Row("job", f"(run − fixed) / bare: {ZARR}", 1.02, "", job_ratio(ZARR), 3),
    Row("job", "its tasks that are not `exact`", 0, "%", not_exact(ZARR), 1),
    Row("job", "its loads whose own peak is below their chunk", 0, "%", below_their_chunk, 1),
    Row("job", f"(run − fixed) / bare: {FRAME}", 1.02, "", job_ratio(FRAME), 3),
    Row("job", "its tasks that are not `exact`", 5, "%", not_exact(FRAME), 1),
    Row("job", "bytes of own peaks that are not `exact`", 10, "%", bytes_not_exact(FRAME), 1),
)


def run(quick=False):
    section = table(
        "Libraries inside tasks",
        "a step of an asyncio loop, an allocation by Arrow and whole stacks of libraries",
        ROWS,
        quick,
    )
    section.notes.append(
        "Bare and probed processes take turns. The least of each decides where there is one, as "
        "in [Budgets](#budgets). Steps: CPU of the loop's thread, "
        f"{parts.COROUTINES} coroutines at once, each {parts.STEPS:,} times "
        "`await asyncio.sleep(0)`. Arrow: its default pool, called from C++."
    )
    section.notes.append(
        "The jobs: a sum over 1 GB of float32 in zarr's default compression; `read_parquet` of "
        "4 million rows with strings, `str`, `merge` and `groupby`. CPU is user and system time "
        "of the whole tree: job, scheduler, worker, nanny and `run`'s parent. The fixed cost is "
        "that of `python -c pass`; a cluster has three interpreters (job, worker, Python's "
        "resource tracker). Shares are those of each run under `run`. "
        f"The machine's load was {os.getloadavg()[0]:.1f} at the end."
    )
    return section


def main():
    parser = argparse.ArgumentParser(prog="python -m tests.bench.libraries", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few rounds; nothing is written")
    chosen = parser.parse_args()
    publish("libraries", run(chosen.quick), chosen.quick)


if __name__ == "__main__":
    main()
