"""A target as the service watches it: when it is polled next, whether it is up, and which of its
records wait to be learned. Only the service's main thread uses it."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from dwsr_probe.export.client import StreamInvalid, StreamRefused

if TYPE_CHECKING:
    from dwsr_probe.serve.targets import PortTarget, RunTarget, TargetUpdate

BACKOFF_MOST_S = REFUSED_RETRY_S = 60.0
_HEADROOM = "process_headroom_bytes"


@dataclass(eq=False)
class WatchedTarget:
    """target: None if its URL is not valid."""

    target: PortTarget | RunTarget | None
    learned_state: dict[str, Any] | None  # of its reader after everything learned so far
    due: float = 0.0  # when it is polled next
    failures: int = 0  # since the last success
    busy: bool = False  # polled, or its records wait to be learned
    gone: bool = False  # no discovery has its URL any more
    slow_until: float = 0.0  # polled in the pool's slow lane until then
    up: bool | None = None  # None: not known yet
    serves_tasks: bool = True  # False: it has no /dwsr/tasks
    lacks_headroom: bool = False  # its running tasks have no headroom, and that was reported

    @property
    def name(self) -> str:
        return "" if self.target is None else self.target.name

    def note_success(self, update: TargetUpdate, now: float, interval_s: float) -> str | None:
        """After a poll. Returns a message for the user, or None."""
        self.up, self.serves_tasks, self.failures = True, True, 0
        self.due = now if update.more else now + interval_s
        if self.lacks_headroom or all(_HEADROOM in record for record in update.running):
            return None
        self.lacks_headroom = True
        return (
            f"{self.name} does not say how much memory its processes have left: it runs an older"
            " dwsr-probe; its running tasks have no probability of an overrun"
        )

    def note_failure(self, error: Exception, now: float, interval_s: float) -> str | None:
        """After a poll. Returns a message for the user, once; None: it was reported before, or
        the target is no port of ours."""
        self.failures += 1
        was_down, self.up = self.up is False, False
        self.serves_tasks = not (isinstance(error, StreamRefused) and error.status == 404)
        self.due = now + (
            REFUSED_RETRY_S
            if isinstance(error, StreamRefused)
            else min(BACKOFF_MOST_S, interval_s * 2 ** min(self.failures - 1, 10))
        )
        if was_down or not self.serves_tasks:
            return None
        how = "sent nonsense" if isinstance(error, StreamInvalid) else "does not answer"
        return f"{self.name} {how}: {error or 'out of memory'}; trying again"


@dataclass
class Backlog:
    """Records of one target that wait to be learned."""

    watched: WatchedTarget
    reader_state: dict[str, Any]  # of its reader after these records
    records: deque[bytes] = field(default_factory=deque)
