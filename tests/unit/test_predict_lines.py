"""Records as lines of JSON: what is learned, and what each bad line is told."""

import io
import json

import pytest

from dwsr_probe.predict import Model
from dwsr_probe.predict.history import learn_run
from dwsr_probe.predict.lines import LINE_BYTES_MOST, RecordLines, parse_line
from tests.unit.workers import MIB, record

LEAST = {"task_name": "sort", "alloc_peak_bytes": 2 * MIB}


def lines_of(*given):
    """Texts as they are, all else as JSON."""
    texts = (one if isinstance(one, bytes) else json.dumps(one).encode() for one in given)
    return RecordLines(io.BytesIO(b"\n".join(texts)))


def test_the_least_that_a_line_needs():
    assert parse_line(json.dumps(LEAST).encode()) == LEAST
    run = learn_run(lines_of(*[{**LEAST, "input_bytes": n * MIB} for n in (1, 2, 4)]))
    assert run.refused == 0 and [size for size, *_ in run.model.seen("sort")] == [
        MIB,
        2 * MIB,
        4 * MIB,
    ]
    assert run.largest["sort"].inputs == [{"nbytes": 4 * MIB}]


@pytest.mark.parametrize(
    ("fields", "kind", "peak"),
    [
        ({"alloc_peak_bytes": 5 * MIB}, "alloc", 5 * MIB),
        ({"rss_before_bytes": 7 * MIB, "rss_peak_bytes": 9 * MIB}, "rss", 2 * MIB),
        ({"gpu": [{"peak_bytes": 3 * MIB}, {"peak_bytes": 4 * MIB}]}, "gpu", 4 * MIB),
        ({"output_bytes": 6 * MIB}, "output", 6 * MIB),
        ({"alloc_peak_bytes": MIB, "rss_peak_bytes": 9 * MIB}, "alloc", MIB),
    ],
)
def test_each_kind_of_peak(fields, kind, peak):
    (found,) = lines_of({"task_name": "sort", "nobody": "knows", **fields})
    model = Model()
    model.learn(found)
    assert [(kind, peak)] == [
        (k, mean) for k in model.kinds("sort") for _, mean, _ in model.seen("sort", k)
    ]


def test_a_record_of_our_own_is_learned_as_it_is():
    given = record(1)
    assert parse_line(json.dumps(given).encode()) == given
    assert parse_line(json.dumps({**given, "kind": "process", "task_name": ""}).encode()) is None
    unseen = {**given, "alloc_peak_bytes": None, "attribution_reason": "coroutine"}
    assert parse_line(json.dumps(unseen).encode()) == unseen


def test_inputs_count_before_their_sum():
    given = [{"dtype": "float64", "shape": [MIB]}]
    (found,) = lines_of({**LEAST, "inputs": given, "input_bytes": 8 * MIB})
    assert found["inputs"] == given


def test_whole_numbers_of_other_languages():
    """R writes 1e+06, Lua 5.0."""
    (found,) = lines_of(
        b'{"task_name": "s", "alloc_peak_bytes": 1e+06, "inputs": [{"dtype": "int8", "shape":'
        b' [5.0, 1e3], "nbytes": 5e3}]}'
    )
    assert found["inputs"] == [{"dtype": "int8", "shape": [5, 1000], "nbytes": 5000}]
    assert all(type(n) is int for n in (*found["inputs"][0]["shape"], found["alloc_peak_bytes"]))


@pytest.mark.parametrize(
    ("line", "text"),
    [
        (b"{", "not JSON"),
        (b"task_name,peak", "not JSON"),
        (b"\xff\xfe{}", "not UTF-8"),
        (b"[" * 100_000, "not JSON"),
        (b"[]", "not an object"),
        (5, "not an object"),
        (b'{"task_name": "s", "alloc_peak_bytes": 1' + b"0" * 5_000 + b"}", "not JSON"),
        ({}, "no peak: none of alloc_peak_bytes, rss_peak_bytes"),
        ({"task_name": "s", "alloc_peak": 5}, "no peak"),
        ({"alloc_peak_bytes": 5}, "task name is 'None'"),
        ({**LEAST, "task_name": ""}, "task name is ''"),
        ({**LEAST, "task_name": 5}, "task name is '5'"),
        ({**LEAST, "operation": ["a"]}, "operation is"),
        ({**LEAST, "chain": [{}]}, "chain is"),
        ({**LEAST, "alloc_peak_bytes": -5}, "alloc peak is below zero"),
        ({**LEAST, "alloc_peak_bytes": "5"}, "alloc peak is '5', not a number"),
        ({**LEAST, "alloc_peak_bytes": True}, "not a number"),
        ({**LEAST, "alloc_peak_bytes": float("nan")}, "not a number"),
        ({**LEAST, "alloc_peak_bytes": float("inf")}, "more than any machine has"),
        ({**LEAST, "input_bytes": "1MB"}, "input_bytes is '1MB', not a number"),
        ({**LEAST, "input_bytes": -1}, "input_bytes is below zero"),
        ({**LEAST, "inputs": {"nbytes": 5}}, "inputs are dict, not a list"),
        ({**LEAST, "inputs": [5]}, "input 0 is 5"),
        ({**LEAST, "inputs": [{"shape": 5}]}, "shape of input 0"),
        ({**LEAST, "inputs": [{"nbytes": "5"}]}, "bytes of input 0"),
        ({**LEAST, "inputs": [{"nbytes": 5, "count": "x"}]}, "count of input 0"),
        ({**LEAST, "output": 5}, "input 0 is 5"),
        ({**LEAST, "gpu": 5}, "gpu is 5, not a list of devices"),
        ({**LEAST, "state": "done"}, "state is 'done', not one of ok"),
        ({**LEAST, "kind": "alloc"}, "kind is 'alloc', not task"),
        ({**LEAST, "start": []}, "start is '[]', not a text or a number"),
        ({"task_name": "s", "rss_peak_bytes": 5}, "rss_peak_bytes without rss_before_bytes"),
        (b" " * LINE_BYTES_MOST + b"5", "the line is longer than 1 MiB"),
    ],
    ids=lambda given: repr(given)[:40],
)
def test_a_bad_line(line, text):
    """It is counted, its fault is said, and the lines around it are learned."""
    lines = lines_of(b"", LEAST, line, LEAST)
    assert list(lines) == [LEAST, LEAST]
    assert (lines.read, lines.refused) == (3, 1)
    number, message = lines.first_refused
    assert number == 3 and text in message and len(message) <= 200


def test_the_first_of_several_bad_lines():
    lines = lines_of(b"\xef\xbb\xbf" + json.dumps(LEAST).encode(), b"\r", b"x", LEAST, b"y", b"")
    assert list(lines) == [LEAST] * 2  # with a byte order mark, too
    assert (lines.read, lines.refused, lines.first_refused[0]) == (4, 2, 3)


def test_nothing():
    for lines in (lines_of(), lines_of(b"\n\n  \n")):
        assert list(lines) == [] and (lines.read, lines.refused) == (0, 0)


def test_lines_of_every_length_around_the_limit():
    for length in (LINE_BYTES_MOST - 2, LINE_BYTES_MOST - 1, LINE_BYTES_MOST, 3 * LINE_BYTES_MOST):
        long = json.dumps(LEAST).encode().ljust(length)
        lines = lines_of(long, LEAST)
        assert list(lines)[-1] == LEAST and lines.read == 2
        assert lines.refused == (length >= LINE_BYTES_MOST)
        assert lines.bytes_read == length + 1 + len(json.dumps(LEAST))


def test_what_the_lines_let_through_the_model_learns():
    """Whatever a record has in a field, the reader refuses what the model would refuse."""
    odd = (None, -1, 0, 2**70, 1.5, "x", "", [], [None], {}, [{}], True, float("nan"))
    lines = lines_of(*[{**record(1), name: value} for name in record(1) for value in odd])
    run = learn_run(lines)
    assert run.refused == 0 and lines.refused > 20 and run.model.names()
