"""Inputs as records describe them: blocks that a task reads itself, equal ones written once,
arrays that repeat their memory, and objects of unknown kind."""

import pytest

from dwsr_probe.export.checked import checked_record
from dwsr_probe.predict import Model
from dwsr_probe.predict.blocks import VaryingAxes, held_bytes, input_bytes, largest_scale, scaled
from dwsr_probe.predict.history import known_input_bytes, learn_run
from dwsr_probe.predict.sizes import parse_inputs
from tests.unit.workers import MIB, record

UNKNOWN = {"type": "Survey", "dtype": None, "shape": None, "nbytes": None}


def block(rows, columns=1024, **more):
    """Of float64."""
    return {
        "type": "Array",
        "dtype": "float64",
        "shape": [rows, columns],
        "nbytes": rows * columns * 8,
        **more,
    }


def task(n, inputs, peak, **more):
    return record(n, name="load", peak=peak, **{"inputs": inputs, "input_bytes": None, **more})


def learned(records):
    model = Model()
    for given in records:
        model.learn(given)
    return model


def test_equal_inputs_that_are_written_once():
    assert parse_inputs([block(4, count=3), block(5)]) == parse_inputs([*[block(4)] * 3, block(5)])
    for count in (63, 64, 65, 1_000):
        assert parse_inputs([block(4, count=count)]) == parse_inputs([block(4)] * count)
        assert parse_inputs([block(1), block(4, count=count), block(2)]) == parse_inputs(
            [block(1), *[block(4)] * count, block(2)]
        )
    assert known_input_bytes(task(1, [block(4, count=3), UNKNOWN], 1)) == 3 * 4 * 8192


@pytest.mark.parametrize("count", ["3", -1, 1 << 40, float("nan"), [], True])
def test_counts_that_are_none(count):
    for given in (block(4, count=count), {**UNKNOWN, "count": count}):
        with pytest.raises(ValueError):
            parse_inputs([given])
    with pytest.raises(ValueError, match="more than any machine has"):
        parse_inputs([{"nbytes": 1 << 50, "count": 1 << 20}])


def test_an_object_of_unknown_kind_has_no_size():
    """Neither zero nor that of its handle."""
    assert parse_inputs([UNKNOWN]) == ()
    assert input_bytes([UNKNOWN]) is None and input_bytes([UNKNOWN, block(4)]) == 4 * 8192
    assert parse_inputs([{**block(4), "shape": [None, 5], "nbytes": None}]) == ()
    assert parse_inputs([{**block(4), "shape": [None, 5]}])[0].shape is None
    known = Model()
    known.learn(task(1, [UNKNOWN], 5 * MIB))
    forecast = known.predict([block(4)], "load", output=UNKNOWN)
    assert forecast.output == known.predict([block(4)], "load").output


def test_an_operation_on_a_repeated_array_allocates_its_logical_size():
    """np.broadcast_to(x, (rows, 1024)) * 2 has one row of its own as input, and returns all."""

    def repeated(rows):
        return {**block(rows), "nbytes": 8192, "logical_bytes": rows * 8192}

    sizes = 100, 200, 300, 400
    model = learned(
        task(n, [repeated(rows)], rows * 8192, output=None, output_bytes=None)
        for n, rows in enumerate(sizes)
    )
    forecast = model.predict([repeated(1600)], "load")
    assert forecast.mean == pytest.approx(1600 * 8192, rel=0.02)
    # The same operation on an array that has all its rows.
    assert model.predict([block(1600)], "load").mean == pytest.approx(forecast.mean, rel=0.001)
    assert known_input_bytes(task(1, [repeated(100)], 1, input_bytes=8192)) == 100 * 8192
    assert scaled([repeated(100)], 2, along(repeated(100), repeated(200))) == [
        {**repeated(200), "nbytes": 16384}
    ]
    assert held_bytes([repeated(100), block(2)]) == 8192 + 2 * 8192


def along(*blocks):
    axes = VaryingAxes()
    for given in blocks:
        axes.add([given])
    return axes


@pytest.mark.parametrize("flag", ["lazy", "late"])
def test_twice_the_block_that_a_task_reads(flag):
    """Learned from two smaller blocks: the forecast follows the block, not the handle."""
    records = [
        task(n, [block(rows, **{flag: True}), UNKNOWN], 2 * rows * 8192 + MIB)
        for n, rows in enumerate([100, 200] * 4)
    ]
    run = learn_run(records)
    twice = scaled(run.largest["load"].inputs, 2, run.varying_axes["load"])
    assert twice == [block(400, **{flag: True}), UNKNOWN]
    truth = 2 * 400 * 8192 + MIB
    assert run.model.predict(twice, "load").mean == pytest.approx(truth, rel=0.05)
    # In memory before the task: nothing.
    assert held_bytes(twice) == 0 and held_bytes([block(1)]) == 8192
    room = 4 * truth
    read, held = (
        largest_scale(run.model, "load", [given], room)
        for given in (block(400, **{flag: True}), block(400))
    )
    assert read > 1.2 * held


def test_what_only_the_end_tells_is_not_missed_before():
    """A task that runs, or was killed, does not have its late inputs: those of the largest task of
    its group stand for them."""
    late = [
        task(n, [block(rows, late=True)], 2 * rows * 8192, process="1-1")
        for n, rows in enumerate([1_000, 2_000] * 4)
    ]
    model = learned(late)
    question = [block(2_000, late=True)]
    before = model.predict(question, "load")
    running = {**task(None, [], 1_500 * 8192), "state": "running", "start": 99.0}
    forecast = model.predict([], "load", running=running)
    assert forecast.mean == pytest.approx(before.mean)
    model.learn(running)
    model.learn({**task(50, [], 1_900 * 8192), "state": "killed"})
    # A bound below what is known raises nothing.
    assert model.predict(question, "load").mean == pytest.approx(before.mean, rel=0.02)
    again = Model.from_dict(model.to_dict())
    assert again.reads_late("load") and not again.reads_late("never")
    killed = {**task(60, [], 1_900 * 8192), "state": "killed"}
    run = learn_run([*late, killed])
    assert run.largest["load"].inputs == question
    assert scaled(question, 2, run.varying_axes["load"]) == [block(4_000, late=True)]


def test_inputs_for_which_the_record_had_no_room_are_summed():
    """Also beside equal ones, and beside those that repeat their memory."""
    listed = [block(4, count=3), {**block(100), "nbytes": 8192, "logical_bytes": 100 * 8192}]
    own = (3 * 4 + 1) * 8192
    for rest in (0, MIB):
        model = learned(
            task(n, listed, 3 * MIB, input_bytes=own + rest, inputs_omitted=5) for n in range(3)
        )
        ((size, *_),) = model.seen("load")
        assert size == (3 * 4 + 100) * 8192 + rest


def test_a_view_counts_by_its_shape():
    """It owns nothing; what comes next allocates by its shape."""
    view = {**block(50), "nbytes": 0, "logical_bytes": 50 * 8192, "view": True}
    model = learned(task(n, [block(100)], 64 + n, output=view, output_bytes=0) for n in range(5))
    forecast = model.predict([block(100)], "load")
    assert forecast.output["nbytes"] == 50 * 8192 and forecast.mean < 1_000
    assert model.predict([block(100)], "load", kind="output").mean < 8192


def test_lengths_that_are_not_known_are_not_scaled():
    masked = {"type": "Array", "dtype": "float64", "shape": [None, 1024], "nbytes": None}
    assert scaled([masked, UNKNOWN], 2) == [{**masked, "shape": None}, UNKNOWN]
    run = learn_run([task(n, [masked, UNKNOWN], MIB) for n in range(3)])
    assert run.refused == 0 and run.model.predict([masked], "load").n == 3


def test_the_new_fields_come_over_a_port():
    given = {
        **record(1),
        "operation": "smooth",
        "chain": ["getitem", "smooth"],
        "params": {"sigma": -1.5, "n": 2**70, "on": True},
        "inputs": [
            {**block(4, count=3, lazy=True), "evil": "x"},
            block(4, late=True, logical_bytes=5),
            {**UNKNOWN, "shape": [None, 3]},
        ],
        "output": {**block(4), "view": True},
    }
    found = checked_record(given)
    assert (found["operation"], found["chain"]) == ("smooth", ["getitem", "smooth"])
    assert found["params"] == given["params"]
    first, second, third = found["inputs"]
    assert first == block(4, count=3, lazy=True)
    assert second == block(4, late=True, logical_bytes=5)
    assert third == {"type": "Survey", "shape": [None, 3], "nbytes": None}
    assert found["output"]["view"] is True
    assert "operation" not in checked_record(record(1))


@pytest.mark.parametrize(
    "fields",
    [
        {"operation": 5},
        {"operation": "x" * 10_001},
        {"chain": "x"},
        {"chain": [5]},
        {"chain": ["x"] * 257},
        {"chain": ["x" * 10_001]},
        {"params": [1]},
        {"params": {"name": "text"}},
        {"params": {"x": float("nan")}},
        {"params": {"x": 10**400}},
        {"params": {"x": None}},
        {"params": {str(i): i for i in range(17)}},
        {"params": {"x" * 10_001: 1}},
        {"inputs": [block(4, count=0)]},
        {"inputs": [block(4, count=1 << 30)]},
        {"inputs": [block(4, count=2.0)]},
        {"inputs": [block(4, logical_bytes=-1)]},
    ],
    ids=str,
)
def test_new_fields_that_are_nonsense_are_refused(fields):
    with pytest.raises(ValueError):
        checked_record({**record(1), **fields})
