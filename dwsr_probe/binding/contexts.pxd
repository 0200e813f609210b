# What tasks.pyx uses of contexts.pyx.
from libc.stdint cimport uint64_t

cdef enum switch:
    SWITCH_NONE, SWITCH_POSSIBLE, SWITCH_CERTAIN

cdef class Context:
    cdef object generator, greenlet  # weak references, or None
    cdef int begin_at  # the instruction of the generator at which the block began
    cdef int kind  # the flags of the generator's code
    cdef bint is_callback  # of an event loop, outside every coroutine
    cdef bint in_greenlet  # that may be suspended: not merely the first one of its thread
    cdef uint64_t version  # dwsr_context_version, when the block began

    cdef bint is_on_stack(self) except -1
    cdef switch switched(self, object error) except *

cdef Context current_context()
