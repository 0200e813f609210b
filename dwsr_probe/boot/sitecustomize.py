"""Loaded by every Python below `dwsr-probe run`: this folder stands first on PYTHONPATH.

It removes its folder from sys.path, runs the user's own sitecustomize as if this one did not exist,
then starts the probe. It prints nothing in an interpreter that cannot load us. Types are comments,
because any Python may read this file.
"""

import os
import sys

_here = os.path.dirname(os.path.abspath(__file__))


def _run_users_sitecustomize():  # type: () -> None
    """Import the sitecustomize that Python would have found without this folder."""
    sys.path[:] = [p for p in sys.path if os.path.abspath(p or ".") != _here]
    mine = sys.modules.pop("sitecustomize", None)
    try:
        import sitecustomize  # type: ignore[import-not-found]  # noqa: F401
    except ImportError as error:
        if getattr(error, "name", None) != "sitecustomize":
            raise
        if mine is not None:
            sys.modules["sitecustomize"] = mine


def _boot():  # type: () -> None
    try:
        import dwsr_probe.boot.start as start
    except Exception:
        try:  # an environment without dwsr-probe, but of a Python that our extension was built for
            import importlib.util

            package = os.path.dirname(_here)
            spec = importlib.util.spec_from_file_location(
                "dwsr_probe",
                os.path.join(package, "__init__.py"),
                submodule_search_locations=[package],
            )
            assert spec is not None and spec.loader is not None
            sys.modules["dwsr_probe"] = module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
            import dwsr_probe.boot.start as start
        except Exception:
            for name in [
                n for n in sys.modules if n == "dwsr_probe" or n.startswith("dwsr_probe.")
            ]:
                del sys.modules[name]
            return
    start.boot(_here)


try:
    _run_users_sitecustomize()
finally:
    _boot()
