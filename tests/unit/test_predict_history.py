"""The sample of a run, and what is learned from it."""

import subprocess
import sys
from itertools import pairwise

from dwsr_probe.predict import Model
from dwsr_probe.predict.history import RunSample, learn_run
from dwsr_probe.record import TaskRecord

MIB = 1 << 20


def record(n, size=1, state="ok", name="glcm", peak=None, **more):
    return TaskRecord(
        seq=n,
        process="1-1",
        thread=1,
        start=float(n),
        task_name=name,
        state=state,
        inputs=[{"type": "ndarray", "dtype": "uint8", "shape": [size, MIB], "nbytes": size * MIB}],
        input_bytes=size * MIB,
        alloc_peak_bytes=3 * size * MIB if peak is None else peak,
        **more,
    )


def sampled(records, most):
    sample = RunSample(most)
    for one in records:
        sample.add(one)
    return sample


def test_few_and_evenly_spread():
    records = [record(n, 1 + n % 7) for n in range(10_000)]
    chosen = sampled(records, 60).chosen()
    assert 60 <= len(chosen) <= 61
    assert max(b.seq - a.seq for a, b in pairwise(chosen)) <= 400


def test_a_little_more_than_the_limit_is_not_halved():
    assert 60 <= len(sampled([record(n) for n in range(61)], 60).chosen()) <= 61


def test_the_largest_inputs_are_in_the_sample_whatever_became_of_the_task():
    records = [record(n) for n in range(1000)]
    for state in ("ok", "killed", "error"):
        records[501] = record(501, size=50, state=state)
        sample = sampled(records, 10)
        assert records[501] in sample.chosen() and sample.largest_input_bytes("glcm") == 50 * MIB
        (block,) = sample.learn().largest["glcm"].inputs
        assert block["shape"] == [50, MIB]


def test_tasks_that_ended_early_take_at_most_a_quarter():
    records = [record(n, state="error" if n % 2 else "ok") for n in range(1000)]
    states = [one.state for one in sampled(records, 40).chosen()]
    assert 40 <= states.count("ok") <= 41 and 10 <= states.count("error") <= 11


def test_learned_in_the_order_of_arrival():
    records = [record(n, 1 + n % 5, name="ab"[n % 2]) for n in range(50)]
    records[7] = record(7, state="killed", name="b")
    expected = Model()
    for one in records:
        expected.learn(one)
    assert learn_run(records).model.to_dict() == expected.to_dict()
    assert learn_run([one.to_dict() for one in records]).model.to_dict() == expected.to_dict()


def test_of_many_groups_fewer_tasks_of_each():
    sample = sampled([record(n, name=str(n % 100)) for n in range(5_000)], 500)
    assert 3_000 <= len(sample.chosen()) <= 3_100
    assert {one.task_name for one in sample.chosen()} == {str(n) for n in range(100)}
    assert sample.largest_input_bytes("never") == 0


def test_impossible_records_are_counted_and_left_out():
    records = [record(n) for n in range(5)] + [record(9, size=20, peak=-1)]
    learned = learn_run(records)
    assert learned.refused == 1 and learned.model.predict([], "glcm").n == 5
    assert learned.largest["glcm"].inputs[0]["shape"] == [1, MIB]


def test_progress():
    told = []
    sampled([record(n) for n in range(200)], 500).learn(progress=lambda *at: told.append(at))
    assert told == [(64, 200), (128, 200), (192, 200)]


def test_a_sample_needs_no_numpy():
    code = "import sys; import dwsr_probe.predict.history; print('numpy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "False\n", done.stderr


def test_names_of_the_package_are_loaded_when_they_are_used():
    code = (
        "import sys; import dwsr_probe.predict as p; before = 'numpy' in sys.modules;"
        " print(before, p.Model.__name__, p.KINDS[0], hasattr(p, 'Nothing'), set(p.__all__) <="
        " set(dir(p)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "False Model alloc False True\n", done.stderr
