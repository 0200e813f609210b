"""k8s/ and helm/: against the operator's own resource definitions, made strict, and its own
code; the workers and sidecars they describe run, without containers."""

import copy
import re
import subprocess
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml

from tests.conftest import permitted, require, wait_until
from tests.deploy.conftest import (
    BIN,
    DEPLOY,
    ROOT,
    document,
    environment,
    free_ports,
    promtool,
    samples,
    scheduler,
    started,
)

CLUSTERS = {
    "k8s/cluster.yml": "k8s/podmonitor.yml",
    "k8s/cluster-sidecar.yml": "k8s/podmonitor-sidecar.yml",
}
TEXT, LABELS = {"type": "string"}, {"type": "object", "additionalProperties": {"type": "string"}}


def closed(**properties):
    return {"type": "object", "properties": properties, "additionalProperties": False}


RELABEL = closed(
    sourceLabels={"type": "array", "items": TEXT}, regex=TEXT, action={"enum": ["drop", "keep"]}
)
# The fields of prometheus-operator's v1 that we use, as its definitions have them: a misspelt one
# would be dropped silently.
MONITOR = closed(
    apiVersion={"const": "monitoring.coreos.com/v1"},
    kind={"const": "PodMonitor"},
    metadata=closed(name=TEXT, labels=LABELS),
    spec=closed(
        selector=closed(matchLabels=LABELS),
        podTargetLabels={"type": "array", "items": TEXT},
        podMetricsEndpoints={
            "type": "array",
            "minItems": 1,
            "items": closed(
                port=TEXT,
                path={"const": "/metrics"},
                interval={"type": "string", "pattern": r"^\d+s$"},
                metricRelabelings={"type": "array", "items": RELABEL},
            ),
        },
    ),
)
ANY = {"type": ["string", "integer"]}
RULE = closed(
    apiVersion={"const": "monitoring.coreos.com/v1"},
    kind={"const": "PrometheusRule"},
    metadata=closed(name=TEXT, labels=LABELS),
    spec=closed(
        groups={
            "type": "array",
            "minItems": 1,
            "items": closed(
                name=TEXT,
                interval=TEXT,
                rules={
                    "type": "array",
                    "items": {
                        **closed(
                            record=TEXT,
                            alert=TEXT,
                            expr=ANY,
                            labels=LABELS,
                            annotations=LABELS,
                            **{"for": TEXT, "keep_firing_for": TEXT},
                        ),
                        "required": ["expr"],
                    },
                },
            ),
        }
    ),
)
# Of the chart's values.yaml, where an unknown key is ignored, too.
CHART = {
    "scheduler": {"image": {"repository", "tag"}},
    "jupyter": {"enabled"},
    "worker": {
        "image": {"repository", "tag", "dask_worker"},
        "replicas": None,
        "resources": {"limits", "requests"},
        "extraArgs": None,
        "env": None,
        "portDashboard": None,
        "mounts": {"volumes", "volumeMounts"},
        "metrics": {"enabled", "podMonitor"},
    },
}


def check(what, schema):
    jsonschema = pytest.importorskip("jsonschema")
    errors = [
        f"{error.json_path}: {error.message}"
        for error in jsonschema.Draft7Validator(schema).iter_errors(what)
    ]
    assert not errors, "\n".join(errors)


def strict(schema):
    """No field that the definition does not have, where it names its fields."""
    if isinstance(schema, list):
        return [strict(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    found = {key: strict(value) for key, value in schema.items()}
    if (
        isinstance(schema.get("properties"), dict)
        and "additionalProperties" not in schema
        and not schema.get("x-kubernetes-preserve-unknown-fields")
    ):
        found["additionalProperties"] = False
    return found


def definition():
    spec = require(find_spec("dask_kubernetes"), "dask-kubernetes: pip install dask-kubernetes")
    path = (
        Path(spec.submodule_search_locations[0])
        / "operator/deployment/helm/dask-kubernetes-operator/crds/daskcluster.yaml"
    )
    found = yaml.safe_load(path.read_text())["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    found = strict(found)
    found["properties"].update(apiVersion=TEXT, kind=TEXT, metadata={"type": "object"})
    return found


@pytest.mark.parametrize("name", CLUSTERS)
def test_cluster_schema(name):
    schema, cluster = definition(), document(name)
    check(cluster, schema)
    wrong = copy.deepcopy(cluster)
    wrong["spec"]["worker"]["spec"]["containers"][0]["volumeMount"] = []
    with pytest.raises(AssertionError, match="volumeMount"):
        check(wrong, schema)


@pytest.mark.parametrize("name", CLUSTERS)
def test_monitor_finds_the_pods_that_the_operator_makes(name):
    require(find_spec("dask_kubernetes"), "dask-kubernetes: pip install dask-kubernetes")
    from dask_kubernetes.operator.controller.controller import build_worker_deployment_spec

    cluster, monitor = document(name), document(CLUSTERS[name])
    check(monitor, MONITOR)
    group = cluster["metadata"]["name"]
    pod = build_worker_deployment_spec(
        f"{group}-default", "default", group, "1", cluster["spec"]["worker"]["spec"], {}, {}
    )["spec"]["template"]
    assert monitor["spec"]["selector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
    assert set(monitor["spec"]["podTargetLabels"]) <= set(pod["metadata"]["labels"])
    ports = {
        port["name"]: port["containerPort"]
        for container in pod["spec"]["containers"]
        for port in container["ports"]
    }
    assert {endpoint["port"] for endpoint in monitor["spec"]["podMetricsEndpoints"]} == set(ports)
    words = pod["spec"]["containers"][0]["args"]
    assert words[words.index("--dashboard-address") + 1] == f":{ports['http-dashboard']}"


@pytest.mark.parametrize("name", CLUSTERS)
def test_boards_are_in_a_memory_volume_of_one_user(name):
    pod = document(name)["spec"]["worker"]["spec"]
    (boards,) = pod["volumes"]
    assert boards["emptyDir"]["medium"] == "Memory" and boards["emptyDir"]["sizeLimit"]
    assert "fsGroup" not in pod["securityContext"] and pod["securityContext"]["runAsUser"] == 1000
    for container in pod["containers"]:
        (mount,) = container["volumeMounts"]
        assert mount["name"] == boards["name"] and "runAsUser" not in container["securityContext"]
        directory = {e["name"]: e["value"] for e in container.get("env", ())}.get(
            "DWSR_PROBE_BOARD_DIR"
        ) or container["args"][-1]
        assert directory == mount["mountPath"] + "/dwsr-probe"
    assert len(pod["containers"]) == 1 or pod["shareProcessNamespace"]


def test_sidecars_cluster_is_the_plain_one_with_a_sidecar():
    plain, sidecar = (
        document("k8s/cluster.yml")["spec"],
        document("k8s/cluster-sidecar.yml")["spec"],
    )
    assert plain["worker"]["spec"]["containers"] == sidecar["worker"]["spec"]["containers"][:1]
    assert plain["scheduler"]["spec"] == sidecar["scheduler"]["spec"]


def test_rules_for_the_operator(tmp_path):
    done = subprocess.run(
        [DEPLOY / "k8s" / "prometheusrule"],
        capture_output=True,
        text=True,
        timeout=600,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    rule = yaml.safe_load(done.stdout)
    check(rule, RULE)
    assert rule["spec"] == yaml.safe_load((ROOT / "dashboards" / "rules.yml").read_text())
    (tmp_path / "rules.yml").write_text(yaml.safe_dump(rule["spec"]))
    assert promtool()("check", "rules", tmp_path / "rules.yml").returncode == 0


def test_helm_values():
    values = document("helm/values.yml")

    def known(found, keys, where):
        for key, value in found.items():
            assert key in keys, f"{where}{key} is not in the chart"
            if isinstance(keys, dict) and keys[key]:
                known(value, keys[key], f"{where}{key}.")

    known(values, CHART, "")
    worker = values["worker"]
    pod = {
        "containers": [
            {
                "name": "worker",
                "env": worker["env"],
                "volumeMounts": worker["mounts"]["volumeMounts"],
            }
        ],
        "volumes": worker["mounts"]["volumes"],
    }
    check(
        {
            "spec": {
                "worker": {"replicas": worker["replicas"], "spec": pod},
                "scheduler": document("k8s/cluster.yml")["spec"]["scheduler"],
            }
        },
        definition(),
    )
    assert worker["extraArgs"] == ["--preload", "dwsr_probe.dask.preload"]
    assert worker["env"][0] == {
        "name": "DWSR_PROBE_BOARD_DIR",
        "value": worker["mounts"]["volumeMounts"][0]["mountPath"] + "/dwsr-probe",
    }


@pytest.mark.parametrize("namespace", ["shared", "apart"])
def test_worker_and_sidecar_run(tmp_path, namespace):
    """The two containers' commands, with a shared process namespace and, where we may, with one
    each: only the heartbeat tells then."""
    apart = (
        ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
        if namespace == "apart"
        else []
    )
    if apart:
        permitted(
            subprocess.run([*apart, "true"], capture_output=True).returncode == 0,
            "make a pid namespace",
        )
    worker, export = copy.deepcopy(
        document("k8s/cluster-sidecar.yml")["spec"]["worker"]["spec"]["containers"]
    )
    (port, dashboard), boards = free_ports(2), tmp_path / "boards"
    boards.mkdir()
    given = {
        "/boards/": f"{boards}/",
        "$(DASK_WORKER_NAME)": "w1",
        "0.0.0.0:9464": f"127.0.0.1:{port}",
        ":8788": f"127.0.0.1:{dashboard}",
    }
    pattern = re.compile("|".join(map(re.escape, given)))

    def here(text):
        return pattern.sub(lambda found: given[found[0]], text)

    with scheduler(tmp_path) as address:
        env = environment(
            DASK_SCHEDULER_ADDRESS=address, **{e["name"]: here(e["value"]) for e in worker["env"]}
        )
        with (
            started([BIN / "dwsr-probe", *map(here, export["args"])], tmp_path, "export"),
            started(
                [*apart, BIN / worker["args"][0], *map(here, worker["args"][1:])],
                tmp_path,
                "worker",
                code=None,
                env=env,
            ),
        ):
            url = f"http://127.0.0.1:{port}"
            wait_until(lambda: samples(url, "dwsr_probe_up"), "the sidecar to see the worker")
            from distributed import Client

            with Client(address) as client:
                client.wait_for_workers(1)
                assert client.submit(sum, [1, 2]).result() == 3
            counted = wait_until(
                lambda: samples(url, "dwsr_tasks_total"), "the sidecar to count its task"
            )
            assert counted == ['dwsr_tasks_total{operation="sum",outcome="ok",task_name="sum"} 1.0']
            own = wait_until(
                lambda: samples(f"http://127.0.0.1:{dashboard}", "dwsr_tasks_total"),
                "the worker's own port",
            )
            assert own == counted
