import os

import pytest

from dwsr_probe.boot.start import cannot_be_probed, options_keep_probe_out
from dwsr_probe.launch.command import run_name
from dwsr_probe.probe import child_name, is_housekeeping, process_name
from dwsr_probe.settings import Settings, default_board_directory


def test_settings_survive_the_environment():
    given = Settings("run-1", "/x/y", 2.5, True, "tcp://w", False, 1 << 20, "around")
    back = Settings.from_environ(given.to_environ())
    assert all(getattr(back, name) == getattr(given, name) for name in Settings.__slots__)


def test_nonsense_in_the_environment_gives_defaults():
    assert Settings.from_environ({"DWSR_PROBE_PERIOD_MS": "soon"}).period_ms == 1.0
    assert Settings.from_environ({"DWSR_PROBE_PERIOD_MS": "-5"}).period_ms == 0.1
    assert Settings.from_environ({"DWSR_PROBE_PERIOD_MS": "1e9"}).period_ms == 1000.0
    assert Settings.from_environ({"DWSR_PROBE_ALLOC_FROM": "1"}).alloc_from == 4096
    assert (
        Settings.from_environ({"DWSR_PROBE_ALLOC_FROM": "x", "DWSR_PROBE_GC": "often"}).alloc_from
        == 4096
    )
    assert (
        Settings.from_environ({"DWSR_PROBE_GC": "often"}).gc == "none"
        and Settings.from_environ({}).alloc
    )


def test_board_directory(tmp_path, monkeypatch):
    assert default_board_directory({"DWSR_PROBE_BOARD_DIR": "/a/b"}) == "/a/b"
    assert default_board_directory({"XDG_RUNTIME_DIR": str(tmp_path)}) == f"{tmp_path}/dwsr-probe"
    for environ in ({}, {"XDG_RUNTIME_DIR": "relative"}, {"XDG_RUNTIME_DIR": "/no/such"}):
        assert default_board_directory(environ) == f"/dev/shm/dwsr-probe-{os.geteuid()}"
    # as in a container with a small /dev/shm
    monkeypatch.setattr("dwsr_probe.settings.ROOMY_BYTES", 1 << 60)
    assert (
        default_board_directory({"XDG_RUNTIME_DIR": str(tmp_path)})
        == f"/tmp/dwsr-probe-{os.geteuid()}"
    )


@pytest.mark.parametrize(
    ("argv", "name"),
    [
        (["python", "dir/job.py", "-c"], "job.py"),
        (["python", "-u", "-X", "dev", "-W", "ignore", "job.py"], "job.py"),
        (["python", "-m", "pytest", "-q"], "pytest"),
        (["python", "-mpytest"], "pytest"),
        (["python", "-c", "pass"], "python -c"),
        (
            ["python", "-c", "from multiprocessing.spawn import spawn_main; spawn_main()"],
            "multiprocessing",
        ),
        (
            [
                "python",
                "-c",
                "from multiprocessing.forkserver import main; main(5, 6, ['__main__'], **{})",
            ],
            "fork server",
        ),
        (["python", "-uWignore", "-Xdev", "--check-hash-based-pycs", "always", "job.py"], "job.py"),
        (["python", "-uW", "ignore", "job.py"], "job.py"),
        (["python", "-"], "python -"),
        (["/usr/bin/python3"], "python3"),
        ([], "python"),
    ],
)
def test_process_name(argv, name):
    assert process_name(argv) == name


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ("Process-1", "worker 0"),
        ("SpawnPoolWorker-12", "worker 11"),
        ("ForkServerProcess-2:1", "worker 1.0"),
        ("LokyProcess-1", "worker 0"),
        ("reader-1", "reader-1"),
        ("MyProcess-1", "MyProcess-1"),
        ("SyncManager-1", "SyncManager-1"),
        ("Process-x", "Process-x"),
        ("Process-", "Process-"),
        ("", ""),
    ],
)
def test_names_of_children(given, name):
    assert child_name(given) == name


@pytest.mark.parametrize(
    ("argv", "hidden"),
    [
        (["python", "-c", "from multiprocessing.resource_tracker import main;main(5)"], True),
        (
            [
                "python",
                "-c",
                "from joblib.externals.loky.backend.resource_tracker import main; main(5, False)",
            ],
            True,
        ),
        (["python", "-c", "from multiprocessing.spawn import spawn_main; spawn_main()"], False),
        (["python", "resource_tracker import main"], False),
        (["python"], False),
    ],
)
def test_housekeeping_is_not_probed(argv, hidden):
    assert is_housekeeping(argv) is hidden


@pytest.mark.parametrize(
    ("command", "name"),
    [
        (["python", "-W", "ignore", "pipe.py"], "pipe"),
        (["python3", "-X", "dev", "-u", "a/pipe.py", "-x"], "pipe"),
        (["python", "-m", "dask.worker", "x"], "dask.worker"),
        (["python", "-c", "pass"], "python"),
        (["python", "-"], "python"),
        (["python3.11"], "python3"),
        (["./job.sh", "x.py"], "job"),
        (["a b"], "a_b"),
        (["python", ".py"], ".py"),
    ],
)
def test_the_run_is_named_after_the_script(command, name):
    assert run_name(command) == name


@pytest.mark.parametrize(
    ("words", "out"),
    [
        (["python", "-I", "x.py"], True),
        (["python", "-S"], True),
        (["python", "-uE", "x.py"], True),
        (["python", "-X", "dev", "-S", "x"], True),
        (["python", "-W", "ignore", "x.py", "-S"], False),
        (["python", "x.py", "-I"], False),
        (["python", "-c", "1", "-S"], False),
        (["python", "-m", "x", "-I"], False),
        (["python", "-Wignore", "-I", "x"], True),
        (["python"], False),
        (["python", "-", "-S"], False),
    ],
)
def test_options_that_keep_the_probe_out(words, out):
    assert options_keep_probe_out(words) is out


def test_children_that_cannot_be_probed(monkeypatch):
    monkeypatch.setattr("dwsr_probe.boot.start._boot_dir", "/boot")
    assert not cannot_be_probed("sleep", ["sleep", "-S"], None)
    assert not cannot_be_probed("/usr/bin/python3", [b"python3", b"x.py"], None)
    assert cannot_be_probed(None, ["python3", "-I"], None)
    assert cannot_be_probed(None, ["python3", "x.py"], {})
    assert cannot_be_probed(None, "python3", {"PYTHONPATH": "/elsewhere"})
    assert not cannot_be_probed(None, ["python3", "x.py"], {b"PYTHONPATH": b"/boot:/elsewhere"})
