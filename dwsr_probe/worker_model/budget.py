"""How much CPU time the learning thread may take: a share of a core, and a burst.

A token bucket. It begins full, because the first records are worth most. So at any moment the
thread has taken at most BURST_S + SHARE × time since its start, and the last step. CPU time is the
thread's own, by the kernel's clock.
"""

from __future__ import annotations

import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

SHARE = 0.01  # of a core
BURST_S = 0.25
# A thread that has used up its budget rests until it has this much: waking takes CPU time, too.
_WORTH_WAKING_S = 0.002


class CpuBudget:
    """To be made in the thread that it is for."""

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        cpu: Callable[[], float] = time.thread_time,
    ) -> None:
        self._clock, self._cpu = clock, cpu
        self._at, self._left_s = clock(), BURST_S
        self.used_s = cpu()  # by the thread, ever

    def left_s(self) -> float:
        """CPU seconds that the thread may take now; not above zero: it has to rest."""
        now, used = self._clock(), self._cpu()
        self._left_s = min(BURST_S, self._left_s + SHARE * (now - self._at)) - (used - self.used_s)
        self._at, self.used_s = now, used
        return self._left_s

    def rest_s(self) -> float:
        """Seconds until work is worth it again; 0: now."""
        left = self.left_s()
        return 0.0 if left > 0 else (_WORTH_WAKING_S - left) / SHARE
