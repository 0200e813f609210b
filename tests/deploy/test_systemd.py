"""The systemd unit: by systemd-analyze, and its command by hand, as a user with nothing but the
one capability."""

import os
import re
import shutil
import subprocess
import sys

import pytest

from tests.conftest import permitted, require, wait_until
from tests.deploy.conftest import (
    BIN,
    DEPLOY,
    answers,
    environment,
    free_port,
    samples,
    started,
    tool,
)

UNIT = DEPLOY / "systemd" / "dwsr-probe-export.service"
TEXT = UNIT.read_text()
EXPOSURE_MOST = 2.0  # as deploy/README.md says
JOB = """
import sys, dwsr_probe
with dwsr_probe.task("glcm"):
    pass
with dwsr_probe.task("held"):
    sys.stdin.read()
"""


def setting(name):
    return re.findall(rf"^{name}=(.*)$", TEXT, re.MULTILINE)


@pytest.fixture
def unit(tmp_path):
    """With the command where it is here: verify looks."""
    path = tmp_path / UNIT.name
    path.write_text(TEXT.replace("/opt/dwsr-probe/bin", str(BIN)))
    return path


def analyze():
    return tool("systemd-analyze", "apt-get install systemd")


def test_verify(unit):
    done = analyze()("verify", unit)
    # nothing about other units of this machine
    said = [line for line in (done.stdout + done.stderr).splitlines() if UNIT.name in line]
    assert done.returncode == 0 and not said, done.stderr


def test_exposure(unit):
    done = analyze()("security", "--offline=true", "--no-pager", unit)
    found = re.search(r"Overall exposure level for \S+: ([\d.]+)", done.stdout)
    require(found, f"systemd-analyze security --offline: {done.stderr.strip()[-100:]}")
    assert float(found[1]) <= EXPOSURE_MOST
    assert f"exposure {EXPOSURE_MOST}" in (DEPLOY / "README.md").read_text()


def test_sees_the_boards_and_their_processes():
    assert (
        setting("CapabilityBoundingSet")
        == setting("AmbientCapabilities")
        == ["CAP_DAC_READ_SEARCH"]
    )
    for name in (
        "PrivateTmp",
        "DynamicUser",
        "ProtectProc",
        "PrivateUsers",
        "PrivateNetwork",
        "PrivatePIDs",
    ):
        assert not setting(name), name
    assert setting("ProtectHome") == ["read-only"]  # yes would empty /run/user
    assert "/run" not in " ".join(setting("InaccessiblePaths"))


def test_command_by_hand(tmp_path):
    """ExecStart as nobody with the capability, without new privileges, and with a /proc as
    ProcSubset=pid shows it: root's private boards are read."""
    setpriv = require(shutil.which("setpriv"), "setpriv: apt-get install util-linux")
    permitted(os.geteuid() == 0, "take capabilities away (needs root)")
    permitted(
        subprocess.run(
            ["unshare", "-m", "mount", "-t", "proc", "-o", "subset=pid", "proc", "/proc"],
            capture_output=True,
        ).returncode
        == 0,
        "mount /proc",
    )
    port = free_port()
    (command,) = setting("ExecStart")
    options = re.search(r'^Environment="OPTIONS=(.*)"$', TEXT, re.MULTILINE)[1].replace(
        ":9464", f":{port}"
    )
    command = command.replace("/opt/dwsr-probe/bin", str(BIN)).replace("$OPTIONS", options)
    cap = "-all,+dac_read_search"
    confined = [
        setpriv,
        "--reuid=65534",
        "--regid=65534",
        "--clear-groups",
        f"--inh-caps={cap}",
        f"--ambient-caps={cap}",
        f"--bounding-set={cap}",
        "--no-new-privs",
    ]
    inside = f"mount -t proc -o subset=pid proc /proc && exec {' '.join(confined)} {command}"
    boards = f"/dev/shm/dwsr-probe-test-{os.getpid()}"
    (tmp_path / "job.py").write_text(JOB)
    env = environment(DWSR_PROBE_BOARD_DIR=boards, XDG_STATE_HOME=tmp_path / "state")
    try:
        with started(
            ["unshare", "-m", "sh", "-c", inside], tmp_path, "export", env=environment(HOME="/")
        ):
            wait_until(lambda: answers(f"http://127.0.0.1:{port}/-/healthy"), "the exporter")
            job = subprocess.Popen(
                [
                    BIN / "dwsr-probe",
                    "run",
                    "-q",
                    "-o",
                    tmp_path / "run",
                    sys.executable,
                    tmp_path / "job.py",
                ],
                env=env,
                stdin=subprocess.PIPE,
            )
            url = f"http://127.0.0.1:{port}"
            assert (
                os.stat(wait_until(lambda: os.path.isdir(boards) and boards, "the boards")).st_mode
                & 0o777
                == 0o700
            )
            wait_until(
                lambda: any(
                    'task_name="glcm"' in line and 'outcome="ok"' in line
                    for line in samples(url, "dwsr_tasks_total")
                ),
                "the job's tasks",
            )
            assert any('task_name="held"' in line for line in samples(url, "dwsr_slot_busy"))
            job.stdin.close()
            assert job.wait(600) == 0
            assert not any(
                'outcome="killed"' in line and "held" in line
                for line in samples(url, "dwsr_tasks_total")
            )
    finally:
        shutil.rmtree(boards, ignore_errors=True)


def test_sysusers(tmp_path):
    users = tool("systemd-sysusers", "apt-get install systemd")
    path = DEPLOY / "systemd" / "dwsr-probe.conf"
    (tmp_path / "etc").mkdir()
    done = users(f"--root={tmp_path}", path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "etc" / "passwd").read_text().startswith(setting("User")[0] + ":")
