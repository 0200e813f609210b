"""dwsr-probe: how much memory does one task need?

Inside a probed process only the standard library and `_core` are imported; everything else here
is loaded when it is asked for.
"""

try:
    from dwsr_probe._core import adopt, task
    from dwsr_probe.probe import start, stop
# said where it is used, so that a Dask worker with our preload still starts
except ImportError as error:
    _broken = error

__version__ = "0.1.0"
__all__ = ["TaskRecord", "adopt", "load", "records", "snapshot", "start", "stop", "task"]


def why_broken():
    """Why the extension cannot be loaded, and what to do; None if it is."""
    import os
    import sys

    folder = os.path.dirname(os.path.abspath(__file__))
    if "dwsr_probe._core" in sys.modules:
        return None
    if not [
        name for name in os.listdir(folder) if name.startswith("_core.") and name.endswith(".so")
    ]:
        return (
            f"{folder} is a source tree whose extension is not built, and it hides an installed"
            " dwsr-probe: work in another directory, or build it here with `pip install -e .`"
        )
    return (
        f"dwsr-probe in {folder} is not built for this Python ({_broken}): install it with this"
        " Python's pip"
    )


def __getattr__(name):
    if name in ("adopt", "task", "start", "stop"):
        raise ImportError(why_broken()) from _broken
    if name == "TaskRecord":
        from dwsr_probe.record import TaskRecord

        return TaskRecord
    if name in ("records", "snapshot"):
        from dwsr_probe import board

        return getattr(board, name)
    if name == "load":
        from dwsr_probe.report.notebook import load

        return load
    raise AttributeError(f"module 'dwsr_probe' has no attribute {name!r}")
