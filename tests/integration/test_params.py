"""Numbers among the arguments of real Dask tasks of every kind, with the local schedulers and on a
cluster. Also run with the oldest release of Dask that is supported (make test-dask-oldest)."""

import sys

import pytest

from tests.conftest import Cli, tasks

pytest.importorskip("dask.array")

JOB = """
import functools, sys
import dask, dask.array as da, dask.bag as db, dask.dataframe as dd
import numpy as np, pandas as pd
import scipy.ndimage
from dask import delayed
from dask.utils import apply

class Filter:
    def method(self, x, size): return x
    def __call__(self, x, step): return x

def inner(function):
    @functools.wraps(function)
    def wrapper(*args, **kwargs): return function(*args, **kwargs)
    return wrapper

def named(x, sigma, window=3, *, mode="a", flag=None): return x
def positions(x, sigma, window=3): return x
def ids(x, n, block_id=None, block_info=None, q=2): return x
def first_overlap(x, sigma): return x
def second_overlap(x, sigma): return x
def by_index(x, sigma): return x
def bound(x, sigma, window): return x
def gufunc(x, sigma): return x
def plain(x, n, *rest, **more): return 1
def number(): return 7
def results(x, n, k): return 1
def seeded(x, seed=0): return 1
@inner
def wrapped(x, count): return 1
def of_bag(v, n=1): return v
def rows(i): return pd.DataFrame({"a": np.arange(10)})
def partition(table, n, scale=1.0): return table
def legacy(x, sigma, window=3): return x
def lazy_keyword(x, sigma): return x

def main():
    x = da.from_array(np.ones((20, 20)), chunks=10)
    given = np.ones(3)
    yield x.map_blocks(named, sigma=np.float32(1.5), window=np.int16(5), flag=True, mode="s")
    yield x.map_blocks(positions, 2.5, 7)
    yield x.map_blocks(ids, 4, q=3, dtype=float)
    yield x.map_overlap(first_overlap, depth=1, sigma=0.5)
    yield da.map_overlap(second_overlap, x, depth=2, boundary="none", sigma=0.25)
    yield da.blockwise(by_index, "ij", x, "ij", sigma=1.25, dtype=float)
    yield x.map_blocks(functools.partial(bound, sigma=3.5), window=1)
    yield x.map_blocks(scipy.ndimage.gaussian_filter, sigma=2)
    yield da.apply_gufunc(
        gufunc, "(i)->(i)", x.rechunk((10, 20)), sigma=3, output_dtypes=float)
    yield delayed(plain)(given, 5, 6, True, k=2**70, z=float("nan"), name="secret", c=1j)
    yield delayed(results)(given, delayed(number)(), k=delayed(number)())
    yield delayed(wrapped)(given, 12)
    yield delayed(Filter().method)(given, 13)
    yield delayed(Filter())(given, 14)
    yield delayed(np.percentile)(given, 50)
    yield db.from_sequence(range(4), npartitions=2).map(of_bag, n=31)
    yield dd.from_map(rows, [1, 2]).map_partitions(partition, 41, scale=2.0)
    yield x.map_blocks(lazy_keyword, sigma=delayed(number)())
    yield x.sum(axis=0, keepdims=True)
    for i in range(50):
        yield delayed(seeded)(given, seed=i)

def run():
    for collection in main():
        collection.compute()
    if sys.argv[1] != "distributed":
        dask.get({
            "x": np.ones(5),
            "a": (legacy, "x", 1.5, 4),
            "b": (apply, legacy, ["a", 2.0], {"window": 5}),
            "c": (apply, legacy, ["b"], (dict, [["sigma", 3.0]])),
        }, "c")

if __name__ == "__main__":
    if sys.argv[1] == "distributed":
        from distributed import Client
        with Client(n_workers=1, threads_per_worker=2, dashboard_address=None):
            run()
    else:
        with dask.config.set(scheduler=sys.argv[1]):
            run()
"""
EXPECTED = {
    "named": [{"sigma": 1.5, "window": 5, "flag": True}],
    "positions": [{"sigma": 2.5, "window": 7}],
    "ids": [{"n": 4, "q": 3}],
    "first_overlap": [{"sigma": 0.5}],
    "second_overlap": [{"sigma": 0.25}],
    "by_index": [{"sigma": 1.25}],
    "bound": [{"sigma": 3.5, "window": 1}],
    "gaussian_filter": [{"sigma": 2}],
    "gufunc": [{"sigma": 3}],
    "plain": [{"n": 5, "2": 6, "3": True, "k": 2.0**70}],
    "number": [{}],
    "results": [{"n": 7, "k": 7}],
    "wrapped": [{"count": 12}],
    "Filter": [{"size": 13}, {"step": 14}],
    "percentile": [{"1": 50}],
    "of_bag": [{"n": 31}],
    "partition": [{"n": 41, "scale": 2.0}],
    "lazy_keyword": [{"sigma": 7}],
    "seeded": [{"seed": i} for i in range(50)],
    "legacy": [{"sigma": 1.5, "window": 4}, {"sigma": 2.0, "window": 5}, {"sigma": 3.0}],
}
SCHEDULERS = ("sync", "threads", "distributed")


@pytest.fixture(scope="module", params=SCHEDULERS)
def records(request, tmp_path_factory):
    directory = tmp_path_factory.mktemp(request.param)
    cli = Cli(directory)
    cli.env["DWSR_PROBE_BOARD_DIR"] = str(directory / "boards")
    done = cli("run", "-q", "-o", directory / "run", sys.executable, cli.script(JOB), request.param)
    assert done.returncode == 0, done.stderr
    return request.param, tasks(cli.records(directory / "run"))


def test_params_of_tasks_of_every_kind(records):
    scheduler, found = records
    seen = {}
    for record in found:
        only_function = None if record["chain"] else record["task_name"]  # of a library
        name = record["operation"] or only_function
        if name in EXPECTED and record["params"] not in seen.setdefault(name, []):
            seen[name].append(record["params"])
    seen["seeded"].sort(key=lambda params: params["seed"])
    expected = dict(EXPECTED)
    if scheduler == "distributed":
        del expected["legacy"]
    if "partition" not in seen:  # Dask 2024.11 fuses it with `rows`, which is the operation
        del expected["partition"]
    assert seen == expected


def test_no_text_is_recorded_and_every_task_says_whether_it_has_any(records):
    for record in records[1]:
        assert record["params"] is not None, record["task_name"]
        assert all(type(value) in (bool, int, float) for value in record["params"].values())
        if record["operation"] is None and record["chain"]:
            assert record["params"] == {}, record


def test_no_params(cli):
    done, found = cli.job(
        "import dask, dwsr_probe\n"
        "with dwsr_probe.task('block', features={'n': 1}): pass\n"
        "dask.delayed(round)(1.5, 2).compute(scheduler='sync')",
        "-q",
        "--no-params",
    )
    assert done.returncode == 0, done.stderr
    assert len(tasks(found)) == 2 and [record["params"] for record in found] == [None] * 3


def test_params_in_csv(cli):
    cli.job(
        "import dwsr_probe\nwith dwsr_probe.task('b', features={'n': 1, 'x': -0.5}): pass", "-q"
    )
    done = cli("report", cli.cwd / "run", "--format", "csv")
    header, row, _ = done.stdout.splitlines()
    assert header.endswith(",params") and row.endswith(',"{""n"":1,""x"":-0.5}"')
