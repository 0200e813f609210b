"""CPU of real jobs under `run`, the whole tree (job, its children, sampler, parent), against the
same jobs bare; the fixed cost of a run apart."""

import tempfile
from pathlib import Path

from tests.bench import PY, Section, median, spread
from tests.bench.numpy_job import cpu_of

JOBS = {
    "NumPy, 24 MB blocks, every block a task": (
        """
import sys
import numpy as np
import dwsr_probe

def smooth(block):
    return np.sqrt(np.abs(np.fft.rfft(block, axis=-1))).sum(axis=-1) + (block * block).mean(axis=-1)

blocks = [
    np.random.default_rng(n).standard_normal((48, 96, 700 + n), dtype=np.float32) for n in range(4)
]
for i in range(int(sys.argv[1])):
    with dwsr_probe.task("smooth", inputs=[blocks[i % 4]]):
        smooth(blocks[i % 4])
"""
    ),
    "dask.array, threads: map_overlap and reductions": (
        """
import sys
import dask, dask.array as da
from scipy.ndimage import gaussian_filter
dask.config.set(num_workers=2)
x = da.random.default_rng(1).standard_normal((240, 240, 240), chunks=60)
for i in range(int(sys.argv[1])):
    y = x.map_overlap(gaussian_filter, depth=4, sigma=1 + i % 2)
    (y - y.mean(axis=0)).std().compute()
"""
    ),
    "distributed, 2 workers: the same": (
        """
import sys
import dask.array as da
from distributed import Client, LocalCluster
from scipy.ndimage import gaussian_filter

if __name__ == "__main__":
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster,
        Client(cluster) as client,
    ):
        x = da.random.default_rng(1).standard_normal((240, 240, 240), chunks=60)
        for i in range(int(sys.argv[1])):
            y = x.map_overlap(gaussian_filter, depth=4, sigma=1 + i % 2)
            (y - y.mean(axis=0)).std().compute()
"""
    ),
    "pandas: merge, groupby, strings; no task marked": (
        """
import sys
import numpy as np, pandas as pd
random = np.random.default_rng(1)
left = pd.DataFrame({"key": random.integers(0, 50_000, 400_000), "x": random.random(400_000)})
right = pd.DataFrame({"key": range(50_000), "name": [f"name {i % 997}" for i in range(50_000)]})
for i in range(int(sys.argv[1])):
    both = left.merge(right, on="key")
    both["name"].str.upper()
    both.groupby("name").x.agg(["mean", "std"])
"""
    ),
    "multiprocessing.Pool of 2: SciPy filters; no task marked": (
        """
import sys
from multiprocessing import Pool
import numpy as np
from scipy.signal import hilbert
def envelope(seed):
    return float(np.abs(hilbert(np.random.default_rng(seed).standard_normal((200, 1500)))).max())
if __name__ == "__main__":
    with Pool(2) as pool:
        pool.map(envelope, range(20 * int(sys.argv[1])), chunksize=1)
"""
    ),
}


# How `run` is called around a program that does nothing.
WAYS = {"plain": (), "metrics": ("--metrics", "0")}


def under_run(folder, name, command, *options):
    return cpu_of([PY, "-m", "dwsr_probe", "run", *options, "-o", f"{folder}/{name}", *command])


def fixed_cost(folder, rounds, ways=WAYS):
    """CPU seconds of a program that does nothing: bare, and under `run` by name of the way."""
    nothing, bare, under = [PY, "-c", "pass"], [], {way: [] for way in ways}
    for n in range(rounds):
        bare.append(cpu_of(nothing))
        for way, options in ways.items():
            under[way].append(under_run(folder, f"{way}{n}", nothing, *options))
    return bare, under


def count_for(job, seconds):
    """The argument with which a job takes about so many seconds of CPU."""
    once, count = cpu_of([PY, job, "1"]), 3
    for goal in (min(1.0, seconds), seconds):  # the first few are slower: from a second's worth
        each = max((cpu_of([PY, job, str(count)]) - once) / (count - 1), 0.005)
        count = max(2, round(goal / each))
    return count


def in_turn(folder, job, count, rounds):
    """CPU seconds of a job: bare, under `run`, bare again."""
    bare, ours, again = [], [], []
    for n in range(rounds):
        bare.append(cpu_of([PY, job, str(count)]))
        ours.append(under_run(folder, f"{Path(job).stem}-{n}", [PY, job, str(count)]))
        again.append(cpu_of([PY, job, str(count)]))
    return bare, ours, again


def run(quick=False):
    section = Section(
        "Real jobs, the whole tree",
        "≤ 1.02 of bare plus the fixed cost; fixed ≤ 0.05 s of CPU, with `--metrics` 0.1 s more",
        (
            "job",
            "bare, CPU s",
            "bare again / bare (control)",
            "under `run`, CPU s",
            "(run − fixed) / bare",
            "**least of each**",
        ),
    )
    with tempfile.TemporaryDirectory() as folder:
        nothing, under = fixed_cost(folder, 3 if quick else 15)
        plain, metrics = ([a - b for a, b in zip(under[way], nothing, strict=True)] for way in WAYS)
        least_plain, least_metrics = (min(under[way]) - min(nothing) for way in WAYS)
        fixed = median(plain)
        section.rows += [
            (
                "fixed cost of a run: `python -c pass`",
                "–",
                "–",
                spread(plain, 3),
                "–",
                f"{least_plain:.3f} s",
            ),
            (
                "the same with `--metrics`",
                "–",
                "–",
                spread(metrics, 3),
                "–",
                f"{least_metrics:.3f} s",
            ),
        ]
        for number, (name, code) in enumerate(JOBS.items()):
            job = Path(folder) / f"job{number}.py"
            job.write_text(code)
            count = count_for(job, 2.0 if quick else 10.0)
            bare, ours, again = in_turn(folder, job, count, 2 if quick else 3)
            ratios = [2 * (o - fixed) / (a + b) for a, b, o in zip(bare, again, ours, strict=True)]
            section.rows.append(
                (
                    name,
                    spread(bare),
                    spread([b / a for a, b in zip(bare, again, strict=True)], 3),
                    spread(ours),
                    spread(ratios, 3),
                    f"{(min(ours) - least_plain) / min(bare + again):.3f}",
                )
            )
    section.notes.append(
        "CPU is user and system time of everything that the command waited for. Each run is"
        " compared with the mean of the bare runs before and after it; the least of each is freer"
        " of the machine's noise."
    )
    return section
