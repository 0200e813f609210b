"""Families of real programs, run here on files of many sizes: the peak resident set size of each.
Kept in build/families.jsonl, which `records` makes if it is missing."""

import ctypes
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

FILE = Path("build/families.jsonl")
COUNT = 28
LOW, HIGH = 1e6, 200e6
PR_SET_CHILD_SUBREAPER = 36
PARSE_LINES = "import json, sys; x = [json.loads(line) for line in open(sys.argv[1])]"
COUNT_WORDS = (
    "import collections, sys; c = collections.Counter(w for line in open(sys.argv[1])"
    " for w in line.split())"
)
COMPRESS = 'import sys, zlib; x = zlib.compress(open(sys.argv[1], "rb").read(), 1)'
TO_ARRAY = (
    'import sys, array; x = array.array("d", (float(len(line)) for line in open(sys.argv[1])))'
)
# {}: the file. Output is thrown away.
PROGRAMS = {
    "sort": "sort --parallel=1 -S 1G {}",
    "sort_small_buffer": "sort --parallel=1 -S 64M -k4 {}",
    "shuf": "shuf {}",
    "xz": "xz -0 -T1 -c {}",
    "zstd": "zstd -q -6 --single-thread -c {}",
    "zstd_long": "zstd -q -3 --long=26 -T1 -c {}",
    "gzip": "gzip -c {}",
    "tar": "tar -P -cf - {}",
    "sqlite_import": "sqlite3 :memory: '.mode tabs' '.import {} lines'",
    "awk_count": "awk '{{ n[$6]++ }}' {}",
    "awk_keep": "awk '{{ line[NR] = $0 }}' {}",
    "awk_sum": "awk '{{ s += length($0) }} END {{ print s }}' {}",
    "python_json": f"{sys.executable} -S -c '{PARSE_LINES}' {{}}",
    "python_count": f"{sys.executable} -S -c '{COUNT_WORDS}' {{}}",
    "python_zlib": f"{sys.executable} -S -c '{COMPRESS}' {{}}",
    "python_array": f"{sys.executable} -S -c '{TO_ARRAY}' {{}}",
    "diff": "diff {} {}.half",
}


def text(chance, length):
    """About `length` bytes of JSON, a line for each record. Every few megabytes are of another
    vocabulary."""
    parts, made, number = [], 0, 0
    while made < length:
        words = [f"{w:x}" for w in chance.integers(0, 1 << 40, int(np.exp(chance.uniform(5, 12))))]
        drawn = chance.integers(0, len(words), (20_000, 5)).tolist()
        values = chance.random(20_000).tolist()
        part = "".join(
            f'{{"id": {number + i}, "value": {values[i]:.12f}, "text":'
            f' "{" ".join([words[w] for w in row])}"}}\n'
            for i, row in enumerate(drawn)
        ).encode()
        parts.append(part)
        made, number = made + len(part), number + 20_000
    return b"".join(parts)


def peak_rss_bytes(command, fifo):
    """Of one program. The kernel counts the pages that a process had before it became the program
    (exec): those of a small shell, which leaves the program to us as the reaper of orphans. It
    begins when there is a reader, which is after the shell has ended."""
    shell = subprocess.Popen(
        ["sh", "-c", 'eval "exec $0" > "$1" & echo $!', command, fifo], stdout=subprocess.PIPE
    )
    with shell:  # the program has this pipe, too, until it has its reader
        pid = int(shell.stdout.readline())
        shell.wait()
    sink = subprocess.Popen(["cat", fifo], stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(pid, 0)
    sink.wait()
    if (code := os.waitstatus_to_exitcode(status)) not in (0, 1):  # diff: 1 for a difference
        raise RuntimeError(f"exit code {code} of {command}")
    return usage.ru_maxrss * 1024


def measure():
    if ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise OSError("prctl(PR_SET_CHILD_SUBREAPER) failed")
    os.environ["LC_ALL"] = "C"
    chance, lines = np.random.default_rng(0), []
    sizes = np.exp(chance.uniform(np.log(LOW), np.log(HIGH), COUNT))
    whole = text(chance, int(HIGH * 1.2))
    with tempfile.TemporaryDirectory(dir="build") as folder:
        path, fifo = Path(folder, "file").resolve(), Path(folder, "fifo")
        os.mkfifo(fifo)
        for n, size in enumerate(sizes):
            print(f"... file {n + 1} of {COUNT}", file=sys.stderr, flush=True)
            first = int(chance.integers(0, len(whole) - int(size)))
            first = whole.rfind(b"\n", 0, first) + 1
            path.write_bytes(whole[first : whole.find(b"\n", first + int(size)) + 1])
            half = path.read_bytes()[: path.stat().st_size // 2]
            Path(f"{path}.half").write_bytes(half)
            for name, command in PROGRAMS.items():
                peak = peak_rss_bytes(command.format(path, path), fifo)
                lines.append({"family": name, "size": path.stat().st_size, "peak_bytes": peak})
    FILE.parent.mkdir(exist_ok=True)
    part = FILE.with_suffix(".part")
    part.write_text("".join(json.dumps(line) + "\n" for line in lines))
    part.rename(FILE)  # half a measurement is none


def tasks(again=False):
    """By program: (input bytes, peak bytes) of each task."""
    found = {} if again else load()
    if found.keys() != PROGRAMS.keys():
        measure()
        found = load()
    return found


def load():
    found = {}
    for line in FILE.read_text().splitlines() if FILE.exists() else ():
        task = json.loads(line)
        found.setdefault(task["family"], []).append((task["size"], task["peak_bytes"]))
    return found
