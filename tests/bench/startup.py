"""What a child interpreter pays to be probed: time to the first line of the program, and
resident size."""

import os
import subprocess
import tempfile
import time
from pathlib import Path

import dwsr_probe.boot
from dwsr_probe.settings import Settings
from tests.bench import PY, Section, spread

# CPU and wall time of the whole child, start to end; resident size just before its end.
MEASURE = (
    "import os\nwith open('/proc/self/statm') as f: print(int(f.read().split()[1]) *"
    " os.sysconf('SC_PAGESIZE'))"
)


def child(environ):
    before, begin = os.times(), time.perf_counter()
    rss = int(
        subprocess.run(
            [PY, "-c", MEASURE], env=environ, capture_output=True, text=True, check=True
        ).stdout
    )
    wall, after = time.perf_counter() - begin, os.times()
    cpu = (
        after.children_user + after.children_system - before.children_user - before.children_system
    )
    return wall * 1e3, cpu * 1e3, rss / 2**20


def in_turn(rounds):
    """Of each child, bare and probed: ms of wall time, ms of CPU, MiB resident."""
    bare, probed = [], []
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        plain = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
        boot = str(Path(dwsr_probe.boot.__file__).parent)
        ours = {**plain, **Settings(run="bench", board_dir=folder).to_environ(), "PYTHONPATH": boot}
        for _ in range(rounds):
            bare.append(child(plain))
            probed.append(child(ours))
            for path in Path(folder).glob("*.board"):
                path.unlink()
    return bare, probed


def run(quick=False):
    bare, probed = in_turn(5 if quick else 40)
    section = Section(
        "Start in the child",
        "≤ 30 ms and ≤ 6 MiB resident beyond bare Python",
        ("figure", "bare", "probed", "**difference**"),
    )
    for i, name in enumerate(("wall time of `python -c`, ms", None, "resident at its end, MiB")):
        if name:
            a, b = [row[i] for row in bare], [row[i] for row in probed]
            section.rows.append(
                (name, spread(a), spread(b), spread([y - x for x, y in zip(a, b, strict=True)]))
            )
    return section
