"""Known patterns of real CuPy work, to the byte: CuPy's pool rounds every size up to 512."""

import cupy
import numpy
import pytest

from tests.conftest import wait_until
from tests.gpu.conftest import MIB, array, device_truth, on, record, shows

pytestmark = pytest.mark.usefixtures("standin_board", "probe")
OutOfMemory = cupy.cuda.memory.OutOfMemoryError


def test_an_array(probe):
    with probe.task("one"):
        x = array(MIB + 1)
    (found,) = record("one").gpu
    assert found == {
        "device": 0,
        "peak_bytes": MIB + 512,
        "end_bytes": MIB + 512,
        "pool_used_bytes": MIB + 512,
        "pool_total_bytes": MIB + 512,
    }
    assert shows(MIB + 512) and shows(MIB + 512, field="peak_bytes")
    del x
    assert shows(0)


def test_nothing_and_next_to_nothing(probe):
    with probe.task("nothing"):
        cupy.empty(0)
    with probe.task("a byte"):
        x = array(1)
    assert record("nothing").gpu == []
    assert on(record("a byte")) == (512, 512)
    del x


@pytest.mark.parametrize(
    ("work", "peak", "end"),
    [
        (lambda x: x + 1, MIB, MIB),
        # a temporary goes as soon as the next operation has read it
        (lambda x: (x + 1) * 2 - 3, 2 * MIB, MIB),
        (lambda x: x.sum(), 512, 512),
        (lambda x: cupy.concatenate([x, x, x]), 3 * MIB, 3 * MIB),
        (lambda x: x[10:20], 0, 0),
        (lambda x: (x + 1)[:10], MIB, MIB),  # a slice keeps all of it
        (lambda x: (x + 1)[:10].copy(), MIB + 512, 512),
        (lambda x: x.__iadd__(1), 0, 0),
        (lambda x: cupy.asnumpy(x), 0, 0),
        (lambda x: x.astype("f4"), MIB // 2, MIB // 2),
        (lambda x: cupy.asarray(numpy.ones(1000)), 8192, 8192),
    ],
    ids=[
        "plus",
        "chain",
        "sum",
        "concatenate",
        "view",
        "view of a temporary",
        "copy of a view",
        "in place",
        "to the host",
        "astype",
        "from the host",
    ],
)
def test_operations(probe, work, peak, end):
    x = cupy.zeros(MIB // 8)
    work(x)  # what CuPy keeps for itself is not the task's
    with probe.task("work"):
        y = work(x)
    assert on(record("work")) == (peak, end)
    del y


def test_the_pools_cache_is_not_the_tasks(probe, standin_board):
    with probe.task("first"):
        array(4 * MIB)
    mallocs = standin_board.mallocs()
    with probe.task("reuses"):
        x = array(MIB)  # a piece of the block that is cached
    (found,) = record("reuses").gpu
    assert (found["peak_bytes"], found["pool_used_bytes"], found["pool_total_bytes"]) == (
        MIB,
        MIB,
        4 * MIB,
    )
    assert standin_board.mallocs() == mallocs and shows(MIB) and device_truth() == [4 * MIB, 0]
    with probe.task("clears"):
        del x
        cupy.get_default_memory_pool().free_all_blocks()
    assert record("clears").gpu == [] and device_truth() == [0, 0] and shows(0)


def test_pool_at_the_peak_not_at_the_end(probe):
    with probe.task("peaks"):
        x = array(3 * MIB)
        y = array(2 * MIB)
        del x, y
        cupy.get_default_memory_pool().free_all_blocks()
        z = array(MIB)
    assert record("peaks").gpu == [
        {
            "device": 0,
            "peak_bytes": 5 * MIB,
            "end_bytes": MIB,
            "pool_used_bytes": 5 * MIB,
            "pool_total_bytes": 5 * MIB,
        }
    ]
    del z


def test_limit_reached_and_a_retry(probe):
    pool = cupy.get_default_memory_pool()
    pool.set_limit(4 * MIB)
    with probe.task("retries"):
        x = array(3 * MIB)
        with pytest.raises(OutOfMemory):
            array(2 * MIB)
        del x
        x = array(2 * MIB)
    found = record("retries")
    assert found.state == "ok" and on(found) == (3 * MIB, 2 * MIB)
    assert found.oom == {
        "where": "gpu:0",
        "requested_bytes": 2 * MIB,
        "live_bytes": 3 * MIB,
        "pool_used_bytes": 3 * MIB,
        "pool_total_bytes": 3 * MIB,
        "pool_limit_bytes": 4 * MIB,
        "count": 1,
    }
    wait_until(lambda: probe.snapshot().live["gpu_ooms"] == 1, "the count of failures")
    del x


def test_a_task_that_dies_of_it(probe):
    cupy.get_default_memory_pool().set_limit(MIB)
    with pytest.raises(OutOfMemory), probe.task("dies"):
        array(MIB + 1)
    found = record("dies")
    assert (
        found.state,
        found.oom["requested_bytes"],
        found.oom["live_bytes"],
        found.oom["count"],
    ) == ("error", MIB + 1, 0, 1)
    with pytest.raises(OutOfMemory), probe.task("outer"), probe.task("inner"):
        array(2 * MIB)
    assert record("outer").oom == record("inner").oom and record("inner").oom["count"] == 1


def test_a_full_device(probe, standin_board):
    with probe.task("full"):
        x = array(MIB)
        standin_board.fail_next(3)  # as often as the pool tries
        with pytest.raises(OutOfMemory):
            array(2 * MIB)
        standin_board.fail_next(1)  # the pool frees its cache and gets it: nobody has seen an error
        y = array(2 * MIB)
    assert record("full").oom["count"] == 1 and on(record("full")) == (3 * MIB, 3 * MIB)
    with probe.task("no pool"):
        cupy.cuda.set_allocator(None)
        standin_board.set_capacity(4 * MIB)
        with pytest.raises(cupy.cuda.runtime.CUDARuntimeError, match="cudaErrorMemoryAllocation"):
            array(2 * MIB)
    oom = record("no pool").oom
    assert (oom["where"], oom["requested_bytes"], oom["pool_used_bytes"], oom["count"]) == (
        "gpu:0",
        2 * MIB,
        None,
        1,
    )
    del x, y


def test_out_of_device_memory_elsewhere_is_not_the_hosts(probe):
    """Its allocation was not seen, or was another thread's: then it is nothing that we know, but
    no lack of host memory."""
    pool = cupy.cuda.MemoryPool()
    pool.set_limit(MIB)
    with pytest.raises(OutOfMemory), probe.task("direct"):
        pool.malloc(2 * MIB)
    assert record("direct").state == "error" and record("direct").oom is None


def test_nested_tasks(probe):
    with probe.task("outer"):
        x = array(MIB)
        with probe.task("inner"):
            y = array(2 * MIB)
            array(4 * MIB)
            with probe.task("innermost"):
                z = array(8 * MIB)
        del y  # in the outer task, which has inherited it
        del z
        w = array(16 * MIB)
    assert on(record("innermost")) == (8 * MIB, 8 * MIB)
    assert on(record("inner")) == (10 * MIB, 10 * MIB)
    assert on(record("outer")) == (17 * MIB, 17 * MIB)
    assert shows(17 * MIB)
    del x, w


def test_freed_after_the_end(probe):
    with probe.task("makes"):
        x = array(MIB)
    with probe.task("frees"):
        y = array(MIB // 2)
        del x
    assert on(record("makes")) == (MIB, MIB)
    assert on(record("frees")) == (MIB // 2, MIB // 2)
    assert shows(MIB // 2)
    del y


def test_running_tasks_are_shown(probe):
    with probe.task("runs"):
        x = array(3 * MIB)
        del x
        x = array(MIB)
        wait_until(
            lambda: [on(r) for r in probe.snapshot().running if r.gpu] == [(3 * MIB, MIB)],
            "the running task's figures",
        )
    del x


def test_every_operation_in_a_task_of_an_outer_loop(probe):
    """Serials and slots of tasks come around: nothing is mistaken for another's."""
    kept = []
    for i in range(600):
        with probe.task("turn", key=str(i)):
            kept.append(array(512 * (i % 7 + 1)))
            array(512)
        if len(kept) > 5:
            kept.pop(0)
    for i, found in enumerate([r for r in probe.records() if r.task_name == "turn"]):
        assert on(found) == (512 * (i % 7 + 2), 512 * (i % 7 + 1))
