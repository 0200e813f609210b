"""The machine's clock is set while jobs run: lengths of time stay what they are. A shim between
Python and the C library plays the clock."""

import email.utils
import os
import shutil
import signal
import subprocess
import time
import urllib.request

import pytest

from dwsr_probe.board import Board
from dwsr_probe.runs import sweep
from dwsr_probe.store import Store
from tests.conftest import processes, require, wait_until
from tests.integration.conftest import PY, UNTIL_TOLD, exporter, heard, say

HOUR = 3600

# Dates are an hour later as soon as a file is there.
SHIM = """
#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>
static long step(void) { const char *file = getenv("CLOCK_STEP");
    return file && access(file, F_OK) == 0 ? 3600 : 0; }
int clock_gettime(clockid_t id, struct timespec *t)
{
    long e = syscall(SYS_clock_gettime, id, t);
    if (e == 0 && id == CLOCK_REALTIME) t->tv_sec += step();
    return (int)e;
}
time_t time(time_t *to) { struct timespec t; clock_gettime(CLOCK_REALTIME, &t);
    if (to) *to = t.tv_sec; return t.tv_sec; }
int gettimeofday(struct timeval *t, void *zone)
{
    struct timespec now;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &now);
    t->tv_sec = now.tv_sec;
    t->tv_usec = now.tv_nsec / 1000;
    return 0;
}
"""


@pytest.fixture
def clock(cli):
    """Environment of a process whose clock is set when the file `step` appears."""
    (cli.cwd / "shim.c").write_text(SHIM)
    subprocess.run(
        [
            require(shutil.which("cc"), "a C compiler: apt-get install gcc"),
            "-shared",
            "-fPIC",
            "-O1",
            "shim.c",
            "-o",
            "shim.so",
        ],
        cwd=cli.cwd,
        check=True,
    )
    return dict(cli.env, LD_PRELOAD=str(cli.cwd / "shim.so"), CLOCK_STEP=str(cli.cwd / "step"))


def test_running_tasks_do_not_age(cli, serve, board_dir, clock):
    job = subprocess.Popen(
        [
            PY,
            "-c",
            UNTIL_TOLD
            + """
assert dwsr_probe.start()
with dwsr_probe.task("waits"):
    say("in")
    wait_for("enough")
dwsr_probe.stop()
""",
        ],
        cwd=cli.cwd,
        env=cli.env,
    )

    def date():
        with urllib.request.urlopen(served.url + "/metrics", timeout=600) as answer:
            return email.utils.parsedate_to_datetime(answer.headers["Date"]).timestamp()

    try:
        heard(cli, "in")
        began = time.monotonic()
        cli.env = clock
        served = exporter(serve, board_dir)
        assert served.value("dwsr_slot_running_seconds") is not None
        say(cli, "step")
        wait_until(lambda: date() > time.time() + HOUR / 2, "the exporter's new time")
        seconds = served.value("dwsr_slot_running_seconds")
        assert 0 <= seconds <= time.monotonic() - began + 60, seconds
    finally:
        say(cli, "enough")
        assert job.wait(600) == 0


@pytest.mark.parametrize(
    "command",
    [
        ["sh", "-c", "touch step"],
        [PY, "-c", "import dwsr_probe, os\nwith dwsr_probe.task('x'): open('step', 'w').close()"],
    ],
)
def test_a_run_does_not_last_longer(cli, clock, command):
    began = time.monotonic()
    done = cli("run", "-o", "run", *command, env=clock)
    most = time.monotonic() - began + 60
    assert done.returncode == 0 and os.path.exists(cli.cwd / "step"), done.stderr
    (cli.cwd / "step").unlink()
    (process,) = processes(cli.records("run"))
    assert 0 <= process["duration"] <= most, process
    store = Store.open(cli.cwd / "run")
    meta = store.meta()
    store.close()
    assert 0 <= meta["end"] - meta["start"] <= most


def test_boards_do_not_age(board_dir, monkeypatch):
    """A dead board is kept for a week, whatever the date is meanwhile."""
    code = (
        "import dwsr_probe, os, signal; assert dwsr_probe.start(); os.kill(os.getpid(),"
        " signal.SIGKILL)"
    )
    assert subprocess.run([PY, "-c", code]).returncode == -signal.SIGKILL
    (path,) = board_dir.iterdir()
    board, now = Board(path), time.time()
    monkeypatch.setattr(time, "time", lambda: now + 30 * 86_400)
    assert 0 <= board.silent_s(board.live()) < 86_400
    assert sweep(board_dir) == 0 and path.exists()
    monkeypatch.setattr(board, "host", "elsewhere")  # dates are all that can be compared
    assert board.silent_s(board.live()) > 29 * 86_400
    monkeypatch.undo()
    assert sweep(board_dir, older_s=0) == 1
