"""Why own peaks are not exact, in words: the attribution_reason of a run's records, counted by
summary.py or by the model."""

from __future__ import annotations

from dwsr_probe.words import count_text, line_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

_REASONS_MOST = 5  # that are named; the rest is counted
_WORDS = {
    "coroutine": "other work ran in the task's thread between its steps",
    "event-loop": "the task was followed on Dask's event loop, not in its own thread",
    "native-threads": "threads of compiled libraries allocated while several tasks ran",
    "unowned-thread": "a thread that works for no task allocated meanwhile; it is not counted",
    "foreign-allocator": "a library allocated by itself, which is not counted",
    "inner-tasks": "memory of tasks inside the task could not be followed to the end",
}


def reasons_text(reasons: Mapping[str, int]) -> str:
    """ "10 foreign-allocator polars, 2 native-threads": the most frequent first. reasons:
    attribution_reason → tasks."""
    ranked = sorted(reasons.items(), key=lambda one: (-one[1], one[0]))
    parts = [f"{tasks:,} {line_of(reason)}" for reason, tasks in ranked[:_REASONS_MOST]]
    if rest := sum(tasks for _, tasks in ranked[_REASONS_MOST:]):
        parts.append(f"{rest:,} for other reasons")
    return ", ".join(parts)


def reason_lines(reasons: Mapping[str, int]) -> list[str]:
    """ "foreign-allocator: a library …": what each word of these reasons means."""
    ranked = sorted(reasons.items(), key=lambda one: (-one[1], one[0]))
    used = dict.fromkeys(reason.split(" ", 1)[0] for reason, _ in ranked)
    return [f"{word}: {_WORDS[word]}" for word in used if word in _WORDS]


def shared_text(shared: int, tasks: int, reasons: Mapping[str, int]) -> str:
    """ "in 12 of 40 tasks (10 foreign-allocator polars, 2 native-threads)". shared: tasks whose own
    peak is not exact, of `tasks`. reasons: of those that have a record."""
    known = sum(reasons.values())
    if not known:
        why = "why was not recorded"
    elif known < shared:
        why = f"why is known of {known:,}: {reasons_text(reasons)}"
    else:
        why = reasons_text(reasons)
    return f"in {shared:,} of {count_text(tasks, 'task', 'tasks', '1')} ({why})"
