"""How the CPUs and the memory of a machine are given to workers."""

import os

import pytest

from dwsr_probe.fit import FitError, limits
from dwsr_probe.fit.durations import Durations
from dwsr_probe.fit.known import Known, Wanted
from dwsr_probe.fit.planning import fastest_plan
from dwsr_probe.fit.steps import Step, block_inputs
from dwsr_probe.fit.worker import Layout
from dwsr_probe.predict import Model

GIB = 1 << 30


@pytest.fixture(autouse=True)
def cpus(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))


def splits(memory, threads, workers):
    return [
        (found.threads, found.workers, found.memory_bytes / GIB)
        for found in limits.find_splits(memory, threads, workers)
    ]


def test_what_is_given_counts():
    assert splits("2GiB", 3, 5) == [(3, 5, 2)]
    assert splits("8GiB", 4, "auto") == [(4, 2, 4)]
    assert splits("8GiB", "auto", 2) == [(4, 2, 4)]


def test_all_ways():
    found = splits("8GiB", "auto", "auto")
    assert (1, 8, 1) in found and (8, 1, 8) in found and (2, 4, 2) in found
    assert all(threads * workers <= 8 for threads, workers, _ in found)
    assert all(memory * workers == pytest.approx(8) for _, workers, memory in found)


def test_neither_a_number_nor_auto():
    with pytest.raises(FitError, match="whole number"):
        limits.find_splits("8GiB", "many", 1)


@pytest.mark.parametrize(("serial", "threads"), [(0.0, 8), (1.0, 1)])
def test_threads_that_wait_for_each_other_need_workers(serial, threads):
    model = Model()
    for n in (64, 96, 128):
        block = {"dtype": "float32", "shape": [n, 64, 64], "nbytes": n * 64 * 64 * 4}
        model.learn(
            {
                "task_name": "f",
                "inputs": [block],
                "alloc_peak_bytes": 4 * block["nbytes"],
                "output_bytes": block["nbytes"],
                "state": "ok",
            }
        )
    shape = (4096, 64, 64)
    known = Known(
        model,
        [Step("f", "f", block_inputs([shape], ["float32"], [0, 0, 0]))],
        Durations([(1e6, 0.01)], start_s=0.0, serial_share=serial),
        200e6,
    )
    layout = Layout(shape, 4, [0, 0, 0])
    plan = fastest_plan(known, layout, limits.find_splits("8GiB", "auto", "auto"), Wanted())
    assert plan.tasks_at_once == threads and plan.workers == 8 // threads
