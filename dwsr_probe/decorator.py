"""`@task("name")`: the arguments of a call are the inputs, numbers and booleans among them are the
parameters, the returned value is the output.

Called by binding/tasks.pyx when a block is used as a decorator, in the probed process. The `self`
of a method and the `cls` of a class method are neither.
"""

from __future__ import annotations

import functools

from dwsr_probe import _core

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_bases_of = type.__dict__["__mro__"].__get__


def wrap_function(
    function: Callable[..., Any],
    name: object,
    inputs: object,
    key: object,
    features: dict[str, float] | None,
) -> Callable[..., Any]:
    """The function with a task around each call. inputs: recorded in place of the arguments,
    unless None."""
    owner = _owner_of(function)

    def block_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> _core.task:
        first = 1 if owner and args and _is_self_or_cls(args[0], *owner) else 0
        given = [*args[first:], *kwargs.values()] if inputs is None else inputs
        block = _core.task(name, given, features=features, key=key)
        return _core.call_block(block, function, args, kwargs, first)

    # CO_COROUTINE: `async def`
    if getattr(getattr(function, "__code__", None), "co_flags", 0) & 0x80:

        @functools.wraps(function)
        async def measured(*args: Any, **kwargs: Any) -> Any:
            if not _core.active():
                return await function(*args, **kwargs)
            with block_of(args, kwargs) as block:
                block.output = result = await function(*args, **kwargs)
                return result

    else:

        @functools.wraps(function)
        def measured(*args: Any, **kwargs: Any) -> Any:
            if not _core.active():
                return function(*args, **kwargs)
            with block_of(args, kwargs) as block:
                block.output = result = function(*args, **kwargs)
                return result

    return measured


def _owner_of(function: object) -> tuple[str | None, str] | None:
    """(module, qualified name) of the class in whose body a function is defined, or None."""
    owner = str(getattr(function, "__qualname__", "")).rpartition(".")[0]
    if not owner or owner.endswith("<locals>"):
        return None
    return getattr(function, "__module__", None), owner


def _is_self_or_cls(value: object, module: str | None, owner: str) -> bool:
    """Whether the value is an instance of the class with these names, the class itself, or a
    subclass.

    Names are compared, because the class does not exist yet when its method is decorated, and a
    reference to the class would be pickled with the method. Code of the job does not run here:
    bases and names are read from `type`, while isinstance would ask the object for its class.
    """
    kind = type(value)
    for base in _bases_of(value if issubclass(kind, type) else kind):
        if (
            type.__getattribute__(base, "__qualname__") == owner
            and type.__getattribute__(base, "__module__") == module
        ):
            return True
    return False
