"""Questions that are like nothing seen: not extrapolated as a line."""

import math

import pytest

from dwsr_probe.predict import Model

MIB = 1 << 20
SMALL = 100  # side of the blocks seen, of 80 kB


def block(side, **others):
    return [{"dtype": "float64", "shape": [side, side], **others}]


def handle(nbytes):
    return [{"type": "Array", "nbytes": nbytes}]


def record(number, inputs, peak, **others):
    return {
        "task_name": "op",
        "inputs": inputs,
        "alloc_peak_bytes": int(peak),
        "process": "1-1",
        "thread": 1,
        "start": float(number),
        **others,
    }


def learned(*records):
    model = Model()
    for one in records:
        model.learn(one)
    return model


def lines(sides, **others):
    return [record(n, block(side), 3 * 8 * side * side, **others) for n, side in enumerate(sides)]


def test_a_block_after_handles():
    """Handles of 48 bytes beside tasks of 20 MiB: a block of 1 GiB is not 400 PiB."""
    model = learned(*(record(n, handle(48 + n % 2 * 8), (20 + n % 2) * MIB) for n in range(20)))
    forecast = model.predict(block(11_585), "op")
    assert forecast.mean == pytest.approx(21 * MIB, rel=0.01)
    assert forecast.is_lower_bound and math.isinf(forecast.upper(0.99))
    assert forecast.trust == "none" and "beyond" in forecast.notes
    assert not forecast.promised() and not forecast.is_trusted


def test_a_handle_after_blocks():
    model = learned(*lines((1000, 1500, 2000)))
    forecast = model.predict(handle(56), "op")
    assert forecast.is_beyond and forecast.mean == pytest.approx(3 * 8 * 2000**2, rel=0.01)


def test_a_small_block_after_large_ones_is_on_the_line():
    forecast = learned(*lines((1000, 1500, 2000))).predict(block(20), "op")
    assert not forecast.is_beyond and forecast.upper(0.99) < 3 * 8 * 2000**2


@pytest.mark.parametrize(("times", "is_beyond"), [(900, False), (1100, True)])
def test_a_thousand_times_larger(times, is_beyond):
    model = learned(*lines((SMALL - 20, SMALL - 10, SMALL)))
    forecast = model.predict([{"dtype": "float64", "shape": [SMALL, SMALL * times]}], "op")
    assert forecast.is_beyond == is_beyond
    if not is_beyond:
        assert forecast.mean == pytest.approx(3 * 8 * SMALL * SMALL * times, rel=0.1)


def test_the_output_says_more():
    """A task that returns its input: where the shape is known, it takes at least that much."""
    seen = [
        {**one, "output": one["inputs"][0], "output_bytes": 8 * (side := 80 + 10 * n) * side}
        for n, one in enumerate(lines((80, 90, 100)))
    ]
    forecast = learned(*seen).predict(block(10_000), "op")
    assert forecast.is_beyond and forecast.mean == 8 * 10_000**2


def test_memory_that_does_not_grow_is_no_extrapolation():
    seen = [record(n, block(side), 50 * MIB) for n, side in enumerate(range(10, 100, 5))]
    forecast = learned(*seen).predict(block(10_000), "op")
    assert not forecast.is_beyond and forecast.mean == pytest.approx(50 * MIB, rel=0.1)


@pytest.mark.parametrize("state", ["killed", "running"])
def test_a_lower_bound_of_that_size_is_something_known(state):
    large = record(90, block(10_000), 5e8, state=state)
    forecast = learned(*lines((80, 90, 100)), large).predict(block(10_000), "op")
    assert not forecast.is_beyond and forecast.upper(0.99) > 5e8


def test_what_a_limit_says():
    forecast = learned(*lines((80, 90, 100))).predict(block(100_000), "op")
    assert forecast.exceeds(100) == 1.0 and forecast.exceeds(1e12) < 0.5


def test_parameters_too():
    model = learned(
        *(
            record(n, [], MIB + 8 * size**2, params={"n": size})
            for n, size in enumerate((100, 200, 300))
        )
    )
    assert model.predict([], "op", params={"n": 200_000}).is_beyond
    assert not model.predict([], "op", params={"n": 3_000}).is_beyond


def test_tasks_at_the_same_time_have_no_bound_either():
    model = learned(*lines((80, 90, 100)))
    together = model.together([(block(10_000), "op"), (block(100), "op")])
    assert together.is_lower_bound and math.isinf(together.upper(0.99))
