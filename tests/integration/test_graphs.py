"""What a task is called and what it reads, for graphs of every kind: fused tasks, low-level
dictionaries, delayed, bags, DataFrames, submitted functions. Also run with the oldest release of
Dask that is supported (make test-dask-oldest)."""

import sys

import pytest

from tests.conftest import Cli, tasks

pytest.importorskip("dask.array")

JOB = """
import functools, operator, sys
import dask, dask.array as da, dask.bag as db, dask.dataframe as dd
import numpy as np, pandas as pd
from dask import delayed

class Scale:
    def __init__(self, factor): self.factor = factor
    def __call__(self, x): return x * self.factor
    def __operation(self, x): return x * self.factor
    def transform(self, x): return x.map_overlap(self.__operation, depth=1)
    def method(self, x): return x * self.factor
    @classmethod
    def of_class(cls, x): return x

def plus_one(x, **more):
    return x + 1 if isinstance(x, np.ndarray) else 1
def load(i): return np.full((100, 1000), float(i))
def frame(i): return pd.DataFrame({"a": np.arange(1000), "b": np.ones(1000) * i})

def main():
    "Yields (what, expected result, result)."
    array = np.arange(100_000.0).reshape(100, 1000)
    mapped = np.memmap(sys.argv[1] + "/mapped", mode="w+", shape=array.shape, dtype=array.dtype)
    mapped[:] = array
    x = da.from_array(mapped, chunks=(50, 500))
    yield "getter", array.sum() + array.size, x.map_blocks(plus_one).sum().compute()
    yield "overlap", 2 * array.sum(), Scale(2).transform(x).sum().compute()
    yield "two chains", (array + 1)[3:].sum() + 97_000, (
        (x + 1)[3:].map_blocks(plus_one).sum().compute())
    yield "chain of two", 3 * (array + 1).sum(), (
        x.map_blocks(plus_one).map_blocks(Scale(3).method).sum().compute())
    loaded = da.from_delayed(delayed(load)(3), (100, 1000), float)
    yield "late", 400_000.0, loaded.map_blocks(plus_one).sum().compute()
    yield "random", (100, 100), da.random.random((100, 100), chunks=50).map_blocks(
        plus_one).compute().shape
    yield "broadcast", 200_000.0, da.ones((100, 1000), chunks=50).map_blocks(
        plus_one).sum().compute()
    yield "gufunc", 200_000.0, da.apply_gufunc(
        plus_one, "(i)->(i)", da.ones((100, 1000), chunks=(50, 1000))).sum().compute()
    yield "block ids", 100, da.map_blocks(
        lambda block_id=None: np.ones((5, 5)) * block_id[0] * 4, chunks=((5, 5), (5,)),
        dtype=float).map_blocks(Scale(1).method).sum().compute()
    yield "delayed", 1, delayed(plus_one)([delayed(load)(1), {"a": delayed(load)(2)}]).compute()
    given = delayed(functools.partial(plus_one, unused=1))(np.full(1, 7.0))
    yield "partial", 8.0, given.compute()[0]
    yield "bag", 10, db.from_sequence(range(10), npartitions=2).map(plus_one).filter(
        lambda v: v > 0).map(Scale(1)).count().compute()
    yield "dictionary", 3.0, dask.get(
        {"x": np.ones(5), "y": (plus_one, "x"), "z": (operator.add, "y", "x")}, "z")[0]
    table = dd.from_map(frame, [1, 2])
    yield "groupby", 2988.0, table.map_partitions(
        lambda part: part[part.a > 3]).groupby("a").b.sum().compute().sum()
    yield "columns", 1_001_000, (table.a + 1).sum().compute()

if __name__ == "__main__":
    if sys.argv[2] == "distributed":
        from distributed import Client
        with Client(n_workers=1, threads_per_worker=1, dashboard_address=None) as client:
            submitted = [
                client.submit(function, np.ones(10)).result() for function in
                (plus_one, lambda x: x, functools.partial(plus_one, unused=2), Scale(2),
                 Scale(2).method, Scale.of_class, len, np.sum)]
            results = list(main())
    else:
        with dask.config.set(scheduler=sys.argv[2]):
            results = list(main())
    for what, expected, result in results:
        assert expected == result, (what, expected, result)
    print("all", len(results), "right")
"""
SCHEDULERS = ("sync", "threads", "distributed")


@pytest.fixture(scope="module", params=SCHEDULERS)
def records(request, tmp_path_factory):
    """The job's tasks. The results are right, although sources inside tasks are observed."""
    directory = tmp_path_factory.mktemp(request.param)
    cli = Cli(directory)
    cli.env["DWSR_PROBE_BOARD_DIR"] = str(directory / "boards")
    script = cli.script(JOB)
    done = cli(
        "run", "-q", "-o", directory / "run", sys.executable, script, directory, request.param
    )
    assert done.stdout.startswith("all 15 right"), done.stdout + done.stderr
    return tasks(cli.records(directory / "run"))


def find(records, chain=(), operation=None):
    found = [
        r
        for r in records
        if (r["chain"] or [])[: len(chain)] == list(chain) and r["operation"] == operation
    ]
    assert found, sorted({(r["operation"], *(r["chain"] or ())) for r in records}, key=str)
    return found


def test_a_block_of_a_file_is_the_input_of_the_task_that_reads_it(records):
    for record in find(records, ["getitem", "plus_one"], "plus_one"):
        assert record["inputs"] == [
            {
                "type": "memmap",
                "dtype": "float64",
                "shape": [50, 500],
                "nbytes": 200_000,
                "lazy": True,
            }
        ]


def test_a_bound_method_is_named_by_its_class(records):
    found = [r for r in records if r["operation"] == "Scale"]
    assert any("sum" in (r["chain"] or ()) for r in found)  # the task after the overlap
    assert all("operation" not in str(r["chain"]) for r in records)


def test_all_functions_of_a_fused_task_are_in_its_chain_in_their_order(records):
    chain = find(records, ["getitem", "plus_one", "Scale"], "plus_one")[0]["chain"]
    assert chain[3:] and chain[3] == "sum"


def test_two_chains_of_one_layer_are_two_chains(records):
    chains = {
        tuple(r["chain"][:3])
        for r in records
        if r["operation"] == "plus_one" and "add" in (r["chain"] or ())
    }
    assert ("getitem", "add", "plus_one") in chains
    assert ("getitem", "add", "getitem") in chains


def test_what_a_source_inside_a_task_returns_is_an_input_known_late(records):
    frames = [r for r in records if "frame" in (r["chain"] or ()) or r["operation"] == "frame"]
    fused = [r for r in frames if len(r["chain"] or ()) > 1]
    for record in fused:
        (given,) = (i for i in record["inputs"] if i.get("late"))
        assert given["type"] == "DataFrame" and given["shape"] == [1000, 2]
    for record in records:
        late = [i.get("late", False) for i in record["inputs"]]
        assert late == sorted(late), "inputs that are known before come first"


def test_arrays_in_lists_and_dicts_are_inputs(records):
    for record in records:
        if record["operation"] == "plus_one" and (record["output"] or {}).get("type") == "int":
            values = [(i["shape"], i.get("count", 1)) for i in record["inputs"]]
            if values and values[0][0] == [100, 1000]:
                assert values == [([100, 1000], 2)]
                return
    pytest.fail("the delayed task with a list and a dict is missing")


def test_a_bag_shows_the_functions_of_the_job(records):
    (chain,) = {tuple(r["chain"]) for r in records if r["chain"] and "filter" in r["chain"]}
    assert chain[0] == "plus_one" and "Scale" in chain
    assert any(name.startswith("lambda (") for name in chain)


def test_low_level_dictionaries(records):
    assert {r["operation"] for r in records if r["task_name"] == "y"} == {"plus_one"}


def test_submitted_functions(records):
    if not any(r["worker"] for r in records):
        return  # the local schedulers have no submit
    for name, operation in (
        ("plus_one", "plus_one"),
        ("Scale", "Scale"),
        ("method", "Scale"),
        ("of_class", "Scale.of_class"),
        ("len", None),
    ):
        found = [r for r in records if r["task_name"] == name and not r["chain"]]
        assert operation in {r["operation"] for r in found}, name
        assert all(r["inputs"][0]["shape"] for r in found if r["inputs"])
