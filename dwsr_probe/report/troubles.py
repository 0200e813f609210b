"""What went wrong in a run, one sentence each: tasks and processes that were killed and by what,
tasks without a record, allocations that failed.

Called by report/verdict.py.
"""

from __future__ import annotations

import signal
from collections import Counter

from dwsr_probe.report.evidence import share_text
from dwsr_probe.report.processes import NANNY_SHARE
from dwsr_probe.words import AtLeast, bytes_text, count_text, inputs_text, name_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from dwsr_probe.record import TaskRecord
    from dwsr_probe.report.evidence import Evidence, MemoryUse
    from dwsr_probe.report.outlook import Outlook
    from dwsr_probe.report.summary import NameSummary
    from dwsr_probe.words import Sentence

_CRASHES = {signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGILL, signal.SIGFPE}
_NAMED_MOST = 3  # of each kind; the sentence counts the rest


def signal_name(number: int) -> str | None:
    try:
        return signal.Signals(number).name
    except ValueError:
        return None


def find_troubles(evidence: Evidence, outlook: Outlook | None) -> list[Sentence]:
    found = []
    for summary in evidence.names:
        if summary.largest_killed:
            found.append(
                _largest_killed_task(summary.largest_killed, summary.label, evidence, outlook)
            )
            break
    return [
        *found,
        *_stopped_processes(evidence.stopped),
        *_suspects(evidence.suspects),
        *_killed_names(evidence.names),
        *_missing_records(evidence),
        *_failed_allocations(evidence.names),
    ]


def _largest_killed_task(
    record: TaskRecord, label: str, evidence: Evidence, outlook: Outlook | None
) -> Sentence:
    """Its inputs, what it had taken, and what it would have needed. label: of its row."""
    on_device = evidence.on_device
    inputs = inputs_text(record.inputs, record.inputs_omitted)
    size = f", {bytes_text(record.known_input_bytes)} of input" if record.known_input_bytes else ""
    peak = AtLeast((record.gpu_peak_bytes if on_device else record.own_peak_bytes) or 0)
    peak_text = bytes_text(peak, "at least ")
    if on_device:
        taken = f"It had taken {peak_text} on a device"
    elif record.alloc_peak_bytes is not None:
        taken = f"It had taken {peak_text}"
    else:
        taken = f"Its resident size had grown by {peak_text}"
    several = sum(s.killed for s in evidence.names) > 1
    parts = [
        "The largest task under way was " if several else "The task under way was ",
        name_of(label),
        f" with {inputs}{size}" if inputs else "",
        f". {taken} when it was killed.",
    ]
    forecast = outlook.for_task(record, "gpu" if on_device else "alloc") if outlook else None
    if forecast is not None and forecast.trust in ("fair", "good") and forecast.mean > peak:
        parts.append(
            f" Judging by {count_text(forecast.n, 'task', 'tasks', 'one')} that finished, it needs"
            f" about {bytes_text(forecast.mean)}."
        )
    return tuple(parts)


def _stopped_processes(stopped: Sequence[MemoryUse]) -> list[Sentence]:
    """Processes that ended with tasks under way, those with the same cause in one sentence."""
    by_cause: dict[tuple[bool, str], list[MemoryUse]] = {}
    for use in sorted(stopped, key=lambda use: -(use.share or 0)):
        by_cause.setdefault((use.was_killed, _cause(use)), []).append(use)
    found: list[Sentence] = []
    for (killed, cause), uses in by_cause.items():
        if len(uses) > 1:
            how = "were killed" if killed else "ended with tasks under way"
            found.append((f"{len(uses):,} processes {how}{share_text(uses)}: {cause}.",))
            continue
        (use,) = uses
        how = "was killed" if killed else "ended with tasks under way"
        peak = f" with {use.peak_text()}" if use.share is not None else share_text(uses)
        found.append((use.name(), f" {how}{peak}: {cause}."))
    return found


def _cause(use: MemoryUse) -> str:
    """What ended a process, as far as the numbers show it."""
    if use.signal is not None and use.signal != signal.SIGKILL:
        name = signal_name(use.signal) or f"signal {use.signal}"
        crashed = use.signal in _CRASHES
        return f"by a crash ({name})" if crashed else f"by {name}, which somebody sent"
    if use.share is None:
        return "no limit is known"
    if use.share < NANNY_SHARE:
        return f"{'by SIGKILL, ' if use.signal else ''}probably not for lack of memory"
    if use.worker:
        return "by Dask's nanny, which ends a worker at 95 %, or by the kernel"
    return "most likely by the kernel, for lack of memory"


def _suspects(suspects: Sequence[MemoryUse]) -> list[Sentence]:
    return [
        (
            use.name(),
            f" ended with {use.peak_text()}: it may have been killed for its memory.",
        )
        for use in suspects[:_NAMED_MOST]
    ]


def _killed_names(names: Sequence[NameSummary]) -> list[Sentence]:
    """Which tasks were under way, if there were several."""
    counts = Counter({s.label: s.killed for s in names if s.killed}).most_common()
    if sum(count for _, count in counts) < 2:
        return []
    parts = ["Under way then: "]
    for i, (name, count) in enumerate(counts[:_NAMED_MOST]):
        parts += [", " if i else "", name_of(name), f" ({count:,})" if count > 1 else ""]
    more = len(counts) - _NAMED_MOST
    parts.append(f", and {count_text(more, 'more name', 'more names', '1')}." if more > 0 else ".")
    return [tuple(parts)]


def _missing_records(evidence: Evidence) -> list[Sentence]:
    """Tasks without a record of their own, and which figures include them."""
    missing, found = evidence.missing, []
    if missing.counted:
        tasks = sum(s.count for s in evidence.names)
        found.append(
            f"{missing.counted:,} of {count_text(tasks, 'task has', 'tasks have', '1')} no"
            " record of their own: they ended faster than they could be stored. Counts,"
            " sums and maxima include them; medians are from histograms, within 5 %."
        )
    if missing.lost:
        found.append(
            f"{count_text(missing.lost, 'record was', 'records were')} lost: tasks ended faster"
            " than they could be stored. The table leaves them out; the figures of"
            " processes are complete. Larger tasks would all be recorded."
        )
    without_room = sum(
        health.get("tasks_dropped") or 0
        for _, health in evidence.processes
        if health.get("room_for_tasks") == 0
    )
    if without_room:
        found.append(
            f"{count_text(without_room, 'task was', 'tasks were')} not measured: there was"
            " no room for them on the board (a line on stderr said why)."
        )
    if missing.dropped > without_room:
        found.append(
            f"{count_text(missing.dropped - without_room, 'task was', 'tasks were')} not measured:"
            " too many were under way at once in one process."
        )
    return [(text,) for text in found]


def _failed_allocations(names: Sequence[NameSummary]) -> list[Sentence]:
    """Tasks whose allocation was refused: these tasks failed, they were not killed."""
    found: list[Sentence] = []
    for summary in sorted((s for s in names if s.ooms), key=lambda s: -s.ooms)[:_NAMED_MOST]:
        oom = summary.largest_oom  # None: records are lost, and totals have the count only
        where = "" if oom is None else "host " if oom.get("where") == "host" else "device "
        requested, live = (oom or {}).get("requested_bytes"), (oom or {}).get("live_bytes")
        text = f" ran out of {where}memory in {count_text(summary.ooms, 'task', 'tasks', 'one')}"
        if requested:
            text += f": the largest request was for {bytes_text(requested)}"
            text += f" beside {bytes_text(live)} of its own" if live else ""
        found.append((name_of(summary.label), f"{text}."))
    return found
