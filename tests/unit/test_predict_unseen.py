"""Tasks whose own peak may miss memory: nobody is told that such a task fits."""

import io
import json
import math

import pytest

from dwsr_probe.predict import Model
from dwsr_probe.predict.blocks import largest_scale
from dwsr_probe.predict.unseen import REASONS
from dwsr_probe.record import ATTRIBUTION_REASONS, misses_memory
from dwsr_probe.report.forecast import answer_lines, print_names
from dwsr_probe.serve.overrun import need_of
from dwsr_probe.serve.question import Question, answer
from tests.unit.workers import MIB, record, running

POLARS = "foreign-allocator polars"


def unseen(seq, growth, reason=POLARS, size=MIB, own=24, overlap=0, **fields):
    """A task that took `growth` bytes and whose own peak says `own`."""
    return record(
        seq,
        size=size,
        peak=own,
        rss_before_bytes=100 * MIB,
        rss_peak_bytes=100 * MIB + growth,
        overlap=overlap,
        attribution="shared",
        attribution_reason=reason,
        **fields,
    )


def learned(records):
    model = Model()
    for one in records:
        model.learn(one)
    return model


def asked(model, size=MIB, **more):
    given = {"dtype": "float64", "shape": [size // 8]}
    return answer(model, Question("smooth", [given], **more))


EXAMPLES = [
    POLARS,
    "foreign-allocator",
    "unowned-thread zarr_io",
    "native-threads",
    "event-loop",
    "coroutine",
]


@pytest.mark.parametrize("reason", EXAMPLES)
@pytest.mark.parametrize("own", [24, None])
def test_growth_of_tasks_that_ran_alone_is_what_is_known(reason, own):
    records = [unseen(n + 1, 160 * MIB, reason, own=own) for n in range(12)]
    for one in records:
        one["alloc_peak_bytes"] = own
    model = learned(records)
    found = asked(model, limit="1GiB")
    assert found["at_least"] and not found["promised"]
    assert found["mean_bytes"] == pytest.approx(160 * MIB, rel=0.01)
    assert (found["upper_bytes"], found["exceeds"], found["n"]) == (None, None, 12)
    assert found["trust"] == "low" and "unseen" in found["notes"]
    assert found["unseen"] == {"tasks": 12, "share": 1.0, "alone": 12, "reasons": {reason: 12}}
    assert asked(model, limit=100 * MIB)["exceeds"] == 1.0
    text = "\n".join(answer_lines(found, "1GiB"))
    assert "own peak: at least 160." in text and "at most" not in text
    assert "more than 1GiB: not known" in text
    assert f"own peaks may miss memory in 12 of 12 tasks (12 {reason})" in text
    assert "uses the growth of the process in 12 tasks that ran alone" in text


def test_the_model_knows_the_words_of_the_record():
    assert {word for word in ATTRIBUTION_REASONS.values() if misses_memory(word)} == REASONS


def test_a_warm_allocator_does_not_hide_what_the_first_task_took():
    """The process has the pages already, so only the first of fifty tasks makes it grow."""
    model = learned([unseen(n + 1, 160 * MIB if n == 0 else 0) for n in range(50)])
    found = asked(model, limit="150MiB")
    assert found["mean_bytes"] == 160 * MIB and found["exceeds"] == 1.0
    assert asked(model, limit="10GiB")["exceeds"] is None
    # a smaller block may take less: then nothing but the growth of its like is known
    small = asked(model, size=MIB // 2, limit="10GiB")
    assert small["at_least"] and small["upper_bytes"] is None and small["exceeds"] is None


def test_growth_is_learned_by_the_size_of_the_inputs():
    model = learned(
        [unseen(n + 1, (n % 5 + 1) * 30 * MIB, size=(n % 5 + 1) * 10 * MIB) for n in range(30)]
    )
    found = asked(model, size=100 * MIB)
    assert found["at_least"] and found["mean_bytes"] == pytest.approx(300 * MIB, rel=0.05)


def test_if_none_ran_alone_nothing_is_promised():
    model = learned([unseen(n + 1, 160 * MIB, "native-threads", overlap=3) for n in range(12)])
    found = asked(model, limit="1KiB")
    assert (found["mean_bytes"], found["upper_bytes"], found["exceeds"]) == (None, None, None)
    assert found["at_least"] and found["trust"] == "none" and found["unseen"]["alone"] == 0
    text = "\n".join(answer_lines(found))
    assert "own peak: not known" in text and "Nothing can be promised" in text
    assert "nothing of this name was seen" not in text
    out = io.StringIO()
    print_names([("smooth", "alloc", MIB, model.predict([{"nbytes": MIB}], "smooth"))], 0.99, out)
    assert "not known" in out.getvalue() and "no bound" in out.getvalue()


def test_only_the_peak_of_a_killed_task_is_known():
    """No task ran alone, so no growth is known; the forecast names no such tasks."""
    beside = [unseen(n + 1, 160 * MIB, "native-threads", overlap=3) for n in range(5)]
    killed = unseen(6, 0, "native-threads", own=500 * MIB, overlap=3, state="killed")
    found = asked(learned([*beside, killed]), limit="1GiB")
    assert (found["n"], found["mean_bytes"], found["exceeds"]) == (0, 500 * MIB, None)
    text = "\n".join(answer_lines(found))
    assert "at least 500.0 MiB" in text and "more than 1.0 GiB: not known" in text
    assert "None of them ran alone" in text and "did not end well" in text
    assert "0 tasks" not in text and "growth of the process in" not in text


def test_few_among_many_exact_ones():
    """Their own peaks are not learned, their growth is a lower bound; nothing is promised where
    more than one in a hundred is unseen."""
    exact = [record(n + 1, rss_before_bytes=0, rss_peak_bytes=3 * MIB) for n in range(300)]
    model = learned(exact)
    assert asked(model)["promised"] and asked(model)["unseen"] is None
    few = learned([*exact, *(unseen(301 + n, 2 * MIB) for n in range(30))])
    found = asked(few)
    assert not found["at_least"] and found["mean_bytes"] == pytest.approx(3 * MIB, rel=0.02)
    assert found["upper_bytes"] is not None and not found["promised"]
    assert found["trust"] == "fair" and found["unseen"]["share"] == pytest.approx(30 / 330)
    text = "\n".join(answer_lines(found))
    assert "(not promised)" in text and "in 30 of 330 tasks" in text
    one = learned([*exact, unseen(301, 2 * MIB)])
    assert asked(one)["promised"] and asked(one)["trust"] == asked(model)["trust"]
    # what they took is not forgotten among the exact ones
    more = learned([*exact, *(unseen(301 + n, 50 * MIB) for n in range(5))])
    assert asked(more)["upper_bytes"] > 50 * MIB


def test_memory_of_others_in_the_figure_is_as_before():
    """Inner tasks, or a reason that an earlier version did not record: nothing is missing."""
    for reason in (None, "inner-tasks"):
        model = learned([unseen(n + 1, 0, reason, own=3 * MIB) for n in range(12)])
        found = asked(model)
        assert not found["at_least"] and found["unseen"] is None
        assert found["n"] == 12 and "shared" in found["notes"] and "unseen" not in found["notes"]


def test_no_block_is_said_to_fit():
    model = learned([unseen(n + 1, 0) for n in range(40)])
    given = [{"nbytes": MIB}]
    assert largest_scale(model, "smooth", given, 10**12) is None
    assert math.isinf(model.predict(given, "smooth").upper(0.5))
    with pytest.raises(ValueError):
        model.predict(given, "smooth").upper(2)


def test_killed_and_running_ones_have_taken_what_the_process_grew_by():
    model = learned([unseen(n + 1, 160 * MIB, state="killed") for n in range(3)])
    assert model.predict([{"nbytes": MIB}], "smooth").mean > 100 * MIB
    task = running(24, headroom=MIB, attribution_reason=POLARS)
    task |= {"rss_before_bytes": 10 * MIB, "rss_peak_bytes": 60 * MIB}
    assert need_of(task) == ("alloc", 50 * MIB, 40 * MIB)
    assert need_of(task | {"overlap": 1}) == ("alloc", 24, 24)
    assert need_of(task | {"attribution_reason": None}) == ("alloc", 24, 24)
    assert need_of(task | {"rss_before_bytes": None}) == ("alloc", 24, 24)
    assert need_of(task | {"alloc_peak_bytes": None}) == ("rss", 50 * MIB, 40 * MIB)


def test_it_is_kept_and_merged():
    model = learned([unseen(n + 1, 160 * MIB) for n in range(12)])
    kept = Model.from_dict(json.loads(json.dumps(model.to_dict())))
    assert asked(kept) == asked(model)
    kept.merge(learned([unseen(n + 1, 80 * MIB, "native-threads") for n in range(20)]))
    assert asked(kept)["unseen"] == {
        "tasks": 32,
        "share": 1.0,
        "alone": 32,
        "reasons": {"native-threads": 20, POLARS: 12},
    }
    older = model.to_dict()
    for learner in older["tasks"]["smooth"]["learners"].values():
        del learner["unseen"]
    assert asked(Model.from_dict(older))["unseen"] is None


@pytest.mark.parametrize(
    "broken",
    [
        {"alone": 5, "reasons": {"a": 3}},
        {"alone": -1, "reasons": {}},
        {"alone": 0, "reasons": {str(n): 1 for n in range(1000)}},
        {"alone": 0, "reasons": {"a": "x"}},
        {"alone": 0, "reasons": []},
        {"alone": 0},
        [],
        5,
    ],
)
def test_a_kept_count_that_somebody_changed(broken):
    saved = learned([unseen(n + 1, 160 * MIB) for n in range(3)]).to_dict()
    saved["tasks"]["smooth"]["learners"]["alloc"]["unseen"] = broken
    with pytest.raises(ValueError):
        Model.from_dict(saved)


def test_reasons_are_bounded():
    """Each thread has a name of its own."""
    model = learned(
        [unseen(n + 1, 0, f"unowned-thread {'x' * 10**5} Thread-{n}") for n in range(50)]
        + [unseen(n + 51, 0, f"unowned-thread Thread-{n}") for n in range(50)]
    )
    found = asked(model)["unseen"]
    assert found["tasks"] == 100 and len(found["reasons"]) <= 9
    assert len(json.dumps(model.to_dict())) < 30_000
