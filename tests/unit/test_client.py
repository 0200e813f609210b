"""The client of the stream against servers that are not what they should be."""

import gzip
import json
import threading
import tracemalloc
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from dwsr_probe.export.client import Stream, StreamError, StreamInvalid, StreamRefused
from tests.unit.hostile import OK, Hostile, drip, gzipped, line, lines


def record(seq, process="p", state="ok"):
    return json.dumps({"seq": seq, "process": process, "state": state})


def last(cursor="c1", lost=0):
    return json.dumps({"cursor": cursor, "lost": lost})


@pytest.fixture
def answers():
    """Bodies to answer with, one after the other; .asked has the queries."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            server.asked.append(self.path)
            body, headers = server.bodies.pop(0)
            self.send_response(headers.pop("status", 200))
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_): ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    # a client that goes is no news
    server.bodies, server.asked, server.handle_error = [], [], lambda *_: None
    server.url = f"http://127.0.0.1:{server.server_port}"
    server.add = lambda *lines, **headers: server.bodies.append(
        ("\n".join(lines).encode(), headers)
    )
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def seqs(found):
    return [(r["process"], r["seq"]) for r in found.records]


def test_who_is_refused_does_not_ask_for_ever(answers):
    answers.add("no", status=503)
    answers.add("no", status=401)
    with pytest.raises(StreamRefused, match="401"):
        next(Stream(answers.url).follow())
    assert len(answers.asked) == 2  # the first one may pass


def test_proxies_are_not_asked(answers, monkeypatch):
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.setenv("no_proxy", "")
    answers.add(record(1), last())
    assert seqs(Stream(answers.url, token="t").poll()) == [("p", 1)]


def test_a_token_is_not_taken_elsewhere(answers):
    answers.add("", status=302, Location=f"{answers.url}/elsewhere")
    with pytest.raises(StreamError, match="302"):
        Stream(answers.url, token="t").poll()
    assert len(answers.asked) == 1


def test_an_answer_that_was_cut_short_is_asked_for_again(answers):
    stream = Stream(answers.url)
    answers.add(record(1), record(2), '{"seq": 3, "pro')
    answers.add(record(1), record(2))
    answers.bodies.append(
        (gzip.compress("\n".join([record(1), last()]).encode())[:-12], {"Content-Encoding": "gzip"})
    )
    for _ in range(3):
        with pytest.raises(StreamError):
            stream.poll()
    answers.add(record(1), record(2), record(3), last("c9"))
    assert (
        seqs(stream.poll()) == [("p", 1), ("p", 2), ("p", 3)]
        and stream.state["cursor"] == "c9"
        and stream.lost == 0
    )
    assert all("since=0&" in asked for asked in answers.asked)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"5",
        b"null",
        b"[]",
        b'"cursor"',
        b'{"state": "ok"}',
        b'{"state": "ok", "seq": "x", "process": []}',
        b"<html>",
        b"\xff\xfe",
        b'{"seq": null, "state": "ok", "process": "p"}',
        b"[" * 100_000,
        b'{"a": "' + b"x" * (2 << 20),
    ],
)
def test_answers_that_are_none(answers, body):
    stream = Stream(answers.url)
    answers.bodies += [(body, {}), (body, {"Content-Encoding": "gzip"})]
    for _ in range(2):
        with pytest.raises(StreamError, match="/dwsr/tasks"):
            stream.poll()
    assert stream.state == {"cursor": "0", "seen": {}}


@pytest.mark.parametrize(
    ("body", "kind", "text"),
    [
        ([record(1), "x" * (65 << 10)], StreamInvalid, "/dwsr/tasks: a line above 64 KiB"),
        ([record(1), last("x" * 2_000)], StreamInvalid, "its cursor is not valid"),
        (
            [record(1), record(2), last("a")],
            StreamInvalid,
            "it sent more records than were asked for",
        ),
        ([record(1)], StreamError, "the answer was cut short"),
    ],
)
def test_nonsense_is_told_from_no_answer(answers, body, kind, text):
    answers.add(*body)
    with pytest.raises(StreamError, match=text) as caught:
        Stream(answers.url).poll(limit=1)
    assert type(caught.value) is kind or (kind is StreamInvalid and isinstance(caught.value, kind))


def test_another_page_of_the_same_server(answers):
    answers.add("x 5", "y 6")
    assert Stream(answers.url).page("/metrics") == "x 5\ny 6" and answers.asked == ["/metrics"]
    answers.bodies += [(b"x" * (9 << 20), {}), (b"no", {"status": 404})]
    with pytest.raises(StreamError, match="does not end"):
        Stream(answers.url).page("/metrics")
    with pytest.raises(StreamRefused, match="404"):
        Stream(answers.url).page("/metrics")


def test_what_is_told_again_is_told_once(answers):
    stream = Stream(answers.url)
    answers.add(record(1), record(2), record(1, "q"), last("a"))
    answers.add(
        record(1),
        record(2),
        record(3),
        record(3),
        record(1, "q"),
        record(2, "q"),
        record(None, "q", "running"),
        last("b", lost=70),
    )
    assert seqs(stream.poll()) == [("p", 1), ("p", 2), ("q", 1)]
    found = stream.poll(running=True)
    assert seqs(found) == [("p", 3), ("q", 2)] and len(found.running) == 1
    assert stream.lost == 0  # the restarted server lost 70 of those that we had
    answers.add(record(9), last("c", lost=5))
    resumed = Stream(answers.url, state=json.loads(json.dumps(stream.state)))
    assert seqs(resumed.poll()) == [("p", 9)] and resumed.lost == 5
    assert "since=b&" in answers.asked[-1]


@pytest.mark.parametrize("url", ["", "ftp://x", "http://", "//"])
def test_urls_that_are_none(url):
    with pytest.raises(ValueError, match="is not the URL"):
        Stream(url)


def test_nobody_there():
    with pytest.raises(StreamError, match="refused"):
        Stream("127.0.0.1:9").poll()


# -- servers that mean harm


@pytest.fixture
def hostile():
    started = []

    def start(answer):
        started.append(Hostile(answer))
        return started[-1]

    yield start
    for one in started:
        one.close()


@pytest.mark.parametrize(
    "pieces",
    [
        [],
        [b"HTTP/1.1 200 OK\r\nX: "],
        [OK + b"\r\n"],
        [OK + b"Content-Length: 9999\r\n\r\n" + line(1)],
        [b"HTTP/1.1 100 Continue\r\n\r\n" * 10, b"HTTP/1.1 100"],
        [OK + b"Transfer-Encoding: chunked\r\n\r\n"],
    ],
    ids=range(6),
)
def test_a_byte_now_and_then_does_not_prolong_a_request(hostile, pieces):
    """Each byte comes long before the timeout of a silent socket."""
    stream = Stream(hostile(drip(*pieces)).url, timeout_s=1.0)
    for ask in (lambda: stream.poll(limit=10), lambda: stream.page("/metrics")):
        with pytest.raises(StreamError, match="timed out"):
            ask()
    assert stream.state == {"cursor": "0", "seen": {}}


ENDLESS = {
    "of megabytes": lambda n: b'{"state": "running", "pad": "' + b"x" * (1 << 20) + b'"}\n',
    "of nothing": lambda n: b"{}\n",
    "of running tasks": lambda n: b'{"state": "running", "pad": "' + b"x" * 50_000 + b'"}\n',
    "of small running tasks": lambda n: b'{"state": "running"}\n' * 1000,
    "of records": lambda n: b"".join(line(1000 * n + k + 1, pad="x" * 2000) for k in range(10)),
    "of processes": lambda n: b"".join(line(1, process=f"{n}-{k}") for k in range(100)),
    "of one record": lambda n: line(1) * 100,
    "without an end": lambda n: b"x" * 1_000_000,
}


@pytest.fixture
def memory():
    """The most that Python's objects take from here on, in bytes; a server in this process
    included."""
    tracemalloc.start()
    yield lambda: tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()


@pytest.mark.parametrize("kind", ENDLESS)
@pytest.mark.parametrize("packed", [gzipped, lines])
def test_an_endless_answer_is_read_within_its_budget(hostile, memory, packed, kind):
    stream = Stream(hostile(packed(ENDLESS[kind])).url)
    with pytest.raises(StreamError, match="/dwsr/tasks"):
        stream.poll(limit=100, running=True)
    assert memory() < 48 << 20 and stream.state == {"cursor": "0", "seen": {}}


def test_an_endless_page_is_read_within_its_budget(hostile, memory):
    with pytest.raises(StreamError, match="does not end"):
        Stream(hostile(gzipped(lambda n: b"dwsr_process_resident_bytes 5\n" * 10_000)).url).page(
            "/metrics"
        )
    assert memory() < 48 << 20


IDENTITIES = [
    {"seq": 10**4000},
    {"seq": 1 << 53},
    {"seq": 0},
    {"seq": -1},
    {"seq": 1.5},
    {"seq": True},
    {"seq": None},
    {"process": "x" * 200},
    {"process": 5},
    {"process": None},
]


def test_records_without_an_identity_are_left_out(hostile):
    """One such record does not keep the others from being read."""
    told = [
        line(7),
        *(line(**{"seq": n + 10, **fields}) for n, fields in enumerate(IDENTITIES)),
        line(8),
        None,
    ]
    stream = Stream(hostile(lines(told.__getitem__)).url)
    found = stream.poll()
    assert (
        [r["seq"] for r in found.records] == [7, 8]
        and found.refused == len(IDENTITIES)
        and found.lost == 6
    )
    assert stream.state == {"cursor": "1", "seen": {"1-100": 8}}


@pytest.mark.parametrize("cursor", [5, None, [], "x" * 100_000, {"a": 1}])
def test_a_cursor_that_is_none(answers, cursor):
    stream = Stream(answers.url)
    answers.add(record(1), json.dumps({"cursor": cursor, "lost": 0}))
    with pytest.raises(StreamError, match="/dwsr/tasks"):
        stream.poll()
    assert stream.state == {"cursor": "0", "seen": {}}


@pytest.mark.parametrize(
    "state",
    [
        {"cursor": 5},
        {"cursor": "x" * 10_000},
        {"seen": {"p": 10**4000}},
        {"seen": {"p": "x"}},
        {"seen": {"x" * 900_000: 1}},
    ],
)
def test_a_state_that_is_none(state):
    with pytest.raises(ValueError, match="state"):
        Stream("127.0.0.1:9", state=state)


def test_escape_sequences_do_not_reach_the_terminal(hostile):
    for said in (b"HTTP/1.1 403 \x1b]2;evil\x07\r\n\r\n", b"\x1b]2;evil\x07\r\n\r\n"):
        with pytest.raises(StreamError, match="evil") as caught:
            Stream(hostile(lambda server, request, said=said: [said]).url).poll()
        assert str(caught.value).isprintable()
