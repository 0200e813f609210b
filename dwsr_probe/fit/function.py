"""The function whose blocks are fitted, in a form that another process can load: pickled by
cloudpickle if that is installed (functions of notebooks and scripts, lambdas, closures), or
"module:name" as the command line has it."""

from __future__ import annotations

import functools
import importlib.util
import io
import os
import pickle
import sys
from typing import TYPE_CHECKING, Any

from dwsr_probe.fit.error import FitError
from dwsr_probe.words import bytes_text

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

_CANNOT_SEND = "cannot send the function or the array to the process that tries blocks"


class NamedFunction:
    """A function by its module, or the path of its file, and its name. It is imported where it is
    called, so a module that fails or allocates does so in the process that tries blocks."""

    def __init__(self, text: str, arguments: dict[str, Any] | None = None) -> None:
        self.module, _, self.name = text.rpartition(":")
        self.arguments = arguments or {}
        if not self.module or not self.name:
            raise FitError(f"{text!r} is not a function; write module:function or file.py:function")

    def load(self) -> Callable[..., Any]:
        found: Any = self._module()
        for part in self.name.split("."):
            try:
                found = getattr(found, part)
            except AttributeError:
                raise FitError(f"{self.module} has no {self.name}") from None
        if not callable(found):
            raise FitError(f"{self.name} of {self.module} is a {type(found).__name__}, no function")
        return functools.partial(found, **self.arguments) if self.arguments else found

    def _module(self) -> ModuleType:
        folder, file = os.path.split(self.module)
        sys.path.insert(0, os.path.abspath(folder))
        if not file.endswith(".py"):
            return importlib.import_module(file if folder else self.module)
        if not os.path.isfile(self.module):
            raise FitError(f"there is no file {self.module}")
        # Not by its name alone: a file may be called like a module that is loaded already
        name = file.removesuffix(".py")
        spec = importlib.util.spec_from_file_location(name, self.module)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules.setdefault(name, module)
        spec.loader.exec_module(module)
        return module


def name_of_function(function: object) -> str:
    while isinstance(function, functools.partial):
        function = function.func
    name = getattr(function, "name", None) or getattr(function, "__name__", None)
    return name if isinstance(name, str) else type(function).__name__


class TooLarge(FitError):
    """The pickled value would have more bytes than allowed."""


class _LimitedFile(io.BytesIO):
    """Refuses to grow beyond a size: a copy of the user's data might not fit into memory."""

    def __init__(self, most_bytes: int) -> None:
        super().__init__()
        self._most_bytes = most_bytes

    def write(self, data: Any) -> int:
        if self.tell() + memoryview(data).nbytes > self._most_bytes:
            raise TooLarge(
                f"it holds more than {bytes_text(self._most_bytes)} of data; give large arrays as"
                " further inputs of the function"
            )
        return super().write(data)


def pickled(value: object, most_bytes: int) -> bytes:
    """FitError if it cannot be sent to another process."""
    try:
        import cloudpickle as pickler
    except ImportError:
        pickler = pickle
    file = _LimitedFile(most_bytes)
    advice = ""
    try:
        if pickler is pickle:
            advice = "; pip install cloudpickle"
            if getattr(value, "__module__", "") == "__main__":  # would be found by its name only
                raise FitError("it is defined in a script or a notebook")
        pickler.Pickler(file, pickle.HIGHEST_PROTOCOL).dump(value)
    except TooLarge as error:
        raise TooLarge(f"{_CANNOT_SEND}: {error}") from None
    except Exception as error:  # whatever the user's objects raise
        raise FitError(f"{_CANNOT_SEND}: {error}{advice}") from error
    return file.getvalue()
