"""The port itself, with sources made up: who is waited for, who is not, and what ends."""

import http.client
import json
import socket
import subprocess
import sys
import threading

import pytest

from dwsr_probe.board import records
from dwsr_probe.collector import News
from dwsr_probe.export import handlers, server
from dwsr_probe.export.server import Access, ServeError, Server, parse_address
from dwsr_probe.export.sources.own_process import OwnProcessSource
from dwsr_probe.export.sources.recent import RecentRecords
from dwsr_probe.export.sources.source import Batch, Source, parse_cursor
from dwsr_probe.export.totals import Totals
from dwsr_probe.export.view import MeasuredView
from dwsr_probe.live.process import LivingProcesses
from dwsr_probe.record import TaskRecord, to_row
from tests.conftest import wait_until


class Endless(Source):
    """As many lines as are asked for."""

    def __init__(self):
        self.reads, self.empty = 0, False

    def view(self):
        return MeasuredView(Totals())

    def locked(self):
        return threading.Lock()

    def read(self, since, most):
        self.reads += 1
        lines = [] if self.empty else ['{"state":"ok","pad":"%s"}' % ("x" * 1000)] * most
        return Batch(lines, str(self.reads), 0, not self.empty)

    def living(self):
        return LivingProcesses([])


@pytest.fixture
def served():
    started = []

    def start(source, **options):
        started.append(Server(source, "127.0.0.1", 0, **options))
        started[-1].start()
        return started[-1]

    yield start
    for one in started:
        one.stop()


def ask(port, path):
    client = socket.create_connection(("127.0.0.1", port), timeout=600)
    client.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    return client


def get(port, path):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
    connection.request("GET", path)
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return answer.status, body


def test_who_does_not_read_loses_the_connection(served, monkeypatch):
    monkeypatch.setattr(handlers, "WRITE_TIMEOUT_S", 0.05)
    source = Endless()
    one = served(source)
    client = ask(one.port, "/dwsr/tasks?limit=100000")
    wait_until(lambda: source.reads, "the stream")
    wait_until(lambda: not one._server._streams, "the end of the connection")
    assert source.reads < 100_000 // handlers.BATCH_LINES  # no more than its buffers hold
    client.close()


def test_others_are_answered_between_two_pieces_of_a_stream(served):
    """Also when its reader takes everything at once: the other's question is there before the
    second piece."""
    source, answered_at = Endless(), []
    port = served(source).port
    other = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
    other.request("GET", "/-/healthy")
    assert other.getresponse().read() == b"ok\n"
    source.view = lambda read=source.view: answered_at.append(source.reads) or read()

    def first(since, most, read=source.read):
        if not source.reads:
            other.request("GET", "/metrics")
        return read(since, most)

    source.read = first
    get(port, "/dwsr/tasks?limit=100000")
    assert other.getresponse().status == 200 and source.reads == 100_000 // handlers.BATCH_LINES
    assert answered_at[0] < source.reads
    other.close()


def test_connections_are_capped_and_answers_are_not_cut(served, monkeypatch):
    monkeypatch.setattr(server, "CONNECTIONS_MOST", 8)
    source = Endless()
    source.empty = True
    port = served(source).port
    waiting = ask(port, "/dwsr/tasks?wait=60")
    wait_until(lambda: source.reads, "the reader that waits")
    idle = [socket.create_connection(("127.0.0.1", port), timeout=600) for _ in range(40)]
    for _ in range(40):
        assert get(port, "/-/healthy")[0] == 200
    closed = 0
    for client in idle[:33]:
        closed += client.recv(10) == b""
    assert closed == 33
    source.empty = False
    assert waiting.recv(100).startswith(b"HTTP/1.1 200 OK")
    for client in (*idle, waiting):
        client.close()


def test_at_the_cap_with_all_being_answered_the_oldest_makes_room(served, monkeypatch):
    monkeypatch.setattr(server, "CONNECTIONS_MOST", 4)
    source = Endless()
    port = served(source).port
    stuck = [ask(port, "/dwsr/tasks?limit=100000") for _ in range(8)]
    assert get(port, "/-/healthy")[0] == 200
    for client in stuck:
        client.close()


def test_who_waits_is_answered_when_the_port_closes():
    source = Endless()
    source.empty = True
    one = Server(source, "127.0.0.1", 0)
    one.start()
    answers = []
    reader = threading.Thread(target=lambda: answers.append(get(one.port, "/dwsr/tasks?wait=60")))
    reader.start()
    wait_until(lambda: source.reads, "the reader")
    one.stop()
    reader.join(600)
    assert answers and answers[0][0] == 200 and json.loads(answers[0][1])["lost"] == 0
    with pytest.raises(ConnectionRefusedError):
        get(one.port, "/")


def test_a_server_that_cannot_start_says_so(monkeypatch):
    def no_more():
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(server.asyncio, "new_event_loop", no_more)
    one = Server(Endless(), "127.0.0.1", 0)
    with pytest.raises(ServeError, match="Too many open files"):
        one.start()
    one.stop()


def test_a_failing_source_is_one_failed_answer(served):
    source = Endless()
    source.read = source.view = lambda *_: 1 / 0
    port = served(source).port
    assert get(port, "/dwsr/tasks")[0] == get(port, "/metrics")[0] == 500
    assert b"ZeroDivision" not in get(port, "/metrics")[1] and get(port, "/-/healthy")[0] == 200


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("9464", ("127.0.0.1", 9464)),
        ("0", ("127.0.0.1", 0)),
        (":80", ("127.0.0.1", 80)),
        ("0.0.0.0:1", ("0.0.0.0", 1)),
        ("[::1]:5", ("::1", 5)),
        ("host:5", ("host", 5)),
    ],
)
def test_addresses(text, found):
    assert parse_address(text) == found


@pytest.mark.parametrize("text", ["", "x", "65536", "-1", "host:", "host:x", "1.5", "[::1]"])
def test_addresses_that_are_none(text):
    with pytest.raises(ValueError):
        parse_address(text)


@pytest.mark.parametrize("address", ["no.such.host.invalid", "300.1.1.1", "x" * 300, "203.0.113.7"])
def test_addresses_that_are_not_ours(address):
    with pytest.raises(ServeError, match="cannot listen on"):
        Server(Endless(), address, 0, Access())


# -- sources


def test_cursors():
    assert parse_cursor("run~a~5~7", "run~a") == (5, 7) and parse_cursor("o~1~2~3~4", "o", 4) == (
        1,
        2,
        3,
        4,
    )
    for text in (
        "",
        "0",
        "run~5",
        "run~5~",
        "run~-5~7",
        "run~5~7~9",
        "ruin~5~7",
        "run~²~7",
        "run~٣~7",
        "run~5~" + "9" * 19,
        "run~ 5~7",
        "run~5~7\n",
    ):
        assert parse_cursor(text, "run") == (0, 0), text


def rows(*seqs, process="1-1"):
    return [to_row(TaskRecord(seq=seq, process=process, task_name="a", state="ok")) for seq in seqs]


def test_a_round_that_fails_counts_nothing():
    recent = RecentRecords(10)
    for fails in (True, False):
        recent.begin()
        recent.add_rows(rows(1, 2, 3))
        recent.put_totals(News("1-1", None, rows(1, 2, 3), 4, None, True))
        recent.put_process(TaskRecord(process="1-1", state="running"), {"records_lost": 4})
        if fails:
            recent.rollback()
            assert (
                recent.end == 0
                and recent.totals.pairs == {}
                and recent.lost_total() == 0
                and recent.progress_of("1-1") == (0, 0)
            )
    recent.commit()
    assert (
        recent.end == 3
        and recent.totals.pairs["a", "a"].outcomes == {"ok": 3}
        and recent.lost_total() == 4
        and recent.progress_of("1-1") == (3, 0)
    )
    recent.begin()
    recent.put_process(TaskRecord(process="1-1", state="killed"), {"records_lost": 5})
    recent.commit()
    # nothing is kept of who has ended
    assert recent.lost_total() == 5 and recent.lost == {} and recent.progress_of("1-1") == (0, 0)


class Dead:
    """Boards that were taken over, one after the other."""

    def __init__(self):
        self.boards = []

    def piece_count(self):
        return len(self.boards)

    def piece_rows(self, index):
        return self.boards[index]

    def piece_lost(self, index):
        return self.boards[index][-1][0] - len(self.boards[index])

    def news(self):
        return [
            News(f"d-{number}", None, board, 0, None, False)
            for number, board in enumerate(self.boards)
        ]


def test_a_workers_stream_with_boards_that_are_taken_over_meanwhile(probe):
    dead = Dead()
    source = OwnProcessSource(dead)
    told, cursor, lost = [], "0", 0

    def read(most):
        nonlocal cursor, lost
        batch = source.read(cursor, most)
        assert len(batch.lines) <= most
        cursor, lost = batch.cursor, lost + batch.lost
        told.extend((r["process"], r["seq"]) for r in map(json.loads, batch.lines))
        return len(batch.lines)

    dead.boards.append(rows(3, 4, 5, process="d-1"))  # two were overwritten
    assert (read(2), read(2), read(2)) == (2, 1, 0) and lost == 2
    for _ in range(5):
        with probe.task("own"):
            pass
    assert read(3) == 3
    dead.boards += [rows(1, process="d-2"), rows(2, process="d-2")]
    assert (read(3), read(3), read(3)) == (3, 1, 0)
    assert len(set(told)) == len(told) == 10 and [t for t in told if t[0].startswith("d")] == [
        ("d-1", 3),
        ("d-1", 4),
        ("d-1", 5),
        ("d-2", 1),
        ("d-2", 2),
    ]
    for _ in range(2):
        source.view()
        assert sum(t.outcomes["ok"] for t in source.totals.pairs.values()) == 10


def test_a_worker_counts_what_its_ring_has_lost(probe):
    source = OwnProcessSource()
    for n in range(120_000):
        with probe.task("own", key=str(n) * 10):
            pass
    assert (
        source.view().totals.pairs["own", "own"].outcomes["ok"] == 120_000
        and len(records()) < 120_000
    )


def test_a_workers_port_loads_neither_collector_nor_store():
    """They would load SQLite into every Dask worker."""
    code = (
        "import sys, dwsr_probe.export.handlers, dwsr_probe.export.exposition\n"
        "import dwsr_probe.export.sources.own_process, dwsr_probe.export.hosts\n"
        "print(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    heavy = {"sqlite3", "dwsr_probe.collector", "dwsr_probe.store", "dwsr_probe.live.boards"}
    assert not heavy & set(done.stdout.split())
