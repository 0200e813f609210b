# What graph.pyx and the task units use of params.pyx.
from csrc.params cimport params

cdef enum:
    ARGUMENTS_MOST = 256  # that are looked at

cdef enum kind_of_number:
    NO_NUMBER, BOOLEAN, INTEGER, FLOAT, NUMPY_BOOLEAN, NUMPY_INTEGER, NUMPY_FLOAT

cdef bint is_recording() noexcept
cdef int kind_of_number_of(object value) noexcept
cdef int add_number(params *p, bytes name, object value, int kind) except -1
cdef tuple names_of_arguments(object function)
cdef bytes name_at(tuple names, Py_ssize_t position)
cdef bytes name_of_keyword(object name)
cdef int add_arguments(
    params *p, object function, tuple args, dict kwargs, Py_ssize_t first) except -1
cdef object add_features(params *p, dict features)
