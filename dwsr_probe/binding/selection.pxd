# What graph.pyx uses of selection.pyx.
from dwsr_probe.binding.features cimport listing

cdef bint is_lazy(object array)
cdef bint add_selection(listing *l, object array, tuple selection) except -1
