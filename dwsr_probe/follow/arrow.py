"""Arrow's own mimalloc or jemalloc is inside its library. Tasks during which its number of
allocations changes are marked."""

from __future__ import annotations

from dwsr_probe import _core

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# Major releases of Arrow whose own allocators can be followed.
TESTED = range(15, 27)


def hook(pyarrow: Any) -> None:
    pool = pyarrow.default_memory_pool()
    if pool.backend_name != "system":
        # Arrow before 19 has no count: all tasks are marked
        _core.use_foreign_counter(getattr(pool, "num_allocations", object))


def unhook() -> None:
    _core.use_foreign_counter(None)
