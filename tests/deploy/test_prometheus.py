"""prometheus.yml, compose.yml and Grafana's provisioning: checked by their own tools, and
prometheus.yml by a real Prometheus on real jobs."""

import json
import re
import shutil
import sys
import urllib.parse

import pytest

from dwsr_probe.export.client import Stream
from tests.conftest import wait_until
from tests.deploy.conftest import (
    BIN,
    DEPLOY,
    ROOT,
    answers,
    document,
    environment,
    free_port,
    free_ports,
    get,
    promtool,
    samples,
    started,
    tool,
)

JOB = """
import sys, time
import dask.array as da
from distributed import Client, LocalCluster

if __name__ == "__main__":
    with (
        LocalCluster(
            n_workers=1, threads_per_worker=2, dashboard_address=None, host="127.0.0.1"
        ) as cluster,
        Client(cluster) as client,
    ):
        while sys.stdin.read(1):
            (da.ones((500, 500), chunks=250) + 1).sum().compute()
"""


def folder_for(tmp_path, config):
    """deploy/ and dashboards/ beside each other, as the file expects."""
    deploy = tmp_path / "deploy"
    (deploy / "targets").mkdir(parents=True)
    (tmp_path / "dashboards").mkdir()
    shutil.copy(ROOT / "dashboards" / "rules.yml", tmp_path / "dashboards")
    (deploy / "prometheus.yml").write_text(config)
    return deploy


def test_promtool_accepts_it(tmp_path):
    deploy = folder_for(tmp_path, (DEPLOY / "prometheus.yml").read_text())
    (deploy / "targets" / "node.json").write_text(
        '[{"targets": ["node:9464"], "labels": {"dwsr_kind": "exporter"}}]'
    )
    done = promtool()("check", "config", deploy / "prometheus.yml")
    assert done.returncode == 0 and "WARNING" not in done.stdout + done.stderr, (
        done.stdout + done.stderr
    )
    assert re.search(r"SUCCESS: \d+ rules found", done.stdout), done.stdout


def test_compose_schema():
    done = tool("check-jsonschema", "pip install check-jsonschema")(
        "--builtin-schema", "vendor.compose-spec", DEPLOY / "compose.yml"
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_compose_knows_its_volumes():
    compose = document("compose.yml")
    named = {
        volume.partition(":")[0]
        for service in compose["services"].values()
        for volume in service["volumes"]
        if re.match(r"\w", volume)
    }
    assert named == set(compose["volumes"])


def test_grafana_provisioning():
    """Grafana has no schema for these: the fields that its documentation has, so that a misspelt
    one is found."""
    source = document("grafana/provisioning/datasources/prometheus.yml")
    assert set(source) == {"apiVersion", "datasources"} and source["apiVersion"] == 1
    assert set(source["datasources"][0]) <= {
        "name",
        "uid",
        "type",
        "access",
        "url",
        "isDefault",
        "editable",
        "jsonData",
        "orgId",
        "version",
    }
    provider = document("grafana/provisioning/dashboards/dwsr-probe.yml")
    assert set(provider) == {"apiVersion", "providers"} and provider["apiVersion"] == 1
    assert set(provider["providers"][0]) <= {
        "name",
        "orgId",
        "folder",
        "folderUid",
        "type",
        "disableDeletion",
        "updateIntervalSeconds",
        "allowUiUpdates",
        "options",
    }
    # each finds the data source: by a variable
    for path in sorted((ROOT / "dashboards").glob("*.json")):
        assert (
            '"uid": "${datasource}"' in path.read_text()
            and '"query": "prometheus"' in path.read_text()
        ), path.name


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory):
    """Our configuration with the ports of a real run and a real exporter, and shorter intervals;
    (ask, ports)."""
    promtool()
    folder = tmp_path_factory.mktemp("prometheus")
    ports = dict(zip(("run", "export", "predict", "prometheus"), free_ports(4), strict=True))
    config = (DEPLOY / "prometheus.yml").read_text()
    config = (
        config.replace(":9465", f":{ports['run']}")
        .replace(":9464", f":{ports['export']}")
        .replace(":9466", f":{ports['predict']}")
    )
    deploy = folder_for(folder, re.sub(r"(interval): \d+s", r"\1: 3s", config))
    (folder / "job.py").write_text(JOB)
    env = environment(DWSR_PROBE_BOARD_DIR=folder / "boards", XDG_STATE_HOME=folder / "state")
    job = [
        BIN / "dwsr-probe",
        "run",
        "--metrics",
        ports["run"],
        "-q",
        "-o",
        folder / "run",
        sys.executable,
        "job.py",
    ]
    export = [
        BIN / "dwsr-probe",
        "export",
        "--listen",
        ports["export"],
        "--board-dir",
        folder / "boards",
        "--file-sd",
        deploy / "targets" / "here.json",
        "--advertise",
        f"localhost:{ports['export']}",
    ]
    server = [
        shutil.which("prometheus"),
        f"--config.file={deploy}/prometheus.yml",
        f"--storage.tsdb.path={folder}/data",
        f"--web.listen-address=127.0.0.1:{ports['prometheus']}",
    ]

    predict = [
        BIN / "dwsr-probe",
        "predict",
        "serve",
        "--state",
        folder / "predict",
        *document("compose.yml")["services"]["predict"]["command"],
    ]
    predict = [
        str(word)
        .replace(":9466", f":{ports['predict']}")
        .replace(":9090", f":{ports['prometheus']}")
        for word in predict
    ]

    def ask(query):
        text = answers(
            f"http://127.0.0.1:{ports['prometheus']}/api/v1/query?"
            + urllib.parse.urlencode({"query": query})
        )
        return [] if text is None else json.loads(text)["data"]["result"]

    with (
        open("/dev/zero", "rb") as endless,
        started(job, folder, "job", code=None, env=env, stdin=endless),
        started(export, folder, "export", env=env),
        started(server, folder, "prometheus"),
        started(predict, folder, "predict", env=env),
    ):
        yield ask, ports
    assert not list((deploy / "targets").iterdir())  # the exporter took its file along


def test_every_job_is_up(prometheus):
    ask, ports = prometheus
    expected = {
        "dwsr-run": f"127.0.0.1:{ports['run']}",
        "dwsr-export": f"127.0.0.1:{ports['export']}",
        "dwsr-nodes": f"localhost:{ports['export']}",
        "dask-workers": None,
        "dwsr-predict": f"127.0.0.1:{ports['predict']}",
    }
    assert set(expected) == {
        job["job_name"] for job in document("prometheus.yml")["scrape_configs"]
    }

    def up():
        found = {sample["metric"]["job"]: sample["metric"]["instance"] for sample in ask("up == 1")}
        return found if set(found) == set(expected) else None

    found = wait_until(up, "all jobs of prometheus.yml")
    assert all(found[job] == instance for job, instance in expected.items() if instance)


def test_each_figure_comes_from_one_place(prometheus):
    ask, _ = prometheus
    wait_until(
        lambda: (
            {s["metric"]["job"] for s in ask("dwsr_tasks_total")}
            == {"dwsr-run", "dwsr-export", "dwsr-nodes"}
        ),
        "our series",
    )
    wait_until(
        lambda: {s["metric"]["job"] for s in ask("dask_worker_threads")} == {"dask-workers"},
        "Dask's series",
    )
    assert not ask('{__name__=~"dwsr_.*", job="dask-workers"}')
    assert not ask('{dwsr_kind!=""}')


def test_the_predictor_learns_each_task_once(prometheus):
    """Of three targets that Prometheus knows: the run, and the exporter by two names."""
    ask, ports = prometheus
    predictor = f"http://127.0.0.1:{ports['predict']}"

    def value(url, name):
        return sum(
            float(line.rpartition(" ")[2])
            for line in (answers(url + "/metrics") or "").splitlines()
            if line.startswith(name)
        )

    wait_until(lambda: value(predictor, 'dwsr_predictor_targets{state="up"}') == 3, "its targets")
    wait_until(
        lambda: value(predictor, "dwsr_predictor_records_learned_total") > 100, "what it learns"
    )
    learned = value(predictor, "dwsr_predictor_records_learned_total")
    told = [
        r
        for name in ("run", "export")
        for r in (
            Stream(f"http://127.0.0.1:{ports[name]}", timeout_s=600).poll(limit=100_000).records
        )
    ]
    # either port may be ahead of the other
    assert learned <= len({(r["process"], r["seq"]) for r in told})
    assert wait_until(
        lambda: ask('dwsr_forecast_mean_bytes{job="dwsr-predict", kind="alloc"}'), "forecasts"
    )
    assert "sum" in {
        model["task"].partition("-")[0]
        for model in json.loads(get(predictor + "/models"))["models"]
    }


def test_rules_are_evaluated(prometheus):
    ask, ports = prometheus
    wait_until(lambda: ask("pid:dwsr_process_used:ratio"), "the recording rules")
    groups = json.loads(get(f"http://127.0.0.1:{ports['prometheus']}/api/v1/rules"))["data"][
        "groups"
    ]
    assert groups and all(rule["health"] != "err" for group in groups for rule in group["rules"])


def test_healthcheck_of_compose(prometheus):
    _, ports = prometheus
    words = document("compose.yml")["services"]["prometheus"]["healthcheck"]["test"][2:]
    wget = tool("wget", "apt-get install wget")
    wait_until(lambda: answers(f"http://127.0.0.1:{ports['prometheus']}/-/healthy"), "Prometheus")
    done = wget(*(word.replace(":9090", f":{ports['prometheus']}") for word in words))
    assert done.returncode == 0, done.stderr
    assert (
        wget("--tries=1", *(word.replace(":9090", f":{free_port()}") for word in words)).returncode
        != 0
    )


def test_exporter_of_the_machine_has_the_job(prometheus):
    _, ports = prometheus
    assert wait_until(
        lambda: samples(f"http://127.0.0.1:{ports['export']}", "dwsr_probe_up"), "the exporter"
    )
