"""python -m tests.bench [--quick] [NAME...]: run the benchmarks; all of them, not quick: also rewrite BENCHMARKS.md."""
import datetime
import os
import platform
import sys
from importlib import import_module
from pathlib import Path

import psutil

NAMES = ("peaks", "sampler", "boundary", "startup", "accounting", "accounting_parts", "dask_tasks", "dask_peers", "gpu", "overhead", "kills")


def main():
    quick = "--quick" in sys.argv
    chosen = [word for word in sys.argv[1:] if not word.startswith("-")] or NAMES
    texts = []
    for name in chosen:
        print(f"... {name}", file=sys.stderr, flush=True)
        texts.append(import_module(f"tests.bench.{name}").run(quick).markdown())
        print(texts[-1], flush=True)
    if not quick and tuple(chosen) == NAMES:
        machine = (f"{os.cpu_count()} CPUs, {psutil.virtual_memory().total / 2**30:.0f} GiB, Linux {platform.release().split('-')[0]}, "
                   f"Python {platform.python_version()}, a shared virtual machine")
        Path("BENCHMARKS.md").write_text(
            f"# Benchmarks\n\nMade by `make bench` on {datetime.date.today()}: {machine}.\nFigures are medians with their least and largest values,"
            " measured side by side in one run. Absolute times move from machine to machine.\n\n" + "\n".join(texts))


main()
