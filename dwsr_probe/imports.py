"""Call a function once a module has been imported, now or later, without importing it.

Runs in the probed process: a program that never imports the module pays one look into a dict per
import.
"""

import sys

from dwsr_probe.say import say_once

_waiting = {}  # module name → functions


def when_imported(name, function):
    """function(module), now if the module is there, else right after its import. What it raises
    is ours to lose, not the job's."""
    module = sys.modules.get(name)
    if module is not None and not getattr(
        getattr(module, "__spec__", None), "_initializing", False
    ):
        _call(function, module)
        return
    _waiting.setdefault(name, []).append(function)
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)


def forget(*functions):
    """They are not to be called any more."""
    for name, waiting in list(_waiting.items()):
        waiting[:] = [function for function in waiting if function not in functions]
        if not waiting:
            del _waiting[name]
    if not _waiting and _finder in sys.meta_path:
        sys.meta_path.remove(_finder)


def _call(function, module):
    try:
        function(module)
    except Exception as error:
        say_once(module.__name__, f"cannot hook {module.__name__}: {error!r}; it is not measured")


class _Finder:
    """First on sys.meta_path: finds nothing itself, but has the true finder's loader call us
    after it has run the module."""

    def find_spec(self, name, path=None, target=None):
        if name not in _waiting:
            return None
        for finder in sys.meta_path:
            if finder is self or not hasattr(finder, "find_spec"):
                continue
            spec = finder.find_spec(name, path, target)
            if spec is not None:
                _run_after(spec.loader, name)
                return spec
        return None

    def invalidate_caches(self):
        pass


def _run_after(loader, name):
    """Have the loader call us after it has run that module.

    One loader may load many modules (of a zip file, of a frozen program), and finding a module
    need not lead to its import: the loader stays changed until it has run every module that it
    was changed for, and tells them from others by name.
    """
    original = getattr(loader, "exec_module", None)
    # a class that loads all built-in or frozen modules: not hooked
    if original is None or isinstance(loader, type):
        return
    names = getattr(original, "names_of_dwsr_probe", None)
    if names is not None:
        names.add(name)
        return
    names = {name}

    def exec_module(module):
        run = module.__spec__.name
        names.discard(run)
        if not names and vars(loader).get("exec_module") is exec_module:
            del loader.exec_module  # the loader is its own again
        original(module)
        for function in _waiting.pop(run, ()):
            _call(function, module)

    exec_module.names_of_dwsr_probe = names
    try:
        loader.exec_module = exec_module
    except AttributeError:  # a loader without attributes of its own: not hooked
        pass


_finder = _Finder()
