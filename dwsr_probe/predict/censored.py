"""Censored values: tasks that were killed, failed or cancelled needed at least what they had used.
learner.py keeps a bounded number of them per task name and kind."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

    from dwsr_probe.predict.params import Given, Params

_CENSORED_MOST = 32
# Lengths and sizes in all censored values of a learner: thousands of names, with tens of inputs of
# tens of axes each, would be gigabytes.
_NUMBERS_MOST = 2048


class CensoredValue(NamedTuple):
    """The task with these inputs needed more than `bytes`. is_tight: an allocation that failed
    named its size, so the need is not much more."""

    given: Given
    bytes: float
    is_tight: bool

    @property
    def input_bytes(self) -> int:
        return sum(array.nbytes for array in self.given.arrays)

    @property
    def _number_count(self) -> int:
        axes = sum(3 + len(array.shape or ()) for array in self.given.arrays)
        return axes + len(self.given.params)


def undominated(values: Iterable[CensoredValue]) -> list[CensoredValue]:
    """Without the values that another value implies, by more bytes with smaller inputs and the same
    parameters. If too many remain, those with the most bytes per byte of input are kept. The result
    does not depend on the order of `values`."""
    kept: list[CensoredValue] = []
    largest: dict[tuple[bool, Params], float] = {}
    for value in sorted(
        values, key=lambda one: (one.input_bytes, -one.bytes, one.is_tight, repr(one))
    ):
        comparable = value.is_tight, value.given.params
        if value.bytes > largest.get(comparable, -1.0):
            largest[comparable] = value.bytes
            kept.append(value)
    if len(kept) > _CENSORED_MOST or sum(one._number_count for one in kept) > _NUMBERS_MOST:
        kept = sorted(kept, key=lambda one: -one.bytes / (1 + one.input_bytes))[:_CENSORED_MOST]
        room = _NUMBERS_MOST
        kept = [one for one in kept if (room := room - one._number_count) >= 0] or kept[:1]
    return kept
