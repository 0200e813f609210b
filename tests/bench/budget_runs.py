"""Budgets of whole runs: CPU of the tree, the parent, the store. Functions of Runs, called by the
rows of tests/bench/budgets.py.

What several rows share is measured once, bare and probed in turn. Only the command line and
`dwsr_probe.load` are used here.
"""

import json
import os
import subprocess
import time
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path

import dwsr_probe
from tests.bench import PY, in_fresh_python, median, spread
from tests.bench.figure import Figure, difference
from tests.bench.jobs import JOBS, WAYS, count_for, fixed_cost, in_turn, under_run
from tests.bench.numpy_job import cpu_of

TASKS, RECORDS = 20_000, 100_000
THREADS, BLOCKS = 8, 40_000

TRIVIAL = """
import sys
import dask
import dask.threaded

def increment(i):
    return i + 1

graph = {("increment-5f0c3a", i): (increment, i) for i in range(int(sys.argv[1]))}
with dask.config.set(num_workers=2):
    dask.threaded.get(graph, list(graph))
"""
# Two array inputs and one output each; names, keys and shapes as a job of several operators has.
ARRAYS = """
import sys
import dask
import dask.threaded
import numpy as np

words = "smooth", "gradient", "envelope", "semblance"
names = [f"{word}-{number:032x}" for number, word in enumerate(words)]
blocks = {f"{side}-{n}": np.ones((4, 10 + n), np.float32) for n in range(8) for side in "lr"}
with dask.config.set(num_workers=2):
    for first in range(0, int(sys.argv[1]), 10_000):
        graph = {(names[i % 4], i // 1000, i % 1000, 0): (np.add, f"l-{i % 8}", f"r-{i % 8}")
                 for i in range(first, first + 10_000)}
        dask.threaded.get({**blocks, **graph}, list(graph))
"""
BURST = """
import sys
import threading
import dwsr_probe

def many():
    for _ in range(int(sys.argv[2])):
        with dwsr_probe.task("x"):
            pass

threads = [threading.Thread(target=many) for _ in range(int(sys.argv[1]))]
for thread in threads: thread.start()
for thread in threads: thread.join()
"""
# By the wall clock: the least of short passes, between which others may have had the CPU.
KERNEL = """
from tests.bench import kernel
library = kernel()
print(min(library.kernel_calls(1000, 0, 0) for _ in range(20)))
"""
# `python -m dwsr_probe` that leaves its own CPU seconds, without its children's, in a file.
PARENT = """
import resource
import runpy
import sys
file = sys.argv.pop(1)
try:
    runpy.run_module("dwsr_probe", run_name="__main__", alter_sys=True)
finally:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    with open(file, "w") as out:
        out.write(repr(usage.ru_utime + usage.ru_stime))
"""


@contextmanager
def one_cpu():
    """What is started here runs on one CPU: Dask's threads then hand over the GIL at the same cost
    whatever else the machine does. On several CPUs that cost varies by more than the budget."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def report_lines(run):
    """The single records of a run, without its processes."""
    out = subprocess.run(
        [PY, "-m", "dwsr_probe", "report", run, "--format", "json"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    return [record for record in map(json.loads, out.splitlines()) if record["kind"] == "task"]


def records_lost(run):
    return sum(health.get("records_lost") or 0 for health in dwsr_probe.load(run).processes.health)


def median_of_nothing(bare, under):
    """The fixed cost: median, and from the least of each."""
    figure = difference(bare, under)
    return median(figure.values), figure.least


class Runs:
    """What the rows share, each measured when it is first asked for."""

    def __init__(self, folder, quick):
        self.folder, self.quick, self.began = folder, quick, time.monotonic()

    def rounds(self, full, quick):
        return quick if self.quick else full

    def job(self, name, code):
        path = Path(self.folder) / f"{name}.py"
        path.write_text(code)
        return str(path)

    @cached_property
    def fixed(self):
        return fixed_cost(self.folder, self.rounds(25, 3), {**WAYS, "quiet": ("-q",)})

    @cached_property
    def trivial(self):
        with one_cpu():
            return self._trivial("one")

    @cached_property
    def trivial_spread(self):
        return self._trivial("all")

    def _trivial(self, where):
        """CPU seconds by kind of run of the trivial tasks, and µs of the kernel's calls of one."""
        job, found, name = self.job("trivial", TRIVIAL), {}, f"trivial-{where}"
        full, none = [PY, job, str(TASKS)], [PY, job, "0"]
        for n in range(self.rounds(15, 3)):
            for kind, seconds in (
                ("bare", cpu_of(full)),
                ("quiet", under_run(self.folder, f"{name}-quiet-{n}", full, "-q")),
                ("plain", under_run(self.folder, f"{name}-{n}", full)),
                ("again", cpu_of(full)),
                ("none bare", cpu_of(none)),
                ("none quiet", under_run(self.folder, f"{name}-none-{n}", none, "-q")),
            ):
                found.setdefault(kind, []).append(seconds)
            found.setdefault("kernel", []).append(in_fresh_python(KERNEL)[0] / 1e3)
        return found

    def beyond_fixed(self, found, kind):
        """Seconds of the trivial tasks under `run` without its fixed cost, of each round and from
        the least of each; the same of the bare ones."""
        nothing, under = self.fixed
        fixed, least_fixed = median_of_nothing(nothing, under[kind])
        bare = [(a + b) / 2 for a, b in zip(found["bare"], found["again"], strict=True)]
        return (
            [run - fixed for run in found[kind]],
            min(found[kind]) - least_fixed,
            bare,
            min(found["bare"] + found["again"]),
        )

    @cached_property
    def stored(self):
        """Of RECORDS tasks and of none: CPU seconds of tree and parent; the last run stays."""
        job, found = self.job("arrays", ARRAYS), {}
        file = str(Path(self.folder) / "parent")
        for n in range(self.rounds(5, 1)):
            for count in (RECORDS, 0):
                run = f"{self.folder}/arrays-{count}-{n}"
                command = [PY, job, str(count)]
                with one_cpu():
                    bare = cpu_of(command)
                    tree = cpu_of([PY, "-c", PARENT, file, "run", "-q", "-o", run, *command])
                found.setdefault(count, []).append((bare, tree, float(Path(file).read_text())))
        return found, f"{self.folder}/arrays-{RECORDS}-{n}"

    @cached_property
    def stored_count(self):
        return len(report_lines(self.stored[1]))

    @cached_property
    def burst(self):
        """(single records, records known to be lost) of each run of the burst."""
        job, found = self.job("burst", BURST), []
        for n in range(self.rounds(3, 1)):
            run = f"{self.folder}/burst-{n}"
            cpu_of(
                [PY, "-m", "dwsr_probe", "run", "-q", "-o", run, PY, job, str(THREADS), str(BLOCKS)]
            )
            found.append((len(report_lines(run)), records_lost(run)))
        return found

    @cached_property
    def report(self):
        """(CPU seconds, wall seconds) of `report` of the stored run."""
        run, found = self.stored[1], []
        for _ in range(self.rounds(5, 2)):
            begin = time.perf_counter()
            cpu = cpu_of([PY, "-m", "dwsr_probe", "report", run])
            found.append((cpu, time.perf_counter() - begin))
        return found


def fixed_plain(runs):
    bare, under = runs.fixed
    return difference(bare, under["plain"])


def fixed_metrics(runs):
    _, under = runs.fixed
    return difference(under["plain"], under["metrics"])


def real_rounds(runs):
    return runs.rounds(4, 2)


def real_job(name, jobs=JOBS):
    """The measurement of one of tests/bench/jobs.py, or of other jobs by their names."""

    def ratio(runs):
        bare, under = runs.fixed
        fixed, least_fixed = median_of_nothing(bare, under["plain"])
        job = runs.job(f"job{list(jobs).index(name)}", jobs[name])
        count = count_for(job, 2.0 if runs.quick else 11.0)
        bare, ours, again = in_turn(runs.folder, job, count, real_rounds(runs))
        control = spread([b / a for a, b in zip(bare, again, strict=True)], 3)
        return Figure(
            [2 * (o - fixed) / (a + b) for a, b, o in zip(bare, again, ours, strict=True)],
            (min(ours) - least_fixed) / min(bare + again),
            f"bare {median(bare):.1f} s, bare again / bare {control}",
        )

    return ratio


def dask_task(runs):
    return _dask_task(runs, runs.trivial, "quiet")


def dask_task_spread(runs):
    return _dask_task(runs, runs.trivial_spread, "quiet")


def dask_task_with_table(runs):
    return _dask_task(runs, runs.trivial, "plain")


def _dask_task(runs, found, kind):
    ours, least, bare, least_bare = runs.beyond_fixed(found, kind)
    values = [
        (o - b) / TASKS * 1e6 - k for o, b, k in zip(ours, bare, found["kernel"], strict=True)
    ]
    calls = min(found["kernel"])
    said = f"bare {least_bare / TASKS * 1e6:.0f} µs, the kernel's calls {calls:.1f} µs"
    if kind == "quiet":
        none = min(found["none quiet"]) - min(found["none bare"])
        slope = (min(found["quiet"]) - least_bare - none) / TASKS * 1e6 - calls
        said += f"; beyond the same job with no task: {slope:.1f}"
    return Figure(values, (least - least_bare) / TASKS * 1e6 - calls, said)


def dask_ratio(runs):
    return _dask_ratio(runs, runs.trivial)


def dask_ratio_spread(runs):
    return _dask_ratio(runs, runs.trivial_spread)


def _dask_ratio(runs, found):
    ours, least, bare, least_bare = runs.beyond_fixed(found, "quiet")
    return Figure([o / b for o, b in zip(ours, bare, strict=True)], least / least_bare)


def dask_task_with_arrays(runs):
    """Beyond the same job with no task, which has the same imports."""
    found, calls = runs.stored[0], runs.trivial["kernel"]
    more = {
        count: difference(*zip(*((bare, tree) for bare, tree, _ in rows), strict=True))
        for count, rows in found.items()
    }
    values = [
        (a - b) / RECORDS * 1e6 - median(calls)
        for a, b in zip(more[RECORDS].values, more[0].values, strict=True)
    ]
    least = (more[RECORDS].least - more[0].least) / RECORDS * 1e6 - min(calls)
    return Figure(values, least)


def parent_record(runs):
    found, _ = runs.stored
    none, full = ([parent for _, _, parent in found[count]] for count in (0, RECORDS))
    return difference(none, full, 1e6 / runs.stored_count, f"{runs.stored_count:,} records")


def burst_uncounted(runs):
    made = THREADS * BLOCKS
    return Figure([made - single - lost for single, lost in runs.burst], said=f"of {made:,}")


def burst_lost(runs):
    made = THREADS * BLOCKS
    return Figure([made - single for single, _ in runs.burst], said=f"of {made:,}")


def store_size(runs):
    _, run = runs.stored
    size = sum(path.stat().st_size for path in Path(run).rglob("*") if path.is_file())
    return Figure([size / 1e6], said=f"{runs.stored_count:,} records")


def report_cpu(runs):
    return Figure([cpu for cpu, _ in runs.report])


def report_wall(runs):
    return Figure([wall for _, wall in runs.report])


def whole_run(runs):
    return Figure([(time.monotonic() - runs.began) / 60])
