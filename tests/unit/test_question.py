"""Questions to the model: words and JSON, and those that make no sense."""

import json

import pytest

from dwsr_probe.predict import Model
from dwsr_probe.serve.question import (
    Question,
    answer,
    answer_all,
    inputs_from_text,
    parse_question,
)
from dwsr_probe.words import parse_bytes
from tests.unit.workers import MIB, record


@pytest.fixture(scope="module")
def model():
    found = Model()
    for n in range(30):
        found.learn(record(n + 1, size=(n % 5 + 1) * MIB))
    return found


def test_sizes_for_people():
    assert [
        parse_bytes(text)
        for text in ("8GiB", "8 gib", "500MB", "500M", "1e9", "123", "0.5KiB", 5, 2.5)
    ] == [8 << 30, 8 << 30, 5e8, 5e8, 1e9, 123, 512, 5, 2.5]


@pytest.mark.parametrize(
    "text",
    ["", "GiB", "-1", "1XB", "nan", "inf", "1.2.3", None, [], True, -5, float("nan"), "1e999"],
)
def test_sizes_that_are_none(text):
    with pytest.raises(ValueError):
        parse_bytes(text)


def test_inputs_in_words():
    assert inputs_from_text(["512,512,512"], ["float32"]) == [
        {"dtype": "float32", "shape": [512, 512, 512]}
    ]
    assert inputs_from_text(["4x5", "(6, 7)"], ["float32"], ["1KiB"]) == [
        {"dtype": "float32", "shape": [4, 5]},
        {"dtype": "float32", "shape": [6, 7]},
        {"nbytes": 1024},
    ]
    assert inputs_from_text(["4", "5"], ["int8", "int16"]) == [
        {"dtype": "int8", "shape": [4]},
        {"dtype": "int16", "shape": [5]},
    ]
    assert inputs_from_text([], [], []) == [] and inputs_from_text([""], ["int8"]) == [
        {"dtype": "int8", "shape": []}
    ]


@pytest.mark.parametrize(
    ("shapes", "dtypes"),
    [
        (["5"], []),
        (["5", "6", "7"], ["int8", "int8"]),
        (["a"], ["int8"]),
        (["-5"], ["int8"]),
        (["5.5"], ["int8"]),
        (["9" * 30], ["int8"]),
        (["5" + ",5" * 70], ["int8"]),
    ],
)
def test_words_that_are_no_inputs(shapes, dtypes):
    with pytest.raises(ValueError):
        inputs_from_text(shapes, dtypes)


BAD = [
    None,
    5,
    [],
    {},
    {"task": ""},
    {"task": 5},
    {"task": "x" * 100_000},
    {"task": "t", "kind": "disk"},
    {"task": "t", "q": 1},
    {"task": "t", "q": 0},
    {"task": "t", "q": "x"},
    {"task": "t", "q": True},
    {"task": "t", "limit": "much"},
    {"task": "t", "limit": -1},
    {"task": "t", "above": "x"},
    {"task": "t", "inputs": {}},
    {"task": "t", "inputs": [5]},
    {"task": "t", "inputs": [{}]},
    {"task": "t", "inputs": [{"shape": [5]}]},
    {"task": "t", "inputs": [{"shape": "5", "dtype": "int8"}]},
    {"task": "t", "inputs": [{"shape": [-5], "dtype": "int8"}]},
    {"task": "t", "inputs": [{"shape": [5.0], "dtype": "int8"}]},
    {"task": "t", "inputs": [{"shape": [5], "dtype": "float99"}]},
    {"task": "t", "inputs": [{"shape": [5], "dtype": "f8,,"}]},
    {"task": "t", "inputs": [{"shape": [5], "dtype": {}}]},
    {"task": "t", "inputs": [{"nbytes": float("nan")}]},
    {"task": "t", "inputs": [{"nbytes": -1}]},
    {"task": "t", "inputs": [{"nbytes": 1}] * 1000},
    {"task": "t", "inputs": [{"nbytes": 1, "count": 0}]},
    {"task": "t", "inputs": [{"nbytes": 1, "count": "3"}]},
    {"task": "t", "inputs": [{"nbytes": 1, "logical_bytes": -1}]},
    {"task": "t", "color": "red"},
    {"task": "t", "inputs": [{"shape": [1 << 70], "dtype": "int8"}]},
]


@pytest.mark.parametrize("given", BAD, ids=lambda given: repr(given)[:60])
def test_questions_that_are_none(given):
    with pytest.raises(ValueError) as error:
        parse_question(given)
    assert str(error.value) and "\n" not in str(error.value)


def test_an_answer_is_json_and_right(model):
    found = json.loads(
        json.dumps(
            answer(
                model,
                parse_question(
                    {
                        "task": "smooth",
                        "inputs": [{"dtype": "float64", "shape": [MIB]}],
                        "limit": "1GiB",
                        "q": "0.9",
                    }
                ),
            ),
            allow_nan=False,
        )
    )
    assert (
        abs(found["mean_bytes"] - 24 * MIB) < 0.05 * 24 * MIB
        and found["mean_bytes"] <= found["upper_bytes"] < 30 * MIB
    )
    assert (
        (found["task"], found["kind"], found["n"], found["q"]) == ("smooth", "alloc", 30, 0.9)
        and found["exceeds"] < 0.01
        and found["limit_bytes"] == 1 << 30
    )
    assert found["output"]["shape"] == [MIB] and "extrapolating" in found["notes"]


def test_more_is_more_probable_for_one_that_runs(model):
    def chance(**more):
        return answer(model, Question("smooth", [{"nbytes": 4 * MIB}], limit=13 * MIB, **more))[
            "exceeds"
        ]

    assert chance() < chance(above=12.9 * MIB)
    assert chance(above=14 * MIB) == 1


def test_an_unknown_name_has_the_prior(model):
    found = answer(model, Question("never seen", [{"nbytes": MIB}]))
    assert (
        found["trust"] == "none"
        and found["n"] == 0
        and found["upper_bytes"] > found["mean_bytes"]
        and found["promised"] is False
    )


def test_an_answer_says_whose_it_is(model):
    found = answer(model, Question("smooth", [{"nbytes": MIB}]))
    assert (found["group"], found["operation"], found["chain"]) == ("smooth", None, None)
    found = answer(model, Question("never seen", [{"nbytes": MIB}]))
    assert (found["group"], found["operation"], found["chain"]) == (None, None, None)


def test_a_question_that_means_several_groups():
    """A task may be of any of them. The largest bound counts, so that no program takes less for
    granted; all are listed."""
    several = Model()
    for n in range(20):
        for operation, factor in (("rms", 3), ("gst", 9)):
            names = {"operation": operation, "chain": ["load", operation]}
            several.learn(record(n, "store-map", peak=factor * MIB, **names))
    asked = parse_question({"task": "store-map", "inputs": [{"nbytes": MIB}], "limit": 5 * MIB})
    found = json.loads(json.dumps(answer_all(several, asked)))
    gst, rms = found.pop("groups")
    assert gst["exceeds"] > 0.99 > 0.01 > rms["exceeds"]
    assert found["exceeds"] == pytest.approx(0.5, abs=0.01) and "mixture" in found["notes"]
    assert found["upper_bytes"] == gst["upper_bytes"] > rms["upper_bytes"]
    middle = (gst["mean_bytes"] + rms["mean_bytes"]) / 2
    assert found["mean_bytes"] == pytest.approx(middle, rel=0.01)
    assert (found["group"], found["promised"], found["trust"]) == (None, False, "low")
    assert [(one["task"], one["group"], one["operation"], one["chain"]) for one in (gst, rms)] == [
        ("store-map", "gst [load → gst]", "gst", ["load", "gst"]),
        ("store-map", "rms [load → rms]", "rms", ["load", "rms"]),
    ]
    for task in ("rms", "rms [load → rms]"):
        alone = answer_all(several, Question(task, asked.inputs, limit=5 * MIB))
        assert "groups" not in alone and {**alone, "task": "store-map"} == rms


def test_inputs_as_records_have_them():
    given = [
        {"type": "Survey", "dtype": None, "shape": None, "nbytes": None},
        {"dtype": "float64", "shape": [5], "nbytes": 40, "count": 3, "lazy": True, "late": True},
        {"dtype": "float64", "shape": [5], "nbytes": 8, "logical_bytes": 40},
    ]
    found = parse_question({"task": "t", "inputs": given})
    assert found.inputs == [{"type": "Survey"}, *given[1:]]
