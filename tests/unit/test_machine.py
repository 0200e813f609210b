"""The exporter's source over directories that come and go."""

import shutil
import subprocess
import sys

from dwsr_probe.export.sources import machine as machine_source
from tests.conftest import wait_until

JOB = """
import dwsr_probe, sys, time
assert dwsr_probe.start(board_dir=sys.argv[1])
with dwsr_probe.task("doomed"):
    print("in", flush=True)
    time.sleep(600)
"""


def test_a_directory_that_vanishes_takes_nothing_with_it(tmp_path, monkeypatch):
    boards = tmp_path / "boards"
    monkeypatch.setattr(
        machine_source, "board_directories", lambda: [str(boards)] if boards.exists() else []
    )
    machine = machine_source.MachineSource()
    job = subprocess.Popen([sys.executable, "-c", JOB, str(boards)], stdout=subprocess.PIPE)
    assert job.stdout.readline() == b"in\n"
    wait_until(lambda: machine.collect() or machine.view().processes, "the board is seen")
    job.kill()
    job.wait()
    shutil.rmtree(boards)
    machine.collect()
    assert machine.totals.pairs["doomed", "doomed"].outcomes == {"killed": 1}
    assert not machine._collectors  # nothing is held open
