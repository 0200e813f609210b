"""CPU time of single calls of learn, and of predict with its bound, after many records. Called by
__main__."""

import gc
import time
from typing import NamedTuple

import numpy as np

from tests.bench.predict import unicamp

CALLS = 500


class CallTimes(NamedTuple):
    """Milliseconds of each call."""

    learn: list
    predict: list


def stream(seed=0):
    """Records of one operator: random shapes, a peak of 4.2 times the input with 2 % noise, and an
    output."""
    random = np.random.default_rng(seed)
    while True:
        shape = tuple(int(s) for s in random.integers(20, 400, 3))
        record = unicamp.record_of(
            "operator", shape, 4.2 * 4 * np.prod(shape, dtype=float) * random.normal(1, 0.02) + 1e6
        )
        yield {**record, "output": record["inputs"][0], "output_bytes": record["input_bytes"]}


def cpu_ms(call, *arguments):
    begin = time.process_time_ns()
    call(*arguments)
    return (time.process_time_ns() - begin) / 1e6


def call_times(make, count):
    """At least CALLS calls each, after `count` records. For small counts many models are used, so
    that each has about that many records."""
    times = CallTimes([], [])
    gc.collect()
    gc.disable()
    try:
        while len(times.learn) < CALLS:
            method, records = make(), stream(len(times.learn))
            for _ in range(count):
                method.learn(next(records))
            for _ in range(min(CALLS, max(count, 1))):
                record = next(records)
                times.predict.append(cpu_ms(method.predict, record["inputs"], "operator"))
                times.learn.append(cpu_ms(method.learn, record))
    finally:
        gc.enable()
    return times
