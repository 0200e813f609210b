"""Pages of runs that are not as one expects: hostile names, nothing, only the dead, one task,
very many."""

import struct

import pytest

from dwsr_probe.record import TaskRecord
from dwsr_probe.store import Store
from tests.pages.test_page import MIB, record

HOSTILE = [
    "<script>window.pwned = 1</script>",
    "</script><script>window.pwned = 2</script>",
    "<img src=x onerror='window.pwned = 3'>",
    "\"'><svg onload=window.pwned=4>",
    "<!--",
    "$$\\frac{1}{2}$$",
    "💥 boum",
    "@name{safe} $x ${title}",
    "x" * 10_000,
    "]]>&lt;b&gt;&amp;",
    "\u202ertl\x00\x1b[31m\n\u2028",
    "javascript:window.pwned=5",
    "' onmouseover='window.pwned=6",
]


def test_hostile_texts_are_text(open_page, page_of):
    store = Store.in_memory()
    for i, text in enumerate(HOSTILE):
        store.add_tasks(
            [
                record(
                    2 * i + 1,
                    i,
                    0.9,
                    (i + 1) * MIB,
                    text,
                    key=text,
                    worker=text,
                    host=text,
                    inputs=[{"type": text, "dtype": text, "shape": [3], "nbytes": 12}],
                    input_bytes=12,
                )
            ]
        )
        store.put_process(
            TaskRecord(
                kind="process",
                process="1-1" if not i else f"{i}-2",
                pid=i,
                host=text,
                worker=text,
                task_name=text,
                state="killed",
                start=1000.0,
                duration=20.0,
                rss_peak_bytes=MIB * i,
            ),
            {
                "limit_bytes": 1 << 30,
                "python": text,
                "workers": [{"address": text, "nthreads": 1, "memory_limit_bytes": 1 << 29}],
                "devices": [{"device": 0, "name": text, "peak_bytes": 5, "total_bytes": 10}],
            },
        )
    store.set_meta(run=HOSTILE[1], command=HOSTILE, exit_code=1)  # a text would be a damaged store
    opened = open_page(page_of(store))
    for _ in range(3):  # every tooltip that a row of spans has
        box = opened.page.locator("#spans").bounding_box()
        opened.page.locator("#spans").scroll_into_view_if_needed()
        for i in range(24):
            opened.page.mouse.move(
                box["x"] + 80 + i * (box["width"] - 100) / 24,
                opened.page.locator("#spans").bounding_box()["y"] + 20,
            )
            opened.settle()
    assert opened.page.evaluate("window.pwned") is None
    opened.assert_clean()
    shown = opened.column("names", 1)
    assert (
        len(shown) == len(HOSTILE)
        and HOSTILE[0] in shown
        and HOSTILE[1] in shown
        and "💥 boum" in shown
        and max(map(len, shown)) == 300
    )
    assert opened.page.locator("h1").inner_text() == HOSTILE[1]
    assert opened.page.locator("table script, table img, table svg, .verdict script").count() == 0


def test_an_injected_script_would_not_run(open_page, page_of):
    """Should an escape ever be forgotten, the page's policy knows its own scripts only."""
    store = Store.in_memory()
    path = page_of(store)
    path.write_text(
        path.read_text().replace(
            "<footer>",
            "<script>window.pwned = 1</script><img src=x onerror='window.pwned = 2'><footer>",
        )
    )
    opened = open_page(path)
    assert opened.page.evaluate("window.pwned") is None and any(
        "Content Security Policy" in text or "content security" in text.lower()
        for text in opened.complaints
    )


def test_an_empty_run(open_page, page_of):
    opened = open_page(page_of(Store.in_memory()))
    opened.assert_clean()
    assert "Nothing was recorded" in opened.page.locator(".verdict").inner_text()
    assert opened.page.locator("section:visible").count() == 3  # verdict, figures, processes


def test_a_run_without_tasks(open_page, page_of):
    store = Store.in_memory()
    store.put_process(
        TaskRecord(
            kind="process",
            process="1-1",
            pid=1,
            task_name="job.py",
            state="ok",
            start=1000.0,
            duration=5.0,
            rss_peak_bytes=300 * MIB,
        ),
        {"limit_bytes": 1000 * MIB, "samples_written": 8},
    )
    store.add_samples(
        "1-1",
        0,
        b"".join(
            struct.pack("=4Q", i * 10**9, (100 + 20 * i) * MIB, (110 + 20 * i) * MIB, 10**6)
            for i in range(8)
        ),
        1000.0,
    )
    opened = open_page(page_of(store))
    opened.assert_clean()
    assert (
        "No task was marked" in opened.page.locator(".verdict").inner_text()
        and "30 %" in opened.page.locator(".verdict").inner_text()
    )
    assert (
        opened.colors("#memory").get(opened.css("--p0"), 0) > 30
        and not opened.page.locator("#names").is_visible()
    )


def test_the_lines_have_a_legend(open_page, page_of):
    """Each of the largest processes in a colour of its own, with its name; the rest counted.
    Light and dark."""
    store = Store.in_memory()
    for i in range(8):
        store.put_process(
            TaskRecord(
                kind="process",
                process=f"{i}-1",
                pid=100 + i,
                host="h",
                task_name="job.py" if i == 0 else f"worker {i - 1}",
                state="ok",
                start=1000.0,
                duration=7.0,
                rss_peak_bytes=(900 - 100 * i) * MIB,
            ),
            {"limit_bytes": 1000 * MIB},
        )
        store.add_samples(
            f"{i}-1",
            0,
            b"".join(
                struct.pack(
                    "=4Q",
                    t * 10**9,
                    (900 - 100 * i - 9 * t) * MIB,
                    (900 - 100 * i - 9 * t) * MIB,
                    10**6,
                )
                for t in range(8)
            ),
            1000.0,
        )
    opened = open_page(page_of(store))
    opened.assert_clean()
    assert opened.page.locator("#lines").inner_text().split("\n") == [
        "job.py (pid 100)",
        *(f"worker {i} (pid {101 + i})" for i in range(4)),
        "3 other processes",
        "limit",
    ]
    for _ in range(2):
        drawn, keys, shown = (
            opened.colors("#memory"),
            opened.colors("#lines"),
            [opened.css(f"--p{i}") for i in range(5)],
        )
        assert len(set(shown)) == 5 and all(
            drawn.get(color, 0) > 30 and keys.get(color, 0) > 10 for color in shown
        )
        opened.page.locator("#theme").click()
        opened.settle()


def test_only_killed_tasks(open_page, page_of):
    store = Store.in_memory()
    task = record(
        1,
        1,
        3,
        800 * MIB,
        "glcm",
        inputs=[
            {"type": "ndarray", "dtype": "float32", "shape": [100, 100, 100], "nbytes": 4_000_000}
        ],
        input_bytes=4_000_000,
    )
    task.state = "killed"
    store.add_tasks([task])
    store.put_process(
        TaskRecord(
            kind="process",
            process="1-1",
            pid=1,
            task_name="job.py",
            state="killed",
            start=1000.0,
            duration=4.0,
            rss_peak_bytes=970 * MIB,
        ),
        {"limit_bytes": 1000 * MIB},
    )
    opened = open_page(page_of(store))
    opened.assert_clean()
    text = opened.page.locator(".verdict").inner_text()
    assert (
        "with 970.0 MiB of 1000.0 MiB, 97 %" in text
        and "by the kernel, for lack of memory" in text
        and "glcm" in text
    )
    assert "1 failed" in opened.page.locator("body").inner_text()
    assert (
        opened.page.locator("section.verdict.bad").count() == 1
        and opened.colors("#spans").get(opened.css("--bad"), 0) > 20
    )


def test_a_killed_task_comes_first_and_is_a_lower_bound(open_page, page_of):
    """Though one that finished had more: the killed one may have needed any more than it had."""
    store = Store.in_memory()
    block = {"type": "ndarray", "dtype": "float32", "shape": [100, 100, 100], "nbytes": 4_000_000}
    killed = record(
        9, 9, 3, 300 * MIB, "semblance", thread=2, inputs=[block], input_bytes=4_000_000
    )
    beside = record(10, 10, 2, 3 * MIB, "poll", thread=3)
    killed.state = beside.state = "killed"
    store.add_tasks(
        [
            *(record(i, i, 0.9, 400 * MIB, "finished") for i in range(1, 4)),
            record(5, 5, 0.9, 0, "load"),
            record(6, 6, 0.9, 100 * MIB, "semblance"),
            killed,
            beside,
        ]
    )
    store.put_process(
        TaskRecord(
            kind="process",
            process="1-1",
            pid=1,
            task_name="job.py",
            state="killed",
            start=1000.0,
            duration=12.0,
            rss_peak_bytes=970 * MIB,
        ),
        {"limit_bytes": 1000 * MIB, "signal": 9},
    )
    store.set_meta(run="r", exit_code=137)
    opened = open_page(page_of(store))
    opened.assert_clean()
    assert (
        opened.page.locator(".verdict h2").inner_text()
        == "One process was killed by SIGKILL at 97 % of its limit, with 2 tasks under way."
    )
    text = opened.page.locator(".verdict").inner_text()
    assert (
        "The largest task under way was semblance with float32 (100, 100, 100), 3.8 MiB of input."
        " It had taken at least 300.0 MiB when it was killed" in text
    )
    assert (
        "semblance needed most: at least 300.0 MiB of its own, at least 200.0 MiB in the median of"
        " 2 tasks." in text
    )
    assert opened.column("names", 1) == ["semblance", "finished", "poll", "load"] and opened.column(
        "names", 4
    ) == ["≥ 300.0 MiB", "400.0 MiB", "≥ 3.0 MiB", "0 B"]
    assert opened.column("names", 5)[0] == "≥ 200.0 MiB"
    assert [name.split("\n")[0] for name in opened.column("largest", 1)] == [
        "semblance",
        "finished",
        "finished",
        "finished",
        "semblance",
        "poll",
        "load",
    ]
    assert (
        opened.column("largest", 4)[:2] == ["≥ 300.0 MiB", "400.0 MiB"]
        and opened.column("largest", 5)[0] == "≥ 301.0 MiB"
    )
    assert (
        opened.page.locator(".cards")
        .inner_text()
        .startswith("≥ 300.0 MiB\nlargest task's own peak\nsemblance")
    )
    spans = opened.page.locator("#spans").bounding_box()
    opened.page.locator("#spans").scroll_into_view_if_needed()
    tip = opened.page.locator(".tip-name:visible", has_text="semblance")
    for lane in range(24):  # its lane is one of three
        opened.page.mouse.move(
            spans["x"] + spans["width"] - 60,
            opened.page.locator("#spans").bounding_box()["y"] + 4 + 4 * lane,
        )
        opened.settle()
        if tip.count():
            break
    assert (
        "≥ 300.0 MiB own · process ≥ 301.0 MiB"
        in opened.page.locator(".bk-tooltip-content:visible").first.inner_text()
    )


def test_lost_records_and_a_job_that_failed(open_page, page_of):
    store = Store.in_memory()
    store.add_tasks([record(1, 1, 0.5, MIB, "tiny")])
    store.put_process(
        TaskRecord(
            kind="process",
            process="1-1",
            pid=1,
            task_name="job.py",
            state="error",
            start=1000.0,
            duration=4.0,
            rss_peak_bytes=100 * MIB,
        ),
        {"limit_bytes": 1000 * MIB, "records_lost": 999},
    )
    store.set_meta(run="r", exit_code=1)
    opened = open_page(page_of(store))
    opened.assert_clean()
    assert (
        opened.page.locator(".verdict h2").inner_text()
        == "The job failed with exit code 1; 999 of 1,000 tasks (100 %) have no record; memory"
        " peaked at 10 % of the limit."
    )
    assert (
        "999 records were lost" in opened.page.locator(".verdict").inner_text()
        and "999 more without a record" in opened.page.locator(".cards").inner_text()
    )
    assert (
        "Not in the table: 999 tasks without a record." in opened.page.locator("body").inner_text()
        and opened.page.locator("section.verdict.bad").count() == 1
    )


def test_one_task(open_page, page_of):
    store = Store.in_memory()
    store.add_tasks(
        [
            record(
                1,
                0,
                0.0,
                5 * MIB,
                "only",
                input_bytes=MIB,
                inputs=[{"dtype": "u1", "shape": [MIB], "nbytes": MIB}],
            )
        ]
    )
    opened = open_page(page_of(store))
    opened.assert_clean()
    assert "only needed most: 5.0 MiB" in opened.page.locator(
        ".verdict"
    ).inner_text() and opened.column("largest", 1) == ["only"]
    assert opened.colors("#spans").get(opened.css("--g0"), 0) > 5


def test_devices(open_page, page_of):
    store = Store.in_memory()
    block = {"type": "ndarray", "dtype": "float32", "shape": [64, 64, 64], "nbytes": MIB}
    store.add_tasks(
        [
            record(
                i,
                i,
                0.5,
                1000,
                "fft",
                gpu=[{"device": 0, "peak_bytes": i * 100 * MIB, "end_bytes": 0}],
                inputs=[{**block, "shape": [64 * i, 64, 64], "nbytes": i * MIB}],
                input_bytes=i * MIB,
            )
            for i in range(1, 8)
        ]
    )
    store.put_process(
        TaskRecord(
            kind="process",
            process="1-1",
            pid=1,
            task_name="job.py",
            state="ok",
            start=1000.0,
            duration=9.0,
            rss_peak_bytes=90 * MIB,
        ),
        {
            "limit_bytes": 1 << 34,
            "devices": [
                {
                    "device": 0,
                    "name": "A card",
                    "peak_bytes": 700 * MIB,
                    "total_bytes": 1000 * MIB,
                    "pool_total_bytes": 800 * MIB,
                }
            ],
        },
    )
    opened = open_page(page_of(store))
    opened.assert_clean()
    text = opened.page.locator(".verdict").inner_text()
    assert (
        "fft needed most: 700.0 MiB on a device" in text
        and "Device memory is the limit: one task of fft took 70 % of the device" in text
        and "of device 0 (A card): 700.0 MiB by its tasks of 1000.0 MiB, 70 %" in text
    )
    assert (
        "Device peaks" in opened.page.locator("h3").nth(1).inner_text()
        and opened.column("largest", 5)[0] == "700.0 MiB"
    )
    assert (
        "A card" in opened.page.locator("#devices").inner_text()
        and "device memory" in opened.page.locator("figcaption small").first.inner_text()
    )


@pytest.mark.parametrize("threads", [3, 200])
def test_many_tasks_stay_usable(open_page, page_of, threads):
    store = Store.in_memory()
    store.add_tasks(
        record(
            i,
            i / 100,
            0.01 * (1 + i % 3),
            (1 + i % 1000) * MIB,
            f"name {i % 50}",
            1 + i % threads,
            key=f"key-{i}",
        )
        for i in range(1, 40_001)
    )
    opened = open_page(page_of(store))
    opened.assert_clean()
    drawn = (
        "Bokeh.documents[0].roots().find(one => one.name ==="
        " 'spans').renderers[0].data_source.data.x0.length"
    )
    assert opened.page.evaluate(drawn) < (4_000 if threads == 3 else 21_000), "drawn one by one"
    opened.page.evaluate(
        "Bokeh.documents[0].get_model_by_name('time').setv({start: 1000, end: 1500})"
    )
    opened.settle()
    assert 45 <= opened.page.evaluate(drawn) <= 60
