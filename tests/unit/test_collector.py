"""One board that a collector follows, without a run around it."""

import json

from dwsr_probe import _core, task
from dwsr_probe.board import Board
from dwsr_probe.collector import Collector, read_board
from dwsr_probe.followed import FollowedBoard
from dwsr_probe.record import FIELDS
from dwsr_probe.store import Store


def test_the_contents_of_a_board(probe):
    for _ in range(3):
        with task("t"):
            pass
    contents = read_board(_core.board_path())
    assert [row[FIELDS.index("task_name")] for row in contents.rows] == ["t"] * 3
    ((row, health),) = contents.processes
    assert row[FIELDS.index("state")] == "running" and health["records_lost"] == 0
    (news,) = contents.news
    assert [(total.name, total.count) for total in news.totals if total.count] == [("t", 3)]
    assert news.alive and news.rows == []


def test_facts_do_not_replace_the_probes_own_figures(probe):
    """The program may report anything."""
    facts = {"records_lost": "many", "signal": 9, "python": None, "color": "red"}
    _core.set_facts(json.dumps(facts).encode())
    ((_, health),) = read_board(_core.board_path()).processes
    assert health["records_lost"] == 0 and health["signal"] is None and health["python"]
    assert health["color"] == "red"


def test_a_ring_fills_until_it_is_stored(probe, board_dir):
    store = Store.in_memory()
    collector = Collector(store, None, str(board_dir), print, remove=False)
    for _ in range(2000):
        with task("t"):
            pass
    full = collector.highest_fill_level()
    assert 0 < full <= 1
    assert collector.round() == 1 and collector.stored == store.task_count() == 2000
    assert collector.highest_fill_level() < full


def test_lost_records_are_counted(probe):
    """Records that the ring has overwritten before the board is read for the first time."""
    count = 200_000
    for _ in range(count):
        with task("t"):
            pass
    store = Store.in_memory()
    followed = FollowedBoard(Board(_core.board_path()))
    stored, rows = followed.store_records(store, unpack=False)
    assert stored == store.task_count() and rows == []
    assert followed.records_lost == count - stored > 0 and followed.seq == count
    assert followed.store_records(store, unpack=True) == (0, [])
