"""Benchmarks: `make bench`. Each module has run(quick) → Section; __main__ prints them and
writes BENCHMARKS.md.

Figures are ratios or differences measured side by side in one run, interleaved, with their
spread. None of them fails a test.
"""

import ctypes
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

PY = sys.executable
HERE = Path(__file__).parent


@dataclass
class Section:
    title: str
    target: str
    header: tuple
    rows: list = field(default_factory=list)
    notes: list = field(default_factory=list)

    def markdown(self):
        lines = [
            f"## {self.title}",
            "",
            f"Target: {self.target}",
            "",
            "| " + " | ".join(self.header) + " |",
            "|" + "---|" * len(self.header),
        ]
        lines += ["| " + " | ".join(map(str, row)) + " |" for row in self.rows]
        return "\n".join([*lines, *(f"\n{note}" for note in self.notes), ""])


def compiled(name, *sources, language=("cc", "-std=gnu11")):
    """Path of a library compiled from C sources, or from those of another language: its compiler
    and its options."""
    path = Path(tempfile.mkdtemp(prefix="dwsr-bench-")) / name
    subprocess.run(
        [
            *language,
            "-O2",
            "-shared",
            "-fPIC",
            "-ftls-model=initial-exec",
            "-pthread",
            "-Icsrc",
            "-o",
            path,
            *sources,
        ],
        check=True,
    )
    return path


@cache
def kernel_library():
    return compiled("kernel.so", HERE / "kernel.c")


@cache
def core_library():
    """All of csrc with boundary.c: the probe without Python."""
    return compiled("core.so", *sorted(Path("csrc").glob("*.c")), HERE / "boundary.c")


def kernel(hold_gil=False):
    library = (ctypes.PyDLL if hold_gil else ctypes.CDLL)(str(kernel_library()))
    library.spike.restype = ctypes.c_uint64
    library.spike.argtypes = ctypes.c_size_t, ctypes.c_uint
    library.move_memory.argtypes = (ctypes.c_double,)
    library.kernel_calls.argtypes, library.kernel_calls.restype = (
        (
            ctypes.c_uint,
            ctypes.c_size_t,
            ctypes.c_int,
        ),
        ctypes.c_double,
    )
    library.touch_and_free.argtypes = (ctypes.c_size_t,)
    library.malloc_pairs.argtypes, library.malloc_pairs.restype = (
        (
            ctypes.c_uint,
            ctypes.c_size_t,
        ),
        ctypes.c_double,
    )
    library.hold_blocks.argtypes, library.hold_blocks.restype = (
        (
            ctypes.c_uint,
            ctypes.c_size_t,
        ),
        ctypes.c_uint64,
    )
    return library


def median(values):
    return sorted(values)[len(values) // 2]


def spread(values, digits=2):
    """median (least – largest)"""
    return f"{median(values):.{digits}f} ({min(values):.{digits}f} – {max(values):.{digits}f})"


def in_fresh_python(code, inherit_floor=False, python=PY, path=None, cwd=None):
    """Numbers that `code` prints in a new interpreter with its own boards. Through a small shell,
    unless it is to inherit our size.

    python, path, cwd: of another build (tests/bench/budget_builds.py)."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        environ = dict(os.environ, DWSR_PROBE_BOARD_DIR=folder, PYTHONPATH=path or os.getcwd())
        shell = [] if inherit_floor else ["sh", "-c", '"$0" "$@"; exit $?']
        out = subprocess.run(
            [*shell, python, "-c", code],
            capture_output=True,
            text=True,
            check=True,
            env=environ,
            cwd=cwd,
        ).stdout
    return [float(word) for word in out.split()]
