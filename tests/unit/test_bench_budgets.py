"""The list of budgets and how a verdict is made. Nothing is measured here."""

import pytest

from tests.bench import book, graphs, libraries
from tests.bench.budgets import DASK, LINES, NUMPY, ROWS, Row, cells
from tests.bench.figure import Figure, NotMeasured, difference
from tests.bench.jobs import JOBS

NOT_BUILT = {
    "with chain and parameters",
    "with the guard",
    "this ratio with all features",
    "large pair with its line",
    "the guard on top of it, resident",
}


def test_every_line_of_the_design_has_rows():
    assert {row.line for row in ROWS} == set(LINES)


def test_rows_have_a_goal_and_a_function_or_none():
    assert len({row.what for row in ROWS}) == len(ROWS)
    for row in ROWS:
        assert row.measure is None or callable(row.measure), row.what
        assert row.goal is None or row.goal >= 0, row.what
    assert {row.what for row in ROWS if row.measure is None} == NOT_BUILT
    assert {row.what for row in ROWS if row.goal is None} == {
        "trivial, one CPU, with the table that `run` prints at its end",
        "of these, without a record of their own",
    }


def test_goals_are_those_of_the_design():
    """Each number of a row's goal stands in its line, or is of the issue that added the row."""
    own = {1.15, 1.25, 0, 15, 1, 2}
    for row in ROWS:
        assert row.goal is None or f"{row.goal:g}" in LINES[row.line] or row.goal in own, row.what


def test_section_and_jobs_are_known():
    assert "budgets" in book.ORDER and "budgets" not in book.NAMES
    assert {NUMPY, DASK} <= set(JOBS)


def test_libraries():
    """A benchmark of its own, with rows as the budgets have them."""
    assert "libraries" in book.ORDER and "libraries" not in book.NAMES
    assert {row.line for row in libraries.ROWS} <= set(LINES)
    assert all(callable(row.measure) for row in libraries.ROWS)
    assert set(libraries.DATA) == set(libraries.JOBS) == set(libraries.NEEDS)
    for code in (*libraries.DATA.values(), *libraries.JOBS.values()):
        compile(code, "job.py", "exec")


def test_loads_below_their_chunk():
    chunk = 16 << 20
    found = [{"task_name": "sum", "alloc_peak_bytes": n} for n in (None, 0, chunk, 2 * chunk)]
    assert libraries.percent_below_chunk(found) == 50
    with pytest.raises(NotMeasured):
        libraries.percent_below_chunk([{"task_name": "other", "alloc_peak_bytes": chunk}])


def test_what_is_not_exact_counts():
    def task(attribution, peak, reason=None):
        return {
            "attribution": attribution,
            "attribution_reason": reason,
            "alloc_peak_bytes": peak,
            "rss_before_bytes": 1000,
            "rss_peak_bytes": 1400,
        }

    found = [task("exact", 600), task("shared", 200, "coroutine"), task("exact", None)]
    assert [libraries.is_exact(one) for one in found] == [True, False, False]
    assert libraries.percent_not_exact(found) == pytest.approx(200 / 3)
    assert libraries.percent_of_bytes_not_exact(found) == pytest.approx(50)  # 200 and 400 of 1,200
    assert libraries.reasons(found) == "1 coroutine, 1 no own peak"
    assert libraries.reasons(found[:1]) == "all exact"


def test_graphs():
    """A benchmark of its own, with rows as the budgets have them."""
    assert "graphs" in book.ORDER and "graphs" not in book.NAMES
    rows = graphs.rows(None)
    assert {row.line for row in rows} <= set(LINES) and all(callable(row.measure) for row in rows)
    for job in graphs.BLOCKS:
        compile((graphs.FOLDER / f"{job}.py").read_text(), job, "exec")
    compile(graphs.repeated("folder"), "job.py", "exec")


def test_inputs_that_fit():
    mib = 1 << 20

    def task(own, *inputs):
        return {"task_name": "x", "operation": None, "alloc_peak_bytes": own, "inputs": inputs}

    def one(nbytes, **more):
        return {"shape": None if nbytes is None else [nbytes], "nbytes": nbytes, **more}

    assert graphs.fits(task(mib), None) and graphs.fits(task(None), None)
    assert not graphs.fits(task(2 * mib), None) and not graphs.fits(task(2 * mib, one(None)), None)
    assert not graphs.fits(task(100 * mib, one(mib)), None)
    assert graphs.fits(task(100 * mib, one(mib, count=2)), None)
    assert graphs.fits(task(100 * mib, one(8, logical_bytes=2 * mib)), None)
    late = task(2 * mib, one(mib, late=True))
    assert graphs.fits(late, None) and not graphs.fits(late, None, late=False)
    block = {((mib,), mib)}
    assert graphs.fits(task(2 * mib, one(mib, lazy=True), one(8)), block)
    assert not graphs.fits(task(2 * mib, one(mib)), block)
    assert not graphs.fits(task(2 * mib, one(mib, lazy=True), one(9 * mib, lazy=True)), block)
    records = [(task(30 * mib, one(mib)), None), (task(10 * mib), None)]
    assert graphs.percent_unfit(records) == 25 and graphs.worst(records) == "x 25.0"


@pytest.mark.parametrize(
    ("figure", "verdict"),
    [
        (Figure([1, 2, 3]), "met"),
        (Figure([1, 3, 4]), "above"),
        (Figure([1, 2, 3], 2.5), "above; the median is met"),
        (Figure([3, 4, 5], 1.0), "met; the median is above"),
        (Figure([3, 4, 5], 2.5), "above"),
    ],
)
def test_verdict(figure, verdict):
    assert figure.verdict(2) == verdict
    assert figure.verdict(None) == "no goal"


def test_figures_are_differences_of_neighbours_and_of_the_least():
    figure = difference([1.0, 5.0, 2.0], [2.0, 9.0, 2.5], 10)
    assert figure.values == [10.0, 40.0, 5.0] and figure.least == 10.0
    assert figure.text(0) == "10 (5 – 40)" and Figure([7.0], said="of 9").text(0) == "7; of 9"


def test_cells():
    def missing(_):
        raise NotMeasured("no GPU")

    row = Row("fork", "x", 2, "ms", None)
    assert cells(row, None) == ("x", "≤ 2 ms", "–", "–", "not built yet")
    assert cells(row._replace(measure=missing), None)[-1] == "not measured: no GPU"
    assert cells(row._replace(measure=lambda _: Figure([1.0], 0.5), goal=None), None) == (
        "x",
        "–",
        "1.00",
        "0.50 ms",
        "no goal",
    )
