"""Sentences from numbers."""
import random
from itertools import pairwise

import pytest

from dwsr_probe.record import TaskRecord
from dwsr_probe.report.outlook import LEARNED_MOST, Examples, Outlook
from dwsr_probe.report.summary import summarise
from dwsr_probe.report.verdict import verdict

MIB = 1 << 20


def task(n=1, own=100, name="glcm", state="ok", size=10, **more):
    block = {"type": "ndarray", "dtype": "uint8", "shape": [size, MIB], "nbytes": size * MIB}
    return TaskRecord(seq=n, process="1-1", thread=1, start=float(n), task_name=name, state=state, alloc_peak_bytes=round(own * MIB), inputs=[block], input_bytes=size * MIB, overlap=1,
                      rss_before_bytes=50 * MIB, rss_peak_bytes=round((50 + own) * MIB), **more)


def process(peak=500, limit=1000, state="ok", worker=None, **more):
    health = {"limit_bytes": limit * MIB if limit else None} | ({"workers": [{"address": worker, "nthreads": 2, "memory_limit_bytes": limit * MIB}], "limit_bytes": 1 << 40} if worker else {})
    return TaskRecord(kind="process", process="1-1", pid=7, task_name="job.py", state=state, rss_peak_bytes=peak * MIB, **more), health


def words(records, processes, **more):
    found = verdict(summarise(records, processes), processes, **more)
    return found.level, " ".join("".join(s) for s in (found.headline, *found.sentences, *found.advice))


@pytest.mark.parametrize(("records", "processes", "level", "said"), [
    ([], [], "empty", ["Nothing was recorded"]),
    ([], [process()], "good", ["No task was marked; the largest process peaked at 50 % of the limit.", "500.0 MiB resident of 1000.0 MiB"]),
    ([task()], [process()], "good", ["Everything fitted", "glcm needed most: 100.0 MiB of its own at most."]),
    ([task()], [process(limit=None)], "good", ["One task ended well"]),
    ([task(), task(2)], [process(850)], "near", ["narrowly", "85 %", "Run fewer tasks at once (2 shared a process)"]),
    ([task(), task(2, state="error")], [process()], "near", ["1 of 2 tasks failed"]),
    ([task(state="killed")], [process(970, state="killed")], "bad", ["One process was killed at 97 % of its limit, with one task under way.", "by the kernel, for want of memory", "Under way then: glcm."]),
    ([task(state="killed")], [process(970, state="killed", worker="tcp://w:1")], "bad", ["worker tcp://w:1 was killed with 970.0 MiB of 1000.0 MiB, 97 %: by Dask's nanny"]),
    ([task(state="killed")], [process(100, state="killed")], "bad", ["not for its own memory"]),
    ([task(state="killed")], [process(100, limit=None, state="killed")], "bad", ["its limit is not known"]),
    ([task(i, state="killed", name=f"n{i}") for i in range(5)], [process(960, state="killed"), process(990, state="killed")], "bad", ["2 processes were killed at 96 % to 99 % of their limits", "and 2 more names"]),
])
def test_what_is_said(records, processes, level, said):
    found = words(records, processes)
    assert found[0] == level and all(text in found[1] for text in said), found


def test_refused_allocations():
    records = [task(1), task(2, state="error", oom={"where": "gpu 0", "requested_bytes": 2048 * MIB, "live_bytes": 1024 * MIB}), task(3, state="error", oom={"where": "gpu 0", "requested_bytes": MIB})]
    assert "glcm ran out of device memory in 2 tasks: the largest request was for 2.0 GiB beside 1.0 GiB of its own." in words(records, [process()])[1]
    assert "ran out of host memory in one task." in words([task(2, state="error", oom={"where": "host"})], [process()])[1]


def test_which_memory_binds():
    processes = [(process()[0], {"limit_bytes": 1 << 40, "devices": [{"device": 0, "total_bytes": 1000 * MIB}]})]
    text = words([task(name="fft", gpu=[{"device": 0, "peak_bytes": 700 * MIB}]), task(2, name="big", gpu=[])], processes)[1]
    assert "fft needed most: 700.0 MiB on a device" in text and "Device memory binds: one task of fft took 70 % of the device" in text
    assert "Host memory binds" in words([task(own=900, gpu=[{"device": 0, "peak_bytes": MIB}])], [(process()[0], {**processes[0][1], "limit_bytes": 1000 * MIB})])[1]


def outlook_of(records):
    examples = {}
    for record in records:
        examples.setdefault(record.task_name, Examples()).add(record)
    return Outlook.of(examples)


def test_advice_comes_from_the_model():
    chance = random.Random(1)
    records = [task(n, own=10 * (size := chance.randrange(2, 11)) * chance.uniform(1, 1.01), size=size) for n in range(1, 80)]
    outlook, held = outlook_of(records), {"glcm": 50 * MIB}
    level, text = words(records, [process(250, 1000)], outlook=outlook, held_bytes=held)
    # 80 % of 1000 less what is held, for two at once: 375 MiB, of which a block of 10 MiB needs 100.
    assert level == "good" and "There is room: blocks of about 3." in text and "A block of twice the volume of the largest would need about 20" in text and text.count("(not promised yet)") == 1
    level, text = words(records, [process(245, 250)], outlook=outlook, held_bytes=held)
    assert level == "near" and "Use blocks of at most 7" in text and "A block of half the volume of the largest would need about 5" in text
    assert "It could have been tighter: 2 of the largest glcm tasks" in words(records, [process(150, 250)], outlook=outlook, held_bytes=held)[1]


def test_advice_for_a_device():
    chance = random.Random(1)
    records = [task(n, own=1, size=(size := chance.randrange(2, 11)), gpu=[{"device": 0, "peak_bytes": round(10 * size * chance.uniform(1, 1.01) * MIB)}]) for n in range(1, 80)]
    devices = [{"device": 0, "name": "card", "peak_bytes": 190 * MIB, "total_bytes": 200 * MIB}]
    level, text = words(records, [(process()[0], {"limit_bytes": 1 << 40, "devices": devices})], outlook=outlook_of(records))
    assert level == "near" and "memory peaked at 95 % of the device" in text and "Use blocks of at most 7" in text and "below 80 % of the device with 2 tasks at once" in text and "on the device, with 99 %" in text


def test_no_advice_from_too_little():
    records = [task(1)]
    assert "twice" not in words(records, [process(250, 1000)], outlook=outlook_of(records), held_bytes={"glcm": 1})[1]


def test_examples_are_few_and_even():
    some = Examples()
    records = [task(n, size=1 + n % 7) for n in range(10_000)] + [task(20_000, size=50), task(20_001, state="killed")]
    for record in records:
        some.add(record)
    chosen = some.chosen()
    assert len(chosen) <= LEARNED_MOST + 2 and chosen[0].input_bytes == 50 * MIB and chosen[-1].state == "killed"
    assert max(b.seq - a.seq for a, b in pairwise(chosen[1:-1])) < 1000
