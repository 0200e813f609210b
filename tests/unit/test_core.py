"""The compiled part: which names Python finds in `_core`, and when its units are loaded."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import dwsr_probe
from dwsr_probe import _core

PACKAGE = Path(dwsr_probe.__file__).parent
CSRC = PACKAGE.parent / "csrc"


def test_the_list_of_units_is_that_of_the_files():
    files = {
        ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts)
        for path in PACKAGE.rglob("*.pyx")
    }
    assert files == {*_core.UNITS, "dwsr_probe._core"}


def test_every_public_name_of_a_unit_is_found_in_core():
    for unit, names in _core.UNITS.items():
        for name in names:
            assert getattr(_core, name) is getattr(sys.modules[unit], name)
        own = {
            name
            for name, value in vars(sys.modules[unit]).items()
            if not name.startswith("_") and not is_module_or_import(value, unit)
        }
        assert own <= set(names), unit


def is_module_or_import(value, unit):
    return type(value) is type(sys) or getattr(value, "__module__", unit) not in (
        unit,
        "dwsr_probe._core",
    )


def test_units_are_loaded_when_they_are_needed():
    code = (
        "import sys, dwsr_probe; from dwsr_probe import _core\n"
        "print(*(unit for unit in _core.UNITS if unit in sys.modules))\n"
        "_core.BoardReader; _core.BOARD_OPEN\n"
        "print(*(unit for unit in _core.UNITS if unit in sys.modules))\n"
        "try: _core.nothing\n"
        "except AttributeError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    at_start, then, missing = done.stdout.splitlines()
    binding = "dwsr_probe.binding."
    assert at_start.split() == [
        binding + unit for unit in ("features", "contexts", "params", "tasks")
    ]
    assert set(then.split()) - set(at_start.split()) == {
        binding + "board_layout",
        binding + "board_reader",
    }
    assert missing == "module 'dwsr_probe._core' has no attribute 'nothing'"


def test_a_program_may_import_it_anew():
    code = (
        "import sys, dwsr_probe\n"
        "for name in [name for name in sys.modules if name.startswith('dwsr_probe')]:\n"
        "    del sys.modules[name]\n"
        "from dwsr_probe import _core\n"
        "print(_core.begin_graph_task('key', None, None), _core.TASK_OK)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "None 2\n", done.stderr


def test_threads_may_load_a_unit_at_once():
    code = (
        "import threading; from dwsr_probe import _core\n"
        "barrier, found = threading.Barrier(8), []\n"
        "def use(): barrier.wait(); found.append((_core.BoardReader, _core.TASK_OK))\n"
        "threads = [threading.Thread(target=use) for _ in range(8)]\n"
        "for t in threads: t.start()\n"
        "for t in threads: t.join()\n"
        "print(len(found), len(set(found)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "8 1\n", done.stderr


def test_python_has_the_enums_of_the_board():
    text = re.sub(r"/\*.*?\*/", "", (CSRC / "board_layout.h").read_text(), flags=re.DOTALL)
    enums = re.findall(r"^enum (\w+) \{(.*?)\};", text, flags=re.DOTALL | re.MULTILINE)
    assert {name for name, _ in enums} == {
        "board_state",
        "alloc_state",
        "dask_hooks",
        "gpu_hook",
        "nvml_state",
        "rss_source",
        "task_state",
        "task_attribution",
        "attribution_reason",
    }
    for _, body in enums:
        for name, value in re.findall(r"(\w+) = (\d+)", body):
            assert getattr(_core, name) == int(value), name
    assert set(_core.NVML_STATES.values()) == {
        int(value) for value in re.findall(r"\d+", dict(enums)["nvml_state"])
    }


def test_no_literal_stands_for_a_value_of_an_enum():
    """The words whose values are enums are compared with names."""
    words = "rss_source|alloc_state|dask_hooks|gpu_hook|nvml_state|attribution|state"
    literal = re.compile(rf'\["?({words})"?\]\s*[!=]=\s*\d|"({words})"\)\s*[!=]=\s*\d')
    found = [
        f"{path.relative_to(PACKAGE)}: {line.strip()}"
        for path in PACKAGE.rglob("*.py")
        for line in path.read_text().splitlines()
        if literal.search(line)
    ]
    assert not found


# What Cython adds to modules and classes; a stub need not say which bases cannot be combined.
NOT_IN_THE_STUB = r"""
dwsr_probe\._core\.(.*\.)?__(reduce|setstate)_cython__
dwsr_probe\._core\.__(dir|pyx_capi|test)__
dwsr_probe\._core\.(BoardReader|adopt|task)
"""


def test_the_stub_says_what_the_extension_has(tmp_path):
    """Every public name, with its parameters, and nothing else."""
    stubtest = pytest.importorskip("mypy.stubtest")
    (tmp_path / "allowed").write_text(NOT_IN_THE_STUB)
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            stubtest.__name__,
            f"--allowlist={tmp_path / 'allowed'}",
            "--ignore-unused-allowlist",
            "dwsr_probe._core",
        ],
        cwd=PACKAGE.parent,
        env={**os.environ, "MYPY_CACHE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_package_says_that_it_is_typed():
    assert (PACKAGE / "py.typed").exists() and (PACKAGE / "_core.pyi").exists()
