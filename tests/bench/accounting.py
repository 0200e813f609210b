"""What the accounting costs on work that allocates: CPU time against the bare run, in one
process, interleaved; instructions; other tools."""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time

from tests.bench import HERE, PY, Section, spread
from tests.bench.workloads import ALL

SCRIPT = HERE / "workloads.py"
ROUNDS, ROUNDS_QUICK = 25, 5
PEERS = {
    "memray": lambda folder, *job: [
        PY,
        "-m",
        "memray",
        "run",
        "-q",
        "-f",
        "-o",
        f"{folder}/memray.bin",
        *job,
    ],
    "Fil": lambda folder, *job: [
        PY,
        "-m",
        "filprofiler",
        "-o",
        f"{folder}/fil",
        "--no-browser",
        "run",
        *job,
    ],
    "Scalene": lambda folder, *job: [
        PY,
        "-m",
        "scalene",
        "run",
        "-o",
        f"{folder}/scalene.json",
        *job,
    ],
    "tracemalloc": lambda folder, *job: [PY, "-X", "tracemalloc", *job],
}


def interleaved(name, rounds):
    """CPU seconds of the work bare, with the probe, and bare again, in this process. The
    sampler's own are in its own table, not here."""
    import dwsr_probe
    from dwsr_probe import _core
    from dwsr_probe.board import Board

    call = ALL[name]()
    call()
    begin = time.perf_counter()
    call()
    count = max(1, int(0.2 / (time.perf_counter() - begin)))

    def measured():
        start = time.process_time()
        for _ in range(count):
            call()
        return time.process_time() - start

    for _ in range(rounds):
        bare = measured()
        assert dwsr_probe.start(alloc=True, period_ms=100)
        board = Board(_core.board_path())
        before = board.live()["sampler_cpu_ns"]
        with dwsr_probe.task("bench"):
            ours = measured()
        ours -= (board.live()["sampler_cpu_ns"] - before) / 1e9
        dwsr_probe.stop()
        print(bare, ours, measured())


def rounds_of(name, rounds):
    code = f"from tests.bench.accounting import interleaved; interleaved({name!r}, {rounds})"
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        environ = dict(os.environ, DWSR_PROBE_BOARD_DIR=folder, OPENBLAS_NUM_THREADS="1")
        out = subprocess.run(
            [PY, "-c", code], capture_output=True, text=True, check=True, env=environ
        ).stdout
    return list(zip(*(map(float, line.split()) for line in out.splitlines()), strict=True))


def instructions(name):
    """Ratio of instructions of one call, probed to bare, by callgrind; what starts up is
    subtracted. None without valgrind."""
    if not shutil.which("valgrind"):
        return None

    def count(calls, probed):
        start = (
            "import dwsr_probe; dwsr_probe.start(alloc=True, period_ms=1000);"
            " dwsr_probe.task('x').__enter__()\n"
            if probed
            else ""
        )
        code = (
            f"from tests.bench.workloads import ALL\ncall = ALL[{name!r}](); call()\n{start}for _"
            f" in range({calls}): call()"
        )
        with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
            environ = dict(
                os.environ,
                DWSR_PROBE_BOARD_DIR=folder,
                PYTHONHASHSEED="0",
                OPENBLAS_NUM_THREADS="1",
            )
            done = subprocess.run(
                [
                    "valgrind",
                    "--tool=callgrind",
                    f"--callgrind-out-file={folder}/out",
                    PY,
                    "-c",
                    code,
                ],
                capture_output=True,
                text=True,
                env=environ,
            )
        found = re.search(r"Collected : (\d+)|refs:\s+([\d,]+)", done.stderr)
        return int((found[1] or found[2]).replace(",", "")) if found else None

    calls = 1 if name == "dask_tasks" else 3
    figures = [count(n, probed) for probed in (False, True) for n in (0, calls)]
    if None in figures:
        return None
    return (figures[3] - figures[2]) / (figures[1] - figures[0])


def peer_ratio(name, command, seconds, rounds):
    """Least CPU a call under the tool to the least of the bare script; each measures itself.
    None if the tool cannot run it."""
    least = {}
    for _ in range(rounds):
        for kind, make in (("bare", lambda folder, *job: [PY, *job]), ("tool", command)):
            with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
                job = make(folder, str(SCRIPT), name, str(seconds))
                try:
                    done = subprocess.run(
                        job,
                        capture_output=True,
                        text=True,
                        cwd=folder,
                        timeout=300,
                        env=dict(os.environ, OPENBLAS_NUM_THREADS="1", PYTHONPATH=""),
                    )
                except subprocess.TimeoutExpired:
                    return None
            figures = re.findall(r"^(\d+\.\d+)$", done.stdout, re.MULTILINE)
            if not figures:
                return None
            least[kind] = min(least.get(kind, float("inf")), float(figures[-1]))
    return least["tool"] / least["bare"]


def run(quick=False):
    rounds = ROUNDS_QUICK if quick else ROUNDS
    section = Section(
        "Allocation accounting alone, without the sampler and `run`'s parent",
        "arrays from 1 MB ≤ 1.01 of the bare run, the others ≤ 1.03",
        (
            "work",
            "bare again / bare (control)",
            "**probed / bare**",
            "least of each",
            "instructions (callgrind)",
            *PEERS,
        ),
    )
    for name, work in ALL.items():
        print(f"...   {name}", file=sys.stderr, flush=True)
        bare, ours, again = rounds_of(name, rounds)
        row = [
            work.__doc__.rstrip("."),
            spread([b / a for a, b in zip(bare, again, strict=True)], 3),
            spread([2 * o / (a + b) for a, b, o in zip(bare, again, ours, strict=True)], 3),
            f"{min(ours) / min(bare + again):.3f}",
        ]
        ratio = instructions(name)
        row.append("–" if ratio is None else f"{ratio:.3f}")
        for command in PEERS.values():
            ratio = peer_ratio(name, command, 0.5 if quick else 1.5, 1 if quick else 3)
            row.append("failed" if ratio is None else f"{ratio:.2f}")
        section.rows.append(tuple(row))
    section.notes.append(
        "CPU time of the work in one process, probe off, on, off in turn. The sampler's CPU is"
        " subtracted: it has its own table. What a user pays for the whole tree is in the table"
        ' "Real jobs". Ratios compare each run with the mean of the bare ones'
        " before and after it. The other tools run the same functions as a script; least of each,"
        " without their start and reports."
    )
    return section
