"""Families of tasks of which only the bytes of the input are known, not a shape: made from
formulas (synthetic.py), and programs that are run here (programs.py).

Half of each kind was drawn for tuning, before a model saw them; the others are frozen: no report
prints their single results without --final."""

from tests.bench.predict.families import programs, synthetic
from tests.bench.predict.operators import FROZEN, TUNING_HALF, draw

GROUPS = dict(
    zip(
        (TUNING_HALF, FROZEN),
        draw([list(synthetic.FAMILIES), list(programs.PROGRAMS)]),
        strict=True,
    )
)


def record(name, key, size, peak):
    return {
        "kind": "task",
        "task_name": name,
        "key": key,
        "state": "ok",
        "inputs": [{"type": "file", "nbytes": size}],
        "input_bytes": size,
        "alloc_peak_bytes": peak,
        "params": {},
    }


def records(again=False):
    """By family."""
    tasks = {name: synthetic.tasks(name) for name in synthetic.FAMILIES} | programs.tasks(again)
    return {
        name: [record(name, f"{i}.0", *task) for i, task in enumerate(rows)]
        for name, rows in tasks.items()
    }
