"""Tasks whose own peak may miss memory that they took: how many of a task name, and why. learner.py
counts them; forecasts of such a name are lower bounds."""

from __future__ import annotations

from typing import Any, NamedTuple

from dwsr_probe.predict.sizes import non_negative_int, short_text

# First words of attribution_reason for which memory may be missing. The model imports nothing of
# the probe, so this is a copy of what record.misses_memory knows; a test compares them.
REASONS = frozenset(
    ("coroutine", "event-loop", "native-threads", "unowned-thread", "foreign-allocator")
)
_REASONS_MOST = 8  # that are counted apart, of one task name
_OTHERS = "other reasons"


class Unseen(NamedTuple):
    """tasks: those that finished well, and whose own peak may miss memory. alone: of them, those
    that ran alone, so that the growth of their process says how much they took at least. reasons:
    `attribution_reason` → tasks, the most frequent first. share: of all tasks that finished
    well."""

    tasks: int
    alone: int
    reasons: dict[str, int]
    share: float

    @property
    def is_most(self) -> bool:
        """More than half of the tasks: forecasts are lower bounds."""
        return self.share > 0.5


NOTHING_UNSEEN = Unseen(0, 0, {}, 0.0)


class UnseenCounts:
    """Counts by reason. Thread names are part of a reason, so the number of reasons is bounded."""

    def __init__(self) -> None:
        self.alone = 0
        self._by_reason: dict[str, int] = {}

    @property
    def tasks(self) -> int:
        return sum(self._by_reason.values())

    def add(self, reason: str, ran_alone: bool) -> None:
        self.alone += ran_alone
        self._count(short_text(reason) or _OTHERS, 1)

    def _count(self, reason: str, tasks: int) -> None:
        if reason not in self._by_reason and len(self._by_reason) >= _REASONS_MOST:
            reason = _OTHERS
        self._by_reason[reason] = self._by_reason.get(reason, 0) + tasks

    def merge(self, other: UnseenCounts) -> None:
        self.alone += other.alone
        for reason, tasks in other._by_reason.items():
            self._count(reason, tasks)

    def among(self, exact: int) -> Unseen:
        """exact: number of tasks whose own peak is exact."""
        tasks = self.tasks
        if not tasks:
            return NOTHING_UNSEEN
        ranked = sorted(self._by_reason.items(), key=lambda one: (-one[1], one[0]))
        return Unseen(tasks, self.alone, dict(ranked), tasks / (tasks + exact))

    def to_dict(self) -> dict[str, Any]:
        return {"alone": self.alone, "reasons": self._by_reason}

    @classmethod
    def from_dict(cls, saved: Any) -> UnseenCounts:
        """saved: None in a model of an earlier version. ValueError if to_dict cannot have given
        this."""
        self = cls()
        if saved is None:
            return self
        reasons = saved["reasons"]
        if not isinstance(reasons, dict) or len(reasons) > _REASONS_MOST + 1:
            raise ValueError("a damaged model: reasons")
        for reason, tasks in reasons.items():
            self._count(short_text(reason) or _OTHERS, non_negative_int(tasks, "unseen"))
        self.alone = non_negative_int(saved["alone"], "alone")
        if self.alone > self.tasks:
            raise ValueError("a damaged model: tasks that ran alone")
        return self
