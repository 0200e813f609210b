"""A comparison as a table for the terminal, and the texts that the page shares with it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TextIO

from dwsr_probe.report.compare.difference import ALPHA
from dwsr_probe.report.groups import chain_lines
from dwsr_probe.report.lines import Column, Lines, Styled
from dwsr_probe.words import bytes_text, count_text, line_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dwsr_probe.report.compare.comparison import Comparison, NameComparison
    from dwsr_probe.report.compare.difference import Difference
    from dwsr_probe.report.compare.tasks import NameInRun

_UNDECIDED_MOST = 8  # names in the line about them
_STYLES = {
    "grew": "bold red",
    "largest grew": "bold red",
    "shrank": "green",
    "cannot tell": "yellow",
    "new": "cyan",
    "vanished": "cyan",
}
_VERDICTS = (  # in the order in which they are counted
    "grew",
    "largest grew",
    "shrank",
    "within noise",
    "no difference",
    "cannot tell",
    "new",
    "vanished",
)


def change_text(share: float | None) -> str:
    """ "+20.1 %", "−3.0 %"; "×12" from ten times as much on."""
    if share is None:
        return "–"
    if share >= 9:
        return f"×{share + 1:,.0f}"
    return "0.0 %" if abs(share) < 0.0005 else f"{share * 100:+.1f} %".replace("-", "−")


def arrow(a: str, b: str) -> str:
    return a if a == b else f"{a} → {b}"


def verdict_text(d: Difference) -> str:
    """Says "per byte" where block sizes differ: such a task may need more in all and less per
    byte."""
    return (
        f"{d.verdict} per byte"
        if d.sizes_differ and d.verdict in ("grew", "largest grew", "shrank")
        else d.verdict
    )


def _name_verdict_text(name: NameComparison) -> str:
    texts = (verdict_text(d) for d in name.differences if d.verdict == name.verdict)
    return next(texts, name.verdict)


def medians_text(d: Difference) -> str:
    """The medians that the change beside them is computed from."""
    return arrow(bytes_text(d.a_like_bytes), bytes_text(d.b_like_bytes))


def basis_text(d: Difference) -> str:
    """What the tasks were compared by."""
    return d.basis + (f" ({d.note})" if d.note else "")


def failed_text(side: NameInRun) -> str:
    return (
        ", ".join(
            f"{n:,} {'errors' if word == 'error' and n > 1 else word}"
            for word, n in side.failed().items()
        )
        or "–"
    )


def p_text(d: Difference) -> str:
    p = d.largest_p if d.verdict == "largest grew" else d.p
    if p is None or d.verdict in ("no difference", "cannot tell"):
        return ""
    return f"p = {p:.2g}" if p >= 0.001 else "p < 0.001"


def run_text(letter: str, run: Mapping[str, Any]) -> str:
    code = (
        "still running, or its parent was killed"
        if run["exit_code"] is None
        else f"exit code {run['exit_code']}"
    )
    return (
        f"{letter}: {line_of(str(run['run'] or 'a board'), 120)}; {code}; max rss"
        f" {bytes_text(run['max_rss_bytes'])}"
    )


def summary_lines(compared: Comparison, limit: float | None) -> list[str]:
    """The result in words; the last lines of a CI log."""
    verdicts = [_name_verdict_text(name) for name in compared.names]
    if not compared.names:
        return ["Neither run has a task."]
    counts = [
        f"{verdicts.count(text):,} {text}"
        for word in _VERDICTS
        for text in (word, f"{word} per byte")
        if text in verdicts
    ]
    lines = [
        f"{count_text(len(verdicts), 'task name', 'task names', '1')}: {', '.join(counts)} (more"
        f" than noise: p ≤ {ALPHA}, for all names together)"
    ]
    differ = sum(any(d.sizes_differ for d in name.differences) for name in compared.names)
    if differ:
        lines.append(
            f"Block sizes differ in {count_text(differ, 'task name', 'task names', '1')}: peaks are"
            " compared per byte, at the size of A's blocks"
        )
    if limit is not None:
        objections = compared.objections(limit)
        lines += [f"FAILED: {line_of(name)}: {why}" for name, why in objections]
        above = f"above {100 * limit:g} %"
        lines.append(
            f"{len(objections):,} {above}" if objections else f"nothing {above} and beyond noise"
        )
        undecided = [
            line_of(name.label)
            for name in compared.names
            if name.verdict == "cannot tell"
            and (
                not name.differences
                or any(max(d.change, d.largest_change) > limit for d in name.differences)
            )
        ]
        if undecided:
            more = len(undecided) - _UNDECIDED_MOST
            lines.append(
                f"not judged, too little to tell: {', '.join(undecided[:_UNDECIDED_MOST])}"
                f"{f' and {more:,} more' if more > 0 else ''}"
            )
    return lines


def print_comparison(compared: Comparison, limit: float | None, file: TextIO) -> None:
    out = Lines(file)
    for letter, run in zip("AB", compared.runs, strict=True):
        out.print(run_text(letter, run))
    if compared.names:
        _print_table(out, compared)
    for line in summary_lines(compared, limit):
        out.print(Styled(line, "red") if line.startswith("FAILED") else line)


@dataclass
class _TableRow:
    """One quantity of a row of both runs. Figures of the row as a whole stand in the first line
    only."""

    label: str
    is_first: bool
    verdict: str
    quantity: str = ""  # empty: nothing could be compared, and basis says why
    p: str = ""
    medians: str = "–"
    change: str = "–"
    largest_change: str = "–"
    duration_change: str = ""
    count: str = ""
    failed: str = ""
    basis: str = ""


def _rows(name: NameComparison) -> list[_TableRow]:
    style = _STYLES.get(name.verdict, "")
    rows = [
        _TableRow(
            name.label,
            is_first=i == 0,
            verdict=Styled(verdict_text(d), _STYLES.get(d.verdict, "")),
            quantity=d.quantity,
            p=p_text(d),
            medians=medians_text(d),
            change=change_text(d.change),
            largest_change=change_text(d.largest_change),
            basis=basis_text(d),
        )
        for i, d in enumerate(name.differences)
    ] or [_TableRow(name.label, True, Styled(name.verdict, style), basis=name.note)]
    first = rows[0]
    first.duration_change = change_text(name.duration_change)
    first.count = arrow(f"{name.a.count:,}", f"{name.b.count:,}")
    first.failed = arrow(failed_text(name.a), failed_text(name.b))
    return rows


def _print_table(out: Lines, compared: Comparison) -> None:
    rows = [row for name in compared.names for row in _rows(name)]
    several = len({row.quantity for row in rows} - {""}) > 1
    failed = bool({row.failed for row in rows} - {"", "–"})
    columns = [
        Column("verdict", 0, [row.verdict for row in rows], left=True),
        Column("", 7, [row.p for row in rows], left=True),
        Column("of", 2 if several else 6, [row.quantity for row in rows], left=True),
        Column("median", 3, [row.medians for row in rows]),
        Column("change", 1, [row.change for row in rows]),
        Column("largest", 4, [row.largest_change for row in rows]),
        Column("duration", 8, [row.duration_change for row in rows]),
        Column("count", 9, [row.count for row in rows]),
        Column("failed", 5 if failed else 10, [row.failed for row in rows]),
        Column("compared by", 11, [row.basis for row in rows], left=True),
    ]
    shown = out.print_task_table([row.label if row.is_first else "" for row in rows], columns)
    if columns[-1] not in shown:
        out.print_omitted_column(
            [row.label for row in rows],
            [
                row.basis and f"{'compared by' if row.quantity else 'not compared,'} {row.basis}"
                for row in rows
            ],
        )
    for line in chain_lines((name.group, name.label) for name in compared.names):
        out.print(Styled(line, "dim"))
