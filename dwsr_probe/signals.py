"""Wait for signals that are blocked: what the loops of `run` and `export` turn around."""

import signal


def wait_for(signals, timeout_s):
    """The siginfo of one of them, or None after so many seconds.

    Python's sigtimedwait that is interrupted for longer than its timeout (SIGSTOP and SIGCONT,
    Ctrl-Z and fg, a debugger) returns a siginfo that nobody has filled in.
    """
    info = signal.sigtimedwait(signals, timeout_s)
    return info if info is not None and info.si_signo in signals else None
