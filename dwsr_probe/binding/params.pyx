# cython: language_level=3, freethreading_compatible=True
"""Parameters of a task: the numbers and booleans among its arguments, by name or position.

Used by the task units and graph.pyx at each begin. Texts and contents are never recorded. Code of
the job is never run: a number is read from Python's own object, also that of a subclass, or by
NumPy's C functions. No argument is kept.
"""
from cpython.bool cimport PyBool_Check
from cpython.float cimport PyFloat_AS_DOUBLE, PyFloat_Check
from cpython.function cimport PyFunction_GetCode
from cpython.long cimport PyLong_Check
from cpython.number cimport PyNumber_Index
from libc.stdint cimport uint64_t

from csrc.frame cimport text
from csrc.params cimport (
    PARAM_BOOLEAN, PARAM_INTEGER, PARAM_NEGATIVE, PARAMS_MOST, param, params, params_add,
    params_add_float)

import types

cdef extern from "Python.h":
    unsigned long Py_TPFLAGS_HEAPTYPE
    unsigned long PyType_GetFlags(type t)
    long long PyLong_AsLongLongAndOverflow(object value, int *overflow) except? -1

cdef enum:
    NAMES_MOST = 4096  # kept names
    NAME_MOST = 64  # characters
    WRAPPERS_MOST = 8  # around a function, as functools.wraps makes them
    VARIABLE_ARGUMENTS = 0x04  # CO_VARARGS of a code object

# What Dask passes to a function of the job, beside the job's own arguments.
cdef frozenset OF_DASK = frozenset((
    "_func", "_meta", "block_id", "block_info", "computing_meta", "dtype", "enforce_dtype",
    "enforce_dtype_function", "keepdims", "meta"))
cdef bint recording = True
cdef dict number_kinds = {}  # type that C code defines → kind_of_number
cdef dict names_by_address = {}, kept_by_address = {}  # of code objects
cdef dict keywords = {}  # name of an argument → JSON
cdef list positions = [b'"%d"' % i for i in range(ARGUMENTS_MOST)]
cdef type FunctionType = types.FunctionType
cdef type MethodType = types.MethodType


def use_params(bint on):
    """Whether parameters are recorded."""
    global recording
    recording = on


cdef bint is_recording() noexcept:
    return recording


# -- numbers

cdef int kind_of_number_of(object value) noexcept:
    cdef type t = type(value)
    if PyFloat_Check(value):  # np.float64 is one
        return FLOAT
    if PyBool_Check(value):
        return BOOLEAN
    if PyLong_Check(value):
        return INTEGER
    if PyType_GetFlags(t) & Py_TPFLAGS_HEAPTYPE:  # NumPy's scalars are none
        return NO_NUMBER
    try:
        found = number_kinds.get(t)
        return kind_of_c_type(t) if found is None else <int>found
    except Exception:
        return NO_NUMBER


cdef int kind_of_c_type(type t) except -1:
    """Remember and return the kind of a type that C code defines, and that therefore stays."""
    cdef int kind = NO_NUMBER
    if t.__module__ == "numpy":
        names = [base.__name__ for base in t.__mro__ if base.__module__ == "numpy"]
        if "timedelta64" in names:  # an integer for NumPy
            pass
        elif "bool" in names or "bool_" in names:
            kind = NUMPY_BOOLEAN
        elif "integer" in names:
            kind = NUMPY_INTEGER
        elif "floating" in names:
            kind = NUMPY_FLOAT
    number_kinds[t] = kind
    return kind


cdef int add_number(params *p, bytes name, object value, int kind) except -1:
    cdef param found
    cdef text as_text = text(at=<const char *>name, len=len(name))
    if kind == FLOAT:
        params_add_float(p, as_text, PyFloat_AS_DOUBLE(value))
    elif kind == NUMPY_FLOAT:
        params_add_float(p, as_text, float(value))
    elif kind == BOOLEAN or kind == NUMPY_BOOLEAN:
        found.kind, found.bits = PARAM_BOOLEAN, 1 if value else 0
        params_add(p, as_text, found)
    else:
        add_integer(p, as_text, value if kind == INTEGER else PyNumber_Index(value))
    return 0


cdef int add_integer(params *p, text name, object value) except -1:
    """One of more than 64 bits is kept as a float, if there is such a float."""
    cdef int overflow = 0
    cdef param found
    cdef long long small = PyLong_AsLongLongAndOverflow(value, &overflow)
    if overflow:
        return add_large_integer(p, name, int.__index__(value))
    found.kind = PARAM_NEGATIVE if small < 0 else PARAM_INTEGER
    found.bits = <uint64_t>(-1 - small if small < 0 else small)
    params_add(p, name, found)
    return 0


cdef int add_large_integer(params *p, text name, object value) except -1:
    cdef param found
    if 0 <= value < 1 << 64:
        found.kind, found.bits = PARAM_INTEGER, <uint64_t>value
        params_add(p, name, found)
        return 0
    try:
        params_add_float(p, name, float(value))
    except OverflowError:
        pass
    return 0


# -- names

cdef bytes json_of_name(str name):
    """A JSON string of at most NAME_MOST characters."""
    escaped = [
        c if c >= " " and c not in '"\\' else f"\\u{ord(c):04x}" for c in name[:NAME_MOST]]
    return ('"' + "".join(escaped) + '"').encode("utf-8", "replace")


cdef bytes name_of_keyword(object name):
    """JSON; None for an argument of Dask's, and for a name that is no text."""
    if type(name) is not str or name in OF_DASK:
        return None
    found = keywords.get(name)
    if found is None:
        if len(keywords) > NAMES_MOST:
            keywords.clear()
        found = keywords[name] = json_of_name(<str>name)
    return <bytes>found


cdef tuple names_of_code(object code):
    """The names of a function's positional arguments, as JSON; None for one of Dask's."""
    address = <size_t><void *>code
    found = names_by_address.get(address)
    if found is not None:
        return <tuple>found
    found = tuple([
        name_of_keyword(name) for name in code.co_varnames[:min(code.co_argcount, ARGUMENTS_MOST)]])
    if len(names_by_address) > NAMES_MOST:
        names_by_address.clear()
        kept_by_address.clear()
    kept_by_address[address] = code
    names_by_address[address] = found
    return <tuple>found


cdef tuple names_of_arguments(object function):
    """The names of positional arguments as far as they are known: those of a Python function, of
    the function that a wrapper takes all its arguments for, and of a method without its first."""
    cdef int left = WRAPPERS_MOST
    cdef bint is_method = type(function) is MethodType
    cdef tuple names
    if is_method:
        function = function.__func__
    elif type(function) is not FunctionType:
        function, is_method = method_that_is_called(function), True
    while type(function) is FunctionType:
        code = <object>PyFunction_GetCode(function)
        names = names_of_code(code)
        if names or not code.co_flags & VARIABLE_ARGUMENTS:
            return names[1:] if is_method else names
        function = function.__dict__.get("__wrapped__")
        left -= 1
        if left < 0:
            break
    return ()


cdef object method_that_is_called(object function):
    """The Python function behind a call of a class, or of an object of a class of the job's; None
    if there is none. Classes are searched by their dicts: attributes may run code."""
    name = "__init__" if isinstance(function, type) else "__call__"
    t = function if isinstance(function, type) else type(function)
    if not PyType_GetFlags(<type>t) & Py_TPFLAGS_HEAPTYPE:
        return None
    for base in bases_of(t):
        found = dict_of(base).get(name)
        if found is not None:
            return found
    return None


cdef object bases_of = type.__dict__["__mro__"].__get__
cdef object dict_of = type.__dict__["__dict__"].__get__


cdef bytes name_at(tuple names, Py_ssize_t position):
    return <bytes>names[position] if position < len(names) else <bytes>positions[position]


# -- arguments

cdef int add_arguments(
        params *p, object function, tuple args, dict kwargs, Py_ssize_t first) except -1:
    """Add the arguments of a call, without those before position `first`."""
    cdef Py_ssize_t i
    cdef int kind
    cdef bytes name
    cdef tuple names = names_of_arguments(function)
    for i in range(first, min(len(args), ARGUMENTS_MOST)):
        kind = kind_of_number_of(args[i])
        if kind and (name := name_at(names, i)) is not None:
            add_number(p, name, args[i], kind)
    for key, value in kwargs.items():
        kind = kind_of_number_of(value)
        if kind and (name := name_of_keyword(key)) is not None:
            add_number(p, name, value, kind)
    return 0


cdef object add_features(params *p, dict features):
    """Add what a program knows about its data. Return what is wrong with them, or None."""
    cdef int kind
    cdef object wrong = None
    for key, value in features.items():
        kind = kind_of_number_of(value)
        if type(key) is not str:
            wrong = f"a name is of type {type(key).__name__}, not str"
        elif not kind:
            wrong = f"{ascii(key)[:NAME_MOST]} is of type {type(value).__name__}, not a number"
        elif p.count == PARAMS_MOST:
            wrong = f"there are more than {PARAMS_MOST}"
        else:
            add_number(p, json_of_name(<str>key), value, kind)
    return wrong
