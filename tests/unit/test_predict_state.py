"""The service's directory: saved whole, locked, put aside when damaged, bounded."""

import json
import os

import pytest

from dwsr_probe.predict import Round
from dwsr_probe.serve import state as state_module
from dwsr_probe.serve.state import State, StateError, default_directory


@pytest.fixture
def said():
    return []


@pytest.fixture
def state(tmp_path, said):
    found = State(tmp_path / "state", said.append)
    yield found
    found.close()


def test_saved_and_loaded(state, said, tmp_path):
    assert state.load(dict) is None and not said
    state.save({"x": 5})
    state.save({"x": 6})
    assert state.load(lambda found: found["x"]) == 6 and not said
    assert os.stat(tmp_path / "state").st_mode & 0o777 == 0o700 and sorted(
        os.listdir(tmp_path / "state")
    ) == ["lock", "state.json"]


def test_files_are_their_users_alone(state, tmp_path):
    """Also in a directory that was there, and where an earlier version had left them readable."""
    for name in ("state.json.new", "rounds.jsonl"):
        (tmp_path / "state" / name).touch(mode=0o644)
    state.save({"x": 5})
    state.append([Round("x", "alloc", 1.0, 1.0, 1.0, 0.0, 5)], 1.0)
    assert {
        name: os.stat(tmp_path / "state" / name).st_mode & 0o777
        for name in os.listdir(tmp_path / "state")
    } == {"lock": 0o600, "state.json": 0o600, "rounds.jsonl": 0o600}


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "null", '{"version": 99}', '{"version": 1}', "\x00" * 100, "[" * 100_000],
)
def test_a_damaged_state_is_put_aside(state, said, tmp_path, text):
    (tmp_path / "state" / "state.json").write_text(text)
    assert state.load(lambda found: found["x"]) is None
    assert len(said) == 1 and "begins anew" in said[0] and len(said[0].splitlines()) == 1
    assert (tmp_path / "state" / "state.json.damaged").read_text() == text and not (
        tmp_path / "state" / "state.json"
    ).exists()
    state.save({"x": 1})
    assert state.load(lambda found: found["x"]) == 1


def test_one_service_at_a_time(state, tmp_path):
    with pytest.raises(StateError, match="another predictor"):
        State(tmp_path / "state", print)
    state.close()
    again = State(tmp_path / "state", print)
    state._lock = again._lock  # the fixture closes it


def test_a_place_that_cannot_be_written(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(StateError, match="--state DIR"):
        State(tmp_path / "file" / "x", print)


def test_a_full_disk_is_said_once(state, said, tmp_path):
    (tmp_path / "state" / "state.json.new").mkdir()  # a write that fails, also for root
    state.save({"x": 1})
    state.save({"x": 1})
    assert len(said) == 1 and "forecasts go on" in said[0]
    (tmp_path / "state" / "state.json.new").rmdir()
    state.save({"x": 2})
    assert state.load(lambda found: found["x"]) == 2


def test_rounds_are_lines_and_bounded(state, tmp_path, monkeypatch):
    monkeypatch.setattr(state_module, "ROUNDS_BYTES_MOST", 2_000)
    for n in range(100):
        state.append([Round("smooth", "alloc", 1.0, 2.0, 1.5, -0.5, n)], now=5.0)
    files = [
        path for path in (tmp_path / "state").iterdir() if path.name.startswith("rounds.jsonl")
    ]
    assert {path.name for path in files} == {"rounds.jsonl", "rounds.jsonl.1"} and all(
        path.stat().st_size < 2_300 for path in files
    )
    lines = [
        json.loads(line) for line in (tmp_path / "state" / "rounds.jsonl").read_text().splitlines()
    ]
    assert lines[-1] == {
        "time": 5.0,
        "task_name": "smooth",
        "kind": "alloc",
        "predicted": 1.0,
        "bound": 2.0,
        "actual": 1.5,
        "reward": -0.5,
        "n": 99,
        "censored": False,
        "operation": None,
        "chain": None,
    }


def test_where_it_is_by_default(monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", "/x")
    assert default_directory() == "/x/dwsr-probe/predict"
    monkeypatch.setenv("XDG_STATE_HOME", "relative")
    with pytest.raises(StateError, match="--state DIR"):
        default_directory()
