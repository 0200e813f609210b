"""What allocates: one function each, called over and over by the benchmarks of the accounting.
`python workloads.py NAME SECONDS` runs one alone and prints CPU microseconds a call, for tools
that want a script of their own."""

import json
import sys
import time


def temporaries(elements, times):
    import numpy as np

    a = np.ones(elements)

    def call():
        for _ in range(times):
            b = a * 2.0 + a
            b.sum()

    return call


def arrays():
    """NumPy temporaries of 8 MB."""
    return temporaries(1_000_000, 4)


def arrays_1mb():
    """NumPy temporaries of 1 MB."""
    return temporaries(131_072, 40)


def dicts():
    """dict and json churn."""
    rows = [{"id": i, "name": f"row {i}", "values": [i, i / 3, None]} for i in range(300)]

    def call():
        for row in json.loads(json.dumps(rows)):
            row["sum"] = {"id": row["id"], "copy": list(row["values"])}

    return call


def strings():
    """Strings of 600 to 1,000 bytes: each a call to malloc."""

    def call():
        for _ in range(4):
            ["x" * (600 + i % 400) for i in range(1000)]

    return call


def small_arrays():
    """x + x with 1,000 elements."""
    import numpy as np

    x = np.ones(1000)

    def call():
        for _ in range(2000):
            x + x

    return call


def dask_tasks():
    """10,000 tasks on Dask's threaded scheduler."""
    import dask
    import dask.threaded

    def increment(i):
        return i + 1

    graph = {f"x-{i}": (increment, i) for i in range(10_000)}
    keys = list(graph)

    def call():
        with dask.config.set(num_workers=2):
            dask.threaded.get(graph, keys)

    return call


ALL = {f.__name__: f for f in (arrays, arrays_1mb, dicts, strings, small_arrays, dask_tasks)}


def main():
    call, seconds = ALL[sys.argv[1]](), float(sys.argv[2])
    call()
    begin, end, count = time.process_time(), time.perf_counter() + seconds, 0
    while time.perf_counter() < end:
        call()
        count += 1
    print((time.process_time() - begin) / count * 1e6)


if __name__ == "__main__":
    main()
