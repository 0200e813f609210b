"""tests/c/run.sh on a small tree of its own: what passes, fails and is skipped is counted as
such, and every C unit has a test."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

C = Path(__file__).resolve().parents[1] / "c"
TEST = """
#include "check.h"
static void passes(void) { CHECK(1); }
static void cannot_run(void) { SKIP("no moon: try later"); CHECK(0); }
static void another(void) { CHECK(%d); }
int main(void) { RUN(passes); RUN(cannot_run); skip_all = %s; RUN(another); return failures; }
"""


@pytest.fixture
def run(tmp_path):
    """run(test's source): its exit code, what it printed, and what it wrote for
    tests/results.py."""
    (tmp_path / "csrc").mkdir()
    (tmp_path / "tests/c").mkdir(parents=True)
    (tmp_path / "csrc/unit.c").write_text("int unit(void);\nint unit(void) { return 1; }\n")
    for name in ("run.sh", "check.h"):
        shutil.copy(C / name, tmp_path / "tests/c")

    def go(source, name="unit"):
        (tmp_path / f"tests/c/test_{name}.c").write_text(source)
        done = subprocess.run(
            ["sh", "tests/c/run.sh", "plain"],
            cwd=tmp_path,
            env=dict(os.environ, TEST_RESULTS=str(tmp_path / "results")),
            capture_output=True,
            text=True,
            timeout=600,
        )
        assert not done.stderr, done.stderr
        return (
            done.returncode,
            done.stdout.splitlines(),
            (tmp_path / "results").read_text().splitlines(),
        )

    return go


def test_a_test_that_did_not_run_is_skipped_not_passed(run):
    code, lines, results = run(TEST % (0, '"the whole file waits"'))
    assert code == 0 and lines[-1] == "1 passed, 0 failed, 2 skipped"
    assert (
        "skip cannot_run: no moon: try later" in lines
        and "skip another: the whole file waits" in lines
    )
    assert "skipped\t0\ttests/c/test_unit.c::cannot_run (plain)\tno moon: try later" in results
    assert [line.split("\t")[0] for line in results] == ["passed", "skipped", "skipped"]


def test_a_failure_is_counted_beside_them(run):
    code, lines, results = run(TEST % (0, "NULL"))
    assert code == 1 and lines[-1] == "1 passed, 1 failed, 1 skipped"
    assert sorted(line.split("\t")[0] for line in results) == ["failed", "passed", "skipped"]


def test_a_c_unit_without_a_test_is_a_failure(run):
    code, lines, results = run(TEST % (1, "NULL"), name="other")
    assert code == 1 and lines[-1] == "2 passed, 1 failed, 1 skipped"
    assert "FAIL csrc/unit.c has no test: write tests/c/test_unit.c" in lines
    assert "failed\t0\tcsrc/unit.c\tthere is no tests/c/test_unit.c" in results
