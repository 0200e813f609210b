"""CPU of real jobs under `run`, the whole tree (job, its children, sampler, parent), against the same jobs bare; the fixed cost of a run apart."""
import tempfile
from pathlib import Path

from tests.bench import PY, Section, spread
from tests.bench.overhead import cpu_of

JOBS = {
    "NumPy, 24 MB blocks, every block a task": """
import sys
import numpy as np
import dwsr_probe

def smooth(block):
    return np.sqrt(np.abs(np.fft.rfft(block, axis=-1))).sum(axis=-1) + (block * block).mean(axis=-1)

blocks = [np.random.default_rng(n).standard_normal((48, 96, 700 + n), dtype=np.float32) for n in range(4)]
for i in range(int(sys.argv[1])):
    with dwsr_probe.task("smooth", inputs=[blocks[i % 4]]):
        smooth(blocks[i % 4])
""",
    "dask.array, threads: map_overlap and reductions": """
import sys
import dask, dask.array as da
from scipy.ndimage import gaussian_filter
dask.config.set(num_workers=2)
x = da.random.default_rng(1).standard_normal((240, 240, 240), chunks=60)
for i in range(int(sys.argv[1])):
    y = x.map_overlap(gaussian_filter, depth=4, sigma=1 + i % 2)
    (y - y.mean(axis=0)).std().compute()
""",
    "distributed, 2 workers: the same": """
import sys
import dask.array as da
from distributed import Client, LocalCluster
from scipy.ndimage import gaussian_filter
if __name__ == "__main__":
    with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster, Client(cluster) as client:
        x = da.random.default_rng(1).standard_normal((240, 240, 240), chunks=60)
        for i in range(int(sys.argv[1])):
            y = x.map_overlap(gaussian_filter, depth=4, sigma=1 + i % 2)
            (y - y.mean(axis=0)).std().compute()
""",
    "pandas: merge, groupby, strings; no task marked": """
import sys
import numpy as np, pandas as pd
random = np.random.default_rng(1)
left = pd.DataFrame({"key": random.integers(0, 50_000, 400_000), "x": random.random(400_000)})
right = pd.DataFrame({"key": range(50_000), "name": [f"name {i % 997}" for i in range(50_000)]})
for i in range(int(sys.argv[1])):
    both = left.merge(right, on="key")
    both["name"].str.upper()
    both.groupby("name").x.agg(["mean", "std"])
""",
    "multiprocessing.Pool of 2: SciPy filters; no task marked": """
import sys
from multiprocessing import Pool
import numpy as np
from scipy.signal import hilbert
def envelope(seed):
    return float(np.abs(hilbert(np.random.default_rng(seed).standard_normal((200, 1500)))).max())
if __name__ == "__main__":
    with Pool(2) as pool:
        pool.map(envelope, range(20 * int(sys.argv[1])), chunksize=1)
""",
}


def under_run(folder, name, command, *options):
    return cpu_of([PY, "-m", "dwsr_probe", "run", *options, "-o", f"{folder}/{name}", *command])


def fixed_cost(folder, rounds):
    """CPU seconds of a run around a program that does nothing, beyond that program: without and with --metrics."""
    nothing, plain, metrics = [PY, "-c", "pass"], [], []
    for n in range(rounds):
        bare = cpu_of(nothing)
        plain.append(under_run(folder, f"plain{n}", nothing) - bare)
        metrics.append(under_run(folder, f"metrics{n}", nothing, "--metrics", "0") - bare)
    return plain, metrics


def run(quick=False):
    section = Section("Real jobs, the whole tree", "≤ 1.02 of bare plus the fixed cost; fixed ≤ 0.05 s of CPU, with `--metrics` 0.1 s more",
                      ("job", "bare, CPU s", "bare again / bare (control)", "under `run`, CPU s", "(run − fixed) / bare", "**least of each**"))
    with tempfile.TemporaryDirectory() as folder:
        plain, metrics = fixed_cost(folder, 3 if quick else 15)
        fixed = sorted(plain)[len(plain) // 2]
        section.rows += [("fixed cost of a run: `python -c pass`", "–", "–", spread(plain, 3), "–", f"{min(plain):.3f} s"),
                         ("the same with `--metrics`", "–", "–", spread(metrics, 3), "–", f"{min(metrics):.3f} s")]
        for number, (name, code) in enumerate(JOBS.items()):
            job = Path(folder) / f"job{number}.py"
            job.write_text(code)
            little, more = cpu_of([PY, job, "1"]), cpu_of([PY, job, "3"])
            count = max(2, round((2.0 if quick else 10.0) / max((more - little) / 2, 0.02)))
            bare, again, ours = [], [], []
            for n in range(2 if quick else 3):
                bare.append(cpu_of([PY, job, str(count)]))
                ours.append(under_run(folder, f"{number}-{n}", [PY, job, str(count)]))
                again.append(cpu_of([PY, job, str(count)]))
            ratios = [2 * (o - fixed) / (a + b) for a, b, o in zip(bare, again, ours, strict=True)]
            section.rows.append((name, spread(bare), spread([b / a for a, b in zip(bare, again, strict=True)], 3), spread(ours),
                                 spread(ratios, 3), f"{(min(ours) - min(plain)) / min(bare + again):.3f}"))
    section.notes.append("CPU is user and system time of everything that the command waited for. Each run is compared with the mean of the bare runs "
                         "before and after it; the least of each is freer of the machine's noise.")
    return section
