import json
import sys

import numpy as np
import pytest

from dwsr_probe._core import describe_inputs, describe_output


class Hostile:
    @property
    def shape(self):
        raise RuntimeError("no")

    nbytes = "many"


class Liar:
    shape = (1, "two")
    nbytes = -5
    dtype = 'x"\\' * 1000


class Huge:
    nbytes = 2**63


def described(value):
    text, nbytes = describe_output(value)
    fields = json.loads(text)
    assert fields["nbytes"] == nbytes
    return fields


def described_input(value):
    (fields,) = json.loads(describe_inputs([value])[0])
    return fields


def test_arrays():
    assert described(np.zeros((2, 3), np.float32)) == {
        "type": "ndarray",
        "dtype": "float32",
        "shape": [2, 3],
        "nbytes": 24,
    }
    assert described(np.float64(1))["shape"] == []
    assert described(b"abcd")["nbytes"] == 4


def test_nothing_raises():
    assert described(Hostile())["nbytes"] is None
    lies = described(Liar())
    # of the job's own classes nothing is asked
    assert lies["shape"] is None and lies["nbytes"] is None and lies["dtype"] is None
    assert described(Huge())["nbytes"] is None
    for value in (
        None,
        ...,
        object,
        len,
        [1],
        {"a": 1},
        type("X" * 500, (), {})(),
        type("é\n", (), {})(),
    ):
        described(value)


def test_inputs_that_do_not_fit_are_counted():
    arrays = [np.zeros((10, n), np.int8) for n in range(1, 101)]
    text, total, count, omitted = describe_inputs(arrays)
    assert len(text) <= 2048 and count == 100 and total == sum(a.nbytes for a in arrays)
    assert len(json.loads(text)) == 100 - omitted and omitted > 0


def test_a_total_is_told_only_when_all_is_known():
    array = np.zeros(4, np.int8)
    assert describe_inputs(array)[1:] == (4, 1, 0)
    assert describe_inputs([])[1:] == (None, 0, 0)
    assert describe_inputs([array, object()])[1:] == (None, 2, 0)
    assert describe_inputs([[array, array], {"x": array}, 3])[1:3] == (12 + sys.getsizeof(3), 4)
    assert describe_inputs([list(range(1_000_000))])[1:3] == (None, 1_000_000)


def test_arrays_of_every_shape():
    whole = np.arange(24.0).reshape(2, 3, 4)
    assert described_input(whole[:, ::2, 1:3]) == {
        "type": "ndarray",
        "dtype": "float64",
        "shape": [2, 2, 2],
        "nbytes": 64,
    }
    assert described(np.empty((0, 7)))["nbytes"] == 0 and described(np.array(1.5))["shape"] == []
    assert described_input(np.broadcast_to(np.ones(10), (1000, 10))) == {
        "type": "ndarray",
        "dtype": "float64",
        "shape": [1000, 10],
        "nbytes": 80,
        "logical_bytes": 80_000,
    }
    assert described(np.array(["a", None], object))["dtype"] == "object"
    assert described(np.zeros(3, [("x", "i4"), ("y", "f8")]))["nbytes"] == 36

    class Mine(np.ndarray):
        nbytes = property(lambda self: 1 / 0)
        shape = "round"

    assert described(np.ones((2, 2)).view(Mine)) == {
        "type": "Mine",
        "dtype": "float64",
        "shape": [2, 2],
        "nbytes": 32,
    }


def test_libraries():
    pd, pa, sparse = (
        pytest.importorskip("pandas"),
        pytest.importorskip("pyarrow"),
        pytest.importorskip("scipy.sparse"),
    )
    frame = pd.DataFrame({"a": np.arange(100), "b": np.ones(100)})
    assert described(frame)["shape"] == [100, 2] and described(frame)["nbytes"] >= 1600
    assert described(frame["a"])["nbytes"] >= 800 and described(frame["a"])["dtype"] == "int64"
    assert described(pa.array([1, 2, 3]))["nbytes"] >= 24 and described(pa.table({"x": [1, 2]}))[
        "shape"
    ] == [2, 1]
    matrix = sparse.random(50, 40, 0.1, format="csr")
    assert described(matrix)["shape"] == [50, 40] and described(matrix)["nbytes"] >= 200 * 12


def test_thousands_of_classes_do_not_change_what_a_number_is():
    for i in range(5000):
        described(type(f"C{i}", (), {})())
    assert described(5)["nbytes"] == sys.getsizeof(5)


def test_nothing_of_the_job_is_kept_alive():
    import gc
    import weakref

    pd = pytest.importorskip("pandas")
    column = pd.Series(pd.Categorical(range(1000)))
    dtype, kind = weakref.ref(column.dtype), type("Mine", (), {})
    assert described(column)["dtype"] == "category"
    described(kind())
    references = dtype, weakref.ref(kind)
    del column, kind
    gc.collect()
    assert [reference() for reference in references] == [None, None]


def test_large_containers_are_counted_not_looked_at():
    array = np.ones(10)
    for container in (
        dict.fromkeys(range(100_000), array),
        [array] * 100_000,
        {float(i) for i in range(100_000)},
    ):
        text, total, count, omitted = describe_inputs([container])
        described = sum(value.get("count", 1) for value in json.loads(text))
        assert count == 100_000 and total is None and described == count - omitted <= 256


def test_equal_values_in_succession_are_written_once():
    one, other = np.ones(10), np.ones((2, 5))
    values = json.loads(describe_inputs([one, one, other, one] + [other] * 200)[0])
    assert [(v["shape"], v.get("count")) for v in values] == [
        ([10], 2),
        ([2, 5], None),
        ([10], None),
        ([2, 5], 200),
    ]
    # what does not fit is counted, also where a count would have to be written
    many = [np.ones(n // 2 + 1) for n in range(200)]
    text, total, count, omitted = describe_inputs(many)
    listed = sum(value.get("count", 1) for value in json.loads(text))
    assert listed + omitted == count == 200 and omitted > 0 and total == sum(x.nbytes for x in many)


def test_what_a_view_keeps_in_memory():
    whole = np.ones((10, 10))
    view = described(whole[2:4])
    assert view == {
        "type": "ndarray",
        "dtype": "float64",
        "shape": [2, 10],
        "nbytes": 0,
        "logical_bytes": 160,
        "view": True,
    }
    trimmed = described(np.ones((10, 10))[1:-1])  # nobody else holds the base
    assert (trimmed["nbytes"], trimmed["logical_bytes"], trimmed["view"]) == (800, 640, True)
    transposed = described(np.ones((10, 10)).T)  # the view is all there is
    assert transposed == described(whole)


def test_lazy_arrays_have_the_size_of_what_is_behind_them(tmp_path):
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "a.h5", "w") as file:
        dataset = file.create_dataset("d", data=np.ones((6, 7), "f4"))
        assert described(dataset) == {
            "type": "h5py.Dataset",
            "dtype": "float32",
            "shape": [6, 7],
            "nbytes": 168,
            "lazy": True,
        }


def test_what_is_no_input():
    values = [len, json, np.ones, type, int, describe_inputs, "".join]
    assert describe_inputs(values)[2] == 0


def test_namesakes():
    namesake = type("ndarray", (), {"__module__": "numpy"})
    assert described(namesake())["nbytes"] is None


def test_containers():
    from collections import namedtuple

    array = np.ones(10)
    assert describe_inputs([namedtuple("Pair", "a b")(array, [array])])[1:3] == (160, 2)

    class Loud(list):
        def __iter__(self):
            raise RuntimeError("not asked")

    assert describe_inputs([Loud([array])])[1:3] == (80, 1)
    deep = [[[[[array]]]]]
    text, total, count, _ = describe_inputs(deep)
    assert count == 1 and total is None and json.loads(text)[0]["type"] == "list"


def test_a_multi_index_builds_no_hash_table_for_its_size():
    pandas = pytest.importorskip("pandas")
    index = pandas.MultiIndex.from_product([range(100), range(200)])
    table = pandas.DataFrame({"a": np.ones(20_000)}, index=index)
    for value in (table, table.a, index):
        assert described(value)["nbytes"] >= 20_000 * 2
        assert "_engine" not in index._cache
