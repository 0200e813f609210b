import json

import numpy as np

from dwsr_probe.describe import INPUTS_TEXT_MOST, describe, describe_inputs


class Hostile:
    @property
    def shape(self):
        raise RuntimeError("no")

    nbytes = "many"


class Liar:
    shape = (1, "two")
    nbytes = -5
    dtype = "x" * 1000


def test_arrays():
    assert describe(np.zeros((2, 3), np.float32)) == {"type": "ndarray", "dtype": "float32", "shape": [2, 3], "nbytes": 24}
    assert describe(np.float64(1))["shape"] == []
    assert describe(b"abcd")["nbytes"] == 4


def test_nothing_raises():
    assert describe(Hostile()) == {"type": "Hostile", "dtype": None, "shape": None, "nbytes": None}
    lies = describe(Liar())
    assert lies["shape"] is None and lies["nbytes"] is None and len(lies["dtype"]) == 64
    for value in (None, ..., object, len, [1], {"a": 1}, type("X" * 500, (), {})()):
        json.dumps(describe(value))


def test_inputs_that_do_not_fit_are_counted():
    arrays = [np.zeros((10, n), np.int8) for n in range(1, 101)]
    text, total, count, omitted = describe_inputs(arrays)
    assert len(text) <= INPUTS_TEXT_MOST and count == 100 and total == sum(a.nbytes for a in arrays)
    assert len(json.loads(text)) == 100 - omitted and omitted > 0


def test_one_array_is_a_list_of_one():
    assert describe_inputs(np.zeros(4, np.int8))[1:] == (4, 1, 0)
    assert describe_inputs([])[1:] == (None, 0, 0)
    assert describe_inputs([object()])[1:] == (None, 1, 0)
