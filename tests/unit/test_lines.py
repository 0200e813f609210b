"""Lines for a terminal: wrapped at words, cut by cells, coloured where that is wanted."""

import io

import pytest

from dwsr_probe.report.lines import Lines, Styled, cut, display_width


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def lines(monkeypatch):
    """made(columns, file, **environment): Lines on a terminal of that width."""

    def made(columns, file, **environment):
        for name in ("NO_COLOR", "FORCE_COLOR"):
            monkeypatch.delenv(name, raising=False)
        for name, value in {"COLUMNS": str(columns), "TERM": "xterm", **environment}.items():
            monkeypatch.setenv(name, value)
        return Lines(file)

    return made


@pytest.mark.parametrize(
    ("text", "wide"), [("abc", 3), ("µs ≥ –", 6), ("日本", 4), ("e\u0301", 1), ("", 0)]
)
def test_cells(text, wide):
    assert display_width(text) == wide


@pytest.mark.parametrize(
    ("text", "most", "shown"),
    [
        ("abc", 3, "abc"),
        ("abcd", 3, "ab…"),
        ("日本語", 4, "日…"),
        ("日本語", 5, "日本…"),
        ("abc", 1, "…"),
    ],
)
def test_cut(text, most, shown):
    assert cut(text, most) == shown and display_width(shown) <= most


@pytest.mark.parametrize("columns", range(1, 40))
def test_nothing_is_lost_by_wrapping(lines, columns):
    text = (
        "process 日本語.py (pid 7): ok; max rss 1.0 MiB of 2.0 GiB;"
        " averylongwordthatfitsnowhereatall; end"
    )
    out = Terminal()
    lines(columns, out, NO_COLOR="1").print(text[:11], Styled(text[11:30], "red"), text[30:])
    shown = out.getvalue().splitlines()
    assert "".join(shown).replace(" ", "") == text.replace(" ", "") and all(
        display_width(line) <= max(columns, 2) for line in shown
    )
    assert columns < 33 or all(line.strip() == line and line in text for line in shown)


@pytest.mark.parametrize(
    ("environment", "file", "coloured"),
    [
        ({}, Terminal, True),
        ({"NO_COLOR": "1"}, Terminal, False),
        ({"TERM": "dumb"}, Terminal, False),
        ({}, io.StringIO, False),
        ({"FORCE_COLOR": "1"}, io.StringIO, True),
    ],
)
def test_colours(lines, environment, file, coloured):
    out = file()
    lines(80, out, **environment).print("process ", Styled("killed", "bold red"))
    assert out.getvalue() == (
        "process \x1b[1;31mkilled\x1b[0m\n" if coloured else "process killed\n"
    )


def test_a_log_is_not_wrapped(lines):
    out = io.StringIO()
    lines(10, out).print("word " * 200)
    assert len(out.getvalue().splitlines()) == 1


def test_texts_of_the_job_move_no_cursor(lines):
    out = Terminal()
    lines(80, out, NO_COLOR="1").print("a\x1b[2Jb\nc", Styled("\r", "red"))
    assert out.getvalue() == "a\\x1b[2Jb\\nc\\r\n"


def test_columns_are_aligned_by_cells(lines):
    out = Terminal()
    lines(80, out, NO_COLOR="1").print_table(
        ["task", "count"], [["日本", "1"], ["abcdef", "1,000"]]
    )
    assert out.getvalue() == "task    count\n日本        1\nabcdef  1,000\n"
