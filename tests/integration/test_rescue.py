"""The product in one command: a job that dies bare is measured, fitted, and finishes (`make
rescue`)."""

import subprocess
import sys
from pathlib import Path

import pytest

for module in ("distributed", "zarr", "bokeh"):
    pytest.importorskip(module)
RESCUE = Path(__file__).parents[2] / "examples" / "rescue.py"


def test_the_job_is_rescued(cli):
    done = subprocess.run(
        [sys.executable, RESCUE, cli.cwd / "rescue"],
        env=cli.env,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.rstrip().endswith("The job was rescued.")
    assert "KilledWorker" in done.stdout and "Killed was a task of" in done.stdout
    page = (cli.cwd / "rescue" / "rescue.html").read_text()
    assert page.startswith("<!doctype html>") and "semblance" in page
