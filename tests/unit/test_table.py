import io
import re

import pytest

from dwsr_probe.record import TaskRecord
from dwsr_probe.report.processes import process_notes
from dwsr_probe.report.summary import summarise
from dwsr_probe.report.table import bytes_text, line_of, print_report, seconds_text
from dwsr_probe.store import Store
from tests.unit.test_task import HOSTILE


def test_numbers_for_people():
    assert [bytes_text(n) for n in (None, 0, 1023, 1024, 1 << 20, 3 << 29, 1 << 41)] == [
        "–",
        "0 B",
        "1023 B",
        "1.0 KiB",
        "1.0 MiB",
        "1.5 GiB",
        "2.0 TiB",
    ]
    assert [seconds_text(s) for s in (None, 2e-6, 0.0015, 2.5, 125, 7500)] == [
        "–",
        "2 µs",
        "1.5 ms",
        "2.50 s",
        "2:05 min",
        "2:05 h",
    ]


def test_summary_by_name():
    def record(name, state, before, peak, duration, overlap=0):
        return TaskRecord(
            task_name=name,
            state=state,
            rss_before_bytes=before,
            rss_peak_bytes=peak,
            duration=duration,
            overlap=overlap,
        )

    big, small = summarise(
        [
            record("small", "ok", 0, 5, 1),
            record("big", "ok", 10, 110, 2, 3),
            record("big", "killed", 10, 20, 4),
            record("big", "error", 10, 40, 9),
            record("big", "cancelled", None, None, None),
        ]
    )
    assert (big.label, big.count, big.errors, big.killed, big.cancelled, big.overlap_max) == (
        "big",
        4,
        1,
        1,
        1,
        3,
    )
    assert (
        big.growth_median_bytes,
        big.growth_max_bytes,
        big.rss_peak_bytes,
        big.duration_median,
        big.duration_max,
    ) == (30, 100, 110, 4, 9)
    assert small.growth_max_bytes == 5


@pytest.mark.parametrize(
    "name", [n for n in HOSTILE if isinstance(n, str)], ids=lambda n: repr(n)[:20]
)
def test_hostile_names_stay_on_their_line(name):
    store = Store.in_memory()
    store.add_tasks(
        [
            TaskRecord(
                seq=1,
                process="p",
                task_name=name.encode("utf-8", "replace").decode(),
                rss_before_bytes=1,
                rss_peak_bytes=2,
            )
        ]
    )
    store.put_process(
        TaskRecord(
            kind="process",
            process="p",
            task_name=name.encode("utf-8", "replace").decode(),
            state="killed",
        ),
        {},
    )
    out = io.StringIO()
    print_report(store, out)
    assert (
        len(out.getvalue().splitlines()) == 5
        and "\x1b" not in out.getvalue()
        and "\0" not in out.getvalue()
    )
    assert "[bold]" not in name or "[bold]" in out.getvalue()
    assert "\n" not in line_of(name)


def run_of(names, state="ok", **health):
    store = Store.in_memory()
    store.add_tasks(
        [
            TaskRecord(
                seq=i,
                process="p",
                task_name=name,
                state=state,
                start=1.0,
                duration=0.1 * i,
                alloc_peak_bytes=i << 20,
                rss_before_bytes=1 << 20,
                rss_peak_bytes=(i + 1) << 20,
                rss_peak_source="kernel",
                overlap=0,
            )
            for i, name in enumerate(names, 1)
        ]
    )
    store.put_process(
        TaskRecord(
            kind="process",
            process="p",
            pid=7,
            task_name="job.py",
            state=state,
            rss_peak_bytes=999 << 20,
            duration=2.0,
        ),
        {"limit_bytes": 1000 << 20, "samples_written": 5} | health,
    )
    return store


class Terminal(io.StringIO):
    def isatty(self):
        return True


def printed(store, monkeypatch, columns, verbose=False):
    """Lines as a terminal of so many columns shows them."""
    for name, value in (("COLUMNS", str(columns)), ("LINES", "40"), ("TERM", "dumb")):
        monkeypatch.setenv(name, value)
    out = Terminal()
    print_report(store, out, verbose)
    return [line.rstrip() for line in re.sub(r"\x1b\[[0-9;]*m", "", out.getvalue()).splitlines()]


@pytest.mark.parametrize(
    ("columns", "titles"),
    [
        (60, "task count own peak, max median"),
        (80, "task count own peak, max median rss peak, max"),
        (100, "task count own peak, max median rss peak, max duration, max"),
        (120, "task count own peak, max median rss growth, max rss peak, max duration, max median"),
        (
            200,
            (
                "task count failed own peak, max median rss growth, max median rss peak, max"
                " duration, max median overlap"
            ),
        ),
    ],
)
def test_columns_go_by_importance(monkeypatch, columns, titles):
    """Whole titles and whole rows, whatever the width: nothing is wrapped or cut but long task
    names."""
    names = [f"step-{i:02d}-of-the-seismic-pipeline" for i in range(6)]
    lines = printed(run_of(names), monkeypatch, columns)
    head = next(i for i, line in enumerate(lines) if line.startswith("task"))
    assert " ".join(lines[head].split()) == titles
    rows = lines[head + 1 : head + 7]
    assert [row[:7] for row in rows] == [f"step-{i:02d}" for i in range(5, -1, -1)] and all(
        len(line) <= columns for line in lines
    )
    assert [row.replace("–", "").split()[2:4] for row in rows] == [
        [f"{i}.0", "MiB"] for i in range(6, 0, -1)
    ]
    killed = printed(run_of(["short"], "killed"), monkeypatch, 80)
    assert any(line.split()[:4] == ["task", "count", "failed", "own"] for line in killed), (
        "failures are kept before medians"
    )


def test_the_verdict_comes_first(monkeypatch):
    lines = printed(run_of(["short"]), monkeypatch, 80)
    assert lines[0] == "It fitted, narrowly: memory peaked at 100 % of the limit." and lines[
        2
    ].startswith("task ")
    lines = printed(run_of([], "killed", signal=9), monkeypatch, 100)
    assert (
        lines[0] == "One process was killed by SIGKILL at 100 % of its limit."
        and "Mark tasks" in lines[-1]
    )


def test_the_ten_largest_and_how_many_more(monkeypatch):
    names = [f"n{i:02d}" for i in range(30)]
    lines = printed(run_of(names), monkeypatch, 80)
    assert [line[:3] for line in lines if line.startswith("n")] == names[:19:-1]
    assert "and 20 more task names, with smaller needs (all of them: -v)" in lines
    lines = printed(run_of(names), monkeypatch, 80, verbose=True)
    assert [line[:3] for line in lines if line.startswith("n")] == names[::-1] and not any(
        "more task name" in line for line in lines
    )
    assert "and one more task name, with smaller needs (all of them: -v)" in printed(
        run_of(names[:11]), monkeypatch, 80
    )


def test_the_sampler_is_for_those_who_ask(monkeypatch):
    assert not any(
        "samples" in line for line in printed(run_of(["a"], reset_gaps=2), monkeypatch, 200)
    )
    assert any(
        "5 samples, 0.0 % late, 0.00 % of a core, 2 slow resets of the kernel's mark" in line
        for line in printed(run_of(["a"], reset_gaps=2), monkeypatch, 200, verbose=True)
    )


def test_lost_records_are_said_above_and_below(monkeypatch):
    lines = printed(run_of(["a"], records_lost=9), monkeypatch, 200)
    assert (
        lines[0].startswith("9 of 10 tasks (90 %) have no record")
        and "not in the table: 9 tasks without a record" in lines
        and not any("fitted" in line for line in lines)
    )


def test_lower_bounds_are_marked(monkeypatch):
    lines = printed(run_of(["died"], "killed"), monkeypatch, 200)
    (row,) = [line for line in lines if line.startswith("died")]
    # own peak and growth with their medians; rss peak
    assert (
        row.split("  ")[0] == "died" and row.count("≥ 1.0 MiB") == 4 and row.count("≥ 2.0 MiB") == 1
    )
    assert "≥ at least: a task was killed, and may have needed more" in lines


def shared_run(*reasons, exact=1):
    """A run with a task for each reason."""
    store = Store.in_memory()
    store.add_tasks(
        [
            TaskRecord(
                seq=n,
                process="1-1",
                task_name="query",
                state="ok",
                alloc_peak_bytes=24,
                rss_before_bytes=0,
                rss_peak_bytes=160 << 20,
                overlap=0,
                attribution="exact" if reason == "exact" else "shared",
                attribution_reason=None if reason == "exact" else reason,
            )
            for n, reason in enumerate([*reasons, *["exact"] * exact], 1)
        ]
    )
    store.put_process(TaskRecord(kind="process", process="1-1", state="ok"), {})
    return store


def footnote(lines):
    start = next(i for i, line in enumerate(lines) if line.startswith("†"))
    return "\n".join(lines[start:])


def test_own_peaks_that_are_not_exact_say_of_how_many_tasks_and_why(monkeypatch):
    polars, threads = ["foreign-allocator polars"] * 10, ["native-threads"] * 2
    shown = printed(shared_run(*threads, *polars, exact=28), monkeypatch, 200)
    assert "24 B†" in "\n".join(shown)
    assert footnote(shown).splitlines()[:3] == [
        "† not exact in 12 of 40 tasks (10 foreign-allocator polars, 2 native-threads): memory is"
        " missing, or of other work",
        "  foreign-allocator: a library allocated by itself, which is not counted",
        "  native-threads: threads of compiled libraries allocated while several tasks ran",
    ]


def test_reasons_that_are_many_or_not_known(monkeypatch):
    named = footnote(
        printed(shared_run(*[f"unowned-thread T\x1b{n}" for n in range(9)]), monkeypatch, 200)
    )
    assert "in 9 of 10 tasks (1 unowned-thread T\\x1b0, 1 unowned" in named
    assert "4 for other reasons)" in named and "\x1b" not in named
    assert named.count("unowned-thread: a thread that works for no task") == 1
    older = footnote(printed(shared_run(None, None), monkeypatch, 200))
    assert older.startswith("† not exact in 2 of 3 tasks (why was not recorded)")
    mixed = footnote(printed(shared_run(None, "later-word x"), monkeypatch, 200))
    assert mixed.startswith("† not exact in 2 of 3 tasks (why is known of 1: 1 later-word x)")
    assert not [line for line in printed(shared_run(), monkeypatch, 200) if "†" in line]


def test_every_reason_has_words():
    from dwsr_probe.record import ATTRIBUTION_REASONS
    from dwsr_probe.report.reasons import reason_lines

    lines = reason_lines({f"{word} x": 1 for word in ATTRIBUTION_REASONS.values()})
    assert len(lines) == len(ATTRIBUTION_REASONS) and max(map(len, lines)) < 90


def test_process_notes_are_silent_when_all_is_well():
    assert process_notes({"records_lost": 0, "rss_peak_source": "kernel"}) == []
    assert process_notes({"records_lost": 1, "ends_elsewhere": 2}) == [
        "1 record lost",
        "2 ends in another thread",
    ]
