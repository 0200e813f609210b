"""Which run is meant: the last one here, before the last one of this user anywhere; by directory
and by name; and it is said which."""

import json
import os
import subprocess
import sys

import pytest

PY = sys.executable
JOB = (
    "import dwsr_probe\nfor n in (1000, 2000, 3000):\n    with dwsr_probe.task('{0}',"
    " inputs=[bytearray(n)]): pass"
)


@pytest.fixture
def places(cli):
    """Two directories with a run each, the one in `first` older."""
    for name in ("first", "second"):
        (cli.cwd / name).mkdir()
        assert (
            cli(
                "run", "-q", PY, cli.script(JOB.format(name), f"{name}.py"), cwd=cli.cwd / name
            ).returncode
            == 0
        )
    return cli.cwd / "first", cli.cwd / "second"


def the_run_in(place):
    (directory,) = (place / "dwsr-runs").iterdir()
    return directory


def names_in(done):
    assert done.returncode == 0, done.stderr
    return {json.loads(line)["task_name"] for line in done.stdout.splitlines()} - {
        "first.py",
        "second.py",
        "third.py",
    }


def test_the_last_run_is_the_one_here(cli, places):
    for place in places:
        done = cli("report", "--format", "json", cwd=place)
        assert names_in(done) == {place.name}
        assert done.stderr == f"dwsr-probe: the last run is {the_run_in(place)}\n"
    elsewhere = cli("report", "--format", "json")  # no run here: the last one of this user
    assert names_in(elsewhere) == {"second"} and str(the_run_in(places[1])) in elsewhere.stderr


def test_a_run_here_with_a_directory_of_its_own(cli, places):
    """-o DIR below the current directory is a run of this place, too."""
    cli("run", "-q", "-o", "mine", PY, cli.script(JOB.format("third"), "third.py"), cwd=places[0])
    assert names_in(cli("report", "--format", "json", cwd=places[0])) == {"third"}
    assert names_in(cli("report", "--format", "json", cwd=places[1])) == {"second"}


def test_a_later_change_does_not_make_an_older_run_the_last_one(cli, places):
    old = the_run_in(places[0])
    older = old.with_name("20200101-000000-older")
    os.rename(old, older)
    cli("run", "-q", PY, cli.script(JOB.format("third"), "third.py"), cwd=places[0])
    os.utime(older / "run.sqlite")
    assert names_in(cli("report", "--format", "json", cwd=places[0])) == {"third"}


def test_a_command_that_cannot_run_is_no_last_run(cli, places):
    assert cli("run", "no-such-command", cwd=places[1]).returncode == 127
    assert names_in(cli("report", "--format", "json")) == {"second"}


def test_bare_names_everywhere(cli, places):
    first, second = places
    directory = the_run_in(second)
    # with the parent's pid
    (meta,) = [
        line.split()[1].rstrip(":") for line in cli("report", directory).stdout.splitlines()[:1]
    ]
    assert meta.startswith(directory.name + "-")
    for word in (directory.name, meta):
        for place in (second, cli.cwd):  # from ./dwsr-runs, and beside the last run
            done = cli("report", word, "--format", "json", cwd=place)
            assert (
                names_in(done) == {"second"}
                and done.stderr == f"dwsr-probe: the run is {directory}\n"
            )
    name = directory.name
    assert cli("report", "--compare", name, name, cwd=second).returncode == 0
    assert "the run is" not in cli("report", directory, "--format", "json").stderr
    predicted = cli("predict", name, "--task", "second", cwd=second)
    assert predicted.returncode == 0 and str(directory) in predicted.stderr, predicted.stderr
    assert str(directory) in cli("predict", "--task", "second", cwd=second).stderr
    top = cli("top", "--plain", meta, cwd=second)
    assert top.returncode == 0 and "ended" in top.stdout + top.stderr
    loaded = subprocess.run(
        [PY, "-c", "import sys, dwsr_probe; print(dwsr_probe.load(sys.argv[1]).directory)", name],
        cwd=second,
        env=cli.env,
        capture_output=True,
        text=True,
    )
    assert loaded.stdout.strip() == str(directory), loaded.stderr
    assert cli("report", name, cwd=first).returncode == 0  # beside the last run
    missing = cli("report", "no-such-run", cwd=first)
    assert (
        missing.returncode == 1
        and "no-such-run holds no run" in missing.stderr
        and "dwsr-runs" in missing.stderr
    )
