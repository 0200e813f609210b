"""The stand-in itself, each behaviour once, with whichever CuPy this interpreter has:
`/path/to/venv/bin/python -m pytest tests/standin`."""

import ctypes
import gc
import importlib.util
import os
import signal
import subprocess
import sys
import textwrap
import threading

import pytest

if not importlib.util.find_spec("cupy"):
    pytest.skip("needs CuPy: make test-gpu", allow_module_level=True)

from tests import standin
from tests.standin import install

BOARD = standin.start(devices=2, capacity_bytes=1 << 30)

import cupy  # noqa: E402 - not before the stand-in is there
import numpy  # noqa: E402
from cupy.cuda import runtime  # noqa: E402

MIB = 1 << 20


@pytest.fixture
def gpu():
    """The board, with nothing allocated and every knob in its place."""
    yield BOARD
    cupy.cuda.set_allocator(cupy.get_default_memory_pool().malloc)
    for device in range(2):
        BOARD.set_capacity(1 << 30, device)
        BOARD.fail_next(0, device)
    gc.collect()
    cupy.get_default_memory_pool().free_all_blocks()
    with cupy.cuda.Device(1):
        cupy.get_default_memory_pool().free_all_blocks()
        runtime.deviceSynchronize()
    assert [BOARD.live_bytes(d) for d in range(2)] == [0, 0]
    assert [BOARD.occupied_bytes(d) for d in range(2)] == [0, 0]


def array(bytes_):
    return cupy.empty(bytes_, dtype="u1")


# ---- in this process ----


def test_a_wrong_signature_is_told():
    import cupy_backends.cuda.api.runtime as module

    with pytest.raises(
        RuntimeError, match=r"runtime\.malloc: expected int \(void\), found intptr_t \(size_t"
    ):
        install.check(module, "malloc", "int (void)", 0, True)
    with pytest.raises(RuntimeError, match="found nothing"):
        install.check(module, "absent", "int (void)", 0, True)
    assert install.check(module, "absent", "int (void)", 0, False) is None


def test_pool_keeps_and_gives_back(gpu):
    mallocs, frees = gpu.mallocs(), gpu.frees()
    x = array(MIB)
    assert gpu.live_bytes() == MIB
    del x
    assert gpu.live_bytes() == MIB
    cupy.get_default_memory_pool().free_all_blocks()
    assert gpu.live_bytes() == 0
    assert (gpu.mallocs() - mallocs, gpu.frees() - frees) == (1, 1)


def test_capacity(gpu):
    gpu.set_capacity(10 * MIB)
    x = array(6 * MIB)
    assert runtime.memGetInfo() == (4 * MIB, 10 * MIB)
    with pytest.raises(cupy.cuda.memory.OutOfMemoryError):
        array(8 * MIB)
    del x
    array(8 * MIB)  # does not fit beside what the pool keeps: it frees that, and tries again
    assert gpu.live_bytes() == 8 * MIB
    with pytest.raises(runtime.CUDARuntimeError) as caught:
        runtime.malloc(11 * MIB)
    assert caught.value.status == 2


def test_mallocs_fail_on_demand(gpu):
    gpu.fail_next(3)  # the pool itself tries up to three times
    with pytest.raises(cupy.cuda.memory.OutOfMemoryError):
        array(MIB)
    gpu.fail_next(1)
    array(MIB)


def test_two_devices_and_peers(gpu):
    x = cupy.arange(10)
    with cupy.cuda.Device(1):
        y = cupy.asarray(numpy.arange(MIB))
        assert (y.device.id, x.device.id, runtime.getDevice()) == (1, 0, 1)
        z = cupy.asarray(y)
        assert z.device.id == 1
    assert gpu.live_bytes(1) == 8 * MIB
    assert runtime.getDeviceCount() == 2
    assert runtime.deviceCanAccessPeer(0, 1) == 1
    peer = cupy.empty(MIB, dtype=y.dtype)
    peer.data.copy_from(y.data, y.nbytes)
    assert (peer.get() == numpy.arange(MIB)).all()
    with pytest.raises(runtime.CUDARuntimeError, match="cudaErrorInvalidDevice"):
        cupy.cuda.Device(2).use()


def test_current_device_is_the_threads_own(gpu):
    seen = []

    def work():
        before = runtime.getDevice()
        with cupy.cuda.Device(1):
            array(MIB)
            seen.append((before, runtime.getDevice()))

    with cupy.cuda.Device(1):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert seen == [(0, 1)]


def test_many_threads(gpu):
    cupy.cuda.set_allocator(None)
    counted = gpu.mallocs()

    def work():
        for i in range(200):
            x = array(4096 + i)
            x.fill(0)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert gpu.mallocs() - counted == 1600


def test_copies(gpu):
    a = numpy.arange(MIB, dtype="u4")
    x = cupy.asarray(a)
    y = cupy.empty_like(x)
    y.data.copy_from_device(x.data, x.nbytes)
    assert (y.get() == a).all()
    assert (y[1000:2000].get() == a[1000:2000]).all()
    y.data.memset(0xFF, 8)
    assert (y[:3].get() == [0xFFFFFFFF, 0xFFFFFFFF, 2]).all()
    assert not cupy.zeros(MIB, dtype="u1").get().any()
    with pytest.raises(runtime.CUDARuntimeError, match="InvalidValue"):
        runtime.memcpy(y.data.ptr, x.data.ptr, x.nbytes + 1, runtime.memcpyDeviceToDevice)


def test_device_memory_is_not_the_hosts(gpu):
    def resident():
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * 4096

    a = numpy.ones(64 * MIB, dtype="u1")
    cupy.get_default_pinned_memory_pool().free_all_blocks()
    x = array(a.nbytes)
    before = resident()
    runtime.memcpy(x.data.ptr, a.ctypes.data, a.nbytes, runtime.memcpyHostToDevice)
    assert resident() - before < 8 * MIB
    x.fill(0)
    assert not cupy.zeros(512 * MIB, dtype="u1")[-1:].get().any()
    assert resident() - before < 8 * MIB


def test_kernels_do_nothing_but_allocate(gpu):
    x = cupy.ones(MIB // 8)
    start = gpu.live_bytes()
    y = x + 1
    assert gpu.live_bytes() - start == MIB
    x += 1
    assert gpu.live_bytes() - start == MIB
    z = cupy.concatenate([x, y])
    assert gpu.live_bytes() - start == 3 * MIB
    assert x.sum().shape == x[3:5].sum().shape == ()
    kernel = cupy.RawKernel('extern "C" __global__ void f(int *x) {}', "f")
    kernel((1,), (1,), (z,))
    cupy.ElementwiseKernel("T x", "T y", "y = x", "standin_test")(x)
    assert gpu.processes()[os.getpid()].launches >= 6


@pytest.mark.filterwarnings("ignore:cupy.cuda.MemoryAsyncPool is experimental")
def test_async_pool(gpu):
    pool = cupy.cuda.MemoryAsyncPool()
    cupy.cuda.set_allocator(pool.malloc)
    x = array(MIB)
    assert (gpu.live_bytes(), pool.used_bytes(), pool.total_bytes()) == (MIB, MIB, MIB)
    del x
    assert (gpu.live_bytes(), gpu.occupied_bytes(), pool.used_bytes()) == (0, MIB, 0)
    x = array(2 * MIB)
    assert gpu.occupied_bytes() == 2 * MIB
    del x
    pool.free_all_blocks()
    assert (pool.total_bytes(), gpu.occupied_bytes()) == (0, 0)
    gpu.set_capacity(MIB)
    with pytest.raises(cupy.cuda.memory.OutOfMemoryError):
        array(2 * MIB)


def test_a_created_pool(gpu):
    handle = runtime.memPoolCreate(
        runtime.MemPoolProps(
            runtime.cudaMemAllocationTypePinned, 0, runtime.cudaMemLocationTypeDevice, 1
        )
    )
    pointer = runtime.mallocFromPoolAsync(MIB, handle, 0)
    assert runtime.pointerGetAttributes(pointer).device == 1
    assert runtime.memPoolGetAttribute(handle, runtime.cudaMemPoolAttrUsedMemCurrent) == MIB
    runtime.memPoolSetAttribute(handle, runtime.cudaMemPoolAttrReleaseThreshold, 2**64 - 1)
    runtime.freeAsync(pointer, 0)
    runtime.deviceSynchronize()
    assert gpu.occupied_bytes(1) == MIB  # below the threshold
    runtime.memPoolDestroy(handle)
    assert gpu.occupied_bytes(1) == 0


def test_managed(gpu):
    pool = cupy.cuda.MemoryPool(cupy.cuda.malloc_managed)
    cupy.cuda.set_allocator(pool.malloc)
    x = array(MIB)
    assert gpu.live_bytes() == MIB
    ctypes.memset(x.data.ptr, 7, x.nbytes)
    assert (x.get() == 7).all()
    assert runtime.pointerGetAttributes(x.data.ptr).type == runtime.memoryTypeManaged
    gpu.set_capacity(MIB)
    y = array(4 * MIB)  # more than the device has
    assert y.nbytes == 4 * MIB and runtime.memGetInfo()[0] == 0
    del x, y
    pool.free_all_blocks()  # CuPy 14 does not when the pool goes


@pytest.mark.parametrize("allocator", ["none", "python"])
def test_other_allocators(gpu, allocator):
    def malloc(size, device_id):
        return runtime.malloc(size)

    def free(pointer, device_id):
        runtime.free(pointer)

    python = cupy.cuda.PythonFunctionAllocator(malloc, free)
    cupy.cuda.set_allocator(None if allocator == "none" else python.malloc)
    x = array(MIB + 1)
    assert gpu.live_bytes() == MIB + 1
    del x
    assert gpu.live_bytes() == 0


def test_pinned(gpu):
    pool = cupy.cuda.PinnedMemoryPool()
    before = gpu.processes()[os.getpid()].pinned_bytes
    memory = pool.malloc(MIB)
    assert gpu.processes()[os.getpid()].pinned_bytes - before == MIB
    ctypes.memset(memory.ptr, 1, MIB)
    assert runtime.pointerGetAttributes(memory.ptr).type == runtime.memoryTypeHost
    del memory
    pool.free_all_blocks()
    assert gpu.processes()[os.getpid()].pinned_bytes == before


def test_pointers(gpu):
    x = array(MIB)
    inner = runtime.pointerGetAttributes(x.data.ptr + 1000)
    assert (inner.type, inner.device) == (runtime.memoryTypeDevice, 0)
    assert (
        runtime.pointerGetAttributes(numpy.zeros(1).ctypes.data).type
        == runtime.memoryTypeUnregistered
    )
    with pytest.raises(runtime.CUDARuntimeError, match="InvalidValue"):
        runtime.free(x.data.ptr + 512)


def test_streams_and_events(gpu):
    called = []
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        x = cupy.asarray(numpy.arange(10))
        start, stop = stream.record(), stream.record()
    stream.wait_event(start)
    stream.add_callback(lambda *arguments: called.append(arguments), "a")
    stream.launch_host_func(called.append, "b")
    stream.synchronize()
    stop.synchronize()
    assert stream.done and stop.done and not stream.is_capturing()
    assert cupy.cuda.get_elapsed_time(start, stop) >= 0
    assert called == [(stream, 0, "a"), "b"]
    assert (x.get(stream=stream) == numpy.arange(10)).all()


def test_properties(gpu):
    properties = runtime.getDeviceProperties(1)
    assert (properties["name"], properties["totalGlobalMem"], properties["uuid"][-1]) == (
        b"Stand-in GPU",
        1 << 30,
        1,
    )
    device = cupy.cuda.Device(1)
    assert (device.compute_capability, device.mem_info, device.pci_bus_id) == (
        "80",
        (1 << 30, 1 << 30),
        "0000:02:00.0",
    )
    assert cupy.cuda.Device.from_pci_bus_id("0000:02:00.0") == device
    assert device.attributes["WarpSize"] == 32
    assert runtime.runtimeGetVersion() == runtime.driverGetVersion() == 12080
    assert cupy.is_available()


def test_nvml_in_this_process(gpu):
    pynvml = pytest.importorskip("pynvml")
    x = array(MIB)
    pynvml.nvmlInit()
    assert pynvml.nvmlDeviceGetMemoryInfo(pynvml.nvmlDeviceGetHandleByIndex(0)).used == x.nbytes
    pynvml.nvmlShutdown()


# ---- in children ----


def child(code, env, **options):
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env=env,
        text=True,
        capture_output=True,
        timeout=600,
        **options,
    )


def said(code, env):
    done = child(code, env)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@pytest.fixture
def env(tmp_path):
    return standin.environment(folder=tmp_path, devices=3, capacity_bytes=64 * MIB)


def test_a_child_is_on_the_board_until_it_dies(env):
    board = standin.board(env)
    code = (
        "import cupy, sys; x = cupy.empty(1 << 20, 'u1'); print('ready', flush=True);"
        " sys.stdin.read()"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdout.readline() == b"ready\n"
    assert board.live_bytes(0, process.pid) == board.live_bytes(0) == MIB
    free = said("import cupy; print(cupy.cuda.runtime.memGetInfo()[0])", env)
    assert free == [str(63 * MIB)]  # a device is shared
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert board.live_bytes(0) == 0  # though nobody has reaped it yet
    process.communicate()


def test_the_host_cannot_touch_device_memory(env):
    code = """
        import ctypes, cupy, resource
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        ctypes.string_at(cupy.empty(10).data.ptr, 1)
    """
    assert child(code, env).returncode == -signal.SIGSEGV


def test_a_child_that_cannot_have_it_says_so(env, tmp_path):
    env["STANDIN_BUILD"] = str(tmp_path)
    done = child("print('on without a GPU')", env)
    assert (done.returncode, done.stdout) == (70, "") and "_cuda.so" in done.stderr


def test_sitecustomize_leaves_no_trace_and_runs_the_next(env, tmp_path):
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text("import sys; sys.users_own = 1")
    env["PYTHONPATH"] += os.pathsep + str(tmp_path / "site")
    code = (
        "import sys; print(sys.users_own, any('boot' in p for p in sys.path), 'cupy' in"
        " sys.modules, 'numpy' in sys.modules, 'standin' in sys.modules)"
    )
    assert said(code, env) == ["1", "False", "False", "False", "True"]


@pytest.mark.parametrize(
    ("text", "uuids"),
    [
        ("1", [1]),
        ("2,0", [2, 0]),
        ("GPU-00000000-0000-0000-0000-000000000002,1", [2, 1]),
        ("0,7,1", [0]),
        ("", "none"),
        ("-1", "none"),
    ],
)
def test_visible_devices(env, text, uuids):
    env["CUDA_VISIBLE_DEVICES"] = text
    code = """
        from cupy.cuda import runtime

        try:
            for i in range(runtime.getDeviceCount()):
                print(runtime.getDeviceProperties(i)["uuid"][-1])
        except runtime.CUDARuntimeError as error:
            print(error.status)
    """
    assert said(code, env) == (["100"] if uuids == "none" else [str(u) for u in uuids])


def test_a_fork_after_use_is_broken_and_before_is_not(env):
    code = """
        import os, sys, cupy
        from cupy.cuda import runtime
        def status():
            try: return runtime.getDeviceCount()
            except runtime.CUDARuntimeError as error: return -error.status
        for _ in range(2):
            pid = os.fork()
            if not pid: os.write(1, b"%d " % status()); os._exit(0)
            os.waitpid(pid, 0)
            status()
    """
    assert said(code, env) == ["3", "-3"]


def test_nvml(env):
    env["CUDA_VISIBLE_DEVICES"] = "2"
    code = """
        import os, cupy, pynvml as n

        x = cupy.empty(1 << 20, "u1")
        n.nvmlInit()
        handle = n.nvmlDeviceGetHandleByIndex(2)
        uuid = n.nvmlDeviceGetUUID(handle)
        assert n.nvmlDeviceGetIndex(n.nvmlDeviceGetHandleByUUID(uuid)) == 2
        pci = n.nvmlDeviceGetPciInfo(handle)
        assert n.nvmlDeviceGetIndex(n.nvmlDeviceGetHandleByPciBusId(pci.busId)) == 2
        v1, v2 = (
            n.nvmlDeviceGetMemoryInfo(handle),
            n.nvmlDeviceGetMemoryInfo(handle, version=n.nvmlMemory_v2),
        )
        assert (v1.total, v1.free, v1.used) == (v2.total, v2.free, v2.used)
        (process,) = n.nvmlDeviceGetComputeRunningProcesses(handle)
        assert (
            n.nvmlDeviceGetComputeRunningProcesses_v2(handle)[0].pid == process.pid == os.getpid()
        )
        assert n.nvmlDeviceGetGraphicsRunningProcesses(handle) == []
        assert n.nvmlDeviceGetComputeRunningProcesses(n.nvmlDeviceGetHandleByIndex(0)) == []
        print(
            n.nvmlDeviceGetCount(),
            uuid,
            pci.bus,
            v1.total,
            v1.used,
            process.usedGpuMemory,
            n.nvmlDeviceGetUtilizationRates(handle).gpu,
            n.nvmlSystemGetDriverVersion(),
            n.nvmlDeviceGetName(handle),
        )
        import standin

        standin.board().nvml("no process bytes")
        assert n.nvmlDeviceGetComputeRunningProcesses(handle)[0].usedGpuMemory is None
        n.nvmlShutdown()
    """
    assert (
        said(code, env)
        == f"3 GPU-00000000-0000-0000-0000-000000000002 3 {64 * MIB} {MIB} {MIB} 0 570.00.01"
        " Stand-in GPU".split()
    )


def test_nvml_fails_as_told(env):
    standin.board(env).nvml("no driver")
    code = """
        import pynvml as n, standin

        board = standin.board()

        def status(function, *arguments):
            try:
                function(*arguments)
            except n.NVMLError as error:
                return error.value
            return 0

        print(status(n.nvmlDeviceGetCount), status(n.nvmlInit))
        board.nvml("works")
        n.nvmlInit()
        handle = n.nvmlDeviceGetHandleByIndex(0)
        for mode in ("no permission", "no utilization", "no memory info", "lost"):
            board.nvml(mode)
            print(
                *(
                    status(f, handle)
                    for f in (
                        n.nvmlDeviceGetComputeRunningProcesses,
                        n.nvmlDeviceGetUtilizationRates,
                        n.nvmlDeviceGetMemoryInfo,
                    )
                )
            )
        print(status(n.nvmlInit), n.NVMLError(15))
    """
    assert said(code, env) == "1 9 4 0 0 0 3 0 0 0 3 15 15 15 9 GPU is lost".split()


def test_nvml_may_be_absent(tmp_path):
    env = standin.environment(folder=tmp_path, nvml=False)
    done = child("import pynvml; pynvml.nvmlInit()", env)
    assert "NVMLError_LibraryNotFound" in done.stderr


def test_dask_workers_under_a_nanny(env):
    pytest.importorskip("distributed")
    code = """
        import cupy, os, standin
        from distributed import LocalCluster, Client

        def work(i):
            import cupy, os

            x = cupy.empty(1 << 20, "u1")
            return os.getpid()

        def device_bytes():
            from distributed.diagnostics import nvml

            return nvml.real_time()["memory-used"]

        if __name__ == "__main__":
            with (
                LocalCluster(n_workers=1, threads_per_worker=2, dashboard_address=None) as cluster,
                Client(cluster) as client,
            ):
                (pid,) = set(client.gather(client.map(work, range(4))))
                board = standin.board()
                print(
                    pid != os.getpid(),
                    board.live_bytes(0, pid) == sum(client.run(device_bytes).values()) >= 1 << 20,
                )
    """
    script = standin.board(env).folder / "job.py"
    script.write_text(textwrap.dedent(code))
    done = subprocess.run(
        [sys.executable, script], env=env, text=True, capture_output=True, timeout=600
    )
    assert done.stdout.split() == ["True", "True"], done.stderr
