# cython: language_level=3, freethreading_compatible=True
"""Functions as the chain of a task shows them: by name and role, whether they are the job's own,
and what is inside partials, curries and the like. Used by graph.pyx.

Code of the job is never run, and no function is kept: it may hold data.
"""
cimport cython
from cpython.function cimport PyFunction_GetCode

from dwsr_probe.binding.features cimport (
    COMPILED_FUNCTIONS, UNKNOWN, is_hashable_type, json_name, kind_of, module_of, own_name_of)

import functools
import operator
import types

cdef enum:
    NAMES_MOST = 4096

# Names of others' functions that say less than what they do.
cdef dict ROLES = {
    ("dask._task_spec", "_execute_subgraph"): (SUBGRAPH, ""),
    ("dask.array.core", "getter"): (GETTER, "getitem"),
    ("dask.array.core", "getter_nofancy"): (GETTER, "getitem"),
    ("dask.array.core", "getter_inline"): (GETTER, "getitem"),
    ("_operator", "getitem"): (ITEM, "getitem"),
    ("dask.array.chunk", "getitem"): (ITEM, "getitem"),
    ("dask.array.core", "load_store_chunk"): (STORE, "store"),
    ("dask.array.core", "store_chunk"): (STORE, "store"),
    ("dask.array.core", "concatenate_shaped"): (CONCATENATE, "overlap"),
    ("dask.array.wrap", "_broadcast_trick_inner"): (PLAIN, "broadcast"),
    ("dask.array.overlap", "_trim"): (HIDDEN, ""),
    ("dask.array.core", "_pass_extra_kwargs"): (HIDDEN, ""),
    ("dask.array.core", "_enforce_dtype"): (HIDDEN, ""),
    ("dask.array.core", "apply_infer_dtype"): (HIDDEN, ""),
    ("dask.utils", "apply"): (APPLY, ""),
    ("dask_expr._expr", "Fused._execute_internal_graph"): (TASK_LIST, ""),
    ("builtins", "dict"): (HIDDEN, ""),
    ("builtins", "list"): (HIDDEN, ""),
    ("builtins", "set"): (HIDDEN, ""),
    ("builtins", "tuple"): (HIDDEN, ""),
    ("dask.array.core", "concrete"): (HIDDEN, ""),
    ("dask.array.numpy_compat", "concrete"): (HIDDEN, ""),
    ("dask.bag.core", "reify"): (HIDDEN, ""),
    ("dask.bag.core", "map_chunk"): (HIDDEN, ""),
    ("dask.dataframe.dask_expr._expr", "apply_and_enforce"): (HIDDEN, ""),
    ("dask.dataframe.core", "apply_and_enforce"): (HIDDEN, ""),
    ("dask._task_spec", "_identity_cast"): (HIDDEN, ""),
    ("dask._task_spec", "identity"): (HIDDEN, ""),
    ("dask._task_spec", "_to_dict"): (HIDDEN, ""),
    ("dask._task_spec", "_instantiate_named_tuple"): (HIDDEN, ""),
    ("dask._task_spec", "NestedContainer.to_container"): (HIDDEN, ""),
    ("dask._task_spec", "Dict.constructor"): (HIDDEN, ""),
    ("dask.delayed", "single_key"): (HIDDEN, ""),
    ("dask.dataframe.io.parquet.core", "ParquetFunctionWrapper"): (PLAIN, "read_parquet"),
}
# Functions of these libraries are steps of a chain, but not the job's own. Those of FIELD name a
# task if nothing of the job is in it: `map_overlap(scipy.ndimage.gaussian_filter)`.
cdef frozenset FIELD = frozenset((
    "bottleneck", "cucim", "cupyx", "cv2", "numbagg", "numexpr", "scipy", "skimage", "sklearn"))
cdef frozenset LIBRARIES = frozenset((
    "_functools", "_operator", "builtins", "cloudpickle", "cudf", "cupy", "cytoolz", "dask",
    "dask_expr", "distributed", "flox", "fsspec", "functools", "h5py", "itertools", "netCDF4",
    "numpy", "numpy_groupies", "operator", "pandas", "pyarrow", "sparse", "tlz", "toolz", "xarray",
    "zarr"))


@cython.final
cdef class Function:
    """A function as a chain shows it.

    name: JSON text, b"" for a function that has no place in a chain. ours: of the job, not of a
    library. names_task: the operation of a task in which nothing is ours.
    """


cdef str VECTORIZED = " (vectorized)"  # the end of the name of what np.frompyfunc makes
cdef dict functions = {}  # (module, qualified name) → Function
cdef dict functions_by_address = {}, kept_by_address = {}  # of code objects and of ufuncs
cdef dict shapes = {}  # type of a callable → callable_shape
cdef type FunctionType = types.FunctionType
cdef type MethodType = types.MethodType
cdef type BuiltinType = types.BuiltinFunctionType
cdef type PartialType = functools.partial
cdef type MethodCallerType = operator.methodcaller
cdef type MethodDescriptorType = types.MethodDescriptorType  # str.upper


cdef Function new_function(object module, object qualname, str shown):
    """shown: the name in a chain, if no table says otherwise."""
    cdef Function f = Function.__new__(Function)
    library = module.partition(".")[0] if type(module) is str else ""
    role, name = ROLES.get((module, qualname), (PLAIN, None))
    if name is None:
        name = shown
    f.role = role
    f.ours = library not in LIBRARIES and library not in FIELD
    f.names_task = library not in LIBRARIES
    f.name = json_name(name.lstrip("_") or name) if name else b""
    return f


cdef Function function_of(object function):
    """The Function of a callable without others inside it."""
    cdef type t = type(function)
    if t is FunctionType:
        return function_of_code(function)
    if t is BuiltinType:
        return remembered(function.__module__, function.__qualname__, function.__name__)
    if t is MethodType:
        owner = function.__self__
        if isinstance(owner, type):  # a class method
            name = own_name_of(owner)
            method = getattr(function.__func__, "__name__", "")
            return remembered(module_of(owner), f"{name}.{method}", None)
        t = type(owner)
    elif issubclass(t, type):  # a class is called
        t = <type>function  # its metaclass may be any
    elif shape_of(t) == NUMPY_FUNCTION:
        return function_of_numpy(function)
    elif shape_of(t) == METHOD_CALLER:
        return remembered("operator", function.method, None)
    elif shape_of(t) == NAMED:
        name = getattr(function, "__name__", None)
        if type(name) is str:
            return remembered(function.__module__, function.__qualname__, name)
    elif shape_of(t) == VECTORIZE and type(function.pyfunc) is FunctionType:
        return function_of_code(function.pyfunc)
    elif t is MethodDescriptorType:
        return remembered(
            module_of(function.__objclass__), function.__qualname__, function.__name__)
    elif t is MethodCallerType:
        made_by, arguments = function.__reduce__()
        method = (arguments if made_by is MethodCallerType else made_by.args)[0]
        return remembered("operator", method, None)
    return remembered(module_of(t), own_name_of(t), None)


cdef Function function_of_code(object function):
    """By the address of its code, which is kept: the function itself may hold data. Functions with
    one decorator share the decorator's code, each under the name of what it decorates."""
    cdef Function f
    code = <object>PyFunction_GetCode(function)
    address = <size_t><void *>code
    found = functions_by_address.get(address)
    qualname = own_qualname = function.__qualname__
    if found is not None and (
            (<Function>found).qualname is qualname or (<Function>found).qualname == qualname):
        return <Function>found
    module, name = function.__module__, function.__name__
    if type(qualname) is str and (<str>qualname).endswith("<lambda>"):
        file = code.co_filename.rpartition("/")[2]
        qualname = name = f"lambda ({file}:{code.co_firstlineno})"
    f = remembered(module, qualname, name)
    f.qualname = own_qualname
    if found is None:
        keep_by_address(address, code, f)
    return f


cdef Function function_of_numpy(object function):
    """A ufunc, or a function that __array_function__ may replace."""
    cdef Function f
    address = <size_t><void *>function
    found = functions_by_address.get(address)
    if found is not None:
        return <Function>found
    name = getattr(function, "__name__", "ufunc")
    if name.endswith(VECTORIZED):  # made of a function of the job's, which must not be kept
        return remembered(None, name[:-len(VECTORIZED)], None)
    f = remembered("numpy", name, None)
    keep_by_address(address, function, f)
    return f


cdef int keep_by_address(object address, object kept, Function f) except -1:
    if len(functions_by_address) > NAMES_MOST:
        functions_by_address.clear()
        kept_by_address.clear()
    kept_by_address[address] = kept
    functions_by_address[address] = f
    return 0


cdef Function remembered(object module, object qualname, object shown):
    cdef Function f
    if type(module) is not str:
        module = None
    key = (module, qualname)
    found = functions.get(key)
    if found is not None:
        return <Function>found
    f = new_function(module, qualname, str(qualname if shown is None else shown))
    if len(functions) > NAMES_MOST:
        functions.clear()
    functions[key] = f
    return f


cdef bint may_be_function(object value):
    cdef type t = type(value)
    return (
        t is FunctionType or t is MethodType or t is PartialType or t is BuiltinType
        or shape_of(t) == NUMPY_FUNCTION and callable(value))


cdef bint is_callable_object(object value):
    """Of the job's own class, with a method __call__: what a library's function calls."""
    return kind_of(type(value)) == UNKNOWN and callable(value) and not isinstance(value, type)


cdef int shape_of(type t):
    """How functions inside a callable of this type are found."""
    if t is FunctionType or t is BuiltinType or not is_hashable_type(t):
        return OPAQUE
    found = shapes.get(t)
    if found is not None:
        return found
    module, name = module_of(t), own_name_of(t)
    library = module.partition(".")[0] if type(module) is str else ""
    cdef int shape = OPAQUE
    if name in COMPILED_FUNCTIONS:
        return NAMED
    if library not in LIBRARIES:
        return shape
    if t is PartialType or name == "curry":
        shape = PARTIAL
    elif name == "SubgraphCallable":
        shape = SUBGRAPH_CALLABLE
    elif name == "Compose":
        shape = COMPOSE
    elif library == "dask" and name == "methodcaller":
        shape = METHOD_CALLER
    elif library == "numpy" and name == "vectorize":
        shape = VECTORIZE
    elif library == "numpy" and name in ("ufunc", "_ArrayFunctionDispatcher"):
        shape = NUMPY_FUNCTION
    elif name == "_lru_cache_wrapper":
        shape = NAMED
    shapes[t] = shape
    return shape


cdef object unwrapped(object function, int depth):
    """The function inside partials and curries."""
    while depth > 0 and shape_of(type(function)) == PARTIAL:
        function = function.func
        depth -= 1
    return function
