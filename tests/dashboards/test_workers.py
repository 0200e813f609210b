"""Prometheus scrapes Dask workers on their own ports, where Dask's metrics are, too, and an
exporter beside them."""

import re
import shutil
import subprocess
import sys
import urllib.request

import pytest

from tests.conftest import require, wait_until
from tests.dashboards.conftest import Prometheus

TASKS = 40


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    from distributed import Client, LocalCluster

    folder = tmp_path_factory.mktemp("boards")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DWSR_PROBE_BOARD_DIR", str(folder))
        with (
            LocalCluster(
                n_workers=2,
                threads_per_worker=1,
                dashboard_address=":0",
                worker_dashboard_address=":0",
                preload=["dwsr_probe.dask.preload"],
            ) as local,
            Client(local) as client,
        ):
            yield client, folder


def text_of(target):
    return urllib.request.urlopen(f"http://{target}/metrics", timeout=600).read().decode()


@pytest.fixture(scope="module")
def scraped(cluster, tmp_path_factory):
    """Prometheus; the workers' targets; the exporter's."""
    require(shutil.which("prometheus"), "prometheus: apt-get install prometheus")
    client, boards = cluster
    workers = [
        f"127.0.0.1:{port}"
        for port in client.run(lambda dask_worker: dask_worker.http_server.port).values()
    ]
    log = tmp_path_factory.mktemp("export") / "log"
    with open(log, "wb") as stderr:
        exporter = subprocess.Popen(
            [sys.executable, "-m", "dwsr_probe", "export", "--listen", "0", "--board-dir", boards],
            stderr=stderr,
        )
    own = wait_until(
        lambda: re.search(r"metrics at http://(\S+)/metrics", log.read_text()),
        "the exporter's port",
    )[1]
    server = Prometheus(tmp_path_factory.mktemp("prometheus"), [*workers, own])
    try:
        wait_until(lambda: len(server.ready()) == 3, "the first scrapes")
        client.gather(
            client.map(
                lambda n: bytes(1_000_000 + n),
                range(TASKS),
                key=[("work", n) for n in range(TASKS)],
            )
        )
        yield server, workers, own
    finally:
        server.end()
        exporter.terminate()
        assert exporter.wait(600) == 0, log.read_text()


def test_every_task_is_counted_once_on_either_way(scraped):
    server, workers, own = scraped
    for targets in (workers, [own]):
        query = (
            'sum(dwsr_tasks_total{task_name="work", outcome="ok",'
            f' instance=~"{"|".join(targets)}"}})'
        )
        wait_until(
            lambda query=query: [value for _, value in server.query(query)] == [TASKS], query
        )
        # a lambda is named by where it stands
        assert {
            re.sub(r"\d+", "N", labels["operation"])
            for labels, _ in server.query(query.replace("sum(", "sum by (operation) (", 1))
        } == {"lambda (test_workers.py:N)"}


def test_a_worker_has_dasks_metrics_and_ours(scraped, promtool):
    server, workers, _ = scraped
    text = text_of(workers[0])
    assert "\ndask_worker_" in text and "\ndwsr_probe_up{" in text
    ours = "".join(
        line + "\n"
        for line in text.splitlines()
        if line.split()[0 if line[0] != "#" else 2].startswith("dwsr_")
    )
    done = promtool("check", "metrics", input=ours)
    assert done.returncode == 0 and not done.stderr, done.stderr
    wait_until(
        lambda: (
            {labels["instance"] for labels, _ in server.query("dwsr_probe_up == 1")} >= set(workers)
        ),
        "both workers",
    )


def test_the_limit_is_dasks_and_the_worker_is_named(cluster, scraped):
    client, _ = cluster
    server, workers, _ = scraped
    known = client.scheduler_info(n_workers=-1)["workers"]
    of_workers = f'{{instance=~"{"|".join(workers)}"}}'
    wait_until(
        lambda: (
            {labels["worker"] for labels, _ in server.query(f"dwsr_process_info{of_workers}")}
            == set(known)
        ),
        "their names",
    )
    limits = {worker["memory_limit"] for worker in known.values()}
    wait_until(
        lambda: (
            {value for _, value in server.query(f"dwsr_process_limit_bytes{of_workers}")} == limits
        ),
        "their limits",
    )
