"""Work that a task hands to an asyncio event loop in another thread is accounted to that task, as
zarr and fsspec do it: with `run_coroutine_threadsafe`, which calls `call_soon_threadsafe`.

Loops with a handle class of their own (uvloop) are not followed, nor are Dask's own loops: what
they receive is nobody's work.
"""

from __future__ import annotations

import threading

from dwsr_probe import _core
from dwsr_probe.follow.dask_loops import is_dasks
from dwsr_probe.imports import Replacement

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_lock = threading.Lock()
_replacements: list[Replacement] = []


def hook(base_events: Any) -> None:
    """base_events: the module asyncio.base_events."""
    handle, loop = base_events.events.Handle, base_events.BaseEventLoop
    if (
        _parameters(loop.call_soon_threadsafe) != ("self", "callback", "context", "args")
        or _parameters(handle._run) != ("self",)
        or not hasattr(handle, "_context")
    ):
        raise RuntimeError("its functions are not those that this release of dwsr-probe knows")
    steps_are_followed = False

    def may_follow(loop: Any) -> bool:
        """The first call replaces the function that runs each step. So steps cost nothing more in
        a process without tasks that use loops."""
        nonlocal steps_are_followed
        if is_dasks(loop):
            return False
        if not steps_are_followed:
            with _lock:
                if not steps_are_followed:
                    _replace(handle, "_run", _core.around_run(handle._run))
                    steps_are_followed = True
        return True

    _replace(
        loop,
        "call_soon_threadsafe",
        _core.around_call_soon_threadsafe(loop.call_soon_threadsafe, may_follow),
    )


def unhook() -> None:
    with _lock:
        while _replacements:
            _replacements.pop().undo()


def _replace(owner: Any, name: str, ours: Any) -> None:
    _replacements.append(Replacement(owner, name, ours))


def _parameters(function: Callable[..., Any]) -> tuple[str, ...]:
    """Names of the parameters: positional ones, those for keywords only, `*args`."""
    code = function.__code__
    stars = bool(code.co_flags & 4) + bool(code.co_flags & 8)  # *args, **kwargs
    return code.co_varnames[: code.co_argcount + code.co_kwonlyargcount + stars]
