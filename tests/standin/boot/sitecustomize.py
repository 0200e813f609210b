"""Loaded by every Python whose environment comes from tests.standin.environment(): this folder
stands on PYTHONPATH.

Leaves no trace on sys.path and runs the next sitecustomize as if this one were not there
(dwsr-probe's does the same, so either may come first), then puts the stand-in under CuPy, and
itself into sys.modules as `standin`. At once, not by a hook on the import of cupy: what CuPy's
modules copy at their import must be ours already, whichever of them a child (unpickling, a
profiler, a Dask preload) happens to load first. That loads three modules of CuPy's and not
NumPy: 30 ms (13), 75 ms (14: its cuda.pathfinder); nothing where CuPy is not installed.
"""

import importlib.util
import os
import sys

_here = os.path.dirname(os.path.abspath(__file__))


def _chain():
    sys.path[:] = [p for p in sys.path if os.path.abspath(p or ".") != _here]
    mine = sys.modules.pop("sitecustomize", None)
    try:
        import sitecustomize  # noqa: F401
    except ImportError as error:
        if error.name != "sitecustomize":
            raise
        sys.modules["sitecustomize"] = mine


def _install():
    if "STANDIN_DIR" not in os.environ or importlib.util.find_spec("cupy_backends") is None:
        return
    package = os.path.dirname(_here)
    spec = importlib.util.spec_from_file_location(
        "standin", os.path.join(package, "__init__.py"), submodule_search_locations=[package]
    )
    sys.modules["standin"] = standin = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(standin)
    standin.start()


try:
    _chain()
finally:
    try:
        _install()
    # site would print it and go on: a test that then finds no GPU would say nothing about why
    except Exception as error:
        print(error, file=sys.stderr, flush=True)
        os._exit(70)
