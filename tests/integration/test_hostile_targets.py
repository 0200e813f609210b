"""`dwsr-probe predict serve` with targets that mean harm beside an honest one: its memory, its
state, and that the honest one is heard."""

import json
import re
import resource
import signal

import pytest
from prometheus_client.parser import text_string_to_metric_families as parse_text

from tests.conftest import wait_until
from tests.unit.hostile import OK, Hostile, drip, gzipped, line, lines
from tests.unit.workers import MIB, FakeWorker, record, running

HOSTILE = 30  # more than the predictor has threads


@pytest.fixture
def target():
    """Starts targets; ended at the end."""
    started = []

    def start(kind, *args, **options):
        started.append(kind(*args, **options))
        return started[-1]

    yield start
    for one in started:
        one.close()


@pytest.fixture
def predictor(cli, serve):
    """Of these targets, by a file; with the state of the one before it."""

    def start(*targets, **environ):
        (cli.cwd / "targets.json").write_text(
            json.dumps([{"targets": [one.host for one in targets]}])
        )
        return serve(
            "predict",
            "serve",
            "--listen",
            "0",
            "--state",
            "kept",
            "--interval",
            "0.1",
            "--file-sd",
            "targets.json",
            env={**cli.env, **environ},
        )

    return start


def peak(served):
    """The most that it had resident, in bytes."""
    with open(f"/proc/{served.process.pid}/status") as f:
        return int(re.search(r"VmHWM:\s+(\d+) kB", f.read())[1]) << 10


def heard(served, honest, count=20):
    """So many more records of the honest target are learned."""
    before = len(honest.records)
    honest.records += [record(before + n + 1, name="honest", process="9-9") for n in range(count)]

    def learned():
        found = [
            m
            for m in json.loads(served.get("/models"))["models"]
            if (m["task"], m["kind"]) == ("honest", "alloc")
        ]
        return found and found[0]["n"] >= before + count

    wait_until(learned, "the honest target's records", timeout=600)


def test_bombs(target, predictor):
    """Gigabytes in kilobytes, and lines that do not end."""

    def megabyte(n):
        return b'{"state": "running", "pad": "' + b"x" * MIB + b'"}\n'

    def full(n):
        return line(n + 1, key="x" * 60_000)

    honest = target(FakeWorker)
    service = predictor(honest)
    heard(service, honest)
    before = peak(service)
    service.end(signal.SIGINT)
    bombs = [
        target(Hostile, packed(make))
        for packed in (gzipped, lines)
        for make in (megabyte, full, lambda n: b"[[],[],[]," * 1000)
    ]
    service = predictor(*bombs, honest)
    wait_until(lambda: all(bomb.asked >= 3 for bomb in bombs), "three looks at each", timeout=600)
    heard(service, honest)
    assert service.value("dwsr_predictor_targets", state="up") == 1 and service.value(
        "dwsr_predictor_targets", state="down"
    ) == len(bombs)
    assert peak(service) < before + 200 * MIB
    assert service.end(signal.SIGINT) == 0 and "Traceback" not in service.stderr()


SLOW = [
    drip(),
    drip(b"HTTP/1.1 200 OK\r\nX: "),
    drip(OK + b"\r\n"),
    drip(OK + b"\r\n" + line(1)),
    drip(OK + b"Transfer-Encoding: chunked\r\n\r\n"),
]


def test_targets_that_send_a_byte_now_and_then_starve_nobody(target, predictor):
    slow = [target(Hostile, SLOW[n % len(SLOW)]) for n in range(HOSTILE)]
    honest = target(FakeWorker)
    service = predictor(*slow, honest)
    wait_until(
        lambda: sum(one.asked > 0 for one in slow) >= 20,
        "looks at those that are slow",
        timeout=600,
    )
    for _ in range(3):
        heard(service, honest)
    assert service.end(signal.SIGINT) == 0


POISON = [
    {"seq": 10**4000},
    {"seq": (1 << 53) - 1},
    {"host": "h" * 50_000},
    {"process": "p" * 50_000},
    {"task_name": "t" * 50_000},
    {"start": 1e308},
    {"start": 10**4000},
    {"pid": 10**4000},
    {"thread": 10**4000},
    {"input_bytes": 10**4000},
    {"alloc_peak_bytes": 10**4000},
    {"duration": 10**4000},
    {"output": {"shape": [10**4000], "dtype": "f8"}},
    {"gpu": [{"device": 0, "peak_bytes": 10**4000}]},
    {"oom": {"where": "host", "requested_bytes": 10**4000}, "state": "error"},
]


def test_figures_that_cannot_be_poison_nothing(cli, target, predictor):
    """The 500s of one such record outlived restarts."""
    told = [
        line(**{"seq": n + 1, "process": f"{n}-1", "task_name": "bad", **fields})
        for n, fields in enumerate(POISON)
    ]
    runs = [
        line(**{"seq": None, "state": "running", **fields})
        for fields in POISON
        if "seq" not in fields and "state" not in fields
    ]
    bad = target(Hostile, lines([*told, *runs, None].__getitem__))
    huge = target(Hostile, lines(lambda n: line(n + 1, host="h" * 900_000) if n < 100 else None))
    honest = target(FakeWorker)
    service = predictor(bad, huge, honest)
    for _ in range(2):
        wait_until(
            lambda service=service: (
                service.value("dwsr_predictor_records_refused_total") >= len(POISON) - 2
            ),
            "the bad records",
            timeout=600,
        )
        heard(service, honest)
        assert all(
            abs(sample.value) < 1e19
            for family in parse_text(service.get())
            for sample in family.samples
        )
        assert (
            service.end(signal.SIGINT) == 0
            and "Traceback" not in service.stderr()
            and "begins anew" not in service.stderr()
        )
        assert (cli.cwd / "kept" / "state.json").stat().st_size < 1 * MIB
        service = predictor(bad, huge, honest)
    assert service.end(signal.SIGINT) == 0


def test_a_poisoned_state_is_put_aside(cli, target, predictor):
    """As an earlier version may have left it."""
    honest = target(FakeWorker)
    service = predictor(honest)
    heard(service, honest)
    assert service.end(signal.SIGINT) == 0
    saved = cli.cwd / "kept" / "state.json"
    found = json.loads(saved.read_text())
    found["ledger"]["lost"] = 10**4000
    saved.write_text(json.dumps(found))
    service = predictor(honest)
    assert (
        service.stderr().count("begins anew") == 1
        and (cli.cwd / "kept" / "state.json.damaged").exists()
    )
    heard(service, honest)
    assert service.status("/metrics") == 200 and service.end(signal.SIGINT) == 0


def test_memory_that_runs_out_is_not_the_end(target, predictor):
    """The limit of the address space is what the service has: one answer does not fit, the next
    one does."""
    honest, large = target(FakeWorker), target(FakeWorker)
    service = predictor(large, honest, MALLOC_ARENA_MAX="1")  # no memory in reserve for each thread
    heard(service, honest)
    pid = service.process.pid
    with open(f"/proc/{pid}/statm") as f:
        size = int(f.read().split()[0]) * resource.getpagesize()
    _, hard = resource.prlimit(pid, resource.RLIMIT_AS)
    resource.prlimit(pid, resource.RLIMIT_AS, (size + 2 * MIB, hard))
    # an answer that is kept, of 7 MB
    large.running = [running(5 * MIB, name="x" * 9_000, thread=n) for n in range(800)]
    before = len(large.asked)
    wait_until(lambda: len(large.asked) > before + 10, "looks at it", timeout=600)
    resource.prlimit(pid, resource.RLIMIT_AS, (hard, hard))
    large.running = []
    heard(service, honest)
    wait_until(
        lambda: service.value("dwsr_predictor_targets", state="up") == 2,
        "both targets",
        timeout=600,
    )
    assert service.end(signal.SIGINT) == 0 and "Traceback" not in service.stderr()
