"""A comparison as one small HTML file: no script, nothing fetched, light and dark. Names are
escaped; a policy forbids what might slip through."""

from html import escape
from string import Template

from dwsr_probe.report.compare.table import (
    arrow,
    change_text,
    failed_text,
    medians_text,
    p_text,
    run_text,
    summary_lines,
    verdict_text,
)
from dwsr_probe.report.words import line_of

_PAGE = Template("""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>$title</title>
<style>
:root { color-scheme: light dark; --text: #1b1f24; --dim: #666e78; --back: #fff; --line: #e3e6ea;
  --up: #c62828; --down: #2e7d32; --maybe: #9a6700; --bar: #d9dee5 }
@media (prefers-color-scheme: dark) { :root { --text: #e4e7eb; --dim: #98a1ad; --back: #15181c;
  --line: #2b3036; --up: #ff7b72; --down: #6fcf7f; --maybe: #e3b341; --bar: #3a414a } }
body { font: 15px/1.45 system-ui, sans-serif; color: var(--text); background: var(--back);
  margin: 2rem auto; max-width: 96rem; padding: 0 1rem }
h1 { font-size: 1.3rem } p, ul { margin: .3rem 0 } .dim, small { color: var(--dim) }
table { border-collapse: collapse; width: 100%; margin-top: 1rem;
  font-variant-numeric: tabular-nums }
th, td { padding: .35rem .6rem; border-bottom: 1px solid var(--line); text-align: left;
  vertical-align: top }
.n { text-align: right } .n, .w { white-space: nowrap } .wide { overflow-x: auto }
td.name { max-width: 22rem; overflow: hidden; text-overflow: ellipsis; white-space: nowrap;
  font-family: ui-monospace, monospace }
.grew, .failed { color: var(--up); font-weight: 600 }
.shrank { color: var(--down); font-weight: 600 }
.cannot { color: var(--maybe) }
.bars { width: 9rem }
.bars i { display: block; height: .45rem; margin: .2rem 0; background: var(--bar); min-width: 1px }
.bars i.up { background: var(--up) } .bars i.down { background: var(--down) }
</style></head><body>
<h1>$title</h1>
<p class="dim">$a</p><p class="dim">$b</p>
<ul>$summary</ul>
$table
<p class="dim">Bars and medians: A above, B below, of tasks that are alike, as the last column
says; change and largest, too. Where block sizes differ, B is shown at the size of A's blocks;
durations are shown, never judged.</p>
</body></html>
""")
_HEAD = (
    "task",
    "verdict",
    "of",
    "",
    "median",
    "change",
    "largest",
    "duration",
    "count",
    "failed",
    "compared by",
)


def page_of(compared, limit):
    most = (
        max(
            (
                max(d.a_like_bytes, d.b_like_bytes)
                for name in compared.names
                for d in name.differences
            ),
            default=0,
        )
        or 1
    )
    rows = "".join(row for name in compared.names for row in _rows(name, most))
    head = "".join(f"<th{_aligned(i)}>{title}</th>" for i, title in enumerate(_HEAD))
    return _PAGE.substitute(
        title=escape(
            f"{line_of(str(compared.runs[1]['run'] or 'B'), 80)} compared with"
            f" {line_of(str(compared.runs[0]['run'] or 'A'), 80)}"
        ),
        a=escape(run_text("A", compared.runs[0])),
        b=escape(run_text("B", compared.runs[1])),
        summary="".join(
            f"<li{' class=failed' if line.startswith('FAILED') else ''}>{escape(line)}</li>"
            for line in summary_lines(compared, limit)
        ),
        table=(
            "<div"
            f" class=wide><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>"
            if rows
            else ""
        ),
    )


def _aligned(i):
    return ' class="n"' if 4 <= i <= 9 else ' class="w"' if i in (1, 2) else ""


def _rows(name, most):
    shown = (
        '<td class="name"'
        f' title="{escape(line_of(name.task_name, 400))}">'
        f"{escape(line_of(name.task_name, 200))}</td>"
    )
    common = (
        change_text(name.duration_change),
        arrow(f"{name.a.count:,}", f"{name.b.count:,}"),
        arrow(failed_text(name.a), failed_text(name.b)),
    )
    if not name.differences:
        yield _row(shown, _verdict(name.verdict), "", "", "–", "–", "–", *common, escape(name.note))
    for i, d in enumerate(name.differences):
        yield _row(
            shown if i == 0 else "<td></td>",
            _verdict(d.verdict, p_text(d), verdict_text(d)),
            d.quantity,
            _bars(d, most),
            medians_text(d),
            change_text(d.change),
            change_text(d.largest_change),
            *(common if i == 0 else ("", "", "")),
            escape(d.basis + (f" ({d.note})" if d.note else "")),
        )


def _row(first, *cells):
    rest = "".join(f"<td{_aligned(i)}>{cell}</td>" for i, cell in enumerate(cells, 1))
    return f"<tr>{first}{rest}</tr>\n"


def _verdict(verdict, p="", text=""):
    kind = "grew" if verdict.endswith("grew") else verdict.split()[0]
    return f'<span class="{kind}">{text or verdict}</span>' + (
        f" <small>{escape(p)}</small>" if p else ""
    )


def _bars(d, most):
    kind = {"grew": "up", "largest grew": "up", "shrank": "down"}.get(d.verdict, "")
    return (
        f'<div class="bars"><i style="width:{100 * d.a_like_bytes / most:.1f}%"></i><i'
        f' class="{kind}" style="width:{100 * d.b_like_bytes / most:.1f}%"></i></div>'
    )
