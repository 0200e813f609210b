"""Families of tasks of which only the bytes of the input are known, not a shape: made from
formulas (synthetic.py), and programs that are run here (programs.py).

Half of each kind was drawn for tuning, before a model saw them; the others are frozen: no report
prints their single results without --final."""

from tests.bench.predict.families import programs, synthetic
from tests.bench.predict.groups import draw

GROUPS = draw([list(synthetic.FAMILIES), list(programs.PROGRAMS)])


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


def records(again=False, measured_only=False):
    """By family. measured_only: without programs that were not measured."""
    tasks = {name: synthetic.tasks(name) for name in synthetic.FAMILIES} | (
        programs.load() if measured_only else programs.tasks(again)
    )
    return {
        name: [record(name, f"{i}.0", *task) for i, task in enumerate(rows)]
        for name, rows in tasks.items()
    }
