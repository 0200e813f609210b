import json
import sys

import numpy as np
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


def test_arrays():
    assert described(np.zeros((2, 3), np.float32)) == {"type": "ndarray", "dtype": "float32", "shape": [2, 3], "nbytes": 24}
    assert described(np.float64(1))["shape"] == []
    assert described(b"abcd")["nbytes"] == 4


def test_nothing_raises():
    assert described(Hostile())["nbytes"] is None
    lies = described(Liar())
    assert lies["shape"] is None and lies["nbytes"] is None and lies["dtype"] is None  # of the job's own classes nothing is asked
    assert described(Huge())["nbytes"] is None
    for value in (None, ..., object, len, [1], {"a": 1}, type("X" * 500, (), {})(), type("é\n", (), {})()):
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
