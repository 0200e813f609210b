"""A comparison as a table for the terminal."""

from dwsr_probe.report.compare.difference import ALPHA
from dwsr_probe.report.lines import Column, Lines, Styled
from dwsr_probe.report.words import bytes_text, count_text, line_of

STYLES = {
    "grew": "bold red",
    "largest grew": "bold red",
    "shrank": "green",
    "cannot tell": "yellow",
    "new": "cyan",
    "vanished": "cyan",
}
_COUNTED = (
    "grew",
    "largest grew",
    "shrank",
    "within noise",
    "no difference",
    "cannot tell",
    "new",
    "vanished",
)


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
    return (
        f"{d.verdict} per byte"
        if d.sizes_differ and d.verdict in ("grew", "largest grew", "shrank")
        else d.verdict
    )


def _verdict_of(name):
    """As the table shows it."""
    return next(
        (verdict_text(d) for d in name.differences if d.verdict == name.verdict), name.verdict
    )


def medians_text(d):
    """Of what was compared: the change beside them is theirs."""
    return arrow(bytes_text(d.a_like_bytes), bytes_text(d.b_like_bytes))


def failed_text(side):
    return (
        ", ".join(
            f"{n:,} {'errors' if word == 'error' and n > 1 else word}"
            for word, n in side.failed().items()
        )
        or "–"
    )


def p_text(d):
    found = d.largest_p if d.verdict == "largest grew" else d.p
    return (
        ""
        if found is None or d.verdict in ("no difference", "cannot tell")
        else f"p = {found:.2g}"
        if found >= 0.001
        else "p < 0.001"
    )


def run_text(letter, run):
    code = (
        "still running, or its parent was killed"
        if run["exit_code"] is None
        else f"exit code {run['exit_code']}"
    )
    return (
        f"{letter}: {line_of(str(run['run'] or 'a board'), 120)}; {code}; max rss"
        f" {bytes_text(run['max_rss_bytes'])}"
    )


def summary_lines(compared, limit):
    """What it comes to, in words: for people, and last of all in a CI log."""
    verdicts = [_verdict_of(name) for name in compared.names]
    if not compared.names:
        return ["Neither run has a task."]
    counts = [
        f"{verdicts.count(text):,} {text}"
        for word in _COUNTED
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
        failures = compared.failures(limit)
        lines += [f"FAILED: {line_of(name)}: {why}" for name, why in failures]
        lines.append(
            f"{'nothing' if not failures else f'{len(failures):,}'} above {100 * limit:g} %"
            + ("" if failures else " and beyond noise")
        )
        untold = [
            name
            for name in compared.names
            if name.verdict == "cannot tell"
            and (
                not name.differences
                or any(max(d.change, d.largest_change) > limit for d in name.differences)
            )
        ]
        if untold:
            lines.append(
                "not judged, too little to tell:"
                f" {', '.join(line_of(name.task_name) for name in untold[:8])}"
                f"{f' and {len(untold) - 8:,} more' if len(untold) > 8 else ''}"
            )
    return lines


def print_comparison(compared, limit, file):
    out = Lines(file)
    for letter, run in zip("AB", compared.runs, strict=True):
        out.print(run_text(letter, run))
    if compared.names:
        _print_table(out, compared)
    for line in summary_lines(compared, limit):
        out.print(Styled(line, "red") if line.startswith("FAILED") else line)


def _print_table(out, compared):
    """A row per quantity of each name; what is the name's own is in the first of them."""
    names, firsts, rows = [], [], []
    for name in compared.names:
        own = (
            change_text(name.duration_change),
            arrow(f"{name.a.count:,}", f"{name.b.count:,}"),
            arrow(failed_text(name.a), failed_text(name.b)),
        )
        for i, d in enumerate(name.differences or [None]):
            names.append(name.task_name)
            firsts.append(name.task_name if i == 0 else "")
            rows.append((*_cells(name, d), *(own if i == 0 else ("", "", ""))))
    verdict, p, of, median, change, largest, by, duration, count, failed = zip(*rows, strict=True)
    columns = [
        Column("verdict", 0, verdict, True),
        Column("", 7, p, True),
        Column("of", 2 if len(set(of) - {""}) > 1 else 6, of, True),
        Column("median", 3, median),
        Column("change", 1, change),
        Column("largest", 4, largest),
        Column("duration", 8, duration),
        Column("count", 9, count),
        Column("failed", 5 if set(failed) - {"", "–"} else 10, failed),
        Column("compared by", 11, by, True),
    ]
    if columns[-1] not in out.tasks(firsts, columns):
        out.below(
            names,
            [
                text and f"{'compared by' if quantity else 'not compared,'} {text}"
                for text, quantity in zip(by, of, strict=True)
            ],
        )


def _cells(name, d):
    """Of one quantity; d None: nothing could be compared, and the name's note says why."""
    if d is None:
        verdict = Styled(name.verdict, STYLES.get(name.verdict, ""))
        return verdict, "", "", "–", "–", "–", name.note
    return (
        Styled(verdict_text(d), STYLES.get(d.verdict, "")),
        p_text(d),
        d.quantity,
        medians_text(d),
        change_text(d.change),
        change_text(d.largest_change),
        d.basis + (f" ({d.note})" if d.note else ""),
    )
