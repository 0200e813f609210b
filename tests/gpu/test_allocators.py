"""Every kind of allocator a job can choose, however and whenever it chooses it."""

import contextlib
import gc
import threading
import weakref

import cupy
import pytest
from cupy.cuda import memory, runtime

from tests.conftest import wait_until
from tests.gpu.conftest import MIB, array, device_now, new_pool, on, record, shows

pytestmark = [
    pytest.mark.usefixtures("standin_board", "probe"),
    pytest.mark.filterwarnings("ignore:cupy.cuda.*is experimental"),
]
SIZE = MIB + 1  # exact where nobody rounds


class Slab:
    """Pieces of one large block, never reused."""

    def __init__(self, nbytes, malloc=memory._malloc):
        self.block, self.used = malloc(nbytes), 0

    def malloc(self, size):
        piece = self.block + self.used
        self.used += -(-size // 512) * 512
        return piece


class Buffer:
    """As rmm.DeviceBuffer: owns the bytes, and is not CuPy's."""

    def __init__(self, size):
        self.ptr, self.size = runtime.malloc(size), size

    def __del__(self):
        runtime.free(self.ptr)


def rmm_cupy_allocator(size):
    buffer = Buffer(size)
    return cupy.cuda.MemoryPointer(
        cupy.cuda.UnownedMemory(buffer.ptr, buffer.size, buffer, runtime.getDevice()), 0
    )


def python_functions():
    return cupy.cuda.PythonFunctionAllocator(
        lambda size, device: runtime.malloc(size), lambda ptr, device: runtime.free(ptr)
    ).malloc


def managed_pool():
    return new_pool(cupy.cuda.malloc_managed).malloc


def function_on_a_pool():
    pool = new_pool()
    return lambda size: pool.malloc(size)


def function_on_a_function():
    return lambda size: rmm_cupy_allocator(size)


def function_on_the_current_one():
    before = cupy.cuda.get_allocator()
    return lambda size: before(size)


POOLED = {
    "pool": lambda: new_pool().malloc,
    "managed pool": managed_pool,
    "function on a pool": function_on_a_pool,
    "function on the current": function_on_the_current_one,
}
OTHERS = {
    "async pool": lambda: cupy.cuda.MemoryAsyncPool().malloc,
    "malloc_async": lambda: cupy.cuda.malloc_async,
    "managed": lambda: cupy.cuda.malloc_managed,
    "none": lambda: None,
    "slab": lambda: Slab(16 * MIB).malloc,
    "pooled slab": lambda: Slab(16 * MIB, new_pool().malloc).malloc,
    "rmm": lambda: rmm_cupy_allocator,
    "python functions": python_functions,
    "function on a function": function_on_a_function,
}
KINDS = {**POOLED, **OTHERS}


def rounded(kind):
    return SIZE + 511 if kind in POOLED else SIZE


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_is_followed(probe, kind):
    cupy.cuda.set_allocator(KINDS[kind]())
    size = rounded(kind)
    with probe.task("two"):
        x, y = array(SIZE), array(SIZE)
        del x
    with probe.task("again"):
        x = array(SIZE)
        view = x[5:10]
        del x
    assert on(record("two")) == (2 * size, size)
    assert on(record("again")) == (size, size)
    assert shows(2 * size)
    del y
    assert shows(size)
    del view
    assert shows(0)


@pytest.mark.parametrize("kind", KINDS)
def test_memory_works_as_ever(kind):
    """Contents, copies between kinds, slices, pointers: the job does not notice us."""
    cupy.cuda.set_allocator(KINDS[kind]())
    x = cupy.asarray(range(1000))
    y = cupy.empty_like(x)
    y.data.copy_from_device(x.data, x.nbytes)
    assert y[10:20].get().tolist() == list(range(10, 20))
    assert (
        x.data.device_id == 0
        and x.data.mem.device == cupy.cuda.Device(0)
        and int(x.data) == x.data.ptr == x.data.mem.ptr + x.data.ptr - x.data.mem.ptr
    )
    assert not cupy.may_share_memory(x, y) and cupy.may_share_memory(x, x[2:])


def test_changed_in_the_middle_of_a_task(probe):
    kept = []
    with probe.task("all"):
        for make in KINDS.values():
            cupy.cuda.set_allocator(make())
            kept.append(array(SIZE))
    total = sum(rounded(kind) for kind in KINDS)
    assert on(record("all")) == (total, total) and shows(total)
    with probe.task("frees"):
        kept.clear()
    assert record("frees").gpu == [] and shows(0)


def test_what_memory_can_do_it_still_can(probe):
    """ManagedMemory has methods of its own, an RMM array its buffer."""
    cupy.cuda.set_allocator(cupy.cuda.malloc_managed)
    x = array(MIB)
    assert callable(x.data.mem.prefetch) and callable(x.data.mem.advise)
    cupy.cuda.set_allocator(rmm_cupy_allocator)
    y = array(MIB)
    assert (
        type(y.data.mem._owner) is Buffer
        and y.data.mem._owner.ptr == y.data.ptr
        and isinstance(y.data.mem, cupy.cuda.UnownedMemory)
    )
    assert not hasattr(y.data.mem, "prefetch")
    cupy.cuda.set_allocator(Slab(MIB).malloc)
    array(512)
    z = array(512)
    assert z.data.ptr == z.data.mem.ptr + 512 and z.data.mem.size == MIB  # a piece of its block


def test_the_job_sees_its_own_allocator(probe):
    pool = new_pool()
    cupy.cuda.set_allocator(pool.malloc)
    assert cupy.cuda.get_allocator() == pool.malloc == cupy.cuda.memory.get_allocator()
    cupy.cuda.set_allocator(rmm_cupy_allocator)
    assert cupy.cuda.get_allocator() is rmm_cupy_allocator
    with cupy.cuda.using_allocator(pool.malloc):
        assert cupy.cuda.get_allocator() == pool.malloc
    cupy.cuda.set_allocator(cupy.cuda.get_allocator())
    with probe.task("still followed"):
        x = array(MIB)
    assert on(record("still followed")) == (MIB, MIB)
    del x


@pytest.mark.parametrize("through", ["set_allocator", "using_allocator"])
@pytest.mark.parametrize("kind", ["pool", "function on a pool", "async pool"])
def test_no_pool_is_kept_alive(probe, kind, through):
    """Nor until the next task: nothing of ours holds on to an allocator that is not in use."""

    class Witness:
        pass

    def use():
        pool, witness = (
            (cupy.cuda.MemoryAsyncPool() if kind == "async pool" else cupy.cuda.MemoryPool()),
            Witness(),
        )
        gone = pool.malloc(MIB).mem.pool if kind == "pool" else weakref.ref(witness)
        allocator = (
            pool.malloc if kind == "pool" else lambda size, witness=witness: pool.malloc(size)
        )
        if through == "set_allocator":
            cupy.cuda.set_allocator(allocator)
            with probe.task("uses it"):
                array(MIB)
            cupy.cuda.set_allocator(cupy.get_default_memory_pool().malloc)
        else:
            with cupy.cuda.using_allocator(allocator), probe.task("uses it"):
                array(MIB)
        if kind != "async pool":
            pool.free_all_blocks()
        return gone

    gone = use()
    gc.collect()
    assert gone() is None


def test_using_allocator_nested(probe):
    outer, inner = new_pool(), new_pool()
    with probe.task("nested"):
        with cupy.cuda.using_allocator(outer.malloc):
            x = array(MIB)
            with cupy.cuda.using_allocator(inner.malloc):
                y = array(MIB)
                with cupy.cuda.using_allocator():
                    z = array(SIZE)
            w = array(MIB)
        v = array(MIB)
    assert on(record("nested")) == (4 * MIB + SIZE, 4 * MIB + SIZE)
    assert (outer.used_bytes(), inner.used_bytes()) == (2 * MIB, MIB)
    del x, y, z, w, v


def test_using_allocator_in_several_threads(probe):
    ready = threading.Barrier(3)

    def work(i):
        with cupy.cuda.using_allocator(new_pool().malloc if i else None), probe.task(f"thread {i}"):
            ready.wait()
            x = array(SIZE * (i + 1))
            ready.wait()
            del x

    threads = [threading.Thread(target=work, args=(i,)) for i in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [on(record(f"thread {i}"))[0] for i in range(3)] == [SIZE, 2 * MIB + 512, 3 * MIB + 512]


def test_using_allocator_entered_before_the_probe(probe):
    probe.stop()
    pool = new_pool()
    go, done = threading.Event(), threading.Event()

    def elsewhere():
        with cupy.cuda.using_allocator(None):
            done.set()
            go.wait()
            with probe.task("elsewhere"):
                array(SIZE)
        with probe.task("elsewhere, global"):
            array(SIZE)

    thread = threading.Thread(target=elsewhere)
    thread.start()
    done.wait()
    with cupy.cuda.using_allocator(pool.malloc):
        assert probe.start()
        x = array(MIB)
        assert shows(MIB)  # before any task
        with probe.task("inside"):
            y = array(MIB)
    z = array(MIB)
    assert shows(3 * MIB)
    go.set()
    thread.join()
    assert on(record("inside")) == (MIB, MIB)
    assert on(record("elsewhere")) == (SIZE, 0) and on(record("elsewhere, global")) == (
        SIZE + 511,
        0,
    )
    del x, y, z


def test_set_allocator_imported_by_name_before(probe):
    by_name = {}
    probe.stop()
    exec("from cupy.cuda import set_allocator", by_name)
    assert probe.start()
    by_name["set_allocator"](None)
    with probe.task("begins"):
        x = array(SIZE)
    assert on(record("begins")) == (SIZE, SIZE)
    del x


def test_set_allocator_imported_by_name_outlives_the_probe(probe, capfd):
    from cupy.cuda import set_allocator, set_pinned_memory_allocator  # ours, by now
    from cupy.cuda.memory import _set_thread_local_allocator

    probe.stop()
    pool = new_pool()
    set_allocator(pool.malloc)
    assert cupy.cuda.get_allocator() == pool.malloc
    _set_thread_local_allocator(rmm_cupy_allocator)
    assert cupy.cuda.get_allocator() is rmm_cupy_allocator
    _set_thread_local_allocator(None)
    set_pinned_memory_allocator(None)
    assert capfd.readouterr().err == ""
    assert probe.start() and record_of_new_pinned(probe) is None


def record_of_new_pinned(probe):
    with probe.task("pinned"):
        cupy.cuda.alloc_pinned_memory(100)
    return record("pinned").pinned_peak_bytes


def test_straight_from_the_pool_is_unseen(probe):
    pool = cupy.get_default_memory_pool()
    direct = pool.malloc(3 * MIB)
    with probe.task("works"):

        def told():
            for _ in range(64):
                array(512)
            return device_now().get("unseen_bytes") == 3 * MIB

        wait_until(told, "unseen bytes", timeout=600)
    assert on(record("works")) == (512, 0)
    assert shows(0) and device_now()["pool_used_bytes"] in (3 * MIB, 3 * MIB + 512)
    del direct


def test_errors_of_set_allocator_are_the_jobs(probe):
    with cupy.cuda.using_allocator(None), pytest.raises(ValueError, match="inside"):
        cupy.cuda.set_allocator(None)
    with contextlib.suppress(TypeError):
        cupy.cuda.set_allocator(1, 2)
    with probe.task("on"):
        array(MIB)
    assert on(record("on")) == (MIB, 0)


def test_allocators_that_are_equal_are_not_the_same(probe):
    class Equal:
        def __init__(self, pool):
            self.pool = pool

        def __eq__(self, other):
            return True

        def __hash__(self):
            return 1

        def __call__(self, size):
            return self.pool.malloc(size)

    first, second = new_pool(), new_pool()
    cupy.cuda.set_allocator(Equal(first))
    with cupy.cuda.using_allocator(Equal(second)):
        x = array(MIB)
    assert (first.used_bytes(), second.used_bytes()) == (0, MIB)
    del x


def test_an_allocator_without_hash_or_name(probe):
    class Bare:
        __hash__ = None

        def __call__(self, size):
            return memory._malloc(size)

    cupy.cuda.set_allocator(Bare())
    with probe.task("bare"):
        array(SIZE)
    assert on(record("bare")) == (SIZE, 0)


def test_on_a_second_device(probe):
    for kind in ("pool", "async pool", "none"):
        cupy.cuda.set_allocator(KINDS[kind]())
        with probe.task(kind), cupy.cuda.Device(1):
            x = array(SIZE)
        assert on(record(kind), 1) == (rounded(kind), rounded(kind)) and on(record(kind), 0) == (
            0,
            0,
        )
        (found,) = record(kind).gpu
        # CUDA's pool rounds, too
        assert found["pool_used_bytes"] == (None if kind == "none" else SIZE + 511)
        assert shows(rounded(kind), device=1)
        del x
