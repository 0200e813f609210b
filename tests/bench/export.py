"""What being watched costs: rendering, the stream, and a job that is scraped beside the same job
that is not."""

import http.client
import re
import shlex
import subprocess
import tempfile
import threading
import time
from pathlib import Path

from prometheus_client import CollectorRegistry, generate_latest

from dwsr_probe.export.exposition import PrometheusCollector
from dwsr_probe.export.totals import OUTCOMES, Totals
from dwsr_probe.export.view import NAMES_SERIES_MOST, MeasuredView
from dwsr_probe.record import TaskRecord, to_row
from dwsr_probe.store import Store
from tests.bench import PY, Section, spread
from tests.bench.numpy_job import JOB, cpu_of

RECORDS = 100_000
MIB = 1 << 20

# In a process of its own, as in `run`'s parent: the reader must not take its time from the server.
SERVE = """
import sys, time
from dwsr_probe.export.server import Server
from dwsr_probe.export.sources.run import RunSource
from dwsr_probe.store import Store
server = Server(RunSource(lambda: Store.open(sys.argv[1]), "run", sys.argv[1]), "127.0.0.1", 0)
server.start()
print(server.port, flush=True)
for line in sys.stdin:
    print(time.process_time(), flush=True)
"""


def record(n, name="block_filter"):
    """As of a job with Dask on NumPy."""
    block = {"type": "ndarray", "dtype": "float32", "shape": [100, 200, 300], "nbytes": 24_000_000}
    return TaskRecord(
        seq=n,
        run="20260101-120000-job-1234",
        host="node1234",
        pid=1234,
        process="1234-1700000000000000",
        worker="tcp://10.0.0.1:40000",
        thread=1235,
        task_name=name,
        key=f"('{name}-8f14e45fceea167a5a36dedd4bea2543', {n}, 0, 0)",
        state="ok",
        start=1.7e9 + n / 7,
        duration=n / 7919,
        inputs=[block],
        input_bytes=24_000_000,
        output=block,
        output_bytes=24_000_000,
        rss_before_bytes=300 * MIB + n,
        rss_peak_bytes=900 * MIB + n,
        rss_peak_source="kernel",
        rss_error_bytes=1 << 18,
        alloc_peak_bytes=50_000_000 + n,
        alloc_end_bytes=24_000_000,
        alloc_count=100,
        gpu=[],
        overlap=1,
        attribution="exact",
    )


def render(names, outcomes, rounds):
    """CPU ms of one /metrics on a Dask worker with so many task names, and its series."""
    totals, number = Totals(series_most=NAMES_SERIES_MOST), 0
    for outcome in outcomes:
        for number in range(names):
            task = record(number + 1, f"name_{number}")
            task.state = outcome
            totals.add_rows([to_row(task)])
    registry, times = CollectorRegistry(), []
    registry.register(
        PrometheusCollector(
            lambda: MeasuredView(totals, dedicated_port=False), dedicated_port=False
        )
    )
    for _ in range(rounds):
        begin = time.thread_time()
        text = generate_latest(registry)
        times.append((time.thread_time() - begin) * 1e3)
    return times, sum(not line.startswith(b"#") for line in text.splitlines())


def read_all(port, headers):
    connection = http.client.HTTPConnection("127.0.0.1", port)
    begin = time.perf_counter()
    connection.request("GET", f"/dwsr/tasks?limit={RECORDS}", headers=headers)
    answer, size = connection.getresponse(), 0
    while piece := answer.read(1 << 20):
        size += len(piece)
    connection.close()
    return time.perf_counter() - begin, size


def stream(rounds):
    """(plain or gzip) → records/s by the clock, records per CPU second of the server, bytes."""
    with tempfile.TemporaryDirectory() as folder:
        store = Store.create(f"{folder}/run")
        store.begin()
        store.add_tasks(record(n) for n in range(1, RECORDS + 1))
        store.commit()
        with subprocess.Popen(
            [PY, "-c", SERVE, f"{folder}/run"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as server:
            port = int(server.stdout.readline())

            def cpu():
                server.stdin.write("\n")
                server.stdin.flush()
                return float(server.stdout.readline())

            found = {}
            for _ in range(rounds):
                for kind, headers in (("plain", {}), ("gzip", {"Accept-Encoding": "gzip"})):
                    before = cpu()
                    seconds, size = read_all(port, headers)
                    found.setdefault(kind, []).append(
                        (RECORDS / seconds, RECORDS / (cpu() - before), size)
                    )
            server.stdin.close()
        store.close()
    return found


def cpu_served(command, folder, n, scraped):
    """CPU s of a job under `run --metrics`, its parent included; scraped: once a second."""
    stop, said = threading.Event(), Path(folder) / f"said-{n}-{scraped}"

    def scrape():
        while not (
            found := re.search(
                r"metrics at http://(\S+)/metrics", said.read_text() if said.exists() else ""
            )
        ):
            if stop.wait(0.02):
                return
        while not stop.wait(1.0):
            try:
                connection = http.client.HTTPConnection(found[1], timeout=5)
                connection.request("GET", "/metrics", headers={"Accept-Encoding": "gzip"})
                connection.getresponse().read()
                connection.close()
            except OSError:
                return

    reader = threading.Thread(target=scrape)
    if scraped:
        reader.start()
    words = shlex.join(
        [
            PY,
            "-m",
            "dwsr_probe",
            "run",
            "--metrics",
            "0",
            "-o",
            f"{folder}/{n}-{scraped}",
            *map(str, command),
        ]
    )
    cpu = cpu_of(["sh", "-c", f"exec {words} 2> {said}"])
    stop.set()
    if scraped:
        reader.join()
    return cpu


def run(quick=False):
    section = Section(
        "Metrics and the stream",
        "≤ 10 ms of CPU for /metrics at the cap on a Dask worker; ≥ 50,000 records/s from `run`'s"
        " parent; flat after the cap of 80 names",
        ("what", "figure"),
    )
    rounds = 5 if quick else 41
    for names, outcomes in (
        (1, ("ok",)),
        (10, ("ok",)),
        (40, ("ok",)),
        (80, ("ok",)),
        (200, ("ok",)),
        (1000, ("ok",)),
        (5000, ("ok",)),
        (5000, OUTCOMES),
    ):
        times, series = render(names, outcomes, rounds)
        section.rows.append(
            (
                (
                    f"/metrics on a Dask worker, {names:,} task"
                    f" names{', four outcomes each' if len(outcomes) > 1 else ''}: {series} series,"
                    " CPU ms"
                ),
                spread(times),
            )
        )
    for kind, values in stream(2 if quick else 7).items():
        wall, cpu, sizes = zip(*values, strict=True)
        section.rows.append(
            (
                f"stream of {RECORDS:,} records, {kind}, {sizes[0] / 1e6:.1f} MB: records/s",
                spread(wall, 0),
            )
        )
        section.rows.append(
            (f"the same, records per CPU second of the server, {kind}", spread(cpu, 0))
        )
    with tempfile.TemporaryDirectory() as folder:
        job = Path(folder) / "job.py"
        job.write_text(JOB.format(marked=True))
        once = cpu_of([PY, job, "50"])
        count = str(max(50, int(50 * (2.0 if quick else 10.0) / max(once - 0.1, 0.05))))
        served, again, scraped = [], [], []
        for n in range(2 if quick else 5):
            served.append(cpu_served([PY, job, count], folder, f"a{n}", False))
            scraped.append(cpu_served([PY, job, count], folder, f"b{n}", True))
            again.append(cpu_served([PY, job, count], folder, f"c{n}", False))
        both = list(zip(served, again, scraped, strict=True))
        section.rows.append(
            ("a NumPy job under `run --metrics`, nobody scrapes, CPU s", spread(served))
        )
        section.rows.append(
            ("the same again / the same (control)", spread([b / a for a, b, _ in both], 3))
        )
        section.rows.append(
            ("**one scrape a second / none**", spread([2 * s / (a + b) for a, b, s in both], 3))
        )
        asleep, kinds = [PY, "-c", "import time; time.sleep(5)"], {}
        for n in range(2 if quick else 5):
            kinds.setdefault("under `run`", []).append(
                cpu_of([PY, "-m", "dwsr_probe", "run", "-o", f"{folder}/asleep-{n}", *asleep])
            )
            kinds.setdefault("under `run --metrics`", []).append(
                cpu_served(asleep, folder, f"d{n}", False)
            )
            kinds.setdefault("and scraped once a second", []).append(
                cpu_served(asleep, folder, f"e{n}", True)
            )
        for kind, values in kinds.items():
            section.rows.append((f"a job that sleeps for 5 s, {kind}, CPU s", spread(values, 3)))
    section.notes.append(
        "A name has 11 series or more; beyond 80 names everything goes to `other`. Times have two"
        " modes here, as the other CPU of the machine is busy or not. The CPU of a job includes"
        " `run`'s parent, which serves: importing Tornado and prometheus_client is what `--metrics`"
        " costs, once; the job itself is never asked."
    )
    return section
