"""Numbers and booleans among the arguments of a task: which ones are recorded, under which names,
and as which JSON."""

import asyncio
import enum
import functools
import gc
import json
import math
import weakref
from fractions import Fraction

import numpy as np
import pytest

import dwsr_probe
from dwsr_probe import _core
from dwsr_probe.board import Board
from dwsr_probe.record import TaskRecord
from dwsr_probe.store.checks import NestedParser

graph = pytest.importorskip("dask._task_spec")


@pytest.fixture
def params_of(probe):
    """params_of(function, *args, data=None, **kwargs): as a Dask task of its own."""

    def of(function, *args, data=None, **kwargs):
        node = graph.Task("f-1", function, *args, **kwargs)
        _core.end_graph_task(_core.begin_graph_task("f-1", node, data or {}), None)
        return dwsr_probe.records()[-1].params

    _core.use_key_split(lambda key: "f")
    return of


def smooth(volume, sigma, window=3, *rest, mode="wrap", **more):
    return volume


class Level(enum.IntEnum):
    LOW = 3


class Seconds(float):
    def __repr__(self):
        raise AssertionError("code of the job")

    __float__ = __repr__


class Count(int):
    def __index__(self):
        raise AssertionError("code of the job")

    __int__ = __float__ = __bool__ = __lt__ = __ge__ = __le__ = __index__


class Hostile:
    def __getattr__(self, name):
        raise AssertionError("code of the job")

    def __float__(self):
        raise AssertionError("code of the job")

    __index__ = __bool__ = __eq__ = __hash__ = __float__


NUMBERS = (
    (0, 0),
    (-1, -1),
    (True, True),
    (2**63 - 1, 2**63 - 1),
    (-(2**63), -(2**63)),
    (2**64 - 1, 2**64 - 1),
    (2**64, 2.0**64),
    (-(2**63) - 1, -(2.0**63)),
    (1.5, 1.5),
    (-0.0, -0.0),
    (5e-324, 5e-324),
    (1.7976931348623157e308, 1.7976931348623157e308),
    (0.1 + 0.2, 0.1 + 0.2),
    (np.float64(0.1), 0.1),
    (np.float32(0.5), 0.5),
    (np.float16(2), 2.0),
    (np.int8(-3), -3),
    (np.uint64(2**64 - 1), 2**64 - 1),
    (np.bool_(False), False),
    (np.longdouble(3), 3.0),
    (Level.LOW, 3),
    (Seconds(2.5), 2.5),
    (Count(7), 7),
    (Count(-(2**70)), -(2.0**70)),
)


@pytest.mark.parametrize(("given", "recorded"), NUMBERS, ids=lambda value: type(value).__name__)
def test_numbers_and_booleans(params_of, given, recorded):
    found = params_of(smooth, None, given)
    assert found == {"sigma": recorded}
    assert type(found["sigma"]) is type(recorded)
    assert math.copysign(1, found["sigma"]) == math.copysign(1, recorded)


NO_NUMBERS = (
    "a text",
    b"bytes",
    None,
    1j,
    math.nan,
    -math.inf,
    10**400,
    np.float64("nan"),
    np.complex128(1),
    np.timedelta64(1, "s"),
    np.datetime64("2020-01-01"),
    np.array(1.0),
    np.array([1.0]),
    Fraction(1, 2),
    [1, 2],
    (1, 2),
    {"a": 1},
    Hostile,  # an instance, which pytest could not name
)


@pytest.mark.parametrize("given", NO_NUMBERS, ids=lambda value: type(value).__name__)
def test_nothing_else(params_of, given):
    given = Hostile() if given is Hostile else given
    assert params_of(smooth, None, given, mode=given) == {}


class Filter:
    def __init__(self, width, depth=0):
        pass

    def method(self, volume, size):
        return volume

    def __call__(self, volume, step):
        return volume


def wrapper(function):
    @functools.wraps(function)
    def inner(*args, **kwargs):
        return function(*args, **kwargs)

    return inner


CALLS = (
    (smooth, (None, 1, 2, 3, 4), {"mode": 5, "extra": 6}, "sigma window 3 4 mode extra"),
    (functools.partial(smooth, None, 1, window=9), (), {"x": 1}, "sigma window x"),
    (functools.partial(functools.partial(smooth, None), 1), (2,), {}, "sigma window"),
    (Filter(1).method, (None, 1), {}, "size"),
    (Filter(1), (None, 1), {}, "step"),
    (Filter, (1,), {"depth": 2}, "width depth"),
    (wrapper(smooth), (None, 1), {"window": 2}, "sigma window"),
    (wrapper(wrapper(smooth)), (None, 1), {}, "sigma"),
    (lambda a, b, /, c: None, (1, 2, 3), {}, "a b c"),
    (lambda größe, σ: None, (1, 2), {}, "größe σ"),
    (lambda *args: None, (1, 2), {}, "0 1"),
    (max, (1, 2), {"default": 3}, "0 1 default"),
    (np.add, (1, 2), {}, "0 1"),
)


@pytest.mark.parametrize(("function", "args", "kwargs", "names"), CALLS)
def test_names(params_of, function, args, kwargs, names):
    assert list(params_of(function, *args, **kwargs)) == names.split()


def test_arguments_that_are_results_and_constants_of_the_graph(params_of):
    node, key = graph.TaskRef("n-1"), graph.DataNode(None, 4)
    assert params_of(smooth, None, node, key, data={"n-1": 3}) == {"sigma": 3, "window": 4}
    assert params_of(smooth, node, data={"n-1": np.ones(3)}) == {}
    assert params_of(smooth, node) == {}  # not at hand


def test_what_dask_passes_is_not_the_jobs(params_of):
    given = dict.fromkeys(("block_id", "dtype", "meta", "keepdims", "computing_meta"), 1)
    assert params_of(smooth, None, 2, **given) == {"sigma": 2}


def test_at_most_sixteen_with_short_names(params_of):
    assert params_of(smooth, **{f"p{i}": i for i in range(100)}) == {f"p{i}": i for i in range(16)}
    long = {f"{i:02}" + "x" * 100: i for i in range(16)}
    found = params_of(smooth, **long)
    assert len(found) == 7 and {len(name) for name in found} == {64}  # 512 bytes
    assert params_of(lambda *args: None, *range(300)) == {str(i): i for i in range(16)}
    assert params_of(lambda *args: None, *[None] * 300, 1) == {}
    assert params_of(smooth, **{"x" * 70 + "1": 1, "x" * 70 + "2": 2}) == {"x" * 64: 1}


@pytest.mark.parametrize("name", ['a"b', "a\\b", "a\nb", "\x00", "\ud800", "ü€\U0001f600", ""])
def test_names_of_any_characters(params_of, name):
    (found,) = params_of(smooth, **{name: 1})
    assert found == name.encode("utf-8", "replace").decode()


def test_values_that_differ_take_no_place_among_the_texts(params_of):
    params_of(smooth, None, seed=-1)
    params_of(smooth, None, seed=-1)
    before = Board(_core.board_path()).live()["texts_end"]
    for i in range(300):
        for _ in range(2):
            assert params_of(smooth, None, seed=i * 1.1) == {"seed": i * 1.1}
    assert Board(_core.board_path()).live()["texts_end"] == before


def test_nothing_is_kept(params_of):
    class Given:
        pass

    given, function = Given(), lambda x, n: None
    gone = weakref.ref(given), weakref.ref(function)
    assert params_of(function, given, 1, k=given) == {"n": 1}
    del given, function
    gc.collect()
    assert [one() for one in gone] == [None, None]


# -- blocks and decorated functions


def test_features_of_a_block(probe):
    for _ in range(2):
        with probe.task("solve", features={"nnz": np.int64(5), "dense": False}):
            (running,) = dwsr_probe.snapshot().running
            assert running.params == {"nnz": 5, "dense": False}
    with probe.task("plain"):
        pass
    assert [record.params for record in dwsr_probe.records()] == [
        {"nnz": 5, "dense": False},
        {"nnz": 5, "dense": False},
        {},
    ]


def test_a_block_that_is_entered_again_has_the_same_features(probe):
    given = {"n": 1}
    block = probe.task("again", features=given)
    given["n"] = 2
    for _ in range(2):
        with block:
            pass
    assert [record.params for record in dwsr_probe.records()] == [{"n": 1}, {"n": 1}]


def test_features_that_are_no_numbers(probe, monkeypatch):
    with pytest.raises(TypeError, match="features of a task are a dict of numbers, not a list"):
        probe.task("x", features=[1])
    said = []
    monkeypatch.setattr("dwsr_probe.say.say_once", lambda kind, text: said.append(text))
    for given in ({"n": 1, "name": "secret"}, {"n": 1, 2: 3}, {"n": 1, "x": Hostile()}):
        with probe.task("x", features=given):
            pass
        assert dwsr_probe.records()[-1].params == {"n": 1}
    with probe.task("x", features={f"f{i}": i for i in range(17)}):
        pass
    assert len(dwsr_probe.records()[-1].params) == 16
    assert said == [
        f"task 'x': {why}: this feature is left out of the record"
        for why in (
            "'name' is of type str, not a number",
            "a name is of type int, not str",
            "'x' is of type Hostile, not a number",
            "there are more than 16",
        )
    ]


class Model:
    @dwsr_probe.task("method")
    def fit(self, x, n, *, tolerance=0.1):
        return n

    @classmethod
    @dwsr_probe.task("class method")
    def load(cls, level):
        return level


def test_decorated_functions(probe):
    @probe.task("f", features={"a": 1, "n": 2})
    def f(x, n, flag=False, **more):
        return n

    @probe.task("async")
    async def g(n):
        return n

    @probe.task("given", inputs=[np.ones(3)])
    def h(n):
        return n

    f("text", 5, True, k=6)
    asyncio.run(g(7))
    h(8)
    Model().fit(np.ones(3), 9, tolerance=0.5)
    Model.load(10)
    assert [record.params for record in dwsr_probe.records()] == [
        {"a": 1, "n": 2, "flag": True, "k": 6},  # a feature comes before an argument of its name
        {"n": 7},
        {"n": 8},
        {"n": 9, "tolerance": 0.5},
        {"level": 10},
    ]


def test_switched_off(tmp_path):
    assert dwsr_probe.start(board_dir=str(tmp_path), params=False)
    try:
        with dwsr_probe.task("x", features={"n": 1}):
            pass
        node = graph.Task("f-1", smooth, None, 1)
        _core.end_graph_task(_core.begin_graph_task("f-1", node, {}), None)
        assert [record.params for record in dwsr_probe.records()] == [None, None]
    finally:
        dwsr_probe.stop()


def test_without_a_probe_features_cost_nothing():
    with dwsr_probe.task("x", features={"n": "not looked at"}):
        pass


# -- readers


def test_json_and_checks_of_a_stored_run(params_of):
    params_of(smooth, None, 1.5, True)
    record = dwsr_probe.records()[-1]
    assert json.loads(record.to_json())["params"] == {"sigma": 1.5, "window": True}
    assert TaskRecord().params is None
    assert NestedParser()("params", None) is None
    assert NestedParser()("params", '{"a": 1.5, "b": true}') == {"a": 1.5, "b": True}
    for text in ("[1]", '{"a": "text"}', '{"a": {}}'):
        with pytest.raises(ValueError, match="of a task is"):
            NestedParser()("params", text)
