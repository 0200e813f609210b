"""Wait for signals that are blocked. The loops of `run`, `export` and `predict serve` call it."""

from __future__ import annotations

import signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection


def wait_for(signals: Collection[int], timeout_s: float) -> signal.struct_siginfo | None:
    """The siginfo of the first of these signals, or None after so many seconds.

    If Python's sigtimedwait is interrupted for longer than its timeout (SIGSTOP and SIGCONT, Ctrl-Z
    and fg, a debugger), it returns a siginfo without values.
    """
    info = signal.sigtimedwait(signals, timeout_s)
    return info if info is not None and info.si_signo in signals else None
