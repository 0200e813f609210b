"""A forecast in words and as a picture: fits a terminal, whatever the figures."""

import io
import json

import pytest

from dwsr_probe.predict import Model
from dwsr_probe.report.forecast import NOTE_TEXT, ROWS, answer_lines, plot, print_names
from dwsr_probe.serve.question import Question, answer
from tests.unit.test_table import Terminal
from tests.unit.workers import MIB, record


@pytest.fixture(scope="module")
def model():
    found = Model()
    for n in range(12):
        found.learn(record(n + 1, size=(n % 4 + 1) * MIB))
    return found


def test_words(model):
    found = "\n".join(
        answer_lines(
            answer(model, Question("smooth", [{"dtype": "float64", "shape": [MIB]}], limit="1GiB"))
        )
    )
    assert (
        "own peak: 24." in found
        and "MiB at most with 99 % probability (not yet calibrated)" in found
        and "more than 1.0 GiB: less than 0.1 % probable" in found
    )
    assert (
        "output: 1048576 float64 (8.0 MiB)" in found
        and "learned from 12 tasks; trust good" in found
        and "note: extrapolating" in found
    )
    unknown = "\n".join(answer_lines(answer(model, Question("never", [{"nbytes": 5}]))))
    assert (
        "its shape is not known" in unknown
        and "trust none: nothing of this name was seen" in unknown
    )
    json.dumps(unknown)


def test_every_note_of_the_model_has_words():
    """By the model's own text: a note without words would be a riddle."""
    import inspect
    import re

    from dwsr_probe.predict import trust

    said = set(re.findall(r'notes\.append\("([a-z-]+)"\)', inspect.getsource(trust)))
    assert said and said <= NOTE_TEXT.keys()


@pytest.mark.parametrize("scale", [1, 1 << 10, 1 << 40])
def test_a_plot_fits(scale):
    curve = [(x * scale, 3 * x * scale, 4 * x * scale) for x in range(1, 60)]
    lines = list(
        plot(
            curve,
            [(5 * scale, 15 * scale, 3), (20 * scale, 61 * scale, 1)],
            (59 * scale, 177 * scale),
            limit=200 * scale,
        )
    )
    assert len(lines) == ROWS + 3 and max(map(len, lines)) <= 80
    picture = "\n".join(lines)
    assert (
        picture.count("◆") == 2
        and picture.count("●") == 3
        and "░" in picture
        and "─" in picture
        and "┄" in picture
    )


@pytest.mark.parametrize(
    ("curve", "seen", "asked"),
    [
        ([(1, 1, 1)], [], None),
        ([(1, 0, 0), (2, 0, 0)], [(0, 0, 1)], (0, 0)),
        ([(1, 5, float("inf")), (9, 7, float("inf"))], [(3, 9, 1)], (9, 7)),
        ([(5, 5, 6), (5, 5, 6)], [(5, 1 << 62, 1)], (5, 5)),
    ],
)
def test_plots_of_odd_figures(curve, seen, asked):
    assert all(len(line) <= 80 for line in plot(curve, seen, asked, limit=1 << 63))


def test_a_table_of_names(model):
    out = io.StringIO()
    print_names(
        [("smooth\n", "alloc", 4 * MIB, model.predict([{"nbytes": 4 * MIB}], "smooth"))], 0.95, out
    )
    head, line = out.getvalue().splitlines()
    assert (
        "95 % bound" in head
        and line.startswith("smooth\\n")
        and "12.0 MiB" in line
        and "no-shape, uncalibrated" in line
    )


@pytest.mark.parametrize(
    ("columns", "titles"),
    [
        (60, "task expected 99 % bound trust"),
        (80, "task tasks largest input expected 99 % bound trust"),
        (100, "task kind tasks largest input expected 99 % bound trust"),
        (0, "task kind tasks largest input expected 99 % bound trust notes"),
    ],
)
def test_a_table_of_names_fits(model, monkeypatch, columns, titles):
    """Whole titles and one line a row; notes that do not fit stand below. 0: a pipe has all."""
    monkeypatch.setenv("COLUMNS", str(columns or 60))
    monkeypatch.setenv("TERM", "dumb")
    out = Terminal() if columns else io.StringIO()
    forecast = model.predict([{"nbytes": 4 * MIB}], "smooth")
    names = [f"step-{i}-of-the-seismic-pipeline" for i in range(6)]
    print_names([(name, "alloc", 4 * MIB, forecast) for name in names], 0.99, out)
    lines = out.getvalue().splitlines()
    assert " ".join(lines[0].split()) == titles
    assert [line[:6] for line in lines[1:7]] == [name[:6] for name in names]
    assert all(line.count("12.0 MiB") == 2 and "fair" in line for line in lines[1:7])
    if columns:
        assert max(map(len, lines)) <= columns
        assert " ".join(lines[7:]).startswith("notes: no-shape, uncalibrated: step-0-of-the")
        assert lines[-1].endswith("2 more names")
