"""What `dwsr-probe top` costs while it looks: CPU of its process, on a terminal of our own, with
tasks that all change between two pictures."""

import fcntl
import os
import pty
import signal
import struct
import subprocess
import tempfile
import termios
import threading
import time

import psutil

from tests.bench import PY, Section, spread

# Threads whose tasks grow by 16 KiB every 50 ms and begin anew after 10 s; one more ends as many
# tasks a second as it is told.
JOB = """
import sys, threading, time
import dwsr_probe
dwsr_probe.start()
threads, rate = int(sys.argv[1]), int(sys.argv[2])
def grow(n):
    while True:
        with dwsr_probe.task(f"name_{n % 20}"):
            kept = []
            for _ in range(200):
                kept.append(bytearray(1 << 14))
                time.sleep(0.05)
def hurry():
    while True:
        for _ in range(rate // 20):
            with dwsr_probe.task("short"): pass
        time.sleep(0.05)
for n in range(threads): threading.Thread(target=grow, args=(n,), daemon=True).start()
if rate: threading.Thread(target=hurry, daemon=True).start()
print("running", flush=True)
sys.stdin.read()
"""


class Screen:
    """top on a terminal of so many columns and lines; what it writes is counted."""

    def __init__(self, words, width, height, env):
        ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))
        self._ours, self.pictures, self.bytes = ours, 0, 0
        self.process = subprocess.Popen(
            [PY, "-m", "dwsr_probe", "top", *words],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env=env | {"TERM": "xterm"},
            start_new_session=True,
        )
        os.close(theirs)
        self._first = threading.Event()
        threading.Thread(target=self._read, daemon=True).start()
        self._first.wait(60)

    def _read(self):
        while True:
            try:
                data = os.read(self._ours, 1 << 16)
            except OSError:
                return
            self.bytes += len(data)
            self.pictures += data.count(b"\x1b[?2026h")
            if self.pictures:
                self._first.set()

    def share(self, seconds):
        """(per cent of a core, pictures a second, KiB a second) over so long, after two seconds."""
        time.sleep(2)
        me = psutil.Process(self.process.pid)
        before, begin, pictures, size = (
            sum(me.cpu_times()[:2]),
            time.monotonic(),
            self.pictures,
            self.bytes,
        )
        time.sleep(seconds)
        took = time.monotonic() - begin
        return (
            100 * (sum(me.cpu_times()[:2]) - before) / took,
            (self.pictures - pictures) / took,
            (self.bytes - size) / took / 1024,
        )

    def end(self):
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(30)
        os.close(self._ours)


def measure(processes, threads, rate, width, height, seconds, rounds, port=False):
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        env = dict(os.environ, DWSR_PROBE_BOARD_DIR=folder, PYTHONPATH=os.getcwd())
        jobs = [
            subprocess.Popen(
                [PY, "-c", JOB, str(threads), str(rate)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env=env,
            )
            for _ in range(processes)
        ]
        exporter = None
        try:
            for job in jobs:
                job.stdout.readline()
            words = ["--board-dir", folder]
            if port:
                exporter = subprocess.Popen(
                    [PY, "-m", "dwsr_probe", "export", "--listen", "0", *words],
                    stderr=subprocess.PIPE,
                    text=True,
                    env=env,
                )
                words = [exporter.stderr.readline().split()[-1].removesuffix("/metrics")]
            found = []
            for _ in range(rounds):
                screen = Screen(words, width, height, env)
                found.append(screen.share(seconds))
                screen.end()
            return found
        finally:
            for process in (*jobs, *filter(None, [exporter])):
                process.kill()
                process.communicate()


def run(quick=False):
    section = Section(
        "The live view",
        "≤ 3 % of a core at 4 Hz with 64 slots",
        ("what is watched", "terminal", "% of a core", "pictures/s", "KiB/s to the terminal"),
    )
    seconds, rounds = (4, 1) if quick else (15, 5)
    for what, processes, threads, rate, width, height, port in (
        ("**64 tasks in one process**", 1, 64, 0, 160, 100, False),
        ("**64 tasks in 8 processes**", 8, 8, 0, 160, 100, False),
        ("the same, most of it out of sight", 8, 8, 0, 80, 24, False),
        ("64 tasks, and 1,000 more end each second", 1, 64, 1000, 160, 100, False),
        ("500 tasks in one process", 1, 500, 0, 80, 24, False),
        ("64 tasks in 8 processes, through an exporter's port", 8, 8, 0, 160, 100, True),
    ):
        cpu, pictures, size = zip(
            *measure(processes, threads, rate, width, height, seconds, rounds, port), strict=True
        )
        section.rows.append(
            (what, f"{width}×{height}", spread(cpu), spread(pictures, 1), spread(size, 1))
        )
    section.notes.append(
        "CPU of top's process, user and system, after its first two seconds; the tasks' own"
        " processes are not in it. All tasks grow, so that every line changes. A port is asked once"
        " a second."
    )
    return section
