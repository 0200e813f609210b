"""From Python to the page: a JSON head and typed arrays, compressed, as base64. Nothing in it
can be taken for markup; page.js opens it."""

import base64
import gzip
import json

import numpy as np

_TYPES = {
    "u1": "Uint8Array",
    "u2": "Uint16Array",
    "u4": "Uint32Array",
    "f4": "Float32Array",
    "f8": "Float64Array",
}


def short(values):
    """float32 with 15 bits of mantissa: three parts in 100,000, which is less than is shown, and
    compresses to half."""
    return ((values.astype("f4").view("u4") + 0x80) & 0xFFFFFF00).view("f4")


def pack(head, arrays):
    """head: any JSON; arrays: {name: array of one of _TYPES}."""
    where, parts, offset = {}, [], 0
    for name, values in arrays.items():
        values = np.ascontiguousarray(values, values.dtype.newbyteorder("<"))
        where[name] = (_TYPES[values.dtype.str[1:]], offset, values.size)
        parts += [values.tobytes(), b"\0" * (-values.nbytes % 8)]
        offset += values.nbytes + -values.nbytes % 8
    text = json.dumps({**head, "arrays": where}, separators=(",", ":"), allow_nan=False).encode()
    text += b" " * (-len(text) % 8)
    return base64.b64encode(
        gzip.compress(b"".join([len(text).to_bytes(8, "little"), text, *parts]), 6, mtime=0)
    ).decode()
