"""`dwsr-probe predict --learn` and `--model`: records that other programs wrote, and a model that
is kept."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from dwsr_probe.predict import Model
from tests.conftest import permitted, require

EXAMPLE = Path(__file__).parents[2] / "examples" / "sort_records.c"
MB = 1_000_000


def record(megabytes, task_name="sort", factor=2):
    """Of a task whose peak is so many times its input."""
    size = megabytes * MB
    return {"task_name": task_name, "input_bytes": size, "alloc_peak_bytes": factor * size}


def write(path, records):
    path.write_text("".join(json.dumps(one) + "\n" for one in records))


@pytest.fixture
def file(cli):
    write(cli.cwd / "sort.jsonl", [record(n) for n in range(1, 11)])
    return "sort.jsonl"


def answers(done, said=""):
    assert done.returncode == 0 and done.stderr == said, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def asked(cli, *words, size="1GB", task="sort", said="", **options):
    """The one answer."""
    (found,) = answers(
        cli("predict", *words, "--task", task, "--nbytes", size, "--format", "json", **options),
        said,
    )
    return found


def fails(done, text, code=1, lines=1):
    assert (done.returncode, done.stdout) == (code, ""), done
    assert text in done.stderr and len(done.stderr.splitlines()) == lines, done.stderr


def test_a_program_in_c(cli):
    """The example: its records, and forecasts beside the formulas in its comments."""
    require(shutil.which("cc"), "a C compiler: apt-get install gcc")
    flags = ["-std=c11", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-O2"]
    subprocess.run(["cc", *flags, "-o", cli.cwd / "sort_records", EXAMPLE], check=True)
    done = subprocess.run([cli.cwd / "sort_records"], capture_output=True, text=True, check=True)
    records = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(records) == 18 and {one["task_name"] for one in records} == {"sort", "histogram"}
    sort = asked(cli, "--learn", "-", input=done.stdout)
    assert sort["mean_bytes"] == pytest.approx(2e9, rel=0.03)
    assert 2e9 < sort["upper_bytes"] < 2.3e9 and sort["n"] == 9
    histogram = asked(cli, "--learn", "-", task="histogram", input=done.stdout)
    assert histogram["mean_bytes"] == pytest.approx(800_000, rel=0.03)


def test_a_table_of_several_files(cli, file):
    write(cli.cwd / "merge.jsonl", [record(n, "merge", 3) for n in range(1, 6)])
    done = cli("predict", "--learn", file, "--learn", "merge.jsonl")
    assert done.returncode == 0 and done.stderr == ""
    assert [line.split()[:3] for line in done.stdout.splitlines()[1:]] == [
        ["sort", "alloc", "10"],
        ["merge", "alloc", "5"],
    ]
    # Without a question about sizes: the largest inputs.
    shown = cli("predict", "--learn", file, "--task", "sort").stdout
    assert shown.startswith("sort of 10,000,000 bytes (the largest seen)\n") and "◆" in shown


def test_the_growth_of_a_process(cli):
    """Where nobody counted allocations."""
    write(
        cli.cwd / "grown.jsonl",
        [
            {"task_name": "load", "input_bytes": n * MB, "rss_before_bytes": 10 * MB}
            | {"rss_peak_bytes": 10 * MB + 4 * n * MB}
            for n in range(1, 11)
        ],
    )
    found = asked(cli, "--learn", "grown.jsonl", task="load", size="100MB")
    assert found["kind"] == "rss" and found["mean_bytes"] == pytest.approx(400e6, rel=0.05)


def test_a_report_is_learned_as_its_run(cli):
    done, _ = cli.job(
        """
        import dwsr_probe, numpy as np
        for n in range(12):
            x = np.ones((100 * (n % 4 + 1), 1000))
            with dwsr_probe.task("double", inputs=[x]):
                x * 2
        """,
        "-q",
    )
    assert done.returncode == 0
    (cli.cwd / "report.jsonl").write_text(cli("report", "run", "--format", "json").stdout)
    run = cli("predict", "run")
    assert cli("predict", "--learn", "report.jsonl").stdout == run.stdout
    # A run and a file together, and what is kept of both.
    both = asked(cli, "run", "--learn", "report.jsonl", "--model", "m", task="double")
    kept = asked(cli, "--model", "m", task="double")
    assert both["n"] == 24 and kept == both


def test_a_model_that_is_kept(cli, file):
    path = cli.cwd / "sort.model"
    first = asked(cli, "--learn", file, "--model", path)
    assert first["n"] == 10 and Model.load(path).names() == ["sort"]
    # All ways to ask it.
    assert asked(cli, "--model", path) == asked(cli, path) == first
    assert cli("predict", "--model", path).stdout == cli("predict", "--learn", file).stdout
    write(cli.cwd / "more.jsonl", [record(n) for n in range(20, 25)])
    before = path.read_bytes()
    more = asked(cli, path, "--learn", "more.jsonl")
    assert more["n"] == 15 and path.read_bytes() == before  # a model as RUN is only read
    assert asked(cli, "--model", path, "--learn", "more.jsonl") == more
    assert asked(cli, "--model", path) == more
    # The largest inputs, whether new or old.
    title = "sort of 24,000,000 bytes (the largest seen)"
    for words in (["--model", path], [path, "--learn", file], [path, "--learn", "more.jsonl"]):
        assert cli("predict", *words, "--task", "sort").stdout.startswith(title)
    assert os.listdir(cli.cwd).count("sort.model") == len(list(cli.cwd.glob("sort.model*"))) == 1


def test_lines_that_are_no_records(cli):
    (cli.cwd / "mixed.jsonl").write_text(
        "\n".join(
            [
                json.dumps(record(1)),
                "",
                "total 5\x1b[31m",
                json.dumps(record(2)),
                json.dumps({**record(3), "alloc_peak_bytes": "6 MB"}),
            ]
        )
    )
    said = (
        "dwsr-probe: not learned: 2 of 4 lines of mixed.jsonl; the first is line 3: not JSON"
        " (Expecting value: line 1 column 1 (char 0))\n"
    )
    assert asked(cli, "--learn", "mixed.jsonl", "--model", "m", said=said)["n"] == 2
    text = (
        (cli.cwd / "mixed.jsonl").read_text().replace("total 5\x1b[31m", '{"state": "\\u001b[3"}')
    )
    done = cli("predict", "--learn", "-", input=text)
    assert "2 of 4 lines of standard input; the first is line 3: no peak" in done.stderr
    assert "\x1b" not in done.stderr and done.returncode == 0


@pytest.mark.parametrize("text", ["", "\n\n", '{"kind": "process", "task_name": ""}\n', "a\nb\n"])
def test_nothing_to_learn(cli, file, text):
    """An error, and what was kept stays."""
    asked(cli, "--learn", file, "--model", "m")
    before = (cli.cwd / "m").read_bytes()
    done = cli("predict", "--learn", "-", "--model", "m", input=text)
    fails(done, "nothing to learn in standard input; a record is", lines=1 + ("a" in text[:1]))
    assert (cli.cwd / "m").read_bytes() == before


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (["--learn", "nowhere"], 1, "cannot read nowhere: No such file"),
        (["--learn", "."], 1, "cannot read .: Is a directory"),
        (["--learn", "sort.jsonl", "--learn", "nowhere"], 1, "cannot read nowhere: No such file"),
        (["--learn", "-", "--learn", "-"], 2, "standard input can be read once"),
        (["old", "--model", "m"], 2, "are two models"),
        (["--model", "nowhere"], 1, "cannot read nowhere: No such file"),
        (["--model", "."], 1, "cannot read .: Is a directory"),
        (["--model", "sort.jsonl"], 1, "sort.jsonl: not a model of dwsr-probe"),
        (["--model", "sort.jsonl", "--learn", "sort.jsonl"], 1, "not a model of dwsr-probe"),
        (["--model", "empty", "--learn", "sort.jsonl"], 1, "not a model of dwsr-probe"),
        (["--model", "other", "--learn", "sort.jsonl"], 1, "of another version of dwsr-probe"),
        (["--model", "state.json", "--learn", "sort.jsonl"], 1, "the state of `predict serve`"),
        (
            ["--model", ".", "--learn", "sort.jsonl"],
            1,
            "cannot keep a model in .: it is not a file",
        ),
        (["--model", "/dev/null", "--learn", "sort.jsonl"], 1, "it is not a file"),
        (["--model", "no/m", "--learn", "sort.jsonl"], 1, "there is no directory"),
        (["--model", "m", "--learn", "nowhere"], 1, "cannot read nowhere"),
        (["--model", "m", "nowhere"], 1, "nowhere"),
        (["--model", "m", "--learn", "sort.jsonl", "--limit", "5"], 2, "--task NAME"),
    ],
)
def test_what_cannot_be(cli, file, words, code, text):
    """One line, and no file is changed or made."""
    model = Model()
    model.save(cli.cwd / "old")
    saved = model.to_dict()
    (cli.cwd / "other").write_text(json.dumps({**saved, "version": 99}))
    (cli.cwd / "empty").touch()
    ledger = {"accounts": [], "groups": {}, "largest": {}, "learned": 0, "refused": 0, "lost": 0}
    (cli.cwd / "state.json").write_text(json.dumps({"model": saved, "ledger": ledger}))
    before = {path.name: path.read_bytes() for path in cli.cwd.iterdir() if path.is_file()}
    fails(cli("predict", *words), text, code)
    after = {path.name: path.read_bytes() for path in cli.cwd.iterdir() if path.is_file()}
    assert after == before


def test_what_may_not_be_read_or_written(cli, file):
    permitted(os.geteuid() != 0, "be refused a file: it runs as root")
    (cli.cwd / file).chmod(0)
    fails(cli("predict", "--learn", file), "Permission denied")
    (cli.cwd / file).chmod(0o600)
    (cli.cwd / "closed").mkdir(mode=0o500)
    fails(cli("predict", "--learn", file, "--model", "closed/m"), "cannot be written")


def test_a_full_disk(cli, file):
    """The forecast is printed; the model is as it was, and the exit code says so."""
    asked(cli, "--learn", file, "--model", "m")
    before = (cli.cwd / "m").read_bytes()
    words = ["predict", "--learn", file, "--model", "m"]
    limited = (
        f"import resource, sys, dwsr_probe.cli; sys.argv[1:] = {words};"
        " resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100)); dwsr_probe.cli.main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", limited],
        capture_output=True,
        text=True,
        cwd=cli.cwd,
        env=cli.env,
        timeout=600,
    )
    assert done.returncode == 1 and "cannot write m: File too large; nothing" in done.stderr
    assert len(done.stderr.splitlines()) == 1 and done.stdout.splitlines()[1].startswith("sort")
    assert (cli.cwd / "m").read_bytes() == before and len(list(cli.cwd.glob("m*"))) == 1


def test_ctrl_c_while_it_waits_for_lines(cli, file):
    asked(cli, "--learn", file, "--model", "m")
    before = (cli.cwd / "m").read_bytes()
    process = cli.start("predict", "--learn", "-", "--model", "m", stdin=subprocess.PIPE)
    process.stdin.write(json.dumps(record(1)) + "\n" * 100_000)  # more than a pipe holds:
    process.stdin.flush()  # it reads by now
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate(timeout=600)
    assert (process.returncode, stdout, stderr.strip()) == (1, "", "Aborted!")
    assert (cli.cwd / "m").read_bytes() == before and len(list(cli.cwd.glob("m*"))) == 1


def test_many_lines(cli):
    """More than are learned: evenly spread ones are, and the largest."""
    with open(cli.cwd / "many.jsonl", "w") as many:
        for n in range(20_000):
            many.write(json.dumps(record(1 + n % 50 if n != 7_777 else 500)) + "\n")
    found = asked(cli, "--learn", "many.jsonl", size="500MB")
    assert 500 <= found["n"] <= 501 and found["mean_bytes"] == pytest.approx(1e9, rel=0.02)
    assert "extrapolating" not in found["notes"]


def test_the_last_run_is_not_read_beside_a_file(cli, file):
    done, _ = cli.job("import dwsr_probe\nwith dwsr_probe.task('other'): pass", "-q")
    assert done.returncode == 0
    (found,) = answers(cli("predict", "--learn", file, "--kind", "alloc", "--format", "json"))
    assert found["task"] == "sort"


def test_an_unknown_task(cli, file):
    """What was learned is kept: the question can be asked again."""
    done = cli("predict", "--learn", file, "--model", "m", "--task", "never")
    fails(done, "no task 'never' was seen; there are sort")
    assert asked(cli, "--model", "m")["n"] == 10


def test_a_symbolic_link_stays(cli, file):
    (cli.cwd / "link").symlink_to("m")
    asked(cli, "--learn", file, "--model", "link")
    assert (cli.cwd / "link").is_symlink() and Model.load(cli.cwd / "m").names() == ["sort"]
