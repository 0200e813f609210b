"""Which groups a model keeps when there are more than it has room for. model.py has one Room.

If only the groups used last were kept, a model would learn nothing where more names take turns than
there is room for: each group would be gone when its next record arrives. So the room has two parts.
A quarter is for *newcomers*, the groups used last. The rest is for *settled* groups, which stay as
long as they are used from time to time. A newcomer that must leave its part replaces the settled
group that was unused for the longest time, if this time was long. Otherwise the newcomer is
dropped. A use is a record that is learned.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dwsr_probe.predict.sizes import non_negative_int

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

_NEWCOMERS_SHARE = 4  # one of so many
_UNUSED_MOST = 8  # uses of any groups, for each group that there is room for


class Room:
    """most: how many groups there is room for."""

    def __init__(self, most: int) -> None:
        self._newcomers_most = max(1, most // _NEWCOMERS_SHARE)
        self._settled_most = most - self._newcomers_most
        self._unused_most = _UNUSED_MOST * most
        # By the text of a group: when it was used. The one used last at the end
        self._newcomers: dict[str, int] = {}
        self._settled: dict[str, int] = {}
        self._uses = 0  # of all groups, ever

    def __iter__(self) -> Iterator[tuple[str, int]]:
        """Texts, and how many uses of any groups ago each was used; in an order in which they can
        be used again."""
        for group in (self._settled, self._newcomers):
            for text, used in group.items():
                yield text, self._uses - used

    def use(self, text: str, ago: int | None = None) -> str | None:
        """Returns the group that must leave, or None. ago: of a saved use, as in __iter__."""
        if ago is None:
            self._uses += 1
        group = self._settled if text in self._settled else self._newcomers
        group.pop(text, None)
        group[text] = self._uses - (ago or 0)
        return self._leaving() if len(self._newcomers) > self._newcomers_most else None

    def _leaving(self) -> str | None:
        newcomer = next(iter(self._newcomers))
        used = self._newcomers.pop(newcomer)
        if len(self._settled) < self._settled_most:
            self._settled[newcomer] = used
            return None
        oldest = next(iter(self._settled), newcomer)
        if self._uses - self._settled.get(oldest, self._uses) <= self._unused_most:
            return newcomer
        del self._settled[oldest]
        self._settled[newcomer] = used
        return oldest


def parse_ago(saved: Any) -> int:
    """Of one group, from a file; None: of an earlier version."""
    return 0 if saved is None else non_negative_int(saved, "unused")
