"""What the tests of deploy/ share: its files, the tools that check them, and the jobs that they
deploy, run without containers."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import urllib.request
from contextlib import ExitStack, contextmanager
from pathlib import Path

import yaml

from tests.conftest import PATIENT_DASK, require, wait_until

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
BIN = Path(sys.executable).parent
CONTAINER_ROOT = Path("/etc/dwsr-probe")  # where compose.yml puts deploy/ and dashboards/


def tool(name, package):
    """A program from Debian, or from the environment that runs the tests."""
    beside = BIN / name
    path = require(str(beside) if beside.exists() else shutil.which(name), f"{name}: {package}")

    def run(*words, **options):
        return subprocess.run(
            [path, *map(str, words)],
            **{"capture_output": True, "text": True, "timeout": 600, **options},
        )

    return run


def promtool():
    return tool("promtool", "apt-get install prometheus")


def document(path):
    return yaml.safe_load((DEPLOY / path).read_text())


def free_ports(count):
    """So many, no two the same."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for s in sockets:
            s.bind(("127.0.0.1", 0))
        return [s.getsockname()[1] for s in sockets]


def free_port():
    return free_ports(1)[0]


def get(url):
    with urllib.request.urlopen(url, timeout=600) as answer:
        return answer.read().decode()


def answers(url):
    """What it says, or None while nobody is there."""
    try:
        return get(url)
    except OSError:
        return None


def samples(url, name):
    """Lines of one metric, of an exporter that may not be there yet."""
    return [
        line
        for line in (answers(url + "/metrics") or "").splitlines()
        if line.startswith(name + "{")
    ]


def environment(**more):
    """As a person who has activated the environment; nothing of a probe around us."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(("DWSR_", "DASK_", "SLURM"))}
    return dict(
        env,
        PATH=f"{BIN}:{env['PATH']}",
        PYTHONPATH=str(ROOT),
        PYTHONDONTWRITEBYTECODE="1",
        **PATIENT_DASK,
        **{k: str(v) for k, v in more.items()},
    )


@contextmanager
def started(words, folder, name, code=0, **options):
    """A program in the background, told to end by SIGTERM, with what it started; its exit code
    checked unless that is None; its output is in the file that this gives."""
    log = folder / f"{name}.log"
    with open(log, "wb") as out:
        process = subprocess.Popen(
            list(map(str, words)),
            **{
                "stdout": out,
                "stderr": out,
                "cwd": folder,
                "env": environment(),
                "start_new_session": True,
                **options,
            },
        )
    try:
        yield log
        os.killpg(process.pid, signal.SIGTERM)
        ended = process.wait(600)
        assert code is None or ended == code, log.read_text()
    except BaseException:
        print(f"--- {name}\n{log.read_text()[-4000:]}")
        raise
    finally:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        process.wait()


@contextmanager
def scheduler(folder):
    """A Dask scheduler of the tests' own; its address."""
    path = folder / "scheduler.json"
    words = [
        BIN / "dask",
        "scheduler",
        "--host",
        "127.0.0.1",
        "--port",
        "0",
        "--dashboard-address",
        "127.0.0.1:0",
        "--scheduler-file",
        path,
    ]
    with started(words, folder, "scheduler"):
        wait_until(lambda: path.exists() and path.stat().st_size, "the scheduler")
        yield json.loads(path.read_text())["address"]
