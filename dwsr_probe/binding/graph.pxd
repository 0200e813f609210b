# What graph_tasks.pyx uses of graph.pyx.
from libc.stdint cimport uint64_t

from csrc.params cimport params
from dwsr_probe.binding.features cimport listing
from dwsr_probe.binding.functions cimport Function
from dwsr_probe.binding.tasks cimport OpenTask

cdef class Scope:
    cdef dict graph
    cdef object inkeys
    cdef tuple arguments
    cdef Py_ssize_t first
    cdef Scope outer
    cdef bint legacy
    cdef dict places  # key → number of its argument, where there are many
    cdef object node, key  # the task that runs the subgraph, and its key in `outer`
    cdef dict copied  # `graph` with sources replaced, or None

    cdef object argument(self, object key)
    cdef void replace(self, object key, object node)

cdef class Walk:
    cdef listing *inputs
    cdef object root, data, sizes, value_key, value_task
    cdef dict done  # keys and ids of nodes that were visited → whether they are data
    cdef list names
    cdef Function operation
    cdef Function handed  # a function among the arguments of a library's function
    cdef object handed_callable  # the same as an object
    cdef tuple call  # positional arguments of the operation's call; None: no such call
    cdef object call_function, call_kwargs
    cdef object caller  # a function that passes the arguments on, or None
    cdef Scope call_scope
    cdef int left  # nodes that may still be visited
    cdef int tasks, blocks  # so far
    cdef int again  # times so far that data was met that stands in the inputs already
    cdef bint makes_output  # the task is given no data: what it has read or made is its output
    cdef list sources  # (scope, key, node) of tasks inside that make data, or None

    cdef int run(self, object node) except -1
    cdef bytes operation_text(self)
    cdef bytes chain(self)
    cdef int visit(self, object node, Scope scope, bint in_library, int depth) except -1
    cdef int take_handed(self, object function, int depth) except -1
    cdef int visit_siblings(
        self, object nodes, Scope scope, bint in_library, int depth) except -1
    cdef int visit_key(self, object key, Scope scope, bint in_library, int depth) except -1
    cdef int visit_inner(
        self, object key, object node, Scope scope, bint in_library, int depth) except -1
    cdef object observed(self, OpenTask opened)
    cdef bint gives_little(self, uint64_t before) noexcept
    cdef bint is_found(self, Scope scope, object key, object node) except -1
    cdef bint was_done(self, object key) except -1
    cdef int add_dependency(self, object key) except -1
    cdef int visit_task(
        self, object function, object args, object kwargs, Scope scope, int depth,
        object node=*, object key=*) except -1
    cdef int visit_applied(self, tuple args, Scope scope, int depth) except -1
    cdef int visit_compose(
        self, object function, tuple args, object kwargs, Scope scope, int depth) except -1
    cdef int add_name(self, Function f) except -1
    cdef int add_called(
        self, Function f, object function, tuple args, object kwargs, Scope scope,
        object caller) except -1
    cdef int add_params(self, params *p) except -1
    cdef tuple passed_on(
        self, params *p, object caller, tuple args, dict kwargs, Scope scope)
    cdef int add_param(self, params *p, bytes name, object node, Scope scope) except -1
    cdef object value_of(self, object node, Scope scope)
    cdef bint add_block(
        self, Function f, object source, object selection, Scope scope) except -1

cdef int add_late_value(listing *l, object value, object known_bytes) except -1
