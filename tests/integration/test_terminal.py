"""What people read at the end of a run: real jobs under `dwsr-probe run`, in terminals of
several widths."""

import fcntl
import os
import re
import struct
import subprocess
import sys
import termios
import threading
from pathlib import Path

import pytest

from tests.conftest import wait_until

PY = sys.executable
_SEQUENCES = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)")


@pytest.fixture
def shown(cli):
    """run(*words, columns): (exit code, the lines that stood on a terminal of that width)."""

    def run(*words, columns=80):
        ours, theirs = os.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("4H", 50, columns, 0, 0))
        env = {
            name: value
            for name, value in cli.env.items()
            if name not in ("COLUMNS", "LINES", "CI", "NO_COLOR")
        } | {"TERM": "xterm"}
        read = []

        def drain():
            while True:
                try:
                    read.append(os.read(ours, 1 << 16))
                except OSError:  # the last one has closed it
                    return

        reader = threading.Thread(target=drain)
        job = subprocess.Popen(
            [PY, "-m", "dwsr_probe", *map(str, words)],
            stdin=subprocess.DEVNULL,
            stdout=theirs,
            stderr=theirs,
            cwd=cli.cwd,
            env=env,
        )
        os.close(theirs)
        reader.start()
        code = job.wait(timeout=600)
        reader.join()
        os.close(ours)
        return code, _SEQUENCES.sub("", b"".join(read).decode()).replace("\r\n", "\n").splitlines()

    return run


def one_line(lines):
    """Without what wrapping did."""
    return " ".join(" ".join(lines).split())


def memory_cgroup(limit_bytes):
    """A memory cgroup of the test's own, or None where that is not allowed."""
    own = Path("/proc/self/cgroup").read_text()
    v1 = next((line.split(":", 2)[2] for line in own.splitlines() if ":memory:" in line), None)
    base = (
        Path("/sys/fs/cgroup/memory") / v1.lstrip("/") if v1 is not None else Path("/sys/fs/cgroup")
    )
    group = base / f"dwsr-terminal-{os.getpid()}"
    try:
        group.mkdir()
        (group / ("memory.limit_in_bytes" if v1 is not None else "memory.max")).write_text(
            str(limit_bytes)
        )
        return group
    except OSError:
        return None


GLCM = """
import sys, time
import numpy as np
import dwsr_probe

def wait_for_the_sampler():
    now = time.monotonic_ns()
    while dwsr_probe.snapshot().live["heartbeat_ns"] <= now: time.sleep(0.001)

def glcm(block):
    with dwsr_probe.task("glcm", inputs=[block]):
        held = []
        for _ in range(16):
            held.append(block * 2)
            if len(block) > 20: wait_for_the_sampler()

wait_for_the_sampler()
for length in [*range(4, 20), int(sys.argv[1])]:
    glcm(np.ones((length, 256, 256), np.float32))
"""


@pytest.mark.parametrize("columns", [80, 100, 140])
def test_after_a_kill(cli, shown, columns):
    """By the kernel, in a real cgroup: the verdict names the task, its inputs and its size, and
    the block that it advises fits."""
    limit = 300 << 20
    group = memory_cgroup(limit)
    if group is None:
        pytest.skip("this machine does not let the test make a memory cgroup")
    job = cli.script(GLCM)
    within = f"echo $$ > {group}/cgroup.procs; exec {PY} {job} "
    try:
        code, lines = shown("run", "-o", "killed", "sh", "-c", within + "80", columns=columns)
        text = one_line(lines)
        assert code == 137 and all(
            len(line) <= columns for line in lines if not line.startswith("dwsr-probe:")
        )
        assert (
            lines[0].startswith("One process was killed by SIGKILL at ")
            and "with one task under way." in text
        )
        assert re.search(
            r"The task under way was glcm with float32 \(80, 256, 256\), 20\.0 MiB of input\. It"
            r" had taken at least \d+\.\d MiB when it was killed\.",
            text,
        )
        row = next(line for line in lines if line.startswith("glcm "))
        # the median of 17 is known
        assert re.match(r"glcm +17 +1 killed +≥ \d+\.\d MiB +\d+\.\d MiB", row), row
        head = lines[lines.index(row) - 1]
        assert (
            head.startswith("task  count    failed  own peak, max")
            and "…" not in head
            and "samples" not in text
        )
        length = int(
            re.search(
                r"Use blocks of (\d+)×256×256: with one task at once a worker then needs up to"
                r" \d+\.\d MiB of 300\.0 MiB \(99 %; dwsr-probe fit\)",
                text,
            )[1]
        )
        code, lines = shown("run", "-o", "fits", "sh", "-c", within + str(length), columns=columns)
        assert code == 0 and re.match(
            r"Everything fitted: memory peaked at [3-7]\d % of the limit", lines[0]
        ), lines
    finally:
        wait_until(lambda: not (group / "cgroup.procs").read_text(), "an empty cgroup")
        group.rmdir()


@pytest.mark.parametrize("columns", [80, 100, 140])
def test_thirty_names(cli, shown, columns):
    code, lines = shown(
        "run",
        PY,
        cli.script("""
        import numpy as np
        import dwsr_probe
        for i in range(30):
            with dwsr_probe.task(f"step-{i:02d}-of-a-seismic-pipeline"):
                np.ones((i + 1) << 18)
        with dwsr_probe.task("load"):
            kept = open("/dev/zero", "rb").read(1)
    """),
        columns=columns,
    )
    head = next(i for i, line in enumerate(lines) if line.startswith("task "))
    assert code == 0 and lines[0].startswith("Everything fitted: ") and head == 1
    assert [line[:7] for line in lines[2:12]] == [f"step-{i:02d}" for i in range(29, 19, -1)]
    assert lines[12] == "and 21 more task names, with smaller needs (all of them: -v)"
    assert (
        all(len(line) <= columns for line in lines if not line.startswith("dwsr-probe:"))
        and "…" not in lines[head]
    )
    _, lines = shown("report", "-v", columns=columns)
    assert sum(line.startswith("step-") for line in lines) == 30 and re.search(
        r"\d samples, \d", one_line(lines)
    )


def test_a_job_that_ends_with_an_exception(cli, shown):
    code, lines = shown(
        "run",
        PY,
        cli.script("""
        import dwsr_probe
        with dwsr_probe.task("smooth"):
            bytearray(1 << 20)
        raise ValueError("wrong header")
    """),
    )
    after = lines[lines.index("ValueError: wrong header") + 1 :]
    assert (
        code == 1
        and after[0].startswith("The job failed with exit code 1; memory peaked at ")
        and not any("fitted" in line for line in lines)
    )
    assert shown("report")[1][2:4] == after[:2]  # below which run it is, and its heading


def test_a_storm_that_loses_records(cli, shown):
    """Nobody drains the ring while `run` is stopped."""
    code, lines = shown(
        "run",
        PY,
        cli.script("""
        import os, signal
        import dwsr_probe
        os.kill(os.getppid(), signal.SIGSTOP)
        for i in range(200_000):
            with dwsr_probe.task("tiny"): pass
        os.kill(os.getppid(), signal.SIGCONT)
    """),
        columns=120,
    )
    assert code == 0 and lines[0].startswith("Everything fitted: memory peaked at "), lines
    assert re.match(
        r"[\d,]+ of 200,000 tasks have no record of their own: they ended faster than they could be"
        r" stored.",
        lines[1],
    ), lines
    assert any(re.match(r"tiny +200,000 .*≈", line) for line in lines) and any(
        line.startswith("≈ within 5 %") for line in lines
    )


def test_killed_without_a_task(cli, shown):
    code, lines = shown(
        "run",
        PY,
        cli.script("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)"),
        columns=140,
    )
    assert (
        code == 137
        and lines[0].startswith("One process was killed by SIGKILL at ")
        and "by SIGKILL, probably not for lack of memory" in lines[1]
    )


def test_children_that_ended_early_are_not_counted(cli, shown):
    """One child left a task behind because it ended; nobody killed it."""
    _, lines = shown(
        "run",
        PY,
        cli.script("""
        import os, subprocess, sys
        child = "import os, dwsr_probe\\nwith dwsr_probe.task('left'): os._exit(0)"
        subprocess.run([sys.executable, "-c", child])
        os.kill(os.getpid(), 9)
    """),
        columns=200,
    )
    assert re.match(
        r"One process was killed by SIGKILL at [\d.]+ % of its limit; one more process ended with"
        r" one task under way at [\d.]+ % of its limit\.",
        lines[0],
    ), lines
    assert (
        sum(": killed;" in line for line in lines) == 1
        and sum(": ended with tasks under way;" in line for line in lines) == 1
    )
