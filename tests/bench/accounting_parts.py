"""The parts of the accounting: a pair of calls, a pair of boundaries, start, imports, memory."""

import ctypes
import os
import subprocess
import tempfile
import time
from pathlib import Path

import dwsr_probe.boot
from dwsr_probe.settings import Settings
from tests.bench import PY, Section, core_library, in_fresh_python, kernel, spread

LIBRARIES = (
    "numpy scipy.signal scipy.ndimage scipy.stats scipy.optimize scipy.sparse.linalg"
    " scipy.interpolate scipy.io pandas _decimal _ssl _sqlite3 _asyncio _lzma _bz2"
    " multiprocessing.shared_memory ctypes"
)


def pairs(size, count):
    """Nanoseconds of a pair: least bare, least accounted, of several rounds in one process."""
    library = kernel()
    # from the first thread on malloc locks: bare is measured in the same state
    dwsr_probe.start(alloc=True)
    dwsr_probe.stop()
    bare, ours = [], []
    for _ in range(5):
        bare.append(library.malloc_pairs(count, size))
        assert dwsr_probe.start(alloc=True, period_ms=1000)
        with dwsr_probe.task("pairs"):
            ours.append(library.malloc_pairs(count, size))
        dwsr_probe.stop()
    return min(bare), min(ours)


def boundary(path):
    """Nanoseconds of a begin/end pair in C: what accounting adds, the whole pair, the kernel's
    calls alone."""
    library = ctypes.CDLL(path)
    library.pair_ns.restype = library.accounting_ns.restype = ctypes.c_double
    directory = os.environ["DWSR_PROBE_BOARD_DIR"].encode()
    return (
        library.accounting_ns(300_000),
        library.pair_ns(directory, 1, 50_000),
        kernel().kernel_calls(50_000, 0, 0),
    )


def start():
    """Milliseconds of CPU to start with and without accounting, with how many objects loaded."""
    for name in LIBRARIES.split():
        __import__(name)
    objects = len(
        {
            line.split()[-1]
            for line in Path("/proc/self/maps").read_text().splitlines()
            if ".so" in line
        }
    )
    figures = []
    for alloc in (True, False):
        begin = time.thread_time()
        assert dwsr_probe.start(alloc=alloc)
        figures.append((time.thread_time() - begin) * 1e3)
        dwsr_probe.stop()
    return [*figures, objects]


def imports_cpu(environ):
    """CPU seconds of a child that imports much."""
    before = os.times()
    subprocess.run(
        [PY, "-c", "import scipy.signal, scipy.ndimage, scipy.stats, pandas"],
        env=environ,
        check=True,
    )
    after = os.times()
    return (
        after.children_user + after.children_system - before.children_user - before.children_system
    )


def run(quick=False):
    rounds = 3 if quick else 15
    section = Section(
        "Parts of the accounting",
        "small pair ≤ 6 ns more, large ≤ 20 ns; begin+end without the rss window ≤ 0.5 µs; start ≤"
        " 10 ms with 200 objects; import of scipy and pandas ≤ 1.02; memory ≤ 8 MiB with 100,000"
        " live large blocks, ≤ 1 MiB with none",
        ("part", "without", "with", "**difference**"),
    )
    for size, count in (
        (64, 1_000_000),
        (1000, 1_000_000),
        (20_000, 500_000),
        (70_000, 500_000),
        (1 << 20, 500_000),
    ):
        rows = [
            in_fresh_python(
                f"from tests.bench.accounting_parts import pairs; print(*pairs({size}, {count}))"
            )
            for _ in range(rounds)
        ]
        section.rows.append(
            (
                f"malloc and free of {size:,} bytes, ns",
                spread([a for a, _ in rows], 1),
                spread([b for _, b in rows], 1),
                spread([b - a for a, b in rows], 1),
            )
        )
    rows = [
        in_fresh_python(
            "from tests.bench.accounting_parts import boundary;"
            f" print(*boundary({str(core_library())!r}))"
        )
        for _ in range(rounds)
    ]
    section.rows.append(
        (
            "what accounting adds to begin+end, in C, ns",
            "–",
            "–",
            spread([a for a, _, _ in rows], 0),
        )
    )
    section.rows.append(
        (
            "all of begin+end in C, ns: the kernel's calls, the pair, the rest",
            spread([k for _, _, k in rows], 0),
            spread([p for _, p, _ in rows], 0),
            spread([p - k for _, p, k in rows], 0),
        )
    )
    rows = [
        in_fresh_python("from tests.bench.accounting_parts import start; print(*start())")
        for _ in range(rounds)
    ]
    section.rows.append(
        (
            f"start with {rows[0][2]:.0f} objects loaded, ms of CPU",
            spread([b for _, b, _ in rows]),
            spread([a for a, _, _ in rows]),
            spread([a - b for a, b, _ in rows]),
        )
    )

    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        plain = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
        base = {**plain, "PYTHONPATH": str(Path(dwsr_probe.boot.__file__).parent)}
        with_alloc, without = (
            {**base, **Settings(run="bench", board_dir=folder, alloc=alloc).to_environ()}
            for alloc in (True, False)
        )
        rows = [
            (imports_cpu(without), imports_cpu(with_alloc), imports_cpu(without))
            for _ in range(rounds)
        ]
    section.rows.append(
        (
            "import scipy and pandas, CPU s; difference as a ratio",
            spread([min(a, c) for a, _, c in rows]),
            spread([b for _, b, _ in rows]),
            (
                f"{spread([2 * b / (a + c) for a, b, c in rows], 3)}; least of each"
                f" {min(b for _, b, _ in rows) / min(min(a, c) for a, _, c in rows):.3f}"
            ),
        )
    )
    for blocks in (0, 100_000):
        code = (
            "from tests.bench import kernel; import dwsr_probe; library = kernel();"
            " dwsr_probe.start(alloc={}); print(library.hold_blocks({}, 200_000))"
        )
        rows = [
            [in_fresh_python(code.format(alloc, blocks))[0] / 2**20 for alloc in (False, True)]
            for _ in range(2 if quick else 5)
        ]
        section.rows.append(
            (
                f"resident with {blocks:,} live blocks of 200 KB, MiB",
                spread([a for a, _ in rows]),
                spread([b for _, b in rows]),
                spread([b - a for a, b in rows]),
            )
        )
    section.notes.append(
        "Pairs are CPU time of the calling thread in one process, probe off and on in turn, after a"
        " first start: glibc's malloc takes no lock before the first thread is made, so in a"
        " program that never has a second thread a large pair gains 20 ns more through the sampler"
        " thread alone. Imports compare the probe with and without accounting. Fresh processes"
        " otherwise."
    )
    return section
