"""What a task received and returned: type, dtype, shape and bytes, never contents. And the decorator that takes them from a call.

Runs in the probed process, under a probe only. Never raises: what cannot be described has nulls.
"""
import functools
import inspect
import json
import sys

from dwsr_probe import _core

INPUTS_TEXT_MOST = 2048  # bytes of JSON that go into a record; what is left out is counted
_SEPARATORS = (",", ":")


def _count(value):
    return value if type(value) is int and value >= 0 else None


def _shape(value):
    try:
        return [int(n) for n in value] if isinstance(value, tuple) and len(value) <= 32 else None
    except Exception:
        return None


def describe(value):
    """{type, dtype, shape, nbytes} of anything."""
    kind, dtype, shape, nbytes = type(value).__name__, None, None, None
    try:
        if isinstance(value, (bytes, bytearray)):
            nbytes = len(value)
        elif type(value) in (bool, int, float, complex, str):  # exactly: NumPy's scalars are subclasses
            nbytes = sys.getsizeof(value)
        else:
            shape = _shape(getattr(value, "shape", None))
            nbytes = getattr(value, "nbytes", None)
            nbytes = int(nbytes) if nbytes is not None and not callable(nbytes) else None
            dtype = getattr(value, "dtype", None)
            dtype = None if dtype is None else str(dtype)[:64]
    except Exception:
        pass
    return {"type": kind[:64], "dtype": dtype, "shape": shape, "nbytes": _count(nbytes)}


def describe_inputs(inputs):
    """JSON for the record, total bytes (None if none is known), how many there are, how many the JSON leaves out."""
    try:
        values = list(inputs) if isinstance(inputs, (list, tuple)) else [inputs]
    except Exception:
        values = []
    kept, size, total, known = [], 2, 0, False
    for value in values:
        described = describe(value)
        if described["nbytes"] is not None:
            total, known = total + described["nbytes"], True
        text = json.dumps(described, separators=_SEPARATORS)
        if size + len(text) + 1 <= INPUTS_TEXT_MOST:
            kept.append(text)
            size += len(text) + 1
    return f"[{','.join(kept)}]".encode(), total if known else None, len(values), len(values) - len(kept)


def describe_output(value):
    """JSON for the record, and its bytes (None if not known)."""
    described = describe(value)
    return json.dumps(described, separators=_SEPARATORS).encode(), described["nbytes"]


def wrap_function(function, name, inputs, key):
    """The decorator behind `@task("name")`: arguments are the inputs, the returned value is the output."""
    if inspect.iscoroutinefunction(function):
        @functools.wraps(function)
        async def measured(*args, **kwargs):
            if not _core.active():
                return await function(*args, **kwargs)
            # Other coroutines run in this thread in between: never this task's alone.
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
