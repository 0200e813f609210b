# What graph_tasks.pyx uses of graph.pyx.
from dwsr_probe.binding.features cimport listing

cdef class Function:
    cdef int role
    cdef bytes name
    cdef bint ours

cdef class Scope:
    cdef dict graph
    cdef object inkeys
    cdef tuple arguments
    cdef Py_ssize_t first
    cdef Scope outer
    cdef bint legacy

    cdef object argument(self, object key)

cdef class Walk:
    cdef listing *inputs
    cdef object data, sizes
    cdef set done
    cdef list names
    cdef bytes operation
    cdef bytes handed  # a function among the arguments of a library's function
    cdef bint handed_ours
    cdef int left

    cdef int run(self, object node) except -1
    cdef bytes operation_text(self)
    cdef bytes chain(self)
    cdef int visit(self, object node, Scope scope, bint in_library, int depth) except -1
    cdef int take_handed(self, object function, int depth) except -1
    cdef int visit_key(self, object key, Scope scope, bint in_library, int depth) except -1
    cdef int add_dependency(self, object key) except -1
    cdef int visit_task(
        self, object function, object args, object kwargs, Scope scope, int depth) except -1
    cdef int visit_compose(
        self, object function, tuple args, object kwargs, Scope scope, int depth) except -1
    cdef int add_name(self, Function f) except -1
    cdef object value_of(self, object node, Scope scope)
    cdef bint add_block(
        self, Function f, object source, object selection, Scope scope) except -1
