"""Measure the operators with the probe, in a process of their own, and add the records to
build/operators.jsonl. Called by __main__; `python -m tests.bench.predict.measure STAGE NAME...` is
the process.
"""

import gc
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np

import dwsr_probe
from tests.bench.predict.operators import OPERATORS, SIMULATIONS
from tests.bench.predict.records import (
    FAR,
    FAR_CPU_SECONDS_MOST,
    FAR_PEAK_MOST,
    FAR_TIMES,
    FILE,
    LADDER,
    VALUE,
    VALUE_SHAPES,
    chosen,
    load,
)

REPETITIONS = 2
FAR_BASE_BYTES = 1e6
# Threads of BLAS and OpenMP that live on would make records inexact. pandas keeps texts in Arrow;
# with Arrow's own allocator records would not be exact.
ENVIRONMENT = {
    "ARROW_DEFAULT_MEMORY_POOL": "system",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
}


def complete(names, again=False):
    """Measure what the file does not have of these operators, ladders first. again: everything."""
    FILE.parent.mkdir(exist_ok=True)
    if again:
        FILE.unlink(missing_ok=True)
    for stage, (key, has) in STAGES.items():
        done = chosen(load(), key, names)
        missing = [name for name in names if has(KNOWN[name]) and name not in done]
        if missing:
            subprocess.run(
                [sys.executable, "-m", "tests.bench.predict.measure", stage, *missing],
                check=True,
                env={**os.environ, **ENVIRONMENT},
            )


class Run(NamedTuple):
    """One task. cpu_seconds: of the call alone."""

    key: str
    params: dict
    cpu_seconds: float


def run(operator, key, shape, chance, params=None):
    params = operator.params if params is None else params
    inputs = operator.make(shape, chance)
    gc.collect()
    task = dwsr_probe.task(operator.name, key=key)(partial(operator.function, **params))
    began = time.process_time()
    task(*inputs)
    return Run(key, params, time.process_time() - began)


def measure_ladder(operator):
    return [
        run(operator, f"{i}.{repetition}", shape, np.random.default_rng((i, repetition)))
        for i, shape in enumerate(operator.shapes)
        for repetition in range(REPETITIONS)
    ]


def measure_values(operator):
    (word,) = operator.params
    return [
        run(
            operator,
            f"value {value}, {i}.0",
            operator.shapes[i],
            np.random.default_rng((i, 2)),
            {word: value},
        )
        for value in operator.values
        for i in VALUE_SHAPES[: len(operator.shapes)]
    ]


def measure_far(operator):
    """Two runs of about 1 MB, two at 30 and one at 300 times that, as far as the peak, estimated
    from those before, and the CPU time permit."""
    smallest = operator.make(operator.shapes[0], np.random.default_rng(0))
    scale = FAR_BASE_BYTES / max(1, sum(map(bytes_of, smallest)))
    (near, far), runs, peaks, seconds = FAR_TIMES, [], [], []
    for times, growth, repetitions in ((1, 1, 2), (near, near, 2), (far, far / near, 1)):
        if peaks and too_far(peaks, seconds, growth):
            break
        for repetition in range(repetitions):
            # The second of the small ones is a quarter larger: two sizes
            shape = operator.scaled(scale * times * (1.25 if times == 1 and repetition else 1))
            chance = np.random.default_rng((times, repetition))
            runs.append(run(operator, f"far {times}.{repetition}", shape, chance))
        seconds.append(min(one.cpu_seconds for one in runs[-repetitions:]))
        peaks.append(
            next(
                record.alloc_peak_bytes
                for record in dwsr_probe.records()
                if (record.task_name, record.key) == (operator.name, runs[-1].key)
            )
        )
    return runs


def too_far(peaks, seconds, growth):
    return (
        peaks[-1] * growth ** exponent(peaks) > FAR_PEAK_MOST
        or seconds[-1] * growth ** exponent(seconds) > FAR_CPU_SECONDS_MOST
    )


def exponent(values):
    """Of the growth from about 1 MB to 30 times that; 1.1 while only the first is known."""
    return (
        1.1 if len(values) < 2 else max(0.5, np.log(values[1] / values[0]) / np.log(FAR_TIMES[0]))
    )


def bytes_of(x):
    usage = getattr(x, "memory_usage", None)
    return int(np.sum(usage())) if usage else x.nbytes


class Stage(NamedTuple):
    """What is measured together. has: whether an operator has this stage."""

    key: re.Pattern
    has: Callable


KNOWN = {**OPERATORS, **SIMULATIONS}
STAGES = {
    "ladder": Stage(LADDER, lambda operator: True),
    "values": Stage(VALUE, lambda operator: bool(operator.values)),
    "far": Stage(FAR, lambda operator: bool(operator.grows)),
}
MEASURES = {"ladder": measure_ladder, "values": measure_values, "far": measure_far}


def main(stage, *names):
    """The first call of an operator is not a task: it triggers lazy imports, and work space that
    libraries keep."""
    import pandas as pd

    pd.set_option("future.infer_string", False)  # texts are objects
    dwsr_probe.start()
    for n, name in enumerate(names, 1):
        print(f"... measuring {stage} {n} of {len(names)}: {name}", file=sys.stderr, flush=True)
        operator = KNOWN[name]
        inputs = operator.make(operator.shapes[0], np.random.default_rng(0))
        operator.function(*inputs, **operator.params)
        params = {one.key: one.params for one in MEASURES[stage](operator)}
        lines = [
            json.dumps({**record.to_dict(), "params": params[record.key]}) + "\n"
            for record in dwsr_probe.records()
            if record.task_name == name
        ]
        with open(FILE, "a") as file:  # at once: half of an operator is none
            file.write("".join(lines))


if __name__ == "__main__":
    main(*sys.argv[1:])
