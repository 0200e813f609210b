"""`report --compare` on real runs: the same job twice is the same, a job that needs more is
found, and the exit code says so."""

import json
import sys

import pytest

PY = sys.executable
JOB = """
import sys
import numpy as np
import dwsr_probe

factor, seed, step = (
    float(sys.argv[1]),
    int(sys.argv[2]),
    int(sys.argv[3]) if len(sys.argv) > 3 else 1,
)
rng = np.random.default_rng(seed)
for i in range(12):
    n = (40 + 4 * (i % 4)) * step
    volume = np.ones((n, n, n))
    with dwsr_probe.task("smooth", inputs=[volume]):  # data-dependent: 5 % more or less
        work = np.ones(int(volume.size * rng.uniform(1.9, 2.1)))
        del work
    with dwsr_probe.task("envelope", inputs=[volume]):
        work = np.ones(int(3 * volume.size * factor))
        del work
    with dwsr_probe.task("fixed"):
        work = np.ones(100_000)
        del work
with dwsr_probe.task("once"):
    work = np.ones(int(100_000 * factor))
"""


def job(cli, name, *words, options=()):
    done = cli("run", "-q", "-o", name, *options, PY, cli.script(JOB), *words)
    assert done.returncode == 0, done.stderr
    return name


def compared(cli, a, b, *options, code=0):
    done = cli("report", "--compare", a, b, "--format", "json", *options)
    assert done.returncode == code, done.stderr
    found = json.loads(done.stdout)
    return found, {name["task_name"]: name["verdict"] for name in found["names"]}


def test_the_same_job_twice_is_the_same_and_more_is_found(cli):
    runs = [job(cli, f"run{seed}", 1, seed) for seed in range(5)]
    for a, b in zip(runs, runs[1:] + runs[:1], strict=True):
        _, verdicts = compared(cli, a, b, "--fail-above", "1%")
        assert set(verdicts.values()) <= {"no difference", "within noise"}, verdicts
    more = job(cli, "more", 1.2, 9)
    found, verdicts = compared(cli, runs[0], more, "--fail-above", "10%", code=1)
    assert (
        verdicts["envelope"] == "grew"
        and verdicts["once"] == "cannot tell"
        and verdicts["fixed"] == "no difference"
        and verdicts["smooth"] in ("no difference", "within noise")
    )
    assert found["failures"] == [
        {
            "task_name": "envelope",
            "task_names": ["envelope"],
            "operation": None,
            "chain": None,
            "label": "envelope",
            "why": "own peak grew by 20.0 % (same inputs)",
        }
    ]
    compared(cli, runs[0], more, "--fail-above", "25%")  # beyond noise, but not so much
    assert compared(cli, more, runs[0], "--fail-above", "10")[1]["envelope"] == "shrank"
    # what a log of CI shows
    page = cli("report", "--compare", runs[0], more, "--fail-above", "10%", "--format", "html")
    assert page.returncode == 1 and "1 above 10 %: envelope: " in page.stderr
    text = cli("report", "--compare", runs[0], more, "--fail-above", "10%")
    assert (
        text.returncode == 1
        and "FAILED: envelope: own peak grew by 20.0 %" in text.stdout
        and "one each" in text.stdout
        and text.stderr == ""
    )
    page = cli("report", "--compare", runs[0], more, "--format", "html")
    assert (
        page.returncode == 0
        and page.stdout == "more/compare.html\n"
        and "envelope" in (cli.cwd / "more" / "compare.html").read_text()
    )
    # other block sizes
    larger, verdicts = compared(cli, runs[0], job(cli, "larger", 1, 3, 2), "--fail-above", "10%")
    (envelope,) = (name for name in larger["names"] if name["task_name"] == "envelope")
    assert (
        envelope["verdict"] == "no difference"
        and envelope["differences"][0]["basis"] == "per input byte"
        and " in A, " in envelope["differences"][0]["note"]
    )


def test_runs_without_accounting(cli):
    # else the heap keeps what one task freed, and the next one's growth is none
    cli.env["MALLOC_MMAP_THRESHOLD_"] = "65536"
    a, b = (
        job(cli, name, factor, seed, 2, options=["--no-alloc"])
        for name, factor, seed in (("a", 1, 1), ("b", 2, 2))
    )
    found, verdicts = compared(cli, a, b, "--fail-above", "10%", code=1)
    assert verdicts["envelope"] == "grew" and {
        d["quantity"] for name in found["names"] for d in name["differences"]
    } == {"rss growth"}


def test_killed_where_the_reference_was_not(cli):
    code = (
        "import os, sys, dwsr_probe\nwith dwsr_probe.task('x'):\n    work = bytes(1 << 20)\n    if"
        " len(sys.argv) > 1: os.kill(os.getpid(), 9)"
    )
    cli("run", "-q", "-o", "good", PY, cli.script(code))
    assert cli("run", "-q", "-o", "bad", PY, cli.script(code), "kill").returncode == 137
    done = cli("report", "--compare", "good", "bad", "--fail-above", "10%")
    assert done.returncode == 1 and "1 killed, none in the reference" in done.stdout


@pytest.fixture
def empty(cli):
    assert cli("run", "-q", "-o", "empty", PY, "-c", "").returncode == 0
    return "empty"


def test_empty_runs(cli, empty):
    done = cli("report", "--compare", empty, empty, "--fail-above", "0%")
    assert done.returncode == 0 and "Neither run has a task." in done.stdout
    assert cli("run", "-q", "-o", "unprobed", "true").returncode == 0
    # not measured is not 0
    assert "max rss –" in cli("report", "--compare", empty, "unprobed").stdout
    assert set(compared(cli, empty, job(cli, "full", 1, 1), "--fail-above", "0")[1].values()) == {
        "new"
    }
    for form in ("csv", "parquet"):
        assert (
            cli("report", empty, "--format", form, "-o", f"empty.{form}").returncode == 0
            and (cli.cwd / f"empty.{form}").stat().st_size > 100
        )


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (["--compare", "empty"], 2, "2 arguments"),
        (["--compare", "empty", "no"], 2, "holds no run"),
        (["empty", "--fail-above", "3%"], 2, "for --compare"),
        (["--compare", "empty", "empty", "--fail-above", "much"], 2, "not a percentage"),
        (["--compare", "empty", "empty", "--fail-above", "nan"], 2, "not a percentage"),
        (["empty", "--compare", "empty", "empty"], 2, "no third"),
        (["--compare", "empty", "empty", "--format", "csv"], 2, "no csv"),
        (["--compare", "empty", "damaged"], 2, "damaged"),
        (["damaged", "--format", "csv", "-o", "x"], 1, "damaged"),
        (["damaged", "--format", "parquet", "-o", "x"], 1, "damaged"),
        (["empty", "--format", "csv", "-o", "no/such/file"], 1, "cannot write"),
        (["empty", "--task", "x"], 2, "no task is called 'x'; the run has no tasks"),
        (["--compare", "empty", "empty", "--task", "x"], 2, "no task is called 'x'"),
    ],
)
def test_bad_input(cli, empty, words, code, text):
    whole = (cli.cwd / empty / "run.sqlite").read_bytes()
    (cli.cwd / "damaged").mkdir()
    # the head is right, the pages are not
    (cli.cwd / "damaged" / "run.sqlite").write_bytes(whole[:4096] + b"\xa5" * (len(whole) - 4096))
    done = cli("report", *words)
    assert (
        done.returncode == code
        and text in done.stderr
        and "Traceback" not in done.stderr
        and done.stdout == ""
    )
