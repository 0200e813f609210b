"""A comparison as one small HTML file: no script, nothing fetched, light and dark.

Called by `report --compare --format html`. page.html is the template. Names are escaped; a
Content-Security-Policy forbids what might slip through.
"""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from importlib.resources import files
from string import Template
from typing import TYPE_CHECKING

from dwsr_probe.report.compare.table import (
    arrow,
    basis_text,
    change_text,
    failed_text,
    medians_text,
    p_text,
    run_text,
    summary_lines,
    verdict_text,
)
from dwsr_probe.report.groups import row_chain_text
from dwsr_probe.words import line_of

if TYPE_CHECKING:
    from dwsr_probe.report.compare.comparison import Comparison, NameComparison
    from dwsr_probe.report.compare.difference import Difference

# title → class of the column's cells: n is aligned on the right, w is not wrapped
_COLUMNS = {
    "task": "",
    "verdict": "w",
    "of": "w",
    "": "",
    "median": "n",
    "change": "n",
    "largest": "n",
    "duration": "n",
    "count": "n",
    "failed": "n",
    "compared by": "",
}


def page_of(compared: Comparison, limit: float | None) -> str:
    """limit: of --fail-above."""
    figures = [
        max(d.a_like_bytes, d.b_like_bytes) for name in compared.names for d in name.differences
    ]
    longest = max(figures, default=0) or 1
    rows = "".join(row for name in compared.names for row in _rows(name, longest))
    head = "".join(f"<th{_class(kind)}>{title}</th>" for title, kind in _COLUMNS.items())
    table = (
        '<div class="wide"><table>'
        f"<thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>"
    )
    a, b = compared.runs
    template = (files("dwsr_probe.report.compare") / "page.html").read_text()
    return Template(template).substitute(
        title=escape(
            f"{line_of(str(b['run'] or 'B'), 80)} compared with {line_of(str(a['run'] or 'A'), 80)}"
        ),
        a=escape(run_text("A", a)),
        b=escape(run_text("B", b)),
        summary="".join(
            f"<li{_class('failed' if line.startswith('FAILED') else '')}>{escape(line)}</li>"
            for line in summary_lines(compared, limit)
        ),
        table=table if rows else "",
    )


def _class(name: str) -> str:
    return f' class="{name}"' if name else ""


def _rows(name: NameComparison, longest: float) -> Iterator[str]:
    """One per quantity. longest: the bytes of the longest bar."""
    group = name.group
    title = f"{name.label}: {row_chain_text(group)}" if group.chain else name.label
    chain = f"<br><small>{escape(row_chain_text(group))}</small>" if group.chain else ""
    task = (
        f'<td class="name" title="{escape(line_of(title, 800))}">'
        f"{escape(line_of(name.label, 200))}{chain}</td>"
    )
    common = (
        change_text(name.duration_change),
        arrow(f"{name.a.count:,}", f"{name.b.count:,}"),
        arrow(failed_text(name.a), failed_text(name.b)),
    )
    if not name.differences:
        verdict = _verdict(name.verdict, name.verdict)
        yield _row(task, verdict, "", "", "–", "–", "–", *common, escape(name.note))
    for i, d in enumerate(name.differences):
        yield _row(
            task if i == 0 else "<td></td>",
            _verdict(d.verdict, verdict_text(d), p_text(d)),
            d.quantity,
            _bars(d, longest),
            medians_text(d),
            change_text(d.change),
            change_text(d.largest_change),
            *(common if i == 0 else ("", "", "")),
            escape(basis_text(d)),
        )


def _row(first: str, *cells: str) -> str:
    _, *kinds = _COLUMNS.values()
    rest = "".join(
        f"<td{_class(kind)}>{cell}</td>" for kind, cell in zip(kinds, cells, strict=True)
    )
    return f"<tr>{first}{rest}</tr>\n"


def _verdict(verdict: str, text: str, p: str = "") -> str:
    kind = "grew" if verdict.endswith("grew") else verdict.split()[0]
    return f'<span class="{kind}">{text}</span>' + (f" <small>{escape(p)}</small>" if p else "")


def _bars(d: Difference, longest: float) -> str:
    kind = {"grew": "up", "largest grew": "up", "shrank": "down"}.get(d.verdict, "")
    a, b = (f"width:{100 * n / longest:.1f}%" for n in (d.a_like_bytes, d.b_like_bytes))
    return f'<div class="bars"><i style="{a}"></i><i class="{kind}" style="{b}"></i></div>'
