"""What a fork costs under `run`: fork, exit in the child, wait. Bare and probed jobs take turns."""

import subprocess
import tempfile

from tests.bench import PY, Section, spread

JOB = """
import os, resource, statistics, sys, time
held = bytearray(int(sys.argv[1]) << 20)
held[::4096] = b"x" * len(held[::4096])

def one():
    begin = time.perf_counter()
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    return (time.perf_counter() - begin) * 1e3

def cpu():
    both = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in both) * 1e3

for _ in range(10): one()
begin, times = cpu(), [one() for _ in range(100)]
print(statistics.median(times), min(times), (cpu() - begin) / 100)
"""


def times_of(command):
    return tuple(
        map(
            float,
            subprocess.run(command, capture_output=True, text=True, check=True).stdout.split(),
        )
    )


def in_turn(mib, rounds):
    """Of each process, bare and under `run`: median and least ms of a fork, mean ms of CPU."""
    bare, probed = [], []
    with tempfile.TemporaryDirectory() as folder:
        for n in range(rounds):
            job = [PY, "-c", JOB, str(mib)]
            bare.append(times_of(job))
            under = [PY, "-m", "dwsr_probe", "run", "-q", "-o", f"{folder}/{n}"]
            probed.append(times_of([*under, *job]))
    return bare, probed


def run(quick=False):
    section = Section(
        "Fork, exit and wait",
        "≤ 2 ms more than bare",
        (
            "resident size of the process",
            "bare, ms",
            "under `run`, ms",
            "**more, ms**",
            "more, least of each, ms",
            "CPU, bare, ms",
            "CPU, more, ms",
        ),
    )
    for mib in (0, 300):
        bare, probed = in_turn(mib, 3 if quick else 15)
        (bare_medians, bare_least, bare_cpu), (medians, least, cpu) = (
            zip(*bare, strict=True),
            zip(*probed, strict=True),
        )
        section.rows.append(
            (
                f"{10 + mib} MiB",
                spread(bare_medians),
                spread(medians),
                spread([b - a for a, b in zip(bare_medians, medians, strict=True)]),
                f"{min(least) - min(bare_least):.2f}",
                spread(bare_cpu),
                spread([b - a for a, b in zip(bare_cpu, cpu, strict=True)]),
            )
        )
    section.notes.append(
        "Each time is the median of 100 forks of one process, CPU their mean, of parent and child;"
        " spreads are over 15 processes of each kind, in turns. The child has a probe of its own,"
        " with a board of 0.6 MiB, before fork returns in it."
    )
    return section
