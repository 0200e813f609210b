"""Time of calls: learn, predict with its bound, the same question again, many questions at once,
a saved model, and the command for a whole run. Called by parts/speed.py."""

import gc
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
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


LEVEL = 0.99
NAMES = 1024
RUN_TASKS, RUN_GROUPS = 100_000, 40


def taught_model(count=1000, seed=0):
    from dwsr_probe.predict import Model

    model, records = Model(), stream(seed)
    for _ in range(count):
        model.learn(next(records))
    return model, records


def fresh_us(calls=CALLS):
    """Microseconds of each forecast and its bound for inputs not asked before, nothing learned in
    between."""
    model, records = taught_model()
    model.predict(next(records)["inputs"], "operator").upper(LEVEL)
    asked = [next(records)["inputs"] for _ in range(calls)]
    gc.collect()
    gc.disable()
    try:
        return [
            1e3 * cpu_ms(lambda one: model.predict(one, "operator").upper(LEVEL), inputs)
            for inputs in asked
        ]
    finally:
        gc.enable()


def again_us(calls=2000, repetitions=5):
    """Microseconds of the same question, asked again and again."""
    model, records = taught_model()
    inputs = next(records)["inputs"]
    model.predict(inputs, "operator").upper(LEVEL)

    def ask():
        for _ in range(calls):
            model.predict(inputs, "operator").upper(LEVEL)

    return median(1e3 * cpu_ms(ask) / calls for _ in range(repetitions))


def many_us(count=1000, repetitions=5):
    """Microseconds for each of `count` questions asked at once, none of them before. Without
    Model.predict_many they are asked one by one."""
    found = []
    for repetition in range(repetitions):
        model, records = taught_model(seed=repetition)
        asked = [next(records)["inputs"] for _ in range(count)]
        model.predict(next(records)["inputs"], "operator").upper(LEVEL)
        found.append(1e3 * cpu_ms(ask_many, model, asked) / count)
    return median(found)


def ask_many(model, asked):
    """The only place that knows how many questions are asked at once."""
    if many := getattr(model, "predict_many", None):
        return many(asked, "operator").upper(LEVEL)
    return [model.predict(inputs, "operator").upper(LEVEL) for inputs in asked]


def load_seconds(names=NAMES, records_each=5):
    """Seconds of CPU time to load a saved model with many names, and its bytes."""
    from dwsr_probe.predict import Model

    model, records = Model(), stream()
    for number in range(names * records_each):
        model.learn({**next(records), "task_name": f"operator {number % names}"})
    with tempfile.TemporaryDirectory() as folder:
        path, seconds = Path(folder, "model"), []
        model.save(path)
        for _ in range(3):
            seconds.append(cpu_ms(Model.load, path) / 1e3)
        return median(seconds), path.stat().st_size


def run_seconds(tasks=RUN_TASKS, groups=RUN_GROUPS):
    """Seconds of `dwsr-probe predict RUN` for a run of this many tasks: CPU time and wall time."""
    from dwsr_probe.record import TaskRecord
    from dwsr_probe.store import Store

    with tempfile.TemporaryDirectory() as folder:
        run, records = str(Path(folder, "run")), stream()
        store = Store.create(run)
        store.set_meta(status="ended", host="h")
        store.begin()
        store.add_tasks(
            TaskRecord(
                seq=number,
                run="r",
                host="h",
                pid=1,
                process="1-1",
                thread=1,
                key=str(number),
                start=float(number),
                duration=0.5,
                **{**next(records), "task_name": f"operator {number % groups}"},
            )
            for number in range(1, tasks + 1)
        )
        store.commit()
        store.finish()
        store.close()
        begin, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(
            [sys.executable, "-m", "dwsr_probe", "predict", run],
            check=True,
            stdout=subprocess.DEVNULL,
        )
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        return cpu, time.perf_counter() - begin
