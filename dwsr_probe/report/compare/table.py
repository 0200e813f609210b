"""A comparison as a table for the terminal."""
from rich.table import Table
from rich.text import Text

from dwsr_probe.report.compare.comparison import ALPHA
from dwsr_probe.report.console import console_for, name_text
from dwsr_probe.report.words import bytes_text, count_text, line_of

STYLES = {"grew": "bold red", "largest grew": "bold red", "shrank": "green", "cannot tell": "yellow", "new": "cyan", "vanished": "cyan"}
_COUNTED = ("grew", "largest grew", "shrank", "within noise", "no difference", "cannot tell", "new", "vanished")


def change_text(share):
    """+20.1 %, −3.0 %, ×12 for what is more than ten times as much."""
    if share is None:
        return "–"
    if share >= 9:
        return f"×{share + 1:,.0f}"
    return "0.0 %" if abs(share) < 0.0005 else f"{share * 100:+.1f} %".replace("-", "−")


def arrow(a, b):
    return a if a == b else f"{a} → {b}"


def verdict_text(d):
    """With other block sizes a task may need more in all and less per byte."""
    return f"{d.verdict} per byte" if d.sizes_differ and d.verdict in ("grew", "largest grew", "shrank") else d.verdict


def _verdict_of(name):
    """As the table shows it."""
    return next((verdict_text(d) for d in name.differences if d.verdict == name.verdict), name.verdict)


def medians_text(d):
    """Of what was compared: the change beside them is theirs."""
    return arrow(bytes_text(d.a_like_bytes), bytes_text(d.b_like_bytes))


def failed_text(side):
    return ", ".join(f"{n:,} {'errors' if word == 'error' and n > 1 else word}" for word, n in side.failed().items()) or "–"


def p_text(d):
    found = d.largest_p if d.verdict == "largest grew" else d.p
    return "" if found is None or d.verdict in ("no difference", "cannot tell") else f"p = {found:.2g}" if found >= 0.001 else "p < 0.001"


def run_text(letter, run):
    code = "still running, or its parent was killed" if run["exit_code"] is None else f"exit code {run['exit_code']}"
    return f"{letter}: {line_of(str(run['run'] or 'a board'), 120)}; {code}; max rss {bytes_text(run['max_rss_bytes'])}"


def summary_lines(compared, limit):
    """What it comes to, in words: for people, and last of all in a CI log."""
    verdicts = [_verdict_of(name) for name in compared.names]
    if not compared.names:
        return ["Neither run has a task."]
    counts = [f"{verdicts.count(text):,} {text}" for word in _COUNTED for text in (word, f"{word} per byte") if text in verdicts]
    lines = [f"{count_text(len(verdicts), 'task name', 'task names', '1')}: {', '.join(counts)} (more than noise: p ≤ {ALPHA}, for all names together)"]
    differ = sum(any(d.sizes_differ for d in name.differences) for name in compared.names)
    if differ:
        lines.append(f"Block sizes differ in {count_text(differ, 'task name', 'task names', '1')}: peaks are compared per byte, at the size of A's blocks")
    if limit is not None:
        failures = compared.failures(limit)
        lines += [f"FAILED: {line_of(name)}: {why}" for name, why in failures]
        lines.append(f"{'nothing' if not failures else f'{len(failures):,}'} above {100 * limit:g} %" + ("" if failures else " and beyond noise"))
        untold = [name for name in compared.names if name.verdict == "cannot tell" and (not name.differences or any(max(d.change, d.largest_change) > limit for d in name.differences))]
        if untold:
            lines.append(f"not judged, too little to tell: {', '.join(line_of(name.task_name) for name in untold[:8])}{f' and {len(untold) - 8:,} more' if len(untold) > 8 else ''}")
    return lines


def print_comparison(compared, limit, file):
    console = console_for(file)
    for letter, run in zip("AB", compared.runs, strict=True):
        console.print(run_text(letter, run), markup=False, soft_wrap=True)
    if compared.names:
        console.print(_table(compared))
    for line in summary_lines(compared, limit):
        console.print(line, markup=False, soft_wrap=True, style="red" if line.startswith("FAILED") else None)


def _table(compared):
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("task", no_wrap=True, overflow="ellipsis")
    for title in ("verdict", "", "of"):
        table.add_column(title, no_wrap=title == "verdict")
    for title in ("median", "change", "largest", "duration", "count", "failed"):
        table.add_column(title, justify="right")
    table.add_column("compared by")
    for name in compared.names:
        counts = (arrow(f"{name.a.count:,}", f"{name.b.count:,}"), arrow(failed_text(name.a), failed_text(name.b)))
        verdict = Text(name.verdict, style=STYLES.get(name.verdict, ""))
        if not name.differences:
            table.add_row(name_text(name.task_name), verdict, "", "", "–", "–", "–", change_text(name.duration_change), *counts, name.note)
        for i, d in enumerate(name.differences):
            first = (change_text(name.duration_change), *counts) if i == 0 else ("", "", "")
            table.add_row(name_text(name.task_name) if i == 0 else "", Text(verdict_text(d), style=STYLES.get(d.verdict, "")), p_text(d), d.quantity,
                          medians_text(d), change_text(d.change), change_text(d.largest_change), *first,
                          d.basis + (f" ({d.note})" if d.note else ""))
    return table
