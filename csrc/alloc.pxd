from libc.stdint cimport uint64_t

cdef extern from "alloc.h" nogil:
    const uint64_t ALLOC_LARGE_DEFAULT
    int alloc_start(uint64_t large_from)
    void alloc_stop(int at_exit)
    int alloc_check_intact()
