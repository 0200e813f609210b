"""The job comes first: what fails in an allocator is the job's, unchanged; what fails in ours is
one line, and the job goes on."""

import gc
import sys
import threading
import warnings

import cupy
import pytest
from cupy.cuda import memory, pinned_memory

from dwsr_probe import _core
from dwsr_probe.gpu import cupy_hook
from tests.conftest import wait_until
from tests.gpu.conftest import MIB, array, new_pool, on, record, shows

pytestmark = pytest.mark.usefixtures("standin_board", "probe")
OFF = 2  # enum gpu_hook


def hook_state(probe):
    return probe.snapshot().live["gpu_hook"]


def still_follows(probe):
    cupy.cuda.set_allocator(new_pool().malloc)
    with probe.task("follows"):
        array(MIB)
    return on(record("follows")) == (MIB, 0)


@pytest.fixture(autouse=True)
def speaks_anew(monkeypatch):
    """A process says a thing once; each test here stands for a process."""
    said = set()
    monkeypatch.setattr(
        _core, "claim_message", lambda kind: kind not in said and not said.add(kind)
    )


def is_off(probe, capfd):
    """One line, CuPy as it was, and no more figures."""
    said = capfd.readouterr().err.splitlines()
    assert len(said) == 1 and said[0].startswith("dwsr-probe: the hook on CuPy's memory failed"), (
        said
    )
    wait_until(lambda: hook_state(probe) == OFF, "the board to say so")
    assert (
        not _core.is_ours(cupy_hook._originals["get_allocator"]())
        and cupy.cuda.set_allocator is cupy_hook._originals["set_allocator"]
    )
    with probe.task("unmeasured"):
        array(MIB)
    assert record("unmeasured").gpu is None
    assert capfd.readouterr().err == ""
    return True


# ---- the job's allocators ----


@pytest.mark.parametrize(
    "error",
    [
        KeyboardInterrupt,
        ValueError,
        SystemExit,
        MemoryError,
        GeneratorExit,
        cupy.cuda.memory.OutOfMemoryError(1, 2, 3),
    ],
)
def test_what_an_allocator_raises_is_the_jobs(probe, capfd, error):
    def malloc(size):
        raise error

    cupy.cuda.set_allocator(malloc)
    with (
        probe.task("raises"),
        pytest.raises(error if isinstance(error, type) else type(error)) as caught,
    ):
        array(MIB)
    assert isinstance(error, type) or caught.value is error
    out_of_memory = issubclass(error if isinstance(error, type) else type(error), MemoryError)
    assert (record("raises").oom is not None) == out_of_memory
    assert capfd.readouterr().err == "" and still_follows(probe)


def test_an_error_whose_attributes_raise(probe, capfd):
    class Nasty(Exception):
        def __getattribute__(self, name):
            raise RuntimeError(name)

    def malloc(size):
        raise Nasty

    cupy.cuda.set_allocator(malloc)
    with pytest.raises(Nasty):
        array(MIB)
    cupy.cuda.set_allocator(None)
    assert is_off(probe, capfd)


@pytest.mark.parametrize("garbage", [0, "memory", 1.5, object()])
def test_garbage_is_refused_by_cupy_as_ever(probe, capfd, garbage):
    cupy.cuda.set_allocator(lambda size: garbage)
    with pytest.raises(TypeError, match="MemoryPointer"):
        array(MIB)
    assert capfd.readouterr().err == "" and still_follows(probe)


def test_none_arrives_as_none(probe, capfd):
    cupy.cuda.set_allocator(lambda size: None)
    assert cupy.cuda.alloc(MIB) is None
    assert capfd.readouterr().err == "" and still_follows(probe)


def test_a_pointer_of_the_jobs_own_class_stays_one(probe):
    class Pointer(cupy.cuda.MemoryPointer):
        pass

    cupy.cuda.set_allocator(lambda size: Pointer(memory.Memory(size), 0))
    with probe.task("own class"):
        assert type(cupy.cuda.alloc(MIB)) is Pointer
    assert record("own class").gpu == []
    wait_until(lambda: probe.snapshot().live["gpu_unfollowed"] == 1, "it to be counted")
    pool = new_pool()
    cupy.cuda.set_allocator(lambda size: Pointer(pool.malloc(size).mem, 0))
    with probe.task("own class, pooled"):
        assert type(cupy.cuda.alloc(MIB)) is Pointer
    assert on(record("own class, pooled")) == (MIB, 0)


def test_memory_of_the_jobs_own_class(probe):
    class Own(memory.Memory):
        colour = "red"

    cupy.cuda.set_allocator(lambda size: cupy.cuda.MemoryPointer(Own(size), 0))
    with probe.task("own memory"):
        x = array(MIB + 1)
        assert x.data.mem.colour == "red"
    assert on(record("own memory")) == (MIB + 1, MIB + 1)
    del x
    assert shows(0)


# ---- our own part ----


class Broken(cupy.cuda.MemoryPointer):
    """A true pointer to whoever does not ask for its device."""

    def __init__(self, pointer):
        super().__init__(pointer.mem, 0)

    @property
    def device_id(self):
        raise RuntimeError("simulated")


@pytest.mark.parametrize("threads", [1, 4])
def test_a_failure_of_ours_inside_an_allocation(probe, capfd, threads):
    pool = new_pool()
    cupy.cuda.set_allocator(lambda size: Broken(pool.malloc(size)))
    kept, together = [], threading.Barrier(threads)

    def work():
        together.wait()
        with cupy.cuda.using_allocator(lambda size: Broken(pool.malloc(size))):
            kept.append(cupy.cuda.alloc(MIB))
        kept.append(cupy.cuda.alloc(MIB))

    workers = [threading.Thread(target=work) for _ in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert [type(x) for x in kept] == [
        Broken
    ] * 2 * threads and pool.used_bytes() == 2 * threads * MIB
    assert is_off(probe, capfd)
    kept.clear()
    probe.stop()
    assert probe.start() and still_follows(probe)  # a new start, a new try


def test_an_allocator_we_cannot_look_at(probe, capfd):
    class Hidden:
        def __getattr__(self, name):
            raise RuntimeError(name)

        def __call__(self, size):
            return memory._malloc(size)

    cupy.cuda.set_allocator(Hidden())
    assert array(MIB).nbytes == MIB
    assert type(cupy.cuda.get_allocator()) is Hidden
    assert is_off(probe, capfd)
    probe.stop()
    assert type(cupy.cuda.get_allocator()) is Hidden


def test_a_cupy_we_do_not_know(probe, capfd, monkeypatch):
    probe.stop()
    monkeypatch.delattr(memory, "_get_thread_local_allocator")
    original = cupy.cuda.set_allocator
    assert probe.start()
    said = capfd.readouterr().err
    assert said.count("\n") == 1 and "cannot hook cupy" in said
    with probe.task("goes on"):
        assert array(MIB).nbytes == MIB
    assert record("goes on").gpu is None
    wait_until(lambda: hook_state(probe) == OFF, "the board to say so")
    assert cupy.cuda.set_allocator is original
    probe.stop()
    monkeypatch.undo()
    assert probe.start() and still_follows(probe)


def test_ctrl_c_inside_ours_is_the_jobs(probe, capfd, monkeypatch):
    """Python may run the job's signal handler in any of our own Python functions."""

    def interrupted(*arguments):
        raise KeyboardInterrupt

    pool = new_pool()
    monkeypatch.setattr("weakref.WeakKeyDictionary.get", interrupted)  # of a pool that is new to us
    cupy.cuda.set_allocator(pool.malloc)
    with pytest.raises(KeyboardInterrupt):
        array(MIB)
    monkeypatch.undo()
    assert pool.used_bytes() == 0 and capfd.readouterr().err == "" and still_follows(probe)


# ---- start and stop ----


def test_stop_restores_the_very_objects(probe):
    probe.stop()
    pool = new_pool()

    def malloc(size):
        return pool.malloc(size)

    cupy.cuda.set_allocator(malloc)
    names = [
        (module, name)
        for module in (cupy.cuda, memory, pinned_memory)
        for name in dir(module)
        if "allocator" in name
    ]
    before = [getattr(module, name) for module, name in names]
    assert probe.start()
    assert (
        cupy.cuda.set_allocator is not before[names.index((cupy.cuda, "set_allocator"))]
        and cupy.cuda.set_allocator.__doc__
    )
    x = array(MIB)
    probe.stop()
    assert all(
        getattr(module, name) is was for (module, name), was in zip(names, before, strict=True)
    )
    assert cupy.cuda.get_allocator() is malloc
    with cupy.cuda.using_allocator(malloc):
        assert probe.start()
        probe.stop()
        assert memory._get_thread_local_allocator() is malloc
    assert memory._get_thread_local_allocator() is None and cupy.cuda.get_allocator() is malloc
    assert type(x.data.mem) is memory.PooledMemory


def test_stop_says_nothing_twice(probe):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cupy.cuda.set_allocator(cupy.cuda.malloc_async)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # CuPy warns of this one when it is set
        probe.stop()
    assert cupy.cuda.get_allocator() is cupy.cuda.malloc_async


def test_somebody_put_his_own_over_ours(probe, monkeypatch):
    def theirs(allocator=None):
        return ours(allocator)

    ours = cupy.cuda.set_allocator
    monkeypatch.setattr(cupy.cuda, "set_allocator", theirs)
    probe.stop()
    assert cupy.cuda.set_allocator is theirs
    theirs(None)
    assert cupy.cuda.get_allocator() is memory._malloc


@pytest.mark.parametrize("kind", ["pool", "none"])
def test_restart_between_allocation_and_free(probe, kind):
    cupy.cuda.set_allocator(new_pool().malloc if kind == "pool" else None)
    with probe.task("first"):
        x = array(MIB)
    probe.stop()
    unseen = array(2 * MIB)
    assert probe.start()
    assert shows(MIB)
    with probe.task("second"):
        y = array(4 * MIB)
        del x
    assert on(record("second")) == (4 * MIB, 4 * MIB)
    assert shows(4 * MIB) and shows(5 * MIB, field="peak_bytes")
    probe.stop()
    del y, unseen  # while nobody looks
    assert probe.start() and shows(0)


def test_start_and_stop_many_times(probe):
    pool = new_pool()
    cupy.cuda.set_allocator(pool.malloc)
    tokens = None
    for i in range(100):
        probe.stop()
        assert cupy.cuda.get_allocator() == pool.malloc
        assert probe.start(alloc=i % 2 == 0)
        with probe.task("turn"):
            array(MIB)
        assert on(record("turn")) == (MIB, 0)
        if i == 10:
            gc.collect()
            tokens = len(gc.get_objects())
    gc.collect()
    assert len(gc.get_objects()) - tokens < 500  # nothing grows with every start
    assert len([t for t in threading.enumerate() if t.name == "dwsr-nvml"]) <= 1


def test_stop_while_others_allocate(probe, capfd):
    done, errors = threading.Event(), []

    def work(i):
        try:
            while not done.is_set():
                with probe.task("works"):
                    kept = [array(512 * (k + 1)) for k in range(5)]
                    if i == 0:
                        cupy.cuda.set_allocator(
                            None if len(kept) % 2 else cupy.get_default_memory_pool().malloc
                        )
                    elif i == 1:
                        with cupy.cuda.using_allocator(None):
                            array(100)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        for thread in threads:
            thread.start()
        for _ in range(30):
            probe.stop()
            assert probe.start()
        probe.stop()
    finally:
        sys.setswitchinterval(interval)
        done.set()
        for thread in threads:
            thread.join()
    assert not errors and capfd.readouterr().err == ""
    assert probe.start() and shows(0)


# ---- without the host's accounting; page-locked memory ----


def test_without_the_hosts_accounting(probe):
    probe.stop()
    assert probe.start(alloc=False)
    with probe.task("outer"):
        x = array(MIB)
        with probe.task("inner"):
            y = array(2 * MIB)
        del y
    found = record("outer")
    assert on(found) == (3 * MIB, MIB) and on(record("inner")) == (2 * MIB, 2 * MIB)
    assert found.alloc_peak_bytes is None
    del x


@pytest.mark.parametrize("kind", ["pool", "none"])
def test_page_locked_memory_is_counted_apart(probe, kind):
    pool = cupy.cuda.PinnedMemoryPool()
    cupy.cuda.set_pinned_memory_allocator(pool.malloc if kind == "pool" else None)
    size = 2 * MIB if kind == "pool" else MIB + 1  # this pool rounds up to powers of two
    with probe.task("pinned"):
        x = cupy.cuda.alloc_pinned_memory(MIB + 1)
        y = cupy.cuda.alloc_pinned_memory(MIB + 1)
        z = array(512)
        del y
    found = record("pinned")
    assert (found.pinned_peak_bytes, found.pinned_end_bytes) == (2 * size, size) and on(found) == (
        512,
        512,
    )

    def on_the_board(*expected):
        wait_until(
            lambda: (
                tuple(probe.snapshot().live[name] for name in ("pinned_bytes", "pinned_peak_bytes"))
                == expected
            ),
            "page-locked bytes",
        )

    on_the_board(size, 2 * size)
    del x
    on_the_board(0, 2 * size)
    with probe.task("none of it"):
        pass
    assert record("none of it").pinned_peak_bytes == 0
    del z


def test_page_locked_memory_that_is_not_seen_is_unknown(probe):
    """CuPy does not say which allocator is in use: after a late start it is not seen until the
    job sets one."""
    probe.stop()
    assert probe.start()
    with probe.task("unknown"):
        cupy.cuda.alloc_pinned_memory(100)
    assert (
        record("unknown").pinned_peak_bytes is None
        and probe.snapshot().live["pinned_bytes"] is None
    )
