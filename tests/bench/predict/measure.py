"""Measure the operators with the probe, in a process of their own, and keep the records in
build/operators.jsonl. Called by __main__; `python -m tests.bench.predict.measure FILE NAME...` is
the process.

A record's key says what it is for:
- "4.1": the ladder, shape 4, repetition 1;
- "value 5, 4.0": the same with another value of the parameter;
- "far 30.1": inputs 30 times larger than about 1 MB, repetition 1.
"""

import gc
import json
import os
import re
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import numpy as np

import dwsr_probe
from tests.bench.predict.operators import OPERATORS, SIMULATIONS

FILE = Path("build/operators.jsonl")
REPETITIONS = 2
VALUE_SHAPES = (0, 3, 7)  # of the ladder, with each value of the parameter
FAR_BASE_BYTES = 1e6
FAR = (30, 300)
FAR_PEAK_MOST, FAR_SECONDS_MOST = 1.5e9, 6.0
LADDER = re.compile(r"\d+\.\d+")
# Threads of BLAS and OpenMP that live on would make records inexact. pandas keeps texts in Arrow;
# with Arrow's own allocator records would not be exact.
ENVIRONMENT = {
    "ARROW_DEFAULT_MEMORY_POOL": "system",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
}


def records(again=False):
    """Records of the ladders by operator, in the order of measurement: shape by shape, each
    repetition with its own values. Operators that the file does not have are measured; again:
    all."""
    return chosen(all_records(again), lambda key: LADDER.fullmatch(key), OPERATORS)


def chosen(found, is_asked, names):
    """Of these operators, the records with keys that are asked for."""
    return {
        name: rows
        for name in names
        if (rows := [record for record in found.get(name, ()) if is_asked(record["key"])])
    }


def all_records(again=False):
    found = {} if again else load()
    if missing := [name for name in (*OPERATORS, *SIMULATIONS) if name not in found]:
        FILE.parent.mkdir(exist_ok=True)
        if again:
            FILE.unlink(missing_ok=True)
        subprocess.run(
            [sys.executable, "-m", "tests.bench.predict.measure", FILE, *missing],
            check=True,
            env={**os.environ, **ENVIRONMENT},
        )
        found = load()
    return found


def load():
    found = {}
    for line in FILE.read_text().splitlines() if FILE.exists() else ():
        record = json.loads(line)
        found.setdefault(record["task_name"], []).append(record)
    return found


def run(operator, key, shape, chance, params=None):
    """One task, and its parameters by key."""
    params = operator.params if params is None else params
    inputs = operator.make(shape, chance)
    gc.collect()
    dwsr_probe.task(operator.name, key=key)(partial(operator.function, **params))(*inputs)
    return {key: params}


def measure(operator):
    """Parameters by key. The first call is not a task: it triggers lazy imports, and work space
    that libraries keep."""
    operator.function(
        *operator.make(operator.shapes[0], np.random.default_rng(0)), **operator.params
    )
    params = {}
    for i, shape in enumerate(operator.shapes):
        for repetition in range(REPETITIONS):
            chance = np.random.default_rng((i, repetition))
            params |= run(operator, f"{i}.{repetition}", shape, chance)
    for value in operator.values:
        (word,) = operator.params
        for i in VALUE_SHAPES[: len(operator.shapes)]:
            chance = np.random.default_rng((i, 2))
            params |= run(
                operator, f"value {value}, {i}.0", operator.shapes[i], chance, {word: value}
            )
    return params | measure_far(operator)


def measure_far(operator):
    """Two runs of about 1 MB, two at 30 and one at 300 times that, as far as the peak, estimated
    from those before, and the time permit."""
    smallest = operator.make(operator.shapes[0], np.random.default_rng(0))
    scale = FAR_BASE_BYTES / max(1, sum(map(bytes_of, smallest)))
    params, peaks, seconds = {}, [], []
    for times, repetitions in ((1, 2), (30, 2), (300, 1)):
        growth = times / (FAR[FAR.index(times) - 1] if times == FAR[1] else 1)
        if operator.grows == () or (
            peaks
            and (
                peaks[-1] * growth ** exponent(peaks) > FAR_PEAK_MOST
                or seconds[-1] * growth ** exponent(seconds) > FAR_SECONDS_MOST
            )
        ):
            break
        for repetition in range(repetitions):
            # The second of the small ones is a quarter larger: two sizes
            shape = operator.scaled(scale * times * (1.25 if times == 1 and repetition else 1))
            began = time.monotonic()
            chance = np.random.default_rng((times, repetition))
            params |= run(operator, f"far {times}.{repetition}", shape, chance)
            took = time.monotonic() - began
        seconds.append(took)
        peaks.append(next(r for r in reversed(dwsr_probe.records())).alloc_peak_bytes)
    return params


def exponent(values):
    """Of the growth from about 1 MB to 30 times that; 1.1 while only the first is known."""
    return 1.1 if len(values) < 2 else max(0.5, np.log(values[1] / values[0]) / np.log(FAR[0]))


def bytes_of(x):
    usage = getattr(x, "memory_usage", None)
    return int(np.sum(usage())) if usage else x.nbytes


def main(path, *names):
    import pandas as pd

    pd.set_option("future.infer_string", False)  # texts are objects
    dwsr_probe.start()
    known = {**OPERATORS, **SIMULATIONS}
    for n, name in enumerate(names or known, 1):
        print(f"... measuring {n} of {len(names or known)}: {name}", file=sys.stderr, flush=True)
        params = measure(known[name])
        lines = [
            json.dumps({**record.to_dict(), "params": params[record.key]}) + "\n"
            for record in dwsr_probe.records()
            if record.task_name == name
        ]
        with open(path, "a") as file:  # at once: half of an operator is none
            file.write("".join(lines))


if __name__ == "__main__":
    main(*sys.argv[1:])
