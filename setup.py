"""The one extension: dwsr_probe._core, from Cython and all of csrc/. Everything else is in
pyproject.toml."""

from glob import glob

from Cython.Build import cythonize
from setuptools import Extension, setup

core = Extension(
    "dwsr_probe._core",
    sources=["dwsr_probe/_core.pyx", *sorted(glob("csrc/*.c"))],
    depends=sorted(glob("csrc/*.h") + glob("dwsr_probe/**/*.pxi", recursive=True)),
    include_dirs=["csrc"],
    define_macros=[("DWSR_EXTENSION", "1")],
    # Hidden: the module exports its init function and nothing else. Initial-exec: other models may
    # allocate at first use.
    extra_compile_args=[
        "-std=c11",
        "-O2",
        "-fvisibility=hidden",
        "-ftls-model=initial-exec",
        "-Wall",
        "-Wextra",
        "-Wno-unused-parameter",
    ],
    extra_link_args=["-pthread", "-Wl,-z,nodelete"],
)
setup(ext_modules=cythonize([core], language_level=3))
