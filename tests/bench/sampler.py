"""What the sampler costs and how regular it is, beside an empty loop of the same rate in the
same process, with the GIL held."""

import os
import threading
import time
from itertools import pairwise

import dwsr_probe
from dwsr_probe import _core
from dwsr_probe.board import Board
from tests.bench import Section, in_fresh_python, kernel, spread

SECONDS, ROUNDS = 1.5, 4


def once():
    """In one process, turn and turn about: the sampler, the empty loop; memory moving and the
    GIL held all the while.

    Mean CPU of both in % of a core, p50 and p99 gap in periods, samples a second while memory
    moves and while it is flat.
    """
    held, free, own, empty, gaps, count, flat = kernel(hold_gil=True), kernel(), [], [], [], 0, 0
    for _ in range(ROUNDS):
        assert dwsr_probe.start()
        board = Board(_core.board_path())
        with dwsr_probe.task("moving"):
            held.move_memory(SECONDS)
            samples, index = board.samples(0)
            time.sleep(0.5)
            flat += board.live()["samples_written"] - index
        path = _core.board_path()
        # the last sample brings the sampler's CPU time up to date; the flat half second adds little
        # to it
        _core.stop()
        live = Board(path).live()
        os.unlink(path)
        own.append(live["sampler_cpu_ns"] * len(samples) / live["samples_written"])
        gaps += [(b[0] - a[0]) / b[3] for a, b in pairwise(samples)]
        count += len(samples)
        thread = threading.Thread(target=lambda: empty.append(free.empty_loop(1_000_000, SECONDS)))
        thread.start()
        held.move_memory(SECONDS)
        thread.join()
    gaps.sort()
    seconds = SECONDS * ROUNDS
    return [
        sum(own) / 1e7 / seconds,
        sum(empty) / 1e7 / seconds,
        gaps[len(gaps) // 2],
        gaps[int(0.99 * len(gaps))],
        count / seconds,
        flat / (0.5 * ROUNDS),
    ]


def run(quick=False):
    results = [
        in_fresh_python("from tests.bench import sampler; print(*sampler.once())")
        for _ in range(2 if quick else 7)
    ]
    own, empty, p50, p99, count, flat = zip(*results, strict=True)
    section = Section(
        "The sampler at 1 kHz, memory moving, the GIL held for seconds",
        "≤ 0.5 % of a core beyond an empty loop of that rate; p99 gap ≤ 2 periods; backs off while"
        " rss is flat",
        ("figure", "median (least – largest)"),
    )
    section.rows += [
        ("sampler thread, % of a core", spread(own)),
        (
            "empty loop of the same rate, turn and turn about in the same process, % of a core",
            spread(empty),
        ),
        (
            "**beyond the empty loop, % of a core**",
            spread([a - b for a, b in zip(own, empty, strict=True)]),
        ),
        ("median gap, periods", spread(p50)),
        ("**p99 gap, periods**", spread(p99)),
        ("samples/s while memory moves", spread(count, 0)),
        ("samples/s while rss is flat and a task runs", spread(flat, 0)),
    ]
    return section
