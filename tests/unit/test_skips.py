"""Which skipped tests are failures in CI: those that lack a tool, not those that lack a right."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TESTS = """
import pytest
from tests.conftest import permitted, require
def test_passes(): assert require("found", "a tool") == "found"
def test_tool(): require(None, "nosuchtool: apt-get install nosuchtool")
def test_right(): permitted(False, "mount a filesystem")
def test_import(): pytest.importorskip("no_such_module")
@pytest.mark.skipif(True, reason="needs another: pip install another")
def test_marked(): ...
@pytest.mark.xfail
def test_known(): assert False
"""
FAILED = {
    "test_module.py",
    *(f"test_some.py::{name}" for name in ("test_tool", "test_import", "test_marked")),
}


@pytest.mark.parametrize("ci, failed", [("true", FAILED), ("", set())], ids=["in CI", "elsewhere"])
def test_a_missing_tool_fails_in_ci(tmp_path, ci, failed):
    (tmp_path / "test_some.py").write_text(TESTS)
    (tmp_path / "test_module.py").write_text(
        "import pytest\npytest.importorskip('no_such_module')\ndef test_x(): ..."
    )
    env = dict(os.environ, CI=ci, PYTHONPATH=str(ROOT))
    words = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "tests.conftest",
        "-p",
        "no:cacheprovider",
        "-q",
        "-ra",
        "--rootdir",
        tmp_path,
        "--continue-on-collection-errors",
        "--color=no",
        ".",
    ]
    done = subprocess.run(words, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=600)
    lines = [line.split() for line in done.stdout.partition("short test summary")[2].splitlines()]
    assert {words[1] for words in lines if words and words[0] in ("ERROR", "FAILED")} == failed, (
        done.stdout
    )
    assert "this machine does not let the test mount a filesystem" in done.stdout
    assert ("nosuchtool: apt-get install nosuchtool" in done.stdout) and done.returncode == bool(
        failed
    )
