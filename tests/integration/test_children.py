"""Every Python below `run` on its own board: fork, multiprocessing, subprocess, shells; and jobs
that do odd things to themselves."""

import os
import re
import shutil
import signal
import subprocess
import sys
import textwrap
import time
import venv
from pathlib import Path

import pytest

from tests.conftest import permitted, processes, require, tasks, wait_until

PY = sys.executable


def test_every_kind_of_child(cli):
    done, records = cli.job("""
        import multiprocessing as mp, os, subprocess, sys
        import dwsr_probe

        def work(name):
            with dwsr_probe.task(name):
                block = bytearray(20 << 20)

        if __name__ == "__main__":
            for method in ("fork", "spawn", "forkserver"):
                process = mp.get_context(method).Process(target=work, args=(method,))
                process.start(); process.join()
                assert process.exitcode == 0
            code = "import dwsr_probe\\nwith dwsr_probe.task({!r}): pass"
            subprocess.run([sys.executable, "-c", code.format("subprocess")], check=True)
            shell = ["sh", "-c", f'"$0" -c "$1"', sys.executable, code.format("shell")]
            subprocess.run(shell, check=True)
            if os.fork() == 0:
                work("os.fork")
                sys.exit(0)
            os.wait()
            work("main")
    """)
    assert done.returncode == 0, done.stderr
    names = {r["task_name"]: r for r in tasks(records)}
    assert set(names) == {"fork", "spawn", "forkserver", "subprocess", "shell", "os.fork", "main"}
    assert (
        len({r["process"] for r in names.values()}) == 7
        and len({r["pid"] for r in names.values()}) == 7
    )
    assert all(
        19 << 20 < r["rss_peak_bytes"] - r["rss_before_bytes"] < 22 << 20
        for n, r in names.items()
        if n not in ("subprocess", "shell")
    )
    assert {r["state"] for r in processes(records)} == {"ok"}


POOL = """
    import multiprocessing as mp, sys
    import dwsr_probe

    def begin(barrier):
        global meet
        meet = barrier

    def work(_):
        with dwsr_probe.task("work"):
            meet.wait()

    if __name__ == "__main__":
        context = mp.get_context(sys.argv[1])
        barrier = context.Barrier(2)  # both have begun, whatever becomes of them then
        BODY
"""


def processes_of(done):
    """The table's lines about processes, by name."""
    return {
        line.split()[1] if line.split()[1] != "worker" else " ".join(line.split()[1:3]): line
        for line in done.stderr.splitlines()
        if line.startswith("process ")
    }


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
@pytest.mark.parametrize("kind", ["terminated pool", "closed pool", "executor"])
def test_workers_have_the_names_that_people_know(cli, method, kind):
    body = {
        "terminated pool": (
            "with context.Pool(2, begin, [barrier]) as pool: pool.map(work, range(2), chunksize=1)"
        ),
        "closed pool": (
            "pool = context.Pool(2, begin, [barrier]); pool.map(work, range(2), chunksize=1);"
            " pool.close(); pool.join()"
        ),
        "executor": (
            "from concurrent.futures import ProcessPoolExecutor as Pool\n        with Pool(2,"
            " context, begin, [barrier]) as pool: list(pool.map(work, range(2)))"
        ),
    }[kind]
    script = cli.script(POOL.replace("BODY", body))
    done = cli("run", "-o", "run", PY, script, method)
    assert done.returncode == 0, done.stderr
    found = processes(cli.records("run"))
    # and no resource tracker
    assert sorted(r["task_name"] for r in found) == sorted(
        ["job.py", "worker 0", "worker 1"] + (["fork server"] if method == "forkserver" else [])
    )
    assert {r["process"] for r in tasks(cli.records("run"))} == {
        r["process"] for r in found if r["task_name"].startswith("worker")
    }
    lines = processes_of(done)
    assert (
        "not known" not in done.stderr
        and all(re.search(": (ok|ended);", line) for line in lines.values())
        and {"job.py", "worker 0", "worker 1"} <= lines.keys()
    )
    if kind != "terminated pool":
        assert {r["state"] for r in found} == {"ok"}


def test_names_that_the_job_gave(cli):
    done, records = cli.job(
        """
        import multiprocessing as mp
        def nested(): q = mp.get_context("fork").Process(target=print); q.start(); q.join()
        if __name__ == "__main__":
            for method, name in (("fork", 'reader "0"\\\\é'), ("spawn", "writer"), ("fork", None)):
                target = nested if name is None else print
                process = mp.get_context(method).Process(target=target, name=name)
                process.start(); process.join()
    """,
        "-q",
    )
    assert done.returncode == 0, done.stderr
    assert sorted(r["task_name"] for r in processes(records)) == [
        "job.py",
        "reader ?0??é",
        "worker 2",
        "worker 2.0",
        "writer",
    ]


def test_workers_of_joblib(cli):
    pytest.importorskip("joblib")
    done, records = cli.job(
        """
        import joblib, multiprocessing as mp, dwsr_probe

        def work(i):
            with dwsr_probe.task("work"):
                return i

        if __name__ == "__main__":
            assert joblib.Parallel(n_jobs=2)(joblib.delayed(work)(i) for i in range(4)) == [
                0,
                1,
                2,
                3,
            ]
    """,
        "-q",
    )
    assert done.returncode == 0, done.stderr
    assert (
        {"job.py"}
        < {r["task_name"] for r in processes(records)}
        <= {"job.py", "worker 0", "worker 1"}
    )


def test_the_end_of_a_worker_in_a_job_that_failed_is_not_known(cli):
    """As of an idle worker that was killed: then it may matter."""
    done, _ = cli.job("import os\nif os.fork() == 0: os._exit(0)\nos.wait()\nraise SystemExit(3)")
    assert done.returncode == 3 and "ended, how is not known" in done.stderr


def test_forks_from_a_busy_threaded_job(cli):
    done, records = cli.job(
        """
        import os, threading, time
        import dwsr_probe
        busy = True

        def churn():
            while busy:
                with dwsr_probe.task("churn"): bytearray(100_000)
                time.sleep(0.0005)

        threads = [threading.Thread(target=churn) for _ in range(4)]
        [t.start() for t in threads]
        for i in range(60):
            with dwsr_probe.task("around"):
                pid = os.fork()
                if pid == 0:
                    with dwsr_probe.task("child"): pass
                    os._exit(0)
                assert os.waitpid(pid, 0)[1] == 0
        busy = False
        [t.join() for t in threads]
    """,
        "-q",
    )
    assert done.returncode == 0, done.stderr
    assert len(tasks(records, "child")) == 60 and len(tasks(records, "around")) == 60
    parent = {r["process"] for r in tasks(records, "around")}
    assert len(parent) == 1 and not parent & {r["process"] for r in tasks(records, "child")}
    assert not [r for r in tasks(records) if r["state"] != "ok"]


def test_a_job_that_changes_directory(cli):
    done, records = cli.job("""
        import os, dwsr_probe
        with dwsr_probe.task("a"): os.chdir("/")
        with dwsr_probe.task("b"): pass
    """)
    assert done.returncode == 0 and len(tasks(records)) == 2


def test_a_job_that_closes_all_descriptors(cli):
    """Ours are opened again, and the job's new files under the same numbers are neither read nor
    written."""
    done, records = cli.job(
        """
        import mmap, os, time, dwsr_probe
        with dwsr_probe.task("before"): pass
        os.closerange(3, 4096)
        mine = [os.open(f"mine-{i}", os.O_RDWR | os.O_CREAT) for i in range(12)]
        for fd in mine: os.write(fd, b"precious")
        with dwsr_probe.task("after"):
            block = mmap.mmap(-1, 50 << 20)
            for i in range(0, 50 << 20, 4096): block[i] = 1
            block.close()
        end = time.monotonic() + 0.1
        while time.monotonic() < end:
            with dwsr_probe.task("more"): bytearray(1 << 20)
        for fd in mine: assert os.pread(fd, 100, 0) == b"precious"
        assert all(os.stat(f"mine-{i}").st_size == 8 for i in range(12))
    """,
        cwd=cli.cwd,
    )
    assert done.returncode == 0, done.stderr
    after = tasks(records, "after")[0]
    assert (
        49 << 20 < after["rss_peak_bytes"] - after["rss_before_bytes"] < 52 << 20
        and after["rss_peak_source"] == "kernel"
    )


def test_a_job_that_execs(cli):
    cli.script("import dwsr_probe\nwith dwsr_probe.task('second'): pass", "second.py")
    done, records = cli.job(
        """
        import os, sys, dwsr_probe
        with dwsr_probe.task("first"): pass
        block = dwsr_probe.task("cut off"); block.__enter__()
        try: os.execv("/no/such/program", ["x"])
        except OSError: pass
        os.execv(sys.executable, [sys.executable, "second.py"])
    """,
        cwd=cli.cwd,
    )
    assert done.returncode == 0, done.stderr
    assert {r["task_name"]: r["state"] for r in tasks(records)} == {
        "first": "ok",
        "cut off": "killed",
        "second": "ok",
    }
    first, second = processes(records)
    assert (
        first["pid"] == second["pid"]
        and first["process"] != second["process"]
        and first["state"] == second["state"] == "ok"
    )


def test_a_job_that_execs_something_else(cli):
    done, records = cli.job("""
        import os, dwsr_probe
        with dwsr_probe.task("first"): pass
        os.execvp("sh", ["sh", "-c", "sleep 0.1; exit 6"])
    """)
    assert done.returncode == 6 and tasks(records)[0]["state"] == "ok"
    assert {r["task_name"]: r["state"] for r in processes(records)} == {
        "job.py": "ok",
        f"{Path(PY).name} (exec)": "error",
    }


def test_a_job_that_becomes_python_again_after_a_while(cli):
    """The collector sees a program without a board first: its row must not be made of wait4
    then."""
    cli.script("import dwsr_probe\nwith dwsr_probe.task('second'): pass", "second.py")
    done, records = cli.job(
        f"""
        import os
        from dwsr_probe import _core
        wait = f"while [ -e {{_core.board_path()}} ]; do sleep 0.01; done"  # until it is collected
        os.execvp("sh", ["sh", "-c", wait + "; exec {PY} second.py"])
    """,
        cwd=cli.cwd,
    )
    assert done.returncode == 0, done.stderr
    assert {r["task_name"]: r["state"] for r in processes(records)} == {
        "job.py": "ok",
        "second.py": "ok",
    }


def test_a_job_that_daemonises(cli):
    """`run` ends with the command; what the daemon does later is collected by `report`."""
    cli.boards_may_stay = True
    done = cli(
        "run",
        "-o",
        "run",
        PY,
        cli.script("""
        import os, sys, time, dwsr_probe
        if os.fork(): os._exit(0)
        os.setsid()
        if os.fork(): os._exit(0)
        devnull = os.open(os.devnull, os.O_RDWR)
        for fd in (0, 1, 2): os.dup2(devnull, fd)
        with dwsr_probe.task("daemon"):
            open("pid", "w").write(str(os.getpid()))
            while not os.path.exists("go"): time.sleep(0.01)
    """),
        cwd=cli.cwd,
    )
    assert done.returncode == 0
    pid = wait_until(
        lambda: (cli.cwd / "pid").exists() and (cli.cwd / "pid").read_text(), "the daemon"
    )
    (cli.cwd / "go").touch()
    wait_until(
        lambda: not Path(f"/proc/{pid}").exists() or ") Z" in Path(f"/proc/{pid}/stat").read_text(),
        "the daemon's end",
    )
    assert [r["state"] for r in tasks(cli.records(cli.cwd / "run"), "daemon")] == ["ok"]
    assert not list((cli.cwd / "boards").iterdir())


def test_python_without_site_is_not_probed_and_it_is_said(cli):
    for option in ("-I", "-S", "-E"):
        done = cli("run", "-o", f"run{option}", PY, option, "-c", "print('ran')")
        assert (
            done.returncode == 0
            and done.stdout == "ran\n"
            and "ran without the probe (-I, -S and -E keep it out)" in done.stderr
        )
        (process,) = processes(cli.records(cli.cwd / f"run{option}"))
        assert process["state"] == "ok" and process["rss_before_bytes"] is None
    done, _ = cli.job("""
        import subprocess, sys
        subprocess.run([sys.executable, "-I", "-c", "pass"], check=True)
        subprocess.run([sys.executable, "-c", "pass"], env={}, check=True)
        subprocess.run([sys.executable, "-c", "pass"], check=True)
    """)
    assert "2 Python children ran without the probe" in done.stderr


def test_the_users_own_sitecustomize(cli):
    own = cli.cwd / "own"
    own.mkdir()
    (own / "sitecustomize.py").write_text("import sys\nsys.marker = __name__, __file__\n")
    env = dict(cli.env, PYTHONPATH=str(own))
    code = "import sys, sitecustomize; print(sys.marker, sitecustomize.__file__, sys.path)"
    bare = subprocess.run([PY, "-c", code], env=env, capture_output=True, text=True, cwd=cli.cwd)
    done = cli("run", "-q", PY, "-c", code, env=env)
    assert done.stdout == bare.stdout and done.stderr == bare.stderr == ""

    (own / "sitecustomize.py").write_text("raise ValueError('broken')\n")
    bare = subprocess.run(
        [PY, "-c", "print('ran')"], env=env, capture_output=True, text=True, cwd=cli.cwd
    )
    done = cli("run", "-q", "-o", "broken", PY, "-c", "print('ran')", env=env)
    assert (
        done.stdout == bare.stdout == "ran\n"
        and "ValueError: broken" in done.stderr
        and "ValueError: broken" in bare.stderr
    )
    # probed all the same
    assert processes(cli.records(cli.cwd / "broken"))[0]["task_name"] == "python -c"


def test_sys_path_is_as_without_us(cli):
    code = "import sys; print(sys.path, 'sitecustomize' in sys.modules)"
    for extra in ({}, {"PYTHONPATH": "/a:/b"}):
        env = {**{k: v for k, v in cli.env.items() if k != "PYTHONPATH"}, **extra}
        bare = subprocess.run(
            [PY, "-c", code], env=env, capture_output=True, text=True, cwd=cli.cwd
        ).stdout
        assert cli("run", "-q", PY, "-c", code, env=env).stdout.split("]")[0] == bare.split("]")[0]


@pytest.fixture(scope="session")
def other_environment(tmp_path_factory):
    path = tmp_path_factory.mktemp("venv")
    venv.create(path, with_pip=False)
    return path / "bin" / "python"


def test_an_environment_without_dwsr_probe(cli, other_environment):
    """The same Python in another environment, where only `run`'s own copy can be loaded."""
    bare = subprocess.run(
        [other_environment, "-c", "import dwsr_probe"], capture_output=True, text=True, cwd=cli.cwd
    )
    assert "No module named 'dwsr_probe'" in bare.stderr
    done = cli(
        "run",
        "-o",
        "run",
        other_environment,
        "-c",
        "import dwsr_probe\nwith dwsr_probe.task('x'): pass",
    )
    assert done.returncode == 0 and [
        r["task_name"] for r in tasks(cli.records(cli.cwd / "run"))
    ] == ["x"]


def test_an_interpreter_that_cannot_load_us_stays_silent(cli, other_environment, tmp_path):
    """As a Python of another version would: the package is there, its extension is not."""
    import shutil

    import dwsr_probe

    copy = tmp_path / "copy" / "dwsr_probe"
    shutil.copytree(
        Path(dwsr_probe.__file__).parent, copy, ignore=shutil.ignore_patterns("*.so", "__pycache__")
    )
    env = dict(cli.env, PYTHONPATH=str(copy / "boot"))
    done = subprocess.run(
        [other_environment, "-c", "import sys; print([m for m in sys.modules if 'dwsr' in m])"],
        env=env,
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "[]\n", "")


def test_a_stopped_job_is_not_dead(cli):
    job = cli.start(
        "run",
        "-q",
        "-o",
        "run",
        PY,
        cli.script("""
        import dwsr_probe, os, sys
        with dwsr_probe.task("long"):
            print(os.getpid(), flush=True)
            sys.stdin.readline()
    """),
        stdin=subprocess.PIPE,
    )
    pid = int(job.stdout.readline())
    os.kill(pid, signal.SIGSTOP)
    time.sleep(2.5)  # longer than a heartbeat may be late: the one thing under test here
    os.kill(pid, signal.SIGCONT)
    job.communicate("go\n", timeout=600)
    assert job.returncode == 0 and [
        r["state"] for r in tasks(cli.records(cli.cwd / "run"), "long")
    ] == ["ok"]


def test_a_job_that_stops_and_starts_the_probe_again(cli):
    done, records = cli.job("""
        import dwsr_probe, time

        for i in range(3):
            with dwsr_probe.task(f"part-{i}"):
                pass
            dwsr_probe.stop()
            # longer than a round: mostly, the closed board is collected before the next one begins
            time.sleep(1.2)
            with dwsr_probe.task("unseen"):
                pass
            assert dwsr_probe.start()
    """)
    assert done.returncode == 0, done.stderr
    assert [r["task_name"] for r in sorted(tasks(records), key=lambda r: r["start"])] == [
        "part-0",
        "part-1",
        "part-2",
    ]
    assert len({r["process"] for r in processes(records)}) == 4 and {
        r["state"] for r in processes(records)
    } == {"ok"}


def test_more_processes_than_descriptors(cli):
    """The collector's own limit must not cost a board."""
    _, records = cli.job(
        """
        import os, sys, dwsr_probe
        pids = []
        for i in range(60):
            pid = os.fork()
            if pid == 0:
                with dwsr_probe.task("many"): sys.stdin.read()
                os._exit(0)
            pids.append(pid)
        for pid in pids: os.waitpid(pid, 0)
    """,
        preexec_fn=lambda: __import__("resource").setrlimit(
            __import__("resource").RLIMIT_NOFILE, (40, 40)
        ),
        stdin=subprocess.DEVNULL,
    )
    assert len(tasks(records, "many")) == 60


@pytest.mark.parametrize(
    ("code", "states"),
    [
        ("import os, sys\ntry: os.execv('/none', ['x'])\nexcept OSError: sys.exit(127)", ["error"]),
        (
            (
                "import atexit, time, sys\nimport"
                " dwsr_probe\ndwsr_probe.stop()\ntime.sleep(1.3)\nsys.exit(3)"
            ),
            ["error"],
        ),
        ("import os\nif os.fork() == 0: os._exit(0)\nos.wait()", [None, "ok"]),
        (
            "import subprocess, os\nsubprocess.run(['sleep', '0.1'], preexec_fn=os.setsid)",
            [None, "ok"],
        ),
    ],
)
def test_how_a_process_ended_is_not_guessed(cli, code, states):
    """None is an honest answer; whether an exec was seen in time decides between None and ok for
    the forked ones."""
    _, records = cli.job(code)
    found = sorted((r["state"] for r in processes(records)), key=str)
    assert found == states or (None in states and found == ["ok", "ok"])


def test_a_daemon_by_the_book(cli):
    """Close everything, reopen the streams by taking the lowest numbers: none of them may be
    ours."""
    done, records = cli.job(
        """
        import os, time, dwsr_probe

        with dwsr_probe.task("before"):
            pass
        for fd in range(4096):
            try:
                os.close(fd)
            except OSError:
                pass
        time.sleep(0.05)  # the sampler looks for its files meanwhile
        assert os.open("log", os.O_RDWR | os.O_CREAT) == 0
        assert os.dup2(0, 1) == 1 and os.dup2(0, 2) == 2
        for i in range(20):
            with dwsr_probe.task("after"):
                bytearray(1 << 20)
            time.sleep(0.005)
        os.write(1, b"hello")
        assert [os.readlink(f"/proc/self/fd/{fd}").rpartition("/")[2] for fd in range(3)] == [
            "log"
        ] * 3
        os._exit(17)
    """,
        cwd=cli.cwd,
    )
    assert done.returncode == 17 and (cli.cwd / "log").read_bytes() == b"hello"
    assert len(tasks(records, "after")) == 20


def test_another_pid_namespace(cli):
    """As in a container: the pid on the board means nothing to the collector."""
    permitted(
        subprocess.run(
            ["unshare", "--pid", "--fork", "--mount-proc", "true"], capture_output=True
        ).returncode
        == 0,
        "make a pid namespace",
    )
    script = cli.script(
        "import dwsr_probe, time\nfor i in range(6):\n  with dwsr_probe.task('inside'):"
        " time.sleep(0.3)"
    )
    done = cli("run", "-o", "run", "unshare", "--pid", "--fork", "--mount-proc", PY, script)
    inside = tasks(cli.records(cli.cwd / "run"), "inside")
    assert done.returncode == 0 and [r["state"] for r in inside] == ["ok"] * 6


def test_a_job_whose_modules_are_named_like_ours(cli):
    folder = cli.cwd / "folder"  # becomes the job's sys.path[0]
    folder.mkdir()
    for name in ("json", "inspect", "struct", "functools"):
        (folder / f"{name}.py").write_text("raise RuntimeError('not the one you look for')")
    done, records = cli.job(
        "import dwsr_probe\nwith dwsr_probe.task('x', inputs=[b'abc']) as t: t.output = b'1'",
        name="folder/job.py",
    )
    assert done.returncode == 0, done.stderr
    assert tasks(records)[0]["input_bytes"] == 3


AFTER_SETUID = """
    import os
    os.setgid(65534); os.setuid(65534)
    for i in range(40):
        if os.fork() == 0: os._exit(0)
    while True:
        try: os.wait()
        except ChildProcessError: break
    print("done")
"""


def test_a_failure_of_many_children_is_one_line(cli, board_dir):
    permitted(os.geteuid() == 0, "change its user")
    done, _ = cli.job(AFTER_SETUID, "-q")
    assert done.stdout == "done\n" and done.returncode == 0
    (line,) = done.stderr.splitlines()
    assert "uid 65534" in line and "Permission denied" in line and "unprobed" in line
    assert not list(board_dir.glob("*.said")) and not list(
        Path("/tmp").glob("dwsr-probe-*-job-*.start.said")
    )


def test_a_failure_of_forked_children_without_a_run_is_one_line(cli):
    permitted(os.geteuid() == 0, "change its user")
    script = cli.script(
        "import dwsr_probe\nassert dwsr_probe.start()\n" + textwrap.dedent(AFTER_SETUID)
    )
    done = subprocess.run(
        [PY, script], capture_output=True, text=True, env=cli.env, cwd=cli.cwd, timeout=600
    )
    cli.boards_may_stay = True  # that of the first process, whose user may not remove it any more
    assert done.stdout == "done\n" and len(done.stderr.splitlines()) == 1, done.stderr


def test_a_failure_of_many_interpreters_is_one_line(cli):
    """Each is told to make its board where none can be made: after exec nothing but the run's
    name is shared."""
    done, _ = cli.job(
        """
        import os, subprocess, sys

        children = [
            subprocess.Popen(
                [sys.executable, "-c", "import os; os.write(1, b'ran')"],
                env=dict(os.environ, DWSR_PROBE_BOARD_DIR="/proc/none"),
            )
            for i in range(5)
        ]
        for child in children:
            child.wait()
    """,
        "-q",
    )
    assert done.stdout == "ran" * 5
    (line,) = done.stderr.splitlines()
    assert "cannot create the board directory /proc/none" in line


DESCRIPTORS = """
    import os, dwsr_probe

    def ours():
        found = {}
        for fd in os.listdir("/proc/self/fd"):
            try:
                target = os.readlink(f"/proc/self/fd/{fd}")
            except OSError:
                continue  # the listing's own
            if target.startswith(f"/proc/{os.getpid()}/") and not target.endswith("/fd"):
                found[int(fd)] = target.rpartition("/")[2]
        return found
"""


def test_few_descriptors_and_none_without_a_task(cli):
    """The sampler has a table of its own; a task needs two files, and a third below the floor of
    ru_maxrss."""
    done, _ = cli.job(
        textwrap.dedent(DESCRIPTORS)
        + textwrap.dedent("""
        before = ours()
        memory = bytearray(200 << 20)  # above the floor
        for i in range(3):
            with dwsr_probe.task("x"): bytearray(50 << 20)
        print(before, sorted(ours().values()), min(ours()) >= 900)
    """),
        "-q",
    )
    assert done.stdout == "{} ['clear_refs', 'statm'] True\n", done.stderr


def test_os_execve_is_still_what_it_was(cli):
    done, _ = cli.job(
        """
        import inspect, os, pickle
        assert os.execve in os.supports_fd and pickle.loads(pickle.dumps(os.execve)) is os.execve
        print(inspect.signature(os.execve), os.execve.__name__, flush=True)
        descriptor = os.open("/bin/echo", os.O_RDONLY)
        os.execve(descriptor, ["echo", "replaced"], {})
    """,
        "-q",
    )
    assert done.stdout == "(path, argv, env) execve\nreplaced\n" and done.returncode == 0, (
        done.stderr
    )


def test_a_child_that_is_killed_while_it_starts_leaves_no_board(cli):
    """The `cli` fixture finds what is left: a board has no name before it is whole."""
    done, _ = cli.job(
        """
        import os, random, signal, time
        for _ in range(150):
            pid = os.fork()
            if pid == 0:
                while True: pass
            end = time.monotonic() + random.uniform(0, 0.004)
            while time.monotonic() < end: pass
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    """,
        "-q",
    )
    assert done.returncode == 0, done.stderr


def test_a_process_without_tasks_is_small(cli):
    """At most 5 MB of address space and 1 MiB of board more than bare, forked or not."""
    script = cli.script("""
        import os
        from pathlib import Path

        def address_space():
            return int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGESIZE")

        def boards():
            place = os.environ["DWSR_PROBE_BOARD_DIR"]
            return (
                sum(f.stat().st_blocks * 512 for f in Path(place).glob("*.board"))
                if os.path.isdir(place)
                else 0
            )

        if os.fork() == 0:
            print(address_space(), flush=True)
            os._exit(0)
        os.wait()
        print(address_space(), boards())
    """)
    bare = [
        int(n)
        for n in subprocess.run(
            [PY, script], capture_output=True, text=True, env=cli.env
        ).stdout.split()
    ]
    done = cli("run", "-q", PY, script)
    probed = [int(n) for n in done.stdout.split()]
    assert len(bare) == len(probed) == 3, done
    assert probed[0] - bare[0] <= 5_000_000 and probed[1] - bare[1] <= 5_000_000
    assert 0 < probed[2] <= 2 << 20  # two boards: the child's is still there


@pytest.mark.parametrize(
    "limited", ["a full disk", "an address space too small for the owner table"]
)
def test_no_room_at_the_first_task(cli, tmp_path, limited):
    """A process whose board cannot grow runs on; its tasks are counted, and one line says why
    for all processes."""
    if limited == "a full disk":
        place = tmp_path / "small"
        place.mkdir()
        if subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=11m", "tmpfs", place], capture_output=True
        ).returncode:
            pytest.skip("may not mount")
        cli.env["DWSR_PROBE_BOARD_DIR"] = str(place / "boards")
    try:
        done, records = cli.job(f"""
            import os, resource, dwsr_probe
            def work():
                with dwsr_probe.task("first"): block = bytearray(1 << 20)
                with dwsr_probe.task("second"): block = bytearray(1 << 20)
            limited = {limited!r}
            if limited == "a full disk":
                filler = os.environ["DWSR_PROBE_BOARD_DIR"] + "/filler"
                with open(filler, "wb", buffering=0) as file:
                    try:
                        while True: file.write(bytes(4096))
                    except OSError: file.truncate(file.tell() - (4 << 20))  # room for small boards
            else:
                used = int(open("/proc/self/statm").read().split()[0]) * os.sysconf("SC_PAGESIZE")
                resource.setrlimit(resource.RLIMIT_AS, (used + (13 << 20),) * 2)
            for _ in range(3):
                if os.fork() == 0:
                    work(); os._exit(0)
                os.wait()
            work()
            if limited == "a full disk": os.unlink(os.environ["DWSR_PROBE_BOARD_DIR"] + "/filler")
        """)
        assert done.returncode == 0, done.stderr
        if limited == "a full disk":
            assert done.stderr.count("The tasks of this process are not measured") == 1, done.stderr
            assert "tasks not measured: its board could not grow" in done.stderr and not tasks(
                records
            )
            assert (
                "there was no room for them on the board" in done.stderr
                and "too many" not in done.stderr
            )
        else:  # the board fits, the table does not: tasks without own figures
            assert {r["task_name"]: r["alloc_peak_bytes"] for r in tasks(records)} == {
                "first": None,
                "second": None,
            }
    finally:
        if limited == "a full disk":
            subprocess.run(["umount", "-l", place], check=True)


CALLS = """
    import os, dwsr_probe
    for i in range(5):
        with dwsr_probe.task("x"): bytearray(60 << 20)
    if os.fork() == 0:
        with dwsr_probe.task("y"): bytearray(60 << 20)
        os._exit(0)
    os.wait()
"""


def test_system_calls_are_documented(cli):
    """For seccomp filters: what a probed job calls beyond the same job alone, and all calls of
    the sampler's thread."""
    require(shutil.which("strace"), "strace: apt-get install strace")
    documented = set(
        re.findall(
            r"`([a-z0-9_]+)`",
            (Path(__file__).parents[2] / "docs" / "run.md")
            .read_text()
            .partition("## System calls")[2],
        )
    )
    script = cli.script(CALLS)

    def traced(folder, *command):
        """Of each thread of the job; what `run`'s parent calls is no concern of the job's."""
        (cli.cwd / folder).mkdir()
        permitted(
            subprocess.run(["strace", "-o", "/dev/null", "true"], capture_output=True).returncode
            == 0,
            "trace a process",
        )
        done = subprocess.run(
            ["strace", "-ff", "-o", cli.cwd / folder / "trace", *command],
            env=cli.env,
            cwd=cli.cwd,
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0, done.stderr
        traces = sorted((cli.cwd / folder).glob("trace.*"), key=lambda path: int(path.suffix[1:]))
        return [path.read_text(errors="replace") for path in traces]

    def calls(traces):
        return {
            name for trace in traces for name in re.findall(r"^([a-z0-9_]+)\(", trace, re.MULTILINE)
        }

    alone = traced("alone", PY, script)
    probed = traced("probed", PY, "-m", "dwsr_probe", "run", "-q", "-o", "run", PY, script)[1:]
    samplers = [trace for trace in probed if '"dwsr-sampler"' in trace]
    assert 0 < len(samplers) < len(probed)
    assert calls(samplers) <= documented
    assert calls(probed) - calls(alone) <= documented


def test_a_fork_brings_no_warning_and_the_sampler_goes_on(cli):
    """Python 3.12 and later count the threads of a process that forks, and warn: 3.12 before its
    handlers in the parent, 3.13 after them."""
    done, records = cli.job(
        """
        import os, threading, time, dwsr_probe
        def samples():
            return dwsr_probe.snapshot().live["samples_written"]
        def forks(n):
            for _ in range(n):
                if os.fork() == 0: os._exit(0)
            while True:
                try: os.wait()
                except ChildProcessError: break
        forks(20)
        before = samples()
        while samples() < before + 3: time.sleep(0.001)  # restarted by the main thread
        thread = threading.Thread(target=forks, args=(1,))
        thread.start()
        thread.join()
        with dwsr_probe.task("next"):
            before = samples()
            while samples() < before + 3: time.sleep(0.001)
    """,
        "-q",
    )
    assert done.returncode == 0 and (sys.version_info >= (3, 12) or done.stderr == ""), done.stderr
    assert done.stderr.count("multi-threaded") <= 1, done.stderr  # the job's own second thread
    assert len(tasks(records, "next")) == 1
