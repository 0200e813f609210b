"""The records of a killed process are not lost: SIGKILL at random moments, OOM kills, segfaults,
os._exit. Also boards that were damaged afterwards."""

import mmap
import os
import random
import re
import signal
import struct
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path
from urllib.request import urlopen

import pytest

from dwsr_probe import _core
from dwsr_probe.board import Board
from dwsr_probe.collector import read_board_into
from dwsr_probe.record import SERIAL_INDEX, record_of
from dwsr_probe.store import Store
from tests.conftest import permitted, processes, tasks, wait_until

PY = sys.executable
THREADS = 8

# Each thread counts its tasks in a shared file, inside each and right after its end: a witness
# outside the probe.
# A count is one store of a word. struct.pack_into writes zeros first, and a kill in between leaves
# a thread that has counted nothing.
BUSY = f"""
import dwsr_probe, mmap, sys, threading, time
assert dwsr_probe.start()
file = open(sys.argv[1], "r+b")
witness = memoryview(mmap.mmap(file.fileno(), {16 * THREADS})).cast("Q")
text = ["x" * n for n in (1, 40, 200)]

def work(i):
    n = 0
    while True:
        with dwsr_probe.task(text[n % 3], inputs=[b"abc"], key=str(n * {THREADS} + i)):
            witness[{THREADS} + i] = n + 1
            bytearray(1000 << (n % 9))
        n += 1
        witness[i] = n

for i in range({THREADS}):
    threading.Thread(target=work, args=(i,), daemon=True).start()
print("ready", flush=True)
time.sleep(600)
"""


def kill_busy_job(board_dir, folder, least, delay_s):
    """One busy process, killed so long after it has finished at least so many tasks.

    Returns its board's path and what each thread had counted: (finished, begun).
    """
    witness = folder / "witness"
    witness.write_bytes(bytes(16 * THREADS))

    def counts():
        words = struct.unpack(f"={2 * THREADS}Q", witness.read_bytes())
        return list(zip(words[:THREADS], words[THREADS:], strict=True))

    job = subprocess.Popen(
        [PY, "-c", BUSY, str(witness)],
        stdout=subprocess.PIPE,
        env=dict(os.environ, DWSR_PROBE_BOARD_DIR=str(board_dir)),
    )
    assert job.stdout.readline() == b"ready\n"
    wait_until(lambda: sum(finished for finished, _ in counts()) >= least, f"{least} tasks")
    time.sleep(delay_s)
    job.kill()
    job.wait()
    job.stdout.close()
    (path,) = board_dir.glob("*.board")
    return path, counts()


def check_board(path, counts):
    """A killed job's board against the witness: how many tasks had finished, and what differs,
    one line each."""
    board, differences = Board(path), []

    def expect(holds, what):
        if not holds:
            differences.append(what)

    live = board.live()
    expect(not board.is_alive(live), "the dead process counts as alive")
    seqs, ended, position, last_serial = [], [[] for _ in counts], 0, None
    while True:
        raws, position = board.raw_records(position)
        if not raws:
            break
        for raw in raws:
            record = record_of(board, raw)
            seqs.append(record.seq)
            last_serial = raw[0][SERIAL_INDEX]
            if (
                record.task_name in ("x", "x" * 40, "x" * 200)
                and record.state == "ok"
                and record.inputs[0]["nbytes"] == 3
                and record.rss_peak_bytes >= record.rss_before_bytes > 0
                and record.key.isdigit()
            ):
                n, i = divmod(int(record.key), THREADS)
                ended[i].append(n)
            else:
                differences.append(f"a torn record: {record}")
    gaps = [(a, b) for a, b in pairwise(seqs) if b != a + 1]
    expect(not gaps, f"seq goes {gaps[:5]}")  # nothing the ring still held is missing
    complete = not seqs or seqs[0] == 1  # nothing was overwritten
    found = [(serial, r) for serial, _, r in board.running(live, all_slots=True)]
    running = [r for serial, r in found if serial != last_serial]
    held = [[] for _ in counts]
    for r in running:
        if r.key.isdigit() and r.rss_peak_bytes >= r.rss_before_bytes > 0:
            held[int(r.key) % THREADS].append(int(r.key) // THREADS)
        else:
            differences.append(f"a torn slot: {r}")
    for i, ((finished, begun), ns) in enumerate(zip(counts, ended, strict=True)):
        if not ns and not complete:
            continue  # a thread that got no turn for as long as the ring lasts
        on_board = ns[-1] + 1 if ns else 0
        expect(
            ns == list(range(ns[0] if ns and not complete else 0, on_board)),
            f"thread {i}: its records have gaps",
        )
        expect(
            on_board in (finished, finished + 1),
            f"thread {i}: it counted {finished} finished tasks, the board has {on_board}",
        )
        expect(
            held[i] in ([], [on_board]) and begun <= on_board + len(held[i]),
            f"thread {i}: of {begun} begun tasks {on_board} are finished, {held[i]} running",
        )
    store = Store.in_memory()
    read_board_into(store, path)
    killed = sum(r.state == "killed" for r in store.tasks())
    expect(
        killed == len(running), f"{killed} killed in the store, {len(running)} running on the board"
    )
    newest = seqs[-1] if seqs else 0
    counted = sum(total.count for totals in store.totals().values() for total in totals)
    expect(counted == newest, f"the totals count {counted} of {newest} tasks")
    if differences:
        differences.append(
            f"finished and begun, counted by thread: {counts}, newest seq {newest}, oldest"
            f" {seqs[:1]}, running serials {[serial for serial, _ in found]}, newest record's"
            f" {last_serial}, killed {killed}, {live}"
        )
    board.close()
    return newest, differences


def test_fifty_kills_at_random_moments(board_dir, tmp_path):
    chance = random.Random(50)
    for _ in range(50):
        path, counts = kill_busy_job(
            board_dir, tmp_path, chance.choice((0, 1, 10, 100, 1000)), chance.random() * 0.01
        )
        _, differences = check_board(path, counts)
        assert not differences
        path.unlink()


def test_a_ring_that_was_lapped_and_a_kill(cli):
    """While run's parent is stopped, tasks overwrite each other's records; then the process is
    killed inside one. Nothing is uncounted."""
    with cli.start(
        "run",
        "-o",
        "run",
        "--metrics",
        "0",
        "--linger",
        "600",
        PY,
        cli.script("""
        import dwsr_probe, os, signal
        os.kill(os.getppid(), signal.SIGSTOP)
        with dwsr_probe.task("large", inputs=[bytes(77)]):
            bytearray(40 << 20)
        for n in range(200_000):
            with dwsr_probe.task("small", key=str(n) * 8): pass
        with dwsr_probe.task("last"):
            dwsr_probe.snapshot()
            os.kill(os.getppid(), signal.SIGCONT)
            os.kill(os.getpid(), signal.SIGKILL)
    """),
    ) as run:
        url = next(
            re.search(r"http\S+/metrics", line)[0] for line in run.stderr if "/metrics" in line
        )
        wait_until(
            lambda: 'outcome="killed",task_name="last"' in urlopen(url).read().decode(),
            "the killed task",
        )
        text = urlopen(url).read().decode()
        run.send_signal(signal.SIGINT)
        _, said = run.communicate(timeout=600)
    assert (
        'dwsr_tasks_total{operation="small",outcome="ok",task_name="small"} 200000.0' in text
        and 'dwsr_tasks_total{operation="large",outcome="ok",task_name="large"} 1.0' in text
    )
    assert 'dwsr_tasks_total{operation="last",outcome="killed",task_name="last"} 1.0' in text
    (lost,) = re.findall(r"^dwsr_probe_records_lost_total (\S+)", text, re.M)
    records = cli.records(cli.cwd / "run")
    assert float(lost) == 200_001 - len([r for r in tasks(records) if r["state"] == "ok"]) > 100_000
    # its record is gone, not its figures
    assert not tasks(records, "large") and len(tasks(records, "last")) == 1
    rows = {line.split()[0]: line for line in said.splitlines()}
    assert (
        "40.0 MiB" in rows["large"]
        and "200,000" in rows["small"]
        and "≈" in rows["small"]
        and " killed" in rows["last"]
    )
    assert (
        f"{float(lost):,.0f} of 200,002 tasks have no record of their own" in said
        and "≈ within 5 %" in said
        and "not in the table" not in said
    )


@pytest.mark.parametrize(
    ("end", "code"),
    [
        ("os.kill(os.getpid(), signal.SIGKILL)", 137),
        ("os._exit(5)", 5),
        ("ctypes.string_at(0)", 139),
        ("os.abort()", 134),
        ("os.kill(os.getpid(), signal.SIGTERM)", 143),
    ],
)
def test_the_running_tasks_are_reported(cli, end, code):
    done, records = cli.job(f"""
        import ctypes, os, signal, time, dwsr_probe
        dwsr_probe.snapshot()  # what it imports is not a task's
        for i in range(3):
            with dwsr_probe.task("finished"): pass
        with dwsr_probe.task("outer", inputs=[bytes(100)], key="k-1"):
            block = bytearray(60 << 20)
            del block
            with dwsr_probe.task("inner"):
                begun = time.monotonic_ns()
                while dwsr_probe.snapshot().live["heartbeat_ns"] < begun + 50_000_000:
                    time.sleep(0.01)  # until the sampler has seen it
                {end}
    """)
    assert done.returncode == code
    assert [r["state"] for r in tasks(records, "finished")] == ["ok"] * 3
    (outer,), (inner,) = tasks(records, "outer"), tasks(records, "inner")
    assert (
        outer["state"] == inner["state"] == "killed"
        and outer["key"] == "k-1"
        and outer["input_bytes"] == 100
    )
    assert 59 << 20 < outer["rss_peak_bytes"] - outer["rss_before_bytes"] < 63 << 20
    assert (
        inner["rss_peak_bytes"] - inner["rss_before_bytes"] < 2 << 20 and inner["duration"] >= 0.05
    )
    assert sorted(r["seq"] for r in tasks(records)) == [1, 2, 3, 4, 5]
    assert processes(records)[0]["state"] == ("error" if "_exit" in end else "killed")
    assert "killed" in done.stderr


def test_the_peak_so_far_is_one_period_old(cli):
    """A task that grows and never reaches a boundary. Only the sampler can have seen its peak."""
    _, records = cli.job("""
        import os, signal, time, dwsr_probe
        dwsr_probe.snapshot()
        with dwsr_probe.task("grows"):
            block = bytearray(80 << 20)
            grown = time.monotonic_ns()
            while dwsr_probe.snapshot().live["heartbeat_ns"] <= grown: time.sleep(0.01)
            os.kill(os.getpid(), signal.SIGKILL)
    """)
    (grows,) = tasks(records)
    assert (
        grows["state"] == "killed"
        and grows["rss_peak_bytes"] - grows["rss_before_bytes"] > 79 << 20
    )


def memory_cgroup():
    """A memory cgroup of the test's own with a small limit, or None where that is not allowed."""
    own = Path("/proc/self/cgroup").read_text()
    v1 = next((line.split(":", 2)[2] for line in own.splitlines() if ":memory:" in line), None)
    base = (
        Path("/sys/fs/cgroup/memory") / v1.lstrip("/") if v1 is not None else Path("/sys/fs/cgroup")
    )
    group = base / f"dwsr-test-{os.getpid()}"
    try:
        group.mkdir()
        (group / ("memory.limit_in_bytes" if v1 is not None else "memory.max")).write_text(
            str(150 << 20)
        )
        return group
    except OSError:
        return None


def test_the_kernels_oom_killer(cli):
    group = permitted(memory_cgroup(), "make a memory cgroup")
    try:
        done, records = cli.job(f"""
            import os, dwsr_probe
            open({str(group / "cgroup.procs")!r}, "w").write(str(os.getpid()))
            with dwsr_probe.task("too large"):
                blocks = []
                while True: blocks.append(bytearray(b"x") * (4 << 20))
        """)
        assert done.returncode == 137
        (task,) = tasks(records)
        # What it had before it joined the group is not the group's.
        assert (
            task["state"] == "killed"
            and 100 << 20 < task["rss_peak_bytes"] < (160 << 20) + task["rss_before_bytes"]
        )
    finally:
        wait_until(lambda: not (group / "cgroup.procs").read_text(), "an empty cgroup")
        group.rmdir()


def dead_board(board_dir, folder):
    """A real board of a killed process, with finished and running tasks."""
    job = subprocess.run(
        [
            PY,
            "-c",
            """
import dwsr_probe, os, signal
assert dwsr_probe.start()
for i in range(500):
    with dwsr_probe.task("n" * (i % 300), inputs=[bytes(i)]): pass
dwsr_probe.task("open").__enter__()
os.kill(os.getpid(), signal.SIGKILL)
""",
        ],
        env=dict(os.environ, DWSR_PROBE_BOARD_DIR=str(board_dir)),
    )
    assert job.returncode == -9
    (path,) = board_dir.glob("*.board")
    return path


def test_a_board_by_itself_after_a_crash(cli, board_dir):
    path = dead_board(board_dir, cli.cwd)
    done = cli("report", path)
    assert done.returncode == 0 and "open" in done.stdout and "killed" in done.stdout
    assert "1 left by processes that are gone" in cli("doctor").stdout
    path.unlink()


def test_twenty_thousand_mutated_boards(board_dir, tmp_path):
    """Noise in every part, of every amount: either a BoardError or records of the right form.
    Never a crash, a hang, another error."""
    path = dead_board(board_dir, tmp_path)
    good = path.read_bytes()
    header = Board(path).header
    chance = random.Random(20_000)
    # Where there is something to break: header, live fields, first slots, the filled part of the
    # rings.
    parts = [
        (0, 256),
        (0, 2048),
        (header["live_offset"], header["live_offset"] + 256),
        (header["slots_offset"], header["slots_offset"] + 600),
        (header["records_offset"], header["records_offset"] + 120_000),
        (header["samples_offset"], header["samples_offset"] + 4096),
    ]
    outcomes = {"read": 0}
    with open(path, "r+b") as file:
        view = mmap.mmap(file.fileno(), len(good))
        for round_ in range(20_000):
            low, high = parts[round_ % len(parts)]
            touched = []
            for _ in range(chance.choice((1, 1, 2, 8, 64))):
                at = chance.randrange(low, high - 8)
                piece = chance.choice(
                    (b"\xff" * 8, b"\0" * 8, chance.randbytes(1), chance.randbytes(8))
                )
                view[at : at + len(piece)] = piece
                touched.append((at, at + len(piece)))
            try:
                board = Board(path)
                live = board.live()
                for _, _, record in board.running(live):
                    assert record.state == "running" and isinstance(record.task_name, str)
                raws, _ = board.raw_records(chance.choice((0, 8 * chance.randrange(20_000))))
                for raw in raws[:3]:
                    assert set(record_of(board, raw).task_name) <= {"n"}
                board.samples(0)
                board.is_alive(live)
                board.close()
                if round_ % 10 == 0:
                    read_board_into(Store.in_memory(), path)
                outcomes["read"] += 1
            except _core.BoardError as error:
                outcomes[error.reason] = outcomes.get(error.reason, 0) + 1
            for begin, end in touched:
                view[begin:end] = good[begin:end]
        view.close()
    assert path.read_bytes() == good
    path.unlink()
    assert outcomes["read"] > 1000 and all(
        outcomes.get(reason, 0) > 100 for reason in ("foreign", "version", "damaged")
    ), outcomes


@pytest.mark.parametrize(
    ("damage", "text"),
    [
        (lambda f: f.truncate(5000), "it was cut short"),
        (lambda f: f.write(b"\0" * 16 + os.urandom(4000)), "has not finished creating it"),
        (lambda f: f.write(os.urandom(1 << 16)), "is not a board"),
        (lambda f: (f.seek(8), f.write(struct.pack("<Q", 9))), "it has version 9"),
        (lambda f: (f.seek(200), f.write(os.urandom(100))), "overwritten or damaged"),
    ],
)
def test_a_damaged_board_is_one_clear_line(cli, board_dir, damage, text):
    path = dead_board(board_dir, cli.cwd)
    with open(path, "r+b") as file:
        damage(file)
    done = cli("report", path)
    assert done.returncode == 1 and text in done.stderr and len(done.stderr.splitlines()) == 1
    if "version" in text:
        assert (
            f"knows versions {_core.BOARD_VERSION_OLDEST} to {_core.BOARD_VERSION}" in done.stderr
        )
    # A run beside it says at most one line about it, and works.
    beside = cli(
        "run", "-o", "beside", PY, "-c", "import dwsr_probe\nwith dwsr_probe.task('fine'): pass"
    )
    assert beside.returncode == 0 and len(tasks(cli.records(cli.cwd / "beside"), "fine")) == 1
    assert sum("cannot read the board" in line for line in beside.stderr.splitlines()) <= 1
    path.unlink()


def test_a_board_damaged_while_its_job_runs(cli, board_dir):
    """The reader survives, says it once, keeps what it had; the job does not notice."""
    job = cli.start(
        "run",
        "-q",
        "-o",
        "run",
        PY,
        cli.script("""
        import dwsr_probe, sys
        with dwsr_probe.task("early"): pass
        print("ready", flush=True)
        sys.stdin.readline()
        raise SystemExit(3)
    """),
        stdin=subprocess.PIPE,
    )
    job.stdout.readline()
    path = wait_until(lambda: list(board_dir.glob("*.board")), "the board")[0]
    wait_until(lambda: "early" in cli("report", "run").stdout, "the first round")
    live = Board(path).header["live_offset"] + 8 * _core.LIVE_FIELDS.index("records_tail")
    with open(path, "r+b") as file:
        file.seek(live)
        file.write(b"\xff" * 4)
    wait_until(lambda: not time.sleep(0.1) and job.poll() is None, "another round")
    _, err = job.communicate("go\n", timeout=600)
    assert job.returncode == 3 and err.count("overwritten or damaged") == 1
    assert len(tasks(cli.records(cli.cwd / "run"), "early")) == 1


def test_signal_names_are_not_confused(cli):
    assert (
        cli("run", "-q", "sh", "-c", f"kill -{int(signal.SIGUSR2)} $$").returncode
        == 128 + signal.SIGUSR2
    )


def test_boards_that_nobody_came_for_are_swept(tmp_path):
    """The dead one, after its time; never a living one's."""
    from dwsr_probe.runs import sweep

    code = (
        "import dwsr_probe, sys, time; assert dwsr_probe.start(board_dir=sys.argv[1]); print('in',"
        " flush=True); time.sleep(600)"
    )
    dead, living = (
        subprocess.Popen(
            [sys.executable, "-c", code, str(tmp_path / "boards")], stdout=subprocess.PIPE
        )
        for _ in range(2)
    )
    try:
        assert dead.stdout.readline() == living.stdout.readline() == b"in\n"
        dead.kill()
        dead.wait()
        assert sweep(tmp_path / "boards") == 0  # not yet
        assert sweep(tmp_path / "boards", older_s=0) == 1
        (left,) = (tmp_path / "boards").iterdir()
        assert left.name.startswith(f"{living.pid}-")
        assert sweep(tmp_path / "nowhere") == 0
        unfinished = tmp_path / "boards" / "1-1.board"  # as a filesystem without O_TMPFILE has it
        unfinished.write_bytes(bytes(4096))
        assert sweep(tmp_path / "boards") == 0 and sweep(tmp_path / "boards", unfinished_s=-1) == 1
    finally:
        living.kill()
        living.wait()


def test_a_command_that_is_dead_before_it_is_waited_for(cli, board_dir):
    """A round between the death of the command and wait4 must not store it as a process whose end
    nobody saw."""
    from dwsr_probe.collector import Collector
    from dwsr_probe.process import start_ticks
    from dwsr_probe.store import Store

    code = "import dwsr_probe, os; assert dwsr_probe.start(); os.kill(os.getpid(), 9)"
    dead = subprocess.Popen([sys.executable, "-c", code], env=cli.env)
    os.waitid(os.P_PID, dead.pid, os.WEXITED | os.WNOWAIT)  # a zombie from here on
    assert start_ticks(dead.pid) is None
    collector = Collector(Store.in_memory(), "", str(board_dir), print)
    collector.run = None
    collector.expect_exit(dead.pid)
    assert collector.round() == 1 and len(list(board_dir.glob("*.board"))) == 1
    dead.wait()
    collector.note_exit(dead.pid, "killed", 9)
    assert collector.round() == 0
    ((record, health),) = collector.store.processes()
    assert (record.state, health["signal"]) == ("killed", 9)
