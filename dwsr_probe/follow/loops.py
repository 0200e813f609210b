"""Work that a task hands to an asyncio event loop in another thread is accounted to that task, as
zarr and fsspec do it: with `run_coroutine_threadsafe`, which calls `call_soon_threadsafe`.

Loops with a handle class of their own (uvloop) are not followed, nor are Dask's own loops: what
they receive is nobody's work.
"""

from __future__ import annotations

import sys
import threading

from dwsr_probe import _core
from dwsr_probe.follow.dask_loops import is_dasks
from dwsr_probe.imports import Replacement
from dwsr_probe.say import say_once

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

UNKNOWN = "its functions are not those that this release of dwsr-probe knows"
_lock = threading.Lock()
_replacements: list[Replacement] = []


def hook(base_events: Any) -> None:
    """base_events: the module asyncio.base_events."""
    base_loop, handle = base_events.BaseEventLoop, base_events.events.Handle
    if (
        _parameters(base_loop.call_soon_threadsafe) != ("self", "callback", "context", "args")
        or _parameters(handle._run) != ("self",)
        or not hasattr(handle, "_context")
    ):
        raise RuntimeError(UNKNOWN)
    followed: bool | None = None  # None: no task has used a loop yet

    def may_follow(loop: Any) -> bool:
        nonlocal followed
        if is_dasks(loop):
            return False
        # not waiting: the lock may have been held in another thread when this process was forked
        if followed is None and _lock.acquire(blocking=False):
            try:
                if followed is None:
                    followed = _follow_steps(handle)
            finally:
                _lock.release()
        return bool(followed)

    original = base_loop.call_soon_threadsafe
    ours = _core.around_call_soon_threadsafe(original, may_follow)
    _replacements.append(Replacement(base_loop, "call_soon_threadsafe", ours))


def _follow_steps(handle: Any) -> bool:
    """Replace what runs each step of a loop. Called when a task uses a loop for the first time, so
    that steps cost nothing more in all other processes."""
    selector_events = sys.modules.get("asyncio.selector_events")
    if selector_events is not None:
        transport = selector_events._SelectorSocketTransport
        # writelines: since Python 3.12; before, it calls write
        methods = [name for name in ("write", "writelines") if name in vars(transport)]
        if any(len(_parameters(vars(transport)[name])) != 2 for name in methods):
            say_once(
                "asyncio.base_events",
                f"cannot hook asyncio.selector_events: {UNKNOWN}; event loops are not followed",
            )
            return False
        for name in methods:
            ours = _core.around_write(vars(transport)[name])
            _replacements.append(Replacement(transport, name, ours))
    _replacements.append(Replacement(handle, "_run", _core.around_run(handle._run)))
    return True


def unhook() -> None:
    while _replacements:
        _replacements.pop().undo()


def _parameters(function: Callable[..., Any]) -> tuple[str, ...]:
    """Names of the parameters: positional ones, those for keywords only, `*args`. Empty if it is
    not a function of Python."""
    code = getattr(function, "__code__", None)
    if code is None:
        return ()
    stars = bool(code.co_flags & 4) + bool(code.co_flags & 8)  # *args, **kwargs
    return code.co_varnames[: code.co_argcount + code.co_kwonlyargcount + stars]
