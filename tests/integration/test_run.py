"""`dwsr-probe run` as a wrapper: streams, signals, exit codes, and what bad input gets. The
command always comes first."""

import json
import os
import resource
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.conftest import COLLECTED, permitted, processes, tasks, wait_until

PY = sys.executable


def mount(place, options):
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", options, "tmpfs", place], capture_output=True
    )
    permitted(done.returncode == 0, "mount a filesystem")


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (["true"], 0),
        (["sh", "-c", "exit 7"], 7),
        (["sh", "-c", "kill -9 $$"], 137),
        (["sh", "-c", "kill -TERM $$"], 143),
        ([PY, "-c", "import sys; sys.exit(3)"], 3),
        ([PY, "-c", "1/0"], 1),
        ([PY, "-c", "import os; os._exit(9)"], 9),
        ([PY, "-c", "import os; os.abort()"], 134),
        ([PY, "-c", "import ctypes; ctypes.string_at(0)"], 139),
        ([PY, "-c", "import os, signal; os.kill(os.getpid(), signal.SIGINT)"], 130),
    ],
)
def test_exit_codes(cli, command, code):
    done = cli("run", "-q", *command)
    bare = subprocess.run(command, capture_output=True)
    assert (
        done.returncode
        == code
        == (bare.returncode if bare.returncode >= 0 else 128 - bare.returncode)
    )


def test_streams_are_the_commands_own(cli):
    code = (
        "import sys; data = sys.stdin.buffer.read(); sys.stdout.buffer.write(data[::-1]);"
        " sys.stderr.write('err')"
    )
    done = cli("run", "-q", PY, "-c", code, input=b"abc\x00\xff", text=False)
    assert (done.stdout, done.stderr) == (b"\xff\x00cba", b"err")
    loud = cli("run", PY, "-c", code, input=b"abc", text=False)
    assert loud.stdout == b"cba" and b"max rss" in loud.stderr


def test_sigpipe_is_as_without_us(cli):
    done = cli("run", "-q", "sh", "-c", f"({PY} -m dwsr_probe run -q yes; echo $? >&2) | head -1")
    assert done.stdout == "y\n" and done.stderr.strip() == "141"


def test_options_stand_before_the_command(cli):
    assert cli("run", "-q", "echo", "-q", "--help", "--strict").stdout == "-q --help --strict\n"
    assert cli("run", "-q", "--", "echo", "x").stdout == "x\n"


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (["run"], 2, "Usage"),
        (["run", "-q"], 2, "name the command"),
        (["run", "--nonsense", "true"], 2, "No such option"),
        (["run", "--period", "0", "true"], 2, "not in the range"),
        (["run", "./no/such"], 127, "cannot run"),
        (["run", "no-such-command"], 127, "cannot run no-such-command"),
        (["run", "/etc/passwd"], 126, "Permission denied"),
        (["run", "/"], 126, "cannot run"),
        (["nonsense"], 2, "No such command"),
    ],
)
def test_bad_input(cli, words, code, text):
    done = cli(*words)
    assert done.returncode == code and text in done.stderr and "Traceback" not in done.stderr
    assert not (cli.cwd / "dwsr-runs").exists()  # nothing ran, nothing is left


def test_a_command_that_cannot_run_leaves_the_users_directories(cli):
    """What was there stays, empty or not; what the run made goes."""
    here = cli.cwd / "outer" / "inner"
    here.mkdir(parents=True)
    assert cli("run", "no-such-command", cwd=here).returncode == 127
    assert here.is_dir() and not list(here.iterdir())
    chosen = cli.cwd / "parent" / "chosen"
    chosen.mkdir(parents=True)
    assert cli("run", "-o", chosen, "no-such-command").returncode == 127
    assert chosen.is_dir() and not list(chosen.iterdir())
    assert cli("run", "-o", chosen / "made" / "too", "no-such-command").returncode == 127
    assert chosen.is_dir() and not list(chosen.iterdir())
    # no address of this machine
    assert (
        cli("run", "--strict", "-o", chosen, "--metrics", "192.0.2.1:1", "true").returncode == 125
    )
    assert chosen.is_dir() and not list(chosen.iterdir())


@pytest.mark.parametrize(
    "number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2]
)
def test_signals_are_forwarded(cli, number):
    job = cli.start(
        "run",
        "-q",
        PY,
        "-c",
        f"""
import os, signal, sys, time
def caught(n, _):
    os.write(1, b"caught %d\\n" % n)  # print could be interrupted inside print
    sys.exit(40)
signal.signal({int(number)}, caught)
os.write(1, b"ready\\n")
while True:  # not pause: a signal just before it would be handled after the next one
    time.sleep(0.01)
""",
    )
    assert job.stdout.readline() == "ready\n"
    job.send_signal(number)
    out, err = job.communicate(timeout=600)
    assert out == f"caught {int(number)}\n" and job.returncode == 40, err


def test_an_untrapped_signal_ends_both(cli):
    job = cli.start("run", PY, "-c", "import time; print('ready', flush=True); time.sleep(600)")
    assert job.stdout.readline() == "ready\n"
    job.send_signal(signal.SIGTERM)
    _, err = job.communicate(timeout=600)
    assert job.returncode == 143 and "killed" in err


def test_ctrl_c_at_a_terminal_arrives_once(cli):
    import pty

    script = cli.script("""
        import signal, time
        hits = []
        signal.signal(signal.SIGINT, lambda *_: hits.append(1))
        print("ready", flush=True)
        end = time.monotonic() + 600
        while not hits and time.monotonic() < end: time.sleep(0.01)
        time.sleep(0.1)  # a second one would come now
        print("hits", len(hits), flush=True)
    """)
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(cli.cwd)
        os.execve(PY, [PY, "-m", "dwsr_probe", "run", "-q", PY, str(script)], cli.env)
    text = b""
    while b"ready" not in text:
        text += os.read(terminal, 1000)
    os.write(terminal, b"\x03")
    while b"hits" not in text or not text.endswith(b"\n"):
        text += os.read(terminal, 1000)
    _, status = os.waitpid(pid, 0)
    os.close(terminal)
    assert b"hits 1" in text and os.waitstatus_to_exitcode(status) == 0


def test_the_run_directory(cli):
    done = cli("run", PY, cli.script("pass", "my job.py"))
    (made,) = (cli.cwd / "dwsr-runs").iterdir()
    assert made.name.endswith("-my_job") and str(made) in done.stderr
    assert cli("report").stdout.startswith(f"run {made.name}")  # the last run
    chosen = cli.cwd / "here"
    cli("run", "-q", "-o", chosen, "true")
    assert (chosen / "run.sqlite").is_file()
    again = cli("run", "-q", "-o", chosen, PY, "-c", "pass")
    assert "holds a run already" in again.stderr and (cli.cwd / "here-2" / "run.sqlite").is_file()
    assert [r["task_name"] for r in cli.records(chosen)] == ["true"]  # nothing was overwritten
    assert [r["task_name"] for r in cli.records(cli.cwd / "here-2")] == ["python -c"]


def unusable(kind, tmp_path):
    """(options, environment) under which the probe cannot work."""
    place = tmp_path / "place"
    if kind == "run directory is a file":
        place.write_text("")
        return ["-o", place], {}
    if kind == "run directory below a file":
        place.write_text("")
        return ["-o", place / "run"], {}
    if kind == "board directory is a link":
        (tmp_path / "target").mkdir(mode=0o700)
        place.symlink_to(tmp_path / "target")
    elif kind == "board directory is a file":
        place.write_text("")
    elif kind == "board directory is open to others":
        place.mkdir()
        place.chmod(0o777)
    elif kind == "board directory of someone else":
        place.mkdir(mode=0o700)
        os.chown(place, 12345, 12345)
    elif kind == "full disk":
        place.mkdir()
        mount(place, "size=1m,mode=0700")
    return [], {"DWSR_PROBE_BOARD_DIR": str(place)}


@pytest.mark.parametrize(
    "kind",
    [
        "run directory is a file",
        "run directory below a file",
        "board directory is a link",
        "board directory is a file",
        "board directory is open to others",
        "board directory of someone else",
        "full disk",
    ],
)
def test_the_job_runs_unprobed_when_the_probe_cannot(cli, tmp_path, kind):
    if kind == "board directory of someone else":
        permitted(os.geteuid() == 0, "make a directory of another user (needs root)")
    options, env = unusable(kind, tmp_path)
    cli.env.update(env)
    try:
        done = cli(
            "run",
            *options,
            PY,
            "-c",
            "import dwsr_probe\nwith dwsr_probe.task('x'): print('ran')\nraise SystemExit(5)",
        )
        assert done.stdout == "ran\n" and done.returncode == 5
        lines = done.stderr.splitlines()
        assert (
            len(lines) == 1
            and lines[0].startswith("dwsr-probe: cannot ")
            and "runs unprobed" in lines[0]
        )
        assert "choose another" in lines[0] or "DWSR_PROBE_BOARD_DIR" in lines[0]
        strict = cli("run", "--strict", *options, PY, "-c", "print('ran')")
        assert (
            strict.returncode == 125 and strict.stdout == "" and "Nothing was run" in strict.stderr
        )
    finally:
        if kind == "full disk":
            subprocess.run(["umount", tmp_path / "place"], check=True)


def test_a_disk_that_fills_while_the_job_runs(cli, tmp_path):
    """The store fails in the middle: one line, the job keeps its exit code, and the boards stay
    until there is room."""
    place = tmp_path / "small"
    place.mkdir()
    mount(place, "size=400k")
    try:
        done = cli(
            "run",
            "-q",
            "-o",
            place / "run",
            PY,
            cli.script("""
            import dwsr_probe
            for i in range(5000):
                with dwsr_probe.task("t" * 200): pass
            raise SystemExit(4)
        """),
        )
        assert (
            done.returncode == 4
            and done.stderr.count("dwsr-probe: cannot write") == 1
            and "make room" in done.stderr
        )
        subprocess.run(["mount", "-o", "remount,size=50m", place], check=True)
        assert len(tasks(cli.records(place / "run"))) == 5000
    finally:
        subprocess.run(["umount", place], check=True)


def test_a_parent_that_is_killed_loses_nothing(cli):
    job = cli.start(
        "run",
        "-q",
        "-o",
        "run",
        PY,
        cli.script("""
        import dwsr_probe, os, signal, sys
        for i in range(10):
            with dwsr_probe.task("done"): pass
        with dwsr_probe.task("open"):
            print(os.getpid(), flush=True)
            sys.stdin.read()
    """),
        stdin=subprocess.PIPE,
    )
    child = int(job.stdout.readline())
    job.kill()
    job.wait()
    os.kill(child, signal.SIGKILL)
    wait_until(
        lambda: (
            not Path(f"/proc/{child}").exists()
            or b") Z" in Path(f"/proc/{child}/stat").read_bytes()
        ),
        "the child's end",
    )
    records = cli.records(cli.cwd / "run")
    assert len(tasks(records, "done")) == 10 and [r["state"] for r in tasks(records, "open")] == [
        "killed"
    ]
    assert "parent was killed" in cli("report", "run").stdout


def test_results_are_bit_identical(cli):
    code = (
        "import hashlib, numpy as np; x = np.random.default_rng(1).random((300, 300));"
        " print(hashlib.sha256((x @ x).tobytes()).hexdigest())"
    )
    bare = subprocess.run([PY, "-c", code], capture_output=True, text=True, check=True)
    done = cli("run", "-q", PY, "-c", code)
    assert (done.stdout, done.stderr, done.returncode) == (bare.stdout, bare.stderr, 0)


def test_one_record_per_line_whatever_the_names(cli):
    done, records = cli.job("""
        import dwsr_probe
        for name in ["a\\nb", "q\\"'", "nul\\0", "🛢️" * 400, "\\ud800", b"\\xff", "x" * 10_000, ""]:
            with dwsr_probe.task(name, key=name): pass
    """)
    assert done.returncode == 0 and len(tasks(records)) == 8
    # header, one line a name, process, verdict, where the run is
    assert len(done.stderr.splitlines()) == 1 + 8 + 1 + 1 + 1
    assert tasks(records)[0]["task_name"] == "a\nb" and len(tasks(records)[6]["task_name"]) == 256


def test_many_quick_tasks_are_all_there(cli):
    _, records = cli.job(
        COLLECTED
        + textwrap.dedent("""
        import dwsr_probe
        for i in range(30_000):
            with dwsr_probe.task("quick"): pass
            if i % 2_000 == 0: collected(i - 4_000)
    """),
        "-q",
        cwd=cli.cwd,
    )
    quick = tasks(records, "quick")
    assert [r["seq"] for r in quick] == list(range(1, 30_001))
    assert processes(records)[0]["state"] == "ok"


def test_report_on_things_that_are_not_runs(cli, tmp_path):
    cli.env["XDG_STATE_HOME"] = str(tmp_path / "none")
    assert "there is no run yet" in cli("report").stderr
    assert "holds no run" in cli("report", tmp_path).stderr
    (tmp_path / "noise").write_bytes(os.urandom(5000))
    done = cli("report", tmp_path / "noise")
    assert (
        done.returncode == 1
        and "is not a board of dwsr-probe" in done.stderr
        and len(done.stderr.splitlines()) == 1
    )


def test_report_into_a_closed_pipe(cli):
    cli(
        "run",
        "-q",
        "-o",
        "run",
        PY,
        cli.script("import dwsr_probe\nfor i in range(3000):\n  with dwsr_probe.task('x'): pass"),
    )
    done = subprocess.run(
        f"{PY} -m dwsr_probe report run --format json | head -1",
        shell=True,
        capture_output=True,
        text=True,
        cwd=cli.cwd,
        env=cli.env,
    )
    assert json.loads(done.stdout)["task_name"] == "x" and done.stderr == ""


def test_doctor(cli):
    done = cli("doctor")
    assert done.returncode == 0, done.stdout + done.stderr
    for word in (
        "kernel",
        "python",
        "board directory",
        "peaks",
        "memory limit",
        "sampler",
        "samples/s",
        "MiB here",
        "clear_refs",
        "malloc is",
        "shared memory",
        "ThreadPoolExecutor",
    ):
        assert word in done.stdout
    (cli.cwd / "boards").chmod(0o777)
    bad = cli("doctor")
    assert (
        bad.returncode == 1
        and "mode 0700" in bad.stdout
        and "Traceback" not in bad.stderr + bad.stdout
    )


def test_a_stderr_that_cannot_be_written_changes_nothing(cli):
    with open("/dev/full", "w") as full:
        assert cli("run", "sh", "-c", "exit 7", capture_output=False, stderr=full).returncode == 7
    done = subprocess.run(
        f"({PY} -m dwsr_probe run sh -c 'exit 7'; echo $? > code) 2>&1 | true",
        shell=True,
        cwd=cli.cwd,
        env=cli.env,
    )
    assert done.returncode == 0 and (cli.cwd / "code").read_text() == "7\n"


def test_closed_streams_stay_closed_and_are_not_ours(cli):
    code = (
        "import os\nopen('seen', 'w').write(str([os.path.exists(f'/proc/self/fd/{n}') for n in"
        " range(3)]))"
    )
    for closed, expected in (("0<&-", "[False, True, True]"), ("2>&-", "[True, True, False]")):
        bare = subprocess.run(
            f'{PY} -c "{code}" {closed}',
            shell=True,
            cwd=cli.cwd,
            env=cli.env,
            capture_output=True,
            text=True,
        )
        want = (cli.cwd / "seen").read_text()
        done = subprocess.run(
            f'{PY} -m dwsr_probe run {PY} -c "{code}" {closed}',
            shell=True,
            cwd=cli.cwd,
            env=cli.env,
            capture_output=True,
            text=True,
        )
        assert done.stdout == bare.stdout == "" and done.returncode == 0
        assert (cli.cwd / "seen").read_text() == want, (closed, expected)


def test_signals_that_python_has_no_name_for(cli):
    job = cli.start(
        "run",
        "-q",
        PY,
        "-c",
        "import signal, time\nsignal.signal(36, lambda *_: exit(44))\nprint('ready', flush=True)\n"
        "while True: time.sleep(0.01)",
    )
    assert job.stdout.readline() == "ready\n"
    os.kill(job.pid, 36)
    job.communicate(timeout=600)
    assert job.returncode == 44


def test_sigchld_ignored_by_who_started_us(cli):
    done = cli(
        "run",
        "-q",
        "sh",
        "-c",
        "exit 3",
        preexec_fn=lambda: signal.signal(signal.SIGCHLD, signal.SIG_IGN),
    )
    assert done.returncode == 3 and "Traceback" not in done.stderr


def test_a_job_that_overwrites_its_own_board(cli):
    """Noise of the worst kind, under the parent's eyes: one line at most, and the job's exit
    code."""
    done, _ = cli.job("""
        import dwsr_probe, glob, os, time
        from dwsr_probe import _core, board
        with open(_core.board_path(), "r+b") as f:
            f.seek(board.Board(_core.board_path()).header["live_offset"])
            f.write(b"\\xff" * (1 << 20))
        time.sleep(1.5)
        for i in range(50):
            with dwsr_probe.task("x"): pass
        raise SystemExit(9)
    """)
    assert done.returncode == 9 and "Traceback" not in done.stderr


def test_odd_names(cli):
    done = cli(
        "run",
        "-o",
        "run",
        PY,
        cli.script("import dwsr_probe\nwith dwsr_probe.task('x'): pass", "深" * 38 + ".py"),
    )
    assert done.returncode == 0 and len(tasks(cli.records(cli.cwd / "run"))) == 1
    odd = os.fsencode(cli.cwd) + b"/\xff\xfe"
    os.mkdir(odd)
    done = cli("run", PY, "-c", "print('ran')", cwd=odd)
    assert done.returncode == 0 and "max rss" in done.stderr and "Traceback" not in done.stderr
    latin = cli("report", env=dict(cli.env, PYTHONIOENCODING="latin-1"))
    assert latin.returncode == 0 and "Traceback" not in latin.stderr


def test_a_directory_that_is_gone(cli):
    gone = cli.cwd / "gone"
    gone.mkdir()
    done = subprocess.run(
        ["sh", "-c", f"cd {gone} && rmdir {gone} && {PY} -m dwsr_probe run sh -c 'exit 5'"],
        env=cli.env,
        capture_output=True,
        text=True,
    )
    assert (
        done.returncode == 5
        and "choose another with -o DIR" in done.stderr
        and "Traceback" not in done.stderr
    )


def test_a_run_that_can_only_be_read(cli):
    cli("run", "-q", "-o", "run", PY, "-c", "import dwsr_probe\nwith dwsr_probe.task('kept'): pass")
    assert [p.name for p in (cli.cwd / "run").iterdir()] == ["run.sqlite"]  # no journal is left
    place = cli.cwd / "readonly"
    place.mkdir()
    mount(place, "size=1g")
    try:
        (place / "run.sqlite").write_bytes((cli.cwd / "run" / "run.sqlite").read_bytes())
        subprocess.run(["mount", "-o", "remount,ro", place], check=True)
        assert "kept" in cli("report", place).stdout
    finally:
        subprocess.run(["umount", place], check=True)


def test_report_means_the_last_run_even_if_its_parent_was_killed(cli):
    cli("run", "-q", PY, cli.script("pass", "first.py"))
    job = cli.start(
        "run",
        "-q",
        PY,
        cli.script("import time; print('ready', flush=True); time.sleep(600)", "second.py"),
    )
    job.stdout.readline()
    child = int(
        subprocess.run(
            ["pgrep", "-P", str(job.pid)], capture_output=True, text=True, check=True
        ).stdout
    )
    job.kill()
    job.wait()
    os.kill(child, signal.SIGKILL)
    wait_until(
        lambda: (
            not Path(f"/proc/{child}").exists()
            or b") Z" in Path(f"/proc/{child}/stat").read_bytes()
        ),
        "the child's end",
    )
    assert "-second-" in cli("report").stdout.splitlines()[0]


@pytest.mark.parametrize(
    ("limit", "least", "said"),
    [("RLIMIT_FSIZE", 4096, "ulimit -f"), ("RLIMIT_NOFILE", 3, "ulimit -n")],
)
def test_a_child_with_too_small_a_limit_is_told_which(cli, limit, least, said):
    """The job lowers its own limit and forks: the line names the limit."""
    done, _ = cli.job(
        f"""
        import os, resource
        resource.setrlimit(resource.{limit}, ({least}, {least}))
        if os.fork() == 0: os._exit(0)
        os._exit(os.waitstatus_to_exitcode(os.wait()[1]))
    """,
        "-q",
    )
    cli.boards_may_stay = True
    assert done.returncode == 0
    (line,) = done.stderr.splitlines()
    assert said in line


def bare(command, **options):
    return subprocess.run(command, capture_output=True, text=True, timeout=600, **options)


@pytest.mark.parametrize("limit", [3, 4, 5, 6, 7, 8, 9, 10, 12, 16, 24, 31, 32, 40])
def test_few_descriptors(cli, limit):
    """The job runs wherever it would alone, unprobed if they are too few, and that is one line."""

    def few():
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))

    command = [PY, "-c", "import os; os.write(1, b'ran'); os._exit(7)"]
    alone, done = bare(command, preexec_fn=few), cli("run", "-q", *command, preexec_fn=few)
    assert (done.stdout, done.returncode) == (alone.stdout, alone.returncode)
    if alone.returncode == 7:
        lines = done.stderr.splitlines()
        assert [("ulimit -n" in line, "unprobed" in line) for line in lines] == [(True, True)] * (
            limit < 32
        ), done.stderr


@pytest.mark.parametrize("left", [2, 3, 4, 5, 6, 7, 8, 9])
def test_few_descriptors_left(cli, left):
    """The limit would do, but others have taken them before us."""

    def few():
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
        for number in range(3, 64 - left):
            os.dup2(0, number)

    done = cli(
        "run",
        "-q",
        PY,
        "-c",
        "import os; os.write(1, b'ran'); os._exit(7)",
        preexec_fn=few,
        close_fds=False,
    )
    assert (
        (done.stdout, done.returncode) == ("ran", 7)
        and len(done.stderr.splitlines()) <= 1
        and "Traceback" not in done.stderr
    )


def test_a_python_file_is_run_by_this_interpreter(cli):
    script = cli.script(
        "import sys, dwsr_probe\nwith dwsr_probe.task('x'): print(sys.executable,"
        " *sys.argv[1:])\nraise SystemExit(3)"
    )
    done = cli("run", "-q", "job.py", "-q", "word")
    assert done.returncode == 3 and done.stdout == f"{PY} -q word\n", done.stderr
    (made,) = (cli.cwd / "dwsr-runs").iterdir()
    assert made.name.endswith("-job") and len(tasks(cli.records(made), "x")) == 1
    script.chmod(0o755)  # executable, but it names no interpreter
    assert cli("run", "-q", "-o", "second", "./job.py").stdout == f"{PY}\n"


def test_a_program_named_like_a_python_file_runs_as_it_is(cli):
    script = cli.script("#!/bin/sh\necho shell $1", "tool.py")
    script.chmod(0o755)
    for word in ("./tool.py", "tool.py", script):
        done = cli("run", "-q", word, "arg")
        assert (done.stdout, done.returncode) == ("shell arg\n", 0), done.stderr
    folder = cli.cwd / "bin"
    folder.mkdir()
    script.rename(folder / "tool.py")
    # in the current directory, where a shell does not look
    cli.script("print('python')", "tool.py")
    done = cli("run", "-q", "tool.py", "arg", env=dict(cli.env, PATH=f"{folder}:{cli.env['PATH']}"))
    assert done.stdout == "shell arg\n"
    assert cli("run", "-q", "tool.py").stdout == "python\n"
    assert cli("run", "-q", "none.py").returncode == 127
