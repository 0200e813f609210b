"""Puts the CUDA stand-in under the CuPy of this process: for C callers into the tables of
capsules, for Python callers into the modules.

Must run before `cupy` is imported: CuPy's modules copy the pointers when they are loaded. CuPy
13 and 14. Called by boot/sitecustomize.py and by tests."""

import ctypes
import importlib
import importlib.machinery
import importlib.util
import operator
import sys

TYPES = {
    "int": ctypes.c_int,
    "unsigned int": ctypes.c_uint,
    "size_t": ctypes.c_size_t,
    "intptr_t": ctypes.c_ssize_t,
    "float": ctypes.c_float,
}


def installed():
    # there, because this package may be loaded under two names
    return "standin_cuda" in sys.modules


def install(folder):
    """`folder`: from build()."""
    if "cupy" in sys.modules:
        raise RuntimeError("standin: too late, cupy is imported already")
    cuda = load(folder / "_cuda.so")
    api = {
        path.rpartition(".")[2]: importlib.import_module(f"cupy_backends.cuda.{path}")
        for path in ("api.runtime", "api.driver", "libs.nvrtc")
    }
    if api["runtime"].MemPoolProps.__basicsize__ != object.__basicsize__ + 16:
        raise RuntimeError("standin: this CuPy's MemPoolProps has other fields")
    entries = cuda.entries(api["runtime"].CUDARuntimeError, api["runtime"].PointerAttributes)
    names = [check(api[module], *entry) for module, *entry in entries]
    for (module, name, signature, address, _), capsule_name in zip(entries, names, strict=True):
        if capsule_name:
            api[module].__pyx_capi__[name] = cuda.capsule(address, capsule_name)
            if hasattr(api[module], name):
                setattr(api[module], name, python_function(name, signature, address))
    sys.modules["standin_cuda"] = cuda


def load(path):
    loader = importlib.machinery.ExtensionFileLoader("_cuda", str(path))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("_cuda", loader))
    loader.exec_module(module)
    return module


def check(module, name, signature, address, required):
    """The capsule's own name, if its signature is ours; None for what an older CuPy does not
    have."""
    capsule = module.__pyx_capi__.get(name)
    if capsule is None and not required:
        return None
    get_name = ctypes.pythonapi.PyCapsule_GetName
    get_name.restype, get_name.argtypes = ctypes.c_char_p, [ctypes.py_object]
    found = get_name(capsule) if capsule is not None else b"nothing"
    if found.replace(b" ", b"") != signature.encode().replace(b" ", b""):
        raise RuntimeError(
            f"standin: {module.__name__}.{name}: expected {signature}, found {found.decode()}. "
            "This CuPy is not one that tests/standin/entries.h knows."
        )
    return found


def python_function(name, signature, address):
    """What CuPy's Python code calls: the same C function, with its parameters' types from the
    signature."""
    result, _, rest = signature.partition("(")
    parameters = [p.strip() for p in rest.rstrip(")").split(",")]
    types = [
        TYPES.get(p, ctypes.py_object) for p in parameters if "__pyx" not in p or "__pyx_obj" in p
    ]
    # skip_dispatch; optional arguments: defaults
    hidden = [ctypes.c_int] + [ctypes.c_void_p] * ("__pyx_optional_args" in rest)
    function = ctypes.PYFUNCTYPE(TYPES.get(result.strip(), ctypes.py_object), *types, *hidden)(
        address
    )
    convert = [(lambda value: value) if t is ctypes.py_object else operator.index for t in types]
    tail = (1, None)[: len(hidden)]

    def call(*arguments):
        given = arguments[: len(types)]  # a flag beyond them is an optional one
        return function(*(c(a) for c, a in zip(convert, given, strict=True)), *tail)

    call.__name__ = call.__qualname__ = name
    return call
