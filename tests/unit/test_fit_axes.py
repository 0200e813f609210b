"""Which axes may be cut: functions whose answer is known."""

import numpy as np
import pytest

from dwsr_probe.fit.axes import (
    DIFFERENT,
    FAILED,
    RANDOM,
    RESHAPED,
    SAME,
    UNCHECKED,
    Allowed,
    AxisCheck,
    check_axes,
)
from dwsr_probe.fit.plan import axis_notes

SHAPE = 30, 41, 52


def block(dtype="float32", shape=SHAPE):
    return (100 * np.random.default_rng(0).standard_normal(shape)).astype(dtype)


def checked(function, *arrays, depth=None, shared=None, allowed=None):
    arrays = arrays or (block(),)
    n = arrays[0].ndim
    every = {axis: axis for axis in range(n)}
    shared = shared or [every if array.ndim == n else {} for array in arrays]
    depth = depth or [0] * n
    return check_axes(function, arrays, range(n), depth, shared, allowed or Allowed(1e9))


def verdicts(function, *arrays, **options):
    return [check.verdict for check in checked(function, *arrays, **options)]


def moving_mean(x, axis, width):
    kernel = np.full(width, 1 / width)
    return np.apply_along_axis(lambda line: np.convolve(line, kernel, "same"), axis, x)


ALL_SAME = [SAME, SAME, SAME]


@pytest.mark.parametrize(
    "function",
    [
        lambda x: 2 * x,
        lambda x: x.astype("complex128"),
        lambda x: x > 0,
        lambda x: x.astype("S8"),
        lambda x: np.where(x > 0, np.nan, x),
        lambda x: np.where(x > 0, np.inf, -np.inf),
        lambda x: x.transpose(2, 0, 1),
        lambda x: x.view("int32"),
        lambda x: np.ma.masked_less(x, 0),
        lambda x: np.zeros(x.shape, [("a", "f4"), ("b", "i2")]),
    ],
)
def test_elementwise(function):
    assert verdicts(function) == ALL_SAME


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint64", "float16", "complex64", "M8[s]", "S3"])
def test_every_dtype(dtype):
    x = np.arange(np.prod(SHAPE)).reshape(SHAPE).astype(dtype)
    assert verdicts(lambda x: x.copy(), x) == ALL_SAME
    assert verdicts(lambda x: x[:, ::-1], x)[1] in (
        DIFFERENT,
        SAME if dtype == "bool" else DIFFERENT,
    )


@pytest.mark.parametrize("axis", range(3))
@pytest.mark.parametrize(
    "function",
    [
        lambda x, axis: np.fft.fft(x, axis=axis),
        lambda x, axis: np.cumsum(x, axis=axis),
        lambda x, axis: x - x.mean(axis=axis, keepdims=True),
        lambda x, axis: np.sort(x, axis=axis),
        lambda x, axis: np.flip(x, axis=axis),
    ],
)
def test_an_axis_that_the_values_depend_on(function, axis):
    wanted = [*ALL_SAME]
    wanted[axis] = DIFFERENT
    found = checked(lambda x: function(x, axis))
    assert [check.verdict for check in found] == wanted and found[axis].reach is None
    assert [check.axis for check in found if check.must_stay_whole] == [axis]
    (note,) = axis_notes(found, "f")
    assert note == f"axis {axis} stays whole: values change when it is cut"


def test_values_that_depend_on_the_whole_block():
    assert verdicts(lambda x: x / np.abs(x).max()) == [DIFFERENT, DIFFERENT, DIFFERENT]


@pytest.mark.parametrize("depth", range(6))
def test_a_halo_that_is_large_enough(depth):
    """The kernel reaches 3 elements to each side. The advice is the halo that is needed in all."""
    found = checked(lambda x: moving_mean(x, 1, 7), depth=[0, depth, 0])
    assert [check.verdict for check in found] == [SAME, SAME if depth >= 3 else DIFFERENT, SAME]
    assert found[1].reach == (None if depth >= 3 else 3)
    if depth < 3:
        assert "a halo of depth 3 may allow to cut it" in axis_notes(found, "f")[0]


def test_a_halo_along_all_axes():
    def mean(x):
        for axis in range(3):
            x = moving_mean(x, axis, 5)
        return x

    assert verdicts(mean, depth=[2, 2, 2]) == ALL_SAME
    assert verdicts(mean, depth=[2, 1, 2]) == [SAME, DIFFERENT, SAME]


@pytest.mark.parametrize(
    ("function", "wanted"),
    [
        (lambda x: x.sum(axis=0), [RESHAPED, SAME, SAME]),
        (lambda x: x.sum(axis=1, keepdims=True), [SAME, RESHAPED, SAME]),
        (lambda x: x.sum(), [RESHAPED] * 3),
        (lambda x: float(x.sum()), [RESHAPED] * 3),
        (lambda x: np.pad(x, ((0, 0), (2, 2), (0, 0))), [SAME, RESHAPED, SAME]),
        (lambda x: x[x > 0], [DIFFERENT, DIFFERENT, DIFFERENT]),
        (lambda x: np.histogram(x, bins=8)[0], [RESHAPED] * 3),
        (lambda x: np.repeat(x, 2, axis=2), ALL_SAME),
        (lambda x: x[None], ALL_SAME),
    ],
)
def test_results_of_other_shapes(function, wanted):
    found = verdicts(function)
    if wanted == [DIFFERENT] * 3:  # the first axis is the slowest: its parts follow each other
        assert found[0] == SAME and set(found[1:]) <= {DIFFERENT, RESHAPED}
    else:
        assert found == wanted


@pytest.mark.parametrize("factor", [2, 3, 4, 6])
@pytest.mark.parametrize("n", range(16, 60))
def test_a_smaller_result_keeps_its_axis_whole(factor, n):
    """Values of x[::2] are the same only if all blocks are cut at even places."""
    found = verdicts(lambda x: x[::factor], block(shape=(n, 9)))
    assert found[0] in (RESHAPED, DIFFERENT) and found[1] == SAME


@pytest.mark.parametrize("channels", [2, 3, 4, 5])
def test_channels(channels):
    """A short axis is checked as well."""
    x = block(shape=(40, 41, channels))
    assert verdicts(lambda x: x / x.sum(axis=2, keepdims=True), x) == [SAME, SAME, DIFFERENT]
    assert verdicts(lambda x: x @ np.eye(channels, dtype="f4"), x) == [SAME, SAME, FAILED]
    assert verdicts(lambda x: x * 2, x) == ALL_SAME


def test_a_function_that_fails_on_parts():
    def function(x):
        if x.shape[1] < 41:
            raise ValueError("too few traces")
        return x

    found = checked(function)
    assert [check.verdict for check in found] == [SAME, FAILED, SAME] and found[1].must_stay_whole
    assert axis_notes(found, "f") == ["axis 1 stays whole: the function fails on parts of it"]


def test_a_function_that_fails_on_the_whole_block():
    with pytest.raises(ZeroDivisionError):
        checked(lambda x: 1 / 0)


@pytest.mark.parametrize("value", [0, 7, np.nan, np.inf])
@pytest.mark.parametrize("dtype", ["float32", "complex128", "int16"])
def test_blocks_of_equal_values_prove_nothing(value, dtype):
    """A Fourier transform of zeros is zero wherever it is cut: random values are taken instead."""
    if dtype == "int16" and not np.isfinite(value):
        return
    x = np.full(SHAPE, value, dtype)
    assert verdicts(lambda x: np.fft.fft(x, axis=1), x) == [SAME, DIFFERENT, SAME]


def test_random_results():
    generator = np.random.default_rng()
    found = checked(lambda x: generator.standard_normal(x.shape))
    assert [check.verdict for check in found] == [RANDOM] * 3
    assert not any(check.must_stay_whole for check in found)
    (note,) = axis_notes(found, "noise")
    assert note.startswith("noise gives other values at each call")


@pytest.mark.parametrize("result", [None, (1, 2), "text", [1.0], {"a": 1}])
def test_results_that_are_no_arrays(result):
    found = checked(lambda x: result)
    assert [check.verdict for check in found] == [UNCHECKED] * 3
    (note,) = axis_notes(found, "f")
    assert note.startswith("whether axis 0, 1, 2 can be cut was not checked: the function returns")


def test_the_block_is_too_short_for_the_halo():
    found = checked(lambda x: x, depth=[0, 20, 0])
    assert [check.verdict for check in found] == [SAME, UNCHECKED, SAME]
    assert "axis 1 can be cut was not checked: it is not longer" in axis_notes(found, "f")[0]


def test_the_inputs_stay_as_they_are():
    def function(x):
        x *= 2
        return x

    x = block()
    before = x.copy()
    assert verdicts(function, x) == ALL_SAME and np.array_equal(x, before)


def test_other_arrays_are_cut_with_the_first():
    x, weights = block(), np.arange(52.0)
    shared = [{0: 0, 1: 1, 2: 2}, {2: 0}]
    assert verdicts(lambda x, w: x * w, x, weights, shared=shared) == ALL_SAME
    assert verdicts(lambda x, w: x * w.sum(), x, weights, shared=shared) == [SAME, SAME, DIFFERENT]
    # As long by chance, but whole in each task
    kernel = np.arange(41.0)
    assert verdicts(lambda x, k: x * k.sum(), x, kernel, shared=[shared[0], {}]) == ALL_SAME


@pytest.mark.parametrize(
    ("seconds", "calls", "wanted"),
    [
        (0, 0, [UNCHECKED] * 3),
        (0, 1.5, [UNCHECKED] * 3),
        (2, 0, [UNCHECKED] * 3),
        (3, 0, [SAME, UNCHECKED, UNCHECKED]),
        (0, 6.5, [SAME, SAME, UNCHECKED]),
        (20, 0, ALL_SAME),
        (0, 20, ALL_SAME),
    ],
)
def test_the_check_ends_in_time(seconds, calls, wanted):
    """Each call takes a second of this clock. Two calls come first, and two for each axis."""
    now = [0.0]

    def function(x):
        now[0] += 1
        return x

    allowed = Allowed(seconds, calls, clock=lambda: now[0])
    found = checked(function, allowed=allowed)
    assert [check.verdict for check in found] == wanted
    assert now[0] <= max(1, seconds, calls) + 1  # an axis that has begun is finished
    late = [check for check in found if check.verdict == UNCHECKED]
    assert all(
        check == AxisCheck(check.axis, UNCHECKED, None, "the check would take too long")
        for check in late
    )


@pytest.mark.parametrize("n", [1, 2, 3, 10, 2000])
def test_one_axis_of_any_length(n):
    found = verdicts(lambda x: x + 1, block(shape=(n,)))
    assert found == ([SAME] if n > 1 else [UNCHECKED])
    if n > 2:
        assert verdicts(lambda x: x[::-1], block(shape=(n,))) == [DIFFERENT]
