"""The report's page as a person uses it."""

import re

import pytest

from dwsr_probe.record import TaskRecord
from dwsr_probe.store import Store

MIB = 1 << 20
GROUPS = [f"--g{i}" for i in range(3)]


def test_drawn_without_a_complaint_and_without_a_request(open_page, real_page):
    opened = open_page(real_page)
    opened.assert_clean()
    assert (
        opened.page.title().endswith("dwsr-probe")
        and "fitted" in opened.page.locator(".verdict h2").inner_text()
    )
    # Pixels, not elements: each name's colour in the stack and in the spans, the process's line in
    # the memory plot.
    stack, spans, memory = (opened.colors(f"#{name}") for name in ("stack", "spans", "memory"))
    found = [opened.css(name) for name in GROUPS]
    assert sum(spans.get(color, 0) > 50 for color in found) >= 2
    assert sum(stack.values()) - max(stack.values()) > 1000, "an empty plot"
    assert memory.get(opened.css("--p0"), 0) > 30
    assert opened.page.locator("#failure").is_hidden()


def test_panels_have_dots_and_the_model_s_line(open_page, real_page):
    opened = open_page(real_page)
    assert opened.page.locator("figure").count() >= 2
    assert "trust" in opened.page.locator("figcaption small").first.inner_text()
    opened.page.locator("#scatter0").scroll_into_view_if_needed()
    colors = opened.colors("#scatter0")
    assert colors.get(opened.css("--soft"), 0) > 50, "the line"
    assert len(colors) > 20, "dots, with their smooth edges"


def middle(opened, name):
    box = opened.page.locator(f"#{name}").bounding_box()
    return box["x"] + 80, box["x"] + box["width"] - 20, box["y"] + box["height"] / 2


def test_a_drag_zooms_all_plots(open_page, real_page):
    opened = open_page(real_page)
    whole, before = opened.range_of("spans"), opened.pixels("#spans").tobytes()
    opened.page.locator("#memory").scroll_into_view_if_needed()
    left, right, y = middle(opened, "memory")
    opened.page.mouse.move(left + 0.4 * (right - left), y)
    opened.page.mouse.down()
    opened.page.mouse.move(left + 0.6 * (right - left), y, steps=5)
    opened.page.mouse.up()
    opened.settle()
    ranges = [opened.range_of(name) for name in ("memory", "stack", "spans")]
    assert ranges[0] == ranges[1] == ranges[2]
    length = ranges[0][1] - ranges[0][0]
    assert length == pytest.approx(0.2 * (whole[1] - whole[0]), rel=0.1)
    assert opened.pixels("#spans").tobytes() != before
    opened.page.locator("#spans").dblclick(position={"x": 300, "y": 20})
    opened.settle()
    assert opened.range_of("memory") == whole
    opened.assert_clean()


def test_the_wheel_zooms_with_ctrl_and_scrolls_without(open_page, real_page):
    opened = open_page(real_page)
    whole = opened.range_of("memory")
    opened.page.locator("#stack").scroll_into_view_if_needed()
    left, right, y = middle(opened, "stack")
    opened.page.mouse.move((left + right) / 2, y)
    opened.page.keyboard.down("Control")
    opened.page.mouse.wheel(0, -400)
    opened.page.wait_for_function(
        "before => Bokeh.documents[0].get_model_by_name('time').start > before", arg=whole[0]
    )
    opened.page.keyboard.up("Control")
    opened.settle()
    zoomed, scrolled = opened.range_of("spans"), opened.page.evaluate("scrollY")
    assert zoomed[1] - zoomed[0] < whole[1] - whole[0]
    opened.page.mouse.wheel(0, 300)
    opened.page.wait_for_function("before => scrollY > before", arg=scrolled)
    assert opened.range_of("memory") == zoomed


def test_a_row_of_the_largest_shows_its_task(open_page, real_page):
    opened = open_page(real_page)
    row = opened.page.locator("#largest tbody tr").first
    begin, end = (float(row.get_attribute(name)) for name in ("data-from", "data-to"))
    row.click()
    opened.page.wait_for_function(
        "to => Bokeh.documents[0].get_model_by_name('time').end < 2 * to + 1e3", arg=end
    )
    shown = opened.range_of("spans")
    assert shown[0] < begin and end < shown[1] and shown[1] - shown[0] <= 3.1 * (end - begin) + 1


def test_buttons(open_page, real_page):
    opened = open_page(real_page)
    whole = opened.range_of("memory")
    opened.page.click("[data-zoom='0.5']")
    near = opened.range_of("memory")
    opened.page.click("[data-move='0.5']")
    moved = opened.range_of("memory")
    assert near[1] - near[0] == pytest.approx((whole[1] - whole[0]) / 2) and moved[0] > near[0]
    opened.page.click("[data-zoom='0']")
    assert opened.range_of("spans") == whole


def test_hover_tells_about_a_task(open_page, real_page):
    opened = open_page(real_page)
    opened.page.locator("#largest tbody tr", has_text="triple").first.click()
    opened.page.wait_for_function(
        "whole => Bokeh.documents[0].get_model_by_name('time').end < whole",
        arg=opened.range_of("spans")[1] + 1,
    )
    opened.page.locator("#spans").scroll_into_view_if_needed()
    opened.settle()
    left, right, _ = middle(opened, "spans")
    box = opened.page.locator("#spans").bounding_box()
    tip = opened.page.locator(".tip-name:visible", has_text="triple")
    for lane in range(8):  # which of the threads ran it is not the page's choice
        opened.page.mouse.move((left + right) / 2, box["y"] + 12 + 4 * lane)
        opened.settle()
        if tip.count():
            break
    assert tip.count(), "no tooltip"
    text = opened.page.locator(".bk-tooltip-content:visible").first.inner_text()
    assert (
        "MiB own" in text
        and "float32 (" in text
        and re.search(r"\d (µs|ms|s|min|h)$", text, re.MULTILINE)
    )


def test_sort_and_search(open_page, real_page):
    opened = open_page(real_page)
    names = opened.column("names", 1)
    assert set(names) == {"outer", "double", "triple"}
    opened.page.click("#names th:first-child button")
    assert opened.column("names", 1) == sorted(names)
    opened.page.click("#names th:first-child button")
    assert opened.column("names", 1) == sorted(names, reverse=True)
    heads = opened.page.locator("#names th").all_inner_texts()
    peak = next(i for i, text in enumerate(heads, 1) if text.startswith("own peak"))
    opened.page.click(f"#names th:nth-child({peak}) button")
    values = [
        float(row.get_attribute("data-v"))
        for row in opened.page.locator(f"#names td:nth-child({peak})").all()
    ]
    assert values == sorted(values, reverse=True) and len(values) == 3
    opened.page.fill("#search", "DOUB")
    assert opened.column("names", 1) == ["double"]
    opened.page.fill("#search", "nothing like it")
    assert opened.column("names", 1) == []
    opened.page.fill("#search", "")
    assert len(opened.column("names", 1)) == 3


def test_dark_by_the_system_and_by_the_switch(open_page, real_page):
    light, dark = open_page(real_page), open_page(real_page, color_scheme="dark")
    assert max(light.colors(".verdict"), key=light.colors(".verdict").get) == (255, 255, 255)
    colors = dark.colors("#memory")
    sheet = max(colors, key=colors.get)
    assert (
        sum(sheet) < 150
        and colors.get(dark.css("--p0"), 0) > 30
        and light.css("--p0") != dark.css("--p0")
    )
    dark.page.click("#theme")
    dark.settle()
    colors = dark.colors("#memory")
    assert max(colors, key=colors.get) == (255, 255, 255) and colors.get(light.css("--p0"), 0) > 30
    dark.assert_clean()


@pytest.mark.parametrize("width", [1280, 600, 360])
def test_nothing_is_wider_than_the_window(open_page, real_page, width):
    opened = open_page(real_page, width=width)
    assert opened.page.evaluate("document.documentElement.scrollWidth") <= width
    opened.assert_clean()


def record(seq, start, duration, own, name="f", thread=1, **more):
    return TaskRecord(
        seq=seq,
        process="1-1",
        pid=1,
        thread=thread,
        task_name=name,
        state="ok",
        start=1000.0 + start,
        duration=duration,
        alloc_peak_bytes=own,
        rss_before_bytes=MIB,
        rss_peak_bytes=own + MIB,
        overlap=0,
        **more,
    )


def test_the_stack_is_the_true_sum_at_every_zoom(open_page, page_of):
    """Each pixel's fullest moment, as it was then; tasks inside tasks are not counted twice."""
    store = Store.in_memory()
    store.add_tasks(
        [
            record(1, 0, 4, 10 * MIB, "a"),
            record(2, 1, 1, 5 * MIB, "b", 2),
            record(3, 1.5, 0.001, 100 * MIB, "c", 3),
            record(4, 2, 1, 7 * MIB, "inner"),
            record(5, 5, 1, 2 * MIB, "a"),
        ]
    )
    store.put_process(
        TaskRecord(
            kind="process",
            process="1-1",
            pid=1,
            task_name="job",
            state="ok",
            start=1000.0,
            duration=6.0,
        ),
        {},
    )
    opened = open_page(page_of(store))
    totals = """() => { const source = Bokeh.documents[0].roots().find(one => one.name === "stack")
            .renderers[0].data_source.data, sums = [];
        for (let i = 0; i < source.x.length; i++) sums.push([source.x[i],
            [0,1,2,3,4,5,6].reduce((sum, g) => sum + source["g" + g][i], 0)]);
        return sums; }"""

    def total_at(milliseconds):
        return max(total for x, total in opened.page.evaluate(totals) if abs(x - milliseconds) < 40)

    assert [round(total_at(t)) for t in (500, 1200, 1500, 2500, 4500, 5500)] == [
        10,
        15,
        115,
        10,
        0,
        2,
    ]
    opened.page.evaluate(
        "Bokeh.documents[0].get_model_by_name('time').setv({start: 1499, end: 1502})"
    )
    opened.settle()
    assert {round(total) for _, total in opened.page.evaluate(totals)} == {15, 115}


def test_a_tooltip_has_all_of_a_task(open_page, page_of):
    store = Store.in_memory()
    store.add_tasks(
        [
            record(
                1,
                0,
                10,
                64 * MIB,
                "only",
                key="('only-1', 0)",
                host="node1",
                inputs=[{"type": "ndarray", "dtype": "float32", "shape": [4, 5], "nbytes": 80}],
                input_bytes=80,
            )
        ]
    )
    store.put_process(
        TaskRecord(
            kind="process",
            process="1-1",
            pid=1,
            host="node1",
            task_name="job",
            state="ok",
            start=1000.0,
            duration=10.0,
        ),
        {},
    )
    opened = open_page(page_of(store))
    opened.page.locator("#spans").scroll_into_view_if_needed()
    left, right, _ = middle(opened, "spans")
    opened.page.mouse.move(
        (left + right) / 2, opened.page.locator("#spans").bounding_box()["y"] + 25
    )
    opened.page.wait_for_selector(".tip-key:visible")
    assert opened.page.locator(".bk-tooltip-content:visible").inner_text().split("\n") == [
        "only",
        "('only-1', 0)",
        "64.0 MiB own · process 65.0 MiB · 10.00 s",
        "float32 (4, 5)",
        "job (pid 1)",
    ]


def test_rows_by_operation_have_their_chains(open_page, page_of):
    """In the table, where a search finds them, and in the tooltip."""
    store = Store.in_memory()
    chains = {"Rms": None, "smooth": ["getitem", "smooth"]}
    store.add_tasks(
        [
            record(i, 0, 10, i * MIB, "store-map", operation=name, chain=chain, thread=i)
            for i, (name, chain) in enumerate(
                [*chains.items(), ("smooth", ["getitem", "overlap", "smooth"])], 1
            )
        ]
    )
    store.put_process(
        TaskRecord(
            kind="process",
            process="1-1",
            pid=1,
            task_name="job",
            state="ok",
            start=1000.0,
            duration=10.0,
        ),
        {},
    )
    opened = open_page(page_of(store))

    def names():
        return [text.split("\n")[0] for text in opened.column("names", 1)]

    assert names() == ["smooth (2 of 2)", "smooth (1 of 2)", "Rms"]
    assert opened.column("names", 1)[1].split("\n")[1] == "getitem → smooth; key store-map"
    opened.page.fill("#search", "overlap")
    assert names() == ["smooth (2 of 2)"]
    opened.page.fill("#search", "store-map")
    assert len(names()) == 3
    # one colour each, not one for all of the prefix
    spans = opened.colors("#spans")
    assert all(spans.get(opened.css(name), 0) > 50 for name in GROUPS)
    opened.page.locator("#spans").scroll_into_view_if_needed()
    left, right, _ = middle(opened, "spans")
    box = opened.page.locator("#spans").bounding_box()
    opened.page.mouse.move((left + right) / 2, box["y"] + 36)
    opened.page.wait_for_selector(".tip-name:visible")
    text = opened.page.locator(".bk-tooltip-content:visible").first.inner_text()
    assert text.startswith("smooth (1 of 2)\n") and "getitem → smooth · job (pid 1)" in text
    opened.assert_clean()
