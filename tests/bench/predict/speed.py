"""CPU time of single calls of learn and of predict with its bound, after many records. Called by
__main__."""

import gc
import time

import numpy as np

from tests.bench.predict import unicamp

CALLS = 500


def stream(seed=0):
    """Records of one operator: shapes at random, 4.2 times the input with 2 % noise, and an
    output."""
    chance = np.random.default_rng(seed)
    while True:
        shape = tuple(int(s) for s in chance.integers(20, 400, 3))
        record = unicamp.record_of(
            "operator", shape, 4.2 * 4 * np.prod(shape, dtype=float) * chance.normal(1, 0.02) + 1e6
        )
        yield {**record, "output": record["inputs"][0], "output_bytes": record["input_bytes"]}


def timed(call, *arguments):
    begin = time.process_time_ns()
    call(*arguments)
    return (time.process_time_ns() - begin) / 1e6


def times(make, count):
    """(learn, predict) → ms of each of CALLS calls, from `count` records on. For few records
    many models, so that the calls are at that count."""
    learned, predicted = [], []
    gc.collect()
    gc.disable()
    try:
        while len(learned) < CALLS:
            method, records = make(), stream(len(learned))
            for _ in range(count):
                method.learn(next(records))
            for _ in range(min(CALLS, max(count, 1))):
                record = next(records)
                predicted.append(timed(method.predict, record["inputs"], "operator"))
                learned.append(timed(method.learn, record))
    finally:
        gc.enable()
    return learned, predicted
