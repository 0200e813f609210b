"""The function whose blocks are fitted, in a form that another process can load: pickled by
cloudpickle if that is installed (functions of notebooks and scripts, lambdas, closures), or
"module:name" as the command line has it."""

from __future__ import annotations

import importlib
import os
import pickle
import sys
from typing import TYPE_CHECKING, Any

from dwsr_probe.fit.error import FitError

if TYPE_CHECKING:
    from collections.abc import Callable


class NamedFunction:
    """A function by its module, or the path of its file, and its name. It is imported where it is
    called, so a module that fails or allocates does so in the process that tries blocks."""

    def __init__(self, text: str, arguments: dict[str, Any] | None = None) -> None:
        self.module, _, self.name = text.rpartition(":")
        self.arguments = arguments or {}
        if not self.module or not self.name:
            raise FitError(f"{text!r} is not a function; write module:function or file.py:function")

    def load(self) -> Callable[..., Any]:
        folder, file = os.path.split(self.module)
        name = file.removesuffix(".py") if folder or file.endswith(".py") else self.module
        sys.path.insert(0, os.path.abspath(folder))
        found: Any = importlib.import_module(name)
        for part in self.name.split("."):
            try:
                found = getattr(found, part)
            except AttributeError:
                raise FitError(f"{self.module} has no {self.name}") from None
        if not callable(found):
            raise FitError(f"{self.name} of {self.module} is a {type(found).__name__}, no function")
        if not self.arguments:
            return found
        import functools

        return functools.partial(found, **self.arguments)


def name_of_function(function: object) -> str:
    while hasattr(function, "func"):  # partial
        function = function.func
    name = getattr(function, "name", None) or getattr(function, "__name__", None)
    return name if isinstance(name, str) else type(function).__name__


def pickled(value: object) -> bytes:
    """FitError if it cannot be sent to another process."""
    try:
        import cloudpickle as pickler
    except ImportError:
        pickler = pickle
    try:
        found: bytes = pickler.dumps(value)
    except Exception as error:  # whatever the user's objects raise
        advice = "" if pickler is not pickle else "; pip install cloudpickle"
        raise FitError(
            f"cannot send the function or the array to the process that tries blocks: {error}"
            f"{advice}"
        ) from error
    return found
