"""Living processes without a board: limit, headroom, and what is sent of them."""

import json
from pathlib import Path

from dwsr_probe import _core
from dwsr_probe.live.process import (
    LivingProcess,
    LivingProcesses,
    RunningTask,
    checked_workers,
    least_headroom_bytes,
)
from dwsr_probe.live.wire import (
    DEVICE_FIELDS,
    PROCESS_FIELDS,
    RUNNING_FIELDS,
    processes_text,
    running_dicts,
    running_lines,
)
from dwsr_probe.record import FIELDS, TaskRecord

MIB = 1 << 20
DOCS = Path(__file__).parents[2] / "docs"


def process(headroom=600 * MIB, rss=300 * MIB, worker_limit=1 << 30, limit=4 << 30, running=()):
    live = {**dict.fromkeys(_core.LIVE_FIELDS, 0), "headroom_bytes": headroom, "rss_bytes": rss}
    device = {
        "device": 0,
        "name": "card",
        "uuid": "GPU-0",
        **dict.fromkeys(_core.DEVICE_FIELDS[1:], 5),
    }
    return LivingProcess(
        "100",
        "100-1",
        "job.py",
        "run-1",
        "ada",
        "3.11.2",
        live,
        {"limit_bytes": limit},
        [device],
        [{"address": "tcp://10.0.0.1:4000", "name": "w", "memory_limit_bytes": worker_limit}],
        list(running),
    )


def test_headroom_is_the_least_that_is_known():
    def headroom(board, rss, worker_limit):
        return process(board, rss, worker_limit).headroom_bytes

    assert headroom(600 * MIB, 300 * MIB, 1 << 30) == 600 * MIB  # others fill the cgroup
    assert headroom(800 * MIB, 300 * MIB, 1 << 30) == 724 * MIB  # the worker's own limit is nearer
    assert headroom(800 * MIB, 2 << 30, 1 << 30) == 0
    assert headroom(800 * MIB, 300 * MIB, None) == 800 * MIB
    assert headroom(800 * MIB, None, 1 << 30) == 800 * MIB
    assert headroom(None, 300 * MIB, 1 << 30) == 724 * MIB
    assert headroom(0, 300 * MIB, 1 << 30) == 0
    assert headroom(None, 300 * MIB, None) is None  # not known is not zero


def test_processes_of_two_cgroups_are_not_added_up():
    found = [process(368 * MIB), process(360 * MIB), process(None, worker_limit=None)]
    assert least_headroom_bytes(found) == 360 * MIB and least_headroom_bytes(found[2:]) is None


def test_the_limit_is_the_least():
    assert process().limit_bytes == 1 << 30
    assert process(limit=5).limit_bytes == 5
    assert process(worker_limit=None).limit_bytes == 4 << 30
    assert process(worker_limit=0, limit=None).limit_bytes is None
    two = process()
    two.workers *= 2  # they share a process: neither's limit is the process's
    assert two.limit_bytes == 4 << 30 and two.headroom_bytes == 600 * MIB


def test_facts_that_are_not_what_they_should_be():
    """A board is its user's own, and root's exporter reads everybody's."""
    for found in (None, 5, [5, "x", None]):
        assert checked_workers(found) == []
    worker = {
        "address": 5,
        "memory_limit_bytes": "x",
        "managed_bytes": 10**400,
        "spilled_bytes": -1,
        "http": ["h"],
        "name": "w",
    }
    assert checked_workers([worker]) == [{"name": "w"}]


def test_a_running_line_has_its_record_identity_and_headroom():
    record = TaskRecord(
        process="100-1",
        pid=100,
        thread=7,
        start=1.25,
        task_name="store-map",
        operation="smooth",
        chain=["getitem", "smooth", "store"],
        state="running",
    )
    processes = [process(running=[RunningTask("100", "3", record, 1.5)])]
    (line,) = running_lines(processes)
    found = json.loads(line)
    assert running_dicts(processes) == [found]
    assert tuple(found) == (*FIELDS, *RUNNING_FIELDS)
    assert (found["process"], found["thread"], found["start"]) == ("100-1", 7, 1.25)
    assert (found["operation"], found["chain"]) == ("smooth", ["getitem", "smooth", "store"])
    assert [found[name] for name in RUNNING_FIELDS] == [1.5, 300 * MIB, 1 << 30, 600 * MIB]


def test_processes_as_json():
    living = LivingProcesses([process()], dropped=2, unreadable=3)
    found = json.loads(processes_text(living))
    assert (found["processes_dropped"], found["boards_unreadable"]) == (2, 3)
    (one,) = found["processes"]
    assert tuple(one) == tuple(PROCESS_FIELDS) and tuple(one["devices"][0]) == DEVICE_FIELDS
    assert (one["process"], one["pid"], one["worker_name"]) == ("100-1", "100", "w")
    assert (one["limit_bytes"], one["headroom_bytes"]) == (1 << 30, 600 * MIB)


def test_every_field_is_documented():
    text = (DOCS / "live.md").read_text()
    for name in (*RUNNING_FIELDS, *PROCESS_FIELDS, *DEVICE_FIELDS):
        assert f"`{name}`" in text, name
