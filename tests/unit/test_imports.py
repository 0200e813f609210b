"""Hooks on modules that are imported later: the right module, once, whoever loads it."""

import importlib
import importlib.util
import inspect
import sys
import threading
import zipfile

import pytest

from dwsr_probe.imports import Replacement, forget, when_imported


@pytest.fixture
def hooked(monkeypatch):
    """Names of the modules that were hooked, in order; and when_imported for it."""
    found, before = [], set(sys.modules)

    def function(module):
        found.append((module.__name__, module.VALUE))

    yield lambda *names: [when_imported(name, function) for name in names] and found
    forget(function)
    for name in set(sys.modules) - before:
        del sys.modules[name]
    importlib.invalidate_caches()


@pytest.fixture
def archive(tmp_path, monkeypatch):
    """A zip file on sys.path: one loader for all that is in it."""
    with zipfile.ZipFile(tmp_path / "all.zip", "w") as file:
        for name in ("zipped_one", "zipped_two", "zipped_three"):
            file.writestr(f"{name}.py", f"VALUE = {name!r}")
        file.writestr("zipped_package/__init__.py", "VALUE = 0\nfrom . import other")
        file.writestr("zipped_package/other.py", "VALUE = 1")
        file.writestr("zipped_package/inner.py", "VALUE = 2\nimport zipped_three")
    monkeypatch.syspath_prepend(str(tmp_path / "all.zip"))
    return tmp_path / "all.zip"


def test_a_module_of_a_zip_file(hooked, archive):
    found = hooked("zipped_two")
    import zipped_one  # noqa: F401
    import zipped_two

    assert found == [("zipped_two", "zipped_two")]
    assert type(zipped_two.__loader__).__name__ == "zipimporter" and "exec_module" not in vars(
        zipped_two.__loader__
    )


def test_found_but_not_imported(hooked, archive):
    """Programs ask whether a module is there: the next one from the same file is not it."""
    found = hooked("zipped_two")
    assert importlib.util.find_spec("zipped_two") is not None
    import zipped_one  # noqa: F401

    assert found == []
    import zipped_two  # noqa: F401

    assert found == [("zipped_two", "zipped_two")]


def test_several_of_one_file(hooked, archive):
    found = hooked("zipped_one", "zipped_two", "zipped_package.inner")
    for name in ("zipped_one", "zipped_two", "zipped_package"):
        assert importlib.util.find_spec(name)
    import zipped_package.inner  # noqa: F401
    import zipped_two

    assert found == [("zipped_package.inner", 2), ("zipped_two", "zipped_two")]
    import zipped_one  # noqa: F401

    assert found[2:] == [("zipped_one", "zipped_one")] and "exec_module" not in vars(
        zipped_two.__loader__
    )


def test_two_threads_import_from_one_file(hooked, archive, tmp_path):
    """One waits inside its module for the other's import."""
    with zipfile.ZipFile(archive, "a") as file:
        file.writestr(
            "zipped_slow.py",
            "import sys\nsys.zipped_begun.set()\nassert sys.zipped_go.wait(600)\nVALUE = 9",
        )
    sys.path_importer_cache.clear()
    sys.zipped_begun, sys.zipped_go = threading.Event(), threading.Event()
    found = hooked("zipped_slow", "zipped_two")
    thread = threading.Thread(target=importlib.import_module, args=("zipped_slow",))
    thread.start()
    assert sys.zipped_begun.wait(600)
    importlib.import_module("zipped_one")
    assert found == []
    importlib.import_module("zipped_two")
    assert found == [("zipped_two", "zipped_two")]
    sys.zipped_go.set()
    thread.join(600)
    assert found[1:] == [("zipped_slow", 9)]


def test_a_loader_that_is_a_class_stays_whole(hooked, monkeypatch):
    """Of built-in modules. It is not hooked, and it still loads."""
    name = "_locale"  # of every build; without state that another test could miss
    assert name in sys.builtin_module_names
    before = importlib.machinery.BuiltinImporter.__dict__["exec_module"]
    monkeypatch.delitem(sys.modules, name, raising=False)
    hooked(name)
    importlib.import_module(name)
    assert importlib.machinery.BuiltinImporter.__dict__["exec_module"] is before


def test_an_ordinary_file(hooked, tmp_path, monkeypatch):
    (tmp_path / "plain_module.py").write_text("VALUE = 5")
    monkeypatch.syspath_prepend(str(tmp_path))
    found = hooked("plain_module")
    importlib.util.find_spec("plain_module")
    import plain_module

    assert found == [("plain_module", 5)] and "exec_module" not in vars(plain_module.__loader__)


def test_a_failure_says_what_is_lost(capfd):
    def fails(module):
        raise ValueError("unknown")

    when_imported("string", fails, "its strings are not measured")
    said = capfd.readouterr().err
    assert said == (
        "dwsr-probe: cannot hook string: ValueError('unknown'); its strings are not measured\n"
    )


def test_a_replacement_looks_like_the_original():
    def original(self, value: int = 3) -> str:
        """Text."""

    class Owner:
        method = original

    replaced = Replacement(Owner, "method", lambda *args, **kwargs: None)
    assert Owner.method is replaced.ours and Owner.method is not original
    assert inspect.signature(Owner.method) == inspect.signature(original)
    for name in ("__name__", "__qualname__", "__doc__", "__module__"):
        assert getattr(Owner.method, name) == getattr(original, name)
    replaced.undo()
    assert Owner.method is original
