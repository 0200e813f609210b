"""First calls: what the first task in a thread takes in addition is recognised, left out of later
forecasts, and reported. Figures are of GST, whose first tasks pay for buffers of OpenBLAS."""

import json
import random

import pytest

from dwsr_probe.predict import Model
from dwsr_probe.predict.first_calls import Threads

MIB = 1 << 20
WARM, FIRST = 57.6, (89.6, 121.6)  # MiB of one task, at the smallest size
THREADS = 8  # four in each of two workers
SIZES = (7.2, 14.4, 28.8)


def inputs(size):
    return [{"dtype": "float32", "shape": [round(size * MIB) // 4]}]


def task(number, size, peak, thread, kept=0.0, **others):
    """Figures in MiB. kept: beyond the output; the peak includes it."""
    (output,) = inputs(size)
    output_bytes = 4 * output["shape"][0]
    return {
        "task_name": "gst",
        "inputs": inputs(size),
        "output": {"type": "ndarray", **output, "nbytes": output_bytes},
        "output_bytes": output_bytes,
        "alloc_peak_bytes": round(peak * MIB),
        "alloc_end_bytes": output_bytes + round(kept * MIB),
        "process": f"worker {thread // 4}",
        "thread": thread,
        "start": float(number),
        **others,
    }


def gst(count, sizes=SIZES[:1], noise=0.0, threads=THREADS):
    """The first task of each thread takes 32 or 64 MiB more, and its buffers stay."""
    chance = random.Random(1)
    records = []
    for number in range(count):
        size, thread = sizes[number % len(sizes)], number % threads
        kept = FIRST[number % 2] - WARM if number < threads else 0.0
        peak = size / SIZES[0] * WARM * (1 + chance.gauss(0, noise)) + kept
        records.append(task(number, size, peak, thread, kept))
    return records


def without(fields, records):
    return [{**record, **dict.fromkeys(fields)} for record in records]


def learned(records):
    model = Model()
    for record in records:
        model.learn(record)
    return model


def forecast(model, size=SIZES[0]):
    return model.predict(inputs(size), "gst")


def same(one, other, rel=1e-9):
    return (one.mean, one.upper(0.99)) == pytest.approx((other.mean, other.upper(0.99)), rel=rel)


# -- recognised


@pytest.mark.parametrize(
    ("sizes", "count"), [(SIZES[:1], 10), (SIZES, 12)], ids=["one size", "three sizes"]
)
def test_first_calls_do_not_widen_later_bounds(sizes, count):
    for n in (count, 20, 60):
        found = forecast(learned(gst(n, sizes)))
        assert found.mean == pytest.approx(WARM * MIB, rel=0.01)
        assert WARM * MIB < found.upper(0.99) < 1.15 * WARM * MIB
        assert "value-dependent" not in found.notes and "first-calls" in found.notes
        assert found.first_call_bytes == pytest.approx(64 * MIB, rel=0.01)
        assert found.trust == ("fair" if len(sizes) == 1 else "good")
    # What a model without identities makes of the same tasks
    mixed = forecast(learned(without(["process"], gst(60, sizes))))
    assert mixed.upper(0.99) > 1.5 * WARM * MIB and "value-dependent" in mixed.notes


@pytest.mark.parametrize("sizes", [SIZES[:1], SIZES], ids=["one size", "three sizes"])
def test_with_noise_bounds_are_those_of_the_noise(sizes):
    for n in (14, 20, 60):
        found = forecast(learned(gst(n, sizes, noise=0.05)))
        warm = forecast(learned(gst(2 * n, sizes, noise=0.05)[THREADS : n + THREADS]))
        assert found.mean == pytest.approx(WARM * MIB, rel=0.05)
        assert found.upper(0.99) < 1.15 * warm.upper(0.99)
        assert found.first_call_bytes == pytest.approx(64 * MIB, rel=0.2)


def test_what_first_calls_keep_decides_while_there_are_few_others():
    """One other task of the same size is enough, if first calls kept what they took in addition."""
    records = gst(THREADS + 3)
    assert forecast(learned(records[: THREADS + 1])).mean < 1.01 * WARM * MIB
    unknown = without(["alloc_end_bytes"], records)
    assert forecast(learned(unknown[: THREADS + 2])).mean > 1.3 * WARM * MIB
    assert forecast(learned(unknown)).mean < 1.01 * WARM * MIB


def test_a_single_first_call_gives_way_to_the_second_task():
    records = [task(0, 7.2, 121.6, 0, 64), task(1, 7.2, 57.6, 0)]
    assert forecast(learned(records[:1])).mean > 90 * MIB
    assert forecast(learned(records)).mean < 1.01 * WARM * MIB


def test_a_buffer_that_a_later_task_of_a_thread_takes():
    """OpenBLAS takes one for each concurrent call: the first tasks of a thread may find one that is
    free. A thread has one such task; what is taken again and again is no first call."""
    records = [task(number, 7.2, WARM, number % 4) for number in range(40)]
    records[17] = task(17, 7.2, WARM + 32, 1, 32)
    found = forecast(learned(records))
    assert found.upper(0.99) < 1.15 * WARM * MIB and found.first_call_bytes == 32 * MIB
    # Blocks without an output that have freed what they made
    blocks = [
        {**record, "alloc_end_bytes": record["alloc_end_bytes"] - record["output_bytes"]}
        for record in records
    ]
    found = forecast(learned(without(["output", "output_bytes"], blocks)))
    assert found.upper(0.99) < 1.15 * WARM * MIB and found.first_call_bytes == 32 * MIB
    for number in (18, 19, 21, 22, 23, 25):
        records[number] = task(number, 7.2, WARM + 32, number % 4, 32)
    found = forecast(learned(records))
    assert found.upper(0.99) > (WARM + 30) * MIB and not found.first_call_bytes


def test_first_calls_on_a_device():
    records = [
        {**record, "gpu": [{"peak_bytes": record["alloc_peak_bytes"]}]} for record in gst(30)
    ]
    found = learned(records).predict(inputs(SIZES[0]), "gst", kind="gpu")
    assert found.upper(0.99) < 1.15 * WARM * MIB and found.first_call_bytes == 64 * MIB


def test_the_growth_of_a_process_keeps_its_first_tasks():
    """Later tasks reuse memory that the process has, so the first ones show the most."""
    records = [
        {**record, "rss_before_bytes": 0, "rss_peak_bytes": record["alloc_peak_bytes"]}
        for record in gst(30)
    ]
    found = learned(records).predict(inputs(SIZES[0]), "gst", kind="rss")
    assert found.upper(0.99) > 110 * MIB and not found.first_call_bytes


# -- not hidden


def test_tasks_that_have_a_process_each():
    records = [
        {**record, "process": str(number), "thread": 1}
        for number, record in enumerate(gst(40, SIZES, noise=0.1))
    ]
    ours, theirs = learned(records), learned(without(["process"], records))
    for size in (*SIZES, 100.0):
        assert same(forecast(ours, size), forecast(theirs, size))
    assert not forecast(ours).first_call_bytes


@pytest.mark.parametrize("noise", [0.0, 0.03, 0.3])
def test_first_calls_that_agree_change_nothing(noise):
    records = [{**record, "alloc_end_bytes": None} for record in gst(60, SIZES, noise)[THREADS:]]
    ours, theirs = learned(records), learned(without(["process"], records))
    for size in (*SIZES, 100.0):
        if noise < 0.1:
            assert same(forecast(ours, size), forecast(theirs, size))
        # With much noise a first call may be left out until the noise is known.
        assert forecast(ours, size).mean == pytest.approx(forecast(theirs, size).mean, rel=1e-9)
        assert same(forecast(ours, size), forecast(theirs, size), rel=0.1)
        assert forecast(ours, size).notes == forecast(theirs, size).notes


def test_a_larger_task_that_happens_to_be_first():
    """It knows what the others do not."""
    records = [task(number, 7.2, WARM, number % 4) for number in range(20)]
    records += [task(20, 72, 2 * 576, 5)]
    found = forecast(learned(records), 72)
    assert found.upper(0.99) > 1.9 * 576 * MIB and not found.first_call_bytes


def test_first_tasks_that_alone_know_of_a_step():
    """A threshold between the sizes: others below and above it lie on one line."""

    def peak(size):
        return 8 * size if size < 20 or size > 60 else 14 * size

    first = [task(number, size, peak(size), number) for number, size in enumerate((5, 30, 45, 80))]
    others = [task(10 + number, size, peak(size), 0) for number, size in enumerate((4, 10, 90))]
    found = forecast(learned([*first, *others]), 30)
    assert found.upper(0.99) > peak(30) * MIB and not found.first_call_bytes


def test_a_parameter_that_the_first_tasks_have_tried():
    records = [
        task(number, 7.2, WARM * n, number, params={"n": n})
        for number, n in enumerate((1, 2, 3, 4, 5, 6))
    ]
    records += [task(10 + number, 7.2, WARM, number, params={"n": 1}) for number in range(6)]
    found = learned(records).predict(inputs(7.2), "gst", params={"n": 5})
    assert found.mean == pytest.approx(5 * WARM * MIB, rel=0.1) and not found.first_call_bytes


def test_a_parameter_that_does_not_matter():
    records = [{**record, "params": {"seed": n}} for n, record in enumerate(gst(30))]
    found = forecast(learned(records))
    assert found.upper(0.99) < 1.15 * WARM * MIB
    assert found.first_call_bytes == pytest.approx(64 * MIB, rel=1e-3)


def test_tasks_that_vary_by_as_much():
    """What other tasks take, too, is not that of first calls."""
    chance = random.Random(5)
    records = [
        task(number, 7.2, 121.6 if chance.random() < 0.3 else WARM, number % 8)
        for number in range(60)
    ]
    found = forecast(learned(records))
    assert found.upper(0.99) > 120 * MIB and "value-dependent" in found.notes


# -- contracts


def test_the_order_does_not_matter_for_the_mean():
    """Of tasks of other threads: the first to arrive of a thread is its first."""
    records = gst(40, SIZES)
    firsts, others = records[:THREADS], records[THREADS:]
    whole = forecast(learned(records))
    for seed in range(3):
        random.Random(seed).shuffle(firsts)
        random.Random(seed).shuffle(others)
        assert forecast(learned([*firsts, *others])).mean == pytest.approx(whole.mean, rel=1e-9)
    late = [one for thread in range(8) for one in records if one["thread"] == thread]
    assert forecast(learned(late)).mean == pytest.approx(whole.mean, rel=1e-9)


def test_merged_models():
    records = gst(60, SIZES)
    whole = forecast(learned(records))
    merged = learned(one for one in records if one["process"] == "worker 0")
    merged.merge(learned(one for one in records if one["process"] == "worker 1"))
    found = forecast(merged)
    assert found.mean == pytest.approx(whole.mean, rel=1e-9)
    assert found.first_call_bytes == whole.first_call_bytes
    assert found.upper(0.99) == pytest.approx(whole.upper(0.99), rel=0.05)


@pytest.mark.parametrize("count", [5, 9, 40])
def test_saved_and_loaded(count):
    model = learned(gst(count, SIZES))
    kept = Model.from_dict(json.loads(json.dumps(model.to_dict())))
    assert same(forecast(kept), forecast(model))
    assert forecast(kept).first_call_bytes == forecast(model).first_call_bytes
    # Its threads are known.
    for one in (kept, model):
        one.learn(task(100, 7.2, 200, 3))
    assert forecast(kept).mean == pytest.approx(forecast(model).mean, rel=1e-9)
    assert forecast(kept).first_call_bytes == forecast(model).first_call_bytes


def test_models_of_an_earlier_version():
    saved = learned(gst(40)).to_dict()
    values = saved["tasks"]["gst"]
    del values["threads"]
    for learner in values["learners"].values():
        rows = learner["cases"]["by_key"]
        rows[:] = [row for row in rows if row[0]]
        del learner["cases"]["first"], learner["cases"]["first_n"]
    assert forecast(Model.from_dict(saved)).mean == pytest.approx(WARM * MIB, rel=0.01)


@pytest.mark.parametrize(
    "first",
    [
        [[0, -1, 0, 0, 0, 0]],
        [[0, 1, 10, 1, 10, 0]],
        [[0, 1, 1]],
        [[0, 1, 10, 100, float("nan"), 0]],
    ],
)
def test_damaged_models_are_refused(first):
    saved = learned(gst(40)).to_dict()
    saved["tasks"]["gst"]["learners"]["alloc"]["cases"]["first"] = first
    with pytest.raises(ValueError, match="damaged"):
        Model.from_dict(saved)


def test_a_task_that_has_changed_is_followed():
    """First calls are forgotten with the rest."""
    records = gst(40)
    model = learned(records)
    for number in range(100, 160):
        model.learn(task(number, 7.2, 2 * WARM, number % 8))
    found = forecast(model)
    assert found.mean == pytest.approx(2 * WARM * MIB, rel=0.05)


def test_a_first_task_that_runs():
    """Its peak so far is not what other tasks need."""
    model = learned(gst(40))
    before = forecast(model)
    model.learn(task(100, 7.2, 121, 20, state="running"))
    assert forecast(model).upper(0.99) < 1.2 * before.upper(0.99)
    asked = {"process": "worker 9", "thread": 1, "start": 100.0}
    own = model.predict(inputs(SIZES[0]), "gst", running=asked)
    assert own.exceeds(200 * MIB, above=121 * MIB) < 0.01
    assert own.exceeds(115 * MIB) > 0.9 and before.exceeds(115 * MIB) < 0.01
    assert own.upper(0.99) == pytest.approx(before.upper(0.99) + 64 * MIB, rel=0.05)
    model.learn(task(101, 7.2, 200, 3, state="running"))
    assert forecast(model).upper(0.99) > 200 * MIB


def test_threads_are_bounded():
    threads = Threads()
    assert threads.add(("1", 1, 0.0), False) and not threads.add(("1", 1, 1.0), False)
    assert threads.add(("1", 1, 2.0), True) and not threads.add(("1", 1, 3.0), True)
    assert not threads.add(None, True) and not threads.add(("1", None, 1.0), True)
    for number in range(2000):
        assert threads.add(("2", number, 0.0), True)
        assert not threads.add(("2", 0, 0.0), False)  # one that is seen often is kept
    other = Threads.from_list(json.loads(json.dumps(threads.to_list())))
    other.merge(threads)
    assert other.to_list() == threads.to_list() and len(threads.to_list()) == 512


def test_one_record_with_parameters_changes_nothing():
    """The other tasks have none, so they are compared without."""
    records = gst(40, threads=1)
    plain = learned(records).predict(inputs(SIZES[0]), "gst")
    records[20]["params"] = {"sigma": 3}
    forecast = learned(records).predict(inputs(SIZES[0]), "gst")
    assert forecast.upper(0.99) == pytest.approx(plain.upper(0.99), rel=0.01)
    assert forecast.first_call_bytes == plain.first_call_bytes > 30 * MIB


def test_the_first_parameter_after_first_calls():
    """Calls with the default, then one that names it."""
    records = [task(n, 10 + n / 10, 20, 0, 20.0 * (not n)) for n in range(4)]
    model = learned([*records, task(9, 10, 20, 0, params={"sigma": 2})])
    assert model.predict(inputs(10), "gst", params={"sigma": 2}).mean < 45 * MIB


def test_a_first_call_that_was_killed():
    """It had what first calls take, and less than the others beside."""
    records = gst(40)
    before = learned(records).predict(inputs(SIZES[0]), "gst")
    killed = task(99, SIZES[0], 80, 99, state="killed", alloc_end_bytes=None)
    forecast = learned([*records, killed]).predict(inputs(SIZES[0]), "gst")
    assert forecast.upper(0.99) == pytest.approx(before.upper(0.99), rel=0.05)
