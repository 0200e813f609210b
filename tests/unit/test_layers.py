"""The house rules that a machine can check: light in the probed process, one-way imports, no
stray symbols."""

import ast
import re
import struct
import subprocess
import sys
from pathlib import Path

import pytest

import dwsr_probe
from dwsr_probe import _core

PACKAGE = Path(dwsr_probe.__file__).parent

# Every module and every package of dwsr_probe, the lowest first. Each imports only from those
# before it, also where it imports late; imports for types alone do not count.
LAYERS = (
    "dataclass",
    "outcome",
    "words",
    "settings",
    "advice",
    "say",
    "signals",
    "imports",
    "follow",
    "decorator",
    "gpu",
    "probe",
    "boot",
    "record",
    "origin",
    "total",
    "process",
    "sample",
    "board",
    "live",
    "store",
    "followed",
    "collector",
    "runs",
    "launch",
    "predict",
    "fit",
    "worker_model",
    "export",
    "serve",
    "report",
    "dask",
    "cli",
)
# Beside the layers: the package's own names, which are loaded when they are asked for, and `python
# -m dwsr_probe`. Cython units (_*.pyx) are below all layers and need not be listed.
WITHOUT_LAYER = {"__init__", "__main__"}
# Files that import from one layer above their own.
UPWARDS = {"boot/start.py": "dask"}  # once the job has imported Dask
# What a probed process loads, whatever the job does. The standard library and _core are enough.
INSIDE = (
    "settings",
    "outcome",
    "advice",
    "say",
    "imports",
    "follow",
    "decorator",
    "gpu",
    "probe",
    "boot",
)


def imports_of(path):
    """Modules that a file imports when it runs: not those under `if TYPE_CHECKING`."""
    pending = [ast.parse(path.read_text())]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            pending += node.orelse
        else:
            pending += ast.iter_child_nodes(node)


def files_of(name):
    """The files of a module or package that stands directly in dwsr_probe."""
    package = PACKAGE / name
    return sorted(package.rglob("*.py")) if package.is_dir() else [PACKAGE / f"{name}.py"]


def relative(path):
    return str(path.relative_to(PACKAGE))


def layer_of(module):
    """The name of the module or package directly in dwsr_probe; None for all others."""
    names = module.split(".")
    return names[1] if names[0] == "dwsr_probe" and len(names) > 1 else None


def test_every_module_has_a_layer():
    present = {
        path.stem
        for path in PACKAGE.iterdir()
        if (path.suffix == ".py" or (path.is_dir() and list(path.rglob("*.py"))))
    }
    unlisted = present - set(LAYERS) - WITHOUT_LAYER
    assert not unlisted, (
        f"put {', '.join(sorted(unlisted))} into LAYERS (tests/unit/test_layers.py), after all that"
        " it imports and before all that imports it; and into INSIDE, if a probed process loads it"
    )
    gone = set(LAYERS) | WITHOUT_LAYER
    assert not gone - present, f"in LAYERS, but not in dwsr_probe: {gone - present}"
    assert len(set(LAYERS)) == len(LAYERS) and set(INSIDE) <= set(LAYERS)


def test_imports_point_one_way():
    for i, layer in enumerate(LAYERS):
        for path in files_of(layer):
            for module in imports_of(path):
                above = set(LAYERS[i + 1 :]) - {UPWARDS.get(relative(path))}
                assert layer_of(module) not in above, f"{relative(path)} imports {module}"


def test_no_modules_import_each_other():
    """Also within a package, and also where they import late."""
    modules = {
        ".".join(["dwsr_probe", *path.relative_to(PACKAGE).with_suffix("").parts]): path
        for path in PACKAGE.rglob("*.py")
        if path.stem != "__init__"
    }
    below = {
        name: {module for module in imports_of(path) if module in modules}
        for name, path in modules.items()
    }
    while True:  # take away those that import nothing any more: what stays is in a cycle
        free = {name for name, needed in below.items() if not needed & set(below)}
        if not free:
            break
        below = {name: needed for name, needed in below.items() if name not in free}
    assert not below, f"these import each other: {sorted(below)}"


def test_inside_the_job_only_stdlib_and_core():
    allowed = {*sys.stdlib_module_names, "dwsr_probe", "sitecustomize"}
    for path in [path for name in INSIDE for path in files_of(name)]:
        outside = set(LAYERS) - set(INSIDE) - {UPWARDS.get(relative(path))}
        for module in imports_of(path):
            is_light = module.split(".")[0] in allowed and layer_of(module) not in outside
            assert is_light, f"{relative(path)} imports {module}"
    late = {"record", "board", "report"}  # in dwsr_probe.__getattr__
    found = {layer_of(module) for module in imports_of(PACKAGE / "__init__.py")} & set(LAYERS)
    assert found == {"probe", *late}


def test_the_boot_loads_nothing_else(cli):
    done, _ = cli.job("import sys; print(*sys.modules)", "-q")
    loaded = {m for m in done.stdout.split() if m.startswith("dwsr_probe")}
    assert loaded == {
        "dwsr_probe",
        "dwsr_probe._core",
        "dwsr_probe.binding.contexts",
        "dwsr_probe.binding.features",
        "dwsr_probe.binding.params",
        "dwsr_probe.binding.tasks",
        "dwsr_probe.advice",
        "dwsr_probe.outcome",
        "dwsr_probe.probe",
        "dwsr_probe.settings",
        "dwsr_probe.imports",
        "dwsr_probe.say",
        "dwsr_probe.follow",
        "dwsr_probe.follow.threads",
        "dwsr_probe.boot",
        "dwsr_probe.boot.start",
    }
    assert (
        not {"click", "rich", "psutil", "sqlite3", "json", "dataclasses", "numpy", "typing", "re"}
        & set(done.stdout.split()) - bare_modules()
    )


# Modules whose import takes milliseconds, and what loads them. A run without options needs none of
# them.
HEAVY = {
    "asyncio",
    "ast",
    "bz2",
    "click",
    "dataclasses",
    "decimal",
    "difflib",
    "inspect",
    "lzma",
    "numpy",
    "pickle",
    "prometheus_client",
    "random",
    "rich",
    "shutil",
    "ssl",
    "statistics",
    "subprocess",
    "tempfile",
    "textwrap",
    "threading",
    "tornado",
    "typing",
    "urllib.parse",
    "uuid",
}


@pytest.mark.parametrize(
    "options",
    [[], ["-q"], ["--period", "2", "--gc=around", "--"], ["--metrics", "0"]],
    ids=" ".join,
)
def test_the_parent_of_a_run_loads_nothing_heavy(cli, options):
    """With a task, so that the table has a row. The fixed cost of a run is mostly imports."""
    job = cli.script("import dwsr_probe\nwith dwsr_probe.task('t'): pass")
    parent = (
        "import sys\nfrom dwsr_probe.cli import main\ntry: main()\nfinally: print(*sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", parent, "run", *options, sys.executable, job],
        cwd=cli.cwd,
        env=cli.env,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0 and ("-q" in options) == (not done.stderr), done.stderr
    loaded = set(done.stdout.split())
    assert "dwsr_probe.launch" in loaded and ("-q" in options) == (
        "dwsr_probe.report.table" not in loaded
    )
    # A port is Tornado's, but what nobody scrapes needs no encoder.
    heavy = {"click", "prometheus_client", "rich"} if "--metrics" in options else HEAVY
    assert not heavy & loaded - bare_modules()


def bare_modules():
    return set(
        subprocess.run(
            [sys.executable, "-c", "import sys; print(*sys.modules)"],
            capture_output=True,
            text=True,
        ).stdout.split()
    )


def test_the_model_stands_alone():
    model = list((PACKAGE / "predict").glob("*.py"))
    assert len(model) > 1
    names = {path.stem for path in model}
    for path in model:
        for module in imports_of(path):
            root, *rest = module.split(".")
            assert (
                root in sys.stdlib_module_names
                or root == "numpy"
                or (
                    root == "dwsr_probe"
                    and rest[:1] == ["predict"]
                    and (rest[1:2] == [] or rest[1] in names)
                )
            ), (path.name, module)


def test_the_service_knows_no_views():
    for path in (PACKAGE / "serve").glob("*.py"):
        assert not [
            m
            for m in imports_of(path)
            if m.startswith(
                ("dwsr_probe.cli", "dwsr_probe.report", "dwsr_probe.dask", "dwsr_probe.launch")
            )
        ], path.name


def test_bokeh_is_wanted_by_the_page_alone():
    """Optional imports stand in the folder named for them; plots for notebooks may have it, too."""
    allowed = {
        PACKAGE / "report" / "notebook.py",
        PACKAGE / "report" / "memory_plot.py",
        PACKAGE / "report" / "fit_page.py",
        PACKAGE / "fit" / "plot.py",
        *(PACKAGE / "report" / "html").glob("*.py"),
    }
    for path in set(PACKAGE.rglob("*.py")) - allowed:
        assert not {"bokeh"} & {module.split(".")[0] for module in imports_of(path) if module}, path


def test_the_extension_exports_init_functions_only():
    symbols = subprocess.run(
        ["nm", "-D", "--defined-only", _core.__file__], capture_output=True, text=True, check=True
    ).stdout.split()
    assert {
        s for s in symbols if not s.startswith("0") and len(s) > 1 and not s.startswith("_")
    } == {f"PyInit_{path.stem}" for path in PACKAGE.rglob("*.pyx")}


def test_all_thread_locals_are_in_one_small_struct():
    """Static TLS is scarce: a library that is loaded late shares what is left with all others."""
    image = Path(_core.__file__).read_bytes()
    table, size, count = (
        struct.unpack_from("<Q", image, 32)[0],
        *struct.unpack_from("<HH", image, 54),
    )
    headers = [struct.unpack_from("<IIQQQQQQ", image, table + i * size) for i in range(count)]
    assert [memory for kind, _, _, _, _, _, memory, _ in headers if kind == 7] == [32]  # PT_TLS
    declared = [
        path.name
        for path in sorted((PACKAGE.parent / "csrc").glob("*.[ch]"))
        if "__thread " in path.read_text()
    ]
    assert declared == ["lineage.c", "thread.h"]


def test_handles_are_decoded_in_one_place():
    sources = [
        *(PACKAGE.parent / "csrc").glob("*.[ch]"),
        *PACKAGE.rglob("*.p[yx][xd]"),
    ]
    assert [path.name for path in sources if re.search(r"[%*/] SLOT_COUNT", path.read_text())] == [
        "handle.h"
    ]


def test_no_two_modules_have_a_class_of_one_name():
    """A reader who searches for a class finds one. Private classes are their module's own."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found.setdefault(node.name, []).append(str(path.relative_to(PACKAGE)))
    assert not {name: paths for name, paths in found.items() if len(paths) > 1}
