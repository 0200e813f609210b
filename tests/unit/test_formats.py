"""Runs and boards that earlier versions wrote are read for ever.

tests/data/format-N was written by the release whose BOARD_VERSION was N: a small run, the board
of a killed process, perhaps one of a process with GPUs, and what `report --format json` said of
each then. Later versions may add fields; what was said stays true.
"""

import json
import lzma
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dwsr_probe import _core
from dwsr_probe.board import Board

DATA = Path(__file__).parent.parent / "data"
FORMATS = sorted(DATA.glob("format-*"))


def unpack(packed, path):
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(lzma.decompress(packed.read_bytes()))
    return path


def lines_of(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def reported(what):
    done = subprocess.run(
        [sys.executable, "-m", "dwsr_probe", "report", str(what), "--format", "json"],
        capture_output=True,
        text=True,
        env=dict(os.environ, PYTHONDONTWRITEBYTECODE="1"),
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def assert_still_said(now, then):
    assert len(now) == len(then)
    for record, old in zip(now, then, strict=True):
        assert {name: record[name] for name in old} == old


def test_the_present_format_follows_known_ones():
    assert int(FORMATS[-1].name.rpartition("-")[2]) in (
        _core.BOARD_VERSION,
        _core.BOARD_VERSION - 1,
    )


@pytest.mark.parametrize("kept", FORMATS, ids=lambda path: path.name)
def test_a_run_of_an_earlier_version(kept, tmp_path):
    unpack(kept / "run.sqlite.xz", tmp_path / "run" / "run.sqlite")
    assert_still_said(reported(tmp_path / "run"), lines_of(kept / "run.jsonl"))


@pytest.mark.parametrize("kept", FORMATS, ids=lambda path: path.name)
def test_a_board_of_an_earlier_version(kept, tmp_path):
    path = unpack(kept / "killed.board.xz", tmp_path / "boards" / "1-1.board")
    assert_still_said(reported(path), lines_of(kept / "board.jsonl"))
    board = Board(path)
    assert [r.task_name for r in board.finished()][:4] == ["scale"] * 4
    assert [r.task_name for _, _, r in board.running(all_slots=True)] == ["killed"]
    samples, _ = board.samples()
    assert len(samples) == board.live()["samples_written"] and all(rss for _, rss, _, _ in samples)


@pytest.mark.parametrize(
    "kept",
    [path for path in FORMATS if (path / "gpu.board.xz").exists()],
    ids=lambda path: path.name,
)
def test_device_memory_on_a_board_of_an_earlier_version(kept, tmp_path):
    path = unpack(kept / "gpu.board.xz", tmp_path / "boards" / "1-1.board")
    said = reported(path)
    assert_still_said(said, lines_of(kept / "gpu.jsonl"))
    assert [len(r["gpu"]) for r in said if r["task_name"] == "device"] == [2] and [
        r["oom"]["where"] for r in said if r["oom"]
    ] == ["gpu:0"]


def test_a_heartbeat_that_is_still_to_come_is_another_machines(tmp_path, monkeypatch):
    """A board that was copied here from a machine that had been up for longer is not alive."""
    board = Board(unpack(FORMATS[-1] / "killed.board.xz", tmp_path / "boards" / "1-1.board"))
    live = board.live()
    monkeypatch.setattr(board, "host", "elsewhere")
    monkeypatch.setattr(time, "monotonic_ns", lambda: live["heartbeat_ns"] - 10**9)
    assert not board.is_alive(live)
    monkeypatch.setattr(time, "monotonic_ns", lambda: live["heartbeat_ns"] + 10**9)
    assert board.is_alive(live)
