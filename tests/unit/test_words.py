"""One of something is not several, in every line that counts."""

import pytest

from dwsr_probe.record import TaskRecord
from dwsr_probe.report.compare.table import failed_text
from dwsr_probe.report.compare.tasks import NameInRun
from dwsr_probe.report.forecast import answer_lines, input_text
from dwsr_probe.report.processes import process_notes, sampler_text, worker_facts
from dwsr_probe.report.summary import summarise
from dwsr_probe.report.table import _failed_text
from dwsr_probe.report.top.moment import Moment
from dwsr_probe.report.top.picture import Picture
from dwsr_probe.report.top.screen import Screen, plain_line
from dwsr_probe.words import count_text, inputs_text, label_number, line_of


def said(n):
    """Lines of all views about n of everything."""
    process = TaskRecord(kind="process", task_name="job.py", duration=1.0)
    (failed,) = summarise([TaskRecord(task_name="t", state="error")] * n)
    picture = Picture("x")
    picture.add(Moment(records_lost=n, boards_unreadable=n))
    screen = Screen(picture)
    screen._colour = False
    forecast = {
        "kind": "output",
        "mean_bytes": 1,
        "upper_bytes": 1,
        "at_least": False,
        "unseen": None,
        "q": 0.99,
        "promised": True,
        "n": n,
        "trust": "good",
        "notes": [],
    }
    return "\n".join(
        [
            *worker_facts({"workers": [{"address": "tcp://x", "nthreads": n}]}),
            sampler_text(process, {"samples_written": n, "reset_gaps": n}),
            *process_notes({"untracked_bytes": n, "records_lost": n, "samples_lost": n}),
            _failed_text(failed),
            failed_text(NameInRun(n, errors=n)),
            input_text({"nbytes": n}),
            *answer_lines(forecast),
            *screen.lines(200, 24),
            plain_line(picture),
            count_text(n, "process", "processes", "1"),
        ]
    )


@pytest.mark.parametrize(
    "noun", ["thread", "sample", "slow reset", "byte", "record", "error", "board"]
)
def test_one_is_not_several(noun):
    assert f"1 {noun}s" not in said(1) and f"1 {noun}" in said(1)
    assert f"2,000 {noun}s" in said(2_000)


def test_inputs_are_counted_and_say_where_they_come_from():
    array = {"type": "ndarray", "dtype": "float32", "shape": [4, 5], "nbytes": 80}
    frame = {"type": "DataFrame", "dtype": None, "shape": None, "nbytes": 3 << 20}
    assert inputs_text([array | {"lazy": True}, frame | {"count": 4}]) == (
        "float32 (4, 5) from a file, 4 × DataFrame 3.0 MiB"
    )
    many = [array | {"count": 2} for _ in range(8)]
    assert inputs_text(many, 3).endswith("2 × float32 (4, 5) and 7 more")
    assert inputs_text([array | {"count": "x"}, 7]) == "float32 (4, 5) and 1 more"


def test_the_number_of_a_label_is_kept():
    assert line_of("x" * 60 + " (1 of 12)", 20) == "x" * 9 + "… (1 of 12)"
    for text in ("f (1 of 2", "f (a of 2)", "f (1 of )", " of 2)", "f (1,2)", "", "f(1 of 2)"):
        assert label_number(text) == ""
    assert label_number("f (1 of 2)") == " (1 of 2)"
    assert len(line_of("x" * 60 + " (1 of 2)", 5)) <= 10
