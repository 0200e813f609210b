"""Inputs at another volume, and the largest that fits."""

import pytest

from dwsr_probe.predict import Model
from dwsr_probe.predict.blocks import VaryingAxes, input_bytes, largest_scale, scaled

MIB = 1 << 20


def block(*shape, dtype="uint8"):
    return {"dtype": dtype, "shape": list(shape)}


@pytest.mark.parametrize(
    ("shape", "scale", "expected"),
    [
        ([100, 100, 100], 8, [200, 200, 200]),
        ([100, 100, 100], 1 / 8, [50, 50, 50]),
        ([1000, 3], 2, [2000, 3]),  # a table keeps its columns
        ([100, 100, 3], 4, [200, 200, 3]),  # an image its channels
        ([4, 4], 4, [8, 8]),
        ([0, 100], 2, [0, 200]),
        ([100], 1e-9, [1]),
        ([], 2, []),
    ],
)
def test_shapes(shape, scale, expected):
    assert scaled([block(*shape)], scale) == [block(*expected)]


def test_bytes_follow_the_shape():
    given = {**block(10, 100), "nbytes": 4000, "type": "DataFrame"}
    assert scaled([given], 1.5) == [{**given, "shape": [10, 150], "nbytes": 6000}]
    assert scaled([{"type": "list", "nbytes": 10}, {"type": "file"}], 1.5) == [
        {"type": "list", "nbytes": 15},
        {"type": "file"},
    ]


def varying_axes_of(*tasks):
    varying_axes = VaryingAxes()
    for inputs in tasks:
        varying_axes.add(inputs)
    return varying_axes


def test_growth_is_along_the_axes_that_differ():
    varying_axes = varying_axes_of([block(8, 512, 512)], [block(12, 512, 512)])
    assert scaled([block(10, 512, 512)], 2, varying_axes) == [block(20, 512, 512)]
    varying_axes = varying_axes_of(
        [block(8, 512, 512)], [block(12, 512, 512)], [block(8, 100, 512)]
    )
    assert scaled([block(10, 512, 512)], 4, varying_axes) == [block(20, 1024, 512)]


def test_inputs_that_never_differ_stay():
    kernel = block(31, 31)
    varying_axes = varying_axes_of(
        [block(100, 100), kernel, {"nbytes": 5}], [block(50, 50), kernel, {}]
    )
    assert scaled([block(100, 100), kernel, {"nbytes": 10}], 4, varying_axes) == [
        block(200, 200),
        kernel,
        {"nbytes": 40},
    ]


@pytest.mark.parametrize(
    "seen",
    [
        [],
        [[block(50, 50)]],
        [[block(50, 50)], [block(50, 50)]],
        [[block(50, 50)], [block(60, 50, 50)]],
        [[block(50, 50)], [block(60, 50), block(60, 50)]],
        [[block(50, 50, 3)], [block(60, 50, 3)]],
    ],
)
def test_where_nothing_tells_all_long_axes_grow(seen):
    assert scaled([block(100, 100)], 4, varying_axes_of(*seen)) == [block(200, 200)]


def test_inputs_of_unknown_size():
    unknown = {"type": "Dataset", "dtype": None, "shape": None, "nbytes": None}
    assert input_bytes([block(4, 5, dtype="float32"), {"nbytes": 7}]) == 87
    assert input_bytes([unknown, {"nbytes": 7}]) == 7
    assert input_bytes([unknown]) is None
    assert input_bytes([]) == 0


@pytest.fixture(scope="module")
def model():
    found = Model()
    for n in range(40):
        side = 100 + 10 * (n % 10)
        found.learn(
            {
                "task_name": "triple",
                "inputs": [block(side, side, 100)],
                "alloc_peak_bytes": 3 * side * side * 100,
            }
        )
    return found


def test_the_largest_block_fits_with_its_inputs(model):
    inputs = [block(200, 200, 100)]
    scale = largest_scale(model, "triple", inputs, 64 * MIB)
    largest = scaled(inputs, scale)
    needed = input_bytes(largest) + model.predict(largest, "triple").upper(0.99)
    assert 0.97 * 64 * MIB < needed <= 64 * MIB
    assert largest_scale(model, "triple", inputs, 1 << 50) == pytest.approx(8, abs=0.01)


@pytest.mark.parametrize(("name", "room"), [("never", 64 * MIB), ("triple", 0), ("triple", 1)])
def test_no_block_where_nothing_can_be_said(model, name, room):
    assert largest_scale(model, name, [block(200, 200, 100)], room) is None
    assert largest_scale(model, name, [], room) is None


def test_room_for_what_the_first_task_in_a_thread_takes_in_addition():
    def learned(first_bytes):
        model = Model()
        for number in range(40):
            size = 1_000_000 * (number % 4 + 1)
            model.learn(
                {
                    "task_name": "smooth",
                    "inputs": [{"dtype": "float32", "shape": [size]}],
                    "alloc_peak_bytes": 12 * size + (first_bytes if number < 4 else 0),
                    "process": "1",
                    "thread": number % 4,
                    "start": number,
                }
            )
        return model

    block = [{"dtype": "float32", "shape": [4_000_000]}]
    plain, with_first = (
        largest_scale(learned(first), "smooth", block, 128_000_000) for first in (0, 32_000_000)
    )
    assert plain == pytest.approx(2, rel=0.05) and with_first == pytest.approx(1.5, rel=0.05)
