"""A run in a few sentences: how it ended, what went wrong, what needed most, what to do.

Every sentence comes from the run's numbers; what the numbers do not show is not said. The HTML
page shows all sentences on top, the terminal those that a table does not say. A sentence is a
tuple of texts; names in it are of type Name, so that each view can set them apart.

`make_verdict` is called by report/table.py and report/html/page.py. report/evidence.py has what the
sentences are drawn from, report/troubles.py those on what went wrong,
report/recommendations.py those on what to do. The last two are imported by the functions that
need them, because most runs do not, and imports are most of what a run costs.
"""

from __future__ import annotations

from dwsr_probe.dataclass import dataclass
from dwsr_probe.report.evidence import TIGHT_SHARE, Evidence, MemoryUse, share_text
from dwsr_probe.words import bytes_text, count_text, name_of, percent_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from dwsr_probe.report.outlook import Outlook
    from dwsr_probe.report.summary import MissingRecords, NameSummary, ProcessRow
    from dwsr_probe.words import Sentence


@dataclass
class Verdict:
    level: str  # "empty", "good", "near" or "bad"
    headline: Sentence
    troubles: list[Sentence]  # what went wrong
    sentences: list[Sentence]  # what needed most, and how near a limit it came
    advice: list[Sentence]

    def lines(self) -> list[str]:
        """For a terminal: what a table does not say."""
        return ["".join(one) for one in (self.headline, *self.troubles, *self.advice[:1])]


def make_verdict(
    names: Sequence[NameSummary],
    processes: Sequence[ProcessRow],
    outlook: Outlook | None = None,
    exit_code: int | None = None,
    missing: MissingRecords | None = None,
) -> Verdict:
    """names: of summarise. exit_code: the job's; None: not known. outlook: without it there is
    less advice."""
    evidence = Evidence(names, processes, exit_code, missing)
    nearest, largest = evidence.nearest, evidence.largest
    sentences = []
    if largest:
        sentences.append(_largest_need(largest, evidence.on_device))
    if nearest and nearest not in evidence.stopped:
        sentences.append(_nearest_limit(nearest))
    if any(s.gpu_peaks for s in names):
        sentences.append(_limiting_memory(evidence))
    level, text = _headline(evidence)
    return Verdict(
        level,
        headline=(text,),
        troubles=_troubles(evidence, outlook),
        sentences=sentences,
        advice=_advice(evidence, outlook),
    )


def _troubles(evidence: Evidence, outlook: Outlook | None) -> list[Sentence]:
    if not evidence.has_troubles:
        return []
    from dwsr_probe.report.troubles import find_troubles

    return find_troubles(evidence, outlook)


def _advice(evidence: Evidence, outlook: Outlook | None) -> list[Sentence]:
    nearest = evidence.nearest
    tight = nearest is not None and (nearest.share or 0) >= TIGHT_SHARE
    if outlook is None and not tight and not evidence.stopped and not evidence.overhead:
        return []
    from dwsr_probe.report.recommendations import recommend

    return recommend(evidence, outlook)


def _headline(evidence: Evidence) -> tuple[str, str]:
    """(level, text): how the job ended first, then what memory did."""
    names, nearest = evidence.names, evidence.nearest
    if not names and not evidence.processes:
        return "empty", "Nothing was recorded in this run."
    share = nearest.share if nearest else None
    peaked = (
        f"memory peaked at {percent_text(share)} of {nearest.limit_name}"
        if nearest and share is not None
        else ""
    )
    failures, doubts = _failures(evidence), _doubts(evidence)
    if failures or doubts:
        was_killed = any(use.was_killed for use in evidence.stopped)
        went_on = "the job went on and ended well" if evidence.exit_code == 0 else ""
        text = "; ".join(filter(None, [*failures, *doubts, went_on if was_killed else peaked]))
        return "bad" if failures else "near", f"{text[0].upper()}{text[1:]}."
    if not names:
        return "good", f"No task was marked; {peaked}." if peaked else "No task was marked."
    if share is not None and share >= TIGHT_SHARE:
        return "near", f"It fitted, narrowly: {peaked}."
    if peaked:
        return "good", f"Everything fitted: {peaked}."
    return "good", f"{count_text(sum(s.count for s in names), 'task', 'tasks')} ended well."


def _failures(evidence: Evidence) -> list[str]:
    """Parts of the headline: what did not end as it should."""
    stopped = evidence.stopped
    killed = [use for use in stopped if use.was_killed]
    early = [use for use in stopped if not use.was_killed]
    found = []
    if killed:
        found.append(_killed_text(evidence, killed))
    if early:
        under_way = count_text(evidence.tasks_killed_in(early), "task", "tasks", "one")
        more = "more " if killed else ""
        found.append(
            f"{count_text(len(early), f'{more}process', f'{more}processes', 'one')} ended with"
            f" {under_way} under way{share_text(early)}"
        )
    if _has_failed(evidence) and not killed:
        found.append(f"the job failed{_exit_text(evidence.exit_code)}")
    elsewhere = sum(s.killed for s in evidence.names) - evidence.tasks_killed_in(stopped)
    if elsewhere:
        found.append(
            f"{count_text(elsewhere, 'task was', 'tasks were', 'one')} under way when"
            f" {'its' if elsewhere == 1 else 'their'} process ended"
        )
    return found


def _doubts(evidence: Evidence) -> list[str]:
    """Parts of the headline: what may have gone wrong, and single tasks that did."""
    suspects, missing = evidence.suspects, evidence.missing.not_in_table
    tasks = sum(s.count for s in evidence.names)
    errors = sum(s.errors for s in evidence.names)
    found = []
    if suspects:
        found.append(
            f"{count_text(len(suspects), 'process', 'processes', 'one')} ended"
            f"{share_text(suspects)}, how is not known"
        )
    if errors:
        found.append(f"{errors:,} of {count_text(tasks, 'task', 'tasks', '1')} failed")
    if missing:
        found.append(
            f"{missing:,} of {tasks + missing:,} tasks"
            f" ({percent_text(missing / (tasks + missing))}) have no record"
        )
    return found


def _has_failed(evidence: Evidence) -> bool:
    """By the job's exit code. A single board has none: then by the states of its processes."""
    if evidence.exit_code is not None:
        return evidence.exit_code != 0
    return any(record.state == "error" for record, _ in evidence.processes)


def _exit_text(exit_code: int | None) -> str:
    if exit_code is None:
        return ""
    from dwsr_probe.report.troubles import signal_name

    # A shell reports a death by signal N as 128 + N.
    name = signal_name(exit_code - 128) if isinstance(exit_code, int) and exit_code > 128 else None
    return f" with exit code {exit_code}" + (f" ({name})" if name else "")


def _killed_text(evidence: Evidence, killed: list[MemoryUse]) -> str:
    from dwsr_probe.report.troubles import signal_name

    under_way = evidence.tasks_killed_in(killed)
    number = killed[0].signal if len(killed) == 1 else None
    by = "" if number is None else f" by {signal_name(number) or f'signal {number}'}"
    tasks = f", with {count_text(under_way, 'task', 'tasks', 'one')} under way" if under_way else ""
    return (
        f"{count_text(len(killed), 'process was', 'processes were', 'one')} killed{by}"
        f"{share_text(killed)}{tasks}"
    )


def _largest_need(summary: NameSummary, on_device: bool) -> Sentence:
    if not on_device and summary.misses_memory:
        from dwsr_probe.report.reasons import reasons_text

        return (
            name_of(summary.label),
            f" needed most: {bytes_text(summary.need_bytes, 'at least ')}. Own peaks of its tasks"
            f" may miss memory: {reasons_text(summary.reasons)}.",
        )
    if on_device:
        values, what = summary.gpu_peaks, "on a device"
    elif summary.alloc_peaks:
        values, what = summary.alloc_peaks, "of its own"
    else:
        values, what = summary.growths, "of growth in resident size"
    at_most = "" if values.lower_bound_count else " at most"
    typical = (
        f", {bytes_text(values.median, 'at least ')} in the median of {summary.count:,} tasks"
        if summary.count > 1
        else ""
    )
    return (
        name_of(summary.label),
        f" needed most: {bytes_text(values.max, 'at least ')} {what}{at_most}{typical}.",
    )


def _nearest_limit(use: MemoryUse) -> Sentence:
    if use.device:
        limit, what = f"the limit of {use.device}", "by its tasks"
    else:
        limit, what = "its limit", "resident"
    return (
        use.name(),
        (
            f" came nearest to {limit}: {bytes_text(use.peak_bytes)} {what} of"
            f" {bytes_text(use.limit_bytes)}, {percent_text(use.share)}."
        ),
    )


def _limiting_memory(evidence: Evidence) -> Sentence:
    """The memory that a larger block would exhaust first."""
    if not evidence.on_device:
        return ("Host memory is the limit: a larger block would exhaust it before the device's.",)
    summary = max(evidence.names, key=lambda s: s.device_ratio or 0)
    return (
        "Device memory is the limit: one task of ",
        name_of(summary.label),
        (
            f" took {percent_text(summary.device_ratio)} of the device, and"
            f" {percent_text(summary.host_ratio)} of the host's limit"
            f"{'' if summary.killed or summary.misses_memory else ' at most'}."
        ),
    )
