"""What the exception says that ended a task: cancelled or failed, and for lack of memory?

Runs in the probed process. The task units (binding/tasks.pyx) call these functions only for tasks
that end with an exception; `error` is that exception or its class. The names of exceptions are
compared, because importing asyncio or distributed to compare their classes is not for a probe.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    AnyError = BaseException | type[BaseException]

_CANCELLATIONS = ("CancelledError", "KeyboardInterrupt", "Reschedule")


def is_cancellation(error: AnyError) -> bool:
    return _class_of(error).__name__ in _CANCELLATIONS


def lacks_host_memory(error: AnyError) -> bool:
    """A MemoryError, except CuPy's: that one is about device memory, which the allocator hook has
    recorded if the task itself made the request."""
    kind = _class_of(error)
    return issubclass(kind, MemoryError) and not str(kind.__module__).startswith("cupy.")


def requested_bytes(error: Any) -> Any:
    """The size of the failed request, which only NumPy's MemoryError carries; else None."""
    try:
        return error._total_size
    except Exception:
        return None


def _class_of(error: AnyError) -> type[BaseException]:
    return error if isinstance(error, type) else type(error)
