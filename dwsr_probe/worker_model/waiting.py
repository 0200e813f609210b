"""Finished tasks that wait to be learned, in the order of what they are worth.

A record is one of four kinds, here in the order in which they are learned:

- early: the task was killed, failed or was cancelled. Without it the same would happen again.
- new: its group was not seen with these inputs, or not with these parameters, if they are few.
- surprising: it was, but the peak is outside the range that was learned.
- repeat: its peak is within the range. A repeat whose shape and group are known well is *expected*:
  it is counted and not kept, which takes a microsecond instead of half a millisecond.

Each kind has room for a fixed number of records. If there is no room, the oldest record of that
kind is skipped, and counted. Filled and emptied by the learning thread only.
"""

from __future__ import annotations

from collections import deque

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable
    from typing import Any

    from dwsr_probe.record import TaskRecord

    MakeRecord = Callable[[], TaskRecord]

KINDS = EARLY, NEW, SURPRISING, REPEAT = "early", "new", "surprising", "repeat"
BEFORE_QUESTIONS = EARLY, NEW  # the others are learned when no question waits
_WAITING_MOST = 256  # records of each kind
# Values from which on a repeat may be expected: of the shape, and of its group. A hundred forecasts
# of a group have to be compared before its 99 % bound counts as calibrated.
_KNOWN_SHAPE_FROM, _KNOWN_GROUP_FROM = 8, 100
_SLACK_BYTES = 512 << 10  # as the model's floor: a smaller difference means nothing
_SHAPES_MOST, _GROUPS_MOST = 4096, 1024  # those seen last are remembered
# Different parameters of a group that are told apart. More differ from task to task (a seed).
_PARAMS_MOST = 16


class _Shape:
    """Inputs that a group was seen with. count, low, high: of exact peaks that were learned.
    bound: the largest of the lower bounds that were learned, of tasks that ended early."""

    __slots__ = ("bound", "count", "high", "low")

    def __init__(self) -> None:
        self.count, self.bound = 0, -1
        self.low = self.high = 0

    def contains(self, peak: int) -> bool:
        return self.low - _SLACK_BYTES <= peak <= self.high + _SLACK_BYTES

    def learn(self, peak: int, is_early: bool) -> None:
        if is_early:
            self.bound = max(self.bound, peak)
        elif self.count:
            self.low, self.high = min(self.low, peak), max(self.high, peak)
        else:
            self.low = self.high = peak
        self.count += not is_early


class WaitingRecords:
    """expected: repeats that said nothing new. skipped: by kind, for want of room."""

    def __init__(self) -> None:
        self.expected = 0
        self.skipped = dict.fromkeys(KINDS, 0)
        self._waiting: dict[str, deque[tuple[Any, ...]]] = {kind: deque() for kind in KINDS}
        self._shapes: dict[int, _Shape] = {}  # by the hash of group and inputs
        self._group_counts: dict[Hashable, int] = {}  # exact values learned
        self._params: dict[Hashable, set[str]] = {}  # by group

    def __len__(self) -> int:
        return sum(map(len, self._waiting.values()))

    def add(
        self,
        group: Hashable,
        inputs: str,
        peak: int | None,
        is_early: bool,
        record: MakeRecord,
        params: str = "",
    ) -> None:
        """inputs, params: as text. peak: the own peak, if it is known. record: makes the record, if
        it is learned."""
        distinct = params and self._has_few(group, params)
        key = hash((group, inputs, params if distinct else ""))
        shape = self._shapes.pop(key, None)
        if shape is not None:
            self._shapes[key] = shape  # at the end: seen last
            if self._is_expected(group, shape, peak, is_early):
                self.expected += 1
                return
        if is_early:
            kind = EARLY
        elif shape is None:
            kind = NEW
        elif shape.count and peak is not None and not shape.contains(peak):
            kind = SURPRISING
        else:
            kind = REPEAT
        if shape is None:
            self._remember(key)
        waiting = self._waiting[kind]
        if len(waiting) >= _WAITING_MOST:
            skipped_key = waiting.popleft()[0]
            self.skipped[kind] += 1
            known = self._shapes.get(skipped_key)
            if kind == NEW and known is not None and not known.count:
                del self._shapes[skipped_key]  # new again, the next time
        waiting.append((key, group, peak, is_early, record))

    def _has_few(self, group: Hashable, params: str) -> bool:
        """Whether tasks of the group have one of a few parameters."""
        if group not in self._params and len(self._params) >= _GROUPS_MOST:
            del self._params[next(iter(self._params))]
        seen = self._params.setdefault(group, set())
        if len(seen) <= _PARAMS_MOST:
            seen.add(params)
        return len(seen) <= _PARAMS_MOST

    def _is_expected(
        self, group: Hashable, shape: _Shape, peak: int | None, is_early: bool
    ) -> bool:
        if is_early:
            return shape.bound >= 0 and (peak or 0) <= shape.bound + _SLACK_BYTES
        return (
            shape.count >= _KNOWN_SHAPE_FROM
            and self._group_counts.get(group, 0) >= _KNOWN_GROUP_FROM
            and (peak is None or shape.contains(peak))
        )

    def _remember(self, key: int) -> _Shape:
        if len(self._shapes) >= _SHAPES_MOST:
            del self._shapes[next(iter(self._shapes))]
        shape = self._shapes[key] = _Shape()
        return shape

    def take(self, kinds: Iterable[str] = KINDS) -> tuple[str, MakeRecord] | None:
        """The record that is worth most, and its kind; None: no record of these kinds waits. The
        caller learns it."""
        for kind in kinds:
            waiting = self._waiting[kind]
            while waiting:
                key, group, peak, is_early, record = waiting.popleft()
                shape = self._shapes.get(key)
                if shape is None:
                    shape = self._remember(key)
                elif self._is_expected(group, shape, peak, is_early):
                    self.expected += 1  # others like it were learned while it waited
                    continue
                shape.learn(peak or 0, is_early)
                if not is_early:
                    self._count(group)
                return kind, record
        return None

    def _count(self, group: Hashable) -> None:
        if group not in self._group_counts and len(self._group_counts) >= _GROUPS_MOST:
            del self._group_counts[next(iter(self._group_counts))]
        self._group_counts[group] = self._group_counts.get(group, 0) + 1
