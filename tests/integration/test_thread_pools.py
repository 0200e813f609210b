"""Work that a task hands to a multiprocessing.pool.ThreadPool that is older than the task, also
through joblib. Pools of processes stay as they are."""

import json
import subprocess
import sys

import pytest

from tests.conftest import tasks
from tests.integration.test_alloc_world import own, run_late

MIB = 1 << 20

POOL = """
import threading
from multiprocessing.pool import ThreadPool
import numpy as np
from dwsr_probe import _core, task

MIB = 1 << 20
pool = ThreadPool(2)

def ones(mib, more=0): return np.ones((mib + more) * MIB, "u1")
def works_for(*unused): return _core.current_handle()

pool.map(ones, [1, 1])  # first use
"""


def job(cli, code):
    done, records = cli.job(code)
    assert done.returncode == 0, done.stderr
    assert "dwsr-probe: cannot" not in done.stderr
    return records


def test_every_way_into_an_older_pool(cli):
    records = job(
        cli,
        POOL
        + """
ways = {
    "apply": lambda: [pool.apply(ones, (8,), {"more": 4})],
    "apply by name": lambda: [pool.apply(func=ones, args=(8,), kwds={"more": 4})],
    "apply_async": lambda: [pool.apply_async(ones, (12,)).get()],
    "map": lambda: pool.map(ones, [8, 4]),
    "map in chunks": lambda: pool.map(ones, [4, 4, 4], 2),
    "map_async": lambda: pool.map_async(ones, iter([8, 4])).get(),
    "starmap": lambda: pool.starmap(ones, [(4, 4), (4,)]),
    "starmap_async": lambda: pool.starmap_async(ones, [(4, 4), (4,)]).get(),
    "imap": lambda: list(pool.imap(ones, [8, 4])),
    "imap in chunks": lambda: list(pool.imap(ones, [4, 4, 4], chunksize=2)),
    "imap_unordered": lambda: list(pool.imap_unordered(ones, [8, 4])),
    "imap_unordered in chunks": lambda: list(pool.imap_unordered(ones, [4, 4, 4], 2)),
    # the pool's own thread takes the items, and with them what the generator makes
    "items": lambda: list(pool.imap(np.asarray, (ones(4) for i in range(3)))),
}
for name, way in ways.items():
    with task(name): made = way()
    assert sum(len(array) for array in made) == 12 * MIB, name
    del made
    assert set(pool.map(works_for, range(8))) == {0}  # nothing stays with the pool's threads
pool.close(); pool.join()
""",
    )
    assert len(tasks(records)) == 13
    for record in tasks(records):
        own(records, record["task_name"], 12 * MIB, 12 * MIB, slack=128 << 10)


def test_two_tasks_share_a_pool(cli):
    records = job(
        cli,
        POOL
        + """
held = threading.Barrier(2)

def hold(mib):
    kept = ones(mib)
    held.wait()  # until both have allocated
    return len(kept)

def work(mib):
    with task(f"{mib} MiB"): assert pool.apply(hold, (mib,)) == mib * MIB

for i in range(3):
    threads = [threading.Thread(target=work, args=(mib,)) for mib in (10, 100)]
    for thread in threads: thread.start()
    for thread in threads: thread.join()

# what outlives its task is nobody's
go = threading.Event()
def later(unused): go.wait(); return ones(64)
with task("ended"): late = pool.map_async(later, [1])
with task("other"): go.set(); late.get()
""",
    )
    for mib in (10, 100):
        assert len(tasks(records, f"{mib} MiB")) == 3
        own(records, f"{mib} MiB", mib * MIB, 0)
    own(records, "ended", 0)
    own(records, "other", 0, attributions=("shared",))  # beside 64 MiB of no task


def test_callbacks_and_failures(cli):
    job(
        cli,
        POOL
        + """
import traceback
def fails(x): raise KeyError(x)
def broken():
    yield 1
    raise OSError("generator")

with task("t"):
    mine = works_for()
    seen, done = [], threading.Event()
    def take(value): seen.extend([value, works_for()]); done.set()
    pool.apply_async(works_for, callback=take)
    done.wait()
    assert seen == [mine, mine], seen
    failed = threading.Event()
    def note(error): seen.append((error.args, works_for())); failed.set()
    pool.map_async(fails, [7], error_callback=note)
    failed.wait()
    assert seen[2] == ((7,), mine)
    for call in (
        lambda: pool.apply(fails, (1,)),
        lambda: pool.map(fails, [1]),
        lambda: list(pool.imap(fails, [1])),
    ):
        try: call()
        except KeyError as error:
            assert error.args == (1,)
            assert traceback.extract_tb(error.__traceback__)[-1].name == "fails"
        else: raise AssertionError
    made = pool.imap(works_for, broken())
    assert next(made) == mine
    try: next(made)
    except OSError as error: assert str(error) == "generator"
    else: raise AssertionError
    try: pool.apply(7)
    except TypeError as error: assert "not callable" in str(error)
    else: raise AssertionError
    try: pool.apply()
    except TypeError: pass
    else: raise AssertionError
assert set(pool.map(works_for, range(8))) == {0}
""",
    )


def test_pools_that_are_older_than_the_probe_and_names_restored(cli):
    records = run_late(
        cli,
        POOL
        + """
import multiprocessing.dummy
from multiprocessing.pool import ApplyResult, Pool
names = "apply_async", "_guarded_task_generation"
before = [Pool.__dict__[name] for name in names] + [ApplyResult.__init__]
older = multiprocessing.dummy.Pool(1)  # the older name of the same class
start()
with task("older"): older.map(ones, [8]); pool.apply(ones, (8,))
show()
dwsr_probe.stop()
assert [Pool.__dict__[name] for name in names] + [ApplyResult.__init__] == before
""",
    )
    own(records, "older", 8 * MIB)


# What is sent to the processes is noted: it must be the same with and without the probe.
PROCESSES = """
import json, multiprocessing, multiprocessing.reduction
from dwsr_probe import task

def double(x): return 2 * x

if __name__ == "__main__":
    sent, dumps = [], multiprocessing.reduction.ForkingPickler.dumps.__func__
    @classmethod
    def noting(cls, obj, protocol=None):
        data = dumps(cls, obj, protocol)
        if isinstance(obj, tuple): sent.append(len(bytes(data)))
        return data
    multiprocessing.reduction.ForkingPickler.dumps = noting
    with multiprocessing.get_context("fork").Pool(1) as pool, task("t"):
        called = []
        assert pool.map(double, range(4)) == [0, 2, 4, 6]
        assert pool.apply(double, (4,)) == 8
        assert list(pool.imap(double, range(3))) == [0, 2, 4]
        pool.apply_async(double, (1,), callback=called.append).wait()
        assert called == [2]
    json.dump(sent, open("sent", "w"))
"""


def test_nothing_more_is_pickled_for_processes(cli):
    job(cli, PROCESSES)
    with_probe = json.loads((cli.cwd / "sent").read_text())
    subprocess.run([sys.executable, "job.py"], cwd=cli.cwd, env=cli.env, check=True, timeout=600)
    assert with_probe and with_probe == json.loads((cli.cwd / "sent").read_text())


def test_joblib_with_a_pool_that_is_older_than_the_task(cli):
    pytest.importorskip("joblib")
    records = job(
        cli,
        POOL
        + """
from joblib import Parallel, delayed
with Parallel(n_jobs=2, backend="threading", batch_size=1) as parallel:
    parallel(delayed(ones)(1) for i in range(2))  # its pool is made here
    for i in range(2):
        # more calls than joblib submits at once: its callbacks submit the others
        with task("joblib"): made = parallel(delayed(ones)(2) for i in range(24))
        with task("one by one"): parallel(delayed(len)(ones(2)) for i in range(24))
        del made
        assert not any(parallel(delayed(works_for)() for i in range(24)))
""",
    )
    own(records, "joblib", 48 * MIB, 48 * MIB, slack=MIB)
    for record in tasks(records, "one by one"):
        assert 2 * MIB <= record["alloc_peak_bytes"] <= 24 * MIB
        assert record["attribution"] == "exact"
