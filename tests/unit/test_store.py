import json
import lzma
import os
import sqlite3
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from dwsr_probe import _core
from dwsr_probe.board import Board
from dwsr_probe.collector import Collector
from dwsr_probe.record import FIELDS, TaskRecord, from_row, json_of_row, to_row
from dwsr_probe.runs import open_run
from dwsr_probe.store import FILE, Store, StoreError, filesystem_of, is_network


def test_records_come_back_as_they_went_in(tmp_path):
    store = Store.create(tmp_path / "run")
    records = [
        TaskRecord(
            seq=i, process="1-2", task_name="n\0\n", inputs=[{"shape": [i]}], rss_peak_bytes=1 << 50
        )
        for i in (1, 2)
    ]
    store.begin()
    store.add_tasks(records)
    store.add_tasks(records)  # a second collector: nothing doubled
    store.put_process(TaskRecord(kind="process", process="1-2", start=1.0), {"records_lost": 0})
    store.set_meta(run="r", command=["a"])
    store.commit()
    store.close()
    store = Store.open(tmp_path / "run")
    assert list(store.tasks()) == records and store.meta() == {"run": "r", "command": ["a"]}
    assert store.processes()[0][0].process == "1-2" and store.progress_of("1-2") == (2, 0)
    with pytest.raises(sqlite3.OperationalError):
        store.add_tasks(records)  # readers cannot write


def test_a_round_that_fails_leaves_nothing(tmp_path):
    store = Store.create(tmp_path)
    store.begin()
    store.add_tasks([TaskRecord(seq=1, process="p")])
    store.rollback()
    assert list(store.tasks()) == []


def packed(samples):
    return b"".join(
        struct.pack("=4Q", int(t * 1e9), rss, peak, 1_000_000) for t, rss, peak in samples
    )


def test_old_samples_merge_to_min_and_max(tmp_path):
    store = Store.create(tmp_path)
    old = [(i / 1000, 100 + i, 500 + i) for i in range(2000)]
    new = [(990 + i / 8, 7, 9) for i in range(16)]
    store.add_samples("p", 0, packed(old[:1300]), 1000.0)
    store.add_samples("p", 1300, packed(old[1300:]), 1000.0)
    store.add_samples("p", 2000, packed(new), 1000.0)
    store.add_samples("p", 2000, packed(new), 1000.0)  # a second collector: nothing doubled
    raw = list(store.samples("p"))
    assert len(raw) == 2016 and raw[5] == (1000.005, 105, 105, 505, 1)
    store.merge_samples(now=1000.0)
    rows = list(store.samples("p"))
    assert rows[:2] == [(1000.0, 100, 1099, 1499, 1000), (1001.0, 1100, 2099, 2499, 1000)]
    assert rows[2:] == [(1990 + i / 8, 7, 7, 9, 1) for i in range(16)]
    store.merge_samples(now=1070.0)
    assert list(store.samples("p")) == rows and store.progress_of("p") == (0, 2016)


def test_samples_without_a_peak_are_merged(tmp_path):
    """A size that could not be read has the highest bit set."""
    store, unreadable = Store.create(tmp_path), 1 << 63
    store.add_samples("p", 0, packed([(0, 5, unreadable), (0.5, 7, 9)]), 1000.0)
    store.add_samples("p", 2, packed([(1, unreadable, 8), (1.5, 6, unreadable)]), 1000.0)
    store.merge_samples(now=1000.0)
    assert list(store.samples("p")) == [(1000.0, 5, 7, 9, 2), (1001.0, 6, 6, 6, 1)]


def test_packed_pieces_come_as_they_went_in(tmp_path):
    store = Store.create(tmp_path)
    pieces = [packed([(i + j / 8, 5, 6) for j in range(8)]) for i in range(3)]
    for i, piece in enumerate(pieces):
        store.add_samples("p", 8 * i, piece, 1000.0)
    assert list(store.packed_samples("p")) == [(1000.0, piece) for piece in pieces] and not list(
        store.merged_samples("p")
    )
    store.merge_samples(now=2.5 + 600)
    assert list(store.packed_samples("p")) == [(1000.0, pieces[2])] and [
        row[0] for row in store.merged_samples("p")
    ] == [1000.0, 1001.0]
    assert store.task_count() == 0


def test_a_run_that_is_over_keeps_its_samples(tmp_path):
    store = Store.create(tmp_path)
    store.add_samples("p", 0, packed([(i / 8, 5, 6) for i in range(8)]), 1000.0)
    store.merge_samples()  # years later
    assert len(list(store.samples("p"))) == 8
    store.add_samples("p", 8, packed([(700.0, 5, 6)]), 1000.0)
    store.close()
    store = Store.open(tmp_path, writable=True)
    store.merge_samples()
    assert [row[4] for row in store.samples("p")] == [8, 1]


def test_samples_do_not_age_when_the_clock_is_set(tmp_path):
    store = Store.create(tmp_path)
    store.add_samples("before", 0, packed([(50 + i / 8, 5, 6) for i in range(8)]), 1000.0)
    # began after the clock was put an hour ahead
    store.add_samples("after", 0, packed([(60 + i / 8, 5, 6) for i in range(8)]), 4600.0)
    store.merge_samples()
    assert len(list(store.samples("before"))) == len(list(store.samples("after"))) == 8
    store.add_samples("after", 8, packed([(700.0, 5, 6)]), 1000.0)  # and back
    store.close()
    store = Store.open(tmp_path, writable=True)
    store.merge_samples()
    assert [row[4] for row in store.samples("before")] == [8] and sorted(
        row[4] for row in store.samples("after")
    ) == [1, 8]


def test_damaged_text_is_said(tmp_path):
    store = Store.create(tmp_path)
    store.set_meta(run="r")
    store._db.execute("UPDATE meta SET value = '{\"r'")
    with pytest.raises(StoreError, match="it is damaged"):
        store.meta()


DAMAGE = [
    (
        "UPDATE tasks SET alloc_peak_bytes = 'much'",
        "alloc_peak_bytes of a task is 'much', not a whole number",
    ),
    ("UPDATE tasks SET start = x'00'", "start of a task is b"),
    ("UPDATE tasks SET state = x'6f6b'", "state of a task is b'ok', not a text"),
    ("UPDATE tasks SET rss_peak_bytes = 1.5", "rss_peak_bytes of a task is 1.5"),
    ("UPDATE tasks SET task_name = NULL", "task_name of a task is missing"),
    ("UPDATE tasks SET gpu = '[5]'", "gpu of a task have 5 in them"),
    ("UPDATE tasks SET gpu = '[{\"device\": 0}]'", "without a number"),
    ("UPDATE tasks SET inputs = '[{\"shape\": 5}]'", "shape of an input is 5, not a list"),
    ("UPDATE tasks SET inputs = '{}'", "inputs of a task is {}, not a list"),
    ("UPDATE tasks SET output = '[]'", "output of a task is"),
    ("UPDATE tasks SET oom = '7'", "oom of a task is 7"),
    ("UPDATE processes SET record = '[]'", "record of a process is"),
    (
        "UPDATE processes SET record = json_set(record, '$.start', 'x')",
        "start of a process is 'x', not a number",
    ),
    ("UPDATE processes SET record = 5", "record of a process is 5"),
    ("UPDATE processes SET record = json_set(record, '$.pid', 1.5)", "pid of a process is 1.5"),
    ("UPDATE processes SET health = '5'", "health of a process is 5"),
    (
        'UPDATE processes SET health = \'{"limit_bytes": "1"}\'',
        "limit_bytes of a process is '1', not a number",
    ),
    ("UPDATE processes SET health = '{\"records_lost\": []}'", "records_lost of a process is"),
    ("UPDATE processes SET health = '{\"workers\": [1]}'", "workers of a process have 1"),
    (
        'UPDATE processes SET health = \'{"workers": [{"memory_limit_bytes": "9"}]}\'',
        "memory_limit_bytes of a worker is '9'",
    ),
    (
        'UPDATE processes SET health = \'{"devices": [{"device": "0"}]}\'',
        "devices of a process have",
    ),
    (
        "UPDATE meta SET value = '\"soon\"' WHERE key = 'exit_code'",
        "exit_code is 'soon', not a whole number",
    ),
    ("UPDATE samples SET packed = 'text'", "samples is 'text', not bytes"),
    ("UPDATE samples SET packed = x'0011'", "samples are cut short"),
    ("UPDATE samples SET epoch = 'x'", "epoch of samples is 'x'"),
    ("INSERT INTO merged VALUES ('1-1', 1, 'x', 1, 1, 1)", "a sample is 'x'"),
]


def read_all(store):
    return [
        store.meta(),
        store.processes(),
        list(store.rows()),
        list(store.tasks()),
        store.rows_after(0, 10),
        list(store.samples("1-1")),
    ]


@pytest.mark.parametrize(("change", "said"), DAMAGE, ids=[change for change, _ in DAMAGE])
def test_a_value_of_a_wrong_type_is_said(tmp_path, change, said):
    """SQLite keeps anything in any column. Every reader gets one clear error, and never a value
    that it cannot calculate with."""
    store = Store.create(tmp_path)
    store.set_meta(run="r", exit_code=0)
    given = {"type": "ndarray", "dtype": "int8", "shape": [5], "nbytes": 5}
    store.add_tasks(
        [
            TaskRecord(
                seq=1,
                process="1-1",
                task_name="t",
                state="ok",
                start=1.0,
                duration=1.0,
                inputs=[given],
                gpu=[{"device": 0, "peak_bytes": 5}],
                rss_before_bytes=1,
            )
        ]
    )
    store.put_process(
        TaskRecord(kind="process", process="1-1", pid=1, task_name="job.py", state="ok", start=1.0),
        {"limit_bytes": 5, "python": "3.11", "workers": [{"address": "tcp://x"}]},
    )
    store.add_samples("1-1", 0, bytes(32), 1.0)
    read_all(store)
    store._db.execute(change)
    with pytest.raises(StoreError, match=r"cannot read .*it is damaged") as error:
        read_all(store)
    assert said in str(error.value) and "\n" not in str(error.value)


def test_a_field_of_a_later_version_is_ignored(tmp_path):
    store = Store.create(tmp_path)
    store.put_process(TaskRecord(kind="process", process="1-1", task_name="job.py"), {"new": "x"})
    store._db.execute("UPDATE processes SET record = json_set(record, '$.new', 'x')")
    ((record, health),) = store.processes()
    assert record.task_name == "job.py" and health == {"new": "x"}


def test_what_is_not_a_run_is_said(tmp_path):
    with pytest.raises(StoreError, match="holds no run"):
        Store.open(tmp_path)
    (tmp_path / FILE).write_bytes(b"noise" * 1000)
    with pytest.raises(StoreError, match="damaged or not a run"):
        Store.open(tmp_path)
    (tmp_path / FILE).write_bytes(b"")
    with pytest.raises(StoreError, match="is empty, or not a run"):
        Store.open(tmp_path)
    with sqlite3.connect(tmp_path / FILE) as db:
        db.execute("PRAGMA user_version=77")
    with pytest.raises(StoreError, match="has version 77, this dwsr-probe knows versions 2 to 3"):
        Store.open(tmp_path)


def test_an_unwritable_place_is_said(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="choose another with -o DIR"):
        Store.create(tmp_path / "file" / "run")


def test_a_reader_does_not_hold_up_the_end(tmp_path):
    """As `top` is when the job ends."""
    store = Store.create(tmp_path)
    store.set_meta(run="r")
    reader = Store.open(tmp_path)
    assert reader.meta() == {"run": "r"}
    store.set_meta(exit_code=0)
    store.finish()
    store.close()
    assert reader.meta() == {"run": "r", "exit_code": 0}
    reader.close()
    assert Store.open(tmp_path).meta() == {"run": "r", "exit_code": 0}


def test_network_filesystems(tmp_path):
    mounts = tmp_path / "mountinfo"
    mounts.write_text(
        "1 0 8:1 / / rw - ext4 /dev/sda rw\n2 1 0:5 / /home rw shared:1 - nfs4 server:/x rw\n3 1"
        " 0:6 / /homework rw - tmpfs t rw\n"
    )
    assert filesystem_of("/home/me/x", mounts) == "nfs4"
    assert filesystem_of("/homework/x", mounts) == "tmpfs"
    assert filesystem_of("/etc", mounts) == "ext4"
    assert (
        is_network("nfs4")
        and is_network("lustre")
        and is_network("fuse.sshfs")
        and not is_network("ext4")
    )


def test_a_run_of_an_earlier_version_has_null_for_what_came_later(tmp_path):
    """As if `output_bytes`, `inputs_omitted`, `pinned_end_bytes` and `attribution_reason` had been
    added since."""
    store = Store.create(tmp_path)
    store.add_tasks(
        [
            TaskRecord(
                seq=1,
                process="1-2",
                task_name="old",
                alloc_peak_bytes=7,
                output_bytes=5,
                attribution="shared",
                attribution_reason="native-threads",
            )
        ]
    )
    assert next(store.tasks()).attribution_reason == "native-threads"
    for name in ("output_bytes", "inputs_omitted", "pinned_end_bytes", "attribution_reason"):
        store._db.execute(f"ALTER TABLE tasks DROP COLUMN {name}")
    store.close()
    (old,) = Store.open(tmp_path).tasks()
    assert (old.attribution, old.attribution_reason) == ("shared", None)
    assert (old.alloc_peak_bytes, old.output_bytes, old.inputs_omitted, old.pinned_end_bytes) == (
        7,
        None,
        0,
        None,
    )
    ((_, row),) = Store.open(tmp_path).rows_after(0, 10)
    assert len(row) == len(FIELDS) and json.loads(json_of_row(row))["output_bytes"] is None

    store = Store.open(tmp_path, writable=True)  # what its processes left behind is still collected
    store.begin()
    store.add_tasks([TaskRecord(seq=2, process="1-2", task_name="new", output_bytes=9)])
    store.commit()
    assert [(r.task_name, r.output_bytes, r.inputs_omitted) for r in store.tasks()] == [
        ("old", None, 0),
        ("new", 9, 0),
    ]


# -- packed records


def board_of(probe, names=("a", "b"), count=5):
    for n in range(count):
        for name in names:
            with probe.task(name, inputs=[bytes(n)], key=f"{name}-{n}"):
                pass
    return Board(_core.board_path())


def test_frames_come_back_as_the_rows_that_they_are(probe, tmp_path):
    board, store = board_of(probe), Store.create(str(tmp_path / "run"))
    store.add_rows([to_row(TaskRecord(process="0-0", seq=1, task_name="loose"))])
    first = board.frames(most=4)
    store.add_frames(board, first)
    store.add_rows(
        [to_row(TaskRecord(process=board.process, seq=11, task_name="killed", state="killed"))]
    )
    store.add_frames(board, board.frames(first.position))
    store.close()
    found = Store.open(str(tmp_path / "run"))
    true = [to_row(record) for record in board.finished()]
    rows = list(found.rows())
    assert [row[FIELDS.index("task_name")] for row in rows] == [
        "loose",
        *(row[FIELDS.index("task_name")] for row in true),
        "killed",
    ]
    assert [from_row(row) for row in rows[1:-1]] == [
        from_row(row) for row in true
    ] and found.task_count() == 12
    assert found.progress_of(board.process) == (11, 0)
    # The stream has them in the order in which they came, from any position, in any pieces.
    order = [(position, row[FIELDS.index("seq")]) for position, row in found.rows_after(0, 100)]
    assert order == list(enumerate([1, 1, 2, 3, 4, 11, 5, 6, 7, 8, 9, 10], 1))
    for most in (1, 2, 5):
        position, told = 0, []
        while some := found.rows_after(position, most):
            assert len(some) <= most
            told += some
            position = some[-1][0]
        assert [(at, row[FIELDS.index("seq")]) for at, row in told] == order


def test_a_run_of_an_earlier_version_takes_packed_records(probe, tmp_path):
    (tmp_path / "run").mkdir()
    packed = Path(__file__).parents[1] / "data" / "format-4" / "run.sqlite.xz"
    (tmp_path / "run" / FILE).write_bytes(lzma.decompress(packed.read_bytes()))
    board, store = board_of(probe), Store.open(str(tmp_path / "run"), writable=True)
    before = store.task_count()
    store.begin()
    store.add_frames(board, board.frames())
    store.commit()
    store.close()
    found = Store.open(str(tmp_path / "run"))
    assert found.task_count() == len(list(found.tasks())) == before + 10
    assert [at for at, _ in found.rows_after(before - 1, 3)] == [before, before + 1, before + 2]


def test_a_run_of_an_earlier_version_is_not_changed_by_who_looks_at_it(tmp_path):
    packed = Path(__file__).parents[1] / "data" / "format-4" / "run.sqlite.xz"
    (tmp_path / FILE).write_bytes(lzma.decompress(packed.read_bytes()))
    before = (tmp_path / FILE).read_bytes()
    store = open_run(str(tmp_path), print)
    assert store.totals() == {} and len(list(store.tasks())) == store.task_count() > 0
    store.close()
    assert (tmp_path / FILE).read_bytes() == before


def left_board(board_dir, count=100):
    """A board of a killed process with so many tasks."""
    code = (
        f"import dwsr_probe, os, signal\ndwsr_probe.start()\nfor n in range({count}):\n  with"
        " dwsr_probe.task('t'): pass\nwith dwsr_probe.task('last'): os.kill(os.getpid(),"
        " signal.SIGKILL)"
    )
    subprocess.run(
        [sys.executable, "-c", code], env=dict(os.environ, DWSR_PROBE_BOARD_DIR=str(board_dir))
    )


def test_two_collectors_store_each_task_once(board_dir, tmp_path):
    """As two reports do of a run whose parent is gone; one of them comes between the other's
    looks."""
    left_board(board_dir)
    Store.create(str(tmp_path / "run")).close()
    first, second = (
        Collector(
            Store.open(str(tmp_path / "run"), writable=True),
            None,
            str(board_dir),
            print,
            remove=False,
        )
        for _ in range(2)
    )
    first._find_boards()
    second._find_boards()
    for collector in (first, second, first):
        collector.round()
    # the first was killed before it removed the board
    third = Collector(Store.open(str(tmp_path / "run"), writable=True), None, str(board_dir), print)
    third.round()
    found = Store.open(str(tmp_path / "run"))
    assert [r.seq for r in found.tasks()] == list(range(1, 102)) and [
        r.state for r in found.tasks()
    ].count("killed") == 1
    assert not list(board_dir.glob("*.board"))


def test_what_was_lost_is_known_to_the_next_collector(board_dir, tmp_path):
    left_board(board_dir, 120_000)
    run = str(tmp_path / "run")
    Store.create(run).close()
    Collector(Store.open(run, writable=True), None, str(board_dir), print, remove=False).round()
    one, two = Store.open(run), Store.open(run, writable=True)
    ((_, health),) = one.processes()
    (process,) = one.totals()
    assert health["records_lost"] == two.lost_of(process) == 120_001 - one.task_count() > 0
    two.begin()
    two._db.execute("DELETE FROM processes")  # as if the first had been killed before it was there
    two.commit()
    Collector(Store.open(run, writable=True), None, str(board_dir), print, remove=False).round()
    ((_, again),) = Store.open(run).processes()
    assert again["records_lost"] == health["records_lost"]


@pytest.mark.parametrize("place", ["totals_offset", "texts_offset"])
def test_a_damaged_board_does_not_stop_its_neighbours(board_dir, tmp_path, place):
    left_board(board_dir, 10)
    (path,) = board_dir.glob("*.board")
    with open(path, "r+b") as file:
        file.seek(Board(path).header[place])
        file.write(b"\xff" * 8192)
    left_board(board_dir, 20)
    store, said = Store.create(str(tmp_path / "run")), []
    Collector(store, None, str(board_dir), said.append).round()
    assert (
        len(said) == 1 and "it was overwritten or damaged; what was read before is kept" in said[0]
    )
    assert sum(r.process == store.processes()[-1][0].process for r in store.tasks()) == 21


def test_a_reader_beside_the_collector_learns_of_texts_and_workers_that_come_later(probe, tmp_path):
    store = Store.create(str(tmp_path / "run"))
    board = board_of(probe)
    first = board.frames()
    store.add_frames(board, first)
    reader = Store.open(str(tmp_path / "run"))
    assert len(reader.rows_after(0, 100)) == 10
    board_of(probe, ("a new name",))
    board.addresses = ["tcp://1"]
    board._read_addresses = lambda: None
    store.add_frames(board, board.frames(first.position))
    assert [row[FIELDS.index("task_name")] for _, row in reader.rows_after(10, 100)] == [
        "a new name"
    ] * 5
    assert reader._origin(board.process).addresses == ["tcp://1"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("UPDATE frames SET packed = zeroblob(64)", "a record is damaged"),
        ("DELETE FROM texts", "names a text that is not there"),
        ("DELETE FROM origins", "without their layout"),
        ("UPDATE origins SET layout = x'00'", "makes no sense"),
        ("UPDATE origins SET origin = '{}'", "not complete"),
        ("UPDATE origins SET origin = '[]'", "not complete"),
    ],
)
def test_packed_records_that_somebody_changed(probe, tmp_path, change, said):
    board, store = board_of(probe), Store.create(str(tmp_path / "run"))
    store.add_frames(board, board.frames())
    store._db.execute(change)
    with pytest.raises(StoreError, match=said):
        list(store.rows())
    with pytest.raises(StoreError):
        store.rows_after(0, 10)


@pytest.mark.parametrize("text", ["[]", "{}", '{"name": 5}', "nothing"])
def test_totals_that_somebody_changed(text, tmp_path):
    store = Store.create(str(tmp_path / "run"))
    store._db.execute("INSERT INTO totals VALUES ('1-1', 0, ?)", (text,))
    with pytest.raises(StoreError, match="it is damaged"):
        store.totals()
