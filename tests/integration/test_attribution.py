"""A figure is right, or the record says that it is not: allocators inside libraries, memory mapped
past the hooks, and threads that work for no task. Real libraries, in a real process."""

import subprocess

import pytest

from tests.conftest import tasks

MIB = 1 << 20

BEGIN = """
import ctypes, os, queue, sys, threading, time
import numpy as np
import dwsr_probe
task = dwsr_probe.task
N = 64 << 20
"""


def attributions(cli, code, *options):
    """Name → [(attribution, reason) of each task]."""
    done, records = cli.job(BEGIN + code, *options)
    assert done.returncode == 0, done.stderr
    found: dict[str, list] = {}
    for record in tasks(records):
        found.setdefault(record["task_name"], []).append(
            (record["attribution"], record["attribution_reason"])
        )
    return found


EXACT = ("exact", None)


POLARS = """
import polars as pl
def work():
    frame = pl.select(pl.int_range(0, 4_000_000).alias("x")).with_columns(y=pl.col("x") * 2)
    return frame.sort("y", descending=True)
"""
DUCKDB = """
import duckdb
connection = duckdb.connect()
def work():
    return connection.sql(
        "select sum(j) from"
        " (select i * 2 as j from range(4000000) t(i) order by j desc limit 2000000)"
    ).fetchall()
"""


@pytest.mark.parametrize("library", ["polars", "duckdb"])
def test_an_allocator_inside_a_library(cli, library):
    """Cold and warm: the second call needs no new address space."""
    found = attributions(
        cli,
        (POLARS if library == "polars" else DUCKDB)
        + """
for i in range(3):
    with task("library"): work()
    with task("numpy"): x = np.ones(N, "u1")
    with task("nothing"): pass
with task("outer"):
    with task("library"): work()
""",
    )
    assert len(found["library"]) == 4 and len(found["numpy"]) == 3
    for attribution, reason in [*found["library"], *found["outer"]]:
        assert attribution == "shared" and reason.startswith("foreign-allocator")
        assert library in reason
    assert {*found["numpy"], *found["nothing"]} == {EXACT}


def test_beside_a_task_of_another_thread(cli):
    """Only the task whose thread calls the library is marked, if the library is warm."""
    found = attributions(
        cli,
        POLARS
        + """
with task("cold"): work()
begun, ready = threading.Event(), threading.Event()
def other():
    with task("numpy"):
        begun.set()
        x = np.ones(N, "u1")
        ready.wait()
thread = threading.Thread(target=other)
thread.start()
begun.wait()
with task("warm"): work()
ready.set()
thread.join()
""",
    )
    assert found["cold"][0][0] == found["warm"][0][0] == "shared"
    # the library's own threads may have mapped more: then it is not known for whom
    assert found["numpy"][0] in (EXACT, ("shared", "native-threads"))


def test_loaded_before_the_probe(cli):
    done, _ = cli.job(
        POLARS.replace("import polars", "import numpy as np, polars")
        + """
work()
import dwsr_probe
dwsr_probe.stop()
dwsr_probe.start()
with dwsr_probe.task("library"): work()
with dwsr_probe.task("numpy"): x = np.ones(64 << 20, "u1")
print([(r.task_name, r.attribution) for r in dwsr_probe.records()])
"""
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[('library', 'shared'), ('numpy', 'exact')]"


RAW = """
syscall = ctypes.CDLL(None).syscall
syscall.restype = ctypes.c_long
syscall.argtypes = [ctypes.c_long] * 7
MMAP, MUNMAP = {"x86_64": (9, 11), "aarch64": (222, 215)}[os.uname().machine]
def mapped():
    at = syscall(MMAP, 0, N, 3, 0x22, -1, 0)
    assert at > 0
    ctypes.memset(at, 1, N)
    return at
"""


def test_memory_mapped_past_the_hooks(cli):
    """By a system call: found at the task's end, or by the sampler if it is gone by then."""
    found = attributions(
        cli,
        RAW
        + """
from dwsr_probe import _core
from dwsr_probe.board import Board
board = Board(_core.board_path())
def samples(): return board.live()["samples_written"]
with task("kept"): mapped()
with task("numpy"): x = np.ones(N, "u1")
with task("dropped"):
    at = mapped()
    end = samples() + 50
    while samples() < end: time.sleep(0)
    syscall(MUNMAP, at, N, 0, 0, 0, 0)
with task("after"): pass
""",
    )
    assert found["kept"] == [("shared", "foreign-allocator")]
    assert found["dropped"] == [("shared", "foreign-allocator")]
    assert found["numpy"] == found["after"] == [EXACT]


def test_growth_alone_proves_nothing(cli, tmp_path):
    """The process grows, and the task has allocated nothing, or what it has allocated is known."""
    (tmp_path / "file").write_bytes(bytes(64 << 20))
    found = attributions(
        cli,
        f"file = {str(tmp_path / 'file')!r}"
        + """
older = np.empty(N, "u1")
with task("fills an older array"): older[:] = 1
with task("reads a file"): total = np.memmap(file, mode="r").sum()
with task("changes a copy of a file"): x = np.memmap(file, mode="c"); x[:] = 1
def nothing(): pass
with task("stacks"):
    threads = [threading.Thread(target=nothing) for i in range(16)]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
with task("imports"): import decimal, sqlite3, lzma, xml.etree.ElementTree
def holes():
    blocks = [bytes(100_000) for i in range(600)]
    del blocks[::2]
    return [bytes(120_000) for i in range(300)]
with task("holes in the heap"): holes()
def in_a_thread():
    with task("holes in another heap"): holes()
thread = threading.Thread(target=in_a_thread); thread.start(); thread.join()
def deep(n): return deep(n - 1) if n else 0
sys.setrecursionlimit(50_000)
with task("a deep stack"): deep(10_000)
""",
    )
    assert len(found) == 8 and {one for many in found.values() for one in many} == {EXACT}, found


QUEUE = """
asked, answers = queue.Queue(), queue.Queue()
def answer():
    while (n := asked.get()): answers.put(np.ones(n, "u1"))
thread = threading.Thread(target=answer, name="my_queue", daemon=True)
thread.start()
def ask(n):
    asked.put(n)
    return answers.get()
"""


def test_a_thread_of_no_task(cli):
    found = attributions(
        cli,
        QUEUE
        + """
with task("much"): x = ask(N)
with task("alone"): y = np.ones(N, "u1")
with task("half a MiB"): ask(1 << 19)
with task("2 MiB"): ask(2 << 20)
with task("2 MiB beside 64"): z = np.ones(N, "u1"); ask(2 << 20)
with task("older memory"): x[:] = 2
asked.put(0)
""",
    )
    marked = ("shared", "unowned-thread my_queue")
    assert found == {
        "much": [marked],
        "alone": [EXACT],
        "half a MiB": [EXACT],
        "2 MiB": [marked],
        "2 MiB beside 64": [EXACT],
        "older memory": [EXACT],
    }


def test_uvloop_is_not_followed(cli):
    pytest.importorskip("uvloop")
    found = attributions(
        cli,
        """
import asyncio, uvloop
loop = uvloop.new_event_loop()
thread = threading.Thread(target=loop.run_forever, name="my_loop", daemon=True)
thread.start()
async def load(): return np.ones(N, "u1")
with task("asks the loop"): x = asyncio.run_coroutine_threadsafe(load(), loop).result()
loop.call_soon_threadsafe(loop.stop)
thread.join()
""",
    )
    assert found["asks the loop"] == [("shared", "unowned-thread my_loop")]


def test_dasks_own_threads_are_no_reason(cli):
    """What a worker's event loop receives is no task's, and marks none."""
    found = attributions(
        cli,
        """
from distributed import Client, LocalCluster
def make(n): return np.ones(n, "u1")
def use(x, y): return int(x[0]) + int(y[0])
if __name__ == "__main__":
    with LocalCluster(n_workers=2, threads_per_worker=2, dashboard_address=None) as cluster:
        with Client(cluster) as client:
            first, second = list(client.scheduler_info()["workers"])
            x = client.submit(make, 32 << 20, workers=[first], key="make-1", pure=False)
            y = client.submit(make, 32 << 20, workers=[second], key="make-2", pure=False)
            assert client.submit(use, x, y, workers=[first], key="use-1").result() == 2
            assert client.submit(use, x, y, workers=[second], key="use-2").result() == 2
""",
    )
    assert found["make"] == [EXACT] * 2 and found["use"] == [EXACT] * 2


MAPS = """
#define _GNU_SOURCE
#include <sys/mman.h>
void *map(size_t n)
{
    const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    void *p = mmap(0, n, PROT_READ | PROT_WRITE, flags, -1, 0);
    return *(volatile char *)p = 1, p;
}
"""
WORKS = """
#include <string.h>
char to[64], from[64];
volatile size_t length = 16;
int work(void) { return memcpy(to, from, length), to[0]; }
"""


@pytest.fixture(scope="module")
def libraries(tmp_path_factory):
    """Code that opens two small libraries: one maps as jemalloc does, one maps nothing."""
    folder = tmp_path_factory.mktemp("libraries")
    (folder / "mapper.c").write_text(MAPS + WORKS)
    (folder / "idle.c").write_text(WORKS)
    for name in "mapper", "idle":
        subprocess.run(
            ["cc", "-O1", "-shared", "-fPIC", f"{name}.c", "-o", f"{name}.so"],
            cwd=folder,
            check=True,
        )
    return f"""
import _ctypes
def open_library(name):
    library = ctypes.CDLL({str(folder)!r} + "/" + name + ".so")
    if name == "mapper":
        library.map.argtypes, library.map.restype = [ctypes.c_size_t], ctypes.c_void_p
    library.work()
    return library
"""


FORKS = {
    "os.fork": """
child = os.fork()
if child == 0:
    in_child()
    dwsr_probe.stop()
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
""",
    "multiprocessing": """
import multiprocessing
child = multiprocessing.get_context("fork").Process(target=in_child)
child.start()
child.join()
assert child.exitcode == 0
""",
}


@pytest.mark.parametrize("fork", FORKS)
def test_a_forked_child_that_loads_nothing(cli, libraries, fork):
    """The libraries were loaded by the parent, before the fork."""
    found = attributions(
        cli,
        POLARS
        + RAW
        + libraries
        + """
mapper = open_library("mapper")
map_it, use_it = mapper.map, mapper.work
def in_child():
    with task("nothing"): pass
    for i in range(2):
        with task("polars"): work()
        with task("numpy"): x = np.ones(N, "u1")
    with task("mapper maps"): map_it(N)
    with task("mapper works"): use_it()
    with task("past the hooks"): mapped()
    with task("numpy"): x = np.ones(N, "u1")
"""
        + FORKS[fork],
    )
    assert [reason for _, reason in found["polars"]] == ["foreign-allocator polars"] * 2
    assert found["mapper maps"] == [("shared", "foreign-allocator mapper")]
    assert found["mapper works"] == [("shared", "foreign-allocator mapper")]
    assert found["past the hooks"] == [("shared", "foreign-allocator")]
    assert found["numpy"] == [EXACT] * 3 and found["nothing"] == [EXACT]


def test_libraries_that_are_unloaded(cli, libraries):
    """Another library takes the address, or the same one comes back."""
    found = attributions(
        cli,
        libraries
        + """
for i in range(3):
    mapper = open_library("mapper")
    map_it, use_it = mapper.map, mapper.work
    with task("maps"): map_it(N)
    with task("works"): use_it()
    _ctypes.dlclose(mapper._handle)
    idle = open_library("idle")
    use_it = idle.work
    with task("idle"): use_it()
    _ctypes.dlclose(idle._handle)
""",
    )
    assert found["maps"] == found["works"] == [("shared", "foreign-allocator mapper")] * 3
    assert found["idle"] == [EXACT] * 3


def test_a_library_that_jumps_to_mmap(cli, tmp_path):
    """Its caller is not known: the task is marked without a name."""
    (tmp_path / "jumps.c").write_text("""
#define _GNU_SOURCE
#include <sys/mman.h>
void *map(size_t n)
{
    return mmap(0, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
}
""")
    subprocess.run(
        ["cc", "-O2", "-shared", "-fPIC", "jumps.c", "-o", "jumps.so"], cwd=tmp_path, check=True
    )
    found = attributions(
        cli,
        f"""
map_it = ctypes.CDLL({str(tmp_path / "jumps.so")!r}).map
map_it.argtypes, map_it.restype = [ctypes.c_size_t], ctypes.c_void_p
with task("nothing"): pass
with task("maps"): map_it(N)
with task("numpy"): x = np.ones(N, "u1")
""",
    )
    assert found["maps"] == [("shared", "foreign-allocator")]
    assert found["numpy"] == found["nothing"] == [EXACT]
