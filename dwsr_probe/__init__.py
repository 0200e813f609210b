"""dwsr-probe: how much memory does one task need?

The public names. A probed process imports only the standard library and the compiled part
(`_core`); the other names are loaded when they are first used.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from dwsr_probe.board import records, snapshot
    from dwsr_probe.record import TaskRecord
    from dwsr_probe.report.notebook import load

_broken: ImportError | None = None  # why the extension cannot be loaded
try:
    from dwsr_probe._core import adopt, task
    from dwsr_probe.probe import start, stop
# Raised when a name is used: a Dask worker with the preload must start even so.
except ImportError as error:
    _broken = error

__version__ = "0.1.0"
__all__ = ["TaskRecord", "adopt", "load", "records", "snapshot", "start", "stop", "task"]


def why_broken() -> str | None:
    """Why the extension cannot be loaded, and what to do; None if it is loaded."""
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


def __getattr__(name: str) -> object:
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
