"""dwsr-probe: how much memory does one task need?

Inside a probed process only the standard library and `_core` are imported; everything else here is loaded when it is asked for.
"""
try:
    from dwsr_probe._core import adopt, task
    from dwsr_probe.probe import start, stop
except ImportError as error:  # built for another Python: said where it is used, so that a Dask worker with our preload still starts
    _broken = error

__version__ = "0.1.0"
__all__ = ["TaskRecord", "adopt", "load", "records", "snapshot", "start", "stop", "task"]


def __getattr__(name):
    if name in ("adopt", "task", "start", "stop"):
        raise ImportError(f"dwsr-probe cannot be used in this Python: {_broken}") from _broken
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
