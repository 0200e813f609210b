from libc.stdint cimport uint64_t

cdef extern from "atomics.h" nogil:
    uint64_t add_relaxed(uint64_t *p, uint64_t v)
    uint64_t load_relaxed(const uint64_t *p)
