from libc.stdint cimport uint64_t

cdef extern from "clock.h" nogil:
    uint64_t now_ns()
