# What a task received and returned: type, dtype, shape and bytes, never contents. Included in _core.pyx.
#
# Nothing here runs the job's code: attributes are read of types from known libraries only, of others the name of the type is all there is.
# Nothing raises and nothing is copied. Texts are JSON, written into a buffer on the stack; what does not fit is left out and counted.

from libc.string cimport memcpy

cdef enum:
    INPUTS_TEXT_MOST = 1984  # bytes of JSON that go into a record (TASK_INPUTS_MOST)
    VALUES_MOST = 256  # told; of more the total is not known
    LOOKED_MOST = 1024  # looked at, containers and constants among them: a begin takes no longer than that
    DEPTH_MOST = 3  # of lists and dicts inside each other
    AXES_MOST = 32

cdef enum kind_of_type:
    UNKNOWN, SCALAR, RAW, SEQUENCE, SET, MAPPING, ARRAY, NDARRAY, NDARRAY_SUBCLASS, DEVICE_ARRAY, SIZED, FRAME, COLUMN, ARROW, CSR, GRAPH_NODE, REFERENCE

cdef struct listing:
    char text[INPUTS_TEXT_MOST]
    Py_ssize_t size, count, omitted, looked
    uint64_t total  # ABSENT once any is unknown
    bint plain  # NumPy's and CuPy's arrays only, whose size is what they say


# (library, class): how its instances tell their size. Looked up once per type, along its bases.
KINDS = {
    ("numpy", "ndarray"): NDARRAY, ("numpy", "generic"): ARRAY, ("cupy", "ndarray"): DEVICE_ARRAY, ("sparse", "SparseArray"): ARRAY,
    ("torch", "Tensor"): ARRAY, ("xarray", "DataArray"): ARRAY, ("xarray", "Variable"): ARRAY, ("xarray", "Dataset"): SIZED,
    ("pandas", "DataFrame"): FRAME, ("pandas", "Series"): COLUMN, ("pandas", "Index"): ARRAY, ("pandas", "ExtensionArray"): ARRAY,
    ("cudf", "DataFrame"): FRAME, ("cudf", "Series"): COLUMN,
    ("pyarrow", "Table"): ARROW, ("pyarrow", "RecordBatch"): ARROW, ("pyarrow", "Array"): ARROW, ("pyarrow", "ChunkedArray"): ARROW,
    ("pyarrow", "Buffer"): ARROW,
    ("scipy", "_cs_matrix"): CSR, ("scipy", "_coo_base"): CSR, ("cupyx", "_data_matrix"): CSR,
    ("dask", "GraphNode"): GRAPH_NODE, ("dask", "TaskRef"): REFERENCE, ("distributed", "Future"): REFERENCE, ("distributed", "Actor"): UNKNOWN,
    ("builtins", "bytes"): RAW, ("builtins", "bytearray"): RAW, ("builtins", "memoryview"): ARRAY,
    ("builtins", "list"): SEQUENCE, ("builtins", "tuple"): SEQUENCE, ("builtins", "set"): SET, ("builtins", "frozenset"): SET,
    ("builtins", "dict"): MAPPING,
}
SCALARS = {t: SCALAR for t in (bool, int, float, complex, str, type(None), slice, type(Ellipsis), type, range)}  # exactly these
cdef dict kinds = dict(SCALARS)  # of the types of known libraries: the job's own classes are not kept alive here
cdef dict type_names = {}  # type → JSON string
cdef dict dtype_names = {}  # dtype → JSON string
cdef object ndarray_nbytes = None, ndarray_shape = None, ndarray_dtype = None  # of the class itself: a subclass may have changed its own
cdef object object_size = sys.getsizeof


# NumPy's array as every compiled extension knows it; checked against an array's own attributes before it is trusted.
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
        void *descr

cdef int ndarray_layout = -1 if "t" in sys.abiflags else 0  # 1: as above, -1: not, or no GIL to keep what follows together
cdef void *last_dtype = NULL  # the dtype that was seen last, kept alive below: jobs use few
cdef object last_dtype_kept = None
cdef bytes last_dtype_head = b""
cdef uint64_t last_dtype_bytes = 0
cdef bint last_dtype_objects = False


cdef bint layout_is_known(object array):
    """Once, on the first array met."""
    global ndarray_layout
    cdef dwsr_ndarray *a
    try:
        other = type(array)((1, 6))[:, ::2]
        a = <dwsr_ndarray *><void *>other
        ndarray_layout = 1 if (a.nd == 2 and a.descr == <void *>other.dtype and (a.dimensions[0], a.dimensions[1]) == other.shape
                               and (a.strides[0], a.strides[1]) == other.strides) else -1
    except Exception:
        ndarray_layout = -1
    return ndarray_layout == 1


cdef bint remember_dtype(object dtype) except -1:
    """The JSON of an array up to its shape, its itemsize, and whether it points to objects, whose size is another matter."""
    global last_dtype, last_dtype_kept, last_dtype_head, last_dtype_bytes, last_dtype_objects
    last_dtype_head = b'{"type":"ndarray","dtype":' + name_of_dtype(dtype) + b',"shape":['
    last_dtype_bytes, last_dtype_objects = dtype.itemsize, dtype.hasobject
    last_dtype_kept = dtype
    last_dtype = <void *>dtype
    return True


cdef uint64_t list_ndarray(listing *l, object array, object known_bytes) except? 0:
    """list_one for NumPy's own arrays, without a Python object made."""
    cdef dwsr_ndarray *a = <dwsr_ndarray *><void *>array
    cdef Py_ssize_t begin = l.size
    cdef uint64_t nbytes
    cdef int i
    cdef bint ok
    if a.descr != last_dtype:
        remember_dtype(<object>a.descr)
    nbytes = last_dtype_bytes
    l.count += 1
    ok = (l.size <= 1 or put(l, b",", 1)) and put(l, <const char *>last_dtype_head, len(last_dtype_head))
    for i in range(a.nd):
        # A stride of 0 is one value seen many times (np.broadcast_to, da.ones): what is really there counts.
        if a.strides[i] != 0 or a.dimensions[i] == 0:
            nbytes *= <uint64_t>a.dimensions[i]
        ok = ok and (i == 0 or put(l, b",", 1)) and put_number(l, <uint64_t>a.dimensions[i])
    if last_dtype_objects:
        l.plain = False
        if known_bytes is not None:
            nbytes = bytes_word(known_bytes)
    if not (ok and put(l, b'],"nbytes":', 11) and put_number(l, nbytes) and put(l, b"}", 1)):
        l.size = begin
        l.omitted += 1
    return nbytes


cdef object bases_of = type.__dict__["__mro__"].__get__


cdef int kind_of(type t):
    found = kinds.get(t)
    if found is not None:
        return found
    cdef int kind = UNKNOWN
    cdef bint known = is_known_library(t)
    for base in bases_of(t):
        module = type.__getattribute__(base, "__module__")
        if type(module) is not str:
            continue
        kind = KINDS.get((module.partition(".")[0], type.__getattribute__(base, "__name__")), -1)
        if kind < 0:
            continue
        if kind == NDARRAY:  # read through its C layout: no namesake
            numpy = sys.modules.get("numpy")
            kind = UNKNOWN if numpy is None or base is not numpy.ndarray else NDARRAY if base is t else numpy_subclass(base)
        elif base is not t and (kind in (SET, UNKNOWN) or module != "builtins" and not known):
            kind = UNKNOWN  # the job's own class: its attributes may be anything
        break
    else:
        kind = UNKNOWN
    if known:
        kinds[t] = kind
    return kind


cdef bint is_known_library(type t):
    module = type.__getattribute__(t, "__module__")
    return type(module) is str and module.partition(".")[0] in (
        "builtins", "numpy", "cupy", "cupyx", "cudf", "sparse", "torch", "xarray", "pandas", "pyarrow", "scipy", "dask", "distributed", "geopandas")


cdef int numpy_subclass(type base):
    global ndarray_nbytes, ndarray_shape, ndarray_dtype
    ndarray_nbytes, ndarray_shape, ndarray_dtype = base.nbytes, base.shape, base.dtype
    return NDARRAY_SUBCLASS


cdef bytes json_name(object text):
    """A JSON string; type and dtype names have no business with anything but printable ASCII."""
    return ('"' + "".join([c if " " <= c <= "~" and c not in '"\\' else "?" for c in str(text)[:64]]) + '"').encode()


cdef bytes name_of_type(type t):
    found = type_names.get(t)
    if found is None:
        name, library = type.__getattribute__(t, "__name__"), str(type.__getattribute__(t, "__module__")).partition(".")[0]
        found = json_name(f"{library}.{name}" if library in ("cupy", "cupyx", "cudf") else name)  # on a device: not the host's class of the same name
        if is_known_library(t):
            type_names[t] = found
    return found


cdef bytes name_of_dtype(object dtype):
    """NumPy's are remembered. Others may hold data (the categories of a column) and hash it."""
    if not type(dtype).__module__.startswith("numpy"):
        return json_name(dtype)
    found = dtype_names.get(dtype)
    if found is None:
        if len(dtype_names) > 4096:
            dtype_names.clear()
        found = dtype_names[dtype] = json_name(dtype)
    return found


cdef object frame_bytes(object frame):
    """Of a DataFrame: its columns as arrays and its index; objects count as their pointers."""
    total = frame.index.nbytes
    for array in frame._mgr.arrays:
        total += array.nbytes
    return total


cdef tuple look_at(object value, int kind):
    """(shape, dtype, nbytes), each None if unknown."""
    if kind == NDARRAY or kind == DEVICE_ARRAY:
        shape, nbytes, strides = value.shape, value.nbytes, value.strides
        if 0 in <tuple>strides and nbytes:  # one value seen many times (np.broadcast_to, da.ones): what is really there
            for axis, stride in zip(shape, strides):
                if stride == 0:
                    nbytes //= axis
        return shape, value.dtype, nbytes
    if kind == ARRAY:
        return getattr(value, "shape", None), getattr(value, "dtype", None), value.nbytes
    if kind == NDARRAY_SUBCLASS:
        return ndarray_shape.__get__(value), ndarray_dtype.__get__(value), ndarray_nbytes.__get__(value)
    if kind == RAW:
        return None, None, bytes.__len__(value) if isinstance(value, bytes) else bytearray.__len__(value)
    if kind == SCALAR:
        return None, None, object_size(value)
    if kind == FRAME:
        shape = value.shape
        try:
            return shape, None, frame_bytes(value)
        except Exception:
            return shape, None, None
    if kind == COLUMN:
        return value.shape, value.dtype, value.nbytes + value.index.nbytes
    if kind == SIZED:
        return None, None, value.nbytes
    if kind == ARROW:
        shape, nbytes = getattr(value, "shape", None), getattr(value, "nbytes", None)
        return (len(value),) if shape is None else shape, getattr(value, "type", None), getattr(value, "size", None) if nbytes is None else nbytes
    if kind == CSR:
        total = value.data.nbytes
        for name in ("indices", "indptr", "row", "col"):
            part = getattr(value, name, None)
            if part is not None:
                total += part.nbytes
        return value.shape, value.dtype, total
    return None, None, None


cdef bint put_number(listing *l, uint64_t n) noexcept:
    cdef char digits[24]
    cdef int at = 24
    while True:
        at -= 1
        digits[at] = c"0" + <char>(n % 10)
        n //= 10
        if n == 0:
            break
    return put(l, &digits[at], 24 - at)


cdef bint put(listing *l, const char *at, Py_ssize_t size) noexcept:
    if l.size + size > INPUTS_TEXT_MOST - 2:
        return False
    memcpy(l.text + l.size, at, size)
    l.size += size
    return True


cdef bint write_value(listing *l, bytes type_name, bytes dtype_name, object shape, uint64_t nbytes):
    """One JSON object, whole or not at all."""
    cdef Py_ssize_t begin = l.size
    cdef bint ok = put(l, b'{"type":', 8) and put(l, <const char *>type_name, len(type_name)) and put(l, b',"dtype":', 9)
    ok = ok and put(l, <const char *>dtype_name, len(dtype_name)) and put(l, b',"shape":', 9)
    if isinstance(shape, tuple) and len(<tuple>shape) <= AXES_MOST:
        ok = ok and put(l, b"[", 1)
        for i in range(len(<tuple>shape)):
            axis = (<tuple>shape)[i]
            if type(axis) is not int or not -1 < axis < 1 << 62:  # NaN in dask's own metadata
                ok = ok and put(l, b"null", 4)
            else:
                ok = ok and put_number(l, <uint64_t>axis)
            if i + 1 < len(<tuple>shape):
                ok = ok and put(l, b",", 1)
        ok = ok and put(l, b"]", 1)
    else:
        ok = ok and put(l, b"null", 4)
    if nbytes == C_ABSENT:
        ok = ok and put(l, b',"nbytes":null}', 15)
    else:
        ok = ok and put(l, b',"nbytes":', 10) and put_number(l, nbytes) and put(l, b"}", 1)
    if not ok:
        l.size = begin
    return ok


cdef uint64_t list_one(listing *l, object value, int kind, object known_bytes) except? 0:
    """Describe one value; its bytes. known_bytes: what somebody else has found out, or None."""
    cdef uint64_t nbytes
    if kind == NDARRAY and (ndarray_layout == 1 or ndarray_layout == 0 and layout_is_known(value)):
        return list_ndarray(l, value, known_bytes)
    shape = dtype = found = None
    try:
        shape, dtype, found = look_at(value, kind)
    except Exception:  # a closed memoryview, a half-made object: its type is all there is
        pass
    if kind == DEVICE_ARRAY and found is not None:
        known_bytes = None  # Dask counts one value seen many times as many
    nbytes = bytes_word(known_bytes if known_bytes is not None else found)
    l.count += 1
    cdef Py_ssize_t begin = l.size
    if l.size > 1 and not put(l, b",", 1) or not write_value(
            l, name_of_type(type(value)), b"null" if dtype is None else name_of_dtype(dtype), shape, nbytes):
        l.size = begin
        l.omitted += 1
    return nbytes


cdef int list_value(listing *l, object value, int depth, object known_bytes, bint literal) except -1:
    """A value and, of lists and dicts, what is in them. literal: of a graph's own constants only what has a size is told."""
    cdef int kind = kind_of(type(value))
    cdef uint64_t nbytes, before
    l.looked += 1
    if kind == REFERENCE or (literal and (kind in (SCALAR, UNKNOWN) or depth >= DEPTH_MOST and kind in (SEQUENCE, SET, MAPPING))):
        return 0
    if kind != NDARRAY and kind != DEVICE_ARRAY:
        l.plain = False
    if kind == GRAPH_NODE:
        return list_node(l, value, depth)
    if kind in (SEQUENCE, SET, MAPPING) and depth < DEPTH_MOST:
        before = l.total
        list_items(l, value, kind, depth, literal)
        nbytes = bytes_word(known_bytes)  # with what the container itself takes
        if nbytes != C_ABSENT and before != C_ABSENT:
            l.total = before + nbytes
        return 0
    if l.count >= VALUES_MOST:
        l.count += 1
        l.omitted += 1
        l.total = C_ABSENT
        return 0
    nbytes = list_one(l, value, kind, known_bytes)
    l.total = C_ABSENT if l.total == C_ABSENT or nbytes == C_ABSENT else l.total + nbytes
    return 0


cdef bint is_enough(listing *l, Py_ssize_t left, bint literal) noexcept:
    """The rest is counted, not looked at."""
    if l.count < VALUES_MOST and l.looked < LOOKED_MOST:
        return False
    if not literal:
        l.count += left
        l.omitted += left
        l.total = C_ABSENT
    return True


cdef int list_items(listing *l, object items, int kind, int depth, bint literal) except -1:
    """By index or C iterator: a subclass of list, tuple or dict may have methods of its own."""
    cdef Py_ssize_t i = 0
    if isinstance(items, tuple):
        while i < len(<tuple>items):
            if is_enough(l, len(<tuple>items) - i, literal):
                return 0
            list_value(l, (<tuple>items)[i], depth + 1, None, literal)
            i += 1
    elif isinstance(items, list):
        while i < len(<list>items):
            if is_enough(l, len(<list>items) - i, literal):
                return 0
            list_value(l, (<list>items)[i], depth + 1, None, literal)
            i += 1
    elif kind == MAPPING:
        for item in (<dict>items).values():
            if is_enough(l, len(<dict>items) - i, literal):
                return 0
            list_value(l, item, depth + 1, None, literal)
            i += 1
    else:  # exactly a set or frozenset
        for item in items:
            if is_enough(l, len(items) - i, literal):
                return 0
            list_value(l, item, depth + 1, None, literal)
            i += 1
    return 0


cdef int list_node(listing *l, object node, int depth) except -1:
    """The constants inside a node of a Dask graph: of a data node its value, of a task its arguments."""
    if depth >= DEPTH_MOST:
        return 0
    value = getattr(node, "value", None)
    if value is not None:
        list_value(l, value, depth + 1, None, True)
    args = getattr(node, "args", None)
    if type(args) is tuple:
        for item in <tuple>args:
            list_value(l, item, depth + 1, None, True)
    kwargs = getattr(node, "kwargs", None)
    if type(kwargs) is dict:
        for item in (<dict>kwargs).values():
            list_value(l, item, depth + 1, None, True)
    return 0


cdef void open_listing(listing *l) noexcept:
    l.size = 1
    l.text[0] = c"["
    l.count = l.omitted = l.looked = 0
    l.total = 0
    l.plain = True


cdef void close_listing(listing *l) noexcept:
    l.text[l.size] = c"]"
    l.size += 1
    if l.count == 0:
        l.total = C_ABSENT


cdef void list_inputs(listing *l, object inputs) noexcept:
    open_listing(l)
    try:
        if isinstance(inputs, (list, tuple)):
            list_items(l, inputs, SEQUENCE, 0, False)
        else:
            list_value(l, inputs, 1, None, False)
    except BaseException:
        l.total = C_ABSENT
    close_listing(l)


cdef bytes describe_one(object value, object known_bytes, uint64_t *nbytes):
    """JSON of one value."""
    cdef listing l
    open_listing(&l)
    l.size = 0
    nbytes[0] = C_ABSENT
    try:
        nbytes[0] = list_one(&l, value, kind_of(type(value)), known_bytes)
    except BaseException:
        return b""
    return l.text[:l.size]


def describe_inputs(inputs):
    """JSON, total bytes (None if any is unknown), how many there are, how many the JSON leaves out."""
    cdef listing l
    list_inputs(&l, inputs)
    return l.text[:l.size], None if l.total == C_ABSENT else l.total, l.count, l.omitted


def describe_output(value):
    """JSON and bytes (None if not known)."""
    cdef uint64_t nbytes
    text = describe_one(value, None, &nbytes)
    return text, None if nbytes == C_ABSENT else nbytes
