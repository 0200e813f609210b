"""Real graphs, described: `make bench-graphs`.

The jobs of tests/jobs under `run`: the share of their memory in tasks whose inputs fit; the CPU of
the xarray job beside bare; and what the description of one task costs more than in another built
checkout (`--before DIR`). `--quick`: a short trial that writes nothing.
"""

import argparse
import json
import os
import subprocess
from collections import Counter
from functools import cache
from pathlib import Path

from tests.bench import HERE, PY
from tests.bench import budget_runs as runs
from tests.bench.budget_builds import both, built, in_turn
from tests.bench.budgets import Row, publish, table
from tests.bench.figure import Figure, NotMeasured, difference

FOLDER = HERE.parent.absolute() / "jobs"
BLOCKS = {
    "climate": (64, 128, 256),
    "images": (16, 32, 64),
    "tables": (100_000, 200_000, 400_000),
    "seismic": (32, 64, 128),
}
THREE = "climate", "images", "tables"
NEEDS = "distributed", "flox", "h5py", "xarray", "zarr"
XARRAY = "xarray on zarr 3, LocalCluster of one process with 2 threads"
# An own peak of more than so many times its inputs is not explained by them.
FACTOR = 64
SMALL = 1 << 20  # one arena of Python's objects, which belongs to the task that needed it first


def command(job, folder, block, *words):
    return [PY, str(FOLDER / f"{job}.py"), str(folder), "--block", str(block), *words]


def repeated(folder):
    """The xarray job as a program whose only argument says how often the work is done."""
    words = command("climate", folder, 128)[2:]
    head = (
        f"import sys\nsys.path.insert(0, {str(FOLDER)!r})\n"
        f"if __name__ == '__main__':\n    sys.argv[1:] = {words!r} + ['--times', sys.argv[1]]\n"
    )
    return head + (FOLDER / "climate.py").read_text()


def _bare(words):
    subprocess.run(words, check=True, capture_output=True)


@cache
def _folder(found):
    for module in NEEDS:
        if subprocess.run([PY, "-c", f"import {module}"], capture_output=True).returncode:
            raise NotMeasured(f"{module} is missing: pip install 'dwsr-probe[bench]'")
    folder = Path(found.folder) / "data"
    folder.mkdir()
    return folder


def xarray_ratio(found):
    folder = _folder(found)
    _bare(command("climate", folder, 128, "--times", "0"))  # the data
    return runs.real_job(XARRAY, {XARRAY: repeated(folder)})(found)


@cache
def _records(found, job):
    """(task, what it read from zarr) of a job's runs with all block sizes."""
    folder, every = _folder(found), []
    for block in BLOCKS[job][: found.rounds(3, 1)]:
        run, witness = f"{found.folder}/{job}-{block}", Path(found.folder) / f"{job}-{block}.read"
        words = command(job, folder, block, "--witness", str(witness))
        _bare([PY, "-m", "dwsr_probe", "run", "-q", "-o", run, *words])
        read = {}
        for line in map(json.loads, witness.read_text().splitlines() if witness.exists() else ()):
            read.setdefault(line["key"], set()).add((tuple(line["shape"]), line["nbytes"]))
        every += [(task, read.get(task["key"])) for task in runs.report_lines(run)]
    return every


def size(one):
    """Bytes of an input: of all equal ones, and of a broadcast one as if it were copied."""
    return max(one["nbytes"] or 0, one.get("logical_bytes") or 0) * (one.get("count") or 1)


def fits(task, read, late=True):
    """Whether the inputs of a task explain its own peak.

    read: what the task read from zarr arrays, as a witness inside the job saw it, or None. Such a
    task has exactly these blocks as lazy inputs. Any other task needs at most FACTOR times its
    inputs. late: inputs that only the end of the task tells count, too. The output never does.
    """
    own = task["alloc_peak_bytes"] or 0
    if own <= SMALL:
        return True
    inputs = [one for one in task["inputs"] if late or not one.get("late")]
    if read is not None:
        return read == {(tuple(one["shape"] or ()), one["nbytes"]) for one in inputs if lazy(one)}
    return own <= FACTOR * sum(map(size, inputs))


def lazy(one):
    return one.get("lazy")


def percent_unfit(records, late=True):
    """Percent of the bytes of all own peaks in tasks whose inputs do not fit."""
    unfit = sum(
        task["alloc_peak_bytes"] or 0 for task, read in records if not fits(task, read, late)
    )
    return 100 * unfit / sum(task["alloc_peak_bytes"] or 0 for task, _ in records)


def worst(records, late=True):
    """The names with the most bytes in tasks whose inputs do not fit."""
    bytes_of = Counter()
    for task, read in records:
        if not fits(task, read, late):
            bytes_of[task["operation"] or task["task_name"]] += task["alloc_peak_bytes"]
    total = sum(task["alloc_peak_bytes"] or 0 for task, _ in records)
    shown = (f"{name} {100 * own / total:.1f}" for name, own in bytes_of.most_common(4))
    return ", ".join(shown) or "none"


def unfit(jobs, late=True):
    def share(found):
        records = [one for job in jobs for one in _records(found, job)]
        said = f"{len(records):,} tasks; {worst(records, late)}"
        return Figure([percent_unfit(records, late)], said=said)

    return share


def description(before):
    """Microseconds that a task costs more than in another build."""

    def more(found):
        if before is None:
            raise NotMeasured("--before DIR names a built checkout to compare with")
        code = "from tests.bench.dask_tasks import begin_and_end; print(begin_and_end())"
        with both(built(before)) as builds:
            ours = in_turn(builds, found.rounds(9, 3), lambda build: build.numbers(code)[0])
        return difference(*ours, said=f"before {min(ours[0]):.2f} µs")

    return more


def rows(before):
    what = "own-peak bytes in tasks whose inputs do not fit"
    return (
        Row("task", "description of a task, with its parameters", 4, "µs", description(before)),
        Row("job", f"(run − fixed) / bare: {XARRAY}", 1.02, "", xarray_ratio, 3),
        Row("record", f"{what}: the three jobs", 2, "%", unfit(THREE), 1),
        Row("record", "these, by what is known before a task", None, "%", unfit(THREE, False), 1),
        *(Row("record", f"{what}: {job}.py", 2, "%", unfit([job]), 1) for job in BLOCKS),
    )


def run(quick=False, before=None):
    section = table(
        "Real graphs",
        "what a task is called and what it reads, in jobs as people write them",
        rows(before),
        quick,
    )
    section.notes.append(
        "The jobs are those of tests/jobs, each with three block sizes: xarray on zarr, "
        "dask.array, dask.dataframe, and five operators that are objects. The three are the first "
        "ones. Inputs fit if a task that reads from zarr has exactly the blocks that it read, as "
        "a witness inside the job saw them; any other task needs at most "
        f"{FACTOR} times its inputs, or 1 MiB. The output is no input."
    )
    section.notes.append(
        "Description: begin and end of a task of four functions with two arrays in memory that "
        "also reads a block of a mapped file, beside the same in an earlier "
        "checkout. CPU of the job is user and system time of the whole "
        f"tree. The machine's load was {os.getloadavg()[0]:.1f} at the end."
    )
    return section


def main():
    parser = argparse.ArgumentParser(prog="python -m tests.bench.graphs", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few rounds; nothing is written")
    parser.add_argument("--before", metavar="DIR", help="another built checkout to compare with")
    chosen = parser.parse_args()
    publish("graphs", run(chosen.quick, chosen.before), chosen.quick)


if __name__ == "__main__":
    main()
