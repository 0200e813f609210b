"""What tests of ports share: jobs that wait for files, and a `dwsr-probe` that serves, by what
it says."""

import os
import re
import signal
import sys
import textwrap
import threading
import urllib.error
import urllib.request

import psutil
import pytest
from prometheus_client.parser import text_string_to_metric_families as parse_text

from tests.conftest import wait_until

PY = sys.executable
MIB = 1 << 20

UNTIL_TOLD = """
import dwsr_probe, os, sys, threading, time
def wait_for(word):
    while not os.path.exists(word): time.sleep(0.002)
def say(word): open(word, "w").close()
"""


class Served:
    """A `dwsr-probe` that serves, by what it says on stderr."""

    def __init__(self, process):
        self.process, self.said = process, []
        while not (
            found := re.search(r"metrics at (\S+)/metrics", self.said[-1] if self.said else "")
        ):
            line = process.stderr.readline()
            assert line, f"it ended without a port: {self.said}"
            self.said.append(line)
        self.url = found[1]
        self.port = int(self.url.rpartition(":")[2])
        # or it would stop at a full pipe
        threading.Thread(target=lambda: self.said.extend(process.stderr), daemon=True).start()

    def get(self, path="/metrics", headers=None, timeout=600, **options):
        request = urllib.request.Request(self.url + path, headers=headers or {})
        with urllib.request.urlopen(request, timeout=timeout, **options) as answer:
            return answer.read().decode()

    def status(self, path="/metrics", headers=None, **options):
        try:
            self.get(path, headers, **options)
            return 200
        except urllib.error.HTTPError as error:
            return error.code

    def value(self, name, **labels):
        """Sum of the series with these labels; None without any."""
        found = [
            s.value
            for f in parse_text(self.get())
            for s in f.samples
            if s.name == name and labels.items() <= s.labels.items()
        ]
        return sum(found) if found else None

    def rss(self):
        return psutil.Process(self.process.pid).memory_info().rss

    def end(self, number=None, timeout=600):
        if number is not None:
            self.process.send_signal(number)
        return self.process.wait(timeout)

    def stderr(self):
        return "".join(self.said)


@pytest.fixture
def serve(cli):
    """Start something that serves; ended at the end of the test, whatever happens."""
    started = []

    def start(*words, **options):
        started.append(cli.start(*words, start_new_session=True, **options))
        return Served(started[-1])

    yield start
    for process in started:
        if process.poll() is None:
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            process.wait()
            cli.boards_may_stay = True
        process.stdout.close()


@pytest.fixture
def run(cli, serve):
    def start(code, *options):
        return serve(
            "run",
            "-o",
            "run",
            "--metrics",
            "0",
            *options,
            PY,
            cli.script(UNTIL_TOLD + textwrap.dedent(code)),
        )

    return start


def exporter(serve, board_dir, *options):
    return serve("export", "--listen", "0", "--board-dir", board_dir, *options)


def say(cli, word):
    (cli.cwd / word).touch()


def heard(cli, word):
    wait_until((cli.cwd / word).exists, f"the job's {word!r}")
