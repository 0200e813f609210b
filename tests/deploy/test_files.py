"""What the files of deploy/ say to each other and to the command line: options, ports, paths,
versions."""

import json
import re
import shlex
import subprocess

import pytest
import yaml

from dwsr_probe.cli import export, predict, run
from tests.deploy.conftest import CONTAINER_ROOT, DEPLOY, ROOT, document

COMMANDS = {"run": run.command, "export": export.command, "predict serve": predict.serve}
FILES = sorted(
    DEPLOY / path
    for path in subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "."],
        cwd=DEPLOY,
        capture_output=True,
        text=True,
    ).stdout.split()
) or sorted(p for p in DEPLOY.rglob("*") if p.is_file() and "__pycache__" not in p.parts)
TEXTS = {str(path.relative_to(DEPLOY)): path.read_text() for path in FILES}
EXPORT_PORT = int(
    next(p for p in export.command.params if p.name == "listen").default.rpartition(":")[2]
)


def options_of(command):
    return {
        text
        for parameter in command.params
        for text in (*parameter.opts, *parameter.secondary_opts)
    }


def told(text):
    """(command, option) of each dwsr-probe that a file calls, in a line of shell or in a list of
    words."""
    joined = text.replace("\\\n", " ")
    for found in re.finditer(r"dwsr-probe (run|export|predict serve)\b([^`\n]*)", joined):
        words = re.split(r' python\b| "\$@"|[&|]', found[2])[0]
        yield from ((found[1], option) for option in re.findall(r"(?<![\w-])--[a-z][a-z-]*", words))
    # compose.yml, Dockerfile
    for found in re.finditer(r'command: \[(--listen.*)\]|"predict", "serve", (.*)\]', joined):
        yield from (
            ("predict serve", option)
            for option in re.findall(r"--[a-z][a-z-]*", found[1] or found[2])
        )
    for found in re.finditer(r'\["?(run|export)"?,([^\]]*)\]', joined):
        yield from ((found[1], option) for option in re.findall(r"--[a-z][a-z-]*", found[2]))
    # slurm/job.sh
    for found in re.finditer(r"^ *(?:\[.*\] \|\| )?options\+?=\((.*)\)", joined, re.MULTILINE):
        yield from (("run", option) for option in re.findall(r"(?<![\w-])--[a-z][a-z-]*", found[1]))
    for found in re.finditer(r'OPTIONS=([^"]*|"[^"]*")', joined):  # systemd
        yield from (("export", option) for option in re.findall(r"--[a-z][a-z-]*", found[1]))


def test_options_exist():
    seen = {}
    for name, text in TEXTS.items():
        for command, option in told(text):
            seen.setdefault(name, set()).add(option)
            assert option in options_of(COMMANDS[command]), (
                f"{name}: dwsr-probe {command} has no {option}"
            )
    assert {
        "Dockerfile",
        "compose.yml",
        "prometheus.yml",
        "k8s/cluster-sidecar.yml",
        "slurm/job.sh",
        "slurm/dask.sh",
        "slurm/jobqueue.py",
        "systemd/dwsr-probe-export.service",
        "README.md",
    } <= set(seen)
    assert {"--metrics", "--linger", "--token-file", "--output", "--allow-host"} <= seen[
        "slurm/job.sh"
    ]
    assert {"--listen", "--file-sd", "--advertise", "--token-file", "--board-dir"} <= seen[
        "slurm/dask.sh"
    ]


@pytest.mark.parametrize(
    "name",
    [
        n
        for n in TEXTS
        if n.endswith(("cluster.yml", "cluster-sidecar.yml", "dask.sh", "Dockerfile"))
    ],
)
def test_dask_options_exist(name):
    from distributed.cli import dask_scheduler, dask_worker

    text = TEXTS[name].replace("\\\n", " ")
    if name.endswith(".yml"):
        cluster = document(name)["spec"]
        calls = [
            container["args"]
            for part in ("scheduler", "worker")
            for container in cluster[part]["spec"]["containers"]
            if container["args"][0] == "dask"
        ]
    elif name == "Dockerfile":
        calls = [json.loads(found) for found in re.findall(r'CMD (\["dask".*\])', text)]
    else:
        calls = [
            shlex.split("dask " + found.rstrip(" &"))
            for found in re.findall(
                r"(?:^| )dask ((?:worker|scheduler) -.*|(?:worker|scheduler) \"\$.*)",
                text,
                re.MULTILINE,
            )
        ]
    assert calls
    for words in calls:
        known = options_of({"worker": dask_worker.main, "scheduler": dask_scheduler.main}[words[1]])
        assert {word for word in words if word.startswith("--")} <= known, words
    workers = [words for words in calls if words[1] == "worker"]
    assert workers and all(
        words[words.index("--preload") + 1] == "dwsr_probe.dask.preload" for words in workers
    )


def test_exporter_is_where_others_look_for_it():
    prometheus, compose = document("prometheus.yml"), document("compose.yml")
    urls = {
        sd["url"] for job in prometheus["scrape_configs"] for sd in job.get("http_sd_configs", ())
    }
    assert urls == {f"http://127.0.0.1:{EXPORT_PORT}/sd"}
    assert compose["services"]["export"]["command"][-1] == f"127.0.0.1:{EXPORT_PORT}"
    docker = TEXTS["Dockerfile"]
    assert re.findall(r"EXPOSE (\d+)", docker) == [str(EXPORT_PORT)]
    assert set(re.findall(r"\d\.0\.\d:(\d+)", docker)) == {str(EXPORT_PORT)}
    sidecar = next(
        c
        for c in document("k8s/cluster-sidecar.yml")["spec"]["worker"]["spec"]["containers"]
        if c["name"] == "export"
    )
    assert (
        sidecar["ports"][0]["containerPort"] == EXPORT_PORT
        and f"0.0.0.0:{EXPORT_PORT}" in sidecar["args"]
    )
    assert set(
        re.findall(r"--listen [\d.]+:(\d+)", TEXTS["systemd/dwsr-probe-export.service"])
    ) == {str(EXPORT_PORT)}


def test_run_is_where_prometheus_looks_for_it():
    job = next(
        job for job in document("prometheus.yml")["scrape_configs"] if job["job_name"] == "dwsr-run"
    )
    port = job["static_configs"][0]["targets"][0].rpartition(":")[2]
    assert (
        f"--metrics {port} " in TEXTS["prometheus.yml"]
        and f"--metrics {port} " in TEXTS["README.md"]
    )


def test_the_predictor_is_where_prometheus_looks_for_it_and_knows_its_jobs():
    jobs = {job["job_name"]: job for job in document("prometheus.yml")["scrape_configs"]}
    port = next(p for p in predict.serve.params if p.name == "listen").default.rpartition(":")[2]
    assert jobs["dwsr-predict"]["static_configs"][0]["targets"] == [f"127.0.0.1:{port}"]
    command = document("compose.yml")["services"]["predict"]["command"]
    assert (
        command[:2] == ["--listen", f"127.0.0.1:{port}"]
        and f"--web.listen-address={command[3].removeprefix('http://')}"
        in document("compose.yml")["services"]["prometheus"]["command"]
    )
    asked = {
        word
        for text in (*TEXTS.values(), " ".join(command))
        for word in re.findall(r"--job ([a-z-]+)", text)
    }
    assert asked and asked <= jobs.keys() and "dwsr-predict" not in asked
    assert (
        document("compose.yml")["services"]["predict"]["volumes"] == ["predict:/state"]
        and '"--state", "/state"' in TEXTS["Dockerfile"]
    )


def test_slurm_files_agree():
    ports = {
        name: set(re.findall(r"9\d\d\d \+ SLURM_JOB_ID % \d+", TEXTS[f"slurm/{name}"]))
        for name in ("job.sh", "dask.sh", "jobqueue.py")
    }
    assert len(set.union(*ports.values())) == 1 and all(ports.values())


def test_grafana_asks_our_prometheus():
    compose = document("compose.yml")["services"]
    source = document("grafana/provisioning/datasources/prometheus.yml")["datasources"][0]
    listen = next(
        word for word in compose["prometheus"]["command"] if "listen-address" in word
    ).partition("=")[2]
    assert (
        source["url"] == f"http://{listen}"
        and compose["prometheus"]["healthcheck"]["test"][-1] == f"http://{listen}/-/healthy"
    )
    assert (
        source["jsonData"]["timeInterval"]
        == document("prometheus.yml")["global"]["scrape_interval"]
    )
    settings = compose["grafana"]["environment"]
    assert (
        compose["grafana"]["healthcheck"]["test"][-1]
        == f"http://{settings['GF_SERVER_HTTP_ADDR']}:{settings['GF_SERVER_HTTP_PORT']}/api/health"
    )


def mounts(service):
    """Path in the container → path in the checkout, of the mounts from there."""
    found = {}
    for volume in service["volumes"]:
        source, target = re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", volume).split(":")[:2]
        if source.startswith("."):
            found[target] = (DEPLOY / source).resolve()
    return found


def test_dashboards_and_rules_are_mounted_where_they_are_looked_for():
    compose = document("compose.yml")["services"]
    grafana, prometheus = mounts(compose["grafana"]), mounts(compose["prometheus"])
    path = document("grafana/provisioning/dashboards/dwsr-probe.yml")["providers"][0]["options"][
        "path"
    ]
    assert grafana[path] == ROOT / "dashboards"
    assert {"overview.json", "task.json", "worker.json", "gpu.json", "probe.json"} == {
        p.name for p in grafana[path].glob("*.json")
    }
    home = compose["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    assert home.startswith(path + "/") and (grafana[path] / home[len(path) + 1 :]).exists()
    assert grafana["/etc/grafana/provisioning"] == DEPLOY / "grafana" / "provisioning"
    # The same relative paths in the container as in the checkout.
    assert {
        target: str(CONTAINER_ROOT / source.relative_to(ROOT))
        for target, source in prometheus.items()
    } == {target: target for target in prometheus}
    config = next(
        word for word in compose["prometheus"]["command"] if "config.file" in word
    ).partition("=")[2]
    assert prometheus[config] == DEPLOY / "prometheus.yml"
    for rules in document("prometheus.yml")["rule_files"]:
        assert (DEPLOY / rules).resolve().is_file() and any(
            (DEPLOY / rules).resolve().is_relative_to(source) for source in prometheus.values()
        )


def test_only_loopback_is_opened_by_compose():
    services = document("compose.yml")["services"]
    assert all(
        service["network_mode"] == "host" and "ports" not in service
        for service in services.values()
    )
    assert "--web.listen-address=127.0.0.1:9090" in services["prometheus"]["command"]
    assert services["grafana"]["environment"]["GF_SERVER_HTTP_ADDR"] == "127.0.0.1"
    assert all(
        "no-new-privileges:true" in s["security_opt"] and s["cap_drop"] == ["ALL"]
        for s in services.values()
    )
    assert all("healthcheck" in services[name] for name in ("prometheus", "grafana"))


def images():
    for name, text in TEXTS.items():
        for image in re.findall(r"^\s*(?:- )?image: *([^\s{&]\S*)", text, re.MULTILINE):
            yield name, image
    yield (
        "helm/values.yml",
        "{repository}:{tag}".format(**document("helm/values.yml")["worker"]["image"]),
    )
    python = re.search(r"ARG PYTHON=(\S+)", TEXTS["Dockerfile"])[1]
    for image in re.findall(r"^FROM (\S+)", TEXTS["Dockerfile"], re.MULTILINE):
        if image != "base":
            yield "Dockerfile", image.replace("${PYTHON}", python)


def test_images_are_pinned():
    found = list(images())
    assert {name for name, _ in found} == {
        "compose.yml",
        "Dockerfile",
        "helm/values.yml",
        "k8s/cluster.yml",
        "k8s/cluster-sidecar.yml",
    }
    for name, image in found:
        assert re.fullmatch(r"[\w./-]+:v?\d+\.\d+\.\d+[\w.-]*", image), (
            f"{name}: {image} is not pinned to one release"
        )


def test_our_images_have_the_projects_version():
    version = re.search(r'^version = "(.*)"', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)[
        1
    ]
    ours = {image.rpartition(":")[2] for _, image in images() if "dwsr-probe" in image} | set(
        re.findall(r"-t dwsr-probe-\w+:(\S+)", TEXTS["Dockerfile"])
    )
    assert ours == {version}


@pytest.mark.parametrize("name", TEXTS)
def test_nothing_of_a_developers_machine(name):
    assert not re.search(
        r"/tmp/(?!dwsr)[\w-]+/|/work/|/home/\w|/root/\w|192\.168\.|\b10\.\d+\.\d+\.\d+", TEXTS[name]
    )


@pytest.mark.parametrize("name", [n for n in TEXTS if n.endswith(".yml")])
def test_yaml_has_no_key_twice(name):
    class Loader(yaml.SafeLoader):
        def construct_mapping(self, node, deep=False):
            keys = [key.value for key, _ in node.value if key.tag != "tag:yaml.org,2002:merge"]
            assert len(keys) == len(set(keys)), keys
            return super().construct_mapping(node, deep)

    yaml.load(TEXTS[name], Loader)


def test_readme_lists_every_file():
    told_of = set(re.findall(r"\]\(([^)#]+)\)", TEXTS["README.md"]))
    for name in TEXTS:
        folder = name.partition("/")[0]
        assert (
            name in told_of
            or f"{folder}/" in told_of
            or name in ("README.md", "system-packages", "targets/.gitignore")
        ), name
    assert all((DEPLOY / name).exists() for name in told_of)


@pytest.mark.parametrize("name", [n for n, text in TEXTS.items() if text.startswith("#!/")])
def test_scripts_are_executable(name):
    assert (DEPLOY / name).stat().st_mode & 0o111
