"""Which event loops are Dask's own: those of its workers, schedulers, nannies and clients in this
process. A task reaches them with `get_client`, and what they receive is nobody's task.

Called by loops.py at each hand-over from a task to an event loop. Nothing is imported for this.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

# Module → its class with all objects that have a loop, in `_instances`.
_OWNERS = {
    "distributed.worker": "Worker",
    "distributed.scheduler": "Scheduler",
    "distributed.nanny": "Nanny",
    "distributed.client": "Client",
}


def is_dasks(loop: Any) -> bool:
    """Dask's loops are Tornado's, around loops of asyncio. A loop that Tornado does not know costs
    two look-ups."""
    if "distributed.utils" not in sys.modules:
        return False
    tornado = sys.modules.get("tornado.ioloop")
    if tornado is None or loop not in tornado.IOLoop._ioloop_for_asyncio:
        return False
    return any(getattr(found, "asyncio_loop", None) is loop for found in _loops())


def _loops() -> Iterator[Any]:
    """Tornado's loops that Dask uses. Raises RuntimeError if another thread adds one meanwhile."""
    yield from sys.modules["distributed.utils"].LoopRunner._all_loops
    for module, name in _OWNERS.items():
        if module in sys.modules:
            for owner in getattr(sys.modules[module], name)._instances:
                yield getattr(owner, "loop", None)
