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
from dwsr_probe.report.words import count_text


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
