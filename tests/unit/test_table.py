import io

import pytest

from dwsr_probe.record import TaskRecord
from dwsr_probe.report.summary import process_notes, summarise
from dwsr_probe.report.table import bytes_text, name_text, print_report, seconds_text
from dwsr_probe.store import Store
from tests.unit.test_task import HOSTILE


def test_numbers_for_people():
    assert [bytes_text(n) for n in (None, 0, 1023, 1024, 1 << 20, 3 << 29, 1 << 41)] == ["–", "0 B", "1023 B", "1.0 KiB", "1.0 MiB", "1.5 GiB",
                                                                                  "2.0 TiB"]
    assert [seconds_text(s) for s in (None, 2e-6, 0.0015, 2.5, 125, 7500)] == ["–", "2 µs", "1.5 ms", "2.50 s", "2:05 min", "2:05 h"]


def test_summary_by_name():
    def record(name, state, before, peak, duration, overlap=0):
        return TaskRecord(task_name=name, state=state, rss_before_bytes=before, rss_peak_bytes=peak, duration=duration, overlap=overlap)

    big, small = summarise([record("small", "ok", 0, 5, 1), record("big", "ok", 10, 110, 2, 3), record("big", "killed", 10, 20, 4),
                            record("big", "error", 10, 40, 9), record("big", "cancelled", None, None, None)])
    assert (big.task_name, big.count, big.errors, big.killed, big.cancelled, big.overlap) == ("big", 4, 1, 1, 1, 3)
    assert (big.growth_median_bytes, big.growth_max_bytes, big.rss_peak_bytes, big.duration_median, big.duration_max) == (30, 100, 110, 4, 9)
    assert small.growth_max_bytes == 5


@pytest.mark.parametrize("name", [n for n in HOSTILE if isinstance(n, str)], ids=lambda n: repr(n)[:20])
def test_hostile_names_stay_on_their_line(name):
    store = Store.in_memory()
    store.add_tasks([TaskRecord(seq=1, process="p", task_name=name.encode("utf-8", "replace").decode(), rss_before_bytes=1, rss_peak_bytes=2)])
    store.put_process(TaskRecord(kind="process", process="p", task_name=name.encode("utf-8", "replace").decode(), state="killed"), {})
    out = io.StringIO()
    print_report(store, out)
    assert len(out.getvalue().splitlines()) == 4 and "\x1b" not in out.getvalue() and "\0" not in out.getvalue()
    assert "[bold]" not in name or "[bold]" in out.getvalue()
    assert "\n" not in name_text(name).plain


def test_process_notes_are_silent_when_all_is_well():
    assert process_notes(TaskRecord(), {"records_lost": 0, "rss_peak_source": "kernel"}) == []
    assert process_notes(TaskRecord(), {"records_lost": 1, "ends_elsewhere": 2}) == ["1 record lost", "2 ends in another thread"]
