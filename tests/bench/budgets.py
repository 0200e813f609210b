"""Every line of the design's table "Budgets" in one run: `make bench-budgets`.

Each row has its goal and the function that measures it. A row without a function is a feature that
is not built yet: add the function when it is. `--quick`: a short trial that writes nothing.
`--before DIR`: the hot paths of another built checkout beside this one's (budget_builds.py).
"""

import argparse
import os
import sys
import tempfile
from collections.abc import Callable
from typing import NamedTuple

from tests.bench import Section, book, library_parts
from tests.bench import budget_parts as parts
from tests.bench import budget_runs as runs
from tests.bench.figure import NotMeasured

NUMPY = "NumPy, 24 MB blocks, every block a task"  # of jobs.JOBS
DASK = "dask.array, threads: map_overlap and reductions"

# The lines of the design's table, by the short names that the rows have.
LINES = {
    "fixed": "fixed, per `dwsr-probe run`: ≤ 0.05 s of CPU, + 0.1 with `--metrics`",
    "job": "any real job of 10 s and more, whole tree: ≤ 1.02 of bare plus the fixed cost",
    "task": "one Dask task: ≤ 12 µs in the tree beyond the kernel's own calls; with the guard ≤ 25",
    "malloc": "small malloc/free pair, large pair, large pair with its line: ≤ 6, 20, 70 ns more",
    "pair": "Arrow pair, CuPy pair, asyncio step that works for a task: ≤ 20 ns, 0.5 µs, 0.3 µs",
    "fork": "fork + exit + wait: ≤ 2 ms more",
    "start": "start of an interpreter: ≤ 30 ms, ≤ 6 MiB resident; with the guard + 25 MiB",
    "board": "board: ≤ 12 MiB per process with tasks, ≤ 1 MiB in a forked child without",
    "record": "record: ≤ 4 KiB, texts interned",
    "make": "`make test`: ≤ 35 minutes on 2 cores; `make bench-*` ≤ 60 minutes each",
}


class Row(NamedTuple):
    """measure: called with Runs, returns a Figure; None: not built yet. goal None: it has none."""

    line: str
    what: str
    goal: float | None
    unit: str
    measure: Callable | None
    digits: int = 2


def make_test(_):
    raise NotMeasured("`make test` prints its own total")


ROWS = (
    Row("fixed", "fixed cost of `dwsr-probe run`", 0.05, "s of CPU", runs.fixed_plain, 3),
    Row("fixed", "`--metrics` on top of it", 0.1, "s of CPU", runs.fixed_metrics, 3),
    Row("job", f"(run − fixed) / bare: {NUMPY}", 1.02, "", runs.real_job(NUMPY), 3),
    Row("job", f"(run − fixed) / bare: {DASK}", 1.02, "", runs.real_job(DASK), 3),
    Row(
        "task",
        "one trivial Dask task beyond the kernel's calls, `run -q`, one CPU",
        12,
        "µs",
        runs.dask_task,
        1,
    ),
    Row("task", "trivial, all CPUs", 12, "µs", runs.dask_task_spread, 1),
    Row(
        "task", "two array inputs and one output, one CPU", 12, "µs", runs.dask_task_with_arrays, 1
    ),
    Row(
        "task",
        "trivial, one CPU, with the table that `run` prints at its end",
        None,
        "µs",
        runs.dask_task_with_table,
        1,
    ),
    Row("task", "with chain and parameters", 12, "µs", None, 1),
    Row("task", "with the guard", 25, "µs", None, 1),
    Row(
        "task",
        "(run − fixed) / bare of trivial Dask tasks, `run -q`, one CPU",
        1.15,
        "",
        runs.dask_ratio,
        3,
    ),
    Row("task", "this ratio on all CPUs", 1.15, "", runs.dask_ratio_spread, 3),
    Row("task", "this ratio with all features", 1.25, "", None, 3),
    Row("task", "the parent's own CPU for a record", 2, "µs", runs.parent_record),
    Row("task", "8 threads × 40,000 empty tasks: not counted", 0, "tasks", runs.burst_uncounted, 0),
    Row("task", "of these, without a record of their own", None, "tasks", runs.burst_lost, 0),
    Row("record", "store of 100,000 records", 15, "MB", runs.store_size, 1),
    Row("record", "`dwsr-probe report` of it, CPU", 1, "s", runs.report_cpu),
    Row("record", "`dwsr-probe report` of it, wall time", 1, "s", runs.report_wall),
    Row("record", "the longest record in the ring", 4, "KiB", parts.record_bytes),
    Row("malloc", "malloc and free of 64 bytes", 6, "ns", parts.malloc_pair(64, 1_000_000), 1),
    Row("malloc", "malloc and free of 1,000 bytes", 6, "ns", parts.malloc_pair(1000, 1_000_000), 1),
    Row(
        "malloc", "malloc and free of 20,000 bytes", 20, "ns", parts.malloc_pair(20_000, 500_000), 1
    ),
    Row("malloc", "malloc and free of 1 MiB", 20, "ns", parts.malloc_pair(1 << 20, 500_000), 1),
    Row("malloc", "large pair with its line", 70, "ns", None, 1),
    Row("pair", "Arrow pair of 64 bytes", 20, "ns", library_parts.arrow_pair(64), 1),
    Row("pair", "Arrow pair of 1 MiB", 20, "ns", library_parts.arrow_pair(1 << 20), 1),
    Row("pair", "CuPy pair", 0.5, "µs", parts.cupy_pair),
    Row(
        "pair",
        "asyncio step that works for a task",
        0.3,
        "µs",
        library_parts.asyncio_step_for_task,
    ),
    Row("fork", "fork + exit + wait of 10 MiB", 2, "ms", parts.fork(0)),
    Row("fork", "fork + exit + wait of 310 MiB", 2, "ms", parts.fork(300)),
    Row("start", "start of an interpreter", 30, "ms", parts.start_time, 1),
    Row("start", "start of an interpreter, resident", 6, "MiB", parts.start_resident),
    Row("start", "the guard on top of it, resident", 25, "MiB", None),
    Row("board", "board of a process with tasks", 12, "MiB", parts.board_with_tasks),
    Row("board", "board of a forked child without tasks", 1, "MiB", parts.board_of_child),
    Row("make", "`make test`", 35, "minutes", make_test),
    Row("make", "`make bench-budgets`", 60, "minutes", runs.whole_run, 1),
)


def cells(row, found):
    """A line of the table: what, goal, figure, least of each, verdict."""
    unit = f" {row.unit}" if row.unit else ""
    what, goal = row.what, "–" if row.goal is None else f"≤ {row.goal:g}{unit}"
    if row.measure is None:
        return what, goal, "–", "–", "not built yet"
    try:
        figure = row.measure(found)
    except NotMeasured as reason:
        return what, goal, "–", "–", f"not measured: {reason}"
    least = "–" if figure.least is None else f"{figure.least:.{row.digits}f}{unit}"
    verdict = figure.verdict(row.goal)
    return what, goal, figure.text(row.digits), least, verdict


def table(title, target, rows, quick):
    """A section with these rows, each measured now and shown on stderr."""
    section = Section(
        title,
        target,
        ("what", "may cost", "median (least – largest)", "least of each", "**verdict**"),
    )
    with tempfile.TemporaryDirectory() as folder:
        found = runs.Runs(folder, quick)
        for row in rows:
            section.rows.append(cells(row, found))
            print("...   " + " | ".join(section.rows[-1]), file=sys.stderr, flush=True)
    return section


def publish(name, section, quick):
    """Print the section; a full one also goes into BENCHMARKS.md, under its name."""
    text = section.markdown()
    print(text)
    if not quick:
        book.write(name, text)


def run(quick=False):
    section = table("Budgets", "every line of the design's table of budgets", ROWS, quick)
    section.notes.append(
        "Bare and probed runs take turns. The least of each (the least probed against the least "
        "bare run) is freer of the machine's noise and decides where there is one; a median that "
        "disagrees is mentioned. CPU is user and system time of everything that the command "
        "waited for. The fixed cost is that of `python -c pass`."
    )
    section.notes.append(
        f"Dask tasks: {runs.TASKS:,} on the threaded scheduler, 2 threads. On one CPU the whole "
        "tree is bound to it, bare and probed, because what threads pay to hand over the GIL "
        "between CPUs varies with the machine's load by more than the budget. With arrays: "
        f"{runs.RECORDS:,}, whose run is the store; their cost and the parent's CPU are those "
        "beyond a run with no task. Counted is a task that has a record or is known to the "
        f"report as lost. The machine's load was {os.getloadavg()[0]:.1f} at the end."
    )
    return section


def main():
    parser = argparse.ArgumentParser(prog="python -m tests.bench.budgets", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few rounds; nothing is written")
    parser.add_argument("--before", metavar="DIR", help="another built checkout to compare with")
    chosen = parser.parse_args()
    if chosen.before:
        from tests.bench.budget_builds import compare

        print(compare(chosen.before, chosen.quick).markdown())
        return
    publish("budgets", run(chosen.quick), chosen.quick)


if __name__ == "__main__":
    main()
