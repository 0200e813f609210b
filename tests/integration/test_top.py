"""`dwsr-probe top` and the status of `dwsr-probe run` in a real terminal, driven through tmux."""

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import textwrap
import uuid

import pytest
from rich.cells import cell_len

from tests.conftest import wait_until
from tests.integration.conftest import PY, UNTIL_TOLD, exporter, heard, say

pytestmark = pytest.mark.skipif(not shutil.which("tmux"), reason="needs tmux: apt-get install tmux")

HOLD = (
    UNTIL_TOLD
    + """
has = threading.Semaphore(0)
def hold(name, mib, until="end"):
    with dwsr_probe.task(name):
        kept = bytearray(mib << 20)
        has.release()
        wait_for(until)
def threads(*calls):
    found = [threading.Thread(target=hold, args=call) for call in calls]
    for t in found: t.start()
    for t in found: has.acquire()
    say("holding")
    for t in found: t.join()
"""
)


class Tmux:
    """One window of a tmux server of its own."""

    def __init__(self, cli):
        self.cli, self._server, self._started = cli, f"dwsr-{uuid.uuid4().hex[:12]}", False
        # CI: `run` shows no status there.
        self._env = {
            k: v
            for k, v in cli.env.items()
            if k not in ("CI", "TMUX", "NO_COLOR", "COLUMNS", "LINES")
        } | {"LC_ALL": "C.UTF-8", "TERM": "xterm"}

    def __call__(self, *words, check=True):
        return subprocess.run(
            ["tmux", "-u", "-L", self._server, "-f", os.devnull, *map(str, words)],
            env=self._env,
            cwd=self.cli.cwd,
            capture_output=True,
            text=True,
            check=check,
            timeout=600,
        ).stdout

    def start(self, command, width=80, height=24):
        """A shell command, instead of the one before; the window stays after its end."""
        window = (
            ("respawn-pane", "-k")
            if self._started
            else ("new-session", "-d", "-x", width, "-y", height)
        )
        self(*window, "-c", self.cli.cwd, f"sh -c {shlex.quote(command + '; cat')}")
        self._started = True

    def top(self, *words, **size):
        """Says `left CODE` at the end, and leaves the terminal's settings before and after in
        files."""
        (self.cli.cwd / "after").unlink(missing_ok=True)
        self.start(
            "trap : INT; stty -a > before;"
            f" {shlex.join([sys.executable, '-m', 'dwsr_probe', 'top', *map(str, words)])}; echo"
            " left $?; stty -a > after",
            **size,
        )

    def lines(self):
        return self("capture-pane", "-p", "-N").split("\n")[:-1]

    def text(self):
        return "\n".join(self.lines())

    def title(self):
        return self("display-message", "-p", "#{pane_title}").strip()

    def shows(self, *patterns):
        """Wait until each of them is on the screen; the screen then."""
        found = []

        def there():
            found[:] = [self.text()]
            return all(re.search(pattern, found[0], re.M) for pattern in patterns)

        try:
            wait_until(there, patterns)
        except AssertionError:
            raise AssertionError(f"waited for {patterns}; the screen:\n{found[0]}") from None
        return found[0]

    def hides(self, *patterns):
        wait_until(
            lambda: not any(re.search(pattern, self.text(), re.M) for pattern in patterns),
            f"{patterns} to go away",
        )

    def keys(self, *keys):
        self("send-keys", *keys)

    def pid(self):
        """Of top."""
        return int(
            subprocess.run(
                [
                    "pgrep",
                    "-f",
                    "-P",
                    self("display-message", "-p", "#{pane_pid}").strip(),
                    "dwsr_probe",
                ],
                capture_output=True,
                text=True,
                check=True,
            ).stdout.split()[0]
        )

    def left(self):
        """top has ended with 0 and the terminal is as it was."""
        self.shows(r"^left 0")
        wait_until((self.cli.cwd / "after").exists, "the terminal's settings")
        wait_until((self.cli.cwd / "after").read_text, "the terminal's settings")
        assert (self.cli.cwd / "before").read_text() == (self.cli.cwd / "after").read_text()
        assert self(
            "display-message", "-p", "#{alternate_on} #{cursor_flag} #{wrap_flag}"
        ).split() == ["0", "1", "1"]


@pytest.fixture
def tmux(cli):
    yield (terminal := Tmux(cli))
    terminal("kill-server", check=False)


@pytest.fixture
def job(cli, serve):
    """A job under `run --metrics` that holds memory until it is told; its port."""

    def start(code, *options):
        served = serve(
            "run",
            "-o",
            "run",
            "--metrics",
            "0",
            *options,
            PY,
            cli.script(HOLD + textwrap.dedent(code)),
        )
        heard(cli, "holding")
        return served

    return start


def ordered(tmux, *names):
    """Wait until these stand in this order in the table of running tasks."""

    def found():
        table = re.search(r"^task.*?^name", tmux.text(), re.M | re.S)
        return table and [
            line.split()[0]
            for line in table[0].splitlines()
            if line.split()[:1] and line.split()[0] in names
        ] == list(names)

    wait_until(found, names)


def test_a_run_from_begin_to_end(cli, tmux, job):
    served = job("""
        with dwsr_probe.task("early"): kept = bytearray(5 << 20)
        del kept
        threads(("small", 10), ("large", 60), ("middle", 30))""")
    tmux.top("run")
    tmux.shows(
        r"^dwsr-probe top  run run ",
        "1 process, 3 tasks running, 1 done",
        r"^large .* 60\.0 MiB 60\.0 MiB",
        r"^middle .* 30\.0 MiB 30\.0 MiB",
        r"^small .* 10\.0 MiB 10\.0 MiB",
        r"^early +– +1 +– 5\.0\d MiB 5\.0\d MiB",
        r"late, .* of a core; 0 records lost",
        r"^job\.py",
        "q quit  p pause",
        r"rss \d+ MiB, headroom [\d.]+ .iB +[▁▂▃▄▅▆▇█]+",
    )
    ordered(tmux, "large", "middle", "small")
    tmux.keys("s")
    tmux.shows("peak▲")
    ordered(tmux, "small", "middle", "large")
    tmux.keys("Left", "Left", "Left")
    tmux.shows("^task▲")
    ordered(tmux, "large", "middle", "small")
    tmux.keys("s")
    tmux.shows("^task▼")
    ordered(tmux, "small", "middle", "large")
    tmux.keys(">")
    tmux.shows("pid▼")

    tmux.keys("/", "m", "I", "d")
    tmux.shows("^/mId▏", "^middle")
    tmux.hides("^large", "^small", "^early")
    tmux.keys("Enter")
    tmux.shows("^only mId")
    tmux.keys("Escape")
    tmux.shows("^large", "^small", "^early")

    tmux.keys("?")
    tmux.shows("any key: back")
    tmux.keys("x")
    tmux.shows("^large")
    tmux.keys("Tab")
    tmux.shows("max▼")  # of the names
    tmux.keys("Tab")
    tmux.shows("rss▼")  # of the processes

    tmux.keys("p")
    tmux.shows("^PAUSED")
    say(cli, "end")
    served.end()
    assert (
        "PAUSED" in tmux.text() and "3 tasks running" in tmux.text() and "ended" not in tmux.text()
    )
    tmux.keys("p")
    tmux.shows(
        "^the job has ended with exit code 0 at",
        "0 processes, 0 tasks running, 4 done",
        "^large +– +1 ",
        "^ended: job.py",
    )
    tmux.keys("q")
    tmux.left()


@pytest.mark.parametrize("end", ["C-c", signal.SIGTERM, signal.SIGHUP])
def test_the_terminal_is_given_back(cli, tmux, board_dir, end):
    tmux.top("--board-dir", board_dir)
    # an empty machine
    tmux.shows("no process with a probe here", "no task runs", "no task has ended")
    if end == "C-c":
        tmux.keys(end)
    else:
        os.kill(tmux.pid(), end)
    tmux.left()


def test_stopped_and_continued(cli, tmux, board_dir):
    command = shlex.join([sys.executable, "-m", "dwsr_probe", "top", "--board-dir", str(board_dir)])
    tmux.start("PS1='prompt: ' ENV= bash --norc --noprofile -i")
    tmux.shows("prompt:")
    tmux.keys(command, "Enter")
    tmux.shows("no task runs")
    tmux.keys("C-z")
    tmux.shows("Stopped")
    assert tmux("display-message", "-p", "#{alternate_on} #{cursor_flag} #{wrap_flag}").split() == [
        "0",
        "1",
        "1",
    ]
    tmux.keys("fg", "Enter")
    tmux.shows("no task runs")
    tmux.keys("q")
    tmux.hides("no task runs")
    tmux.keys("echo code $?", "Enter")
    tmux.shows("^code 0")


def test_a_worker_that_dies(cli, tmux, board_dir):
    cli.boards_may_stay = True
    code = HOLD + 'dwsr_probe.start()\nsay(f"pid-{os.getpid()}")\nhold("victim", 40)'
    env = dict(cli.env, DWSR_PROBE_BOARD_DIR=str(board_dir))
    with subprocess.Popen([PY, "-c", code], cwd=cli.cwd, env=env) as worker:
        tmux.top("--board-dir", board_dir)
        tmux.shows(
            r"^dwsr-probe top  this machine",
            "1 process, 1 task running, 0 done",
            r"^victim .* 40\.0 MiB 40\.0 MiB",
        )
        worker.kill()
        worker.wait()
        tmux.shows(
            "0 processes, 0 tasks running, 1 done, 1 failed",
            "^killed: victim",
            r"^victim +– +1 +1 40\.0 MiB",
        )
    tmux.keys("q")
    tmux.left()


@pytest.mark.parametrize(
    "how, shown", [("os.kill(os.getpid(), 9)", "died"), ("sys.exit(0)", "ended")]
)
def test_a_worker_that_goes_between_two_tasks(cli, tmux, job, how, shown):
    served = job(f"""
        import subprocess
        child = subprocess.Popen([sys.executable, "-c",
            "import os, sys, time\\nwhile not os.path.exists('go'): time.sleep(0.01)\\n{how}"])
        say("holding"); child.wait()
        hold("after", 20)""")
    tmux.top("run", width=100)
    tmux.shows("2 processes, 0 tasks running")
    say(cli, "go")
    tmux.shows(rf"^{shown}: python -c", "1 process, 1 task running")
    say(cli, "end")
    served.end()
    tmux.shows("the job has ended")
    tmux.keys("q")
    tmux.left()


def test_a_dask_worker_by_its_port_and_its_death(cli, tmux, serve):
    pytest.importorskip("distributed")
    served = serve(
        "run",
        "-o",
        "run",
        "--metrics",
        "0",
        PY,
        cli.script(
            UNTIL_TOLD
            + textwrap.dedent("""
        from distributed import Client, LocalCluster

        def precious():
            kept = bytearray(50 << 20)
            wait_for("end")

        if __name__ == "__main__":
            with (
                LocalCluster(
                    n_workers=1,
                    threads_per_worker=1,
                    dashboard_address=None,
                    worker_dashboard_address="127.0.0.1:0",
                    memory_limit="1GiB",
                ) as cluster,
                Client(cluster) as client,
            ):
                future = client.submit(precious)
                (worker,) = client.scheduler_info()["workers"].values()
                with open("worker.part", "w") as f:
                    f.write(
                        f"{worker['services']['dashboard']} {client.run(os.getpid).popitem()[1]}"
                    )
                os.rename("worker.part", "worker")
                future.result()
        """)
        ),
    )
    heard(cli, "worker")
    port, pid = map(int, (cli.cwd / "worker").read_text().split())
    tmux.top(f"127.0.0.1:{port}")
    tmux.shows(
        "1 process, 1 task running, 0 done",
        rf"^precious +{pid} 50\.0 MiB 50\.0 MiB",
        rf"^worker 0 +{pid} .* 1\.00 GiB",
    )
    tmux.keys("q")
    tmux.left()
    tmux.top("run")
    tmux.shows(rf"^precious +{pid} 50\.0 MiB 50\.0 MiB")
    os.kill(pid, signal.SIGKILL)
    # its successor runs the task again
    tmux.shows(
        rf"^killed: precio.* {pid} ",
        r"1 task running, 1 done, 1 failed",
        r"^precious +\d+ 50\.0 MiB",
    )
    say(cli, "end")
    served.end()
    tmux.shows("the job has ended with exit code 0", "2 done, 1 failed")
    tmux.keys("q")
    tmux.left()


def test_resize(cli, tmux, job):
    served = job('threads(("task-of-some-length-" * 3, 20))')
    tmux.top("run")
    tmux.shows("^task-of-some-lengt…")
    for width, height in ((150, 40), (40, 10), (80, 24)):
        tmux("resize-window", "-x", width, "-y", height)
        foot = "q quit  p pause  / filter  ←→ sort  s "[:width]
        wait_until(
            lambda foot=foot, height=height: (
                tmux.lines()[height - 1].startswith(foot[:30])
                and tmux.lines()[0].startswith("dwsr-probe top")
            ),
            f"a screen of {height} lines",
        )
        lines = tmux.lines()
        assert len(lines) == height and all(cell_len(line.rstrip()) <= width for line in lines)
        if width == 150:
            tmux.shows("task-of-some-length-task-of-some")
    tmux.keys("q")
    tmux.left()
    say(cli, "end")
    served.end()


def test_five_hundred_slots(cli, tmux, job):
    served = job('threads(*((f"slot-{n:03}", 0) for n in range(500)))')
    tmux.top("run", "--interval", "1")
    tmux.shows("500 tasks running", r"^task 1–\d+ of 500")
    tmux.keys("Left", "Left", "Left", "s", "s")
    text = tmux.shows("^slot-000", "task.*▲")
    shown = int(re.search(r"^task 1–(\d+) of 500", text, re.M)[1])
    tmux.keys("Down", "Down")
    tmux.shows(r"^slot-002", rf"^task 3–{shown + 2} of 500")
    tmux.keys("NPage")
    tmux.shows(rf"^task {shown + 3}–{2 * shown + 2} of 500", rf"^slot-{shown + 2:03}")
    tmux.keys("End")
    tmux.shows("^slot-499")
    tmux.keys("Home")
    tmux.shows("^slot-000")
    tmux.keys("/", "4", "9", "Enter")
    tmux.shows("^slot-149", "^slot-049")
    tmux.keys("q")
    tmux.left()
    say(cli, "end")
    served.end()


HOSTILE = [
    "\x1b[2J\x1b]2;evil\x07",
    "👩‍👩‍👧☃️ snow",
    "漢字" * 50,
    "x" * 10_000,
    "two\nlines\r",
    "\x9b31mred",
    "\u202eback",
]


def test_names_are_never_obeyed(cli, tmux, job):
    served = job(f"threads(*((name, n) for n, name in enumerate({HOSTILE!r}, 10)))")
    tmux.top("run")
    tmux.shows(
        r"^\\x1b\[2J\\x1b\]2;evi",
        "^two\\\\nlines",
        r"^\\x9b31mred",
        r"^\\u202eback",
        "^漢字漢字",
        "^xxxxxxxxx.*…",
        "^👩",
        "^q quit",
    )

    def table():
        lines = tmux.lines()
        first = next((n for n, line in enumerate(lines, 1) if line.startswith("task")), len(lines))
        return lines[first : first + len(HOSTILE)]

    wait_until(
        lambda: (
            len(table()) == len(HOSTILE)
            and all(re.search(r" \d+ 1\d\.\d MiB 1\d\.\d MiB [▏▎·]{8}", line) for line in table())
        ),
        "columns below each other",
    )
    lines = tmux.lines()
    assert (
        tmux.title() != "evil"
        and lines[0].startswith("dwsr-probe top")
        and lines[23].startswith("q quit")
        and all(cell_len(line.rstrip()) <= 80 for line in lines)
    )
    say(cli, "end")
    served.end()
    tmux.shows("the job has ended")
    tmux.keys("q")
    tmux.left()


def test_a_port_and_its_end(cli, tmux, job):
    served = job('threads(("remote", 30))', "--linger", "0")
    tmux.top(served.url)
    tmux.shows(
        rf"^dwsr-probe top  127.0.0.1:{served.port}",
        "1 process, 1 task running, 0 done",
        r"^remote .* 30\.0 MiB 30\.0 MiB .*\d (s|min|h)",
        r"^job\.py +\d+ +\d+\.\d MiB",
        "late, .* of a core",
    )
    say(cli, "end")
    served.end()
    tmux.shows(r"^http://127.0.0.1:\d+/dwsr/tasks: .*refused", "^remote")  # the last view stays
    tmux.keys("q")
    tmux.left()


def test_a_port_with_a_token_and_a_killed_worker(cli, tmux, serve, board_dir):
    cli.boards_may_stay = True
    (cli.cwd / "token").write_text("secret\n")
    served = exporter(serve, board_dir, "--token-file", "token")
    code = HOLD + 'dwsr_probe.start()\nhold("victim", 40)'
    with subprocess.Popen(
        [PY, "-c", code], cwd=cli.cwd, env=dict(cli.env, DWSR_PROBE_BOARD_DIR=str(board_dir))
    ) as worker:
        refused = cli("top", served.url)
        assert refused.returncode == 1 and "401" in refused.stderr
        tmux.top(served.url, "--token-file", "token")
        tmux.shows(r"^victim .* 40\.0 MiB")
        worker.kill()
        worker.wait()
        tmux.shows("^killed: victim", "1 done, 1 failed")
    tmux.keys("q")
    tmux.left()


def test_a_predictor(cli, tmux, job, serve):
    pytest.importorskip("scipy")
    served = job("""
        for n in range(1, 13):
            with dwsr_probe.task("grow", inputs=[bytearray(n << 20)]): kept = bytearray(2 * n << 20)
        del kept
        threads(("grow", 30))""")
    predictor = serve(
        "predict",
        "serve",
        "--from",
        served.url,
        "--listen",
        "0",
        "--state",
        "state-of-it",
        "--interval",
        "0.2",
    )
    tmux.top("run", "--predictor", predictor.url)
    tmux.shows("exceeds", r"^grow +\d+ 30\.0 MiB .* \d+(\.\d)? %$")
    predictor.end(signal.SIGTERM)
    tmux.shows("^no forecasts: ")
    tmux.keys("q")
    tmux.left()
    say(cli, "end")
    served.end()


def test_lines_in_a_pipe(cli, job):
    served = job('threads(("piped", 20))')
    top = cli.start("top", "run")
    first = top.stdout.readline()
    while "peak 20.0 MiB" not in first:  # the sampler has just begun
        first = top.stdout.readline()
    assert re.search(
        r"^\d\d:\d\d:\d\d; 1 process; 1 running; 0 done; 0 failed; rss .* MiB; headroom .*; largest"
        r" piped: peak 20\.0 MiB live 20\.0 MiB .*; late .* %; lost 0",
        first,
    ), first
    say(cli, "end")
    served.end()
    rest, said = top.communicate(timeout=600)
    assert top.returncode == 0 and not said and "\x1b" not in first + rest
    assert re.search("1 done.*the job has ended with exit code 0", rest.splitlines()[-1])


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGTERM, "reader gone"])
def test_lines_end_in_peace(cli, board_dir, end):
    top = cli.start("top", "--board-dir", board_dir)
    assert "0 processes; 0 running" in top.stdout.readline()
    if end == "reader gone":
        top.stdout.close()
    else:
        top.send_signal(end)
    assert top.wait(600) == 0 and not top.stderr.read()


def answered(top):
    """Its next line that is not about a slow port."""
    while "waiting for http" in (line := top.stdout.readline()):
        pass
    return line


def test_what_was_overwritten_before_we_came_is_not_lost(cli, serve, board_dir):
    code = (
        UNTIL_TOLD
        + """
dwsr_probe.start()
for _ in range(60_000):
    with dwsr_probe.task("early"): pass
say("holding"); wait_for("go")
with dwsr_probe.task("late"): pass
wait_for("end")
"""
    )
    cli.boards_may_stay = True
    with subprocess.Popen(
        [PY, "-c", code], cwd=cli.cwd, env=dict(cli.env, DWSR_PROBE_BOARD_DIR=str(board_dir))
    ):
        heard(cli, "holding")
        served = exporter(serve, board_dir)
        tops = [cli.start("top", "--board-dir", board_dir), cli.start("top", served.url)]
        for top in tops:
            while "(still reading)" in (line := answered(top)):
                assert line.endswith("lost 0\n")
            top.all = int(re.search(r"([\d,]+) done", line)[1].replace(",", ""))
            assert 8_192 <= top.all < 60_000
        say(cli, "go")
        for top in tops:
            while f"{top.all + 1:,} done" not in (line := answered(top)):
                assert line.endswith("lost 0\n")
            top.terminate()
            assert top.wait(600) == 0 and line.endswith("lost 0\n")
        say(cli, "end")


def test_a_board_that_was_dead_before_is_not_of_now(cli, board_dir):
    code = (
        UNTIL_TOLD
        + """
dwsr_probe.start()
with dwsr_probe.task("over"): pass
say(sys.argv[1])
with dwsr_probe.task("killed"): wait_for("never")
"""
    )
    cli.boards_may_stay = True
    env = dict(cli.env, DWSR_PROBE_BOARD_DIR=str(board_dir))
    jobs = [
        subprocess.Popen([PY, "-c", code, word], cwd=cli.cwd, env=env)
        for word in ("first", "second")
    ]
    try:
        heard(cli, "first")
        heard(cli, "second")
        jobs[0].kill()
        jobs[0].wait()
        top = cli.start("top", "--board-dir", board_dir)
        # not what the first one left
        assert "1 process; 1 running; 1 done; 0 failed" in top.stdout.readline()
        jobs[1].kill()
        jobs[1].wait()
        while "0 processes; 0 running; 2 done; 1 failed" not in (line := top.stdout.readline()):
            assert line
        top.terminate()
        assert top.wait(600) == 0
    finally:
        for job in jobs:
            job.kill()
            job.wait()


def test_what_is_not_there(cli, board_dir):
    for words, code, text in (
        (["nothing"], 1, "there is no run 'nothing' here"),
        (["http://127.0.0.1:1"], 1, "refused"),
        (["ftp://x"], 2, "not the URL"),
        (["--predictor", "x:y:z//"], 2, ""),
        (["--token-file", "token"], 2, "are for a URL"),
        (["http://127.0.0.1:1", "--token-file", "missing"], 1, "missing"),
    ):
        done = cli("top", *words, "--board-dir", board_dir)
        assert done.returncode == code and text in done.stderr and "Traceback" not in done.stderr, (
            words,
            done,
        )


def test_by_the_name_of_a_run(cli, job, board_dir):
    served = job('threads(("named", 20))')
    name = re.search(r'run="([^"]+)"', served.get())[1]
    for word in (name, name.rpartition("-")[0]):
        top = cli.start("top", word, "--board-dir", board_dir)
        assert "1 process; 1 running" in top.stdout.readline()
        top.terminate()
        assert top.wait(600) == 0
    say(cli, "end")
    served.end()
    # one that ended long ago
    assert "the job has ended with exit code 0" in cli("top", "run").stdout


# -- the status of `run`


def started(tmux, code, *options, env=""):
    script = tmux.cli.script(UNTIL_TOLD + textwrap.dedent(code))
    words = shlex.join(
        [sys.executable, "-m", "dwsr_probe", "run", "-o", "run", *options, PY, str(script)]
    )
    tmux.start(f"printf '\\033]2;before\\007'; {env} {words}; echo left $?")


def test_the_status_is_in_the_title_and_nowhere_else(tmux):
    """With a prompt that waits, a progress bar, and an answer typed into it."""
    started(
        tmux,
        r"""
        with dwsr_probe.task("one"): pass
        answer = input("prompt> ")
        for n in range(21):
            sys.stdout.write(f"\r\x1b[32m{'█' * n:20}\x1b[0m {5 * n} %"); sys.stdout.flush()
            time.sleep(0.05)
        say("bar"); wait_for("end")
        print(" and", answer)""",
    )
    wait_until(
        lambda: re.fullmatch(
            r"1 done, 0 running, rss [\d.]+ MiB, headroom [\d.]+ .iB: python\S* job.py",
            tmux.title(),
        ),
        "the title",
    )
    wait_until(lambda: tmux.text().strip() == "prompt>", "the prompt alone")
    tmux.keys("typed", "Enter")
    heard(tmux.cli, "bar")
    wait_until(
        lambda: (
            [line.rstrip() for line in tmux.lines()[:3]]
            == ["prompt> typed", "█" * 20 + " 100 %", ""]
        ),
        "the bar",
    )
    say(tmux.cli, "end")
    text = tmux.shows("^left 0")
    assert (
        text.splitlines()[1].rstrip() == "█" * 20 + " 100 % and typed" and tmux.title() == "before"
    )
    assert "the run is in" in text  # the table comes as always


def test_fast_output_is_not_touched(tmux):
    """100,000 coloured lines that are more than one byte a sign, while the title changes: the
    last screen is as without the probe."""
    started(
        tmux,
        r"""
        with dwsr_probe.task("many"):
            for n in range(100_000): print(f"\x1b[3{n % 8}m漢字 {n:06} é\x1b[0m")
        say("printed"); wait_for("end")""",
    )
    heard(tmux.cli, "printed")
    wait_until(lambda: tmux.lines()[22].startswith("漢字 099999 é"), "the last line")
    assert [line.rstrip() for line in tmux.lines()[:23]] == [
        f"漢字 {n:06} é" for n in range(99_977, 100_000)
    ]
    wait_until(lambda: "1 done" in tmux.title(), "the title")
    history = tmux("capture-pane", "-p", "-S", "-").split("\n")
    numbers = [
        int(found[1]) for line in history if (found := re.fullmatch(r"漢字 (\d{6}) é *", line))
    ]
    assert (
        numbers == list(range(numbers[0], 100_000))
        and len(numbers) > 1000
        and sum(bool(line.strip()) for line in history) == len(numbers)
    )
    say(tmux.cli, "end")
    tmux.shows("^left 0")


@pytest.mark.parametrize(
    "env, options", [("CI=true", ()), ("TERM=dumb", ()), ("TERM=linux", ()), ("", ("-q",))]
)
def test_no_status_where_nobody_wants_it(tmux, env, options):
    started(
        tmux,
        """
        for _ in range(30):
            with dwsr_probe.task("t"): time.sleep(0.1)
        say("slept"); wait_for("end")""",
        *options,
        env=env,
    )
    heard(tmux.cli, "slept")  # for three seconds: six times the time of a title
    assert tmux.title() == "before"
    say(tmux.cli, "end")
    tmux.shows("^left 0")


def test_no_status_in_a_pipe(cli):
    done, _ = cli.job("import time; time.sleep(1.7)", env=dict(cli.env, TERM="xterm"))
    assert "\x1b" not in done.stdout + done.stderr


def test_a_terminal_that_takes_nothing_holds_nothing_up(tmux):
    """Ctrl-S: the job's end and its signals are seen all the same."""
    started(
        tmux,
        """
        for _ in range(10):
            with dwsr_probe.task("t"): time.sleep(0.1)
        say("frozen"); wait_for("go")
        for _ in range(20):
            with dwsr_probe.task("t"): time.sleep(0.1)
        say("slept"); wait_for("end")""",
    )
    heard(tmux.cli, "frozen")
    tmux.keys("C-s")
    say(tmux.cli, "go")
    heard(tmux.cli, "slept")
    tmux.keys("C-q")
    wait_until(lambda: tmux.title().startswith("30 done"), "the title")
    say(tmux.cli, "end")
    tmux.shows("^left 0")
