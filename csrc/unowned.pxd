from libc.stdint cimport uint32_t

from csrc.frame cimport text

cdef extern from "unowned.h" nogil:
    uint32_t unowned_next_unnamed(uint32_t *thread)
    void unowned_name(uint32_t entry, text name, int counts)
