"""Each task has its own figure, whatever its neighbours do and whoever frees; in the end nothing
is left over."""

import gc
import queue
import threading

import cupy
import pytest

from tests.gpu.conftest import MIB, array, device_truth, on, record, shows

pytestmark = pytest.mark.usefixtures("standin_board", "probe")


def in_threads(count, work):
    """work(i) in `count` threads at once; what one of them raises is raised here."""
    errors = []

    def guarded(i):
        try:
            work(i)
        except BaseException as error:
            errors.append(error)
            raise

    threads = [threading.Thread(target=guarded, args=(i,)) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors


@pytest.mark.parametrize("devices", [1, 2])
def test_two_tasks_at_once(probe, devices):
    together = threading.Barrier(2)

    def work(i):
        with cupy.cuda.Device(i % devices), probe.task(f"task {i}"):
            together.wait()
            x = array((i + 1) * MIB)
            together.wait()
            y = array((i + 1) * 10 * MIB)
            together.wait()
            del y
            together.wait()
        together.wait()
        del x

    in_threads(2, work)
    for i in range(2):
        assert on(record(f"task {i}"), i % devices) == ((i + 1) * 11 * MIB, (i + 1) * MIB)
        assert len(record(f"task {i}").gpu) == 1
    assert all(shows(0, device=d) for d in range(devices))


def test_one_task_on_two_devices(probe):
    with probe.task("both"):
        x = array(MIB)
        with cupy.cuda.Device(1):
            y = array(2 * MIB)
            array(3 * MIB)
    assert [
        (d["device"], d["peak_bytes"], d["end_bytes"], d["pool_total_bytes"])
        for d in record("both").gpu
    ] == [(0, MIB, MIB, MIB), (1, 5 * MIB, 2 * MIB, 5 * MIB)]
    del x, y


def test_freed_by_another_thread(probe):
    """As in a Dask worker, whose event loop drops a third of all results: while the task runs,
    and after it."""
    handed, freed = queue.Queue(), queue.Queue()

    def event_loop():
        with probe.task("loop's own"):
            mine = array(512)
            while (item := handed.get()) is not None:
                del item
                freed.put(1)
            del mine

    loop = threading.Thread(target=event_loop)
    loop.start()
    with probe.task("works"):
        for _ in range(10):
            handed.put(array(MIB))
            freed.get()
        x = array(2 * MIB)
        handed.put(x)
        del x
        freed.get()
        y = array(MIB)
    handed.put(y)
    del y
    freed.get()
    assert shows(512)
    handed.put(None)
    loop.join()
    assert on(record("works")) == (2 * MIB, MIB)
    assert on(record("loop's own")) == (512, 0)
    assert shows(0)


def test_freed_by_the_garbage_collector(probe):
    class Node:
        pass

    with probe.task("makes a cycle"):
        node = Node()
        node.self, node.data = node, array(MIB)
        del node
    with probe.task("collects"):
        x = array(2 * MIB)
        gc.collect()
    assert on(record("makes a cycle")) == (MIB, MIB)
    assert on(record("collects")) == (2 * MIB, 2 * MIB)
    assert shows(2 * MIB)
    del x


def test_a_thread_of_the_task(probe):
    with probe.task("starts a thread"):
        kept = []
        in_threads(1, lambda _: kept.append(array(MIB)))
    assert on(record("starts a thread")) == (MIB, MIB)
    with probe.task("is adopted") as block:

        def work():
            with probe.adopt(block):
                kept.append(array(MIB))

        in_threads(1, lambda _: work())
    assert on(record("is adopted")) == (MIB, MIB)
    kept.clear()
    assert shows(0)


@pytest.mark.parametrize("kind", ["pool", "none"])
def test_eighty_thousand_pairs(probe, kind):
    """Four threads allocate, keep, hand over and free, on two devices: all balances are zero,
    here and on the stand-in."""
    if kind == "none":
        cupy.cuda.set_allocator(None)
    passed, together = queue.SimpleQueue(), threading.Barrier(4)

    def work(i):
        size = 512 * (i + 1)
        with cupy.cuda.Device(i % 2):
            together.wait()
            for turn in range(20):
                with probe.task(f"thread {i}", key=str(turn)):
                    for k in range(1000):
                        x = cupy.cuda.alloc(size)
                        if k % 100 == 0:
                            passed.put(x)  # freed by whoever comes by
                        del x
                        if k % 100 == 50:
                            passed.get_nowait()
                    kept = cupy.cuda.alloc(512)
                del kept

    in_threads(4, work)
    while not passed.empty():
        passed.get()
    for i in range(4):
        found = [on(r, i % 2) for r in probe.records() if r.task_name == f"thread {i}"]
        assert len(found) == 20
        # What it has handed over is its own until somebody frees it: at least one at a time, at
        # most all ten and the next.
        assert all(
            512 * (i + 1) <= peak <= 512 * (i + 1) * 11 + 512 and end >= 512 for peak, end in found
        )
    assert shows(0, device=0) and shows(0, device=1)
    assert kind == "pool" or device_truth() == [0, 0]


def test_alone_among_busy_neighbours(probe):
    """Three threads allocate as fast as they can, in tasks and outside; the fourth's figure is
    the same every time."""
    stop = threading.Event()

    def busy(i):
        while not stop.is_set():
            if i:
                with probe.task("busy"):
                    array(MIB << i)
            else:
                array(MIB)

    def calm():
        try:
            for _ in range(200):
                with probe.task("calm"):
                    x = array(3 * MIB)
                    y = x[:100].copy()
                    del x
                del y
        finally:
            stop.set()

    in_threads(4, lambda i: calm() if i == 3 else busy(i))
    assert {on(r) for r in probe.records() if r.task_name == "calm"} == {(3 * MIB + 512, 512)}
    assert {on(r) for r in probe.records() if r.task_name == "busy"} <= {
        (MIB << 1, 0),
        (MIB << 2, 0),
    }
    assert shows(0)
