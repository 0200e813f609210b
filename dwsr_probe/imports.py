"""Hooks on modules of the job: call a function once a module has been imported, now or later, and
replace names in it so that they can be restored.

Runs in the probed process; called by probe.py, follow/, the boot module and dask/hooks.py. No
module is imported for this: a program pays one look into a dict per import.
"""

from __future__ import annotations

import sys

from dwsr_probe.say import say_once

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any

    Hook = Callable[[ModuleType], object]

# module name → functions, each with what is lost if it fails
_waiting: dict[str, list[tuple[Hook, str]]] = {}


class Replacement:
    """A name of a module or class that holds a wrapper of ours. The wrapper gets what programs may
    ask of the original: its names, its text, its signature."""

    __slots__ = ("name", "original", "ours", "owner")

    def __init__(self, owner: Any, name: str, ours: Any) -> None:
        self.owner, self.name, self.original, self.ours = owner, name, owner.__dict__[name], ours
        for attribute in ("__module__", "__name__", "__qualname__", "__doc__"):
            setattr(ours, attribute, getattr(self.original, attribute, None))
        ours.__wrapped__ = self.original  # read by inspect.signature
        setattr(owner, name, ours)

    def undo(self) -> None:
        """Unless somebody else has replaced the name since."""
        if self.owner.__dict__.get(self.name) is self.ours:
            setattr(self.owner, self.name, self.original)


def when_imported(name: str, function: Hook, lost: str = "the module is not measured") -> None:
    """Call function(module): now if the module is loaded, else right after its import. An exception
    of the function is one line on stderr, which ends with `lost`; the job does not see it."""
    module = sys.modules.get(name)
    if module is not None and not getattr(
        getattr(module, "__spec__", None), "_initializing", False
    ):
        _call(function, module, lost)
        return
    _waiting.setdefault(name, []).append((function, lost))
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)


def forget(*functions: Hook) -> None:
    """Do not call these functions any more."""
    for name, waiting in list(_waiting.items()):
        waiting[:] = [one for one in waiting if one[0] not in functions]
        if not waiting:
            del _waiting[name]
    if not _waiting and _finder in sys.meta_path:
        sys.meta_path.remove(_finder)


def _call(function: Hook, module: ModuleType, lost: str) -> None:
    try:
        function(module)
    except Exception as error:
        say_once(module.__name__, f"cannot hook {module.__name__}: {error!r}; {lost}")


class _Finder:
    """First on sys.meta_path. It asks the finders behind it, and has the loader that they return
    call us after it has executed the module."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name not in _waiting:
            return None
        for finder in sys.meta_path:
            if finder is self or not hasattr(finder, "find_spec"):
                continue
            spec = finder.find_spec(name, path, target)
            if spec is not None:
                _call_after(spec.loader, name)
                return spec
        return None

    def invalidate_caches(self) -> None:
        pass


def _call_after(loader: Any, name: str) -> None:
    """Have the loader call the waiting functions after it has executed that module.

    One loader may load many modules (of a zip file, of a frozen program), and finding a module
    need not lead to its import. So the loader stays changed until it has executed every module that
    it was changed for. It tells them from others by name.
    """
    original = getattr(loader, "exec_module", None)
    if original is None or isinstance(loader, type):
        return  # a class that loads all built-in or frozen modules: not hooked
    names = getattr(original, "names_of_dwsr_probe", None)
    if names is not None:
        names.add(name)
        return
    names = {name}

    def exec_module(module: Any) -> None:
        executed = module.__spec__.name
        names.discard(executed)
        if not names and vars(loader).get("exec_module") is exec_module:
            del loader.exec_module  # the loader is as it was
        original(module)
        for function, lost in _waiting.pop(executed, ()):
            _call(function, module, lost)

    exec_module.names_of_dwsr_probe = names  # type: ignore[attr-defined]  # a mark on our function
    try:
        loader.exec_module = exec_module
    except AttributeError:  # a loader without attributes of its own: not hooked
        pass


_finder = _Finder()
