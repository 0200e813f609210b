"""Two builds side by side: the hot paths of another checkout, with its own .venv, and of this one.

`python -m tests.bench.budgets --before DIR`. Both are measured by the code of this checkout's
tests, in turn, each in fresh processes.
"""

import os
import shutil
import sys
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.bench import HERE, Section, gpu, in_fresh_python, median, spread
from tests.bench.budget_parts import POOL, cupy_python
from tests.bench.figure import NotMeasured

# Each prints numbers; which of them is what, and its decimals.
FUSED = (
    "from tests.bench.dask_tasks import hot_path; print(*hot_path(fused=True))",
    ((1, "Dask task of four functions that reads a block, µs of CPU", 2),),
)
PATHS = (
    (
        "from tests.bench.boundary import once; print(*once(0))",
        ((0, "begin/end pair, rss flat, µs", 2), (2, "begin/end pair with a reset, µs", 2)),
    ),
    (
        "from tests.bench.accounting_parts import pairs; print(*pairs(64, 1_000_000))",
        ((1, "malloc and free of 64 bytes, ns", 1),),
    ),
    (
        "from tests.bench.accounting_parts import pairs; print(*pairs(1 << 20, 500_000))",
        ((1, "malloc and free of 1 MiB, ns", 1),),
    ),
    (
        "from tests.bench.dask_tasks import hot_path; print(*hot_path())",
        ((1, "Dask task on the worker's thread, µs of CPU", 2),),
    ),
    FUSED,
)
CUPY_PAIR = "CuPy pair with the hook, µs of CPU", 2


@dataclass
class Build:
    """A checkout that was built. cwd: a folder with this checkout's tests, and no dwsr_probe."""

    checkout: Path
    cwd: str

    def numbers(self, code):
        return in_fresh_python(
            code,
            python=str(self.checkout / ".venv/bin/python"),
            path=str(self.checkout),
            cwd=self.cwd,
        )

    def cupy_pair(self, python, hook):
        """CuPy is this checkout's for both: one ruler."""
        _, results = gpu.results_of(python, hook, 3, path=str(self.checkout), cwd=self.cwd)
        return min(results[POOL]["hook"]) / 1e3


def in_turn(builds, rounds, measure):
    """Answers of each build; who is first changes from round to round."""
    found = [[], []]
    for n in range(rounds):
        for which in (0, 1) if n % 2 == 0 else (1, 0):
            found[which].append(measure(builds[which]))
    return found


def row_of(what, digits, before, after):
    ratios = [b / a for a, b in zip(before, after, strict=True)]
    return (
        what,
        spread(before, digits),
        spread(after, digits),
        f"{median(ratios):.3f}",
        f"{min(after) / min(before):.3f}",
    )


def built(checkout):
    """The path of another checkout; exits if it or this one is not built."""
    checkout = Path(checkout).resolve()
    for build in (checkout, Path.cwd()):
        if not (build / ".venv/bin/python").exists():
            sys.exit(f"{build} is not built: make -C {build} .venv/.bench")
    return checkout


@contextmanager
def both(checkout):
    """The builds of another checkout and of this one."""
    with tempfile.TemporaryDirectory() as folder:
        os.symlink(HERE.parent.absolute(), f"{folder}/tests")
        yield Build(checkout, folder), Build(Path.cwd(), folder)


def compare(checkout, quick=False):
    """A Section of before, after and their ratio."""
    checkout = built(checkout)
    section = Section(
        f"Hot paths, before and after: {checkout}",
        "after / before ≤ 1",
        ("what", "before", "after", "after / before", "**least of each**"),
    )
    rounds = 2 if quick else 9
    with both(checkout) as builds:
        for code, figures in PATHS:
            print(f"...   {figures[0][1]}", file=sys.stderr, flush=True)
            before, after = in_turn(builds, rounds, lambda build, code=code: build.numbers(code))
            for index, what, digits in figures:
                section.rows.append(
                    row_of(
                        what, digits, [row[index] for row in before], [row[index] for row in after]
                    )
                )
        section.rows.append(_cupy_row(builds, rounds))
    section.notes.append(
        "Each figure is with the probe, in a fresh process; the two builds take "
        "turns, and both are measured by this checkout's tests/bench."
    )
    return section


def _cupy_row(builds, rounds):
    what, digits = CUPY_PAIR
    try:
        python = cupy_python()
    except NotMeasured as reason:
        return what, "–", "–", "–", f"not measured: {reason}"
    hook = gpu.compile_hook()
    try:
        found = in_turn(builds, rounds, lambda build: build.cupy_pair(python, hook))
    finally:
        shutil.rmtree(hook)
    return row_of(what, digits, *found)
