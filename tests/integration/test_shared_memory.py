"""Shared memory belongs to the task that creates it, until it has no name and no mapping in this
process: figures against arithmetic, with the standard library's and NumPy's own ways to make it."""

import os
import subprocess
import sys
import tempfile

import pytest

from tests.conftest import permitted, tasks

MIB = 1 << 20
SLACK = 128 << 10  # small Python objects, and NumPy's buffer of 64 KiB

PRELUDE = """
import mmap, os, sys, threading
import numpy as np
from multiprocessing import shared_memory
from dwsr_probe import task

SIZE = 64 << 20
def create(): return shared_memory.SharedMemory(create=True, size=SIZE)
def fill(memory): np.frombuffer(memory, np.uint8)[:] = 7
# first use: a process that tracks segments, an arena for small objects
first = create(); fill(first.buf); first.close(); first.unlink()
room = [bytes(400) for i in range(20_000)][::400]
"""


@pytest.fixture(autouse=True)
def _memory():
    permitted(os.access("/dev/shm", os.W_OK), "write to /dev/shm")


def job(cli, code):
    done, records = cli.job(PRELUDE + code)
    assert done.returncode == 0, done.stderr
    return records


def own(records, name, peak, end):
    found = tasks(records, name)
    assert found, f"no task {name}"
    for record in found:
        assert 0 <= record["alloc_peak_bytes"] - peak < SLACK, f"{name}: {record}"
        assert 0 <= record["alloc_end_bytes"] - end < SLACK, f"{name}: {record}"
        assert record["attribution"] == "exact"


def test_who_creates_and_who_attaches(cli):
    records = job(
        cli,
        """
with task("creates"):
    memory = create()
    fill(memory.buf)
with task("attaches"):
    other = shared_memory.SharedMemory(memory.name)
    assert other.buf[SIZE - 1] == 7
    other.close()
def attach():
    with task("in another thread"):
        again = shared_memory.SharedMemory(memory.name)
        fill(again.buf)
        again.close()
thread = threading.Thread(target=attach); thread.start(); thread.join()
memory.close(); memory.unlink()

outside = create()
with task("created outside"):
    other = shared_memory.SharedMemory(outside.name)
    fill(other.buf)
    other.close()
outside.close(); outside.unlink()
fd = os.memfd_create("x")
os.ftruncate(fd, SIZE)
with task("maps what was created outside"):
    memory = mmap.mmap(fd, SIZE)
    fill(memory)
memory.close()

with task("maps twice"):
    memory = create()
    other = shared_memory.SharedMemory(memory.name)
    fill(other.buf)
    memory.close(); memory.unlink()
other.close()
""",
    )
    own(records, "creates", 64 * MIB, 64 * MIB)
    own(records, "attaches", 0, 0)
    own(records, "in another thread", 0, 0)
    own(records, "created outside", 0, 0)
    own(records, "maps what was created outside", 0, 0)
    own(records, "maps twice", 64 * MIB, 64 * MIB)


def test_close_and_unlink_in_any_order(cli):
    records = job(
        cli,
        """
with task("outer"):
    with task("closed"):
        left = create(); left.close()
    with task("unlinked"):
        mapped = create(); mapped.unlink()
    with task("closed, unlinked"):
        memory = create(); fill(memory.buf); memory.close(); memory.unlink()
    with task("unlinked, closed"):
        memory = create(); fill(memory.buf); memory.unlink(); memory.close()
    with task("of another task"):
        left.unlink(); mapped.close()
""",
    )
    own(records, "closed", 64 * MIB, 64 * MIB)
    own(records, "unlinked", 64 * MIB, 64 * MIB)
    own(records, "closed, unlinked", 64 * MIB, 0)
    own(records, "unlinked, closed", 64 * MIB, 0)
    own(records, "of another task", 0, 0)
    own(records, "outer", 192 * MIB, 0)


def test_descriptors_and_files(cli):
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        cli.env["IN_MEMORY"] = folder
        records = job(
            cli,
            """
folder = os.environ["IN_MEMORY"]
with task("memfd"):
    fd = os.memfd_create("x")
    os.ftruncate(fd, SIZE)
    memory = mmap.mmap(fd, SIZE)
    os.close(fd)
    fill(memory)
    memory.close()
with task("resized"):
    fd = os.memfd_create("x")
    os.ftruncate(fd, SIZE)
    memory = mmap.mmap(fd, SIZE)
    memory.resize(2 * SIZE)
    memory.resize(SIZE // 2)
memory.close()
with task("memmap"):
    array = np.memmap(f"{folder}/x", np.uint8, "w+", shape=SIZE)
    array[:] = 1
    array.flush()
with task("memmap, read"):
    assert np.memmap(f"{folder}/x", np.uint8, "r").sum() == SIZE
    assert np.memmap(f"{folder}/x", np.uint8, "c").sum() == SIZE
with task("memmap, written again"):
    del array
    array = np.memmap(f"{folder}/x", np.uint8, "w+", shape=SIZE // 2)
    os.unlink(f"{folder}/x")
with task("parts"):
    with open(f"{folder}/parts", "w+b") as file:
        file.truncate(SIZE)
        for at in range(0, SIZE, SIZE // 4):
            with mmap.mmap(file.fileno(), SIZE // 4, offset=at) as part:
                part[0] = 1
    os.remove(f"{folder}/parts")
with task("without a name"):
    fd = os.open(folder, os.O_TMPFILE | os.O_RDWR)
    os.ftruncate(fd, SIZE)
    memory = mmap.mmap(fd, SIZE)
memory.close()
with task("written, not mapped"):
    with open(f"{folder}/written", "wb") as file:
        for i in range(64):
            file.write(bytes(1 << 10))
with task("anonymous"):
    memory = mmap.mmap(-1, SIZE)
    fill(memory)
    memory.close()
with task("on disk"):
    array = np.memmap("on-disk", np.uint8, "w+", shape=SIZE)
    array[:] = 1
    del array
    os.unlink("on-disk")
with task("removed with its folder"):
    import shutil, tempfile
    inside = tempfile.mkdtemp(dir=folder)
    array = np.memmap(f"{inside}/x", np.uint8, "w+", shape=SIZE)
    del array
    shutil.rmtree(inside)
""",
        )
    own(records, "memfd", 64 * MIB, 0)
    own(records, "resized", 128 * MIB, 32 * MIB)
    own(records, "memmap", 64 * MIB, 64 * MIB)
    own(records, "memmap, read", 0, 0)
    own(records, "memmap, written again", 32 * MIB, 32 * MIB)
    own(records, "parts", 64 * MIB, 0)
    own(records, "without a name", 64 * MIB, 64 * MIB)
    own(records, "written, not mapped", 0, 0)
    own(records, "anonymous", 64 * MIB, 0)
    if os.stat(cli.cwd).st_dev != os.stat("/dev/shm").st_dev:
        own(records, "on disk", 0, 0)
    (removed,) = tasks(records, "removed with its folder")  # imports in it
    assert removed["alloc_end_bytes"] < 2 * MIB < 64 * MIB <= removed["alloc_peak_bytes"]


def test_what_multiprocessing_makes_of_it(cli):
    records = job(
        cli,
        """
import multiprocessing
from multiprocessing.managers import SharedMemoryManager

with task("array"):
    array = multiprocessing.RawArray("b", SIZE)
del array
with task("list"):
    items = shared_memory.ShareableList([bytes(1 << 20)] * 32)
    assert len(items[31]) == 0  # trailing zeros are not kept
    items.shm.close(); items.shm.unlink()
with SharedMemoryManager() as manager:
    with task("managed"):
        memory = manager.SharedMemory(SIZE)
        fill(memory.buf)
    with task("attaches"):
        shared_memory.SharedMemory(memory.name).close()
    memory.close()
""",
    )
    own(records, "array", 64 * MIB, 64 * MIB)
    (items,) = tasks(records, "list")
    assert 32 * MIB <= items["alloc_peak_bytes"] < 40 * MIB
    assert items["alloc_end_bytes"] < 2 * MIB
    (managed,) = tasks(records, "managed")
    assert 64 * MIB <= managed["alloc_peak_bytes"] < 66 * MIB
    own(records, "attaches", 0, 0)


def test_forked_children_own_what_they_create(cli):
    records = job(
        cli,
        """
with task("parent"):
    memory = create()
    for i in range(2):
        if (pid := os.fork()) == 0:
            with task("child attaches"):
                other = shared_memory.SharedMemory(memory.name)
                fill(other.buf)
                other.close()
            with task("child unmaps"):
                memory.close()
            with task("child creates"):
                fd = os.memfd_create("x")
                os.ftruncate(fd, SIZE)
                other = mmap.mmap(fd, SIZE)
                fill(other)
            os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0
    memory.unlink()
    memory.close()
""",
    )
    assert len(tasks(records, "child attaches")) == len(tasks(records, "child creates")) == 2
    own(records, "child attaches", 0, 0)
    own(records, "child unmaps", 0, 0)
    own(records, "child creates", 64 * MIB, 64 * MIB)
    own(records, "parent", 64 * MIB, 0)


def test_three_hundred_segments(cli):
    records = job(
        cli,
        """
with task("all"):
    with task("creates"):
        every = [shared_memory.SharedMemory(create=True, size=1 << 20) for i in range(300)]
    with task("closes half"):
        for memory in every[::2]:
            memory.close(); memory.unlink()
    with task("closes the others"):
        for memory in every[1::2]:
            memory.unlink(); memory.close()
    with task("creates again"):
        for i in range(300):
            memory = shared_memory.SharedMemory(create=True, size=1 << 20)
            memory.close(); memory.unlink()
""",
    )
    for name, peak in ("creates", 300), ("all", 300), ("creates again", 1):
        (record,) = tasks(records, name)
        assert 0 <= record["alloc_peak_bytes"] - peak * MIB < 2 * MIB, record
    (record,) = tasks(records, "all")
    assert record["alloc_end_bytes"] < 2 * MIB
    assert record["attribution"] == "exact"


def test_answers_and_errors_are_the_kernels(cli):
    """Results, errors and modes of new files, as without the probe."""
    code = """
import os, stat, tempfile
from multiprocessing import shared_memory
import dwsr_probe

def tried(function, *words):
    try:
        return function(*words)
    except OSError as e:
        return type(e).__name__, e.errno

def answers(folder):
    path = f"{folder}/x"
    os.umask(0o027)
    os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o765))
    print(oct(os.stat(path).st_mode), tried(os.open, path, os.O_CREAT | os.O_EXCL))
    with open(path, "w") as file:
        print(file.write("text"), oct(os.stat(path).st_mode), open(path).read())
    print(tried(os.open, f"{folder}/none", os.O_RDONLY), tried(os.unlink, f"{folder}/none"))
    print(tried(os.unlink, folder), tried(os.rmdir, folder), tried(os.remove, path))
    print(tried(os.open, f"{folder}/none/x", os.O_CREAT), tried(os.ftruncate, 0, -1))
    print(tried(shared_memory.SharedMemory, "dwsr-none"), tried(os.memfd_create, "x" * 300))
    at = os.open(folder, os.O_RDONLY)
    os.close(os.open("y", os.O_CREAT | os.O_WRONLY, 0o600, dir_fd=at))
    print(oct(os.stat(f"{folder}/y").st_mode), os.unlink("y", dir_fd=at), os.listdir(folder))

for parent in "/dev/shm", ".":
    with tempfile.TemporaryDirectory(dir=parent) as folder, dwsr_probe.task("x"):
        answers(folder)
"""
    bare = cli.script(code)
    expected = subprocess.run(
        [sys.executable, bare], capture_output=True, text=True, check=True, cwd=cli.cwd, env=cli.env
    ).stdout
    done, _ = cli.job(code)
    assert (done.returncode, done.stdout) == (0, expected), done.stderr
    assert expected.count("FileExistsError") == 2
