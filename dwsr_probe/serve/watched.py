"""A target as the service watches it: when it is polled next, whether it is up, and which of its
records wait to be learned. Only the service's main thread uses it."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from dwsr_probe.export.client import StreamInvalid, StreamRefused

if TYPE_CHECKING:
    from dwsr_probe.serve.targets import PortTarget, RunTarget, TargetUpdate

AGAIN_MOST_S = REFUSED_S = 60.0
_HEADROOM = "process_headroom_bytes"


@dataclass(eq=False)
class WatchedTarget:
    """target: None if its URL is none."""

    target: PortTarget | RunTarget | None
    learned_state: dict[str, Any] | None  # where the reader is behind all that was learned
    due: float = 0.0
    failures: int = 0  # since the last success
    busy: bool = False  # polled, or its records wait to be learned
    gone: bool = False
    slow_until: float = 0.0
    up: bool | None = None  # None: not known yet
    ours: bool = True  # False: it has no /dwsr/tasks
    old: bool = False  # its running tasks have no headroom, and that was reported

    @property
    def name(self) -> str:
        return "" if self.target is None else self.target.name

    def succeeded(self, update: TargetUpdate, now: float, interval_s: float) -> str | None:
        """After a poll. Returns a message for the user, or None."""
        self.up, self.ours, self.failures = True, True, 0
        self.due = now if update.more else now + interval_s
        if self.old or all(_HEADROOM in record for record in update.running):
            return None
        self.old = True
        return (
            f"{self.name} does not say how much memory its processes have left: it runs an older"
            " dwsr-probe; its running tasks have no probability of an overrun"
        )

    def failed(self, error: Exception, now: float, interval_s: float) -> str | None:
        """After a poll. Returns a message for the user, once; None: it was reported before, or
        the target is no port of ours."""
        self.failures += 1
        was_down, self.up = self.up is False, False
        self.ours = not (isinstance(error, StreamRefused) and error.status == 404)
        self.due = now + (
            REFUSED_S
            if isinstance(error, StreamRefused)
            else min(AGAIN_MOST_S, interval_s * 2 ** min(self.failures - 1, 10))
        )
        if was_down or not self.ours:
            return None
        how = "sent nonsense" if isinstance(error, StreamInvalid) else "does not answer"
        return f"{self.name} {how}: {error or 'out of memory'}; trying again"


@dataclass
class Backlog:
    """Records of one target that wait to be learned."""

    watched: WatchedTarget
    state: dict[str, Any]  # of its reader behind these records
    records: deque[bytes] = field(default_factory=deque)
