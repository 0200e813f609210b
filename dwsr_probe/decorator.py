"""`@task("name")`: the arguments of a call are the inputs, the returned value is the output.
Runs in the probed process.

The `self` of a method and the `cls` of a class method are no inputs: their size cannot be known.
"""

import functools

from dwsr_probe import _core

_bases_of = type.__dict__["__mro__"].__get__


def wrap_function(function, name, inputs, key):
    owner = _owner_of(function)

    def read(args, kwargs):
        if inputs is not None:
            return inputs
        return [
            *(args[1:] if owner and args and _belongs(args[0], *owner) else args),
            *kwargs.values(),
        ]

    # CO_COROUTINE: `async def`
    if getattr(getattr(function, "__code__", None), "co_flags", 0) & 0x80:

        @functools.wraps(function)
        async def measured(*args, **kwargs):
            if not _core.active():
                return await function(*args, **kwargs)
            with _core.task(name, read(args, kwargs), key=key, shared=True) as block:
                block.output = result = await function(*args, **kwargs)
                return result

    else:

        @functools.wraps(function)
        def measured(*args, **kwargs):
            if not _core.active():
                return function(*args, **kwargs)
            with _core.task(name, read(args, kwargs), key=key) as block:
                block.output = result = function(*args, **kwargs)
                return result

    return measured


def _owner_of(function):
    """(module, qualified name) of the class in whose body a function is defined; None for any
    other."""
    owner = str(getattr(function, "__qualname__", "")).rpartition(".")[0]
    return (
        (getattr(function, "__module__", None), owner)
        if owner and not owner.endswith("<locals>")
        else None
    )


def _belongs(value, module, owner):
    """Is the value an instance of this class, or the class itself, or one derived from it? By
    names: the class does not exist yet when its method is decorated, and a reference to it would
    go wherever the method is pickled to.

    Nothing of the job's own runs here: bases and names are those that `type` keeps; isinstance
    would ask the object for its class."""
    kind = type(value)
    for base in _bases_of(value if issubclass(kind, type) else kind):
        if (
            type.__getattribute__(base, "__qualname__") == owner
            and type.__getattribute__(base, "__module__") == module
        ):
            return True
    return False
