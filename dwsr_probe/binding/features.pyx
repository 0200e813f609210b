# cython: language_level=3, freethreading_compatible=True
"""What a task received and returned: type, dtype, shape and bytes, never contents.

Used by the task units at each begin and end. Code of the job is never run: attributes are read only
of types from known libraries; of any other type the name is recorded. Nothing raises and nothing is
copied. The result is JSON in a buffer of fixed size. Values that do not fit are left out and
counted.
"""
from cpython.object cimport PyObject
from cpython.ref cimport _Py_REFCNT
from libc.stdint cimport uint64_t
from libc.string cimport memcmp, memcpy

from csrc.board_layout cimport ABSENT

import functools
import sys
import types

cdef enum:
    VISITED_MOST = 1024  # bounds the time that a begin takes
    DEPTH_MOST = 3  # of lists and dicts inside each other
    AXES_MOST = 32


# (library, class) → kind: how the size of an instance is read. Looked up once per type and base.
cdef dict KIND_BY_CLASS_NAME = {
    ("builtins", "bytes"): RAW, ("builtins", "bytearray"): RAW, ("builtins", "memoryview"): ARRAY,
    ("builtins", "list"): SEQUENCE, ("builtins", "tuple"): SEQUENCE,
    ("builtins", "set"): SET, ("builtins", "frozenset"): SET, ("builtins", "dict"): MAPPING,
    ("numpy", "ndarray"): NDARRAY, ("numpy", "generic"): ARRAY,
    ("cupy", "ndarray"): DEVICE_ARRAY, ("sparse", "SparseArray"): ARRAY, ("torch", "Tensor"): ARRAY,
    ("xarray", "DataArray"): ARRAY, ("xarray", "Variable"): ARRAY, ("xarray", "Dataset"): SIZED,
    ("pandas", "DataFrame"): DATAFRAME, ("pandas", "Series"): COLUMN, ("pandas", "Index"): INDEX,
    ("pandas", "ExtensionArray"): ARRAY,
    ("cudf", "DataFrame"): DATAFRAME, ("cudf", "Series"): COLUMN,
    ("pyarrow", "Table"): ARROW, ("pyarrow", "RecordBatch"): ARROW, ("pyarrow", "Array"): ARROW,
    ("pyarrow", "ChunkedArray"): ARROW, ("pyarrow", "Buffer"): ARROW,
    ("scipy", "_cs_matrix"): CSR, ("scipy", "_coo_base"): CSR, ("cupyx", "_data_matrix"): CSR,
    ("dask", "GraphNode"): GRAPH_NODE, ("dask", "TaskRef"): REFERENCE,
    ("distributed", "Future"): REFERENCE, ("distributed", "Actor"): UNKNOWN,
    ("distributed", "Client"): NO_INPUT, ("distributed", "Worker"): NO_INPUT,
    ("numpy", "ufunc"): NO_INPUT, ("numpy", "_ArrayFunctionDispatcher"): NO_INPUT,
    # arrays of which a task reads a block
    ("zarr", "Array"): LAZY, ("zarr", "AsyncArray"): LAZY, ("h5py", "Dataset"): LAZY,
    ("netCDF4", "Variable"): LAZY, ("tables", "Array"): LAZY, ("tables", "CArray"): LAZY,
    ("xarray", "NDArrayMixin"): LAZY, ("xarray", "BackendArray"): LAZY,
    ("tensorstore", "TensorStore"): LAZY,
}
cdef tuple IN_MEMORY_ADAPTERS = ("Numpy", "Pandas")  # of xarray: around an array, an index
cdef tuple COMPILED_FUNCTIONS = ("cython_function_or_method", "fused_cython_function")
cdef tuple KNOWN_LIBRARIES = (
    "builtins", "numpy", "cupy", "cupyx", "cudf", "sparse", "torch", "xarray", "pandas", "pyarrow",
    "scipy", "dask", "distributed", "geopandas", "zarr", "h5py", "netCDF4", "tables",
    "tensorstore")
# type → kind. Subclasses of the scalars do not count as scalars. Only types of known libraries are
# added, so that the job's own classes are not kept alive here.
cdef dict kind_by_type = {
    t: SCALAR
    for t in (
        bool, int, float, complex, str, range)}
kind_by_type.update({
    t: NO_INPUT
    for t in (
        type, type(None), slice, type(Ellipsis), types.FunctionType, types.BuiltinFunctionType,
        types.MethodType, types.ModuleType, functools.partial)})
cdef dict type_names = {}  # type → JSON string
cdef dict dtype_names = {}  # dtype → JSON string
# The descriptors of ndarray itself: a subclass may have replaced its own.
cdef object ndarray_nbytes = None, ndarray_shape = None, ndarray_dtype = None
cdef object object_size = sys.getsizeof


# NumPy's array as every compiled extension knows it. Before this struct is used,
# compare_ndarray_layout compares it with the attributes of a real array.
cdef extern from *:
    """
    typedef struct {
        PyObject_HEAD
        char *data;
        int nd;
        Py_ssize_t *dimensions, *strides;
        PyObject *base, *descr;
    } dwsr_ndarray;
    """
    ctypedef struct dwsr_ndarray:
        int nd
        Py_ssize_t *dimensions
        Py_ssize_t *strides
        PyObject *base
        void *descr

# 1: the struct fits, 0: not compared yet, -1: it does not fit, or there is no GIL to keep the
# variables below consistent.
cdef int ndarray_layout = -1 if "t" in sys.abiflags else 0
# The dtype of the last array, because jobs use few. It is kept alive, so its address stays unique.
cdef void *last_dtype = NULL
cdef object last_dtype_kept = None
cdef bytes last_dtype_head = b""
cdef uint64_t last_dtype_bytes = 0
cdef bint last_dtype_objects = False


cdef bint compare_ndarray_layout(object array):
    """Set ndarray_layout by comparing the struct with a real array; True if it fits.

    Called once, with the first array.
    """
    global ndarray_layout
    cdef dwsr_ndarray *a
    try:
        other = type(array)((1, 6))[:, ::2]
        a = <dwsr_ndarray *><void *>other
        fits = (a.nd == 2 and a.descr == <void *>other.dtype
                and (a.dimensions[0], a.dimensions[1]) == other.shape
                and (a.strides[0], a.strides[1]) == other.strides)
        ndarray_layout = 1 if fits else -1
    except Exception:
        ndarray_layout = -1
    return ndarray_layout == 1


cdef bint remember_dtype(object dtype) except -1:
    """Keep the JSON of an array up to its shape, the itemsize, and whether items are pointers to
    objects, whose own size is unknown."""
    global last_dtype, last_dtype_kept, last_dtype_head, last_dtype_bytes, last_dtype_objects
    last_dtype_head = b'{"type":"ndarray","dtype":' + name_of_dtype(dtype) + b',"shape":['
    last_dtype_bytes, last_dtype_objects = dtype.itemsize, dtype.hasobject
    last_dtype_kept = dtype
    last_dtype = <void *>dtype
    return True


cdef uint64_t add_ndarray(listing *l, object array, object known_bytes) except? 0:
    """add_described for NumPy's own arrays, without creating a Python object."""
    cdef dwsr_ndarray *a = <dwsr_ndarray *><void *>array
    cdef Py_ssize_t begin = l.size
    cdef uint64_t nbytes, logical
    cdef int i
    cdef bint ok
    if a.descr != last_dtype:
        remember_dtype(<object>a.descr)
    nbytes = logical = last_dtype_bytes
    l.count += 1
    ok = ((l.size <= 1 or append(l, b",", 1))
          and append(l, <const char *>last_dtype_head, len(last_dtype_head)))
    for i in range(a.nd):
        # An axis with stride 0 repeats the same memory (np.broadcast_to, da.ones): count it once.
        if a.strides[i] != 0 or a.dimensions[i] == 0:
            nbytes *= <uint64_t>a.dimensions[i]
        logical *= <uint64_t>a.dimensions[i]
        ok = (ok and (i == 0 or append(l, b",", 1))
              and append_number(l, <uint64_t>a.dimensions[i]))
    if last_dtype_objects:
        l.arrays_only = False
        if known_bytes is not None:
            nbytes = byte_count(known_bytes)
    ok = ok and append(l, b'],"nbytes":', 11) and append_number(l, nbytes)
    if logical != nbytes and not last_dtype_objects:
        ok = ok and append(l, b',"logical_bytes":', 17) and append_number(l, logical)
    ok = ok and append_end(l, False)
    settle_value(l, begin, ok)
    return nbytes


cdef void settle_value(listing *l, Py_ssize_t begin, bint ok) noexcept:
    """After a value was written from `begin` on: leave it out if it did not fit, and if it equals
    the value before it, count that one once more instead."""
    cdef Py_ssize_t at, size
    if not ok:
        l.size = begin
        l.omitted += 1
        return
    at = begin + (1 if l.text[begin] == c"," else 0)
    size = l.size - at
    if l.last_count and size == l.last_size and not memcmp(
            &l.text[at], &l.text[l.last_at], size):
        l.last_count += 1
        l.size = begin
        return
    if l.last_count > 1:
        write_count(l, begin)
        at += l.size - (at + size)
    l.last_at, l.last_size, l.last_count = at, size, 1


cdef void write_count(listing *l, Py_ssize_t end) noexcept:
    """Write the count of the last value before its closing brace, at end - 1. What follows `end`
    moves. Without room for the count, the repeated values are omitted."""
    cdef char after[INPUTS_TEXT_MOST]
    cdef Py_ssize_t size = l.size - (end - 1)
    memcpy(after, &l.text[end - 1], size)
    l.size = end - 1
    if append(l, b',"count":', 9) and append_number(l, l.last_count) and append(l, after, size):
        return
    l.omitted += l.last_count - 1
    l.size = end - 1
    append(l, after, size)


cdef extern from *:
    """
    static inline int dwsr_hashes_as_types_do(PyObject *t) {
        return Py_TYPE(t)->tp_hash == PyType_Type.tp_hash;
    }
    """
    # False: to look for the type in a dict would run code of its metaclass.
    bint hashes_as_types_do "dwsr_hashes_as_types_do" (object t) noexcept

# Of a type itself: a metaclass may have attributes of these names.
cdef object bases_of = type.__dict__["__mro__"].__get__
cdef object module_of = type.__dict__["__module__"].__get__
cdef object own_name_of = type.__dict__["__name__"].__get__


cdef bint is_hashable_type(type t) noexcept:
    return hashes_as_types_do(t)


cdef int kind_of(type t):
    if not hashes_as_types_do(t):
        return UNKNOWN
    found = kind_by_type.get(t)
    if found is not None:
        return found
    cdef int kind = UNKNOWN
    cdef bint known = is_known_library(t)
    if own_name_of(t) in COMPILED_FUNCTIONS:
        return NO_INPUT
    for base in bases_of(t):
        module = module_of(base)
        if type(module) is not str:
            continue
        library, name = module.partition(".")[0], own_name_of(base)
        kind = KIND_BY_CLASS_NAME.get((library, name), -1)
        if kind < 0:
            continue
        if kind == NDARRAY:  # its C layout is read, so no other class of this name must pass
            numpy = sys.modules.get("numpy")
            if numpy is None or base is not numpy.ndarray:
                kind = UNKNOWN
            elif base is not t:
                kind = NDARRAY_SUBCLASS
                remember_ndarray_attributes(base)
        elif base is not t and (kind in (SET, UNKNOWN) or module != "builtins" and not known):
            kind = UNKNOWN  # the job's own class: its attributes may be anything
        break
    else:
        kind = UNKNOWN
    if known:
        kind_by_type[t] = kind
    return kind


cdef bint is_known_library(type t):
    module = module_of(t)
    return type(module) is str and module.partition(".")[0] in KNOWN_LIBRARIES


cdef void remember_ndarray_attributes(type base):
    global ndarray_nbytes, ndarray_shape, ndarray_dtype
    ndarray_nbytes, ndarray_shape, ndarray_dtype = base.nbytes, base.shape, base.dtype


cdef bytes json_name(object text):
    """A JSON string of at most 64 characters. All but printable ASCII becomes "?"."""
    safe = [c if " " <= c <= "~" and c not in '"\\' else "?" for c in str(text)[:64]]
    return ('"' + "".join(safe) + '"').encode()


cdef bytes name_of_type(type t):
    found = type_names.get(t) if hashes_as_types_do(t) else None
    if found is None:
        name = own_name_of(t)
        library = str(module_of(t)).partition(".")[0]
        # "Array" and "Dataset" alone say nothing, and CuPy's ndarray is not the host's
        if library in ("cupy", "cupyx", "cudf", "zarr", "h5py", "netCDF4", "tables"):
            name = f"{library}.{name}"
        found = json_name(name)
        if hashes_as_types_do(t) and is_known_library(t):
            type_names[t] = found
    return found


cdef bytes name_of_dtype(object dtype):
    """NumPy's dtypes are cached. Others may hold data (the categories of a column), and hashing
    them would read it."""
    if not type(dtype).__module__.startswith("numpy"):
        return json_name(dtype)
    found = dtype_names.get(dtype)
    if found is None:
        if len(dtype_names) > 4096:
            dtype_names.clear()
        found = dtype_names[dtype] = json_name(dtype)
    return found


cdef object dataframe_bytes(object dataframe):
    """Bytes of a DataFrame's columns and index. Objects count as their pointers."""
    total = index_bytes(dataframe.index)
    for array in dataframe._mgr.arrays:
        total += array.nbytes
    return total


cdef object index_bytes(object index):
    """Bytes of a table's index. The property nbytes of a MultiIndex builds its hash table, which
    takes long and stays in memory."""
    if type(index).__name__ != "MultiIndex" or kind_of(type(index)) != INDEX:
        return index.nbytes
    return sum([part.nbytes for part in (*index.levels, *index.codes)])


cdef tuple shape_and_dtype_of_lazy(object array):
    """netCDF4 asks its library for the shape, without the GIL and without the lock under which the
    job reads. Beside a read in another thread that crashes."""
    dtype = array.dtype
    if name_of_type(type(array)) == b'"netCDF4.Variable"':
        return None, dtype
    return tuple(array.shape), dtype


cdef tuple shape_dtype_nbytes(object value, int kind):
    """(shape, dtype, nbytes), each None if unknown."""
    if kind == NDARRAY or kind == DEVICE_ARRAY:
        shape, nbytes, strides = value.shape, value.nbytes, value.strides
        if 0 in <tuple>strides and nbytes:  # memory that an axis repeats counts once
            for axis, stride in zip(shape, strides):
                if stride == 0:
                    nbytes //= axis
        return shape, value.dtype, nbytes
    if kind == ARRAY:
        return getattr(value, "shape", None), getattr(value, "dtype", None), value.nbytes
    if kind == NDARRAY_SUBCLASS:
        return (ndarray_shape.__get__(value), ndarray_dtype.__get__(value),
                ndarray_nbytes.__get__(value))
    if kind == RAW:
        if isinstance(value, bytes):
            return None, None, bytes.__len__(value)
        return None, None, bytearray.__len__(value)
    if kind == SCALAR:
        return None, None, object_size(value)
    if kind == DATAFRAME:
        shape = value.shape
        try:
            return shape, None, dataframe_bytes(value)
        except Exception:
            return shape, None, None
    if kind == COLUMN:
        return value.shape, value.dtype, value.nbytes + index_bytes(value.index)
    if kind == INDEX:
        return value.shape, value.dtype, index_bytes(value)
    if kind == SIZED:
        return None, None, value.nbytes
    if kind == LAZY:
        shape, dtype = shape_and_dtype_of_lazy(value)
        if shape is None:
            return None, dtype, None
        nbytes = dtype.itemsize
        for axis in shape:
            nbytes *= axis
        return shape, dtype, nbytes
    if kind == ARROW:
        shape, nbytes = getattr(value, "shape", None), getattr(value, "nbytes", None)
        if shape is None:
            shape = (len(value),)
        if nbytes is None:
            nbytes = getattr(value, "size", None)
        return shape, getattr(value, "type", None), nbytes
    if kind == CSR:
        total = value.data.nbytes
        for name in ("indices", "indptr", "row", "col"):
            part = getattr(value, name, None)
            if part is not None:
                total += part.nbytes
        return value.shape, value.dtype, total
    return None, None, None


cdef bint append_number(listing *l, uint64_t n) noexcept:
    cdef char digits[24]
    cdef int at = 24
    while True:
        at -= 1
        digits[at] = c"0" + <char>(n % 10)
        n //= 10
        if n == 0:
            break
    return append(l, &digits[at], 24 - at)


cdef bint append(listing *l, const char *at, Py_ssize_t size) noexcept:
    if l.size + size > INPUTS_TEXT_MOST - 2:
        return False
    memcpy(l.text + l.size, at, size)
    l.size += size
    return True


cdef bint append_end(listing *l, bint lazy) noexcept:
    """The marks of a value, and its closing brace."""
    cdef bint ok = not lazy or append(l, b',"lazy":true', 12)
    ok = ok and (not l.late or append(l, b',"late":true', 12))
    return ok and append(l, b"}", 1)


cdef bint append_value(
        listing *l, bytes type_name, bytes dtype_name, object shape, uint64_t nbytes, bint lazy):
    """Append one JSON object, or nothing if it does not fit."""
    cdef Py_ssize_t begin = l.size
    cdef bint ok = append(l, b'{"type":', 8)
    ok = ok and append(l, <const char *>type_name, len(type_name)) and append(l, b',"dtype":', 9)
    ok = ok and append(l, <const char *>dtype_name, len(dtype_name)) and append(l, b',"shape":', 9)
    if isinstance(shape, tuple) and len(<tuple>shape) <= AXES_MOST:
        ok = ok and append(l, b"[", 1)
        for i in range(len(<tuple>shape)):
            axis = (<tuple>shape)[i]
            if type(axis) is not int or not -1 < axis < 1 << 62:  # NaN in dask's own metadata
                ok = ok and append(l, b"null", 4)
            else:
                ok = ok and append_number(l, <uint64_t>axis)
            if i + 1 < len(<tuple>shape):
                ok = ok and append(l, b",", 1)
        ok = ok and append(l, b"]", 1)
    else:
        ok = ok and append(l, b"null", 4)
    if nbytes == ABSENT:
        ok = ok and append(l, b',"nbytes":null', 14)
    else:
        ok = ok and append(l, b',"nbytes":', 10) and append_number(l, nbytes)
    ok = ok and append_end(l, lazy)
    if not ok:
        l.size = begin
    return ok


cdef uint64_t add_described(listing *l, object value, int kind, object known_bytes) except? 0:
    """Append the description of one value and return its bytes.

    known_bytes: the size that Dask has measured, or None.
    """
    cdef uint64_t nbytes
    if kind == NDARRAY and (
            ndarray_layout == 1 or ndarray_layout == 0 and compare_ndarray_layout(value)):
        return add_ndarray(l, value, known_bytes)
    shape = dtype = found = None
    try:
        shape, dtype, found = shape_dtype_nbytes(value, kind)
    except Exception:  # a released memoryview, an object whose __init__ failed: only its type
        pass
    if kind == DEVICE_ARRAY and found is not None:
        known_bytes = None  # Dask counts memory that an axis repeats as often as it is repeated
    if kind == UNKNOWN or kind == LAZY:
        known_bytes = None  # the size of a handle says nothing about what is behind it
    nbytes = byte_count(known_bytes if known_bytes is not None else found)
    return add_fields(
        l, name_of_type(type(value)), b"null" if dtype is None else name_of_dtype(dtype), shape,
        nbytes, kind == LAZY and not type(value).__name__.startswith(IN_MEMORY_ADAPTERS))


cdef uint64_t add_fields(
        listing *l, bytes type_name, bytes dtype_name, object shape, uint64_t nbytes,
        bint lazy) except? 0:
    cdef Py_ssize_t begin = l.size
    cdef bint ok = l.size <= 1 or append(l, b",", 1)
    l.count += 1
    ok = ok and append_value(l, type_name, dtype_name, shape, nbytes, lazy)
    settle_value(l, begin, ok)
    return nbytes


cdef bint is_empty(object value, int kind):
    """An example of a type, which Dask's functions are given: an array or a table without rows."""
    if kind not in (NDARRAY, DATAFRAME, COLUMN, INDEX, ARRAY):
        return False
    try:
        return len(value) == 0
    except Exception:  # an array without axes
        return False


cdef int add_value(
        listing *l, object value, int depth, object known_bytes, bint constant) except -1:
    """Add a value; of a list or dict, add its items.

    constant: the value is a constant of a Dask graph. Of these, scalars and values of unknown size
    are not inputs.
    """
    cdef int kind = kind_of(type(value))
    cdef uint64_t nbytes, before
    l.visited += 1
    if kind == REFERENCE or kind == NO_INPUT or (constant and (
            kind in (SCALAR, UNKNOWN) or is_empty(value, kind)
            or depth >= DEPTH_MOST and kind in (SEQUENCE, SET, MAPPING))):
        return 0
    if kind != NDARRAY and kind != DEVICE_ARRAY:
        l.arrays_only = False
    if kind == GRAPH_NODE:
        return add_constants(l, value, depth)
    if kind in (SEQUENCE, SET, MAPPING) and depth < DEPTH_MOST:
        before = l.total_bytes
        add_items(l, value, kind, depth, constant)
        nbytes = byte_count(known_bytes)  # this includes the container itself
        if nbytes != ABSENT and before != ABSENT:
            l.total_bytes = before + nbytes
        return 0
    if l.count >= VALUES_MOST:
        l.count += 1
        l.omitted += 1
        l.total_bytes = ABSENT
        return 0
    nbytes = add_described(l, value, kind, known_bytes)
    if l.total_bytes != ABSENT:
        l.total_bytes = ABSENT if nbytes == ABSENT else l.total_bytes + nbytes
    return 0


cdef bint omit_rest_if_full(listing *l, Py_ssize_t left, bint constant) noexcept:
    """If no more values can be described, count the `left` remaining ones as omitted; return True.

    Omitted constants, which are mostly scalars, are counted only beside VALUES_MOST inputs.
    """
    if l.count < VALUES_MOST and l.visited < VISITED_MOST:
        return False
    if not constant or l.count >= VALUES_MOST:
        l.count += left
        l.omitted += left
        l.total_bytes = ABSENT
    return True


cdef int add_items(listing *l, object items, int kind, int depth, bint constant) except -1:
    """Add each item, by index or C iterator: a subclass may have overridden the methods of list,
    tuple or dict."""
    cdef Py_ssize_t i = 0
    if isinstance(items, tuple):
        while i < len(<tuple>items):
            if omit_rest_if_full(l, len(<tuple>items) - i, constant):
                return 0
            add_value(l, (<tuple>items)[i], depth + 1, None, constant)
            i += 1
    elif isinstance(items, list):
        while i < len(<list>items):
            if omit_rest_if_full(l, len(<list>items) - i, constant):
                return 0
            add_value(l, (<list>items)[i], depth + 1, None, constant)
            i += 1
    elif kind == MAPPING:
        for item in (<dict>items).values():
            if omit_rest_if_full(l, len(<dict>items) - i, constant):
                return 0
            add_value(l, item, depth + 1, None, constant)
            i += 1
    else:  # exactly a set or frozenset
        for item in items:
            if omit_rest_if_full(l, len(items) - i, constant):
                return 0
            add_value(l, item, depth + 1, None, constant)
            i += 1
    return 0


cdef int add_constants(listing *l, object node, int depth) except -1:
    """Add the constants in a node of a Dask graph: a data node's value, a task's arguments."""
    if depth >= DEPTH_MOST:
        return 0
    value = getattr(node, "value", None)
    if value is not None:
        add_value(l, value, depth + 1, None, True)
    args = getattr(node, "args", None)
    if type(args) is tuple:
        for item in <tuple>args:
            add_value(l, item, depth + 1, None, True)
    kwargs = getattr(node, "kwargs", None)
    if type(kwargs) is dict:
        for item in (<dict>kwargs).values():
            add_value(l, item, depth + 1, None, True)
    return 0


cdef void open_listing(listing *l) noexcept:
    l.size = 1
    l.text[0] = c"["
    l.count = l.omitted = l.visited = 0
    l.total_bytes = 0
    l.arrays_only = True
    l.late = False
    l.last_at = l.last_size = l.last_count = 0


cdef void close_listing(listing *l) noexcept:
    if l.last_count > 1:
        write_count(l, l.size)
    l.text[l.size] = c"]"
    l.size += 1
    if l.count == 0:
        l.total_bytes = ABSENT


cdef void reopen_listing(listing *l) noexcept:
    """After close_listing: more values follow."""
    l.size -= 1
    l.last_count = 0  # the count of the last value is written already
    if l.count == 0:
        l.total_bytes = 0


cdef void fill_listing(listing *l, object inputs) noexcept:
    open_listing(l)
    try:
        if isinstance(inputs, (list, tuple)):
            add_items(l, inputs, SEQUENCE, 0, False)
        else:
            add_value(l, inputs, 1, None, False)
    except BaseException:
        l.total_bytes = ABSENT
    close_listing(l)


cdef bytes describe_one(object value, object known_bytes, uint64_t *nbytes):
    """JSON of one value; its bytes go to `nbytes`."""
    cdef listing l
    open_listing(&l)
    l.size = 0
    nbytes[0] = ABSENT
    try:
        nbytes[0] = add_described(&l, value, kind_of(type(value)), known_bytes)
    except BaseException:
        return b""
    return l.text[:l.size]


cdef bytes describe_returned(object value, object known_bytes, uint64_t *nbytes):
    """describe_one for what a task returns. An array that is a view has the bytes that only the
    view keeps in memory: those of its base, or none if others hold the base, too."""
    cdef dwsr_ndarray *a
    cdef uint64_t logical
    cdef bytes text = describe_one(value, known_bytes, nbytes)
    if ndarray_layout != 1 or kind_of(type(value)) != NDARRAY or not text:
        return text
    a = <dwsr_ndarray *><void *>value
    if a.base == NULL or nbytes[0] == ABSENT:
        return text
    logical = nbytes[0]
    try:
        if _Py_REFCNT(a.base) > 1:
            nbytes[0] = 0
        elif kind_of(type(<object>a.base)) == NDARRAY:
            nbytes[0] = byte_count((<object>a.base).nbytes)
        if nbytes[0] == logical:
            return text
        head = text[:text.rindex(b',"nbytes":')]
        logical = byte_count(value.nbytes)
        return b'%b,"nbytes":%d,"logical_bytes":%d,"view":true}' % (head, nbytes[0], logical)
    except Exception:
        return text


def describe_inputs(inputs):
    """(JSON, total bytes or None, number of values, number of values that the JSON leaves out)."""
    cdef listing l
    fill_listing(&l, inputs)
    return l.text[:l.size], None if l.total_bytes == ABSENT else l.total_bytes, l.count, l.omitted


def describe_output(value):
    """(JSON, bytes or None)."""
    cdef uint64_t nbytes
    text = describe_returned(value, None, &nbytes)
    return text, None if nbytes == ABSENT else nbytes
