"""Peaks of two seismic operators by input shape, and their resident size over time, from
discovery-unicamp/memory-aware-chunking. The data are not ours to copy: read beside the checkout,
or in $DWSR_SHARED."""

import csv
import os
from itertools import groupby
from math import prod
from pathlib import Path
from typing import NamedTuple

FOLDER = Path(os.environ.get("DWSR_SHARED", "../shared")) / "data" / "unicamp"
GB = 2**30  # the samples are whole pages in this unit, and are not in 10**9
SKIPPED = f"UNICAMP's data are not in {FOLDER}: skipped."


def present():
    return (FOLDER / "dataset.csv").exists()


def inputs_of(shape):
    return [
        {"type": "ndarray", "dtype": "float32", "shape": list(shape), "nbytes": 4 * prod(shape)}
    ]


def record_of(name, shape, peak_bytes, **others):
    inputs = inputs_of(shape)
    return {
        "kind": "task",
        "task_name": name,
        "state": "ok",
        "inputs": inputs,
        "input_bytes": inputs[0]["nbytes"],
        "alloc_peak_bytes": round(peak_bytes),
        **others,
    }


def shape_of(row):
    return tuple(int(row[axis]) for axis in ("inlines", "xlines", "samples"))


def records():
    """Records by operator, one for each shape, in the order of bytes. The peak is the mean of three
    runs, and of the whole process: there is an offset of about 100 MB."""
    found = {}
    with open(FOLDER / "dataset.csv", newline="") as file:
        for row in csv.DictReader(file):
            found.setdefault(row["operator"], []).append(
                record_of(row["operator"], shape_of(row), float(row["avg_peak_memory_usage"]) * GB)
            )
    return {
        name: sorted(rows, key=lambda r: (r["input_bytes"], r["inputs"][0]["shape"]))
        for name, rows in found.items()
    }


def is_cube(record):
    return len(set(record["inputs"][0]["shape"])) == 1


class History(NamedTuple):
    """One run of an operator. samples: (seconds, resident bytes)."""

    name: str
    shape: tuple
    samples: list


def histories():
    for path in sorted(FOLDER.glob("*.profile_history.csv")):
        with open(path, newline="") as file:
            for _, rows in groupby(csv.DictReader(file), key=lambda row: row["session_id"]):
                rows = list(rows)
                start = float(rows[0]["timestamp"])
                yield History(
                    path.name.partition(".")[0],
                    shape_of(rows[0]),
                    [
                        (float(r["timestamp"]) - start, float(r["captured_memory_usage"]) * GB)
                        for r in rows
                    ],
                )
