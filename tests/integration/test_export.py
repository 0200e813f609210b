"""Metrics and the stream, served: by `run --metrics`, by `export`, on a Dask worker's port. Real
jobs, hostile clients."""

import base64
import functools
import gzip
import http.client
import json
import os
import re
import signal
import socket
import ssl
import subprocess
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

import psutil
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from dwsr_probe.export.client import Stream as AnyStream
from dwsr_probe.export.client import StreamError
from tests.conftest import COLLECTED, permitted, tasks, wait_until
from tests.integration.conftest import MIB, PY, UNTIL_TOLD, exporter, heard, say

Stream = functools.partial(AnyStream, timeout_s=600)  # the default is not for a slow machine

# -- run --metrics


def test_it_answers_while_the_job_holds_the_gil(cli, run):
    served = run("""
        import ctypes
        with dwsr_probe.task("before"): pass
        libc = ctypes.PyDLL(None)
        with dwsr_probe.task("holds"):
            say("holding")
            while not os.path.exists("enough"):
                libc.usleep(300_000)            # with the GIL, nearly all the time
    """)
    heard(cli, "holding")
    wait_until(lambda: served.value("dwsr_slot_busy", task_name="holds") == 1, "the running task")
    wait_until(
        lambda: served.value("dwsr_tasks_total", task_name="before", outcome="ok") == 1,
        "the task before it",
    )
    (found,) = Stream(served.url).poll(running=True).running
    assert (
        found["task_name"] == "holds"
        and found["seq"] is None
        and found["alloc_peak_bytes"] is not None
        and found["running_seconds"] > 0
        and found["process_headroom_bytes"] > 0
    )
    (process,) = json.loads(served.get("/dwsr/processes"))["processes"]
    assert process["process"] == found["process"] and process["pid"] == str(found["pid"])
    assert process["limit_bytes"] == found["process_limit_bytes"] and process["running_tasks"] == 1
    say(cli, "enough")
    assert served.end() == 0
    assert "Traceback" not in served.stderr()


def test_a_killed_process_of_the_job_is_counted_once(cli, run):
    served = run(
        """
        import signal, subprocess
        child = subprocess.Popen([sys.executable, "-c", '''
        import dwsr_probe, os, time
        with dwsr_probe.task("done"): pass
        with dwsr_probe.task("victim"):
            held = bytearray(5_000_000)
            open("inside", "w").close()
            time.sleep(600)
        '''.replace("\\n        ", "\\n")])
        wait_for("inside")
        wait_for("kill"); child.kill(); child.wait()
        with dwsr_probe.task("after"): pass
        wait_for("enough")
        raise SystemExit(3)
    """,
        "--linger",
        "60",
    )
    heard(cli, "inside")
    wait_until(lambda: (served.value("dwsr_slot_peak_bytes") or 0) >= 5_000_000, "its peak so far")
    two = {p for p in re.findall(r'dwsr_probe_up\{pid="(\d+)"', served.get())}
    assert len(two) == 2
    say(cli, "kill")
    wait_until(lambda: served.value("dwsr_tasks_total", outcome="killed") == 1, "the killed task")
    wait_until(
        lambda: served.value("dwsr_tasks_total", task_name="after") == 1, "the task after it"
    )
    assert (
        served.value("dwsr_tasks_total", outcome="killed") == 1
        and served.value("dwsr_tasks_total", task_name="done") == 1
    )
    # its gauges are gone, its counts are not
    assert len(re.findall(r"dwsr_probe_up\{", served.get())) == 1
    say(cli, "enough")
    wait_until(lambda: "the command has ended" in served.stderr(), "the end of the job")
    told = Stream(served.url).poll().records
    assert sorted(r["task_name"] for r in told) == ["after", "done", "victim"] and [
        r["state"] for r in told if r["task_name"] == "victim"
    ] == ["killed"]
    assert (
        served.value("dwsr_tasks_total", outcome="killed") == 1
        and served.value("dwsr_probe_up") is None
    )
    assert served.end(signal.SIGINT) == 3
    assert len(tasks(cli.records(cli.cwd / "run"))) == 3


def test_linger_ends_by_itself_and_by_ctrl_c(cli, run):
    served = run("with dwsr_probe.task('x'): pass\nraise SystemExit(7)", "--linger", "0.3")
    assert served.end() == 7
    served = run("import signal; os.kill(os.getpid(), signal.SIGKILL)", "--linger", "600")
    wait_until(lambda: "the command has ended" in served.stderr(), "the end of the job")
    assert served.value("dwsr_names_dropped") == 0
    assert served.end(signal.SIGINT) == 137
    assert "Traceback" not in served.stderr()


def test_stopped_and_continued(cli, run):
    """Ctrl-Z and fg, or a debugger: neither the job nor the linger notices."""
    served = run(
        "with dwsr_probe.task('x'): pass\nsay('up'); wait_for('enough'); raise SystemExit(5)",
        "--linger",
        "600",
    )
    heard(cli, "up")

    def pause():
        served.process.send_signal(signal.SIGSTOP)
        wait_until(
            lambda: psutil.Process(served.process.pid).status() == psutil.STATUS_STOPPED, "the stop"
        )
        stopped = time.monotonic()
        wait_until(lambda: time.monotonic() > stopped + 0.7, "longer than any of its timeouts")
        served.process.send_signal(signal.SIGCONT)

    pause()
    assert served.value("dwsr_probe_up") == 1
    say(cli, "enough")
    wait_until(lambda: "the command has ended" in served.stderr(), "the end of the job")
    pause()
    assert served.value("dwsr_tasks_total") == 1
    assert served.end(signal.SIGINT) == 5


def test_a_port_that_is_taken(cli):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = cli("run", "-q", "--metrics", port, "sh", "-c", "echo ran; exit 4")
        assert (done.returncode, done.stdout) == (4, "ran\n")
        assert done.stderr.splitlines() == [
            f"dwsr-probe: cannot listen on 127.0.0.1:{port}: Address already in use; choose another"
            " port, or 0 for any that is free. The job runs without metrics"
        ]
        done = cli("run", "--strict", "--metrics", port, "sh", "-c", "echo ran")
        assert (
            (done.returncode, done.stdout) == (125, "")
            and "Nothing was run" in done.stderr
            and len(done.stderr.splitlines()) == 1
        )
        done = cli("export", "--listen", port)
        # root reads what others have left on this machine
        said = [line for line in done.stderr.splitlines() if "cannot read the board" not in line]
        assert done.returncode == 1 and len(said) == 1 and "Address already in use" in said[0]


@pytest.mark.parametrize(
    "words",
    [
        ("--metrics", "x"),
        ("--metrics", "99999"),
        ("--metrics", "-1"),
        ("--metrics", ""),
        ("--linger", "5"),
        ("--tls-cert", "x"),
    ],
)
def test_options_that_make_no_sense(cli, words):
    done = cli("run", *words, "sh", "-c", "echo ran")
    assert (
        done.returncode == 2
        and done.stdout == ""
        and "Traceback" not in done.stderr
        and len(done.stderr.splitlines()) <= 4
    )


def test_the_job_inherits_nothing(cli, run):
    served = run("""
        import json

        def of(name):
            return os.readlink(f"/proc/self/fd/{name}")

        json.dump(
            [
                of(fd)
                for fd in os.listdir("/proc/self/fd")
                if os.path.exists(f"/proc/self/fd/{fd}") and int(fd) > 2
            ],
            open("fds", "w"),
        )
        json.dump(
            [
                line.split()[1]
                for line in open("/proc/self/status")
                if line.startswith(("SigBlk", "SigIgn"))
            ],
            open("signals", "w"),
        )
        say("written")
        wait_for("enough")
    """)
    heard(cli, "written")
    found = json.loads((cli.cwd / "fds").read_text())
    assert not [
        name for name in found if "socket" in name or "sqlite" in name or "eventpoll" in name
    ]
    served.get()
    say(cli, "enough")
    assert served.end() == 0
    (bare,) = [
        json.loads(text)
        for text in [
            subprocess.run(
                [
                    PY,
                    "-c",
                    (
                        "import json; print(json.dumps([line.split()[1] for line in"
                        " open('/proc/self/status') if line.startswith(('SigBlk', 'SigIgn'))]))"
                    ),
                ],
                capture_output=True,
                text=True,
            ).stdout
        ]
    ]
    assert json.loads((cli.cwd / "signals").read_text()) == bare


def test_the_thread_comes_after_the_fork(cli):
    """Python 3.12 warns of forks in processes with threads, and is right."""
    done = cli(
        "run",
        "-q",
        "--metrics",
        "0",
        PY,
        "-c",
        "print(1)",
        env=dict(cli.env, PYTHONWARNINGS="always"),
    )
    assert done.stdout == "1\n" and "fork" not in done.stderr


def test_a_probe_that_is_started_again_has_one_set_of_gauges(cli, run):
    """Its closed board stays beside the new one while the process lives: two series with the
    same labels would make the scrape invalid."""
    served = run("""
        with dwsr_probe.task("one"): pass
        dwsr_probe.stop()
        dwsr_probe.start()
        with dwsr_probe.task("two"): pass
        say("again"); wait_for("enough")
    """)
    heard(cli, "again")
    wait_until(lambda: served.value("dwsr_tasks_total") == 2, "both tasks")
    lines = [
        line.rpartition(" ")[0] for line in served.get().splitlines() if not line.startswith("#")
    ]
    assert len(lines) == len(set(lines)) and served.value("dwsr_probe_up") == 1
    say(cli, "enough")
    assert served.end() == 0


def test_a_reader_that_waits_gets_the_last_record_when_the_job_ends(cli, run):
    """One: of several a slow job may have ended only some when the reader is answered."""
    served = run("say('up'); wait_for('go')\nwith dwsr_probe.task('last'): pass\n")
    heard(cli, "up")
    answers = []
    reader = threading.Thread(target=first_answer, args=(Stream(served.url), answers))
    reader.start()
    wait_until(
        lambda: len(psutil.Process(served.process.pid).net_connections()) > 1,
        "the reader's connection",
    )
    say(cli, "go")
    assert served.end() == 0
    reader.join(600)
    assert (
        answers
        and len(answers[0].records) == 1
        and "Traceback" not in served.stderr()
        and "Task was destroyed" not in served.stderr()
    )


# -- formats


def test_formats_and_paths(cli, serve, board_dir):
    served = exporter(serve, board_dir)

    def ask(path, method="GET", **headers):
        connection = http.client.HTTPConnection("127.0.0.1", served.port, timeout=600)
        connection.request(
            method, path, headers={name.replace("_", "-"): value for name, value in headers.items()}
        )
        answer = connection.getresponse()
        body = answer.read()
        connection.close()
        return answer, body

    answer, text = ask("/metrics")
    assert answer.getheader("Content-Type").startswith("text/plain; version=") and list(
        parse_text(text.decode())
    )
    assert (
        answer.getheader("Server") == "dwsr-probe"
        and answer.getheader("Cache-Control") == "no-store"
        and answer.getheader("X-Content-Type-Options") == "nosniff"
    )
    answer, text = ask("/metrics", Accept="application/openmetrics-text; version=1.0.0")
    assert (
        answer.getheader("Content-Type").startswith("application/openmetrics-text")
        and text.endswith(b"# EOF\n")
        and list(parse_openmetrics(text.decode()))
    )
    answer, text = ask("/metrics", Accept_Encoding="gzip, deflate")
    assert answer.getheader("Content-Encoding") == "gzip" and b"dwsr_build_info" in gzip.decompress(
        text
    )
    for refused in ("identity", "gzip;q=0", "gzip;q=0.0", "br", ""):
        answer, text = ask("/metrics", Accept_Encoding=refused)
        assert answer.getheader("Content-Encoding") is None and b"dwsr_build_info" in text
    answer, text = ask("/metrics", "HEAD")
    assert (
        answer.status == 200
        and text == b""
        and answer.getheader("Content-Type").startswith("text/plain")
    )
    answer, text = ask("/dwsr/tasks", "HEAD")
    assert answer.status == 200 and text == b""
    answer, text = ask("/dwsr/tasks")
    assert (
        answer.getheader("Content-Type") == "application/x-ndjson" and json.loads(text)["lost"] == 0
    )
    answer, text = ask("/dwsr/tasks", Accept_Encoding="gzip")
    assert json.loads(gzip.decompress(text))["lost"] == 0
    answer, text = ask("/sd")
    assert answer.getheader("Content-Type") == "application/json" and json.loads(text)[0][
        "targets"
    ] == [f"{socket.gethostname()}:{served.port}"]
    assert b"/dwsr/tasks" in ask("/")[1] and ask("/-/healthy")[1] == b"ok\n"
    for path in (
        "/nothing",
        "/metrics/",
        "/../../etc/passwd",
        "/dwsr/../../../etc/passwd",
        "/%2e%2e/%2e%2e/etc/passwd",
        "//etc/passwd",
        "/metrics%00",
        "/static/x",
        "/favicon.ico",
    ):
        answer, text = ask(path)
        assert answer.status == 404 and b"root:" not in text, path
    for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS", "NONSENSE"):
        assert ask("/metrics", method)[0].status == 405, method
    assert served.end(signal.SIGTERM) == 0 and served.stderr().count("\n") == 1


# -- export

TASKS = """
import dwsr_probe, os, sys, time
assert dwsr_probe.start()
for i in range(int(sys.argv[1])):
    with dwsr_probe.task(sys.argv[2]): pass
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def program(cli):
    """Start a program with a probe of its own, as under a Dask preload: it has run its tasks and
    waits."""
    started = []

    def start(count, name="work", **options):
        process = subprocess.Popen(
            [PY, "-c", options.pop("code", TASKS), str(count), name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=cli.cwd,
            env=dict(cli.env, **options.pop("environ", {})),
            **options,
        )
        started.append(process)
        assert process.stdout.readline() == "ready\n"
        return process

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()
    cli.boards_may_stay = True


def end(process):
    process.communicate()
    assert process.returncode == 0


def test_export_counts_what_ends_while_it_is_there(cli, serve, board_dir, program):
    before = program(5, "before")
    served = exporter(serve, board_dir)
    assert (
        served.value("dwsr_probe_up") == 1
        and served.value("dwsr_tasks_total", task_name="before") is None
    )
    assert len(Stream(served.url).poll().records) == 5  # held all the same
    first, second = program(10, "work"), program(20, "work")
    wait_until(lambda: served.value("dwsr_tasks_total", task_name="work") == 30, "30 tasks")
    assert served.value("dwsr_probe_up") == 3
    end(first)
    end(before)
    wait_until(lambda: served.value("dwsr_probe_up") == 1, "two processes gone")
    assert served.value("dwsr_tasks_total", task_name="work") == 30
    end(second)
    wait_until(lambda: served.value("dwsr_probe_up") is None, "all gone")
    assert served.value("dwsr_tasks_total", task_name="work") == 30
    assert len(Stream(served.url).poll().records) == 35
    assert served.end(signal.SIGTERM) == 0


def test_export_a_killed_task_once_and_a_restart_counts_nothing_twice(
    cli, serve, board_dir, program
):
    served = exporter(serve, board_dir)
    stream = Stream(served.url)
    victim = program(
        3,
        "work",
        code=TASKS.replace('print("ready"', 'dwsr_probe.task("victim").__enter__()\nprint("ready"'),
    )
    wait_until(lambda: served.value("dwsr_slot_busy", task_name="victim") == 1, "the victim")
    victim.kill()
    victim.wait()
    wait_until(lambda: served.value("dwsr_tasks_total", outcome="killed") == 1, "the kill")
    told = polled(stream, 4)
    assert [r["state"] for r in told] == ["ok", "ok", "ok", "killed"]
    port = served.port
    assert served.end(signal.SIGTERM) == 0
    # the dead board is still there
    served = serve("export", "--listen", port, "--board-dir", board_dir)
    assert served.value("dwsr_tasks_total") is None and stream.poll().records == []
    assert len(Stream(served.url).poll().records) == 4  # for a reader that is new
    after = program(2, "after")
    assert len(polled(stream, 2)) == 2 and served.value("dwsr_tasks_total") == 2
    end(after)
    assert served.end(signal.SIGTERM) == 0


def test_export_a_probe_that_is_started_again_has_one_set_of_gauges(cli, serve, board_dir, program):
    """Also if its closed board lies beside the new one: two series with the same labels would
    make the scrape invalid."""
    served = exporter(serve, board_dir)
    program(
        1,
        "x",
        code=TASKS.replace(
            'print("ready"',
            '''
kept = open(dwsr_probe._core.board_path(), "rb")
name = kept.name
dwsr_probe.stop()
open(name, "wb").write(kept.read())
assert dwsr_probe.start()
with dwsr_probe.task("x"): pass
print("ready"''',
        ),
    )
    assert len(list(board_dir.glob("*.board"))) == 2
    wait_until(lambda: served.value("dwsr_tasks_total") == 2, "both tasks")
    lines = [
        line.rpartition(" ")[0] for line in served.get().splitlines() if not line.startswith("#")
    ]
    assert len(lines) == len(set(lines)) and served.value("dwsr_probe_up") == 1


def test_boards_come_and_go_in_the_middle_of_scrapes(cli, serve, board_dir, program):
    """Also boards that are no boards. No counter goes back, no scrape fails."""
    served = exporter(serve, board_dir)
    stop, failures, last = threading.Event(), [], {}

    def hammer():
        while not stop.is_set():
            try:
                for family in parse_text(served.get()):
                    for sample in family.samples:
                        if sample.name == "dwsr_tasks_total":
                            key = tuple(sorted(sample.labels.items()))
                            if sample.value < last.get(key, 0):
                                failures.append((key, last[key], sample.value))
                            last[key] = max(sample.value, last.get(key, 0))
                json.loads(served.get("/sd"))
                Stream(served.url).poll(running=True)
            except Exception as error:
                failures.append(error)

    threads = [threading.Thread(target=hammer) for _ in range(3)]
    anchor = program(1, "anchor")
    for thread in threads:
        thread.start()
    for n in range(6):
        process = program(50, f"round {n % 3}")
        for name, content in (
            ("noise.board", os.urandom(9000)),
            ("empty.board", b""),
            ("text.board", b"x"),
        ):
            (board_dir / name).write_bytes(content)
        os.mkfifo(board_dir / "pipe.board")
        (board_dir / "link.board").symlink_to("/etc/passwd")
        (board_dir / "folder.board").mkdir()
        copy = board_dir / "copy.board"
        copy.write_bytes(next(board_dir.glob(f"*{process.pid}*.board")).read_bytes())
        os.truncate(copy, 8192)
        process.kill() if n % 2 else end(process)
        for path in board_dir.glob("*.board"):
            if str(anchor.pid) not in path.name:
                path.rmdir() if path.name == "folder.board" else path.unlink()
    stop.set()
    for thread in threads:
        thread.join()
    assert not failures
    end(anchor)
    assert served.end(signal.SIGTERM) == 0 and "Traceback" not in served.stderr()


def test_root_serves_all_users(cli, serve, program):
    permitted(os.geteuid() == 0, "be another user (needs root)")
    theirs = Path("/tmp") / f"dwsr-probe-{65_000 + os.getpid() % 500}"
    uid = int(theirs.name.rpartition("-")[2])
    theirs.mkdir(mode=0o700)
    os.chown(theirs, uid, uid)
    environ = {
        name: value
        for name, value in cli.env.items()
        if name not in ("DWSR_PROBE_BOARD_DIR", "XDG_RUNTIME_DIR")
    }
    try:
        served = serve("export", "--listen", "0", env=environ)
        # As root once, then as the other: their interpreter may lie where they may not read.
        process = program(
            7,
            "of another user",
            code=TASKS.replace(
                "assert dwsr_probe.start()",
                f"""
assert dwsr_probe.start()
dwsr_probe.stop()
os.setgid({uid}); os.setuid({uid})
assert dwsr_probe.start(board_dir={str(theirs)!r})
""",
            ),
        )
        wait_until(
            lambda: served.value("dwsr_tasks_total", task_name="of another user") == 7,
            "the other user's tasks",
        )
        assert served.value("dwsr_probe_up", pid=str(process.pid)) == 1
        end(process)
        assert served.end(signal.SIGTERM) == 0
    finally:
        for path in theirs.iterdir():
            path.unlink()
        theirs.rmdir()


def test_a_user_cannot_break_roots_exporter(cli, serve, board_dir, program):
    """What a board says of itself is its user's: facts of the wrong kind are left out."""
    served = exporter(serve, board_dir)
    liar = program(
        1,
        "liar",
        code=TASKS.replace(
            'print("ready"',
            """
from dwsr_probe import _core
assert _core.set_facts(b'{"workers": [{"address": 5, "memory_limit_bytes": "x", "managed_bytes": 1'
                       + b'0' * 400 + b', "http": 7}, 3]}')
print("ready\"""",
        ),
    )
    honest = program(3, "honest")
    wait_until(lambda: served.value("dwsr_tasks_total", task_name="honest") == 3, "the honest one")
    assert (
        served.value("dwsr_tasks_total", task_name="liar") == 1
        and served.value("dwsr_probe_up") == 2
    )
    assert len(json.loads(served.get("/sd"))) == 1
    end(liar)
    end(honest)


def test_file_sd_and_the_end(cli, serve, board_dir):
    target = cli.cwd / "sd" / "target.json"
    done = cli("export", "--listen", "0", "--board-dir", board_dir, "--file-sd", target)
    assert (
        done.returncode == 1
        and "cannot write" in done.stderr
        and len(done.stderr.splitlines()) == 1
    )
    target.parent.mkdir()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        served = exporter(serve, board_dir, "--file-sd", target)
        assert json.loads(target.read_text()) == [
            {
                "targets": [f"{socket.gethostname()}:{served.port}"],
                "labels": {"dwsr_kind": "exporter"},
            }
        ]
        assert os.listdir(target.parent) == ["target.json"]
        assert served.end(number) == 0 and not list(target.parent.iterdir())
    served = exporter(serve, board_dir, "--file-sd", target, "--advertise", "node7:80")
    assert (
        json.loads(target.read_text())[0]["targets"]
        == json.loads(served.get("/sd"))[0]["targets"]
        == ["node7:80"]
    )
    target.unlink()  # somebody was faster
    assert served.end(signal.SIGTERM) == 0 and "Traceback" not in served.stderr()


# -- the stream


def never_reads(port, path="/dwsr/tasks?limit=100000", count=1):
    """Clients that ask and do not read."""
    found = []
    for _ in range(count):
        client = socket.create_connection(("127.0.0.1", port), timeout=600)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        found.append(client)
    return found


def polled(stream, count):
    """Poll until there are so many, however many answers that takes."""
    found = []
    wait_until(
        lambda: found.extend(stream.poll(wait_s=10).records) or len(found) >= count,
        f"{count} records",
    )
    return found


def first_answer(stream, answers, **options):
    """The first answer with records, of a reader that waits as long as it may."""

    def answered():
        answer = stream.poll(wait_s=60, **options)
        return answer if answer.records else None

    answers.append(wait_until(answered, "an answer"))


def read_until(stream, count, seen, restart=False, told=lambda: None, **options):
    """Poll until `seen` has so many; with `restart`, by a new reader each time, from what the
    last one has saved. `told` is called after each answer."""

    def more():
        nonlocal stream
        if restart:
            stream = Stream(stream.url, state=json.loads(json.dumps(stream.state)))
        seen.extend((r["process"], r["seq"]) for r in stream.poll(wait_s=2, **options).records)
        told()
        return len(seen) >= count

    wait_until(more, f"{count} records")
    return stream


# Jobs that make more records than a ring holds (8,192), but no more than that before somebody has
# read them.
PACED = (
    COLLECTED
    + """
def storm(count):
    for i in range(count):
        if i % 2_000 == 0: collected(i - 4_000)
        with dwsr_probe.task("paced"): pass
"""
)


def test_a_hundred_thousand_tasks_each_once(cli, run):
    """While they run: to a reader that is restarted again and again, to one that is not, beside
    readers that never read."""
    served = run(
        PACED + "say('up'); wait_for('go'); storm(100_000); say('done'); wait_for('enough')"
    )
    heard(cli, "up")
    before, seen = served.rss(), ([], [])
    say(cli, "go")
    idle = never_reads(served.port, count=5)
    readers = [
        threading.Thread(
            target=read_until,
            args=(Stream(served.url), 100_000, seen[0], True),
            kwargs={"limit": 7_001},
        ),
        threading.Thread(target=read_until, args=(Stream(served.url), 100_000, seen[1])),
    ]
    for reader in readers:
        reader.start()
    heard(cli, "done")
    idle += never_reads(served.port, count=200)
    for reader in readers:
        reader.join(600)
    for found in seen:
        assert len(found) == len(set(found)) == 100_000 and {seq for _, seq in found} == set(
            range(1, 100_001)
        )
    assert served.value("dwsr_tasks_total", task_name="paced", outcome="ok") == 100_000
    assert served.rss() - before < 300 * MIB
    say(cli, "enough")
    assert served.end() == 0  # they do not hold the end, either
    for client in idle:
        client.close()


def test_the_stream_of_an_exporter_across_its_restart(cli, serve, board_dir, program):
    served = exporter(serve, board_dir, "--keep", "200000")
    code = TASKS.replace(
        "for i in range(int(sys.argv[1]))",
        UNTIL_TOLD
        + """
for i in range(100_000):
    if i % 2_000 == 0 and i > 4_000: wait_for(f"read-{i - 4_000}")
    if i == 50_000: say("half"); wait_for("go on")
    with dwsr_probe.task("paced"): pass
for i in range(0)""",
    )
    worker = threading.Thread(target=program, args=(0,), kwargs={"code": code})
    worker.start()
    seen, stream = [], Stream(served.url)

    def told():
        for count in range(len(seen) // 2_000 * 2_000, 0, -2_000):
            if (cli.cwd / f"read-{count}").exists():
                break
            say(cli, f"read-{count}")

    read_until(stream, 50_000, seen, told=told)
    heard(cli, "half")
    port = served.port
    assert served.end(signal.SIGTERM) == 0
    with pytest.raises(StreamError):
        stream.poll()
    served = serve("export", "--listen", port, "--board-dir", board_dir, "--keep", "200000")
    say(cli, "go on")
    read_until(stream, 100_000, seen, told=told)
    worker.join(600)
    assert (
        stream.poll().records == [] and len(set(seen)) == len(seen) == 100_000 and stream.lost == 0
    )
    # what rings had lost before it came is no news
    assert (
        served.value("dwsr_tasks_total") == 50_000
        and served.value("dwsr_probe_records_lost_total") == 0
    )


def test_what_a_ring_has_overwritten_is_counted(cli, serve, board_dir, program):
    served = exporter(serve, board_dir)
    first = program(1, "first")
    stream = Stream(served.url)
    assert len(polled(stream, 1)) == 1
    served.process.send_signal(signal.SIGSTOP)
    program(100_000, "storm")
    served.process.send_signal(signal.SIGCONT)
    seen = []

    def all_there():
        seen.extend(stream.poll(wait_s=2).records)
        return len(seen) + stream.lost >= 100_000

    wait_until(all_there, "the rest of the storm")
    assert stream.lost > 0 and len(seen) + stream.lost == 100_000 and len(seen) >= 8192
    lost = served.value("dwsr_probe_records_lost_total")
    assert 0 < lost <= stream.lost  # the stream also lacks what the exporter keeps no longer
    assert served.value("dwsr_tasks_total", task_name="storm") == 100_000
    assert json.loads(served.get("/dwsr/tasks?limit=1").splitlines()[-1])["lost"] == lost
    end(first)


def test_a_reader_that_waits_is_answered_as_soon_as_something_ends(cli, run):
    served = run("""
        with dwsr_probe.task("first"): pass
        with dwsr_probe.task("outer"):
            held = bytearray(3_000_000)
            say("up"); wait_for("go")
            with dwsr_probe.task("inner"): pass
            wait_for("enough")
    """)
    heard(cli, "up")
    stream = Stream(served.url, timeout_s=30)
    assert [r["task_name"] for r in polled(stream, 1)] == ["first"]
    answers = []
    reader = threading.Thread(target=first_answer, args=(stream, answers), kwargs={"running": True})
    reader.start()
    say(cli, "go")
    reader.join(600)
    (answer,) = answers
    assert [r["task_name"] for r in answer.records] == ["inner"] and [
        r["task_name"] for r in answer.running
    ] == ["outer"]
    assert (
        3_000_000 <= answer.running[0]["alloc_peak_bytes"] < 6_000_000
        and answer.running[0]["state"] == "running"
        and answer.running[0]["duration"] is None
    )
    assert stream.poll().records == [] and stream.lost == 0
    say(cli, "enough")
    assert served.end() == 0


def lines(served, query):
    return [json.loads(line) for line in served.get(f"/dwsr/tasks?{query}").splitlines()]


BAD = [
    "limit=0",
    "limit=-1",
    "limit=x",
    "limit=1.5",
    "limit=100001",
    "limit=" + "9" * 400,
    "limit=",
    "wait=-1",
    "wait=61",
    "wait=nan",
    "wait=inf",
    "wait=1e999",
    "wait=x",
    "since=%ff%fe",
    "limit=%00",
]


def cursors(origin):
    return [
        "",
        "0",
        "x",
        "~",
        "~~",
        "~~~~",
        "-1",
        f"{origin}~-1~0",
        f"{origin}~x~y",
        f"{origin}~²~0",
        f"{origin}~{9**99}~0",
        f"{origin}~1~{'9' * 18}",
        "%F0%9F%9B%A2",
        "a" * 5000,
        "%00",
        "0'--",
        f"{origin}~1",
        f"{origin}~1~2~3",
        "1 OR 1=1",
    ]


@pytest.mark.parametrize("kind", ["run", "export"])
def test_limits_and_garbage_cursors(cli, serve, run, board_dir, program, kind):
    if kind == "run":
        served = run(
            "for i in range(5000):\n  with dwsr_probe.task('x'): pass\nsay('up');"
            " wait_for('enough')"
        )
        heard(cli, "up")
    else:
        program(5000, "x")
        served = exporter(serve, board_dir)
    wait_until(lambda: len(lines(served, "since=0")) == 5001, "5,000 records")
    for limit in (1, 7, 1999, 2000, 2001, 4999, 5000, 6000):
        *records, last = lines(served, f"limit={limit}")
        assert [r["seq"] for r in records] == list(range(1, min(limit, 5000) + 1)) and set(
            last
        ) == {"cursor", "lost"}
        *rest, _ = lines(served, f"limit=3&since={last['cursor']}")
        assert [r["seq"] for r in rest] == list(range(limit + 1, 5001))[:3]
    origin = last["cursor"].split("~")[0]
    for cursor in cursors(origin):
        *records, last = lines(served, f"limit=2&since={urllib.request.quote(cursor, safe='%')}")
        # from the start, or from where it says
        assert [r["seq"] for r in records] in ([1, 2], [2, 3]) and last["lost"] >= 0, cursor
    for query in BAD:
        with pytest.raises(urllib.error.HTTPError) as caught:
            served.get(f"/dwsr/tasks?{query}")
        text = caught.value.read().decode()
        assert (
            caught.value.code == 400
            and text.startswith("400: ")
            and len(text) < 200
            and "Traceback" not in text
        ), query
    say(cli, "enough")


# -- hostile networks


def test_fifty_scrapers_at_once(cli, serve, board_dir, program):
    program(2000, "x")
    served = exporter(serve, board_dir)
    found = []

    def scrape():
        for _ in range(3):
            found.append("dwsr_build_info" in served.get())
            found.append(len(Stream(served.url).poll().records) == 2000)

    threads = [threading.Thread(target=scrape) for _ in range(50)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(600)
    assert len(found) == 300 and all(found)


def test_five_thousand_names_stay_bounded(cli, run):
    served = run(
        COLLECTED
        + """
say("begun")
for i in range(10_000):
    with dwsr_probe.task(f"name-{i % 5_000}-" + "x" * 200): pass
    if i % 1_000 == 0: collected(i - 2_000)
wait_for("enough")
"""
    )
    heard(cli, "begun")
    before = served.rss()
    wait_until(lambda: served.value("dwsr_tasks_total") == 10_000, "all of them")
    names = {
        s.labels["task_name"]
        for f in parse_text(served.get())
        for s in f.samples
        if s.name == "dwsr_tasks_total"
    }
    assert len(names) == 81 and "other" in names and served.value("dwsr_names_dropped") == 4_920
    assert served.rss() - before < 64 * MIB
    say(cli, "enough")
    assert served.end() == 0


def test_half_open_connections_hold_nobody(cli, serve, board_dir, program):
    """Six hundred that send a byte now and then; a reader that waits keeps its connection, and
    others get theirs."""
    served = exporter(serve, board_dir)
    stream, answers = Stream(served.url), []
    reader = threading.Thread(target=first_answer, args=(stream, answers))
    reader.start()
    wait_until(
        lambda: len(psutil.Process(served.process.pid).net_connections()) > 1,
        "the reader's connection",
    )
    before, clients = served.rss(), []
    for _ in range(600):
        client = socket.create_connection(("127.0.0.1", served.port), timeout=600)
        client.sendall(b"GET /metrics HTTP/1.1\r\nX-Slow: ")
        clients.append(client)
    for _ in range(5):
        for client in clients:
            try:
                client.send(b"x")
            except OSError:
                pass
        assert served.status() == 200
    assert len(psutil.Process(served.process.pid).net_connections()) < 300
    for _ in range(300):  # and ones that come and go
        assert served.status("/-/healthy") == 200
    program(1, "x")
    reader.join(600)
    assert answers and len(answers[0].records) == 1
    assert served.rss() - before < 60 * MIB
    for client in clients:
        client.close()


def garbage():
    yield b"\x00" * 100
    yield os.urandom(5000)
    yield b"\r\n" * 5000
    yield b"GET\r\n\r\n"
    yield b"GET /metrics\r\n"  # HTTP/0.9
    yield b"GET /metrics HTTP/9.9\r\n\r\n"
    yield b"GET /metrics HTTP/1.1\r\nHost: a\r\n b\r\n\r\n"
    yield b"GET /metrics HTTP/1.1\r\nContent-Length: -5\r\n\r\n"
    yield b"GET /metrics HTTP/1.1\r\nContent-Length: 99999999999\r\n\r\nx"
    yield b"GET /metrics HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n"
    yield b"GET /metrics HTTP/1.1\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\nabc"
    yield (
        b"POST /metrics HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10000000\r\n\r\n"
        + b"x" * 100_000
    )
    yield b"GET /metrics HTTP/1.1\r\n" + b"".join(b"X-%d: y\r\n" % n for n in range(1000)) + b"\r\n"
    yield b"GET /metrics HTTP/1.1\r\nX: " + b"y" * 10_000_000 + b"\r\n\r\n"
    yield b"GET /" + b"a" * 10_000_000 + b" HTTP/1.1\r\n\r\n"
    yield b"GET http://evil/metrics HTTP/1.1\r\n\r\n"
    yield b"CONNECT evil:80 HTTP/1.1\r\n\r\n"
    yield b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
    yield bytes.fromhex("16030100a5010000a10303") + os.urandom(150)  # a TLS client hello
    yield b"GET /dwsr/tasks?since=" + b"%00" * 3000 + b" HTTP/1.1\r\n\r\n"
    yield (
        "GET /metrics HTTP/1.1\r\nAuthorization: Bearer \u2603\r\nAccept:"
        " \u2603\r\nAccept-Encoding: \u2603\r\n\r\n".encode()
    )


def test_garbage(cli, serve, board_dir):
    served = exporter(serve, board_dir)
    served.get()
    before = served.rss()
    for data in garbage():
        with socket.create_connection(("127.0.0.1", served.port), timeout=600) as client:
            try:
                client.sendall(data)
                client.shutdown(socket.SHUT_WR)
                answer = client.recv(1 << 20)
            except TimeoutError:
                raise
            except OSError:  # it was cut off, at whichever of these
                answer = b""
        assert answer == b"" or answer.startswith(b"HTTP/1.1 "), (data[:60], answer[:60])
        assert b"Traceback" not in answer
        assert served.status() == 200, data[:60]
    # pipelining: each is answered, in order
    with socket.create_connection(("127.0.0.1", served.port), timeout=600) as client:
        client.sendall(
            b"GET /-/healthy HTTP/1.1\r\nHost: localhost\r\n\r\n" * 500
            + b"GET /nothing HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        )
        answer = b"".join(iter(lambda: client.recv(1 << 20), b""))
    assert answer.count(b"HTTP/1.1 200 OK") == 500 and answer.count(b"HTTP/1.1 404") == 1
    assert served.rss() - before < 60 * MIB
    # none of it on the terminal
    assert served.end(signal.SIGTERM) == 0 and served.stderr().count("\n") == 1


# -- who may read


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tls")
    for name in ("one", "other"):
        done = subprocess.run(
            [
                "openssl",
                "req",
                "-x509",
                "-newkey",
                "ec",
                "-pkeyopt",
                "ec_paramgen_curve:prime256v1",
                "-nodes",
                "-days",
                "2",
                "-subj",
                "/CN=localhost",
                "-addext",
                "subjectAltName=DNS:localhost,IP:127.0.0.1",
                "-keyout",
                folder / f"{name}.key",
                "-out",
                folder / f"{name}.pem",
            ],
            capture_output=True,
        )
        assert done.returncode == 0, done.stderr
    (folder / "both.pem").write_text(
        (folder / "one.pem").read_text() + (folder / "one.key").read_text()
    )
    subprocess.run(
        [
            "openssl",
            "ec",
            "-in",
            folder / "one.key",
            "-aes256",
            "-passout",
            "pass:secret",
            "-out",
            folder / "locked.key",
        ],
        check=True,
        capture_output=True,
    )
    (folder / "noise").write_bytes(os.urandom(500))
    return folder


@pytest.mark.parametrize(
    "files", [("--tls-cert", "one.pem", "--tls-key", "one.key"), ("--tls-cert", "both.pem")]
)
def test_tls(cli, serve, board_dir, certificates, files):
    served = exporter(
        serve, board_dir, *[certificates / word if "." in word else word for word in files]
    )
    assert served.url.startswith("https://127.0.0.1:")
    trusting = ssl.create_default_context(cafile=certificates / "one.pem")
    assert "dwsr_build_info" in served.get(context=trusting)
    assert Stream(served.url, ca_file=certificates / "one.pem").poll().records == []
    with pytest.raises(StreamError, match=r"(?i)certificate"):
        Stream(served.url, ca_file=certificates / "other.pem").poll()
    plain = http.client.HTTPConnection("127.0.0.1", served.port, timeout=600)
    with pytest.raises((http.client.HTTPException, ConnectionError)):
        plain.request("GET", "/metrics")
        plain.getresponse()
    # no handshake ever comes
    silent = [socket.create_connection(("127.0.0.1", served.port), timeout=600) for _ in range(300)]
    assert "dwsr_build_info" in served.get(context=trusting)
    for client in silent:
        client.close()
    assert served.end(signal.SIGTERM) == 0 and served.stderr().count("\n") == 1


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("--tls-cert", "none.pem"), "none.pem"),
        (("--tls-cert", "one.pem", "--tls-key", "none.key"), "No such file"),
        (("--tls-cert", "one.pem", "--tls-key", "other.key"), "mismatch"),
        (("--tls-cert", "one.pem"), "--tls-key"),
        (("--tls-cert", "noise"), "PEM"),
        (("--tls-key", "one.key"), "--tls-cert"),
        (("--tls-cert", "one.pem", "--tls-key", "locked.key"), "no password"),
        (("--tls-cert", "."), "directory"),
        (("--token-file", "none"), "none"),
        (("--token-file", "empty"), "empty"),
        (("--basic-file", "word"), "user:password"),
        (("--token-file", "noise"), "token"),
        (("--basic-file", "."), "directory"),
    ],
)
def test_wrong_files_one_line_and_no_port(cli, board_dir, certificates, words, text):
    (certificates / "empty").touch()
    (certificates / "word").write_text("word\n")
    words = [word if word.startswith("--") else certificates / word for word in words]
    done = cli(
        "export",
        "--listen",
        "0",
        "--board-dir",
        board_dir,
        *words,
        stdin=subprocess.DEVNULL,
        timeout=600,
    )
    assert (
        done.returncode == 1
        and text in done.stderr
        and len(done.stderr.splitlines()) == 1
        and done.stderr.startswith("dwsr-probe: ")
    )
    done = cli(
        "run",
        "-q",
        "--metrics",
        "0",
        *words,
        "sh",
        "-c",
        "echo ran; exit 6",
        stdin=subprocess.DEVNULL,
    )
    assert (
        (done.returncode, done.stdout) == (6, "ran\n")
        and "The job runs without metrics" in done.stderr
        and "metrics at" not in done.stderr
    )
    done = cli(
        "run",
        "-q",
        "--strict",
        "--metrics",
        "0",
        *words,
        "sh",
        "-c",
        "echo ran",
        stdin=subprocess.DEVNULL,
    )
    assert (done.returncode, done.stdout) == (125, "") and "Nothing was run" in done.stderr


def test_token_and_password(cli, serve, board_dir):
    (cli.cwd / "token").write_text("s3cr3t-tökn\nignored\n", encoding="utf-8")
    (cli.cwd / "basic").write_text("ada:pa:ss wörd\n", encoding="utf-8")
    served = exporter(serve, board_dir, "--token-file", "token", "--basic-file", "basic")
    token = "Bearer " + "s3cr3t-tökn".encode().decode("latin-1")
    basic = "Basic " + base64.b64encode("ada:pa:ss wörd".encode()).decode()
    for path in (
        "/",
        "/metrics",
        "/dwsr/tasks",
        "/sd",
        "/-/healthy",
        "/nothing",
        "/dwsr/tasks?limit=x",
    ):
        for wrong in (
            None,
            "",
            "Bearer",
            "Bearer ",
            "Bearer s3cr3t",
            token + "x",
            token[:-1],
            "Basic x",
            "Basic " + base64.b64encode(b"ada:").decode(),
            "Digest x",
            basic.replace("Basic", "Bearer"),
        ):
            assert served.status(path, {} if wrong is None else {"Authorization": wrong}) == 401, (
                path,
                wrong,
            )
        for right in (
            token,
            basic,
            token.replace("Bearer", "bearer"),
            basic.replace("Basic", "BASIC"),
        ):
            assert served.status(path, {"Authorization": right}) in (200, 400, 404)
    with pytest.raises(urllib.error.HTTPError) as caught:
        served.get()
    assert (
        caught.value.headers["WWW-Authenticate"] == 'Basic realm="dwsr-probe", Bearer'
        and b"dwsr_" not in caught.value.read()
    )
    assert Stream(served.url, basic="ada:pa:ss wörd").poll().records == []
    assert Stream(served.url, token="s3cr3t-tökn").poll().records == []
    with pytest.raises(StreamError, match="401"):
        Stream(served.url, token="wrong").poll()
    assert "s3cr3t" not in served.stderr()


def test_an_open_address_is_said(cli, serve, board_dir, run):
    served = serve("export", "--listen", "0.0.0.0:0", "--board-dir", board_dir)
    wait_until(
        lambda: (
            "is open to other machines: anybody who reaches it can read task names"
            in served.stderr()
        ),
        "the warning",
    )
    assert served.end(signal.SIGTERM) == 0
    (cli.cwd / "token").write_text("t\n")
    done = cli("run", "-q", "--metrics", "0.0.0.0:0", "--token-file", "token", "true")
    assert "whoever has the token" in done.stderr and done.returncode == 0
    for address in ("127.0.0.1:0", "localhost:0", "127.0.0.2:0", "0"):
        assert "open to other" not in cli("run", "-q", "--metrics", address, "true").stderr


# -- on a Dask worker's own port

CLUSTER = """
import json, os, sys, time
from distributed import Client, LocalCluster, wait

def short(i):
    return i

def sleeps(path):
    while not os.path.exists(path):
        time.sleep(0.01)

def dies():
    os.kill(os.getpid(), 9)

def port(dask_worker):
    return [f"{dask_worker.ip}:{dask_worker.http_server.port}", os.getpid()]

def say(value):
    print(json.dumps(value), flush=True)

if __name__ == "__main__":
    with (
        LocalCluster(
            n_workers=1, threads_per_worker=2, dashboard_address=None, memory_limit=0
        ) as cluster,
        Client(cluster) as client,
    ):
        say(list(client.run(port).values())[0])
        for line in sys.stdin:
            what, *words = line.split()
            if what == "tasks":
                count, name = int(words[0]), words[1]
                for first in range(0, count, 2000):
                    wait(
                        client.map(
                            short, range(first, min(count, first + 2000)), key=name, pure=False
                        )
                    )
                say("done")
            elif what == "sleep":
                kept = client.submit(sleeps, os.path.abspath(words[0]), key=f"sleeps-{words[0]}")
                say("done")
            elif what == "kill":
                old = list(client.run(port).values())[0][1]
                gone = client.submit(dies, key="dies-1", retries=0)
                wait(gone)
                while (
                    not client.scheduler_info()["workers"]
                    or list(client.run(port).values())[0][1] == old
                ):
                    time.sleep(0.02)
                say(list(client.run(port).values())[0])
            elif what == "cpu":
                say(list(client.run(lambda: time.thread_time()).values())[0])
            elif what == "stop":
                break
"""


class Cluster:
    """A LocalCluster with the preload, told what to do line by line."""

    def __init__(self, cli):
        path = cli.script(CLUSTER, "cluster.py")
        env = dict(
            cli.env,
            DASK_DISTRIBUTED__WORKER__PRELOAD="dwsr_probe.dask.preload",
            DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES="0",
            DASK_DISTRIBUTED__SCHEDULER__WORKER_SATURATION="inf",
        )
        self.errors = cli.cwd / "errors"
        with open(self.errors, "w") as errors:
            self.process = subprocess.Popen(
                [PY, path],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                cwd=cli.cwd,
                env=env,
            )
        self.address, self.pid = self.answer()

    def answer(self):
        line = self.process.stdout.readline()
        assert line, self.said()
        return json.loads(line)

    def tell(self, *words):
        self.process.stdin.write(" ".join(map(str, words)) + "\n")
        self.process.stdin.flush()

    def do(self, *words):
        self.tell(*words)
        return self.answer()

    @property
    def url(self):
        return f"http://{self.address}"

    def get(self, path, headers=None):
        with urllib.request.urlopen(
            urllib.request.Request(self.url + path, headers=headers or {}), timeout=600
        ) as answer:
            return answer.read().decode()

    def said(self):
        return self.errors.read_text()


@pytest.fixture
def cluster(cli):
    pytest.importorskip("distributed")
    cli.boards_may_stay = True
    cluster = Cluster(cli)
    yield cluster
    if cluster.process.poll() is None:
        cluster.tell("stop")
    try:
        cluster.process.communicate(timeout=600)
    finally:
        cluster.process.kill()


def count_of(text, name):
    return sum(
        s.value
        for f in parse_text(text)
        for s in f.samples
        if s.name == "dwsr_tasks_total" and s.labels["task_name"] == name
    )


def test_dask_workers_port(cli, cluster):
    cluster.do("tasks", 3_000, "short")
    wait_until(lambda: count_of(cluster.get("/metrics"), "short") == 3_000, "3,000 counted")
    text = cluster.get("/metrics")
    assert (
        "dask_worker_tasks" in text
        and "dwsr_process_managed_bytes" in text
        and "dwsr_probe_up" in text
        and "dwsr_task_alloc_peak_bytes_bucket" not in text
    )
    ours = [line for line in text.splitlines() if line.startswith("dwsr_")]
    assert len(ours) < 1000 and len({line.rpartition(" ")[0] for line in ours}) == len(ours)
    stream, seen = Stream(cluster.url), []
    read_until(stream, 3_000, seen, limit=777, restart=True)
    assert len(set(seen)) == len(seen) == 3_000

    stream = Stream(cluster.url)
    stream.poll(limit=100_000)
    answers = []
    reader = threading.Thread(target=first_answer, args=(stream, answers), kwargs={"running": True})
    reader.start()
    # the event loop is the worker's: tasks go on all the same
    idle = never_reads(int(cluster.address.rpartition(":")[2]), count=20)
    cluster.do("sleep", "awake")
    cluster.do("tasks", 1, "awaited")
    reader.join(600)
    assert [r["task_name"] for r in answers[0].records] == ["awaited"] and [
        r["task_name"] for r in answers[0].running
    ] == ["sleeps-awake"]
    assert answers[0].records[0]["operation"] == "short"
    assert answers[0].running[0]["operation"] == "sleeps"
    text = cluster.get("/metrics")
    assert 'dwsr_tasks_total{operation="short",outcome="ok",task_name="awaited"} 1.0\n' in text
    assert re.search(r'dwsr_slot_busy{operation="sleeps",.*task_name="sleeps-awake"} 1.0\n', text)
    (process,) = json.loads(cluster.get("/dwsr/processes"))["processes"]
    assert process["process"] == answers[0].running[0]["process"] and process["worker"]
    cluster.do("tasks", 1500, "beside")
    seen = []
    read_until(stream, 1500, seen, limit=501)
    assert len(set(seen)) == len(seen) == 1500 and stream.lost == 0
    for client in idle:
        client.close()
    say(cli, "awake")

    origin = stream.state["cursor"].split("~")[0]
    for cursor in [
        *cursors(origin),
        *(f"{origin}~0~0~{position}~5" for position in (1, 8, 4096, 10**17)),
        f"{origin}~5~5~0~0",
    ]:
        *records, last = [
            json.loads(line)
            for line in cluster.get(
                f"/dwsr/tasks?limit=3&since={urllib.request.quote(cursor, safe='%')}"
            ).splitlines()
        ]
        assert len(records) == 3 and "cursor" in last, cursor
    for query in BAD:
        with pytest.raises(urllib.error.HTTPError, match="400"):
            cluster.get(f"/dwsr/tasks?{query}")
    assert "Traceback" not in cluster.said() and "Uncaught" not in cluster.said()


def test_dask_a_killed_workers_records_once_on_its_successors_port(cli, cluster):
    cluster.do("tasks", 50, "before")
    stream = Stream(cluster.url)
    assert len(polled(stream, 50)) == 50
    cluster.address, cluster.pid = cluster.do("kill")
    wait_until(lambda: count_of(cluster.get("/metrics"), "dies") == 1, "the killed task")
    assert count_of(cluster.get("/metrics"), "before") == 50
    *records, last = [json.loads(line) for line in cluster.get("/dwsr/tasks").splitlines()]
    assert [r["state"] for r in records if r["task_name"] == "dies"] == ["killed"] and len(
        records
    ) == 51
    # told, though nothing of its own has ended yet
    assert cluster.get(f"/dwsr/tasks?since={last['cursor']}").count("\n") == 1
    for limit in (1, 50, 51, 60):
        *some, _ = cluster.get(f"/dwsr/tasks?limit={limit}").splitlines()
        assert len(some) == min(limit, 51)
    moved = Stream(cluster.url, state=stream.state)
    # who had read the predecessor is told the rest
    assert [r["task_name"] for r in moved.poll().records] == ["dies"]
    cluster.do("tasks", 7, "after")
    assert [r["task_name"] for r in polled(moved, 7)] == ["after"] * 7 and moved.lost == 0
    assert count_of(cluster.get("/metrics"), "dies") == 1


# -- host names


def statuses(served, path, *hosts):
    return [served.status(path, {"Host": host}) for host in hosts]


def test_a_rebound_name_reads_nothing(cli, serve, run, board_dir):
    """On each port of ours. A page whose name leads to this machine is what the browser says in
    the Host header."""
    cli.env["DWSR_PROBE_ALLOW_HOSTS"] = ".svc.cluster.local"
    job = run("wait_for('end')", "--allow-host", "Worker")
    served = [
        job,
        exporter(serve, board_dir, "--advertise", "node7.cluster:9464"),
        serve("predict", "serve", "--listen", "0", "--state", "kept", "--from", job.url),
    ]
    for one in served:
        assert (
            statuses(
                one,
                "/metrics",
                "evil.example",
                "evil.example:80",
                "127.0.0.1.evil.example",
                "localhost.evil.example",
                "worker.evil.example",
            )
            == [403] * 5
        )
        assert (
            statuses(
                one,
                "/metrics",
                "localhost",
                f"127.0.0.1:{one.port}",
                f"[::1]:{one.port}",
                socket.gethostname(),
                "a.b.svc.cluster.local:80",
            )
            == [200] * 5
        )
    assert statuses(
        served[0], "/dwsr/tasks", "worker:9464", "node7.cluster:9464", "evil.example"
    ) == [200, 403, 403]
    assert statuses(served[1], "/sd", "worker:9464", "node7.cluster:9464", "evil.example") == [
        403,
        200,
        403,
    ]
    assert statuses(served[2], "/forecast?task=x", "localhost", "evil.example") == [200, 403]
    say(cli, "end")
    assert job.end() == 0
    refused = cli("run", "--allow-host", "x", "true")
    assert refused.returncode == 2 and "--metrics" in refused.stderr


def test_dask_a_rebound_name_reads_nothing_of_ours(cluster):
    cluster.do("tasks", 1, "short")
    for host, found in (
        ("evil.example", False),
        ("localhost", True),
        (socket.gethostname(), True),
        (cluster.address, True),
    ):
        try:
            text = cluster.get("/dwsr/tasks", {"Host": host})
        except urllib.error.HTTPError as error:
            text = f"{error.code} {error.read().decode()}"
        assert ('"task_name"' in text) == found and ("--allow-host" in text) != found, text


def test_a_run_is_its_users_alone(cli):
    """Whatever the umask leaves to others; a directory that the user made keeps its mode."""
    (cli.cwd / "mine").mkdir(mode=0o755)
    for directory in ("run", "deep/er/run", "mine"):
        code = f"import os; assert oct(os.stat('{directory}/run.sqlite').st_mode)[-3:] == '600'"
        done = cli(
            "run", "-o", directory, PY, "-c", code, preexec_fn=lambda: os.umask(0o022) and None
        )
        assert done.returncode == 0, done.stderr
    assert [
        oct((cli.cwd / name).stat().st_mode)[-3:]
        for name in ("run", "deep/er/run", "mine", "deep", "run/run.sqlite", "mine/run.sqlite")
    ] == ["700", "700", "755", "755", "600", "600"]
