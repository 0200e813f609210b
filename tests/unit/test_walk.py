"""What the walk over a task says without a cluster: names of functions of every kind, inputs, and
what it keeps (binding/graph.pyx, binding/functions.pyx)."""

import functools
import gc
import weakref

import numpy as np
import pytest

from dwsr_probe import _core
from dwsr_probe._core import (
    begin_graph_task,
    describe_inputs,
    end_graph_task,
    use_key_split,
    walk_task,
)

spec = pytest.importorskip("dask._task_spec")
Task, TaskRef, List = spec.Task, spec.TaskRef, spec.List


def decorated(function):
    @functools.wraps(function)
    def wrapper(*args):
        return function(*args)

    return wrapper


@decorated
def first(x):
    return x


@decorated
def second(x):
    return x + 1


@functools.lru_cache
def cached(x):
    return x


def add(x, y):
    return x + y


def load():
    return np.ones((100, 1000))


def named(function, *args):
    return walk_task(Task("key", function, *args))[1:]


def test_functions_with_one_decorator_keep_their_own_names():
    for _ in range(2):
        assert named(first, 1) == ("first", ["first"])
        assert named(second, 1) == ("second", ["second"])


def test_functions_that_are_not_pythons_own_have_their_names():
    assert named(str.upper, "a") == (None, ["upper"])
    assert named(cached, 1) == ("cached", ["cached"])
    assert named(_core.describe_inputs, 1) == ("describe_inputs", ["describe_inputs"])  # Cython's
    assert named(functools.reduce, max, [1]) == (None, ["reduce"])
    assert named(np.poly1d([1, 2]), 1) == (None, ["poly1d"])


@pytest.mark.parametrize("wrap", [np.vectorize, lambda f: np.frompyfunc(f, 1, 1)])
def test_a_function_that_numpy_vectorizes_has_its_name_and_is_not_kept(wrap):
    class Data:
        pass

    data = Data()
    gone = weakref.ref(data)

    def scale(x, data=data):
        return x

    assert named(wrap(scale), 1) == ("scale", ["scale"])
    del scale, data
    gc.collect()
    assert gone() is None


def run_task(probe, task, data, key="key"):
    """Execute a task as the hooks do; return its record's inputs as (bytes, count, late)."""
    use_key_split(str)
    entry = begin_graph_task(key, task, data)
    end_graph_task(entry, (entry.node or task)(data))
    return [
        (given["nbytes"], given.get("count", 1), given.get("late", False))
        for given in probe.records()[-1].inputs
    ]


def test_a_task_that_reads_what_another_one_has_read_is_no_source(probe):
    x = np.ones((100, 1000))
    a, b = Task("a", first, TaskRef("x")), Task("b", second, TaskRef("x"))
    both = Task.fuse(a, b, Task("c", add, TaskRef("a"), TaskRef("b")))
    assert run_task(probe, both, {"x": x}) == [(x.nbytes, 1, False)]


def test_a_task_that_reads_what_a_source_returned_is_no_source(probe):
    a, b = Task("a", load), Task("b", second, TaskRef("a"))
    both = Task.fuse(a, b, Task("c", add, TaskRef("a"), TaskRef("b")))
    assert run_task(probe, both, {}) == [(800_000, 1, True)]


def test_two_sources_given_the_same_small_value_are_two(probe):
    def load_from(path):
        return load()

    a, b = Task("a", load_from, TaskRef("path")), Task("b", load_from, TaskRef("path"))
    both = Task.fuse(a, b, Task("c", add, TaskRef("a"), TaskRef("b")))
    given = run_task(probe, both, {"path": b"file"})
    assert given == [(4, 1, False), (800_000, 2, True)]


def test_the_output_of_an_actors_method_that_is_given_data_is_no_input(probe):
    use_key_split(str)
    end_graph_task(begin_graph_task("Counter.add", None, [load()]), load())
    (given,) = probe.records()[-1].inputs
    assert not given.get("late") and given["nbytes"] == 800_000


def test_a_late_list_of_many_arrays_has_no_total_that_leaves_some_out(probe):
    use_key_split(str)
    entry = begin_graph_task("load", Task("load", list), {})
    end_graph_task(entry, [np.ones(1000)] * 300)
    assert probe.records()[-1].input_bytes is None


class Counted(str):
    """A key that counts how often it is compared."""

    compared = 0
    __hash__ = str.__hash__

    def __eq__(self, other):
        Counted.compared += 1
        return str.__eq__(self, other)


def test_a_walk_is_not_quadratic_in_the_dependencies_of_a_fused_task():
    keys = [Counted(f"x-{i}") for i in range(5000)]
    joined = Task("joined", np.concatenate, List(*map(TaskRef, keys)))
    task = Task.fuse(joined, Task("second", second, TaskRef("joined")))
    data = {f"x-{i}": np.ones(3) for i in range(5000)}
    Counted.compared = 0
    walk_task(task, data)
    assert Counted.compared < 50_000


def test_a_metaclass_of_the_jobs_is_not_asked():
    asked = []

    class Meta(type):
        def __hash__(cls):
            asked.append("hash")
            return 1

        @property
        def __module__(cls):
            asked.append("module")
            return "numpy"

        @property
        def __name__(cls):
            asked.append("name")
            return "lie"

    class Unhashable(type):
        __hash__ = None

    class Operator(metaclass=Meta):
        def __call__(self, x):
            return x

    class Value(metaclass=Unhashable):
        pass

    array, tasks = np.ones(3), []
    for function in (Operator(), Operator, Operator().__call__, len):
        tasks.append(Task("key", function, Operator(), Value(), array))
    asked.clear()
    for task in tasks:
        assert b'"shape":[3]' in walk_task(task)[0]
    describe_inputs([Operator(), Value(), array])
    assert asked == []


def test_a_function_that_another_task_returned_has_its_name():
    from dask.utils import apply

    task = Task("key", apply, TaskRef("f"), List(TaskRef("x")), {})
    inputs, operation, chain = walk_task(task, {"f": second, "x": np.ones(3)})
    assert (operation, chain) == ("second", ["second"]) and b'"shape":[3]' in inputs
