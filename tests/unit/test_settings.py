"""Settings: the table, what is derived from it, and the names of processes that depend on them."""

import os
import re
from pathlib import Path

import pytest

from dwsr_probe.boot.start import cannot_be_probed, options_keep_probe_out
from dwsr_probe.cli.running import OPTIONS
from dwsr_probe.launch.command import short_name
from dwsr_probe.probe import child_name, is_housekeeping, process_name
from dwsr_probe.settings import (
    ALLOW_HOSTS,
    PREFIX,
    SETTINGS,
    SWITCH,
    FlagSetting,
    Settings,
    default_board_directory,
)

ROOT = Path(__file__).parents[2]
DEFAULT = Settings()


def test_settings_survive_the_environment():
    given = Settings(
        run="run-1",
        board_dir="/x/y",
        period_ms=2.5,
        keep_peak=True,
        worker="tcp://w",
        alloc=False,
        alloc_from=1 << 20,
        gc="around",
        params=False,
        worker_model=True,
    )
    assert not [name for name in given.__slots__ if getattr(given, name) == getattr(DEFAULT, name)]
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


def test_environment_variables_of_a_run():
    """Processes of other versions read them: names and texts stay."""
    assert Settings(run="r", board_dir="/b").to_environ() == {
        "DWSR_PROBE_RUN": "r",
        "DWSR_PROBE_BOARD_DIR": "/b",
        "DWSR_PROBE_PERIOD_MS": "1.0",
        "DWSR_PROBE_KEEP_PEAK": "",
        "DWSR_PROBE_WORKER": "",
        "DWSR_PROBE_ALLOC": "1",
        "DWSR_PROBE_ALLOC_FROM": "4096",
        "DWSR_PROBE_GC": "none",
        "DWSR_PROBE_PARAMS": "1",
        "DWSR_PROBE_WORKER_MODEL": "",
    }
    changed = Settings(board_dir="/b", keep_peak=True, alloc=False).to_environ()
    assert changed["DWSR_PROBE_KEEP_PEAK"] == "1" and changed["DWSR_PROBE_ALLOC"] == "0"


def test_every_row_is_an_attribute_with_a_type():
    assert tuple(Settings.__annotations__) == Settings.__slots__
    for setting in SETTINGS:
        value = getattr(DEFAULT, setting.name)
        assert type(value).__name__ == Settings.__annotations__[setting.name]
    with pytest.raises(TypeError, match="no such setting: period"):
        Settings(period=1)


def test_options_set_what_their_row_says():
    chosen = {option.parameter: option.default for option in OPTIONS}
    others = dict(chosen)
    by_default = Settings.from_options(others)
    assert by_default.to_environ() == DEFAULT.to_environ()
    assert others and not [setting.name for setting in SETTINGS if setting.name in others]
    settings = Settings.from_options({**chosen, "alloc_from": 64, "period_ms": 2.0, "gc": "around"})
    assert (settings.alloc_from, settings.period_ms, settings.gc) == (64 << 10, 2.0, "around")


def rows_of(page):
    """{first cell: the row} of all tables of a page in docs/."""
    lines = (ROOT / "docs" / page).read_text().splitlines()
    return {line.split("|")[1].strip(): line for line in lines if line.startswith("| `")}


def test_options_are_documented_with_their_default():
    """docs/run.md says what each option takes, and the default that the table has."""
    rows = rows_of("run.md")
    for setting in SETTINGS:
        if not setting.option:
            continue
        names, words = setting.option.split("/"), words_of(setting)
        (cell,) = (cell for cell in rows if re.search(rf"`{names[0]}[ `]", cell))
        if words:
            taken = [f"`{names[0]} {words[0]}`", *(f"`{word}`" for word in words[1:])]
        elif setting.metavar:
            taken = [f"`{names[0]} {setting.metavar}`"]
        else:
            taken = [f"`{name}`" for name in names]
        assert cell == ", ".join(taken)
        if isinstance(setting, FlagSetting):
            assert ("(default)" in rows[cell]) == setting.default
        elif not words:
            shown = f"{setting.default / (setting.unit or 1):g}"
            assert re.search(rf"; default {shown}\b", rows[cell]), rows[cell]


def words_of(setting):
    return getattr(setting, "words", ())


def test_environment_variables_are_documented():
    """docs/dask.md names each that a user may set; those of `run` itself are not for users. No
    page, example or deployment names another."""
    rows = rows_of("dask.md")
    for setting in SETTINGS:
        row = rows.get(f"`{setting.name}`")
        assert (row is None) == (setting.name in ("run", "worker")), setting.name
        if row is not None:
            assert f"`{setting.environment}`" in row
            assert all(word in row for word in words_of(setting))
            if isinstance(setting.default, (int, float)) and not isinstance(setting, FlagSetting):
                assert f"; default {setting.default:g} |" in row
    known = {setting.environment for setting in SETTINGS} | {ALLOW_HOSTS}
    found = {}
    for folder in ("", "docs", "deploy", "examples"):
        for path in (ROOT / folder).glob("**/*" if folder else "*.md"):
            if path.is_file() and path.suffix not in (".pyc", ".png"):
                names = re.findall(rf"\b{PREFIX}[A-Z_]+\b", path.read_text(errors="replace"))
                found.update((name, path) for name in names)
    assert set(found) <= known, {name: found[name] for name in set(found) - known}
    assert {ALLOW_HOSTS, PREFIX + "BOARD_DIR"} <= set(found) and SWITCH + "_" == PREFIX


def test_board_directory(tmp_path, monkeypatch):
    assert default_board_directory({"DWSR_PROBE_BOARD_DIR": "/a/b"}) == "/a/b"
    assert default_board_directory({"XDG_RUNTIME_DIR": str(tmp_path)}) == f"{tmp_path}/dwsr-probe"
    for environ in ({}, {"XDG_RUNTIME_DIR": "relative"}, {"XDG_RUNTIME_DIR": "/no/such"}):
        assert default_board_directory(environ) == f"/dev/shm/dwsr-probe-{os.geteuid()}"
    # as in a container with a small /dev/shm
    monkeypatch.setattr("dwsr_probe.settings.BOARD_MEMORY_LEAST_BYTES", 1 << 60)
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
    assert short_name(command) == name


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
