"""What a fit knows from a run's records, also from odd ones."""

import pytest

from dwsr_probe.fit import FitError
from dwsr_probe.fit.run import RunFacts, RunTasks, workers_of
from dwsr_probe.record import TaskRecord

MIB = 1 << 20


def facts_of(*inputs, **more):
    """Of ten tasks with these inputs, the first of which took least."""
    facts = RunFacts()
    for n in range(10):
        facts.add(
            TaskRecord(
                **{
                    "seq": n,
                    "process": "1-1",
                    "task_name": "smooth",
                    "state": "ok",
                    "start": float(n),
                    "duration": 0.5,
                    "inputs": list(inputs),
                    "alloc_peak_bytes": (n + 1) * MIB,
                    "rss_before_bytes": 100 * MIB + n,
                    "rss_peak_bytes": 120 * MIB,
                    **more,
                }
            )
        )
    return facts


def block(*shape, **more):
    nbytes = 4
    for n in shape:
        nbytes *= n
    return {"type": "ndarray", "dtype": "float32", "shape": list(shape), "nbytes": nbytes, **more}


def process(limit=1000, peak=500, state="ok", **worker):
    health = {"limit_bytes": 1 << 40}
    if worker:
        health["workers"] = [{"memory_limit_bytes": limit * MIB, **worker}]
    record = TaskRecord(kind="process", process="1-1", state=state, rss_peak_bytes=peak * MIB)
    return record, health


def test_workers():
    facts = facts_of(block(64, 64))
    one = process(address="tcp://a", nanny="tcp://n", nthreads=4)
    restarted = process(address="tcp://b", nanny="tcp://n", nthreads=4, state="killed", peak=980)
    found = workers_of([one, restarted], facts)
    assert (found.memory_bytes, found.threads, found.workers) == (1000 * MIB, 4, 1)
    assert found.killed == 1 and found.peak_bytes == 500 * MIB
    alone = workers_of([process()], facts_of(block(64, 64), overlap=2))
    assert (alone.threads, alone.workers, alone.killed) == (3, 1, 0)


def test_tasks():
    facts = facts_of(block(64, 64))
    tasks = RunTasks(facts)
    known = tasks.known(workers_of([process()], facts))
    assert tasks.dataset.block == (64, 64) and tasks.blocks_in_run() == 10
    assert known.base_bytes == 100 * MIB and [step.label for step in known.steps] == ["smooth"]
    (step,) = known.steps
    assert step.inputs_of((128, 64))[0]["shape"] == [128, 64]
    # Ten tasks of half a second, one after the other, with half a second between them
    assert known.durations.measured == [(64 * 64 * 4, 0.5)]


@pytest.mark.parametrize(
    "inputs",
    [
        [],
        [None],
        [1, "a"],
        [{"type": "Dataset"}],
        [{"shape": None}],
        [block(0, 4)],
        [{"shape": [1 << 61, 1 << 61], "nbytes": 1 << 90, "dtype": "float32"}],
    ],
)
def test_nothing_to_scale(inputs):
    with pytest.raises(FitError):
        RunTasks(facts_of(*inputs))


def test_what_a_worker_held_beside_its_tasks():
    facts = facts_of(block(1024, 256), alloc_peak_bytes=8 * MIB)
    tasks = RunTasks(facts)  # blocks of one MiB, tasks of nine
    assert tasks.held_blocks(workers_of([process(peak=110)], facts)) == 0
    held = tasks.held_blocks(workers_of([process(peak=241)], facts))
    assert held == pytest.approx(241 - 100 - 9 - 32, abs=0.1)
    killed = workers_of([process(state="killed", peak=990)], facts)
    assert tasks.held_blocks(killed) == 0
