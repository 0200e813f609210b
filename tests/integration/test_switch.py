"""DWSR_PROBE=off: one variable that everything of ours obeys, and nothing is left behind."""

import subprocess
import sys

import pytest

from tests.conftest import processes

PY = sys.executable


@pytest.fixture
def off(cli):
    cli.env["DWSR_PROBE"] = "off"
    return cli


def test_run(off, board_dir):
    done = off(
        "run",
        PY,
        "-c",
        "import os, sys; print('DWSR_PROBE_RUN' in os.environ, 'dwsr_probe' in sys.modules);"
        " sys.exit(4)",
    )
    assert (done.stdout, done.returncode) == ("False False\n", 4)
    assert (
        done.stderr
        == "dwsr-probe: the probe is switched off (DWSR_PROBE=off). The job runs unprobed\n"
    )
    assert not (off.cwd / "dwsr-runs").exists() and not board_dir.exists()
    assert off("run", "--strict", "true").returncode == 125


def test_start(off, board_dir):
    code = (
        "import threading, dwsr_probe\nprint(dwsr_probe.start())\nwith dwsr_probe.task('x'):"
        " pass\nprint(dwsr_probe.snapshot())"
    )
    done = subprocess.run([PY, "-c", code], env=off.env, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("False\nNone\n", "") and not board_dir.exists()


def test_one_child_of_a_run(cli):
    done, records = cli.job(
        """
        import os, subprocess, sys

        for switch in ("off", "OFF ", "on", ""):
            code = (
                "import sys; print('dwsr_probe.probe' in sys.modules and"
                " sys.modules['dwsr_probe'].snapshot() is not None)"
            )
            subprocess.run([sys.executable, "-c", code], env=dict(os.environ, DWSR_PROBE=switch))
    """,
        "-q",
    )
    assert done.stdout.split() == ["False", "False", "True", "True"] and done.stderr == ""
    assert len(processes(records)) == 3


DASK = """
import sys
from distributed import Client, LocalCluster

def seen():
    import os, sys, distributed

    core = sys.modules.get("dwsr_probe._core")
    wrapped = [
        f
        for f in vars(distributed.worker).values()
        if getattr(f, "__module__", "").startswith("dwsr_probe")
    ]
    return bool(core and core.active()), len(wrapped)

if __name__ == "__main__":
    with (
        LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address=None) as cluster,
        Client(cluster) as client,
    ):
        if "plugin" in sys.argv:
            import dwsr_probe.dask

            client.register_plugin(dwsr_probe.dask.Probe())
        print(client.submit(seen).result())
"""


@pytest.mark.parametrize("way", ["preload", "plugin"])
def test_dask(cli, board_dir, way):
    """A preload for a whole site, in its configuration; and the plugin: both leave a worker
    alone."""
    pytest.importorskip("distributed")
    script = cli.script(DASK)
    env = (
        dict(cli.env, DASK_DISTRIBUTED__WORKER__PRELOAD="dwsr_probe.dask.preload")
        if way == "preload"
        else cli.env
    )
    on = subprocess.run([PY, script, way], env=env, cwd=cli.cwd, capture_output=True, text=True)
    assert on.stdout.startswith("(True, "), on.stderr
    cli.boards_may_stay = True
    for board in board_dir.glob("*.board"):
        board.unlink()
    off = subprocess.run(
        [PY, script, way],
        env=dict(env, DWSR_PROBE="off"),
        cwd=cli.cwd,
        capture_output=True,
        text=True,
    )
    assert off.stdout == "(False, 0)\n" and "dwsr" not in off.stderr.replace(
        "dwsr_probe.dask.preload", ""
    ), off.stderr
    assert not list(board_dir.glob("*.board"))


def test_doctor(off):
    done = off("doctor")
    assert (
        done.returncode == 0
        and "DWSR_PROBE=off is set" in done.stdout
        and "samples/s" in done.stdout
    )
