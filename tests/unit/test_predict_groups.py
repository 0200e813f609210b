"""Groups in the model: one model for each operation and chain, asked for by any of its names."""

import json
from pathlib import Path

import pytest

from dwsr_probe.predict import Model
from dwsr_probe.predict.group import Group
from dwsr_probe.predict.history import RunSample, learn_run
from dwsr_probe.record import TaskRecord
from tests.unit.workers import MIB, record

SAVED = Path(__file__).parent.parent / "data" / "predict-1" / "model.json"
BLOCK = [{"dtype": "float64", "shape": [MIB // 8]}]
FACTORS = {"Gaussian": 2, "RMS": 3, "Semblance": 9, "GST": 14, "Chaos": 20}


def operators(count=8):
    """Five operators under one prefix of keys, as a pipeline that is stored has them."""
    return [
        record(
            n,
            name="store-map",
            size=(n % 4 + 1) * MIB,
            peak=factor * (n % 4 + 1) * MIB,
            operation=operation,
            chain=["from-zarr", operation, "store"],
        )
        for n in range(count)
        for operation, factor in FACTORS.items()
    ]


def learned(records):
    model = Model()
    for given in records:
        model.learn(given)
    return model


def two_chains():
    return [
        record(n, name=name, peak=peak * MIB, operation="smooth", chain=chain)
        for n in range(6)
        for name, peak, chain in (
            ("getitem-smooth", 3, ["getitem", "smooth"]),
            ("smooth-store", 8, ["smooth", "store", "sum"]),
        )
    ]


def test_five_operators_under_one_prefix_are_five_models():
    model = learned(operators())
    assert {group.name for group in model.groups()} == set(FACTORS)
    for operation, factor in FACTORS.items():
        forecast = model.predict(BLOCK, operation)
        assert forecast.n == 8 and forecast.mean == pytest.approx(factor * MIB, rel=0.02)
    assert len(model.groups("store-map")) == 5
    assert model.kinds("store-map") == ["alloc", "output"]
    assert sum(count for *_, count in model.seen("store-map")) == 40


def test_two_chains_of_an_operation_are_two_models():
    model = learned(two_chains())
    first, second = model.groups("smooth")
    assert model.labels() == {first: "smooth (1 of 2)", second: "smooth (2 of 2)"}
    assert (first, second) == (
        Group("smooth", ("getitem", "smooth")),
        Group("smooth", ("smooth", "store", "sum")),
    )
    for asked, peak in (
        ("smooth (1 of 2)", 3),
        ("smooth (2 of 2)", 8),
        (second.text, 8),
        (second, 8),
        ("getitem", 3),  # a function of the chain
        ("smooth-store", 8),  # the prefix of keys
        ("store", 8),
    ):
        assert model.predict(BLOCK, asked).mean == pytest.approx(peak * MIB, rel=0.02), asked
        assert model.kinds(asked) == ["alloc", "output"] and model.seen(asked), asked
    assert model.groups("never") == [] and model.predict(BLOCK, "never").trust == "none"
    assert model.kinds("never") == [] and model.seen("never") == []


def test_a_group_by_itself_is_asked_for_exactly():
    """A record of a group that was never seen does not take the model of another one."""
    model = learned(two_chains())
    assert model.predict(BLOCK, Group("smooth", ("another", "smooth"))).n == 0
    assert model.predict(BLOCK, Group("smooth")).n == 0


def test_without_operation_and_chain_groups_are_task_names():
    records = [record(n, name="filter", operation=None, chain=None) for n in range(5)]
    model = learned([*records, record(5, name="filter", operation="filter")])
    assert model.names() == ["filter"] and model.groups("filter") == [Group("filter")]
    assert model.predict(BLOCK, "filter").n == 6
    assert model.operation("filter") == "filter" and model.task_names("filter") == ["filter"]
    assert learned(records).operation("filter") is None


def test_rounds_say_whose_they_are():
    model = learned(operators(6))
    rounds = model.learn(
        record(99, "store-map", operation="GST", chain=["from-zarr", "GST", "store"])
    )
    assert rounds
    assert {(r.task_name, r.operation, r.group.name) for r in rounds} == {
        ("store-map", "GST", "GST")
    }


def test_running_tasks_belong_to_their_group():
    model = learned(two_chains())
    before = [model.predict(BLOCK, group).mean for group in model.groups()]
    low = record(None, "getitem-smooth", peak=30 * MIB, state="running", start=77.0)
    model.learn({**low, "operation": "smooth", "chain": ["getitem", "smooth"]})
    after = [model.predict(BLOCK, group).mean for group in model.groups()]
    assert after[0] > 2 * before[0] and after[1] == before[1]
    model.forget_running()
    assert model.predict(BLOCK, "getitem").mean == before[0]


def test_there_and_back():
    model = learned([*operators(), *two_chains()])
    again = Model.from_dict(json.loads(json.dumps(model.to_dict())))
    assert again.groups() == model.groups() and again.labels() == model.labels()
    for group in model.groups():
        assert again.task_names(group) == model.task_names(group) != []
        assert again.operation(group) == group.name
        assert again.predict(BLOCK, group).mean == model.predict(BLOCK, group).mean
    assert again.to_dict() == model.to_dict()


def test_merged():
    records = two_chains()
    one, other = learned(records[::2]), learned(records[1::2])
    extra = {**records[0], "task_name": "another-prefix", "seq": 99, "start": 99.0}
    other.learn(extra)
    one.merge(other)
    assert len(one.groups("smooth")) == 2
    assert one.task_names("getitem") == ["another-prefix", "getitem-smooth"]
    assert one.predict(BLOCK, "getitem").n == 7


def test_a_model_that_an_earlier_version_saved():
    """Of `smooth`, 3 bytes per byte, and `store-map`, 5; each 12 tasks, and one that was killed."""
    model = Model.load(SAVED)
    assert model.groups() == [Group("smooth"), Group("store-map")]
    assert model.task_names("store-map") == ["store-map"] and model.operation("smooth") is None
    given = [{"dtype": "float64", "shape": [MIB]}]
    assert model.predict(given, "store-map").mean == pytest.approx(40 * MIB, rel=0.02)
    assert 26 * MIB < model.predict(given, "smooth").mean < 40 * MIB  # half the block took 13 MiB
    for given in operators():
        model.learn(given)
    assert len(model.groups("store-map")) == 6 and model.predict(BLOCK, "store-map").n == 12


def test_names_are_kept_in_bounded_space():
    model = Model()
    for n in range(2_000):
        model.learn(record(n, name=f"load-{n:04}", operation="load"))
        model.learn(record(n, name="x" * 9_000 + str(n), operation="long"))
    assert len(model.task_names("load")) == 256 and len(model.task_names("long")) == 1
    assert model.predict(BLOCK, "load").n == 2_000
    assert len(json.dumps(model.to_dict())) < 100_000


@pytest.mark.parametrize(
    "fields",
    [
        {"operation": 5},
        {"operation": ""},
        {"operation": "x" * 20_000},
        {"chain": 5},
        {"chain": "text"},
        {"chain": [5]},
        {"chain": ["x"] * 1_000},
        {"chain": ["x" * 20_000]},
    ],
    ids=str,
)
def test_names_that_are_none_are_refused(fields):
    model = Model()
    with pytest.raises(ValueError, match=r"operation is|chain is"):
        model.learn(record(1, **fields))
    assert model.names() == []


def test_a_sample_is_taken_of_each_group():
    records = [
        TaskRecord(**{name: value for name, value in given.items() if name != "run"})
        for given in operators(100)
    ]
    sample = RunSample(10)
    for given in records:
        sample.add(given)
    assert 50 <= len(sample.chosen()) <= 55
    text = "GST [from-zarr → GST → store]"
    assert sample.largest_input_bytes(text) == 4 * MIB
    run = sample.learn()
    assert set(run.largest) == set(run.varying_axes) == set(run.model.names())
    assert run.largest[text].inputs[0]["nbytes"] == 4 * MIB
    assert learn_run(operators(100), 10).model.names() == run.model.names()
