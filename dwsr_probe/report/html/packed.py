"""Data for the page: a JSON head and typed arrays, compressed, as base64. base64 has no character
of markup. page.js unpacks it."""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Mapping
from typing import Any

import numpy as np

_TYPES = {
    "u1": "Uint8Array",
    "u2": "Uint16Array",
    "u4": "Uint32Array",
    "f4": "Float32Array",
    "f8": "Float64Array",
}


def round_for_packing(values: np.ndarray) -> np.ndarray:
    """The values as float32 with 15 bits of mantissa, which compress to half the size. The relative
    error is at most 3e-5, less than the page shows."""
    return ((values.astype("f4").view("u4") + 0x80) & 0xFFFFFF00).view("f4")


def pack(head: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> str:
    """8 bytes with the head's length, the head as JSON, the arrays; all aligned to 8 bytes.
    arrays: of _TYPES."""
    places: dict[str, tuple[str, int, int]] = {}  # type, offset and size of each
    parts: list[bytes] = []
    offset = 0
    for name, array in arrays.items():
        values = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
        places[name] = (_TYPES[values.dtype.str[1:]], offset, values.size)
        padding = -values.nbytes % 8
        parts += [values.tobytes(), b"\0" * padding]
        offset += values.nbytes + padding
    text = json.dumps({**head, "arrays": places}, separators=(",", ":"), allow_nan=False).encode()
    text += b" " * (-len(text) % 8)
    whole = b"".join([len(text).to_bytes(8, "little"), text, *parts])
    return base64.b64encode(gzip.compress(whole, 6, mtime=0)).decode()
