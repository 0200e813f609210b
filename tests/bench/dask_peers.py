"""Whose memory it was, on 1 worker with 2 threads: our figures, dask-memusage's and
distributed's MemorySampler's, against the truth."""

import json
import os
import subprocess
import tempfile

from tests.bench import PY, Section

JOB = """
import csv, json, os, sys, time
import numpy as np
from distributed import Client, LocalCluster
from distributed.diagnostics import MemorySampler
import dwsr_probe.dask

def big(seconds):
    x = np.ones(50_000_000)
    time.sleep(seconds)
    return float(x[0])

def spike():
    x = np.ones(50_000_000)
    return float(x[0])

def quiet(seconds):
    time.sleep(seconds)

if __name__ == "__main__":
    tool = sys.argv[1]
    with (
        LocalCluster(
            n_workers=1, threads_per_worker=2, dashboard_address=None, memory_limit=0
        ) as cluster,
        Client(cluster) as client,
    ):
        client.submit(spike, pure=False).result()  # memory is warm
        before = sum(client.run(lambda: __import__("psutil").Process().memory_info().rss).values())
        if tool == "dwsr-probe":
            client.register_plugin(dwsr_probe.dask.Probe())
        if tool == "dask-memusage":
            from dask_memusage import install

            install(cluster.scheduler, "memusage.csv")
            time.sleep(0.5)
        sampler = MemorySampler()

        def both():
            client.gather(
                [client.submit(big, 0.6, key="big-1"), client.submit(quiet, 1.2, key="quiet-1")]
            )
            client.gather([client.submit(spike, key="spike-1")])

        if tool == "MemorySampler":
            with sampler.sample("job", measure="process"):
                both()
            whole = int(sampler.to_pandas().max().iloc[0])
            print(
                json.dumps(
                    {"big": whole - before, "quiet": whole - before, "spike": whole - before}
                )
            )
        else:
            both()
        if tool == "dwsr-probe":
            frame = dwsr_probe.dask.records(client)
            print(
                json.dumps(
                    {
                        name: int(frame[frame.task_name == name].alloc_peak_bytes.max())
                        for name in ("big", "quiet", "spike")
                    }
                )
            )
        if tool == "dask-memusage":
            time.sleep(0.3)
            rows = {
                r["task_key"].split("-")[0]: float(r["max_memory_mb"]) * 2**20 - before
                for r in csv.DictReader(open("memusage.csv"))
            }
            print(json.dumps({name: int(rows.get(name, 0)) for name in ("big", "quiet", "spike")}))
"""


def figures_of(tool):
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        path = os.path.join(folder, "job.py")
        with open(path, "w") as file:
            file.write(JOB)
        done = subprocess.run(
            [PY, path, tool],
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=120,
            env=dict(os.environ, DWSR_PROBE_BOARD_DIR=os.path.join(folder, "boards")),
        )
    return json.loads(done.stdout.splitlines()[-1]) if done.returncode == 0 else None


def run(quick=False):
    section = Section(
        "Whose memory it was: 1 worker, 2 threads",
        "each task its own figure; truth 400 MB, 0 MB, 400 MB",
        (
            "tool",
            "a task of 400 MB held 0.6 s, MB",
            "the `sleep(1.2)` beside it, MB",
            "400 MB for a moment, alone, MB",
        ),
    )
    for tool in ("dwsr-probe", "dask-memusage", "MemorySampler"):
        rounds = [found for found in (figures_of(tool) for _ in range(1 if quick else 3)) if found]
        cells = [
            " / ".join(f"{found[name] / 1e6:.1f}" for found in rounds) or "failed"
            for name in ("big", "quiet", "spike")
        ]
        section.rows.append((tool, *cells))
    section.notes.append(
        "Three runs each. dask-memusage 1.1 and MemorySampler at their defaults, minus the worker's"
        " size before; MemorySampler knows no tasks: the whole job's largest sample stands in each"
        " column."
    )
    return section
