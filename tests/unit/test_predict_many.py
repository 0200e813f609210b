"""Many questions at once have the answers that each has alone."""

import math
import random

import numpy as np
import pytest

from dwsr_probe.predict import KINDS, Model
from dwsr_probe.predict import many as many_module
from dwsr_probe.predict.columns import columns_of
from dwsr_probe.predict.normal import cdf, cdf_of_many
from dwsr_probe.predict.sizes import parse_inputs, size_features

MIB = 1 << 20
QUANTILES = (0.5, 0.9, 0.95, 0.99, 0.999)


def array(*shape, dtype="float32", **others):
    return {"dtype": dtype, "shape": list(shape), **others}


def record(inputs, peak, **others):
    return {"task_name": "op", "inputs": inputs, "alloc_peak_bytes": max(1, int(peak)), **others}


def shapes(chance, count, axes=3, most=200):
    return [[chance.randrange(1, most) for _ in range(axes)] for _ in range(count)]


def bytes_of(inputs):
    return sum(4 * math.prod(one["shape"]) for one in inputs)


def learned(count, peak, seed=0, output=None, ask=lambda chance, shape: [array(*shape)], **others):
    """peak, output: of the shape of the inputs and their bytes."""
    chance, model = random.Random(seed), Model()
    for number, shape in enumerate(shapes(chance, count)):
        inputs = ask(chance, shape)
        nbytes = bytes_of(inputs)
        given = record(inputs, peak(shape, nbytes) * chance.gauss(1, 0.01), **others)
        if output is not None:
            returned = array(*output(shape))
            given |= {"output": returned, "output_bytes": bytes_of([returned])}
        model.learn({**given, "process": "1-1", "thread": 1, "start": float(number)})
    return model


def lines(count=200, **others):
    return learned(count, lambda shape, nbytes: MIB + 4 * nbytes, **others)


def two_inputs(chance, shape):
    return [array(*shape), array(*shape, dtype="float64")]


def with_params(levels):
    chance, model = random.Random(0), Model()
    for shape in shapes(chance, 150):
        value = chance.randrange(1, 6)
        factor = (2, 9, 4, 11, 5)[value - 1] if levels else 2 + value
        inputs = [array(*shape)]
        peak = factor * bytes_of(inputs)
        model.learn(record(inputs, peak, params={"sigma": value, "seed": chance.random()}))
    return model


def with_censored():
    model = lines(30)
    chance = random.Random(1)
    for number, shape in enumerate(shapes(chance, 12, most=400)):
        inputs = [array(*shape)]
        state = ("killed", "error", "running")[number % 3]
        oom = {"where": "host", "requested_bytes": 5 * bytes_of(inputs), "live_bytes": 7}
        at = {"process": "k", "thread": number, "start": 1.0}
        peak = 3.9 * bytes_of(inputs)
        model.learn(record(inputs, peak, state=state, oom=oom, **at))
    return model


def unseen():
    model = lines(20)
    inputs = [array(100, 100, 100)]
    for _ in range(30):
        model.learn(
            record(inputs, 5, attribution_reason="foreign-allocator", rss_before_bytes=0)
            | {"rss_peak_bytes": 3 * bytes_of(inputs)}
        )
    return model


def without_shapes():
    model, chance = Model(), random.Random(0)
    for _ in range(40):
        nbytes = chance.randrange(MIB, 20 * MIB)
        model.learn(record([{"nbytes": nbytes}], 3 * nbytes * chance.lognormvariate(0, 0.3)))
    return model


def some_large_only():
    """Small tasks need more than the line of the large ones says."""
    return learned(
        150, lambda shape, nbytes: 10 * MIB + (3 if nbytes > 3 * MIB else 5) * nbytes, seed=3
    )


MODELS = {
    "nothing learned": Model,
    "one value": lambda: lines(1),
    "few values": lambda: lines(4),
    "lines": lines,
    "output kept": lambda: lines(output=lambda shape: shape),
    "output reduced": lambda: lines(output=lambda shape: shape[:-1]),
    "output of half the rows": lambda: lines(output=lambda shape: [shape[0] // 2, *shape[1:]]),
    "output without a rule": lambda: lines(output=lambda shape: [shape[0] * shape[1] % 97 + 1, 5]),
    "output is the peak": lambda: learned(
        50, lambda shape, nbytes: 2 * nbytes, output=lambda shape: shape
    ),
    "output smaller than the input": lambda: lines(
        output=lambda shape: [max(0, length - 20) for length in shape]
    ),
    "two inputs": lambda: lines(ask=two_inputs),
    "a sum of two sizes": lambda: learned(
        200, lambda shape, nbytes: nbytes + 40 * shape[0] * shape[1] * 4 + 9 * shape[2] ** 2
    ),
    "a bend": lambda: learned(
        200, lambda shape, nbytes: 6 * min(nbytes, 5 * MIB) + 2 * nbytes + MIB
    ),
    "one of several amounts": lambda: learned(
        150, lambda shape, nbytes: (2, 2, 2, 7)[sum(shape) % 4] * nbytes
    ),
    "nearby": some_large_only,
    "parameters": lambda: with_params(False),
    "levels": lambda: with_params(True),
    "censored": with_censored,
    "unseen": unseen,
    "without shapes": without_shapes,
    "other numbers of axes": lambda: lines(ask=lambda chance, shape: [array(*shape[:2])]),
}


def questions(seed=7):
    chance = random.Random(seed)
    found = [[array(*shape)] for shape in shapes(chance, 40)]
    found += [[array(*shape)] for shape in shapes(chance, 10, most=5000)]  # up to beyond
    found += [[array(*shape)] for shape in shapes(chance, 8, axes=2)]
    found += [[array(*shape)] for shape in shapes(chance, 5, axes=6, most=9)]
    found += [[array(*shape)] for shape in shapes(chance, 5, axes=1, most=10**6)]
    found += [[array(*shape), array(*shape[:2])] for shape in shapes(chance, 8)]
    found += [[array(*shape), array(*reversed(shape))] for shape in shapes(chance, 8)]
    found += [
        [array(*shape, dtype="object", nbytes=chance.randrange(1, 99 * MIB))]
        for shape in shapes(chance, 8)
    ]
    found += [[array(chance.randrange(1, 9), dtype="uint8")] for _ in range(6)]  # like handles
    found += [[], [{"nbytes": 5 * MIB}], [{"type": "Survey"}], [array()], [array(0, 5)]]
    found += [[array(50, 50, 50, count=3)], [array(50, None, 50)], ({"shape": (5, 5, 5)},)]
    found += [[array(50, 50, 50, lazy=True, type="Array")] for _ in range(4)]
    found += [[array(1 << 20, 1 << 20, 1 << 15)] for _ in range(4)]
    chance.shuffle(found)
    return found


def compare(model, asked, kind="alloc", params=None):
    found = model.predict_many(asked, "op", kind, params)
    every = params if isinstance(params, list) else [params] * len(asked)
    alone = [
        model.predict(inputs, "op", kind, params=one)
        for inputs, one in zip(asked, every, strict=True)
    ]
    assert len(found) == len(asked)
    assert found.mean == pytest.approx([one.mean for one in alone], rel=1e-9)
    for q in QUANTILES:
        assert found.upper(q) == pytest.approx([one.upper(q) for one in alone], rel=1e-6)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.filterwarnings("error")
def test_the_same_as_alone(name):
    model, asked = MODELS[name](), questions()
    for kind in KINDS:
        compare(model, asked, kind)
    chance = random.Random(3)
    values = ({"sigma": 3}, {"sigma": 2.5}, {"sigma": 9.0, "seed": 1}, {"other": 1}, {}, None)
    compare(model, asked, params={"sigma": 2})
    compare(model, asked, params=[chance.choice(values) for _ in asked])


def test_most_questions_are_answered_together(monkeypatch):
    """Of a model that knows them; the same in blocks of few."""
    model, asked = lines(output=lambda shape: shape), [[array(*s)] for s in shapes(random, 300)]
    found = model.predict_many(asked, "op")
    assert not found._others and len(found._blocks) == 1
    for name, number in (("_NUMBERS_AT_ONCE", 50), ("_ROUNDS", 1)):
        monkeypatch.setattr(many_module, name, number)
        assert (model.predict_many(asked, "op").upper() == found.upper()).all()


def test_later_records_change_nothing():
    model, asked = lines(20), [[array(*s)] for s in shapes(random.Random(0), 50)]
    found = model.predict_many(asked, "op")
    before = model.predict_many(asked, "op").upper()
    for _ in range(5):
        model.learn(record([array(100, 100, 100)], 900 * MIB))
    assert (found.upper() == before).all()
    assert (model.predict_many(asked, "op").upper() != before).all()


@pytest.mark.parametrize(
    "bad",
    [
        [array(5, -5)],
        [array(5, "x")],
        [array(10**400, 5)],
        [array(5, 1.5, nbytes=-1)],
        [array(True, 5)],
        ["x"],
        {"shape": [5, 5]},
        None,
    ],
)
def test_a_bad_question_is_named_by_its_number(bad):
    model, asked = lines(20), [[array(5, n + 1)] for n in range(20)]
    with pytest.raises(ValueError) as alone:
        model.predict(bad, "op")
    with pytest.raises(ValueError, match=r"^question 17: ") as together:
        model.predict_many([*asked[:17], bad, *asked[17:]], "op")
    assert str(together.value) == f"question 17: {alone.value}"


def test_bad_arguments_are_refused():
    model, asked = lines(20), [[array(5, n + 1)] for n in range(20)]
    with pytest.raises(ValueError, match="question 1: parameter x is"):
        model.predict_many(asked[:2], "op", params=[None, {"x": "y"}])
    with pytest.raises(ValueError, match="20 questions have 1 params"):
        model.predict_many(asked, "op", params=[None])
    with pytest.raises(ValueError, match=r"^params are"):
        model.predict_many(asked, "op", params="x")
    with pytest.raises(ValueError, match="kind is"):
        model.predict_many(asked, "op", "x")
    with pytest.raises(ValueError, match="task name is"):
        model.predict_many(asked, 5)
    with pytest.raises(ValueError, match="a quantile is"):
        model.predict_many(asked, "op").upper(1)


def test_no_question_has_no_answer():
    found = lines(5).predict_many([], "op")
    assert not len(found) and not found.mean.size and not found.upper().size


def test_questions_may_be_any_iterable():
    model, asked = lines(20), [[array(5, n + 1)] for n in range(20)]
    assert (
        model.predict_many(iter(asked), "op").mean == model.predict_many(asked, "op").mean
    ).all()


def test_columns_have_the_same_size_functions():
    asked = questions()
    for columns in columns_of(asked):
        outputs = 7.0 * np.arange(len(columns.places))
        found = columns.features(outputs)
        for row, (place, output) in enumerate(zip(columns.places, outputs, strict=True)):
            arrays = parse_inputs(asked[place])
            assert found[row] == pytest.approx(size_features(arrays, int(output)), rel=1e-12)


def test_the_distribution_function_of_many():
    x = np.concatenate((np.random.default_rng(0).normal(0, 9, 5000), [-1e300, 1e300, 35, -35, 0]))
    assert cdf_of_many(x.copy()) == pytest.approx(cdf(x), abs=1e-14)
