"""How we speak inside somebody's program: one line on stderr, or nothing."""
import sys


def say(text):
    """One line on stderr, if there is one and it takes it. Never on another stream, never an exception."""
    if sys.stderr is not None:
        try:
            print(f"dwsr-probe: {text}", file=sys.stderr, flush=True)
        except (OSError, ValueError):
            pass
