"""What a task received and returned: type, dtype, shape and bytes, never contents. And the decorator that takes them from a call.

Runs in the probed process. Imports next to nothing: a job may have modules of its own by any name, and little time to lose.
"""
import sys

from dwsr_probe import _core

INPUTS_TEXT_MOST = 2048  # bytes of JSON that go into a record; what is left out is counted
VALUES_MOST = 256  # looked at; of a longer list the rest is left out, and the total is not known
_SCALARS = (bool, int, float, complex, str, type(None))  # exactly these: NumPy's scalars are subclasses


def _text(value):
    """A JSON string; type and dtype names have no business with anything but printable ASCII."""
    return '"' + "".join(c if " " <= c <= "~" and c not in '"\\' else "?" for c in str(value)[:64]) + '"'


def _shape(value):
    try:
        return [int(n) for n in value] if isinstance(value, tuple) and len(value) <= 32 else None
    except Exception:
        return None


def describe(value):
    """(JSON, bytes or None) of anything. Never raises."""
    dtype = shape = nbytes = None
    try:
        if isinstance(value, (bytes, bytearray)):
            nbytes = len(value)
        elif type(value) in _SCALARS:
            nbytes = sys.getsizeof(value)
        else:
            shape = _shape(getattr(value, "shape", None))
            dtype = getattr(value, "dtype", None)
            nbytes = getattr(value, "nbytes", None)
            nbytes = int(nbytes) if nbytes is not None and not callable(nbytes) else None
        nbytes = nbytes if type(nbytes) is int and 0 <= nbytes < 1 << 62 else None
        words = [f'"type":{_text(type(value).__name__)}', f'"dtype":{"null" if dtype is None else _text(dtype)}',
                 f'"shape":{"null" if shape is None else str(shape).replace(" ", "")}', f'"nbytes":{"null" if nbytes is None else nbytes}']
        return "{" + ",".join(words) + "}", nbytes
    except Exception:
        return '{"type":"?","dtype":null,"shape":null,"nbytes":null}', None


def _values(inputs):
    """The inputs themselves, and what lies in lists, tuples and dicts among them, one level deep."""
    for value in inputs if isinstance(inputs, (list, tuple)) else [inputs]:
        if type(value) in (list, tuple):
            yield from value
        elif type(value) is dict:
            yield from value.values()
        else:
            yield value


def describe_inputs(inputs):
    """JSON for the record, total bytes (None if any is unknown), how many there are, how many the JSON leaves out."""
    kept, size, total, count = [], 2, 0, 0
    for value in _values(inputs):
        count += 1
        if count > VALUES_MOST:
            total = None
            continue
        text, nbytes = describe(value)
        total = None if total is None or nbytes is None else total + nbytes
        if size + len(text) + 1 <= INPUTS_TEXT_MOST:
            kept.append(text)
            size += len(text) + 1
    return f"[{','.join(kept)}]".encode(), total if count else None, count, count - len(kept)


def describe_output(value):
    """JSON for the record, and its bytes (None if not known)."""
    text, nbytes = describe(value)
    return text.encode(), nbytes


def wrap_function(function, name, inputs, key):
    """The decorator behind `@task("name")`: arguments are the inputs, the returned value is the output."""
    import functools
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
