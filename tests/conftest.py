"""Fixtures of all tests: a board directory for each test, and the command line as a user calls it.
Also decides which skipped tests count as failures in CI.
"""

import json
import os
import subprocess
import sys
import textwrap
import time

import pytest

from tests.results import (  # noqa: F401
    pytest_collectreport,
    pytest_runtest_logreport,
    pytest_runtest_logstart,
)


def require(found, what):
    """Skip the test without a tool; `what` names the tool and how to install it."""
    if not found:
        pytest.skip(f"needs {what}")
    return found


def permitted(found, what):
    """Skip the test where the machine or the user's rights do not allow it."""
    if not found:
        pytest.skip(NOT_PERMITTED + what)
    return found


NOT_PERMITTED = "this machine does not let the test "


def _missing_tool_fails(report):
    """In CI (CI=true) every tool can be installed. So a test that is skipped because a tool is
    missing counts as failed."""
    if os.environ.get("CI") == "true" and report.skipped and not hasattr(report, "wasxfail"):
        reason = report.longrepr[2].removeprefix("Skipped: ")
        if not reason.startswith(NOT_PERMITTED):
            report.outcome, report.longrepr = (
                "failed",
                f"{reason} (with CI=true a missing tool is a failure)",
            )
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    return _missing_tool_fails((yield))


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector):
    return _missing_tool_fails((yield))


@pytest.fixture
def board_dir(tmp_path, monkeypatch):
    path = tmp_path / "boards"
    monkeypatch.setenv("DWSR_PROBE_BOARD_DIR", str(path))
    return path


@pytest.fixture
def probe(board_dir):
    """The probe running in this process."""
    import dwsr_probe

    assert dwsr_probe.start()
    yield dwsr_probe
    dwsr_probe.stop()


# Dask's own limits for connections are 30 s.
PATIENT_DASK = {
    "DASK_DISTRIBUTED__COMM__TIMEOUTS__CONNECT": "600s",
    "DASK_DISTRIBUTED__COMM__TIMEOUTS__TCP": "600s",
}


class Cli:
    """dwsr-probe in a scratch directory: run(), report(), and a finished run's records by kind."""

    def __init__(self, cwd):
        self.cwd = cwd
        self.env = dict(
            os.environ,
            XDG_STATE_HOME=str(cwd / "state"),
            PYTHONDONTWRITEBYTECODE="1",
            **PATIENT_DASK,
        )

    def __call__(self, *words, **options):
        options = {
            "capture_output": True,
            "text": True,
            "cwd": self.cwd,
            "env": self.env,
            "timeout": 600,
            **options,
        }
        return subprocess.run([sys.executable, "-m", "dwsr_probe", *map(str, words)], **options)

    def start(self, *words, **options):
        options = {
            "stdout": subprocess.PIPE,
            "stderr": subprocess.PIPE,
            "text": True,
            "cwd": self.cwd,
            "env": self.env,
            **options,
        }
        return subprocess.Popen([sys.executable, "-m", "dwsr_probe", *map(str, words)], **options)

    def script(self, code, name="job.py"):
        path = self.cwd / name
        path.write_text(textwrap.dedent(code))
        return path

    def job(self, code, *options, name="job.py", **kwargs):
        """Run a script under the probe; its result and its records."""
        done = self(
            "run",
            "-o",
            self.cwd / "run",
            *options,
            sys.executable,
            self.script(code, name),
            **kwargs,
        )
        return done, self.records(self.cwd / "run")

    def records(self, run):
        done = self("report", run, "--format", "json")
        assert done.returncode == 0, done.stderr
        return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.fixture
def cli(tmp_path, board_dir):
    yield (cli := Cli(tmp_path))
    left = list(board_dir.glob("*.board")) if board_dir.is_dir() else []
    assert getattr(cli, "boards_may_stay", False) or not left, f"boards left behind: {left}"


def tasks(records, name=None):
    return [r for r in records if r["kind"] == "task" and (name is None or r["task_name"] == name)]


def processes(records, name=None):
    return [
        r for r in records if r["kind"] == "process" and (name is None or r["task_name"] == name)
    ]


# For the code of jobs: wait until the sampler has copied the present figures to the board. Two more
# samples are enough, however late they are. The first call imports modules: call it once before
# memory is measured.
SAMPLED = """
def sampled():
    import dwsr_probe, time
    seen = dwsr_probe.snapshot().live["samples_written"]
    while dwsr_probe.snapshot().live["samples_written"] < seen + 2: time.sleep(0.001)
"""

# For the code of jobs that make more than the 8,192 records that a ring holds: wait until the run's
# store has `count` of them.
COLLECTED = """
def collected(count, run="run"):
    import sqlite3, time

    while True:
        try:
            with sqlite3.connect(f"file:{run}/run.sqlite?mode=ro", uri=True) as store:
                if (store.execute("SELECT SUM(count) FROM frames").fetchone()[0] or 0) >= count:
                    return
        except sqlite3.OperationalError:
            pass  # not yet there, or just being written
        time.sleep(0.01)
"""


def wait_until(condition, what, timeout=300.0):
    """Wait for an event. The timeout is for events that never happen: no machine is so slow."""
    deadline = time.monotonic() + timeout
    while not (result := condition()):
        assert time.monotonic() < deadline, f"waited {timeout} s for {what}"
        time.sleep(0.005)
    return result
