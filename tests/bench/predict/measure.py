"""Measure the operators with the probe, in a process of their own, and keep the records in
build/operators.jsonl. Called by __main__; `python -m tests.bench.predict.measure FILE` is the
process."""

import gc
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np

import dwsr_probe
from tests.bench.predict.operators import OPERATORS

FILE = Path("build/operators.jsonl")
REPETITIONS = 2


def records(again=False):
    """Records by operator, in the order of measurement: shape by shape, each repetition with its
    own values. again: measure anew; it is also measured if an operator is missing in the file."""
    found = {} if again else load()
    if found.keys() != OPERATORS.keys():
        FILE.parent.mkdir(exist_ok=True)
        # pandas keeps the names of columns in Arrow. With Arrow's own allocator these records would
        # not be exact.
        subprocess.run(
            [sys.executable, "-m", "tests.bench.predict.measure", FILE],
            check=True,
            env=dict(os.environ, ARROW_DEFAULT_MEMORY_POOL="system"),
        )
        found = load()
    return found


def load():
    found = {}
    for line in FILE.read_text().splitlines() if FILE.exists() else ():
        record = json.loads(line)
        found.setdefault(record["task_name"], []).append(record)
    return found


def measure(operator):
    """One task per shape and repetition, with both in its key. The first call is not a task: it
    triggers lazy imports, and work space that libraries keep."""
    operator.function(*operator.make(operator.shapes[0], np.random.default_rng(0)))
    for i, shape in enumerate(operator.shapes):
        for repetition in range(REPETITIONS):
            inputs = operator.make(shape, np.random.default_rng((i, repetition)))
            gc.collect()
            dwsr_probe.task(operator.name, key=f"{i}.{repetition}")(operator.function)(*inputs)


def main(path):
    dwsr_probe.start()
    part = Path(path).with_suffix(".part")
    for n, operator in enumerate(OPERATORS.values(), 1):
        print(
            f"... measuring {n} of {len(OPERATORS)}: {operator.name}", file=sys.stderr, flush=True
        )
        measure(operator)
    part.write_text("".join(json.dumps(record.to_dict()) + "\n" for record in dwsr_probe.records()))
    part.rename(path)  # half a measurement is none


if __name__ == "__main__":
    main(sys.argv[1])
