"""The HTML report of a large run: a job of an hour with 100,000 tasks and 3.6 million samples.
Made through the store's own door; nothing of it is real but its size."""

import os
import random
import subprocess
import tempfile
from pathlib import Path

import numpy as np

from dwsr_probe.record import TaskRecord
from dwsr_probe.store import Store
from tests.bench import PY, Section, spread

MIB = 1 << 20
OPERATORS = {
    "envelope": 10.0,
    "smooth": 3.0,
    "gradient": 3.1,
    "semblance": 7.5,
    "clip": 1.0,
    "glcm": 55.0,
    "load": 1.2,
    "store": 0.1,
}
THREADS, BEGIN, EPOCH = 4, 1.79e9, 1.79e9 - 1000.0

# In a process of its own, for its own peak; sizes and seconds on stdout.
WRITE = """
import resource, sys, time

begin = time.perf_counter()
from dwsr_probe.cli.report import command

try:
    command.main([sys.argv[1], "--format", "html", "-o", sys.argv[2]], standalone_mode=False)
except SystemExit as end:
    assert not end.code
print(
    time.perf_counter() - begin,
    time.process_time(),
    resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
)
"""


def large_run(directory, tasks=100_000, seconds=3600, rate=1000):
    """One process of four threads."""
    store, chance, process = Store.create(directory), random.Random(0), "4711-1790000000000000"
    clocks = [BEGIN + 0.1] * THREADS
    names = list(OPERATORS)

    def record(seq):
        thread = min(range(THREADS), key=clocks.__getitem__)
        name = names[chance.randrange(len(names))]
        shape = [chance.randrange(4, 40), 128, 128]
        nbytes = 4 * shape[0] * shape[1] * shape[2]
        peak = round(nbytes * OPERATORS[name] * chance.uniform(1.0, 1.05))
        duration = seconds * THREADS / tasks * chance.uniform(0.2, 1.7)
        start = clocks[thread]
        clocks[thread] += duration
        block = {"type": "ndarray", "dtype": "float32", "shape": shape, "nbytes": nbytes}
        return TaskRecord(
            seq=seq,
            run="large",
            host="node1",
            pid=4711,
            process=process,
            worker="tcp://10.0.0.1:40000",
            thread=4712 + thread,
            task_name=name,
            key=f"('{name}-{chance.getrandbits(128):032x}', {seq % 40}, {seq // 40 % 40}, 0)",
            state="ok",
            start=start,
            duration=duration,
            inputs=[block],
            input_bytes=nbytes,
            output=block,
            output_bytes=nbytes,
            rss_before_bytes=300 * MIB,
            rss_peak_bytes=300 * MIB + peak,
            rss_peak_source="kernel",
            rss_error_bytes=1 << 18,
            alloc_peak_bytes=peak,
            alloc_end_bytes=nbytes,
            alloc_count=20,
            gpu=None,
            overlap=THREADS - 1,
            attribution="exact",
        )

    count = seconds * rate
    store.begin()
    store.set_meta(
        run="large",
        command=["python", "job.py"],
        exit_code=0,
        host="node1",
        parent=0,
        parent_ticks=0,
        board_dir="/nowhere",
    )
    store.add_tasks(record(seq) for seq in range(1, tasks + 1))
    walk = np.random.default_rng(0)
    for first in range(0, count, rate):
        ring = np.empty((rate, 4), np.uint64)
        ring[:, 0] = (1000 + first / rate) * 1e9 + np.arange(rate) * 1e9 / rate
        ring[:, 1] = 300 * MIB + np.abs(np.cumsum(walk.integers(-4096, 4097, rate)) * 256)
        ring[:, 2] = ring[:, 1] + walk.integers(0, 4096, rate).astype(np.uint64) * 64
        ring[:, 3] = 1_000_000
        store.add_samples(process, first, ring.tobytes(), EPOCH)
    store.put_process(
        TaskRecord(
            kind="process",
            run="large",
            host="node1",
            pid=4711,
            process=process,
            thread=4711,
            task_name="job.py",
            state="ok",
            start=BEGIN,
            duration=float(seconds),
            rss_before_bytes=30 * MIB,
            rss_peak_bytes=460 * MIB,
            rss_peak_source="kernel",
            overlap=0,
            attribution="exact",
        ),
        {
            "limit_bytes": 1024 * MIB,
            "samples_written": count,
            "samples_late": 12,
            "sampler_cpu_ns": 36_000_000_000,
            "rss_peak_source": "kernel",
        },
    )
    store.commit()
    store.finish()
    store.close()


def until_interactive(path, rounds):
    """ms from the navigation's begin until the plots over time are drawn and a zoom of them has
    been painted, and until the last plot is there; None without a browser."""
    from tests.pages.browser import chromium

    with chromium() as browser:
        if browser is None:
            return None
        times = []
        for _ in range(rounds):
            page = browser.new_page(viewport={"width": 1280, "height": 900})
            page.goto(path.as_uri(), wait_until="commit")
            # As soon as the buttons answer, in the page itself: the driver's own way there takes
            # time.
            zoomed = page.evaluate("""() => new Promise(done => {
                const root = document.documentElement, zoom = () => {
                    document.querySelector("[data-zoom='0.5']").click();
                    requestAnimationFrame(() =>
                        requestAnimationFrame(() => done(performance.now())));
                };
                if (root.dataset.drawn) zoom();
                else new MutationObserver((_, observer) => {
                    if (root.dataset.drawn) { observer.disconnect(); zoom(); }
                }).observe(root, {attributes: true});
            })""")
            page.wait_for_selector("html[data-complete]", timeout=120_000)
            times.append((zoomed, float(page.get_attribute("html", "data-complete"))))
            page.close()
        return times


def run(quick):
    rounds, tasks, seconds = (1, 10_000, 360) if quick else (5, 100_000, 3600)
    with tempfile.TemporaryDirectory() as folder:
        large_run(f"{folder}/run", tasks, seconds)
        page, figures = Path(folder, "report.html"), []
        for _ in range(rounds):
            out = subprocess.run(
                [PY, "-c", WRITE, f"{folder}/run", page],
                capture_output=True,
                text=True,
                check=True,
                env=dict(os.environ, PYTHONPATH=os.getcwd()),
            ).stdout
            figures.append([float(word) for word in out.split()[-3:]])
        size = page.stat().st_size
        shown = until_interactive(page, rounds)
    section = Section(
        f"The HTML report of {tasks:,} tasks and {seconds * 1000:,} samples",
        "≤ 10 s, ≤ 500 MiB resident, ≤ 8 MB, interactive in ≤ 3 s",
        ("figure", "median (least – largest)"),
    )
    section.rows = [
        ("**to write it, s**", spread([row[0] for row in figures])),
        ("of it CPU, s", spread([row[1] for row in figures])),
        ("**resident at most, MiB**", spread([row[2] for row in figures], 0)),
        ("**size of the file, MB**", f"{size / 1e6:.2f}"),
        (
            "**until a zoom of the plots over time has been painted, headless Chromium, ms**",
            "no Chromium here" if shown is None else spread([zoomed for zoomed, _ in shown], 0),
        ),
        (
            "until the last plot is there, ms",
            "–" if shown is None else spread([complete for _, complete in shown], 0),
        ),
    ]
    section.notes.append(
        "With the model: it learns from 60 tasks of each of the nine largest names. The machine's"
        f" load was {os.getloadavg()[0]:.1f} at the end; the CPU seconds are what a free core"
        " takes."
    )
    return section
