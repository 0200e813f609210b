"""The file of a saved model: written atomically, read without looking for garbage."""

from __future__ import annotations

import gc
import json
import os
import tempfile
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator


def write_json(path: str | os.PathLike[str], saved: dict[str, Any]) -> None:
    path = os.path.realpath(path)
    handle, temporary = tempfile.mkstemp(
        dir=os.path.dirname(path), prefix=os.path.basename(path) + "."
    )
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            json.dump(saved, file, separators=(",", ":"), allow_nan=False)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def read_json(path: str | os.PathLike[str]) -> Any:
    """ValueError if it is no JSON."""
    with open(path, encoding="utf-8") as file:
        try:
            return json.load(file)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"not a model of dwsr-probe ({error})") from error


@contextmanager
def no_collection() -> Iterator[None]:
    """Half of the time of loading would be spent in looking for cycles among what was loaded, where
    there are none."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
