"""The one extension, dwsr_probe._core: all of csrc/ and all Cython units, in one shared object.

csrc/ keeps state of its own, which a process must have once. A unit is therefore not an extension
by itself: its C file has an init function of its own, and _core.pyx calls it. Everything else is in
pyproject.toml.
"""

from glob import glob

from Cython.Build import cythonize
from setuptools import Extension, setup

units = [
    Extension(path.removesuffix(".pyx").replace("/", "."), [path], include_dirs=["csrc"])
    for path in sorted(glob("dwsr_probe/**/*.pyx", recursive=True))
]
core = Extension(
    "dwsr_probe._core",
    sources=[
        *(source for unit in cythonize(units, include_path=["."]) for source in unit.sources),
        *sorted(glob("csrc/*.c")),
    ],
    depends=sorted(glob("csrc/*.h")),
    include_dirs=["csrc"],
    define_macros=[("DWSR_EXTENSION", "1")],
    # Hidden: the file exports the units' init functions and nothing else. Initial-exec: other
    # models may allocate at first use. Unwind tables: exceptions of C++ pass through the wrappers
    # of operator new.
    extra_compile_args=[
        "-std=c11",
        "-O2",
        "-fvisibility=hidden",
        "-ftls-model=initial-exec",
        "-funwind-tables",
        "-Wall",
        "-Wextra",
        "-Wno-unused-parameter",
    ],
    extra_link_args=["-pthread", "-Wl,-z,nodelete"],
)
setup(ext_modules=[core])
