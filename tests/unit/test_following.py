"""`doctor` on what malloc's hooks alone do not see: what is installed, and how it is followed."""

import subprocess
import sys
from importlib.metadata import PackageNotFoundError

import pytest

from dwsr_probe.cli.checks import CheckResult, following
from dwsr_probe.cli.doctor import CHECKS

LIMITED = CheckResult.LIMITED


@pytest.fixture
def installed(monkeypatch):
    """Sets the libraries that are installed, and their releases."""

    def install(**releases):
        def version(name):
            if name not in releases:
                raise PackageNotFoundError(name)
            return releases[name]

        monkeypatch.setattr(following, "version", version)
        monkeypatch.setattr(following, "find_spec", lambda name: None)

    for name in ("ARROW_DEFAULT_MEMORY_POOL", "LD_PRELOAD", "PYTHONMALLOC"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(following.platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(following.sysconfig, "get_config_var", lambda name: 0)
    install()
    return install


def findings():
    checks = [check for check in CHECKS if getattr(check, "__module__", "") == following.__name__]
    found = [check() for check in (*checks, *following.foreign_allocators)]
    return {finding.title: finding for finding in found if finding}


def test_only_what_is_installed_is_listed(installed):
    assert set(findings()) == {"shared memory", "threads"}
    installed(zarr="3.1.6", fsspec="2026.9.0", uvloop="0.23.0", polars="2.1.0", trio="0.35.0")
    found = findings()
    assert set(found) == {"shared memory", "threads", "uvloop", "polars", "coroutines"}
    assert "(zarr 3.1.6, fsspec 2026.9.0 use such loops)" in found["threads"].text
    assert found["polars"].state == LIMITED and found["polars"].text.startswith("2.1.0: ")
    assert "foreign-allocator" in found["polars"].text and "predict" in found["polars"].advice
    assert found["uvloop"].state == LIMITED and "unowned-thread" in found["uvloop"].text
    installed(duckdb="2.0.0", obstore="0.8.2", gevent="26.9.0")
    found = findings()
    assert found["duckdb"].state == LIMITED and "gevent 26.9.0" in found["coroutines"].text
    assert "native-threads" in found["native threads"].text


@pytest.mark.parametrize(
    ("release", "machine", "pool", "said"),
    [
        ("26.0.1", "x86_64", None, None),
        ("15.0.2", "x86_64", "jemalloc", None),
        ("14.0.2", "x86_64", None, "in releases 15 to 26 only; tasks that use it are"),
        ("27.0.0.dev1", "x86_64", None, "marked `shared` (foreign-allocator)"),
        ("of unknown release", "x86_64", None, "in releases 15 to 26 only"),
        ("26.0.1", "aarch64", None, "on x86-64 only, not on aarch64"),
        ("27.0.0", "aarch64", "system", None),
    ],
)
def test_why_arrow_is_not_followed(installed, monkeypatch, release, machine, pool, said):
    monkeypatch.setattr(following, "_version", lambda name: release)
    monkeypatch.setattr(following.platform, "machine", lambda: machine)
    if pool:
        monkeypatch.setenv("ARROW_DEFAULT_MEMORY_POOL", pool)
    found = following.arrow_release()
    assert (found is None) == (said is None)
    if found:
        assert found.state == LIMITED and said in found.text and found.text.startswith(release)


def test_allocators_of_the_interpreter_and_preloaded_ones(installed, monkeypatch):
    assert following.preloaded() is None and following.python_malloc() is None
    monkeypatch.setenv("LD_PRELOAD", "/usr/lib/libjemalloc.so.2:/usr/lib/libother.so")
    assert following.preloaded().text.startswith("jemalloc (LD_PRELOAD)")
    monkeypatch.setenv("PYTHONMALLOC", "mimalloc_debug")
    assert "all tasks are marked" in following.python_malloc().text
    monkeypatch.setattr(following.sysconfig, "get_config_var", lambda name: 1)
    assert following.python_malloc().text.startswith("free-threaded Python")


def test_a_module_of_another_distribution(monkeypatch):
    assert following._version("_csv") == "of unknown release"
    assert following._version("no_such_module") is None


def test_nothing_is_imported_for_it():
    code = """
import sys
from dwsr_probe.cli.checks import following
for check in (following.threads, following.uvloop, following.native_fetchers, following.coroutines,
              following.arrow_release, *following.foreign_allocators):
    check()
print(*{name.partition(".")[0] for name in sys.modules} & {
    "zarr", "fsspec", "uvloop", "obstore", "icechunk", "trio", "gevent", "pyarrow", "polars",
    "duckdb"})
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("\n", "")
