"""The live view without a terminal: figures, tables, pictures, keys.
tests/integration/test_top.py drives the real thing."""

import http.server
import json
import os
import pty
import re
import subprocess
import sys
import termios
import threading
import time
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise

import pytest
from rich.cells import cell_len

from dwsr_probe.export.client import StreamError
from dwsr_probe.live.wire import TaskIdentity
from dwsr_probe.predict.group import Group
from dwsr_probe.record import TaskRecord
from dwsr_probe.report.top import figures, loop, port
from dwsr_probe.report.top.moment import Moment, ProcessRow, TaskRow, WatchError
from dwsr_probe.report.top.panes import (
    GPU_COLUMNS,
    NAME_COLUMNS,
    TASK_COLUMNS,
    Pane,
    fitting_columns,
)
from dwsr_probe.report.top.picture import PEAKS_MOST, Picture
from dwsr_probe.report.top.port import PortWatch, PredictorPort, is_url
from dwsr_probe.report.top.screen import COLUMN_NOTES, HELP, Screen, plain_line
from dwsr_probe.report.top.terminal import Terminal
from tests.unit import hostile

MIB, GIB = 1 << 20, 1 << 30


def task(name="grow", live=10 * MIB, peak=20 * MIB, pid="7", thread=1, **more):
    return TaskRow(TaskIdentity("7-1", thread, 1.0), pid, name, 3.0, live, peak, GIB, **more)


def ended(name="grow", state="ok", peak=10 * MIB, pid=7):
    return {"task_name": name, "state": state, "alloc_peak_bytes": peak, "pid": pid}


def drawn(picture, width=80, height=24, keys=()):
    screen = Screen(picture)
    screen._colour = False
    screen.lines(width, height)
    for key in keys:
        screen.handle_key(key)
    return screen.lines(width, height)


def plain(line):
    """Without our moves to a column."""
    return re.sub(r"\x1b\[\d+G", " ", line)


# -- figures


@pytest.mark.parametrize(
    "n, text",
    [
        (None, "–"),
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.00 KiB"),
        (10 * MIB, "10.0 MiB"),
        (999 * MIB, "999 MiB"),
        (1023 * MIB, "1023 MiB"),
        (GIB * 1.5, "1.50 GiB"),
        (1 << 62, "9999 TiB"),
        (9.999 * MIB, "10.0 MiB"),
        (99.96 * MIB, "100 MiB"),
    ],
)
def test_sizes_have_eight_characters_at_most(n, text):
    assert figures.size(n) == text and len(text) <= 8


@pytest.mark.parametrize(
    "seconds, text",
    [
        (None, "–"),
        (0, "0.0 s"),
        (59.9, "59.9 s"),
        (60, "1:00"),
        (3599, "59:59"),
        (3600, "1:00:00"),
        (359_999, "99:59:59"),
        (1e6, "12 days"),
    ],
)
def test_times(seconds, text):
    assert figures.duration(seconds) == text and len(text) <= 8


def test_growth_has_a_sign_and_hides_noise():
    assert (
        figures.growth(3 * MIB) == "+3.00 MiB/s"
        and figures.growth(-3 * MIB) == "-3.00 MiB/s"
        and figures.growth(100) == figures.growth(None) == ""
    )


@pytest.mark.parametrize(
    "live, peak, text",
    [
        (0, 0, "········"),
        (GIB, GIB, "████████"),
        (GIB // 2, GIB, "████▒▒▒▒"),
        (1, 1, "▏·······"),
        (9 * GIB, 9 * GIB, "████████"),
        (None, GIB // 2, "▒▒▒▒····"),
        (None, None, "········"),
    ],
)
def test_bars(live, peak, text):
    assert figures.bar(live, peak, GIB, 8) == text
    assert figures.bar(live, peak, None, 8) == "········"


def test_a_sparkline_never_loses_a_peak():
    assert figures.sparkline([0, 1, 2, 3, 4, 5, 6, 7, 8], 9) == "▁▂▃▄▅▆▇██"
    assert (
        figures.sparkline([5], 4) == "   █"
        and figures.sparkline([], 3) == "   "
        and figures.sparkline([0, 0], 2) == "▁▁"
        and figures.sparkline([1], 0) == ""
    )
    for at in range(240):
        line = figures.sparkline([100 if i == at else 1 for i in range(240)], 50)
        assert len(line) == 50 and line.count("█") == 1


@pytest.mark.parametrize(
    "name",
    [
        "plain",
        "\x1b[2J\x1b]2;evil\x07",
        "é" * 40,
        "漢字" * 40,
        "👩‍👩‍👧 family ☃️",
        "x" * 10_000,
        "tab\there",
        "\u202eright to left",
        "\x9b31m",
        "",
        "smooth (1 of 2)",
        "漢字" * 40 + " (1 of 2)",
    ],
)
@pytest.mark.parametrize("width", [1, 12, 33])
def test_names_are_safe_and_exactly_as_wide(name, width):
    text = figures.name(name, width)
    assert cell_len(text) == width and all(c.isprintable() for c in text)


# -- tables


def test_sorting_and_unknown_figures_last():
    pane = Pane("task", TASK_COLUMNS, "live", "")
    rows = [task("a", live=5), task("b", live=None), task("c", live=9), task("d", live=0)]
    pane.fill(rows)
    assert [row.name for row in pane.rows] == ["c", "a", "d", "b"]
    pane.descending = False
    pane.fill(rows)
    assert [row.name for row in pane.rows] == ["d", "a", "c", "b"]
    seen = []
    for _ in range(len(pane.shown_columns())):
        pane.move_sort(1)
        pane.fill(rows)
        seen.append(pane.sorted_by)
    assert (
        sorted(seen) == sorted(column.title for column in pane.shown_columns())
        and "exceeds" not in seen
        and "gpu peak" not in seen
    )


def test_a_column_that_goes_away_does_not_keep_the_order():
    pane = Pane("task", TASK_COLUMNS, "exceeds", "")
    pane.fill([task("a", overrun_ratio=0.1), task("b", overrun_ratio=0.9)])
    assert [row.name for row in pane.rows] == ["b", "a"] and pane.sorted_by == "exceeds"
    pane.fill([task("a"), task("b")])
    assert pane.sorted_by == "task"


def test_filter_and_scroll():
    pane = Pane("task", TASK_COLUMNS, "live", "")
    pane.fill([task(f"Name-{i}", live=i) for i in range(500)], "name-49")
    assert {row.name for row in pane.rows} == {"Name-49", *(f"Name-{i}" for i in range(490, 500))}
    pane.fill([task(f"n{i}", live=i) for i in range(500)])
    pane.scroll(10_000, 9)
    assert pane.offset == 491 and "n0 " in pane.lines(80, 10, True)[-1][0][0]
    pane.fill([task("one")])
    pane.lines(80, 10, True)
    assert pane.offset == 0


@pytest.mark.parametrize("width", [12, 20, 40, 80, 81, 132, 300])
@pytest.mark.parametrize("columns", [TASK_COLUMNS, NAME_COLUMNS, GPU_COLUMNS])
def test_columns_fit_or_go(width, columns):
    pane = Pane("x", columns, columns[0].title, "")
    shown = fitting_columns(columns, width)
    assert shown[0] is columns[0] and sum(pane.widths(shown, width)) + len(shown) - 1 <= width
    assert width < 90 or len(shown) == len(columns)


def test_what_matters_most_stays_in_eighty_columns():
    # with GPUs and forecasts
    assert {c.title for c in TASK_COLUMNS} - {
        c.title for c in fitting_columns(TASK_COLUMNS, 80)
    } == {"pid"}
    assert [
        c.title
        for c in fitting_columns(
            [c for c in TASK_COLUMNS if c.title not in ("gpu peak", "exceeds")], 40
        )
    ] == ["task", "live", "peak"]


# -- pictures


def test_totals_by_name_and_medians():
    picture = Picture("here")
    picture.add(
        Moment(
            records=[ended(peak=n * MIB) for n in range(1, 1002)]
            + [ended("other", "error", None), ended("other", "killed", 5)],
            tasks=[task(), task(thread=2)],
        )
    )
    grow, other = picture.names[Group("grow")], picture.names[Group("other")]
    assert (grow.done, grow.failed, grow.running, grow.peak_max) == (
        1001,
        0,
        2,
        1001 * MIB,
    ) and grow.peak_median == (1001 + 1002 - PEAKS_MOST) / 2 * MIB
    assert (other.done, other.failed, other.killed, other.peak_max, other.peak_median) == (
        2,
        2,
        1,
        5,
        5,
    ) and (picture.done, picture.failed) == (1003, 2)


def graph(operation, chain=None, **more):
    """A finished task of a Dask graph."""
    return ended("store-map", **more) | {"operation": operation, "chain": chain}


def test_rows_are_by_operation_and_chain():
    short, long = ["getitem", "smooth"], ["getitem", "overlap", "smooth"]
    running = port.task_row((graph("smooth", short) | {"gpu": None}).get, "7", 1.0, GIB)
    picture = Picture("here")
    picture.add(Moment(records=[graph("Rms"), graph("Gst"), ended()]))
    assert {row.name for row in picture.names.values()} == {"Rms", "Gst", "grow"}
    assert not any("chain" in line for line in drawn(picture, 120))
    picture.add(Moment(records=[graph("smooth", long)], tasks=[running]))
    assert {(row.name, row.done, row.running) for row in picture.names.values()} == {
        ("Rms", 1, 0),
        ("Gst", 1, 0),
        ("grow", 1, 0),
        ("smooth (1 of 2)", 0, 1),
        ("smooth (2 of 2)", 1, 0),
    }
    assert running.name == "smooth (1 of 2)"
    assert "largest smooth (1 of 2): peak" in plain_line(picture)
    wide, narrow = "\n".join(drawn(picture, 140)), "\n".join(drawn(picture, 80))
    assert "getitem → overlap → smooth" in wide and "chain" in wide and "chain" not in narrow
    found = "\n".join(drawn(picture, 140, 30, ["/", *"overlap", "enter"]))  # of the chain
    assert "smooth (2 of 2)" in found and "smooth (1 of 2)" not in found and "Rms" not in found
    found = "\n".join(drawn(picture, 140, 30, ["/", *"store-m", "enter"]))  # of the keys
    assert "smooth (2 of 2)" in found and "Rms" in found and "\ngrow " not in found


def test_names_of_tasks_that_died_are_those_of_their_rows():
    picture, seven = Picture("here"), ProcessRow("7", "worker-a", rss=5)
    picture.add(Moment([seven]))
    picture.add(Moment([], records=[graph("Rms", ["a", "Rms"], state="killed")]))
    assert picture.killed_with(picture.processes[0]) == ["Rms"]
    picture.add(Moment([], records=[graph("Rms", ["a", "b", "Rms"])]))
    assert picture.killed_with(picture.processes[0]) == ["Rms (1 of 2)"]


@pytest.mark.parametrize("chain", [7, "text", [1], {"a": 1}, [None], ["x"] * 10_000])
@pytest.mark.parametrize("operation", [None, 7, ["x"], "\x1b[2J"])
def test_a_port_may_send_any_chain(operation, chain):
    picture = Picture("here")
    picture.add(Moment(records=[graph(operation, chain), graph(operation)]))
    assert sum(row.done for row in picture.names.values()) == 2
    assert all("\x1b[2J" not in line for line in drawn(picture, 200))


def test_an_own_peak_that_misses_memory_shows_growth():
    unseen = ended(peak=24) | {
        "rss_before_bytes": 50 * MIB,
        "rss_peak_bytes": 210 * MIB,
        "overlap": 0,
        "attribution_reason": "foreign-allocator polars",
    }
    picture = Picture("here")
    picture.add(Moment(records=[unseen, unseen | {"overlap": 1, "task_name": "beside"}]))
    assert picture.names[Group("grow")].peak_max == 160 * MIB
    assert picture.names[Group("beside")].peak_max == 24


def test_growth_over_looks(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    picture = Picture("here")
    for second in range(5):
        now[0] = 100.0 + second
        moment = Moment(tasks=[task(live=second * 10 * MIB), task(thread=2, live=None)])
        picture.add(moment)
        assert (
            moment.tasks[0].rate == (None if second == 0 else pytest.approx(10 * MIB))
            and moment.tasks[1].rate is None
        )
    assert len(picture._live_tracks) == 1 and len(picture._live_tracks["7-1", 1, 1.0]) <= 4


def test_who_has_gone_and_how():
    picture, seven, eight = (
        Picture("here"),
        ProcessRow("7", "worker-a", rss=5),
        ProcessRow("8", "worker-b", rss=6),
    )
    picture.add(Moment([seven, eight], [task()]))
    picture.add(Moment([eight]))
    assert [(p.pid, p.state) for p in picture.processes] == [("8", "running"), ("7", "ended")]
    picture.add(Moment([eight], records=[ended(state="killed")]))
    assert [(p.pid, p.state) for p in picture.processes] == [
        ("8", "running"),
        ("7", "killed"),
    ] and any("killed: grow in worker-a" in line for line in drawn(picture, 120))
    assert "killed: worker-a 7" in plain_line(picture)
    picture.add(Moment([], end_states={"8": None}))
    assert [(p.pid, p.state) for p in picture.processes] == [("7", "killed"), ("8", "died")]
    eight = ProcessRow("8", "worker-b", rss=6)
    picture.add(Moment([eight]))
    picture.add(Moment([eight, ProcessRow("7", "again", rss=1)]))
    assert [(p.name, p.state) for p in picture.processes] == [
        ("worker-b", "running"),
        ("again", "running"),
    ]


def test_forecasts_find_their_tasks():
    """By identity: several tasks of one name in one process, and names that nobody can print."""
    picture = Picture("here")
    one, two, three = task(live=1), task(live=5, thread=2), task("lonely\n", thread=3)
    overrun_ratios = {
        TaskIdentity("7-1", thread, 1.0): ratio for thread, ratio in ((1, 0.2), (2, 0.9))
    }
    picture.add(
        Moment(tasks=[two, one, three]), overrun_ratios | {TaskIdentity("9-1", 3, 1.0): 1.0}
    )
    assert (one.overrun_ratio, two.overrun_ratio, three.overrun_ratio) == (0.2, 0.9, None)
    assert "grow exceeds its room with 90 %" in plain_line(picture)


# -- the screen


def test_every_size_of_screen_is_filled_exactly():
    picture = Picture("a title of some length, such as that of a run")
    devices = [
        {
            "device": 0,
            "name": "Stand-in",
            "live_bytes": 5 * MIB,
            "peak_bytes": 9 * MIB,
            "total_bytes": 10 * MIB,
            "utilisation_percent": 50,
        }
    ]
    picture.add(
        Moment(
            [
                ProcessRow(str(n), f"worker {n}", rss=n * MIB, limit=GIB, devices=devices)
                for n in range(20)
            ],
            [task(f"名前 {n}", thread=n, gpu_peak=5, overrun_ratio=0.5) for n in range(100)],
            [ended(f"name {n}") for n in range(50)],
            records_lost=5,
            boards_unreadable=2,
            trouble="x" * 500,
        )
    )
    for width, height in ((80, 24), (20, 4), (40, 10), (200, 70), (79, 23)):
        for keys in ((), ("tab",), ("tab", "tab"), ("?",), ("/", *"name"), ("p",)):
            lines = drawn(picture, width, height, keys)
            assert len(lines) == height and all(cell_len(plain(line)) <= width for line in lines), (
                width,
                height,
                keys,
            )
    text = "\n".join(map(plain, drawn(picture, 160, 60)))
    assert (
        "0 Stand-in" in text
        and "50 %" in text
        and "5 records lost" in text
        and "2 boards unreadable" in text
        and "gpu peak" in text
        and "exceeds" in text
    )


def test_keys_change_the_screen():
    picture = Picture("here")
    picture.add(Moment(tasks=[task("alpha", peak=1), task("beta", peak=2, thread=2)]))
    screen = Screen(picture)

    def order():
        screen.lines(80, 24)
        return [row.name for row in screen.panes[2].rows]

    assert order() == ["beta", "alpha"]
    screen.handle_key("s")
    assert order() == ["alpha", "beta"]
    for key in "/ALP":
        screen.handle_key(key)
    assert order() == ["alpha"] and screen.editing
    assert screen.handle_key("q") and screen.filter == "ALPq"
    screen.handle_key("backspace")
    screen.handle_key("enter")
    assert order() == ["alpha"] and not screen.editing
    screen.handle_key("escape")
    assert order() == ["alpha", "beta"]
    screen.handle_key("p")
    picture.add(Moment(tasks=[task("gamma")], records=[ended("alpha")]))
    assert order() == ["alpha", "beta"] and screen.picture.names[Group("alpha")].done == 0
    screen.handle_key("p")
    assert order() == ["gamma"] and screen.picture.names[Group("alpha")].done == 1
    screen.handle_key("?")
    shown = " ".join(" ".join(drawn(picture, keys="?")).split())
    # whole, also in 80×24
    assert all(
        text in shown for text in ("any key: back", *(does for _, does in HELP), *COLUMN_NOTES)
    )
    assert screen.handle_key("x") and not screen.helping
    assert not screen.handle_key("q")


def test_a_share_is_of_the_tasks_own_process():
    """A task of 1 GiB in a process of 25 GB, beside a worker of 600 MiB: 4 %, not 170.7 %."""
    picture = Picture("here")
    picture.add(
        Moment(
            [
                ProcessRow("7", "large", run="a", limit=25 * 10**9),
                ProcessRow("8", "worker", run="b", limit=600 * MIB),
            ],
            [],
            [
                ended(peak=GIB, pid=7),
                ended(peak=60 * MIB, pid=8),
                ended("other", peak=540 * MIB, pid=8),
            ],
        )
    )
    grow, other = picture.names[Group("grow")], picture.names[Group("other")]
    assert (
        grow.share_max == 0.1
        and grow.peak_max == GIB
        and grow.share_median == pytest.approx((0.1 + GIB / 25e9) / 2)
        and other.share_max == 0.9
    )
    picture.add(
        Moment(
            [],
            [],
            [
                {**ended("late", peak=60 * MIB, pid=99), "run": "b"},
                {**ended("unknown", pid=99), "run": "c"},
                {**ended("odd"), "pid": 99, "run": ["b"]},
            ],
        )
    )
    assert (
        picture.names[Group("late")].share_max == 0.1
        and picture.names[Group("unknown")].share_max is None
        and picture.names[Group("odd")].share_max is None
    )
    assert [line for line in drawn(picture, 120) if "unknown" in line]


def test_a_log_has_one_line():
    picture = Picture("here")
    picture.add(
        Moment(
            [
                ProcessRow(
                    "7", "a", rss=MIB, limit=GIB, headroom=GIB - MIB, samples=100, samples_late=1
                )
            ],
            [task("two\nlines")],
            [ended(), ended(state="error")],
        )
    )
    line = plain_line(picture)
    assert (
        "\n" not in line
        and "1 process; 1 running; 2 done; 1 failed; rss 1.00 MiB; headroom 1023 MiB; "
        "largest two\\nlines: peak 20.0 MiB live 10.0 MiB 3.0 s; late 1.0 %; lost 0"
        in line
    )


# -- the terminal, and what is read


def test_keys_also_in_pieces():
    terminal = object.__new__(Terminal)
    terminal._incomplete = ""
    assert terminal._parsed("q\x1b[A\x1bOB/é\r\x7f\x1b[5~\x1b[1;5C\t") == [
        "q",
        "up",
        "down",
        "/",
        "é",
        "enter",
        "backspace",
        "page up",
        "tab",
    ]
    assert terminal._parsed("\x1b") == [] and terminal.has_incomplete
    assert (
        terminal._parsed("[") == []
        and terminal._parsed("A") == ["up"]
        and not terminal.has_incomplete
    )
    assert (
        terminal._parsed("\x1b") == []
        and terminal.take_incomplete() == ["escape"]
        and not terminal.has_incomplete
    )
    assert terminal._parsed("\x1bx\x1b\x1b[B") == ["escape", "x", "escape", "down"]


def test_the_terminal_is_given_back_after_an_exception():
    code = (
        "from dwsr_probe.report.top.terminal import Terminal\nwith Terminal() as t:\n   "
        " t.show(['x'])\n    raise RuntimeError('on purpose')"
    )
    ours, theirs = pty.openpty()
    before = termios.tcgetattr(theirs)
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            f"import fcntl, os, termios; os.setsid(); fcntl.ioctl(0, termios.TIOCSCTTY, 0)\n{code}",
        ],
        stdin=theirs,
        stdout=theirs,
        stderr=subprocess.PIPE,
        timeout=600,
    )
    said = os.read(ours, 4096)
    assert (
        b"on purpose" in done.stderr
        and said.endswith(b"\x1b[?7h\x1b[?25h\x1b[?1049l")
        and termios.tcgetattr(theirs) == before
    )
    os.close(ours)
    os.close(theirs)


def test_urls_and_runs_are_told_apart(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert (
        is_url("http://host:1")
        and is_url("host:9464")
        and is_url("[::1]:9464")
        and is_url("https://x/")
    )
    assert not is_url("dwsr-runs/1:2") and not is_url("run") and not is_url("a/b:80")
    (tmp_path / "a:1").mkdir()
    assert not is_url("a:1")


class Hostile(http.server.BaseHTTPRequestHandler):
    """A port that answers in our form, with what nobody should show as it is."""

    record = {
        "process": "1",
        "pid": 1,
        "thread": 7,
        "start": 5.0,
        "seq": 1,
        "task_name": "\x1b]2;evil\x07",
        "state": "running",
        "inputs": [],
        "gpu": [{"device": 0}],
    }
    bad = (
        {"pid": "\x1b[2J"},
        {"thread": [1]},
        {"start": {}},
        {"seq": 10**4000},
        {"alloc_peak_bytes": -5},
        {"alloc_end_bytes": "x"},
        {"gpu": [5]},
        {"task_name": "x" * 50_000},
        {"inputs": 5},
    )
    processes = {
        "processes": [
            5,
            {"pid": 7, "program": ["x"], "devices": 5, "fallbacks": 5, "limit_bytes": 10**400},
            {
                "process": "1",
                "pid": "\x1b[2J",
                "program": "\x1b[31m" * 1000,
                "resident_bytes": 5e300,
                "limit_bytes": -1,
                "headroom_bytes": "x",
                "fallbacks": ["\x1b[1m", 5],
                "devices": [5, {"device": "\x9b1m", "name": "\x07", "live_bytes": -1}],
            },
        ],
        "processes_dropped": 5,
    }

    def do_GET(self):
        tasks = [
            self.record,
            *(
                self.record | fields | {"state": state}
                for fields in self.bad
                for state in ("running", "killed")
            ),
            {"cursor": "1", "lost": 0},
        ]
        body = (
            "".join(json.dumps(line) + "\n" for line in tasks)
            if self.path.startswith("/dwsr/tasks")
            else json.dumps(self.processes)
        ).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_): ...


class Answers(http.server.BaseHTTPRequestHandler):
    """Of a port, by path; anything else is not found."""

    pages = {}

    def do_GET(self):
        body = self.pages.get(self.path.partition("?")[0])
        self.send_response(404 if body is None else 200)
        self.send_header("Content-Length", str(len(body or "")))
        self.end_headers()
        self.wfile.write((body or "").encode())

    def log_message(self, *_): ...


@contextmanager
def answering(pages):
    handler = type("Answering", (Answers,), {"pages": pages})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()


def test_a_port_whose_clock_was_set():
    """The port says how long a task has been running: neither its clock nor ours need be right.
    The limit is that of the task's own process, also if two processes have the same number."""
    tasks = [
        json.loads(TaskRecord(task_name="x", pid=1, process=process, start=start).to_json())
        | {"running_seconds": seconds, "process_limit_bytes": limit}
        for process, start, seconds, limit in (("1-1", 5.0, 50.0, 8), ("1-2", 9e9, 20.0, 9))
    ]
    lines = [*tasks, {"cursor": "1", "lost": 0}]
    processes = [{"process": "1-1", "pid": "1"}, {"process": "1-2", "pid": "1:77"}]
    pages = {
        "/dwsr/tasks": "".join(json.dumps(line) + "\n" for line in lines),
        "/dwsr/processes": json.dumps({"processes": processes}),
    }
    with answering(pages) as url:
        first, second = PortWatch(url).read().tasks
    assert (first.seconds, first.limit, first.pid) == (50.0, 8, "1")
    assert (second.seconds, second.limit, second.pid) == (20.0, 9, "1:77")


def test_a_port_of_an_older_version():
    pages = {"/dwsr/tasks": '{"cursor": "1", "lost": 0}\n'}
    with answering(pages) as url, pytest.raises(WatchError, match="older dwsr-probe"):
        PortWatch(url).read()


@pytest.mark.parametrize("text", ["", "[]", "5", '{"processes": 5}', "[" * 100_000])
def test_a_port_that_answers_nonsense(text):
    pages = {"/dwsr/tasks": '{"cursor": "1"}\n', "/dwsr/processes": text, "/running": text}
    with answering(pages) as url:
        with pytest.raises(WatchError):
            PortWatch(url).read()
        with pytest.raises(StreamError):
            PredictorPort(url).read()


def test_forecasts_of_a_predictor():
    good = {"process": "1-1", "thread": 7, "start": 5.25, "overrun_ratio": 0.5}
    others = [good | {"process": "2-1", "overrun_ratio": value} for value in (None, 7)]
    with answering({"/running": json.dumps({"running": [good, *others]})}) as url:
        assert PredictorPort(url).read() == {TaskIdentity("1-1", 7, 5.25): 0.5}


def test_a_hostile_port():
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hostile) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        watch, picture = PortWatch(f"127.0.0.1:{server.server_port}"), Picture("there")
        for _ in range(3):
            picture.add(watch.read())
        server.shutdown()
    for width in (80, 200):
        text = "".join(map(plain, drawn(picture, width, 50)))
        assert (
            text.isprintable()
            and "\\x1b]2;evil\\x07" in text
            and "evil" in plain_line(picture)
            and plain_line(picture).isprintable()
        )


def test_a_port_that_sends_a_byte_now_and_then(monkeypatch):
    """Its answer would be whole at last, and is not waited for; then it is asked for less."""
    monkeypatch.setattr(port, "ANSWER_S", 0.5)
    limits, slow = [], threading.Event()

    def answer(server, request):
        if b"/dwsr/processes" in request:
            yield b'HTTP/1.1 200 OK\r\nContent-Length: 17\r\n\r\n{"processes": []}'
            return
        limits.append(int(re.search(rb"limit=(\d+)", request)[1]))
        yield hostile.OK + b"Connection: close\r\n\r\n"
        for _ in range(25 if slow.is_set() else 0):
            yield b" "
            server.wait(0.2)
        yield hostile.LAST

    server = hostile.Hostile(answer)
    try:
        watch = PortWatch(server.url)
        slow.set()
        for _ in range(2):
            with pytest.raises(WatchError, match="timed out"):
                watch.read()
        assert limits == [port.RECORDS_LEAST] * 2
        slow.clear()
        monkeypatch.setattr(watch._stream, "_timeout_s", 60.0)
        watch.read()
        watch.read()
        assert limits[2:] == [port.RECORDS_LEAST, 2 * port.RECORDS_LEAST]
    finally:
        server.close()


# -- lines


class Shown:
    """A watch that shows one moment after the other, then the last one for ever."""

    title, interval_s = "made", 0.02

    def __init__(self, *moments):
        self._moments = list(moments)

    def read(self):
        found = self._moments[0] if len(self._moments) == 1 else self._moments.pop(0)
        return replace(found, records=[], processes=list(found.processes))


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(loop, "PLAIN_S", 0.01)
    monkeypatch.setattr(loop, "_GONE_S", 0.3)


def test_no_line_is_printed_twice(quick, capfd):
    here = Moment(processes=[ProcessRow("7", "job.py", rss=MIB)], tasks=[task()])
    loop.print_lines(
        Shown(
            *[here] * 20,
            replace(here, processes=[ProcessRow("7", "job.py", rss=2 * MIB)]),
            *[here] * 20,
            Moment(job_end="the job has ended"),
        ),
        interval_s=0.01,
    )
    lines = [line.partition("; ")[2] for line in capfd.readouterr().out.splitlines()]
    assert (
        len(lines) >= 2
        and "rss 1.00 MiB" in lines[0]
        and lines[-1].endswith("the job has ended")
        and all(a != b for a, b in pairwise(lines))
    )


def test_lines_end_where_nothing_runs(quick, capfd):
    """Of a machine without a job, and after the last one has ended."""
    for moments in ([Moment()], [Moment(processes=[ProcessRow("7", "job.py")]), Moment()]):
        loop.print_lines(Shown(*moments), interval_s=0.01)
        lines = capfd.readouterr().out.splitlines()
        assert lines[-1].endswith("no process with a probe for 0 seconds") and len(lines) <= 4


def test_lines_end_with_their_reader(monkeypatch):
    """Also where nothing changes, so that nothing is written."""
    readable, writable = os.pipe()
    with os.fdopen(writable, "w") as stdout:
        monkeypatch.setattr(sys, "stdout", stdout)
        assert not loop._reader_has_gone()
        os.close(readable)
        assert loop._reader_has_gone()
        loop.print_lines(Shown(Moment(processes=[ProcessRow("7", "job.py")])), interval_s=0.01)
    monkeypatch.setattr(sys, "stdout", None)
    assert loop._reader_has_gone()


class Slow:
    """A port whose first and third look last until somebody has read that it is waited for."""

    title, waits_for, interval_s = "there", "http://there/dwsr/tasks", 0.01

    def __init__(self):
        self.told, self._looks = threading.Semaphore(0), 0

    def read(self):
        self._looks += 1
        if self._looks in (1, 3):
            self.told.acquire(timeout=600)
        ended = "the job has ended" if self._looks > 2 else ""
        return Moment(processes=[ProcessRow("7", "job.py")], job_end=ended)


def test_lines_say_that_a_port_is_waited_for(quick, monkeypatch):
    """Before the first answer and later."""
    monkeypatch.setattr(loop, "_SLOW_S", 0.05)
    monkeypatch.setattr(loop, "_GONE_S", 60.0)
    watch, lines, (readable, writable) = Slow(), [], os.pipe()

    def read():
        with os.fdopen(readable) as stdin:
            for line in stdin:
                lines.append(line.rstrip())
                if "waiting for http://there" in line:
                    watch.told.release()

    reader = threading.Thread(target=read)
    reader.start()
    with os.fdopen(writable, "w") as stdout, monkeypatch.context() as patched:
        patched.setattr(sys, "stdout", stdout)
        loop.print_lines(watch, interval_s=0.01)
    reader.join()
    waited = ["waiting for http://there/dwsr/tasks" in line for line in lines]
    assert waited[0] and any(waited[1:]) and lines[-1].endswith("the job has ended")
