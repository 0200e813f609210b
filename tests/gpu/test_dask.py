"""CuPy tasks on real Dask clusters with workers in processes: under `run`, by preload, by
plugin. The real CuPy on the stand-in: bytes, never values."""

import importlib.util
import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.conftest import tasks

if not importlib.util.find_spec("cupy"):
    pytest.skip("needs CuPy: make test-gpu", allow_module_level=True)
pytest.importorskip("distributed")
pytest.importorskip("pandas")

from tests import standin

ROOT = Path(__file__).resolve().parents[2]
KIB, MIB = 1 << 10, 1 << 20
BLOCK = 512 * KIB  # of the tasks below: 256 x 256 doubles
WAYS = ("run", "preload", "plugin")

PROGRAM = """
import json, os, sys, threading, time
import dask, dask.array as da, numpy as np
from distributed import Client, LocalCluster, Nanny, Scheduler, SpecCluster, wait

MIB = 1 << 20

def wait_until(condition, what="it"):
    deadline = time.monotonic() + 600
    while not (result := condition()):
        assert time.monotonic() < deadline, f"waited in vain for {what}"
        time.sleep(0.005)
    return result

def say(*values):
    print(json.dumps(values), flush=True)

def make(block_info=None):
    import cupy

    return cupy.empty((256, 256))

def work(x):
    y = x + 1  # one block
    z = y * 2  # two
    del y
    return z + x  # two; one is left

def blocks(count):
    import cupy

    return da.map_blocks(
        make, chunks=((256,) * count, (256,)), dtype=float, meta=cupy.empty((0, 0))
    )

def memory():
    "Of a worker: what its board says, what its pool says, what is true."
    import cupy, dwsr_probe, standin

    pool = cupy.get_default_memory_pool()
    devices = dwsr_probe.snapshot().devices
    return {
        "devices": devices,
        "used": pool.used_bytes(),
        "total": pool.total_bytes(),
        "pid": os.getpid(),
        "truth": [standin.board().live_bytes(i, os.getpid()) for i in range(2)],
    }
"""


@pytest.fixture
def gpu(cli, tmp_path):
    """The command line on a machine with two GPUs of 64 MiB.

    Without distributed's profiler: it holds on to the frames that it looks at, and with them to
    arrays that a task has let go of."""
    (tmp_path / "gpu").mkdir()
    env = standin.environment(
        folder=tmp_path / "gpu", devices=2, capacity_bytes=64 * MIB, base=cli.env
    )
    cli.env = dict(
        env,
        PYTHONPATH=os.pathsep.join([env["PYTHONPATH"], str(ROOT)]),
        DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES="0",
        DASK_DISTRIBUTED__WORKER__PROFILE__ENABLED="False",
    )
    return cli


def cluster(gpu, way, body, workers=1, threads=2, opens=None):
    """A job with a cluster of its own; what it printed as JSON, and the records. Nothing has
    been said on the way that is ours."""
    opens = (
        opens
        or f"LocalCluster(n_workers={workers}, threads_per_worker={threads}, "
        "dashboard_address=None, memory_limit=0)"
    )
    code = (
        PROGRAM
        + f"""
def main(client):
{textwrap.indent(textwrap.dedent(body), "    ")}

if __name__ == "__main__":
    with {opens} as cluster, Client(cluster) as client:
        if {way == "plugin"}:
            # on a cluster that is at work already
            client.run(lambda: __import__("cupy") and None)
            import dwsr_probe.dask
            client.register_plugin(dwsr_probe.dask.Probe())
        main(client)
        if {way != "run"}:
            import dwsr_probe.dask
            frame = dwsr_probe.dask.records(client)
            assert len(frame.unmeasured) == 0 and frame.lost == 0
            with open("records.json", "w") as file: file.write(frame.to_json(orient="records"))
"""
    )
    if way == "run":
        done, records = gpu.job(code)
    else:
        env = dict(
            gpu.env,
            **(
                {"DASK_DISTRIBUTED__WORKER__PRELOAD": "dwsr_probe.dask.preload"}
                if way == "preload"
                else {}
            ),
        )
        done = subprocess.run(
            [sys.executable, gpu.script(code)],
            cwd=gpu.cwd,
            env=env,
            capture_output=True,
            text=True,
            timeout=600,
        )
        records = json.loads((gpu.cwd / "records.json").read_text()) if done.returncode == 0 else []
    assert done.returncode == 0, done.stderr
    assert "hook on CuPy" not in done.stderr and "cannot" not in done.stderr, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[")], records


# -- figures


@pytest.mark.parametrize("way", WAYS)
def test_every_task_has_its_figures(gpu, way):
    """Exact ones, two threads at a time; what has no device memory has an empty list."""
    (before, after), records = cluster(
        gpu,
        way,
        """
        x = blocks(8).persist()
        wait(x)
        y = x.map_blocks(work, meta=x._meta).persist()
        wait(y)

        def host(i):
            return np.ones(1000)[i]

        client.gather(client.map(host, range(4)))
        before = wait_until(
            lambda: [
                m
                for m in client.run(memory).values()
                if m["devices"][0]["live_bytes"] == 16 * 512 * 1024
            ],
            "the sum",
        )
        say(before[0])
        del x, y  # freed by the event loop
        after = wait_until(
            lambda: [m for m in client.run(memory).values() if m["devices"][0]["live_bytes"] == 0],
            "the frees",
        )
        say(after[0])
    """,
    )
    made, worked, host = tasks(records, "make"), tasks(records, "work"), tasks(records, "host")
    assert (len(made), len(worked), len(host)) == (8, 8, 4)
    for record in made:
        (figures,) = record["gpu"]
        assert (figures["device"], figures["peak_bytes"], figures["end_bytes"]) == (
            0,
            BLOCK,
            BLOCK,
        ), record
    for record in worked:
        (figures,) = record["gpu"]
        assert (figures["device"], figures["peak_bytes"], figures["end_bytes"]) == (
            0,
            2 * BLOCK,
            BLOCK,
        ), record
        assert (
            record["inputs"][0]
            == {
                "type": "cupy.ndarray",
                "dtype": "float64",
                "shape": [256, 256],
                "nbytes": BLOCK,
            }
            and record["input_bytes"] >= BLOCK
        )
    for record in made + worked:
        (figures,) = record["gpu"]
        assert (
            figures["peak_bytes"]
            <= figures["pool_used_bytes"]
            <= figures["pool_total_bytes"]
            <= 64 * MIB
        )
        assert (
            record["output"]
            == {
                "type": "cupy.ndarray",
                "dtype": "float64",
                "shape": [256, 256],
                "nbytes": BLOCK,
            }
            and record["output_bytes"] == BLOCK
        )
        assert (
            record["state"] == "ok" and record["attribution"] == "exact" and record["oom"] is None
        )
    assert all(record["gpu"] == [] for record in host)
    assert all(type(record["gpu"]) is list for record in tasks(records))
    (before,), (after,) = before, after
    device = before["devices"][0]
    assert (
        sum(r["gpu"][0]["end_bytes"] for r in made + worked)
        == device["live_bytes"]
        == before["used"]
        == 16 * BLOCK
    )
    assert (
        before["total"] == before["truth"][0]
        and before["total"] >= device["peak_bytes"] > 16 * BLOCK
        and before["truth"][1] == 0
    )
    assert (after["used"], after["devices"][0]["unseen_bytes"]) == (0, 0) and after[
        "total"
    ] == after["truth"][0]


def test_frees_in_other_threads(gpu):
    """A third of them happen on the event loop. The task's record is as it was, the balance is
    zero, nothing is below it."""
    (threads, ends), records = cluster(
        gpu,
        "run",
        """
        def keep(i):
            import cupy, weakref, builtins

            if not hasattr(builtins, "freed_in"):
                builtins.freed_in = []
            x = cupy.empty(MIB, "u1")
            weakref.finalize(x, lambda: builtins.freed_in.append(threading.current_thread().name))
            return x

        for turn in range(4):
            futures = client.map(keep, range(10), pure=False)
            wait(futures)
            del futures
        ended = lambda: client.run(lambda: __import__("builtins").freed_in).popitem()[1]
        wait_until(lambda: len(ended()) == 40, "all frees")
        say(sorted(set(ended())))
        wait_until(
            lambda: all(
                m["devices"][0]["live_bytes"] == 0 and m["used"] == 0
                for m in client.run(memory).values()
            ),
            "zero",
        )

        def after():
            import cupy

            return cupy.empty(MIB, "u1").nbytes

        client.submit(after).result()
        say(*client.run(memory).values())
    """,
    )
    assert any("Dask-Default-Threads" not in name for name in threads[0]), threads
    assert ends[0]["devices"][0]["peak_bytes"] <= 40 * MIB
    for record in tasks(records, "keep"):
        assert [(g["peak_bytes"], g["end_bytes"]) for g in record["gpu"]] == [(MIB, MIB)]
    (after,) = tasks(records, "after")
    assert [(g["peak_bytes"], g["end_bytes"]) for g in after["gpu"]] == [(MIB, 0)]


def test_a_worker_for_each_device(gpu):
    """As dask-cuda does it: every worker calls its own one number 0; the UUID tells which it is."""
    (found,), records = cluster(
        gpu,
        "run",
        """
        addresses = sorted(client.scheduler_info()["workers"])

        def allocate(mib):
            import cupy

            return cupy.empty(mib * MIB, "u1").shape

        futures = [
            client.submit(allocate, 3 + i, workers=[a], key=f"allocate-{i}")
            for i, a in enumerate(addresses)
        ]
        client.gather(futures)
        ready = lambda: [
            m
            for m in client.run(memory).values()
            if m["devices"] and m["devices"][0]["process_bytes"]
        ]
        wait_until(lambda: len(ready()) == 2, "what NVML says")
        say({a: m for a, m in client.run(memory).items()}, addresses)
    """,
        opens="""SpecCluster(
    scheduler={"cls": Scheduler, "options": {"dashboard_address": None, "host": "127.0.0.1"}},
    workers={
        i: {
            "cls": Nanny,
            "options": {"nthreads": 1, "env": {"CUDA_VISIBLE_DEVICES": ["1,0", "0,1"][i]}},
        }
        for i in range(2)
    },
)""",
    )
    answers, addresses = found
    sizes = {address: (3 + i) * MIB for i, address in enumerate(addresses)}
    seen = set()
    for address, answer in answers.items():
        (device,) = answer["devices"]
        number = int(device["uuid"][-1])
        seen.add(number)
        assert (
            device["device"] == 0
            and device["process_bytes"]
            == device["used_bytes"]
            == answer["truth"][number]
            == sizes[address]
        )
        assert answer["truth"][1 - number] == 0
    assert seen == {0, 1}
    by_worker = {r["worker"]: r["gpu"] for r in tasks(records, "allocate")}
    assert {
        worker: [(g["device"], g["peak_bytes"], g["end_bytes"]) for g in gpu]
        for worker, gpu in by_worker.items()
    } == {a: [(0, n, 0)] for a, n in sizes.items()}


# -- bad ends


@pytest.mark.parametrize("way", WAYS)
def test_a_killed_worker_leaves_its_task_with_its_figures(gpu, way):
    _, records = cluster(
        gpu,
        way,
        """
        def doomed(x):
            import cupy, dwsr_probe, signal

            y = cupy.empty(2 * MIB, "u1")
            del y
            z = cupy.empty(3 * MIB, "u1")
            mine = lambda: [
                r
                for r in dwsr_probe.snapshot().running
                if r.task_name == "doomed" and r.gpu and r.gpu[0]["peak_bytes"] == 3 * MIB
            ]
            wait_until(mine, "the figures on the board")
            os.kill(os.getpid(), signal.SIGKILL)

        from distributed.scheduler import KilledWorker

        x = client.submit(make)
        wait(x)
        try:
            client.submit(doomed, x, retries=0).result()
        except KilledWorker:
            pass
        else:
            raise AssertionError
        client.wait_for_workers(1)
        client.submit(os.getpid).result()
    """,
    )
    (doomed,) = tasks(records, "doomed")
    assert doomed["state"] == "killed" and doomed["inputs"][0]["shape"] == [256, 256]
    (figures,) = doomed["gpu"]
    assert (figures["device"], figures["peak_bytes"], figures["end_bytes"]) == (0, 3 * MIB, 3 * MIB)
    assert figures["pool_used_bytes"] == 3 * MIB + BLOCK <= figures["pool_total_bytes"]


@pytest.mark.parametrize("way", WAYS)
def test_out_of_memory(gpu, way):
    (said,), records = cluster(
        gpu,
        way,
        """
        def greedy():
            import cupy
            x = cupy.empty(5 * MIB, "u1")
            return cupy.empty(100 * MIB, "u1")
        def careful():
            import cupy
            try: return cupy.empty(200 * MIB, "u1")
            except cupy.cuda.memory.OutOfMemoryError: return cupy.empty(MIB, "u1").nbytes
        error = client.submit(greedy).exception()
        say(type(error).__name__, client.submit(careful).result())
    """,
    )
    assert said == ["OutOfMemoryError", MIB]
    (greedy,), (careful,) = tasks(records, "greedy"), tasks(records, "careful")
    assert greedy["state"] == "error" and greedy["gpu"][0]["peak_bytes"] == 5 * MIB
    assert {
        name: greedy["oom"][name] for name in ("where", "requested_bytes", "live_bytes", "count")
    } == {"where": "gpu:0", "requested_bytes": 100 * MIB, "live_bytes": 5 * MIB, "count": 1}
    assert (
        careful["state"] == "ok"
        and careful["oom"]["requested_bytes"] == 200 * MIB
        and careful["gpu"][0]["peak_bytes"] == MIB
    )


@pytest.mark.parametrize("way", ["run", "plugin"])
def test_a_driver_that_says_nothing_is_not_the_clusters_affair(gpu, way):
    """distributed asks NVML, too: it and we are told alike that there is none. The figures are
    there."""
    standin.board(gpu.env).nvml("no driver")
    (answer,), records = cluster(
        gpu,
        way,
        """
        x = blocks(2).persist()
        wait(x)
        del x
        state = lambda: __import__("dwsr_probe").snapshot().live["nvml_state"]
        wait_until(lambda: set(client.run(state).values()) == {3}, "the state")
        say("ok")
    """,
    )
    assert answer == ["ok"]
    assert [[g["peak_bytes"] for g in r["gpu"]] for r in tasks(records, "make")] == [[BLOCK]] * 2
