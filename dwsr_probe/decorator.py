"""`@task("name")`: the arguments of a call are the inputs, the returned value is the output. Runs in the probed process."""
import functools

from dwsr_probe import _core


def wrap_function(function, name, inputs, key):
    if getattr(getattr(function, "__code__", None), "co_flags", 0) & 0x80:  # CO_COROUTINE: `async def`
        @functools.wraps(function)
        async def measured(*args, **kwargs):
            if not _core.active():
                return await function(*args, **kwargs)
            with _core.task(name, _arguments(inputs, args, kwargs), key=key, shared=True) as block:
                block.output = result = await function(*args, **kwargs)
                return result
    else:
        @functools.wraps(function)
        def measured(*args, **kwargs):
            if not _core.active():
                return function(*args, **kwargs)
            with _core.task(name, _arguments(inputs, args, kwargs), key=key) as block:
                block.output = result = function(*args, **kwargs)
                return result
    return measured


def _arguments(inputs, args, kwargs):
    return inputs if inputs is not None else [*args, *kwargs.values()]
