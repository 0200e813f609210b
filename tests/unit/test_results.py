"""The list at the end of `make test`: real targets that pass, fail, die and do not run, through
the Makefile's own rules."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import require

ROOT = Path(__file__).resolve().parents[2]
TESTS = """
import os
import pytest
def test_passes(): ...
def test_fails(): assert 1 == 2, "one is not two"
def test_skipped(): pytest.skip("needs a moon")
@pytest.fixture
def broken():
    yield
    raise OSError("its teardown failed")
def test_teardown(broken): ...
@pytest.mark.xfail
def test_known(): assert False
"""
PYTEST = (
    f"{sys.executable} -m pytest -q -p tests.conftest -p no:cacheprovider -c {os.devnull}"
    " --rootdir ."
)


@pytest.fixture
def make(tmp_path):
    """make(**{target: its command}): the rule `results` of the Makefile over these targets; its
    exit code and the lines it printed."""

    def run(**commands):
        rules = "".join(f"{name}:\n\t{command}\n" for name, command in commands.items())
        (tmp_path / "Makefile").write_text(f"include {ROOT}/Makefile\n{rules}")
        env = {
            name: value
            for name, value in os.environ.items()
            if name not in ("MAKEFLAGS", "MFLAGS", "MAKELEVEL", "TEST_RESULTS", "CI")
        }
        words = [
            "make",
            "results",
            f"TARGETS={' '.join(commands)}",
            f"RESULTS={tmp_path}/results",
            f"PYTHON={sys.executable}",
        ]
        done = subprocess.run(
            words,
            cwd=tmp_path,
            env=dict(env, PYTHONPATH=str(ROOT)),
            capture_output=True,
            text=True,
            timeout=600,
        )
        return done.returncode, done.stdout.splitlines()

    require(
        subprocess.run(["make", "--version"], capture_output=True).returncode == 0,
        "make: apt-get install make",
    )
    return run


def test_all_targets_run_and_what_failed_is_named(make, tmp_path):
    (tmp_path / "test_some.py").write_text(TESTS)
    (tmp_path / "test_dies.py").write_text(
        "import os\ndef test_first(): ...\ndef test_dies(): os._exit(3)\ndef test_last(): ..."
    )
    (tmp_path / "test_broken.py").write_text("import no_such_module")
    code, lines = make(
        lints="false",
        some=f"{PYTEST} test_some.py",
        dies=f"{PYTEST} test_dies.py",
        broken=f"{PYTEST} test_broken.py",
        good="true",
    )
    assert code == 2 and lines[-1] == "3 passed, 5 failed, 1 skipped"
    failed = lines[lines.index("== failed") + 1 : -2]
    assert [line.partition(": ")[0] for line in failed] == [
        "lints the target",
        "some test_some.py::test_fails",
        "some test_some.py::test_teardown",
        "dies test_dies.py::test_dies",
        "broken test_broken.py",
    ]
    assert (
        failed[0].endswith(": ended with code 2")
        and "one is not two" in failed[1]
        and "its teardown failed" in failed[2]
    )
    assert failed[3].endswith(": the target ended in this test") and "no_such_module" in failed[4]
    assert "some test_some.py::test_skipped: needs a moon" in lines
    assert any(re.fullmatch(r" *\d+ good: 0 passed, 0 failed, 0 skipped", line) for line in lines)


def test_nothing_failed(make, tmp_path):
    (tmp_path / "test_good.py").write_text("def test_one(): ...\ndef test_two(): ...")
    code, lines = make(good=f"{PYTEST} test_good.py")
    assert code == 0 and lines[-1] == "2 passed, 0 failed, 0 skipped" and "== failed" not in lines


def test_a_target_without_a_result_has_failed(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "tests.results", tmp_path, "test-unit"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert (
        done.returncode == 1
        and "test-unit the target: did not run" in done.stdout
        and done.stdout.endswith("\n0 passed, 1 failed, 0 skipped\n")
    )


def test_make_test_has_every_target():
    text = (ROOT / "Makefile").read_text()
    listed = set(re.search(r"^TARGETS := (.*)$", text, re.MULTILINE)[1].split())
    known = set(re.search(r"^\.PHONY: (.*)$", text, re.MULTILINE)[1].split())
    groups = {"test-c", "test-py", "test-gpu"}  # parts or sums of others
    assert listed == {name for name in known if name.startswith("test-")} - groups | {
        "test-cupy-13",
        "test-cupy-14",
        "sanitize",
        "lint",
    }
    folders = {path.name for path in (ROOT / "tests").iterdir() if list(path.glob("test_*"))}
    assert folders <= {name.removeprefix("test-") for name in listed} | {"c", "gpu", "standin"}
