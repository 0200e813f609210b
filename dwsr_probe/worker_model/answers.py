"""Answers from memory. Other threads ask; the learning thread computes.

A question that was not asked before gets None and waits for the learning thread. An answer that is
out of date is given all the same, and computed again once it was asked for. Only the learning
thread changes the dict of answers, and an answer never changes, so readers need no lock.
"""

from __future__ import annotations

import marshal

from dwsr_probe.dataclass import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from dwsr_probe.predict.forecast import Forecast
    from dwsr_probe.predict.group import Group

    Key = tuple[Group | str, bytes]  # the bytes: inputs and parameters by marshal

_ANSWERS_MOST = 1024
_QUESTION_BYTES_MOST = 16 << 10  # a longer question gets no answer
_QUESTIONS_BYTES_MOST = 1 << 20  # of all questions that have an answer
_ASKED_MOST = 256  # questions that wait
# An answer is out of date when its group has learned this share more than it was made from.
_MATERIAL_SHARE = 8


class Answer(NamedTuple):
    """A forecast in numbers. A Forecast has the same and more, but keeps 15 KB and computes its
    bound when it is asked for.

    n: exact values that it was made from. is_promised: the bound is calibrated. is_lower_bound,
    is_unknown, trust, notes: as in Forecast. output: what the task returns, or None.
    """

    mean: float
    bound: float  # 99 %
    median: float
    n: int
    trust: str
    notes: tuple[str, ...]
    is_promised: bool
    is_lower_bound: bool
    is_unknown: bool
    output: dict[str, Any] | None


def answer_of(forecast: Forecast) -> Answer:
    return Answer(
        forecast.mean,
        forecast.upper(0.99),
        forecast.upper(0.5),
        forecast.n,
        forecast.trust,
        forecast.notes,
        forecast.promised(0.99),
        forecast.is_lower_bound,
        forecast.is_unknown,
        forecast.output,
    )


class _Kept:
    """answer: None if the question has none (it means several groups, or no task)."""

    __slots__ = ("answer", "group", "is_stale", "news")

    def __init__(self, group: str, answer: Answer | None) -> None:
        self.group, self.answer = group, answer
        self.news = 0  # records of the group that were learned since
        self.is_stale = False


class Answers:
    """questions, unanswered: how often `get` was called, and had no answer. Several threads that
    ask at the same moment may be counted once."""

    def __init__(self, wake: Callable[[], object]) -> None:
        """wake: called when a question begins to wait."""
        self.questions = self.unanswered = 0
        self._wake = wake
        self._kept: dict[Key, _Kept] = {}
        self._kept_bytes = 0
        self._by_group: dict[str, set[Key]] = {}
        self._asked: dict[Key, None] = {}

    # -- any thread

    def get(
        self, inputs: list[dict[str, Any]], group: Group | str, params: dict[str, Any] | None = None
    ) -> Answer | None:
        try:
            self.questions += 1
            # Version 2 writes the same bytes for equal lists and dicts.
            key = group, marshal.dumps((inputs, params), 2)
            kept = self._kept.get(key)
            if kept is None:
                self._ask(key)
            else:
                if kept.is_stale:
                    self._ask(key)
                return kept.answer
        except Exception:  # what cannot be written, or is no key: not a question
            pass
        self.unanswered += 1
        return None

    def _ask(self, key: Key) -> None:
        if (
            key not in self._asked
            and len(self._asked) < _ASKED_MOST
            and len(key[1]) <= _QUESTION_BYTES_MOST
        ):
            self._asked[key] = None
            self._wake()

    # -- the learning thread

    def has_questions(self) -> bool:
        return bool(self._asked)

    def answer_next(self, predict: Callable[..., tuple[str, Answer | None]]) -> None:
        """Answer the question that was asked last. predict: called with inputs, group and
        parameters; returns the text of the group that is meant, and the answer."""
        try:
            key, _ = self._asked.popitem()
        except KeyError:
            return
        inputs, params = marshal.loads(key[1])
        text, answer = predict(inputs, key[0], params)
        before = self._kept.get(key)
        self._kept[key] = _Kept(text, answer)  # from here on readers find it
        if before is None:
            self._kept_bytes += len(key[1])
        else:
            self._leave_group(before.group, key)
        self._by_group.setdefault(text, set()).add(key)
        while len(self._kept) > _ANSWERS_MOST or self._kept_bytes > _QUESTIONS_BYTES_MOST:
            oldest = next(iter(self._kept))
            self._leave_group(self._kept.pop(oldest).group, oldest)
            self._kept_bytes -= len(oldest[1])

    def _leave_group(self, group: str, key: Key) -> None:
        keys = self._by_group[group]
        keys.discard(key)
        if not keys:
            del self._by_group[group]

    def note_learned(self, group: str, is_early: bool, is_new_group: bool) -> None:
        """A record of this group was learned. is_new_group: names that meant no group until now
        may mean this one."""
        for key in self._by_group.get(group, ()):
            kept = self._kept[key]
            kept.news += 1
            known = kept.answer.n if kept.answer is not None else 0
            if is_early or kept.news >= max(1, known // _MATERIAL_SHARE):
                kept.is_stale = True
            if is_early:  # the next task must not be forecast from what was known before
                self._asked[key] = None
        if is_new_group:
            for kept in self._kept.values():
                if kept.answer is None or not kept.answer.n:
                    kept.is_stale = True

    def clear(self) -> None:
        """Nothing is answered any more."""
        self._kept, self._by_group, self._asked = {}, {}, {}
        self._kept_bytes = 0
