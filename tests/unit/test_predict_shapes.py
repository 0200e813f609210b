"""Output shapes, learned from real NumPy functions: kept, constant, reduced, scaled, padded,
summed; unknown where there is no rule."""

import itertools
import random

import numpy as np
import pytest

from dwsr_probe.predict.shapes import OutputShape
from dwsr_probe.predict.sizes import Array

A, B, C, LARGE = (20, 30, 40), (35, 22, 51), (24, 64, 18), (200, 310, 128)


def array(x):
    return Array(x.shape, x.nbytes, str(x.dtype))


def told(x):
    return {
        "type": "numpy.ndarray",
        "dtype": str(x.dtype),
        "shape": list(x.shape),
        "nbytes": x.nbytes,
    }


def learned(function, shapes, dtype="float32"):
    rules = OutputShape()
    for shape in shapes:
        given = [
            np.zeros(one, dtype) for one in (shape if isinstance(shape[0], tuple) else [shape])
        ]
        rules.learn([array(x) for x in given], told(function(*given)))
    return rules


FUNCTIONS = {
    "kept": lambda x: x * 2,
    "transposed": lambda x: np.ascontiguousarray(x.T),
    "reduced over the middle": lambda x: x.mean(axis=1),
    "one number per first axis": lambda x: x.sum(axis=(1, 2)),
    "kept as one": lambda x: x.max(axis=0, keepdims=True),
    "constant": lambda x: np.histogram(x, 64)[0],
    "padded": lambda x: np.pad(x, 3),
    "valid only": lambda x: x[4:-4, 2:-2, 1:-1],
    "every second": lambda x: x[::2, ::2, ::2],
    "a third of the last": lambda x: x[..., : x.shape[-1] // 3],
    "twice the first": lambda x: np.repeat(x, 2, axis=0),
    "half as many frequencies": lambda x: np.fft.rfft(x),
    "wider type": lambda x: x.astype("float64"),
    "flags": lambda x: x > 0,
    "channels at the end": lambda x: np.stack([x, x, x], axis=-1),
    "three halves": lambda x: np.zeros((x.shape[0] * 3 // 2, *x.shape[1:]), x.dtype),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_one_input(name):
    rules = learned(FUNCTIONS[name], [A, B, C])
    given = np.zeros(LARGE, "float32")
    truth = told(FUNCTIONS[name](given))
    assert rules.predict([array(given)]) == truth


def test_several_inputs():
    for function, shapes, new in (
        (
            np.matmul,
            [((10, 20), (20, 30)), ((7, 5), (5, 9)), ((11, 3), (3, 40))],
            ((100, 50), (50, 60)),
        ),
        (
            lambda *x: np.concatenate(x),
            [((10, 5), (20, 5)), ((7, 6), (9, 6)), ((3, 8), (3, 8))],
            ((100, 50), (40, 50)),
        ),
        (np.add.outer, [((10,), (20,)), ((7,), (5,)), ((6,), (6,))], ((1000,), (200,))),
    ):
        rules = learned(function, shapes)
        given = [np.zeros(one, "float32") for one in new]
        assert rules.predict([array(x) for x in given]) == told(function(*given))


def test_the_dtype_follows_the_input_or_stays():
    same = learned(lambda x: x + 1, [A, B])
    assert same.predict([Array((5, 5, 5), 1000, "float64")])["dtype"] == "float64"
    rules = OutputShape()
    for dtype in ("float32", "int16"):
        x = np.zeros(A, dtype)
        rules.learn([array(x)], told(x.astype("complex64")))
    assert rules.predict([Array((5, 5, 5), 500, "float32")]) == {
        "type": "numpy.ndarray",
        "dtype": "complex64",
        "shape": [5, 5, 5],
        "nbytes": 1000,
    }


def test_no_rule_is_unknown():
    chance = random.Random(0)
    rules = learned(lambda x: np.zeros(chance.randrange(1000), x.dtype), [A, B, C])
    assert rules.predict([Array(LARGE, 4, "float32")]) is None
    ranks = iter([(3,), (3, 4)])
    assert (
        learned(lambda x: np.zeros(next(ranks), x.dtype), [A, B]).predict(
            [Array(LARGE, 4, "float32")]
        )
        is None
    )


@pytest.mark.parametrize(
    ("function", "shapes", "asked"),
    [
        # which axis?
        (lambda x: x.mean(axis=0), [(20, 20, 20), (30, 30, 30), (40, 40, 40)], (100, 200, 300)),
        # kept, or always 64?
        (
            lambda x: np.histogram(x, 64)[0],
            [(20, 64, 64), (30, 64, 64), (45, 64, 64)],
            (100, 200, 300),
        ),
        # padded, or always 70?
        (lambda x: np.pad(x, 3), [(20, 64, 64), (30, 64, 64), (45, 64, 64)], (100, 700, 700)),
        # 1 and 2: anything
        (
            lambda x: np.zeros(-(-x.shape[0] // 16), x.dtype),
            [(5, 8, 9), (18, 7, 11), (29, 12, 10)],
            (512, 512, 512),
        ),
        (
            lambda x: np.linalg.svd(x[0], compute_uv=False),
            [(20, 20, 20), (30, 30, 30), (40, 40, 40)],
            (100, 200, 300),
        ),
    ],
)
def test_shapes_too_alike_to_tell_are_unknown(function, shapes, asked):
    rules = learned(function, shapes)
    assert rules.predict([Array(asked, 4, "float32")]) is None
    # but what was seen is known, and so is what lies between
    again = array(np.zeros(shapes[1], "float32"))
    assert rules.predict([again])["shape"] == list(function(np.zeros(shapes[1], "float32")).shape)


def test_an_axis_that_stays_is_believed_at_once():
    rules = learned(FUNCTIONS["kept"], [(20, 20, 20)])
    assert rules.predict([Array((100, 200, 300), 24000000, "float32")])["shape"] == [100, 200, 300]


def test_an_input_that_is_missing_is_unknown():
    rules = learned(np.matmul, [((10, 20), (20, 30)), ((7, 5), (5, 9))])
    assert rules.predict([Array((100, 50), 20000, "float32")]) is None
    assert OutputShape().predict([Array(A, 4, "float32")]) is None


@pytest.mark.parametrize(
    "name", ["kept", "every second", "three halves", "a third of the last", "padded", "constant"]
)
def test_order_does_not_matter_and_parts_merge(name):
    sets = []
    for order in itertools.permutations([A, B, C, (1, 2, 3)]):
        sets.append(learned(FUNCTIONS[name], order).to_dict())
    assert all(one == sets[0] for one in sets)
    merged = learned(FUNCTIONS[name], [A, B])
    merged.merge(learned(FUNCTIONS[name], [C, (1, 2, 3)]))
    assert merged.to_dict() == sets[0] and OutputShape.from_dict(sets[0]).to_dict() == sets[0]


def test_a_chain_of_operators():
    """Forecasts can be followed through a graph: each output is the next input."""
    chain = [
        FUNCTIONS["padded"],
        FUNCTIONS["kept"],
        FUNCTIONS["every second"],
        FUNCTIONS["reduced over the middle"],
    ]
    rules, shapes = [], [A, B, C]
    for function in chain:
        rules.append(learned(function, shapes))
        shapes = [function(np.zeros(shape, "float32")).shape for shape in shapes]
    given, truth = array(np.zeros(LARGE, "float32")), np.zeros(LARGE, "float32")
    for rule, function in zip(rules, chain, strict=True):
        output, truth = rule.predict([given]), function(truth)
        given = Array(tuple(output["shape"]), output["nbytes"], output["dtype"])
    assert output == told(truth)


def test_garbage_is_not_learned():
    rules = OutputShape()
    for output in ({"shape": "x"}, {"shape": [-1]}, {"shape": [1.5]}, {"shape": None}, {}):
        rules.learn([Array(A, 4, "float32")], output)
    assert rules.n == 0 and rules.predict([Array(A, 4, "float32")]) is None


def test_the_axes_of_a_sparse_output_say_nothing_about_its_bytes():
    rules = OutputShape()
    for rows in (6000, 12_000, 24_000):
        output = {"type": "csr_matrix", "dtype": "float64", "shape": [rows, 65_536]}
        rules.learn([Array((rows,), 8 * rows, "object")], {**output, "nbytes": 240 * rows})
    assert rules.predict([Array((48_000,), 384_000, "object")]) is None
