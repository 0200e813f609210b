# What the task units and those of graphs use of features.pyx.
from libc.stdint cimport uint64_t

from csrc.board_layout cimport ABSENT

cdef enum:
    INPUTS_TEXT_MOST = 1952  # bytes of JSON that go into a record (TASK_INPUTS_MOST)
    VALUES_MOST = 256  # values that are described; with more, the total size is unknown

cdef enum kind_of_type:
    UNKNOWN, SCALAR, RAW, SEQUENCE, SET, MAPPING, ARRAY, NDARRAY, NDARRAY_SUBCLASS, DEVICE_ARRAY
    SIZED, DATAFRAME, COLUMN, INDEX, ARROW, CSR, GRAPH_NODE, REFERENCE, LAZY, NO_INPUT

cdef tuple COMPILED_FUNCTIONS
cdef object module_of, own_name_of

cdef struct listing:
    char text[INPUTS_TEXT_MOST]  # a JSON list
    Py_ssize_t size  # of the text
    Py_ssize_t count  # values found
    Py_ssize_t omitted  # values that the text leaves out
    Py_ssize_t visited  # containers and constants included
    uint64_t total_bytes  # ABSENT once a size is unknown
    bint arrays_only  # NumPy's and CuPy's own arrays, whose nbytes is exact
    bint late  # the values that follow became known only while the task ran
    Py_ssize_t last_at, last_size  # the last value in the text
    Py_ssize_t last_count  # values in succession that are equal to it

cdef void open_listing(listing *l) noexcept
cdef void close_listing(listing *l) noexcept
cdef void reopen_listing(listing *l) noexcept
cdef bint omit_rest_if_full(listing *l, Py_ssize_t left, bint constant) noexcept
cdef int add_value(listing *l, object value, int depth, object known_bytes, bint constant) except -1
cdef int add_items(listing *l, object items, int kind, int depth, bint constant) except -1
cdef int add_constants(listing *l, object node, int depth) except -1
cdef bint is_hashable_type(type t) noexcept
cdef int kind_of(type t)
cdef tuple shape_and_dtype_of_lazy(object array)
cdef tuple shape_dtype_nbytes(object value, int kind)
cdef bytes name_of_type(type t)
cdef bytes name_of_dtype(object dtype)
cdef uint64_t add_fields(
    listing *l, bytes type_name, bytes dtype_name, object shape, uint64_t nbytes,
    bint lazy) except? 0
cdef bytes json_name(object text)
cdef void fill_listing(listing *l, object inputs) noexcept
cdef bytes describe_one(object value, object known_bytes, uint64_t *nbytes)
cdef bytes describe_returned(object value, object known_bytes, uint64_t *nbytes)


cdef inline uint64_t byte_count(object nbytes):
    """A number of bytes for the board; ABSENT for anything that cannot be one."""
    return <uint64_t>nbytes if type(nbytes) is int and 0 <= nbytes < 1 << 62 else ABSENT
