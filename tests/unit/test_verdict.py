"""Sentences from numbers."""

import random
import re
from dataclasses import replace

import pytest

from dwsr_probe import _core
from dwsr_probe.fit.plan import Plan, UsedBlock
from dwsr_probe.predict.history import RunSample, learn_run
from dwsr_probe.record import TaskRecord
from dwsr_probe.report.outlook import Outlook
from dwsr_probe.report.summary import summarise
from dwsr_probe.report.verdict import make_verdict
from dwsr_probe.total import from_words
from dwsr_probe.words import AtLeast, bytes_text, percent_text

MIB = 1 << 20


def task(n=1, own=100, name="glcm", state="ok", size=10, process="1-1", rss_growth=None, **more):
    block = {"type": "ndarray", "dtype": "uint8", "shape": [size, MIB], "nbytes": size * MIB}
    return TaskRecord(
        seq=n,
        process=process,
        thread=1,
        start=float(n),
        task_name=name,
        state=state,
        alloc_peak_bytes=round(own * MIB),
        inputs=[block],
        input_bytes=size * MIB,
        overlap=1,
        rss_before_bytes=50 * MIB,
        rss_peak_bytes=round((50 + (own if rss_growth is None else rss_growth)) * MIB),
        **more,
    )


def process(peak=500, limit=1000, state="ok", worker=None, name="1-1", told=None, **more):
    """told: what its board said beside the limit."""
    health = (
        {"limit_bytes": limit * MIB if limit else None}
        | (
            {
                "workers": [{"address": worker, "nthreads": 2, "memory_limit_bytes": limit * MIB}],
                "limit_bytes": 1 << 40,
            }
            if worker
            else {}
        )
        | (told or {})
    )
    return (
        TaskRecord(
            kind="process",
            process=name,
            pid=7,
            task_name="job.py",
            state=state,
            rss_peak_bytes=peak * MIB,
            **more,
        ),
        health,
    )


def words(records, processes, **more):
    found = make_verdict(summarise(records, processes), processes, **more)
    return found.level, " ".join(
        "".join(s) for s in (found.headline, *found.troubles, *found.sentences, *found.advice)
    )


@pytest.mark.parametrize(
    ("records", "processes", "level", "said"),
    [
        ([], [], "empty", ["Nothing was recorded"]),
        (
            [],
            [process()],
            "good",
            [
                "No task was marked; memory peaked at 50 % of the limit.",
                "500.0 MiB resident of 1000.0 MiB",
            ],
        ),
        (
            [task()],
            [process()],
            "good",
            ["Everything fitted", "glcm needed most: 100.0 MiB of its own at most."],
        ),
        ([task()], [process(limit=None)], "good", ["One task ended well"]),
        (
            [task(), task(2)],
            [process(850)],
            "near",
            ["narrowly", "85 %", "Run fewer tasks at once (2 shared a process)"],
        ),
        ([task(), task(2, state="error")], [process()], "near", ["1 of 2 tasks failed"]),
        (
            [task(state="killed")],
            [process(970, state="killed")],
            "bad",
            [
                "One process was killed at 97 % of its limit, with one task under way.",
                "by the kernel, for lack of memory",
            ],
        ),
        (
            [task(state="killed")],
            [process(970, state="killed", worker="tcp://w:1")],
            "bad",
            ["worker tcp://w:1 was killed with 970.0 MiB of 1000.0 MiB, 97 %: by Dask's nanny"],
        ),
        (
            [task(state="killed")],
            [process(100, state="killed")],
            "bad",
            ["probably not for lack of memory"],
        ),
        (
            [task(state="killed")],
            [process(100, limit=None, state="killed")],
            "bad",
            ["no limit is known"],
        ),
        (
            [
                task(i, state="killed", name=f"n{i}", process="1-1" if i else "2-2")
                for i in range(5)
            ],
            [process(960, state="killed"), process(990, state="killed", name="2-2")],
            "bad",
            [
                "2 processes were killed at 96 % to 99 % of their limits, with 5 tasks under way.",
                "and 2 more names",
            ],
        ),
    ],
)
def test_what_is_said(records, processes, level, said):
    found = words(records, processes)
    assert found[0] == level and all(text in found[1] for text in said), found


def test_what_a_killed_task_had_is_a_lower_bound():
    records = [task(1, 100), task(2, 300), task(3, 200, state="killed", rss_peak_source="kernel")]
    (name,) = summarise(records, [process()])
    # the killed one may have needed more than 300
    assert isinstance(name.need_bytes, AtLeast) and name.need_bytes == 300 * MIB
    # Whatever the killed one needed, two of three are at least 200, and none says how much more.
    assert (
        isinstance(name.alloc_peak_median_bytes, AtLeast)
        and name.alloc_peak_median_bytes == 200 * MIB
    )
    assert (
        isinstance(name.growth_max_bytes, AtLeast)
        and isinstance(name.rss_peak_bytes, AtLeast)
        and isinstance(name.host_ratio, AtLeast)
    )
    assert (
        bytes_text(name.need_bytes) == "≥ 300.0 MiB" and percent_text(name.host_ratio) == "≥ 30 %"
    )
    (name,) = summarise(
        [*records[:2], task(3, 150), task(4, 290, state="killed"), task(5, 120)], [process()]
    )
    # known whatever the killed one needed
    assert name.alloc_peak_median_bytes == 150 * MIB and not isinstance(
        name.alloc_peak_median_bytes, AtLeast
    )
    text = words(records, [process(970, state="killed")])[1]
    assert (
        "glcm needed most: at least 300.0 MiB of its own, at least 200.0 MiB in the median of 3"
        " tasks." in text
    )
    assert (
        "The task under way was glcm with uint8 (10, 1048576), 10.0 MiB of input. It had taken at"
        " least 200.0 MiB when it was killed." in text
    )
    assert "at most." not in text


def test_killed_ones_first_and_loads_last():
    """A killed task may have needed more than any that ended; not so those that were only beside
    it, or loaded something into the process."""
    records = [
        task(1, 500, name="finished"),
        task(2, 0, name="load", rss_growth=400),
        task(3, 90, name="died", state="killed"),
        task(4, 1, name="beside", state="killed"),
        task(5, 0, name="idle", state="killed"),
        task(6, 20, name="small"),
    ]
    assert [s.label for s in summarise(records, [process()])] == [
        "died",
        "finished",
        "small",
        "beside",
        "idle",
        "load",
    ]
    assert (
        words(records, [process(970, state="killed")])[1].count(
            "The largest task under way was died"
        )
        == 1
    )


def test_processes_that_ended_early_are_not_counted_as_killed():
    """Three for their memory, one because the job ended."""
    dead = [
        process(960 + 10 * i, state="killed", name=f"{i}-1", worker=f"tcp://w:{i}")
        for i in range(3)
    ] + [process(250, state="killed", name="9-1", worker="tcp://w:9")]
    records = [task(i, state="killed", process=f"{i}-1") for i in range(3)] + [
        task(4, 1, state="killed", process="9-1", name="poll")
    ]
    level, text = words(records, dead, exit_code=1)
    assert (
        level == "bad"
        and "3 processes were killed at 96 % to 98 % of their limits, with 3 tasks under way; "
        "one more process ended with one task under way at 25 % of its limit."
        in text
    )
    assert (
        "worker tcp://w:9 ended with tasks under way" in text
        and "probably not for lack of memory" in text
    )
    assert "the job went on and ended well" in words(records, dead, exit_code=0)[1]


def test_killed_without_a_task():
    level, text = words([], [process(500, state="killed", told={"signal": 9})], exit_code=137)
    assert (
        level == "bad"
        and "One process was killed by SIGKILL at 50 % of its limit." in text
        and "job.py (pid 7) was killed with 500.0 MiB of 1000.0 MiB, 50 %: by SIGKILL" in text
    )
    assert (
        "One process was killed by SIGSEGV"
        in (text := words([], [process(500, state="killed", told={"signal": 11})])[1])
        and "by a crash (SIGSEGV)" in text
    )
    assert (
        "by SIGINT, which somebody sent"
        in words([], [process(990, state="killed", told={"signal": 2})])[1]
    )


def test_a_child_that_ended_at_its_limit_without_a_task():
    """Nobody saw how: its parent is not ours."""
    level, text = words([task()], [process(), process(970, state=None, name="2-2")], exit_code=0)
    assert level == "near" and text.startswith(
        "One process ended at 97 % of its limit, how is not known; memory peaked at 97 % of the"
        " limit."
    )
    assert (
        "ended with 970.0 MiB of 1000.0 MiB, 97 %: it may have been killed for its memory." in text
    )
    assert (
        "Everything fitted"
        in words([task()], [process(), process(500, state=None, name="2-2")], exit_code=0)[1]
    )


@pytest.mark.parametrize(
    ("told", "said"),
    [
        (
            {"records_lost": 4},
            [
                "4 of 5 tasks (80 %) have no record; memory peaked at 50 % of the limit.",
                "4 records were lost",
            ],
        ),
        (
            {"tasks_dropped": 1},
            ["1 of 2 tasks (50 %) have no record", "One task was not measured: too many"],
        ),
    ],
)
def test_tasks_without_a_record(told, said):
    level, text = words([task()], [process(told=told)])
    assert level == "near" and "fitted" not in text and all(part in text for part in said)
    assert (
        "have no record"
        in words([task(state="killed")], [process(970, state="killed", told=told)])[1]
    )


def test_a_job_that_failed():
    failed = process(state="error")
    level, text = words([task()], [failed], exit_code=1)
    assert (
        level == "bad"
        and text.startswith("The job failed with exit code 1; memory peaked at 50 % of the limit.")
        and "fitted" not in text
    )
    assert words([], [failed])[1].startswith("The job failed; memory peaked")  # a board by itself
    assert (
        "The job failed with exit code 137 (SIGKILL); 1 of 1 task failed; memory"
        in words([task(state="error")], [process(state=None)], exit_code=137)[1]
    )
    assert (
        "Everything fitted"
        in words([task()], [process(), process(state="error", name="2-2")], exit_code=0)[1]
    )


def test_which_block_fits_after_a_kill():
    """From the run's own forecast: tasks of up to 10 MiB are known, the killed one had 40 and
    was far from done."""
    chance = random.Random(1)
    records = [
        task(n, own=10 * (size := chance.randrange(2, 11)) * chance.uniform(1, 1.01), size=size)
        for n in range(1, 80)
    ] + [task(99, own=300, size=40, state="killed")]
    records = [replace(record, overlap=0) for record in records]
    _, text = words(
        records, [process(395, 400, state="killed")], outlook=outlook_of(records), exit_code=137
    )
    assert (
        "It had taken at least 300.0 MiB when it was killed. Judging by 79 tasks that finished, it"
        " needs about 4" in text
    )
    # 80 % of 400 less 44 that are held: 276 for own peak and input, 11 bytes a byte.
    (length,) = re.findall(
        r"Use smaller blocks: at most uint8 \((\d+), 1048576\), \d\d % of the largest one\. They"
        r" keep glcm below 80 % of the limit",
        text,
    )
    assert 23 <= int(length) <= 25
    # Killed far below the only limit that is known: that limit says nothing about room.
    text = words(records, [process(395, 4000, state="killed")], outlook=outlook_of(records))[1]
    assert "There is room" not in text and "volume" not in text


def test_refused_allocations():
    records = [
        task(1),
        task(
            2,
            state="error",
            oom={"where": "gpu 0", "requested_bytes": 2048 * MIB, "live_bytes": 1024 * MIB},
        ),
        task(3, state="error", oom={"where": "gpu 0", "requested_bytes": MIB}),
    ]
    assert (
        "glcm ran out of device memory in 2 tasks: the largest request was for 2.0 GiB beside 1.0"
        " GiB of its own." in words(records, [process()])[1]
    )
    assert (
        "ran out of host memory in one task."
        in words([task(2, state="error", oom={"where": "host"})], [process()])[1]
    )


def test_allocations_that_failed_in_tasks_without_a_record():
    """Totals count them; which memory it was, and the request, only records say."""
    total = from_words((None,) * len(_core.TOTAL_FIELDS), (), ({}, {}, {}, {}), ())
    total.name = "glcm"
    total.add(task(1, state="error", oom={"where": "host", "requested_bytes": MIB}))
    processes = [process(told={"records_lost": 1})]
    names = summarise([], processes, {"1-1": [total]})
    troubles = ["".join(sentence) for sentence in make_verdict(names, processes).troubles]
    assert "glcm ran out of memory in one task." in troubles


def test_which_memory_is_the_limit():
    processes = [
        (
            process()[0],
            {"limit_bytes": 1 << 40, "devices": [{"device": 0, "total_bytes": 1000 * MIB}]},
        )
    ]
    text = words(
        [
            task(name="fft", gpu=[{"device": 0, "peak_bytes": 700 * MIB}]),
            task(2, name="big", gpu=[]),
        ],
        processes,
    )[1]
    assert (
        "fft needed most: 700.0 MiB on a device" in text
        and "Device memory is the limit: one task of fft took 70 % of the device" in text
    )
    assert (
        "Host memory is the limit"
        in words(
            [task(own=900, gpu=[{"device": 0, "peak_bytes": MIB}])],
            [(process()[0], {**processes[0][1], "limit_bytes": 1000 * MIB})],
        )[1]
    )


def test_every_view_has_the_bound_of_the_command():
    """Of each group, also while other groups are learned beside it."""
    records = [
        task(n, own=(n % 4 + 1) * (n % 5 + 2) + n % 3, size=n % 4 + 1, name=f"t{n % 5}")
        for n in range(400)
    ]
    learned = learn_run(records)
    outlook = outlook_of(records)
    for name, largest in learned.largest.items():
        asked = learned.model.predict(largest.inputs, name, params=largest.params)
        shown = outlook.at_scale(name, 1.0)
        assert (shown.mean, shown.upper(0.99)) == (asked.mean, asked.upper(0.99))


def outlook_of(records):
    sample = RunSample()
    for record in records:
        sample.add(record)
    return Outlook.from_sample(sample)


def test_advice_comes_from_the_model():
    chance = random.Random(1)
    records = [
        task(n, own=10 * (size := chance.randrange(2, 11)) * chance.uniform(1, 1.01), size=size)
        for n in range(1, 80)
    ]
    outlook = outlook_of(records)
    level, text = words(records, [process(250, 1000)], outlook=outlook)
    # 80 % of 1000 less what is held, for two at once: 378 MiB, of which a block of 10 MiB needs
    # 110, itself among them.
    assert (
        level == "good"
        and "There is room: blocks of about 3." in text
        and "A block of twice the volume of the largest would need about 20" in text
        and len(re.findall(r"\(not yet calibrated: \d+ of 99 forecasts scored\)\.", text)) == 1
    )
    level, text = words(records, [process(245, 250)], outlook=outlook)
    assert (
        level == "near"
        and re.search(
            r"Use smaller blocks: at most uint8 \(\d, 1048576\), 7\d % of the largest one\. They",
            text,
        )
        and "A block of half the volume of the largest would need about 5" in text
    )
    assert (
        "It could have been tighter: 2 of the largest glcm tasks"
        in words(records, [process(150, 250)], outlook=outlook)[1]
    )


def test_advice_for_a_device():
    chance = random.Random(1)
    records = [
        task(
            n,
            own=1,
            size=(size := chance.randrange(2, 11)),
            gpu=[{"device": 0, "peak_bytes": round(10 * size * chance.uniform(1, 1.01) * MIB)}],
        )
        for n in range(1, 80)
    ]
    devices = [{"device": 0, "name": "card", "peak_bytes": 190 * MIB, "total_bytes": 200 * MIB}]
    level, text = words(
        records,
        [(process()[0], {"limit_bytes": 1 << 40, "devices": devices})],
        outlook=outlook_of(records),
    )
    assert (
        level == "near"
        and "memory peaked at 95 % of the device" in text
        and re.search(
            r"Use smaller blocks: at most uint8 \(\d, 1048576\), 7\d % of the largest one\. They",
            text,
        )
        and "below 80 % of the device with 2 tasks at once" in text
        and "on the device, with 99 %" in text
    )


def test_no_advice_from_too_little():
    records = [task(1)]
    assert "twice" not in words(records, [process(250, 1000)], outlook=outlook_of(records))[1]


@pytest.mark.parametrize("every", [1, 5])
def test_no_larger_blocks_where_own_peaks_may_miss_memory(every):
    """Of all tasks, or of each fifth."""
    chance = random.Random(1)
    records = [
        task(
            n,
            own=10 * (size := chance.randrange(2, 11)) * chance.uniform(1, 1.01),
            size=size,
            attribution="shared" if n % every == 0 else "exact",
            attribution_reason="foreign-allocator polars" if n % every == 0 else None,
        )
        for n in range(1, 80)
    ]
    _, text = words(records, [process(250, 1000)], outlook=outlook_of(records))
    assert "There is room" not in text and "twice" not in text and "no more than" not in text
    assert "glcm needed most: at least 10" in text
    assert f"may miss memory: {79 // every} foreign-allocator polars." in text


def test_what_needed_most_counts_growth_where_own_peaks_miss_memory():
    small = task(1, own=24 / MIB, name="query", rss_growth=160, attribution="shared")
    small.attribution_reason, small.overlap = "foreign-allocator polars", 0
    (query, array) = summarise([task(2, own=50, name="array"), small], [process(400, 1000)])
    assert (query.label, query.need_bytes, query.host_ratio) == ("query", 160 * MIB, 0.16)
    assert array.need_bytes == 50 * MIB and not array.misses_memory


class Planned(Outlook):
    """With a plan that the test gives, as `dwsr-probe fit` would name it."""

    plan = None

    def __init__(self, learned, **plan):
        super().__init__(learned)
        used = UsedBlock((192, 192), plan.pop("used_bytes"), 5e8, 9e8, plan.pop("fits"), "glcm")
        self.plan = Plan(
            chunks=((96, 96), (192,)),
            block=(96, 192),
            task="glcm",
            task_bytes=1e8,
            task_bound_bytes=2e8,
            expected_bytes=3e8,
            bound_bytes=400 * MIB,
            base_bytes=1e8,
            held_bytes=0,
            memory_bytes=1000 * MIB,
            allowed_bytes=700 * MIB,
            delta=0.01,
            tasks_at_once=2,
            workers=1,
            trust="fair",
            used=used,
            **plan,
        )


THEN = "with 2 tasks at once a worker then needs up to 400.0 MiB of 1000.0 MiB (99 %"


@pytest.mark.parametrize(
    ("peak", "state", "plan", "said"),
    [
        (970, "killed", {"fits": False, "used_bytes": 2e6}, "Use blocks of 96×192: " + THEN),
        (500, "ok", {"fits": True, "used_bytes": 5e5}, "There is room for blocks of 96×192: "),
        (500, "ok", {"fits": True, "used_bytes": 1e6}, None),  # as large as it should be
        (970, "killed", {"fits": True, "used_bytes": 5e5}, None),  # killed for another reason
    ],
)
def test_the_block_is_that_of_fit(peak, state, plan, said):
    records = [task(n, state=state) for n in (1, 2)]
    outlook = Planned(learn_run(records), block_bytes=1_000_000, **plan)
    _, text = words(records, [process(peak, state=state)], outlook=outlook)
    if said is None:
        assert "96×192" not in text
    else:
        assert said in text


def test_overhead_of_short_tasks():
    """Three thousand tasks of a millisecond, in ten seconds of two threads."""
    records = [
        replace(task(n, own=1), start=n / 300, duration=0.001, worker="tcp://a")
        for n in range(3000)
    ]
    workers = [process(50, worker="tcp://a")]
    said = "Blocks are too small: 3,000 tasks took 3.00 s of the 20.00 s that 2 threads had"
    _, text = words(records, workers)
    assert said in text and "`dwsr-probe fit` names a larger block." in text
    outlook = Planned(learn_run(records[:50]), fits=True, used_bytes=1e4, block_bytes=1_000_000)
    _, text = words(records, workers, outlook=outlook)
    assert said in text and "85 % of the time was overhead. Use blocks of 96×192: " + THEN in text
    # Long tasks, few tasks, or a process without Dask's workers are no overhead
    for others, processes in (
        ([replace(r, duration=0.1) for r in records], workers),
        (records[:900], workers),
        (records, [process(50)]),
    ):
        assert "too small" not in words(others, processes)[1]
