"""Tasks of a family one after another, each with a reservation: the 99 % bound of a method. A task
that needs more fails. The failed attempt costs its reservation, and the next one has twice as
much."""

from typing import NamedTuple

import numpy as np

INITIAL_BYTES = 1 << 30  # for the first task, whatever the method


class Cost(NamedTuple):
    """Of one family and method, over all orders. bytes: that were reserved."""

    name: str
    reserved: float
    used: float
    failures: int
    tasks: int


def killed(record, limit):
    """What is learned of an attempt that needed more than it had."""
    return {**record, "state": "killed", "alloc_peak_bytes": int(limit)}


class LargestSeen:
    """Reserves the largest peak that was seen."""

    def __init__(self):
        self.largest = 0

    def learn(self, record):
        if record["state"] == "ok":
            self.largest = max(self.largest, record["alloc_peak_bytes"])

    def bound(self, inputs, name, level):
        return self.largest


def run(records, method, level=0.99):
    """(bytes reserved, tasks that failed), from the second task on: the first one has a common
    guess, which would hide differences in families of small tasks."""
    total, failures = 0.0, 0
    for number, record in enumerate(records):
        truth = record["alloc_peak_bytes"]
        bound = (
            method.bound(record["inputs"], record["task_name"], level) if number else INITIAL_BYTES
        )
        failures += number > 0 and truth > bound
        while truth > bound:
            total += bound if number else 0
            method.learn(killed(record, bound))
            bound = 2 * max(bound, 1)
        total += bound if number else 0
        method.learn(record)
    return total, failures


def orders(records, seeds):
    return ([records[i] for i in np.random.default_rng(s).permutation(len(records))] for s in seeds)


def cost(records, make, seeds):
    """A Cost: each order with a new method."""
    mixed = list(orders(records, seeds))
    found = [run(order, make()) for order in mixed]
    return Cost(
        records[0]["task_name"],
        sum(total for total, _ in found),
        sum(record["alloc_peak_bytes"] for order in mixed for record in order[1:]),
        sum(failures for _, failures in found),
        (len(records) - 1) * len(found),
    )
