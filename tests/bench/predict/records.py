"""The measured records of our own operators, as build/operators.jsonl has them, and what their keys
say:
- "4.1": the ladder, shape 4, repetition 1;
- "value 5, 4.0": the same with another value of the parameter;
- "far 30.1": inputs 30 times larger than about 1 MB, repetition 1.

Imports no library that is measured. measure.py makes the file."""

import json
import re
from pathlib import Path

FILE = Path("build/operators.jsonl")
LADDER = re.compile(r"\d+\.\d+")
VALUE = re.compile(r"value (\S+), (\d+)\.\d+")
FAR = re.compile(r"far (\d+)\.\d+")
VALUE_SHAPES = (0, 3, 7)  # of the ladder, with each value of the parameter
FAR_TIMES = (30, 300)
FAR_PEAK_MOST, FAR_CPU_SECONDS_MOST = 1.5e9, 1.5  # of what is measured


def load():
    """By operator, in the order of measurement: shape by shape, each repetition with its own
    values."""
    found = {}
    for line in FILE.read_text().splitlines() if FILE.exists() else ():
        record = json.loads(line)
        found.setdefault(record["task_name"], []).append(record)
    return found


def chosen(found, key, names):
    """Of these operators, the records whose key is of this form."""
    return {
        name: rows
        for name in names
        if (rows := [record for record in found.get(name, ()) if key.fullmatch(record["key"])])
    }
