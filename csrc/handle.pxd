from libc.stdint cimport uint64_t

cdef extern from "handle.h" nogil:
    ctypedef struct task_handle:
        uint64_t word  # for Python, which keeps handles as integers; 0: no task
    const task_handle NOBODY
    bint is_somebody(task_handle task)
