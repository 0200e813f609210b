"""What the sampler costs and how regular it is, while memory moves and the GIL is held."""

import os
import time
from itertools import pairwise

import dwsr_probe
from dwsr_probe import _core
from dwsr_probe.board import Board
from tests.bench import Section, in_fresh_python, kernel, spread

SECONDS, FIRST = 6, 0.2


def once():
    """CPU in % of a core, p50 and p99 gap in periods, samples a second at first and later while
    memory moves, and while it is flat."""
    assert dwsr_probe.start()
    path = _core.board_path()
    board = Board(path)
    with dwsr_probe.task("moving"):
        kernel(hold_gil=True).move_memory(SECONDS)
        samples, index = board.samples(0)
        cpu_ns = board.live()["sampler_cpu_ns"]
        time.sleep(0.5)  # what is measured: half a second in which nothing changes
        flat = board.live()["samples_written"] - index
    _core.stop()
    os.unlink(path)
    gaps = sorted((b[0] - a[0]) / b[3] for a, b in pairwise(samples))
    first = sum(sample[0] < samples[0][0] + FIRST * 1e9 for sample in samples)
    return [
        cpu_ns / 1e7 / SECONDS,
        gaps[len(gaps) // 2],
        gaps[int(0.99 * len(gaps))],
        first / FIRST,
        (len(samples) - first) / (SECONDS - FIRST),
        flat / 0.5,
    ]


def run(quick=False):
    results = [
        in_fresh_python("from tests.bench import sampler; print(*sampler.once())")
        for _ in range(2 if quick else 7)
    ]
    own, p50, p99, first, later, flat = zip(*results, strict=True)
    section = Section(
        f"The sampler, memory moving, the GIL held for {SECONDS} seconds",
        "half a percent of a core, after 10 ms of CPU that it may take at once; p99 gap ≤ 2"
        " periods; backs off while rss is flat",
        ("figure", "median (least – largest)"),
    )
    section.rows += [
        ("**sampler thread, % of a core**", spread(own)),
        ("median gap, periods", spread(p50)),
        ("**p99 gap, periods**", spread(p99)),
        (f"samples/s while memory moves, the first {FIRST} s", spread(first, 0)),
        ("samples/s while memory moves, later", spread(later, 0)),
        ("samples/s while rss is flat and a task runs", spread(flat, 0)),
    ]
    return section
