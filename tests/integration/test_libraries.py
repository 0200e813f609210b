"""Libraries that people run inside tasks, and whose figures are right: `exact`, and own peaks
against arithmetic.

Also what is easily mistaken for memory of an allocator that is not followed: the process grows,
or its address space does, by more than the task's own peak. Such tasks are `exact`, too.
"""

import importlib.util
import json
from typing import NamedTuple

import pytest

from tests.conftest import Cli, require, tasks

MIB = 1 << 20
SLACK = 256 << 10  # small objects: an arena is avoided, tables and strings of a library are not


class Case(NamedTuple):
    """One task of a library. `setup` runs before it, outside; `work` is an expression, evaluated
    twice: the first time with all that a library does only once, so that only the second has an
    upper bound. Own peak is from `least` to `most` MiB; `most` None: as much as `least`."""

    module: str
    setup: str
    work: str
    least: float
    most: float | None = None


# x: 64 MiB of float64. Each library in its usual way. The result is arithmetic. What a library
# needs beside it is not: there `most` is memray's peak of the same line, and room for other
# releases.
CASES = {
    "numpy": Case("numpy", "", "x + 1", 64),
    "scipy.sparse": Case(
        # of 4 Mi rows: 32 MiB of data, 16 of columns, 16 of rows
        "scipy",
        "import scipy.sparse; eye = scipy.sparse.eye(4 << 20, format='csr')",
        "eye * 2.0",
        64,
    ),
    "pandas": Case(
        "pandas", "import pandas; frame = pandas.DataFrame(x.reshape(-1, 8))", "frame + 1.0", 64
    ),
    "scikit-learn": Case(
        "sklearn",
        "from sklearn.preprocessing import MinMaxScaler; rows = x.reshape(-1, 8)",
        "MinMaxScaler().fit_transform(rows)",
        64,
    ),
    "joblib": Case(
        "joblib",
        "from joblib import Parallel, delayed",
        "Parallel(2, backend='threading')(delayed(np.ones)(x.size // 4) for _ in range(4))",
        64,
    ),
    "h5py": Case(
        "h5py",
        """
import h5py
with h5py.File("x.h5", "w") as file:
    file["plain"] = x
    file.create_dataset("packed", data=x, chunks=(1 << 17,), compression="lzf")
file = h5py.File("x.h5")
""",
        "file['plain'][:]",
        64,
    ),
    # chunks of 1 MiB; memray: 73.3
    "h5py, compressed": Case("h5py", "", "file['packed'][:]", 64, 80),
    "netCDF4": Case(
        "netCDF4",
        """
import netCDF4
with netCDF4.Dataset("x.nc", "w") as data:
    data.createDimension("n", x.size)
    data.createVariable("x", "f8", ("n",))[:] = x
data = netCDF4.Dataset("x.nc")
data.set_auto_mask(False)
""",
        "data['x'][:]",
        64,
        128,  # two arrays of the size; memray: 128.0
    ),
    "PyTables": Case(
        "tables",
        """
import tables
with tables.open_file("x.tables.h5", "w") as store:
    store.create_carray("/", "x", obj=x, filters=tables.Filters(1, "blosc"))
store = tables.open_file("x.tables.h5")
""",
        "store.root.x[:]",
        64,
        88,  # 16 MiB of chunks that HDF5 keeps; memray: 83.3
    ),
    "numexpr": Case("numexpr", "import numexpr", "numexpr.evaluate('2 * x + 1')", 64),
    # memray: 72.0
    "blosc2": Case("blosc2", "import blosc2; packed = blosc2.asarray(x)", "packed[:]", 64, 72),
    "tifffile": Case(
        "tifffile",
        "import tifffile; tifffile.imwrite('x.tif', x.reshape(64, 128, -1))",
        "tifffile.imread('x.tif')",
        64,
    ),
    "pyFFTW": Case(
        # 8,192 spectra of 513 complex numbers: the result
        "pyfftw",
        "import pyfftw; plan = pyfftw.builders.rfft(x.reshape(-1, 1024), threads=2)",
        "plan(output_array=pyfftw.empty_aligned(plan.output_shape, complex))",
        64.125,
    ),
    "LightGBM": Case(
        # 8 MiB of bins, a byte for each value; memray: 36.8
        "lightgbm",
        "import lightgbm; table = np.random.default_rng(1).random((1 << 20, 8), np.float32)",
        "lightgbm.Dataset(table, params={'verbose': -1, 'num_threads': 2}).construct()",
        8,
        48,
    ),
}
# Larger than all of the above together. Tested where they are installed.
LARGE = {
    "Numba": Case(
        "numba",
        """
import numba
ones = numba.njit(lambda n: np.ones(n))
twice = numba.njit(lambda x: 2 * x, parallel=True)
""",
        "ones(x.size)",
        64,
    ),
    "Numba, parallel": Case("numba", "", "twice(x)", 64),
    "OpenCV": Case("cv2", "import cv2; image = x.reshape(2048, -1)", "cv2.add(image, image)", 64),
    "OpenCV, threads": Case("cv2", "", "cv2.GaussianBlur(image, (9, 9), 2)", 64, 66),
    "scikit-image": Case(
        "skimage",
        "import skimage.filters",
        "skimage.filters.gaussian(x.reshape(2048, -1), 1)",
        64,
        66,
    ),
}


def installed(module):
    """Without importing it here."""
    return importlib.util.find_spec(module) is not None


CASES |= {name: case for name, case in LARGE.items() if installed(case.module)}

# A library that fails says so and leaves no second record; the others go on.
JOB = """
import gc, json, sys, traceback
import numpy as np
from dwsr_probe import task

x = np.ones(8 << 20)
names = {"np": np, "x": x}
room = [bytes(400) for i in range(20_000)][::400]  # or a task's small objects need a new arena
for name, (module, setup, work, *_) in json.load(open("cases.json")).items():
    try:
        exec(setup, names)
        for part in "first", "second":
            gc.collect()
            with task(f"{name}: {part}"):
                result = eval(work, names)
            del result
    except Exception:
        print(f"{name}:", file=sys.stderr)
        traceback.print_exc()
"""


@pytest.fixture(scope="module")
def libraries(tmp_path_factory):
    """Records of one job that runs all libraries that are installed, by name of the task; and what
    the job said."""
    folder = tmp_path_factory.mktemp("libraries")
    cli = Cli(folder)
    cli.env["DWSR_PROBE_BOARD_DIR"] = str(folder / "boards")
    found = {name: case for name, case in CASES.items() if installed(case.module)}
    (folder / "cases.json").write_text(json.dumps(found))
    done, records = cli.job(JOB)
    assert done.returncode == 0, done.stderr
    return {record["task_name"]: record for record in tasks(records)}, done.stderr


@pytest.mark.parametrize("name", CASES)
def test_right(libraries, name):
    case = CASES[name]
    require(installed(case.module), f"{case.module}: pip install 'dwsr-probe[test]'")
    records, said = libraries
    for part in "first", "second":
        record = records.get(f"{name}: {part}")
        assert record, said
        assert_exact(record)
        peak = record["alloc_peak_bytes"]
        print(f"{record['task_name']:28} {peak / MIB:8.2f} MiB, {case.least} to {case.most}")
        assert peak >= case.least * MIB
    # the second: without what a library does once
    assert peak <= (case.most or case.least) * MIB + SLACK


def assert_exact(record):
    assert record["attribution"] == "exact", (record["task_name"], record["attribution_reason"])
    assert record["attribution_reason"] is None
    assert record["alloc_peak_bytes"] is not None


# -- the process grows, and rightly not the task


def figures(cli, code, count):
    """Records of a job's tasks by name; all are exact."""
    done, records = cli.job(code)
    assert done.returncode == 0, done.stderr
    found = {record["task_name"]: record for record in tasks(records)}
    assert len(found) == count
    for name, record in found.items():
        print(f"{name:28} {record['alloc_peak_bytes']:13,}, process {growth(record):13,}")
        assert_exact(record)
    return found


def growth(record):
    return record["rss_peak_bytes"] - record["rss_before_bytes"]


START = """
import gc, mmap, os, sys, threading
from concurrent.futures import ThreadPoolExecutor
import numpy as np
from dwsr_probe import task

SIZE = 8 << 20  # float64: 64 MiB
room = [bytes(400) for i in range(20_000)][::400]
np.ones(1000).sum()
"""


def test_an_older_executor(cli):
    found = figures(
        cli,
        START
        + """
pool = ThreadPoolExecutor(2)
list(pool.map(np.ones, [10] * 8))
for n in range(3):
    with task(f"executor {n}"): result = pool.submit(np.ones, SIZE).result()
    del result
""",
        3,
    )
    for record in found.values():
        assert abs(record["alloc_peak_bytes"] - 64 * MIB) <= SLACK


def test_pandas_that_is_imported_inside_a_task(cli):
    """pandas imports pyarrow, whose memory pools are hooked inside the task."""
    for module in "pandas", "pyarrow":
        require(installed(module), f"{module}: pip install 'dwsr-probe[test]'")
    found = figures(
        cli,
        START
        + """
x = np.ones((SIZE // 8, 8))
with task("imports"):
    import pandas
    result = pandas.DataFrame(x) + 1.0
assert "pyarrow" in sys.modules
del result
with task("uses"): result = pandas.DataFrame(x) + 1.0
with task("arrow"): buffer = sys.modules["pyarrow"].allocate_buffer(64 << 20)
""",
        3,
    )
    # the import itself: modules, and their classes and functions
    assert 64 * MIB <= found["imports"]["alloc_peak_bytes"] <= 192 * MIB
    for name in "uses", "arrow":
        assert abs(found[name]["alloc_peak_bytes"] - 64 * MIB) <= SLACK, name


def test_a_mapped_file_that_is_read(cli):
    """The pages of a file become resident. A file that is mapped for writing, but privately, is
    also new private address space that nobody allocated."""
    found = figures(
        cli,
        START
        + """
np.save("x.npy", np.ones(SIZE))
for mode in "r", "c", "r+":
    with task(f"np.load {mode}"):
        x = np.load("x.npy", mmap_mode=mode)
        assert x.max() == 1
    del x
old = np.load("x.npy", mmap_mode="r")
with task("mapped before"): old.max()
with open("x.npy", "rb") as file, task("mmap"):
    with mmap.mmap(file.fileno(), 0, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE) as data:
        assert data.find(b"not there") == -1
""",
        5,
    )
    for record in found.values():
        assert record["alloc_peak_bytes"] <= SLACK, record["task_name"]
        assert growth(record) >= 60 * MIB, record["task_name"]


def test_an_older_array_that_is_filled(cli):
    """The kernel gives a page at the first write: the process grows in a task that only writes."""
    found = figures(
        cli,
        START
        + """
makers = {
    "empty": lambda: np.empty(SIZE),
    "zeros": lambda: np.zeros(SIZE),
    "mmap": lambda: np.frombuffer(mmap.mmap(-1, 8 * SIZE, mmap.MAP_PRIVATE), np.float64),
}
for name, make in makers.items():
    x = make()
    with task(name): x.fill(1)
    del x
heap = [np.empty(12_000) for i in range(700)]  # 64 MiB of the heap
with task("heap"):
    for block in heap: block.fill(1)
with task("again"):
    for block in heap: block.fill(2)
""",
        5,
    )
    for name, record in found.items():
        assert record["alloc_peak_bytes"] <= SLACK, name
        assert name == "again" or growth(record) >= 56 * MIB, name


# -- glibc's own ways: heaps with holes, arenas, stacks


# As Dask's nanny sets it for its workers: nothing stays in malloc, and large blocks are mappings.
NANNY = {"MALLOC_TRIM_THRESHOLD_": "65536"}
# Two arenas and their holes for all threads; everything below 32 MiB in the heap.
NARROW = {"MALLOC_ARENA_MAX": "2", "MALLOC_MMAP_THRESHOLD_": str(32 * MIB)}
SETTINGS = pytest.mark.parametrize(
    "settings", [{}, NANNY, NARROW], ids=["default", "nanny", "narrow"]
)

# What is live at most is known by arithmetic: `most` has it, by name of the task.
HOLES = (
    START
    + """
def holes(seed, blocks=300):
    \"\"\"Blocks of 64 to 200 KB; every second one goes; larger ones, which do not fit in the holes.
    Returns what is kept and the bytes that were live at most.\"\"\"
    random = np.random.default_rng(seed)
    kept = [np.ones(n, np.uint8) for n in random.integers(64_000, 200_000, blocks)]
    before = sum(block.nbytes for block in kept)
    sizes = [block.nbytes + 20_000 for block in kept[::2]]
    del kept[::2]
    kept += [np.ones(n, np.uint8) for n in sizes]
    return kept, max(before, sum(block.nbytes for block in kept))

most = {}
def measure(name, function):
    with task(name):
        kept, most[name] = function()

def in_threads(count, function):
    \"\"\"At the same time, so that each has an arena; they are there until all are done.\"\"\"
    found, both = [None] * count, threading.Barrier(count)
    def run(n):
        both.wait()
        found[n] = function(n)
        both.wait()
    threads = [threading.Thread(target=run, args=(n,)) for n in range(count)]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
    return [kept for kept, _ in found], sum(most for _, most in found)
"""
)
TELL = """
import json
json.dump(most, open("most.json", "w"))
"""


def figures_of_holes(cli, code, count, share=0.02):
    """Live bytes at most: not more than the sum of what each thread had at most, and at least half
    of it, because threads need not have theirs at the same moment."""
    found = figures(cli, HOLES + code + TELL, count)
    most = json.loads((cli.cwd / "most.json").read_text())
    for name, record in found.items():
        if name in most:
            peak, least = record["alloc_peak_bytes"], most[name] / (2 if "threads" in name else 1)
            assert least * (1 - share) - SLACK <= peak <= most[name] * (1 + share) + SLACK, name
    return found


@SETTINGS
def test_heaps_with_holes(cli, settings):
    """The heap grows by far more than was live at once, in the first call; it has room, in the
    calls after it."""
    cli.env.update(settings)
    figures_of_holes(
        cli,
        """
for n in range(4): measure(f"holes {n}", lambda: holes(n))
old = [holes(n)[0] for n in range(3)]
with task("frees older blocks"): del old
measure("after", lambda: holes(9))
with task("grows"):
    x = np.ones(1000, np.uint8)
    for n in range(2000, 4_000_000, 10_007): x.resize(n, refcheck=False)

def threshold():
    \"\"\"Once glibc has freed a large mapping, blocks up to its size come from the heap.\"\"\"
    large = np.ones(30 << 20, np.uint8)
    del large
    kept = [np.ones(20 << 20, np.uint8) for _ in range(3)]
    del kept[0]
    return [*kept, np.ones(21 << 20, np.uint8)], 61 << 20
for n in range(2): measure(f"threshold {n}", threshold)
""",
        9,
    )


@SETTINGS
def test_arenas_of_several_threads(cli, settings):
    """A task's own threads, and tasks beside each other in threads of their own."""
    cli.env.update(settings)
    figures_of_holes(
        cli,
        """
for n in range(2):
    measure(f"threads of a task {n}", lambda: in_threads(4, lambda n: holes(n, 100)))

def beside(n):
    name = f"beside {n}"
    with task(name):
        kept, most[name] = holes(n, 100)
    return kept, most[name]
in_threads(4, beside)

pool = ThreadPoolExecutor(4)
with task("pool"): kept = list(pool.map(lambda n: holes(n, 50)[0], range(8)))
""",
        7,
    )


def test_stacks_of_new_threads(cli):
    """A stack of 8 MiB for each thread is address space that nobody allocated; little of it is
    used."""
    found = figures(
        cli,
        START
        + """
threading.stack_size(8 << 20)
def threads(count):
    there, end = threading.Barrier(count + 1), threading.Event()
    def wait(): there.wait(); end.wait()
    made = [threading.Thread(target=wait) for _ in range(count)]
    for thread in made: thread.start()
    there.wait(); end.set()
    for thread in made: thread.join()
for n in range(3):
    with task(f"stacks {n}"): threads(16)
with task("stacks and an array"):
    x = np.ones(SIZE)
    threads(16)
""",
        4,
    )
    for name, record in found.items():
        least = 64 * MIB if "array" in name else 0
        # objects of the threads, and what each has in its arena
        assert least <= record["alloc_peak_bytes"] <= least + 2 * MIB, name


def test_large_libraries_imported_inside_tasks(cli):
    """The loader maps a library's own variables: private and writable, allocated by nobody."""
    found = figures(
        cli,
        """
import sys
from dwsr_probe import task

for name in "numpy", "scipy.stats", "matplotlib.pyplot":
    with task(name): __import__(name)
assert "pyarrow" not in sys.modules  # which has an allocator of its own
""",
        3,
    )
    for name, record in found.items():
        assert record["alloc_peak_bytes"] >= MIB, name
