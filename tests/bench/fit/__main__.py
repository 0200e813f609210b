"""python -m tests.bench.fit [--quick] [OPERATOR...]: blocks chosen by `fit_blocks` against those of
others, on real Dask clusters.

--quick: few operators, the lower limit only. BENCHMARKS.md is written only by a full run. The
single figures go to build/bench-fit.json."""

import argparse
import json
import shutil
import sys
import tempfile
import time
from pathlib import Path
from zlib import crc32

import zarr

from tests.bench import book
from tests.bench.fit import summary
from tests.bench.fit.cell import measured
from tests.bench.fit.operators import OPERATORS, values

THREADS = 1, 2
QUICK = "envelope", "moving_median", "chain"
FIGURES = Path("build/bench-fit.json")
FASTEST_FOLDER = "/dev/shm"  # a disk would add its own noise


def main():
    parser = argparse.ArgumentParser(prog="python -m tests.bench.fit", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a smaller grid; nothing is written")
    parser.add_argument("operators", nargs="*", metavar="OPERATOR", help="only these")
    chosen = parser.parse_args()
    names = chosen.operators or (QUICK if chosen.quick else [one.name for one in OPERATORS])
    if unknown := set(names) - {one.name for one in OPERATORS}:
        sys.exit(f"unknown operators: {', '.join(sorted(unknown))}")
    began, cells, failures = time.time(), [], []
    for operator in OPERATORS:
        if operator.name in names:
            _measure(operator, 1 if chosen.quick else 2, cells, failures)
    text = summary.section(cells, failures)
    print(text)
    print(f"{(time.time() - began) / 60:.0f} minutes", file=sys.stderr)
    if not chosen.quick and not chosen.operators:
        book.write("fit", text)


def _measure(operator, limits, cells, failures):
    """All cells of an operator. Its array lives until they are done."""
    folder = Path(tempfile.mkdtemp(dir=FASTEST_FOLDER if Path(FASTEST_FOLDER).exists() else None))
    try:
        zarr.create_array(
            folder / f"{operator.name}.zarr", data=values(operator.shape), chunks=operator.stored
        )
        for limit_bytes in operator.limits[:limits]:
            for threads in THREADS:
                what = f"{operator.name}, {limit_bytes / 1e6:.0f} MB, {threads} threads"
                try:
                    cell = measured(operator, limit_bytes, threads, folder, crc32(what.encode()))
                except Exception as error:  # one cell must not end the others
                    failures.append(f"{what}: {type(error).__name__}: {error}")
                    print(f"...   {failures[-1]}", file=sys.stderr, flush=True)
                    continue
                cells.append(cell)
                row = " | ".join(map(str, summary.cell_row(cell)))
                print(f"...   {row}", file=sys.stderr, flush=True)
                FIGURES.parent.mkdir(exist_ok=True)
                FIGURES.write_text(json.dumps([cell.to_dict() for cell in cells], indent=1))
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
