"""Time of calls, of a saved model, and of the command for a whole run."""

import sys

import numpy as np

from tests.bench import Section
from tests.bench.predict import speed
from tests.bench.predict.baselines import Ours


def run(data):
    section = Section(
        "Time of calls",
        "see the last column",
        ("what", "p50", "p99", "target"),
    )
    quick = data.quick or data.tuning_only
    for count in (10, 1000) if quick else (10, 1000, 100_000):
        print(f"... time of calls after {count:,} records", file=sys.stderr, flush=True)
        learned, predicted = speed.call_times(Ours, count)
        section.rows += [
            row(f"learn, after {count:,} records", learned, "p50 ≤ 300 µs, p99 ≤ 1 ms", 1e3),
            row(
                f"predict and its bound, right after learn, after {count:,} records",
                predicted,
                "–",
                1e3,
            ),
        ]
    section.rows += [
        row(
            "predict and its bound, inputs not asked before",
            speed.fresh_us(),
            "p50 ≤ 100 µs, p99 ≤ 250 µs",
        ),
        ("predict and its bound, asked again", f"{speed.again_us():.1f} µs", "–", "≤ 2 µs"),
        ("predict_many, each of 1,000", f"{speed.many_us():.1f} µs", "–", "≤ 5 µs"),
    ]
    seconds, size = speed.load_seconds()
    section.rows.append(
        (
            f"load of a saved model, {speed.NAMES:,} names, {size / 1e6:.1f} MB",
            f"{seconds:.2f} s",
            "–",
            "≤ 0.2 s",
        )
    )
    tasks = speed.RUN_TASKS // (10 if quick else 1)
    print(f"... predict RUN of {tasks:,} tasks", file=sys.stderr, flush=True)
    section.rows.append(
        (
            f"`dwsr-probe predict RUN`, {tasks:,} tasks of {speed.RUN_GROUPS} groups",
            "{:.1f} s of CPU time, {:.1f} s in all".format(*speed.run_seconds(tasks)),
            "–",
            "≤ 15 s for 100,000",
        )
    )
    section.notes.append(
        f"Single calls: {speed.CALLS} each, CPU time of the process, garbage collector off; one"
        " operator, shapes at random, an output with each record. Load: CPU time."
    )
    return [section] if "ours" in data.methods else []


def row(what, values, target, factor=1.0):
    p50, p99 = np.percentile(np.array(values) * factor, [50, 99])
    return what, f"{p50:.0f} µs", f"{p99:.0f} µs", target
