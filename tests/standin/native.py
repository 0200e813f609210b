"""Builds the stand-in with gcc alone: `_cuda` for one Python, and libnvidia-ml.so.1. Only what
is older than its sources.

`python -m tests.standin build` prints the folder, build/standin/<tag of that Python>. It is the
child's Python that counts: build with it, or name it. Called by environment().
"""

import contextlib
import fcntl
import json
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent / "build" / "standin"
FLAGS = (
    "-std=c11 -D_GNU_SOURCE -O1 -g -Wall -Wextra -fPIC -shared -fvisibility=hidden -pthread".split()
)
TARGETS = {"_cuda.so": ("cuda.c", "device.c"), "libnvidia-ml.so.1": ("nvml.c",)}


def describe(python):
    """Tag and include folder of an interpreter."""
    if os.path.realpath(python) == os.path.realpath(sys.executable):
        return sys.implementation.cache_tag, sysconfig.get_path("include")
    code = (
        "import json, sys, sysconfig; print(json.dumps([sys.implementation.cache_tag,"
        " sysconfig.get_path('include')]))"
    )
    return tuple(
        json.loads(
            subprocess.run(
                [python, "-S", "-c", code], check=True, capture_output=True, text=True
            ).stdout
        )
    )


def build(python=sys.executable):
    """Returns the folder with what was built for this interpreter."""
    tag, include = describe(str(python))
    folder = ROOT / tag
    folder.mkdir(parents=True, exist_ok=True)
    newest = max(path.stat().st_mtime_ns for path in (*HERE.glob("*.[ch]"), Path(__file__)))
    with locked(folder / ".lock"):  # test runners start several at a time
        for target, sources in TARGETS.items():
            path = folder / target
            if not path.exists() or path.stat().st_mtime_ns < newest:
                part = folder / f"{target}.part"
                subprocess.run(
                    [
                        "gcc",
                        *FLAGS,
                        f"-I{include}",
                        *(str(HERE / s) for s in sources),
                        f"-Wl,-soname,{target}",
                        "-o",
                        str(part),
                    ],
                    check=True,
                )
                part.rename(path)
    return folder


@contextlib.contextmanager
def locked(path):
    with open(path, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
