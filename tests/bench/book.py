"""BENCHMARKS.md: one section for each benchmark, replaced when it is measured anew. Called by
each __main__."""

import datetime
import os
import platform
import re
import subprocess
import sys
from pathlib import Path

import psutil

NAMES = (
    "peaks",
    "sampler",
    "boundary",
    "startup",
    "accounting",
    "accounting_parts",
    "dask_tasks",
    "dask_peers",
    "dask_close",
    "gpu",
    "export",
    "top",
    "report",
    "jobs",
    "forks",
    "kills",
)
# `make bench-budgets`, `bench-fit`, `bench-graphs`, `bench-libraries` and `bench-predict` have a
# main of their own.
ORDER = ("budgets", "builds", "libraries", "graphs", *NAMES, "predict", "fit")
FILE = Path("BENCHMARKS.md")
HEAD = """# Benchmarks

Made by `make bench`, `make bench-budgets`, `make bench-graphs`, `make bench-libraries`,
`make bench-predict` and `make bench-fit`; each section says when and where. Figures are medians
with their least and largest values, measured side by side in one run. Absolute times move from
machine to machine.
"""


def machine():
    return (
        f"{os.cpu_count()} CPUs, {psutil.virtual_memory().total / 2**30:.0f} GiB, Linux"
        f" {platform.release().split('-')[0]}, Python {platform.python_version()}, a shared virtual"
        " machine"
    )


def sections(text):
    """name → section, of the file as it is; each begins with a comment that names it."""
    parts = re.split(r"^<!-- (\w+) -->\n+", text, flags=re.M)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def write(name, text):
    title, _, rest = text.partition("\n")
    known = sections(FILE.read_text()) if FILE.exists() else {}
    known[name] = (
        f"{title}\n\nMeasured on {datetime.date.today()}: {machine()}.\n{rest.rstrip()}\n\n"
    )
    text = HEAD + "\n" + "".join(f"<!-- {n} -->\n\n{known[n]}" for n in ORDER if n in known)
    FILE.write_text(text)
    subprocess.run([sys.executable, "-m", "mdformat", FILE], check=True)  # by .mdformat.toml
