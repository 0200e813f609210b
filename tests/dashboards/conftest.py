"""A real Prometheus that scrapes two real runs, a Dask job, and a CuPy job on the stand-in, each
served by `dwsr-probe run --metrics`, and a predictor that learns from both."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

import pytest

from tests.conftest import require, wait_until
from tests.dashboards.queries import DASHBOARDS

HERE, ROOT = Path(__file__).resolve().parent, Path(__file__).resolve().parents[2]
CUPY_PYTHON = ROOT / ".venv-cupy-14" / "bin" / "python"


@pytest.fixture(scope="session")
def promtool():
    path = require(shutil.which("promtool"), "promtool: apt-get install prometheus")
    return lambda *words, **options: subprocess.run(
        [path, *map(str, words)], capture_output=True, text=True, timeout=600, **options
    )


class Run:
    """A job under `dwsr-probe run --metrics`, until it is told to end."""

    def __init__(self, folder, command, env):
        self.log = folder / "log"
        with open(self.log, "wb") as log:
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "dwsr_probe",
                    "run",
                    "--metrics",
                    "0",
                    "--worker-model",
                    "-o",
                    folder / "run",
                    *command,
                ],
                stdin=subprocess.PIPE,
                stderr=log,
                stdout=log,
                env=env,
                cwd=folder,
                start_new_session=True,
            )
        found = wait_until(
            lambda: (
                re.search(r"metrics at http://(\S+)/metrics", self.log.read_text())
                or self._process.poll() is not None
            ),
            "the run's port",
        )
        assert found is not True, self.log.read_text()
        self.target = found[1]

    def metrics(self):
        return urllib.request.urlopen(f"http://{self.target}/metrics", timeout=600).read().decode()

    def end(self):
        """As it should, by itself; nothing of it stays if it does not."""
        self._process.stdin.close()
        try:
            assert self._process.wait(600) == 0, self.log.read_text()
        finally:
            try:
                os.killpg(self._process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass


def _environment(folder, **more):
    return dict(
        os.environ,
        DWSR_PROBE_BOARD_DIR=str(folder / "boards"),
        XDG_STATE_HOME=str(folder / "state"),
        PYTHONPATH=str(ROOT),
        **more,
    )


@pytest.fixture(scope="session")
def dask_run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("dask")
    os.mkfifo(folder / "wait")
    run = Run(
        folder,
        [sys.executable, HERE / "jobs" / "dask_job.py", folder / "wait"],
        _environment(folder),
    )
    yield run
    run.end()


@pytest.fixture(scope="session")
def cupy_run(tmp_path_factory):
    require(CUPY_PYTHON.exists(), "CuPy: make .venv-cupy-14/.installed")
    from tests import standin

    folder = tmp_path_factory.mktemp("cupy")
    env = standin.environment(python=str(CUPY_PYTHON), folder=folder, base=_environment(folder))
    run = Run(folder, [CUPY_PYTHON, HERE / "jobs" / "cupy_job.py"], env)
    yield run
    run.end()


@pytest.fixture(scope="session")
def predictor(tmp_path_factory, dask_run, cupy_run):
    """Its target."""
    folder = tmp_path_factory.mktemp("predict")
    log = folder / "log"
    with open(log, "wb") as stderr:
        process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "dwsr_probe",
                "predict",
                "serve",
                "--listen",
                "0",
                "--state",
                folder / "state",
                "--from",
                dask_run.target,
                "--from",
                cupy_run.target,
            ],
            stderr=stderr,
            env=_environment(folder),
        )
    try:
        yield wait_until(
            lambda: re.search(r"metrics at http://(\S+)/metrics", log.read_text()),
            "the predictor's port",
        )[1]
        process.terminate()
        assert process.wait(600) == 0, log.read_text()
    finally:
        process.kill()
        process.wait()


# Both jobs are where they stay, and have been seen twice there.
_STEADY = {
    'dwsr_slot_busy{task_name="hold"}': 2,
    'dwsr_tasks_total{outcome="killed"}': 1,
    'dwsr_forecast_overrun_ratio{task_name=~"hold|climb"}': 3,
    'rate(dwsr_tasks_total{task_name=~"smooth|semblance"}[30s]) > 0': 2,
}


class Prometheus:
    def __init__(self, folder, targets):
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        config = {
            "global": {
                "scrape_interval": "3s",
                "scrape_timeout": "3s",
                "evaluation_interval": "1s",
            },
            "rule_files": [str(DASHBOARDS / "rules.yml")],
            "scrape_configs": [{"job_name": "dwsr", "static_configs": [{"targets": targets}]}],
        }
        (folder / "prometheus.yml").write_text(json.dumps(config))  # JSON is YAML
        self._url, self._log = f"http://127.0.0.1:{port}", folder / "log"
        with open(self._log, "wb") as log:
            self._process = subprocess.Popen(
                [
                    shutil.which("prometheus"),
                    f"--config.file={folder}/prometheus.yml",
                    f"--storage.tsdb.path={folder}/data",
                    f"--web.listen-address=127.0.0.1:{port}",
                ],
                stdout=log,
                stderr=log,
            )

    def ask(self, path, **parameters):
        try:
            with urllib.request.urlopen(
                f"{self._url}/api/v1/{path}?{urllib.parse.urlencode(parameters)}", timeout=600
            ) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            if error.code == 503:  # it is still starting
                raise
            raise AssertionError(f"{parameters}: {error.read().decode()}") from None

    def query(self, expr):
        """[(labels, value)], those that are not a number left out."""
        return [
            (s["metric"], float(s["value"][1]))
            for s in self.ask("query", query=expr)["result"]
            if s["value"][1] != "NaN"
        ]

    def ready(self):
        assert self._process.poll() is None, self._log.read_text()
        try:
            return self.query("up == 1")
        except OSError:
            return []

    def end(self):
        self._process.terminate()
        self._process.wait(600)


@pytest.fixture(scope="session")
def prometheus(tmp_path_factory, dask_run, cupy_run, predictor):
    require(shutil.which("prometheus"), "prometheus: apt-get install prometheus")
    server = Prometheus(
        tmp_path_factory.mktemp("prometheus"), [dask_run.target, cupy_run.target, predictor]
    )
    try:
        wait_until(lambda: len(server.ready()) == 3, "the first scrapes")
        for expr, count in _STEADY.items():
            wait_until(lambda expr=expr, count=count: len(server.query(expr)) == count, expr)
        yield server
    finally:
        server.end()
