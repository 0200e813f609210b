"""What a Dask task pays to be measured: on the worker's hot path, and end to end."""

import json
import os
import subprocess
import tempfile
import time

from tests.bench import PY, Section, in_fresh_python, kernel, spread


def fused_task(arrays):
    """A task of four functions, as Dask fuses them: reads a block of a mapped file, and adds
    another array to it, with two parameters. arrays: keys of two arrays in memory."""
    import numpy as np
    from dask._task_spec import Task, TaskRef
    from dask.array.core import getter

    def first(values, *_, **__):
        return values

    with tempfile.TemporaryFile(dir="/dev/shm") as file:
        mapped = np.memmap(file, np.float64, "w+", shape=(40, 20))
    keys = [(f"{word}-1", 0, 0) for word in ("getitem", "smooth", "gradient", "sum")]
    return Task.fuse(
        Task(keys[0], getter, mapped, (slice(10, 20), slice(0, 20))),
        Task(keys[1], first, TaskRef(keys[0]), TaskRef(arrays[0]), sigma=1.5, window=5),
        Task(keys[2], first, TaskRef(keys[1]), TaskRef(arrays[1])),
        Task(keys[3], len, TaskRef(keys[2])),
    )


def hot_path(count=4000, fused=False):
    """Microseconds of distributed's own _run_task with two arrays: bare, wrapped; and of the
    kernel's calls alone. fused: the task is a chain of four functions, and reads a block."""
    import threading
    from types import SimpleNamespace

    import distributed.worker
    import numpy as np
    from dask._task_spec import Task, TaskRef

    import dwsr_probe
    from dwsr_probe.dask import hooks

    data = {("x-1", 0, 0): np.ones((10, 20)), ("y-1", 0, 0): np.ones((10, 20))}
    node = Task(("sum-1", 0, 0), max, TaskRef(("x-1", 0, 0)), TaskRef(("y-1", 0, 0)))
    node.func = lambda *values: values[0]
    if fused:
        node = fused_task(list(data))
    state = SimpleNamespace(tasks={node.key: SimpleNamespace(state="executing", dependencies=())})
    worker = SimpleNamespace(state=state)
    worker._dwsr_probe_index = 0
    arguments = node, data, {"worker": worker}, node.key, {}, threading.Lock(), 0.0

    def pass_of(function):
        begin = time.thread_time()
        for _ in range(count):
            function(*arguments)
        return (time.thread_time() - begin) / count * 1e6

    bare, ours = [], []
    original = distributed.worker._run_task
    assert dwsr_probe.start(period_ms=1000)
    hooks.hook_worker(distributed.worker)
    wrapped = distributed.worker._run_task
    for _ in range(9):
        bare.append(pass_of(original))
        ours.append(pass_of(wrapped))
    calls = kernel().kernel_calls(count, 0, 0) / 1e3
    hooks.unhook()
    dwsr_probe.stop()
    return min(bare), min(ours), calls


def begin_and_end(count=20_000, passes=15):
    """Microseconds of a begin and an end of the fused task, which does not run: its own time and
    noise are ten times what is measured."""
    import numpy as np
    from dask.utils import key_split

    import dwsr_probe
    from dwsr_probe import _core

    data = {("x-1", 0, 0): np.ones((10, 20)), ("y-1", 0, 0): np.ones((10, 20))}
    node = fused_task(list(data))
    _core.use_key_split(key_split)
    assert dwsr_probe.start(period_ms=1000)
    times = []
    for _ in range(passes):
        begin = time.thread_time()
        for _ in range(count):
            _core.end_graph_task(_core.begin_graph_task(node.key, node, data), 1, 28)
        times.append((time.thread_time() - begin) / count * 1e6)
    dwsr_probe.stop()
    return min(times)


END_TO_END = """
import json, sys, time
from distributed import Client, LocalCluster
import dwsr_probe.dask

def cpu():
    return time.process_time()

def one(i):
    return i

if __name__ == "__main__":
    rounds, tasks = int(sys.argv[1]), int(sys.argv[2])
    with (
        LocalCluster(
            n_workers=2, threads_per_worker=1, dashboard_address=None, memory_limit=0
        ) as cluster,
        Client(cluster) as client,
    ):

        def batch(name):
            before = sum(client.run(cpu).values())
            client.gather(client.map(one, range(tasks), key=name))
            return sum(client.run(cpu).values()) - before

        batch("warm")
        rows = []
        for i in range(rounds):
            row = [batch(f"bare-{i}")]
            client.register_plugin(dwsr_probe.dask.Probe())
            row.append(batch(f"ours-{i}"))
            client.unregister_worker_plugin("dwsr-probe")
            row.append(batch(f"again-{i}"))
            rows.append(row)
        print(json.dumps(rows))
"""


def end_to_end(rounds, tasks):
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        path = os.path.join(folder, "cluster.py")
        with open(path, "w") as file:
            file.write(END_TO_END)
        out = subprocess.run(
            [PY, path, str(rounds), str(tasks)],
            capture_output=True,
            text=True,
            check=True,
            env=dict(os.environ, DWSR_PROBE_BOARD_DIR=os.path.join(folder, "boards")),
        ).stdout
    return json.loads(out.splitlines()[-1])


def run(quick=False):
    section = Section(
        "Dask tasks",
        "≤ 5 µs of CPU per task beyond the kernel's own calls, two array inputs; 10,000 trivial"
        " tasks end to end ≤ 1.03 of bare",
        ("case", "bare", "probed", "kernel calls alone", "**figure**"),
    )
    rows = [
        in_fresh_python("from tests.bench.dask_tasks import hot_path; print(*hot_path())")
        for _ in range(3 if quick else 9)
    ]
    section.rows.append(
        (
            "a task on the worker's thread, µs of CPU; beyond the kernel's calls",
            spread([a for a, _, _ in rows]),
            spread([b for _, b, _ in rows]),
            spread([k for _, _, k in rows]),
            spread([b - a - k for a, b, k in rows]),
        )
    )
    tasks = 300 if quick else 1000
    rows = end_to_end(3 if quick else 10, tasks)
    bare = [value for a, _, c in rows for value in (a, c)]
    section.rows.append(
        (
            f"{tasks * len(rows):,} trivial tasks on 2 workers, worker CPU s per {tasks:,}; ratio",
            spread(bare),
            spread([b for _, b, _ in rows]),
            "–",
            (
                f"{spread([2 * b / (a + c) for a, b, c in rows], 3)}; least of each"
                f" {min(b for _, b, _ in rows) / min(bare):.3f}; control"
                f" {spread([c / a for a, _, c in rows], 3)}"
            ),
        )
    )
    section.notes.append(
        "End to end in one cluster, the plugin registered and unregistered in turn; the sampler's"
        " CPU is included."
    )
    return section
